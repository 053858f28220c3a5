# shellcheck shell=bash
# Guests in QEMU's interpreter, for scripts that have sourced ../lib.sh: Debian's cloud kernel, an initramfs whose init
# is guest-init, a console in a file.

GUEST_NEEDS=(qemu-system-x86_64 busybox cpio depmod modprobe dpkg-deb apt-get)
# A guest in an interpreter on a busy machine may need this long for one job, in seconds.
GUEST_SECONDS_MAX=900

guest_pid=

# ---- kernel and initramfs ----

kernel_dir=$repository/target/tools/guest
fetch_kernel() {
    local package
    if ! ls "$kernel_dir"/boot/vmlinuz-6.1.0-*-cloud-amd64 >/dev/null 2>&1; then
        mkdir -p "$kernel_dir"
        package=$(kernel_package)
        if [ -z "$package" ]; then
            apt-get update -q >/dev/null 2>&1
            package=$(kernel_package)
        fi
        [ -n "$package" ] || skip_all "Debian's cloud kernel 6.1 is not to be had here"
        say "downloading $package"
        mkdir -p "$work/deb"
        chmod 711 "$work"
        (cd "$work/deb" && apt-get download -q "$package") >"$work/apt.log" 2>&1 \
            || skip_all "apt-get download $package: $(tail -n 1 "$work/apt.log")"
        dpkg-deb -x "$work"/deb/*.deb "$kernel_dir" || die "dpkg-deb"
    fi
    kernel=$(ls "$kernel_dir"/boot/vmlinuz-6.1.0-*-cloud-amd64 | tail -n 1)
    version=${kernel##*/vmlinuz-}
    [ -e "$kernel_dir/lib/modules/$version/modules.dep.bin" ] || depmod -b "$kernel_dir" "$version"
}
kernel_package() {
    apt-cache depends linux-image-cloud-amd64 2>/dev/null \
        | sed -n 's/^ *Depends: \(linux-image-6\.1\.0-.*\)/\1/p'
}

# copy_libraries ROOT FILE: what a program or a module of one is linked with.
copy_libraries() {
    local library
    for library in $(ldd "$2" 2>/dev/null | grep -o '/[^ ]*'); do
        mkdir -p "$1$(dirname "$library")"
        cp -n -L "$library" "$1$library"
    done
}

# make_initramfs TOOL...: with these programs of the host in /tools. What `more_in_initramfs ROOT` adds, where a script
# defines it, is in it too.
make_initramfs() {
    local root=$work/initramfs tool module
    mkdir -p "$root"/{bin,tools,proc,sys,dev,tmp,mnt,lib/guest,etc}
    ln -s . "$root/usr"
    cp "$(command -v busybox)" "$root/bin/busybox"
    ln -s /proc/mounts "$root/etc/mtab"
    cp /etc/mke2fs.conf "$root/etc/"
    cp "$tools/guest-init" "$root/init"
    chmod 755 "$root/init"
    for tool; do
        tool=$(command -v "$tool")
        cp "$tool" "$root/tools/"
        copy_libraries "$root" "$tool"
    done
    if declare -F more_in_initramfs >/dev/null; then more_in_initramfs "$root"; fi
    for module in virtio_pci virtio_blk virtio_net crc32c_generic ext4 nbd; do
        modprobe -d "$kernel_dir" -S "$version" --show-depends "$module" | sed -n 's/^insmod //p'
    done | awk '!seen[$1]++ { print $1 }' >"$work/modules"
    while read -r module; do
        cp "$module" "$root/lib/guest/" || die "no module $module"
        basename "$module"
    done <"$work/modules" >"$root/modules"
    (cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initramfs.gz"
    say "guest kernel $version, $(wc -l <"$work/modules") modules," \
        "initramfs $(($(stat -c %s "$work/initramfs.gz") >> 20)) MiB"
}

# ---- the guest ----

# boot CONSOLE COMMANDLINE QEMU-OPTIONS...: starts a guest; sets guest_pid.
boot() {
    local console=$1 line=$2
    shift 2
    : >"$console"
    # Without -cx16 newer kernels fail now and then in the interpreter, and with a check of the timer on a busy host.
    qemu-system-x86_64 -accel tcg,thread=multi -cpu max,-cx16 -smp 2 -m 1024 -display none \
        -serial "file:$console" -monitor none -no-reboot -kernel "$kernel" \
        -initrd "$work/initramfs.gz" -append "console=ttyS0 panic=-1 no_timer_check quiet $line" "$@" \
        >"$work/qemu.log" 2>&1 </dev/null &
    guest_pid=$!
    processes+=("$guest_pid")
}
# said CONSOLE PATTERN: what follows the pattern on complete lines.
said() { tr -d '\r' <"$1" | sed -n "s/^$2 \\(.*\\)\\.\$/\\1/p"; }

# wait_for CONSOLE PATTERN [COUNT]: until so many lines begin with the pattern.
wait_for() {
    local i
    for ((i = 0; i < GUEST_SECONDS_MAX * 5; i++)); do
        [ "$(said "$1" "$2" | wc -l)" -ge "${3:-1}" ] && return 0
        [ -n "$(said "$1" "GUEST failed:")" ] && return 1
        kill -0 "$guest_pid" 2>/dev/null || { sleep 0.5; [ -n "$(said "$1" "$2")" ]; return; }
        sleep 0.2
    done
    return 1
}
# finish CONSOLE: until the guest has powered itself off after a job that went well.
finish() {
    wait_for "$1" "GUEST done" || [ "$(said "$1" GUEST | tail -n 1)" = "done" ]
}
end_guest() {
    kill -KILL "$guest_pid" 2>/dev/null
    wait "$guest_pid" 2>/dev/null
    local entry left=()
    for entry in "${processes[@]}"; do [ "$entry" = "$guest_pid" ] || left+=("$entry"); done
    processes=("${left[@]}")
}
