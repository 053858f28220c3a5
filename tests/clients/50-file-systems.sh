#!/usr/bin/env bash
# ext4, XFS and btrfs on a loop device over nbdfuse: discard at mkfs, postmark, fsx, a large tar, and the
# same files after a restart.
. "$(dirname "$0")/_lib.sh"

if [ "$(id -u)" != 0 ] || [ ! -c /dev/fuse ] || ! losetup -f >/dev/null 2>&1; then
    skip "file systems: needs root, /dev/fuse and loop devices"
    exit 0
fi

mkdir -p "$work/disk" "$work/fs"
attach() {
    nbdfuse -C 1 "$work/disk/disk" "$uri" &
    fuse_pid=$!
    processes+=("$fuse_pid")
    wait_until "the disk is there" test -s "$work/disk/disk"
    mounts+=("$work/disk/disk")
    loop=$(losetup -f --show --direct-io=on "$work/disk/disk")
    loops+=("$loop")
}
detach() {
    umount "$work/fs" && losetup -d "$loop" && umount "$work/disk/disk"
    wait "$fuse_pid"
}
: >"$work/disk/disk"

postmark_run() {
    printf '%s\n' "set location $work/fs/mail" "set number 2000" "set transactions 10000" \
        "set size 500 65536" "set seed 42" run quit >"$work/postmark.in"
    mkdir -p "$work/fs/mail" && postmark "$work/postmark.in" >"$work/postmark.out"
    # It removes its files; its own report must be there.
    grep -q "Transactions" "$work/postmark.out" || grep -q "transactions" "$work/postmark.out"
}
# A tree of the machine's own files, large and small.
tree=(-C /usr share/doc share/perl share/python3 lib/python3)
sums() { (cd "$work/fs" && find tree -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum); }

file_system() {
    local kind=$1 before after
    shift
    start "$kind" --size 8G
    attach
    check "$kind: mkfs with discard" "mkfs.$kind" "$@" "$loop"
    check "$kind: mount" mount -o discard "$loop" "$work/fs"
    mounts+=("$work/fs")
    check "$kind: postmark" postmark_run
    if command -v fsx >/dev/null; then
        check "$kind: fsx" fsx -N 5000 -S 7 "$work/fs/fsx.file"
    else
        skip "$kind: fsx is not installed"
    fi
    mkdir "$work/fs/tree"
    unpack() { tar -c --ignore-failed-read "${tree[@]}" 2>/dev/null | tar -x -C "$work/fs/tree"; }
    check "$kind: tar extract" unpack
    many() { [ "$(find "$work/fs/tree" -type f | wc -l)" -gt 1000 ]; }
    check "$kind: more than a thousand files came out of it" many
    sync -f "$work/fs"
    check "$kind: fstrim" fstrim "$work/fs"
    before=$(sums)
    detach
    stop
    start "$kind"
    attach
    case $kind in
        ext4) check "ext4: e2fsck -fn" e2fsck -fn "$loop" ;;
        xfs) check "xfs: xfs_repair -n" xfs_repair -n "$loop" ;;
        btrfs) check "btrfs: btrfs check" btrfs check "$loop" ;;
    esac
    check "$kind: mount again" mount "$loop" "$work/fs"
    check "$kind: as many files" many
    after=$(sums)
    check "$kind: every file is the same after a restart" test "$before" = "$after"
    detach
    stop
    check "$kind: delete" "$weir" volume delete "$kind" --yes
}

file_system ext4 -q -F
file_system xfs -q -f
file_system btrfs -q -f
