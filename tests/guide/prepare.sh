# shellcheck shell=bash
# What a reader of a page has before its first command. Each function is named after its page.

# serve_all: `weir serve`, in the background.
serve_all() {
    echo "weir serve" >"$BLOCKS/serve"
    serve "$BLOCKS/serve" "$BLOCKS/serve.out"
}
# demo [SIZE]: a volume with some data.
demo() {
    weir volume create demo --size "${1:-1G}"
    weir up demo -- sh -c 'qemu-io -f raw "$WEIR_URI" -c "write -P 7 0 8M" -c "write -P 8 100M 1M"'
}
image() { qemu-img create -q -f "$1" "$2" "$3" && qemu-io -f "$1" "$2" -c "write -q -P 9 1M 2M"; }

prepare_README() {
    echo "weir up demo --size 2G" >"$BLOCKS/serve"
    serve "$BLOCKS/serve" "$BLOCKS/serve.out"
    export URI=$(sed -n 's/^serving //p' "$BLOCKS/serve.out")
    image qcow2 disk.qcow2 2G
}
prepare_guide_first_steps() { image raw disk.raw 1G; }
prepare_guide_images() {
    image qcow2 debian-13.qcow2 2G
    export ELSEWHERE=file://$HOME/elsewhere
}
prepare_guide_snapshots() { demo && serve_all; }
prepare_guide_cache() { demo; }
prepare_guide_clones() {
    image raw image.raw 64M
    weir volume import image.raw image
}
prepare_guide_check_and_repair() { demo; }
prepare_guide_replicas() {
    demo
    export ELSEWHERE=file://$HOME/elsewhere
}
clean_up_guide_remote() { kill "$(cat far.pid)"; }
prepare_guide_stores() { export WEIR_STORE=file://$HOME/store; }
# Another host took the volume over from this one, whose journal holds more than the store.
prepare_guide_one_writer() {
    export WEIR_STORE=file://$HOME/store WEIR_LEASE=3
    echo "weir up demo --size 64M --batch-age 600" >"$BLOCKS/serve"
    serve "$BLOCKS/serve" "$BLOCKS/serve.out"
    qemu-io -f raw "$(sed -n 's/^serving //p' "$BLOCKS/serve.out")" -c "write -P 7 0 1M" -c flush
    kill -KILL -- "-${served[0]}"
    served=()
    WEIR_DATA_DIR=$HOME/other weir up demo --take-over -- true
}
prepare_operations_api() { demo && serve_all; }
prepare_operations_traces() {
    printf '1,W,0,0,4096\n2,W,0,8192,4096\n3,R,0,0,4096\n' | tee trace.csv one.csv >two.csv
    printf '0,W,0,4096,1\n0,R,4096,4096,2\n' | gzip >trace.gz
}
prepare_guide_service() {
    ln -s "$REPOSITORY/deploy" deploy
    own /etc/weir
    { cat /etc/group && echo "weir:x:64055:"; } >group
    mount --bind group /etc/group
    mounted+=(/etc/group)
}
prepare_guide_attach_qemu() { prepare_README; }
prepare_guide_attach_mount() {
    prepare_README
    own /run/weir-disks /mnt/demo /etc/systemd/system
    cp /etc/fstab fstab 2>/dev/null || : >fstab
    mount --bind fstab /etc/fstab
    mounted+=(/etc/fstab)
}
clean_up_guide_attach_mount() {
    umount -l /mnt/demo
    [ -z "${loop:-}" ] || losetup --detach "$loop"
    umount -l /run/weir-disks/demo/disk
} 2>/dev/null
prepare_guide_attach_nbd_device() { own /etc/systemd/system; }
prepare_guide_attach_docker() { own /etc/systemd/system; }

# finish_PAGE runs when all blocks went well. The units that a page writes are what systemd takes.
takes_units() {
    local unit
    install -m 755 "$(command -v weir)" "$HOME/own/weir-for-units"
    cp "$REPOSITORY"/deploy/weir.{service,socket} /etc/systemd/system/
    sed -i "s|/usr/bin/weir|$HOME/own/weir-for-units|" /etc/systemd/system/weir.service
    for unit; do
        systemd-analyze verify --man=no --generators=no "/etc/systemd/system/$unit" 2>"$HOME/verified" || true
        # What the machine of the test lacks is no fault of the unit.
        if grep -v 'is not executable' "$HOME/verified" | grep -F "${unit%%@*}"; then return 1; fi
        [ -s "/etc/systemd/system/${unit/@*./@.}" ]
    done
}
finish_guide_attach_mount() {
    takes_units weir-fuse@demo.service
    # What was written through the mount is in the volume.
    nbdcopy "$URI" copy.img
    grep -aq hello copy.img
    rm copy.img
}
finish_guide_attach_nbd_device() { takes_units weir-disk@demo.service mnt-demo.mount; }
# What deploy/install put in place is complete, and a second time keeps the settings.
finish_guide_service() {
    local root=$HOME/package file
    systemd-sysusers --root="$root" weir.conf
    systemd-tmpfiles --root="$root" --create weir.conf
    [ "$(stat -c '%A %u %G' "$root/etc/weir/weir.toml" | cut -d ' ' -f 1,2)" = "-rw-r----- 0" ]
    [ "$(stat -c %a "$root/etc/weir") $(stat -c %a "$root/var/lib/weir")" = "750 700" ]
    [ "$(stat -c %u "$root/var/lib/weir")" = "$(awk -F: '$1 == "weir" { print $3 }' "$root/etc/passwd")" ]
    for file in man/man1/weir-volume-create.1 bash-completion/completions/weir zsh/vendor-completions/_weir \
        fish/vendor_completions.d/weir.fish; do
        [ -s "$root/usr/share/$file" ]
    done
    "$root/usr/bin/weir" serve --check --config "$root/etc/weir/weir.toml"
    echo '# mine' >>"$root/etc/weir/weir.toml"
    DESTDIR=$root deploy/install "$(command -v weir)"
    grep -qx '# mine' "$root/etc/weir/weir.toml"
    cmp "$(command -v weir)" "$root/usr/bin/weir"
}
