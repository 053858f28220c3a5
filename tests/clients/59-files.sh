#!/usr/bin/env bash
# Files and block devices as volumes: through the page cache and past it, holes, bytes at odd offsets, block devices,
# a killed server, a full disk, and what is refused.
. "$(dirname "$0")/_lib.sh"

run_fio() {
    (cd "$work" && fio --ioengine=nbd --uri="$uri" --name=verify --rw=randwrite --iodepth=16 \
        --size=48M --verify=crc32c --randseed=7 --minimal --output="$work/fio.log" "$@") \
        || { cat "$work/fio.log"; return 1; }
}
layer() { "$weir" status --output json | jq -e "[.. | .layers? // empty | .[] | .file? // empty][0] | $1"; }
# Data between two holes.
holes() { nbdinfo --map "$uri" | tee /dev/stderr | awk '{ kinds = kinds $3 } END { exit kinds != "303" }'; }
used_kib() { du -k "$1" | cut -f 1; }

for way in "" "--file-direct"; do
    named="through the page cache"
    [ -z "$way" ] || named="past the page cache"
    image=$work/disk$way.raw
    # shellcheck disable=SC2086
    start disk --file "$image" --size 128M $way
    check "$named: a file is made, and takes no space" test "$(used_kib "$image")" -lt 100
    check "$named: status" layer ".path == \"$image\" and .direct == $([ -z "$way" ] && echo false || echo true)"
    check "$named: written and verified" run_fio --bsrange=512-1M --blockalign=512
    check "$named: at odd offsets" run_fio --bsrange=512-128k --blockalign=512 --offset=16777219
    check "$named: bytes, zeroes and discards" qemu-io -f raw "$uri" -c "write -P 5 0 1M" -c "write -P 6 1001 3" \
        -c "write -z 4k 64k" -c "discard 512k 100k" -c "read -P 5 0 1001" -c "read -P 6 1001 3" \
        -c "read -P 5 1004 100" \
        -c "read -P 0 4k 64k" -c "read -P 0 512k 100k" -c "read -P 5 612k 1k"
    check "$named: discarding all leaves nothing" qemu-io -f raw "$uri" -c "discard 0 128M" -c flush
    check "$named: the file takes no space again" test "$(used_kib "$image")" -lt 100
    check "$named: a flush" qemu-io -f raw "$uri" -c "write -P 120 70001 999" -c flush
    check "$named: holes are told" holes
    nbdcopy "$uri" "$work/copy.raw"
    stop
    check "$named: the file holds what was read" cmp "$work/copy.raw" "$image"
done

# Killed under load: what was acknowledged is in the file, and the next one goes on at once.
image=$work/disk.raw
start disk --file "$image"
qemu-io -f raw "$uri" -c "write -P 97 1M 64k" >/dev/null
(cd "$work" && fio --ioengine=nbd --uri="$uri" --name=load --rw=randwrite --bs=16k --iodepth=32 --size=64M \
    --offset=64M --time_based --runtime=20 --minimal >/dev/null 2>&1) &
load=$!
processes+=("$load")
sleep 1
crash
wait "$load"
start disk --file "$image"
check "what was acknowledged before a kill is there" qemu-io -f raw "$uri" -c "read -P 97 1M 64k"

# Verbs of the store say what it is, and the list has it.
listed() { "$weir" volume list | grep -q "^disk .*file, served by"; }
check "it is listed" listed
check "with its kind" sh -c "'$weir' volume list --output json | jq -e '.[0].kind == \"file\"'"
for verb in check repair compact; do
    refuse "$verb" "is no volume of a store" "$weir" volume "$verb" disk
done
refuse "delete" "is no volume of a store" "$weir" volume delete disk --yes
refuse "a volume of its name" "disk.* choose another one" "$weir" volume create disk --size 1M

# What is refused, and why.
refuse "a second server" "in use" "$weir" up other --data-dir "$work/other" --file "$image"
refuse "a file that is not there" "a file is made with --size" "$weir" up disk --data-dir "$work/other" \
    --file "$work/none.raw"
