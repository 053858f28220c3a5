#!/usr/bin/env bash
# What a start meets, and what `weir status` says where nothing is served: journals that were not closed, a store that
# is full, a disk that fails, keys that do not come, few open files.
. "$(dirname "$0")/_lib.sh"

put() { qemu-io -f raw "$uri" -c "write -P $1 $2 $3" | grep -q wrote; }

# ---- nothing is served ----
check "status of a directory that is not there is not well" status_says 3 "there is no data directory"
mkdir "$WEIR_DATA_DIR"
check "status of an empty directory is well" status_says 0 "nothing is served"
start one --size 64M
check "a write" put 1 0 1M
check "served, all is well" status_says 0 "one +ok"
check "status says that the loss of this disk takes the store as well" status_says 0 "on the disk of the journals"
check "and so does the start" grep -q "the loss of that disk takes the volumes" "$work/weir.log"
crash
check "after kill -9 status names the journal that nobody serves" \
    status_says 3 "volume one .[0-9a-f]{32}. is not served, and its journal"
is_not_open() {
    "$weir" volume list | grep -qE "^one .* not closed on" && "$weir" volume show one | grep "did not close it"
}
check "a listing does not call it open, though its lease has not run out" is_not_open
"$weir" status --output json >"$work/status.json" 2>"$work/status.err"
check "in JSON too, on standard error" grep -q "was not closed" "$work/status.err"
check "and in the document" jq -e \
    '.[] | select(.process == null) | .health == "failed" and (.not_served[0].id | length) == 32
        and .not_served[0].name == "one"' "$work/status.json"
start one
stop
check "after a close it is well" status_says 0 "nothing is served"

# ---- keys from a pipe ----
key=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
echo "$key" >"$work/key"
chmod 600 "$work/key"
check "an encrypted volume" "$weir" up sealed --size 16M --encrypt --key-file "$work/key" -- true
from_pipe() { "$weir" up sealed --key-file <(cat "$work/key") -- true; }
check "keys come out of a pipe" from_pipe
mkfifo "$work/silent"
: >"$work/weir.log"
"$weir" serve --volume sealed --key-file "$work/silent" >"$work/weir.out" 2>"$work/weir.log" </dev/null &
weir_pid=$!
sleep 1
check "a pipe that nobody writes to is waited for" kill -0 "$weir_pid"
kill -TERM "$weir_pid"
ended() { ! kill -0 "$weir_pid" 2>/dev/null; }
wait_seconds=10 wait_until "SIGTERM ends that" ended
weir_pid=
refuse "in the end the pipe is named" "key file $work/silent gives no key: no answer in 30 s" \
    timeout 60 "$weir" up sealed --key-file "$work/silent" -- true

# ---- few open files ----
limited() { (ulimit -Sn 64; exec "$weir" serve --check >/dev/null 2>&1); }
check "a low soft limit is no obstacle" limited
(
    ulimit -n 256
    for ((i = 0; i < 60; i++)); do printf '[[volumes]]\nname = "v%d"\nsize = "1M"\n' "$i"; done >"$work/many.toml"
    : >"$work/many.log"
    WEIR_DATA_DIR=$work/many exec "$weir" serve --config "$work/many.toml" >"$work/many.out" 2>"$work/many.log"
) </dev/null &
many=$!
processes+=("$many")
wait_until "too few open files are said, with the way out" grep -q "raise LimitNOFILE" "$work/many.log"
kill -KILL "$many"
wait "$many" 2>/dev/null

if [ "$(id -u)" != 0 ]; then
    skip "a full store and a failing disk need root"
    exit 0
fi

# ---- a full store ----
mkdir -p "$work/full"
mount -t tmpfs -o size=24m none "$work/full" || { not_ok "a mount"; exit 1; }
mounts+=("$work/full")
export WEIR_STORE=file://$work/full
start two --size 256M --journal 64M --batch 1M --batch-age 1
i=0
while ((i < 40)); do
    head -c 1M /dev/urandom >"$work/random"
    qemu-io -f raw "$uri" -c "write -s $work/random ${i}M 1M" | grep -q wrote || break
    i=$((i + 1))
