#!/usr/bin/env bash
# A small file system that the journals and the embedded store share: neither takes what the other needs.
. "$(dirname "$0")/_lib.sh"

# What cannot run is a failure where all must run.
cannot() {
    if [ "${CI:-}" = true ]; then not_ok "this can run" "$1"; else skip "$1"; fi
    exit 0
}
[ "$(id -u)" = 0 ] || cannot "only root mounts a tmpfs"
command -v qemu-io >/dev/null || cannot "qemu-io is not installed"
unset WEIR_STORE # the embedded store

# mount_room MEGABYTES: the data directory is on a file system of its own, of that size.
mount_room() {
    mkdir -p "$work/small"
    mount -t tmpfs -o "size=$1m" none "$work/small" || cannot "no tmpfs can be mounted here"
    mounts+=("$work/small")
    export WEIR_DATA_DIR=$work/small/data
}
unmount_room() {
    umount "$work/small" || not_ok "unmount" "$(df "$work/small")"
    unset 'mounts[-1]'
}
io() { timeout 60 qemu-io -f raw "$uri" "$@"; }
# What nobody can compress: with constants the store would need next to nothing.
head -c 64M /dev/urandom >"$work/random"
# overwrite ROUNDS: the whole volume again and again.
overwrite() {
    local commands=() round
    for ((round = 1; round <= $1; round++)); do
        commands+=(-c "write -s $work/random 0 64M")
    done
    io "${commands[@]}" -c flush
}
# reads: the volume has what overwrite wrote, to the last byte.
reads() {
    timeout 60 qemu-img dd -f raw -O raw bs=1M count=64 "if=$uri" "of=$work/read" && cmp "$work/random" "$work/read"
}
# fill URI: writes until its journal takes no more; what was written first is kept in the last MiB.
fill() {
    uri=$1 io -c "write -P 99 64M 1M" -c flush >/dev/null || not_ok "a first write" "$(cat "$work/weir.log")"
    uri=$1 overwrite 12 >"$work/fill.out" 2>&1 &
    processes+=("$!")
}
kept() { local output; output=$(io -c "read -P 99 64M 1M") && ! grep -q 'verification failed' <<<"$output"; }

# The journal alone may become nearly as long as the file system, while hardly anything is uploaded. All that it holds
# has to fit beside it afterwards.
mount_room 574
start small --size 65M --journal 512M --upload-bandwidth 1M
fill "$uri"
sleep 15
crash
start small --journal 512M
check "what was answered is there after kill -9 and a start" kept
check "and the volume is written over again" overwrite 4
check "what was written last is read" reads

stop
check "the volume is whole" "$weir" volume check small
unmount_room

# The same with two journals, each of which alone would leave room.
mount_room 574
for name in one two; do
    check "create $name" "$weir" volume create "$name" --size 65M
done
WEIR_JOURNAL=512M WEIR_UPLOAD_BANDWIDTH=1M "$weir" serve >"$work/weir.out" 2>"$work/weir.log" </dev/null &
weir_pid=$!
for name in one two; do
    wait_for_export "nbd+unix:///$name?socket=$WEIR_DATA_DIR/nbd.sock"
    fill "nbd+unix:///$name?socket=$WEIR_DATA_DIR/nbd.sock"
done
sleep 15
crash
WEIR_JOURNAL=512M "$weir" serve >"$work/weir.out" 2>"$work/weir.log" </dev/null &
weir_pid=$!
for name in one two; do
    uri="nbd+unix:///$name?socket=$WEIR_DATA_DIR/nbd.sock"
    wait_for_export "$uri"
    check "what was answered is there in volume $name" kept
    check "and $name is written over again" overwrite 2
    check "$name is read" reads
done
stop
for name in one two; do
    check "$name is whole" "$weir" volume check "$name"
done
unmount_room
