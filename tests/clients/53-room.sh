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
io() { timeout 180 qemu-io -f raw "$uri" "$@"; }
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

# Too small for any journal.
mount_room 20
refuse "a journal without room says how much it takes" \
    "a journal takes 64.0 MiB at first, and the file system of .* left" \
    "$weir" up small --size 1G -- true
check "and no volume stays behind" sh -c "! '$weir' volume list | grep small"
unmount_room

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

# A store that is full can be emptied: what deletes has room.
mkdir -p "$work/small"
mount -t tmpfs -o size=100m none "$work/small" || cannot "no tmpfs can be mounted here"
mounts+=("$work/small")
export WEIR_DATA_DIR=$work/data WEIR_STORE=file://$work/small/store
start kept --size 256M --journal 64M --batch-age 1 --batch 1M
write_random() { io -c "write -s $work/random $1 $2" -c flush >/dev/null; }
check "a write" write_random 0 40M
check "a snapshot of it" "$weir" snapshot create kept@before
check "the store takes it" "$weir" volume flush kept --remote --wait
for at in 0 40; do timeout 20 qemu-io -f raw "$uri" -c "write -s $work/random ${at}M 40M" >/dev/null; done
is_full() { { "$weir" status 2>&1 || true; } | grep -q "the file system of the store .* is full"; }
wait_until "the store is full, and status says so" is_full
check "a snapshot is deleted while it is served" timeout 60 "$weir" snapshot delete kept@before
is_well() { "$weir" status >/dev/null 2>&1; }
wait_until "what it kept is given back, and uploads go on" is_well
stop
# Full again, with a second volume, and nobody serves.
start kept --journal 64M --batch-age 1 --batch 1M
timeout 30 qemu-io -f raw "$uri" -c "write -s $work/random 80M 40M" -c "write -s $work/random 120M 20M" >/dev/null
wait_until "the store is full again" is_full
crash
check "a volume is deleted from a full store" timeout 100 "$weir" volume delete kept --yes
left=$(du -sm "$work/small/store" | cut -f 1)
check "its objects are gone" [ "$left" -lt 5 ]