refuse "a directory" "neither a file nor a block device" "$weir" up disk --data-dir "$work/other" --file "$work"
refuse "another size" "134217728 bytes, not" "$weir" up disk --data-dir "$work/other" \
    --file "$work/disk--file-direct.raw" --size 1M
refuse "a file and a server" "cannot be used with" "$weir" up disk --file "$image" --remote nbd://localhost/x
truncate -s 1000 "$work/odd.raw"
refuse "a length that cannot be read past the page cache" "no multiple of|O_DIRECT" \
    "$weir" up disk --data-dir "$work/other" --file "$work/odd.raw" --file-direct
refuse "a snapshot" "is no volume of a store, and has no snapshots" "$weir" snapshot create disk@monday
check "a flush by the verb" "$weir" volume flush disk
check "a limit" "$weir" volume limit disk --iops 1000
refuse "a share of the cache" "nothing of it is cached" "$weir" volume limit disk --cache-share 10%
check "and makes nothing" test ! -e "$work/none.raw"
stop

# In the file of settings, beside a volume of the store; read-only.
truncate -s 10M "$work/plain.raw"
cat >"$work/weir.toml" <<EOF
[[volumes]]
name = "plain"
file.path = "$work/plain.raw"
read_only = true
[[volumes]]
name = "log"
size = "64M"
EOF
"$weir" serve --config "$work/weir.toml" 2>"$work/weir.log" &
weir_pid=$!
wait_for_export "nbd+unix:///plain?socket=$work/data/nbd.sock"
wait_for_export "nbd+unix:///log?socket=$work/data/nbd.sock"
check "a read-only file is told as such" test "$(nbdinfo --json "nbd+unix:///plain?socket=$work/data/nbd.sock" \
    | jq '.exports[0].is_read_only')" = true
check "volume show" "$weir" volume show plain
stop

# The disk of the file is full: an error to the client, and the volume goes on.
if [ "$(id -u)" = 0 ]; then
    mkdir "$work/small"
    mount -t tmpfs -o size=8M tmpfs "$work/small"
    mounts+=("$work/small")
    start disk --file "$work/small/disk.raw" --size 64M
    refuse "a write to a full disk" "No space" qemu-io -f raw "$uri" -c "write -P 1 0 16M"
    check "there is room again after a discard" qemu-io -f raw "$uri" -c "discard 0 64M" -c "write -P 2 0 4k" -c flush
    stop
else
    skip "a full disk: needs root"
fi

# Block devices.
if [ "$(id -u)" = 0 ] && losetup --find >/dev/null 2>&1; then
    truncate -s 128M "$work/device.raw"
    device=$(losetup --find --show "$work/device.raw")
    loops+=("$device")
    for way in "" "--file-direct"; do
        # shellcheck disable=SC2086
        start disk --file "$device" $way
        check "a block device $way: written and verified" run_fio --bsrange=512-1M --blockalign=512
        check "a block device $way: at odd offsets" run_fio --bsrange=512-128k --blockalign=512 --offset=16777219
        check "a block device $way: zeroes and discards" qemu-io -f raw "$uri" -c "write -P 5 0 1M" \
            -c "write -z 100 64k" -c "discard 512k 100k" -c "read -P 5 0 100" -c "read -P 0 100 64k" \
            -c "read -P 0 512k 100k" -c "read -P 5 612k 1k"
        stop
    done
    mkfs.ext4 -q "$device"
    mkdir "$work/mounted"
    mount "$device" "$work/mounted"
    mounts+=("$work/mounted")
    refuse "a mounted device" "busy|in use" "$weir" up disk --data-dir "$work/other" --file "$device"
else
    skip "block devices: needs root and loop devices"
fi

# A file on FUSE whose program has stopped: its volume is closed, and nobody else waits for that.
if [ "$(id -u)" = 0 ] && [ -c /dev/fuse ] && command -v nbdkit nbdfuse >/dev/null; then
    nbdkit -U "$work/back" --foreground memory 16M &
    processes+=("$!")
    wait_until "the export is there" test -S "$work/back"
    mkdir "$work/fuse"
    : >"$work/fuse/nbd"
    nbdfuse "$work/fuse/nbd" "nbd+unix:///?socket=$work/back" &
    fuse=$!
    processes+=("$fuse")
    wait_until "the file is there" test -s "$work/fuse/nbd"
    mounts+=("$work/fuse/nbd")
    cat >"$work/fuse.toml" <<EOF
