#!/usr/bin/env bash
# A data directory that is full, read-only or not a directory; a journal or an object that is damaged.
. "$(dirname "$0")/_lib.sh"

touch "$work/file"
refuse "a file as data directory" "$work/file" "$weir" up demo --size 1M --data-dir "$work/file"
refuse "a store that is no URL" "file:///" "$weir" up demo --size 1M --store nonsense
refuse "a bucket without a name" "names no bucket" "$weir" up demo --size 1M --store s3:///p

if [ "$(id -u)" = 0 ] && mkdir "$work/small" && mount -t tmpfs -o size=1M none "$work/small" \
    2>/dev/null; then
    mounts+=("$work/small")
    refuse "a data directory without room" "a journal takes" \
        "$weir" up demo --size 1G --data-dir "$work/small/data"
    mount -o remount,ro "$work/small"
    refuse "a read-only data directory" "Read-only file system" \
        "$weir" up demo --size 1G --data-dir "$work/small/data"
    umount "$work/small"
else
    skip "full and read-only data directories: mounting a tmpfs needs root"
fi

put() { qemu-io -f raw "$uri" -c "write -P $1 $2 $3" | grep -q wrote; }
holds() { qemu-io -f raw "$uri" -c "read -P $1 $2 $3" | { ! grep -E "failed|differ"; }; }

# A journal full of garbage and one of another volume are refused, not replayed and not overwritten.
start demo --size 64M
check "a write" put 0x01 0 100000
crash
id=$("$weir" volume show demo --output json | sed -n 's/.*"id": "\(.*\)".*/\1/p')
journal=$WEIR_DATA_DIR/volumes/$id/journal
cp --sparse=always "$journal" "$work/journal.good"
head -c 8192 /dev/urandom | dd of="$journal" conv=notrunc status=none
refuse "a journal of garbage" "help: put the right file back" "$weir" up demo
cp --sparse=always "$work/journal.good" "$journal"
truncate -s 1000 "$journal"
refuse "a truncated journal" "$id/journal" "$weir" up demo
"$weir" up other --size 64M -- true 2>/dev/null
other=$("$weir" volume show other --output json | sed -n 's/.*"id": "\(.*\)".*/\1/p')
cp --sparse=always "$WEIR_DATA_DIR/volumes/$other/journal" "$journal"
refuse "another volume's journal" "is the journal of volume $other" "$weir" up demo
cp --sparse=always "$work/journal.good" "$journal"
start demo
check "with the right journal everything is there" holds 0x01 0 100000
stop

# A damaged object gives an error for its bytes, never wrong bytes.
object=$(ls -S "$WEIR_DATA_DIR/store/$id/log/"* | head -n 1)
cp "$object" "$work/object.good"
size=$(stat -c %s "$object")
printf '\x55' | dd of="$object" bs=1 seek=$((size - 3)) conv=notrunc status=none
gives_an_error() {
    "$weir" up demo -- sh -c 'qemu-io -f raw "$WEIR_URI" -c "read -P 0x01 0 100000"' >"$work/o" 2>&1
    grep -q "read failed: Input/output error" "$work/o" && grep -q "$id/log/" "$work/o"
}
check "a flipped bit in an object is an error that names it" gives_an_error
cp "$work/object.good" "$object"
truncate -s $((size / 2)) "$object"
check "so is a truncated object" gives_an_error
rm "$object"
check "and a missing one" gives_an_error
cp "$work/object.good" "$object"
start demo
check "with the object restored everything is there" holds 0x01 0 100000
stop