done
wait_seconds=12 wait_until "a full store is said at once" status_says 3 "the file system of the store .* is full"
why="this may wait: .*the file system of the store .* is full"
refuse "a flush that waits for it says so" "$why" timeout 20 "$weir" volume flush two --remote --wait
refuse "and so does a snapshot" "$why" timeout 20 "$weir" snapshot create two@waits
crash
dd if=/dev/zero of="$work/full/filler" bs=64k >/dev/null 2>&1
dd if=/dev/zero of="$work/full/filler2" bs=512 >/dev/null 2>&1
: >"$work/weir.log"
"$weir" up two --journal 64M --batch 1M --batch-age 1 >"$work/weir.out" 2>"$work/weir.log" </dev/null &
weir_pid=$!
wait_until "an opening waits for a store without any room" grep -q "the store keeps failing" "$work/weir.log"
check "status names the volume, and the process that has it" \
    status_says 3 "volume (two .)?[0-9a-f]{32}.? is not served: process $weir_pid has it open"
refuse "a verb does not call that served" \
    "process $weir_pid has volume \"two\" open, and does not say that it serves it" \
    timeout 60 "$weir" snapshot create two@refused
rm "$work/full/filler" "$work/full/filler2"
mount -o remount,size=200m "$work/full"
uri="nbd+unix:///two?socket=$WEIR_DATA_DIR/nbd/two.sock"
wait_for_export "$uri"
check "it is opened once there is room" put 2 0 1M
wait_seconds=60 wait_until "and it is well again by itself" status_says 0 "two +ok"
stop
unset WEIR_STORE

# ---- a disk that fails ----
if command -v nbdkit >/dev/null && losetup -f >/dev/null 2>&1 && [ -c /dev/fuse ]; then
    truncate -s 200M "$work/disk.img"
    nbdkit -U "$work/nbd.sock" --foreground --filter=error file "$work/disk.img" \
        error-pwrite-rate=100% error-file="$work/broken" error=EIO >/dev/null 2>&1 </dev/null &
    processes+=("$!")
    wait_until "nbdkit" test -S "$work/nbd.sock"
    mkdir -p "$work/fuse" "$work/disk"
    : >"$work/fuse/disk"
    nbdfuse "$work/fuse/disk" "nbd+unix:///?socket=$work/nbd.sock" >/dev/null 2>&1 </dev/null &
    processes+=("$!")
    wait_until "nbdfuse" test -s "$work/fuse/disk"
    mounts+=("$work/fuse/disk")
    disk=$(losetup -f --show --direct-io=on "$work/fuse/disk")
    loops+=("$disk")
    mkfs.ext4 -q "$disk" && mount "$disk" "$work/disk" && mounts+=("$work/disk")
    mkdir -p "$work/store"
    export WEIR_STORE=file://$work/store WEIR_DATA_DIR=$work/disk/data
    start three --size 64M --journal 64M --batch-age 600
    check "a write to it" put 1 0 1M
    touch "$work/broken"
    put 2 1M 1M
    wait_until "a journal that failed is said" status_says 3 "three: it takes no writes: its journal failed"
    health() { curl -s --unix-socket "$(find "$WEIR_DATA_DIR" -name '*.sock' -path '*control*' | head -n 1)" \
        http://localhost/metrics | grep -E '^weir_volume_health' | grep -q ' 2'; }
    check "and counted in the metrics" health
    sent() { find "$work/store" -path '*/log/*' -type f | grep -q .; }
    wait_seconds=30 wait_until "what was flushed before is in the store" sent
    crash
    rm "$work/broken"
else
    skip "a failing disk needs nbdkit, nbdfuse and loop devices"
fi