shards = 1
[[volumes]]
name = "beside"
size = "16M"
file = { path = "$work/beside.raw" }
[[volumes]]
name = "slow"
read_only = true
file = { path = "$work/fuse/nbd" }
EOF
    "$weir" serve --config "$work/fuse.toml" >"$work/fuse.log" 2>&1 </dev/null &
    weir_pid=$!
    daemons[$weir_pid]=$work/fuse.log
    beside="nbd+unix:///beside?socket=$WEIR_DATA_DIR/nbd.sock"
    wait_until "it is served" nbdinfo --size "$beside"
    kill -STOP "$fuse"
    timeout 60 "$weir" volume detach slow >/dev/null 2>&1 &
    processes+=("$!")
    sleep 2
    check "beside a close that hangs: a volume reads" timeout 10 qemu-io -r -f raw "$beside" -c "read 0 4k"
    kill -USR2 "$weir_pid"
    refused() { grep -q "the program is not replaced: $work/fuse/nbd does not answer" "$work/fuse.log"; }
    check "beside a close that hangs: the program is not replaced" wait_until "it is refused" refused
    check "and all is served on" timeout 10 qemu-io -f raw "$beside" -c "write -P 7 0 4k" -c flush
    kill "$weir_pid"
    check "beside a close that hangs: the end" wait_until "it has ended" has_ended "$weir_pid"
    # A start waits a little for a file that does not answer, and then serves the others.
    "$weir" serve --config "$work/fuse.toml" >"$work/fuse2.log" 2>&1 </dev/null &
    weir_pid=$!
    daemons[$weir_pid]=$work/fuse2.log
    wait_until "the other one is served" nbdinfo --size "$beside"
    waits() { grep -q 'slow is not served: .*waiting for its file .*, which does not answer' <<<"$("$weir" status)"; }
    check "beside an opening that hangs: what waits is said" waits
    kill -CONT "$fuse"
    slow="nbd+unix:///slow?socket=$WEIR_DATA_DIR/nbd.sock"
    check "beside an opening that hangs: it is served once its file answers" wait_until "it is" nbdinfo --size "$slow"
    # More requests than the kernel lets a ring have, and than it has threads for.
    kill -STOP "$fuse"
    fio --name=hangs --ioengine=nbd --uri="$slow" --rw=randread --bs=4k --size=16M --iodepth=200 >/dev/null 2>&1 &
    reader=$!
    processes+=("$reader")
    hangs() { grep -q "$work/fuse/nbd does not answer: a request has waited" <<<"$("$weir" status)"; }
    check "beside reads that hang: it is said" wait_until "the status says so" hangs
    check "beside reads that hang: a volume takes writes" timeout 10 \
        qemu-io -f raw "$beside" -c "write -P 8 0 4k" -c flush
    kill -CONT "$fuse"
    wait "$reader"
    kill "$weir_pid"
    wait_until "it has ended" has_ended "$weir_pid"
    umount "$work/fuse/nbd"
    wait "$fuse"
else
    skip "a file on FUSE that hangs: needs root, /dev/fuse, nbdkit and nbdfuse"
fi

# Settings that cannot be right are refused before anything is served.
printf '[[volumes]]\nname = "a"\nfile.path = "%s"\n[[volumes]]\nname = "b"\nfile.path = "%s"\n' "$work/disk.raw" \
    "$work/./disk.raw" >"$work/twice.toml"
refuse "one file for two volumes" "volumes a and b: both are" "$weir" serve --check --config "$work/twice.toml"
printf '[[volumes]]\nname = "a"\nfile.path = "%s"\n' "$work/disk.raw" >"$work/one.toml"
told() { "$weir" serve --check --config "$work/one.toml" 2>&1 | grep -qx "the settings are right: 1 volume in files"; }
check "a check says what there is" told
