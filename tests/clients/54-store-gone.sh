#!/usr/bin/env bash
# A store whose directory is not there, or is empty, as that of a file system which is not mounted: no empty volume is
# served under the name of one that has data.
. "$(dirname "$0")/_lib.sh"

export WEIR_STORE=file://$work/store WEIR_LEASE=2
at() { echo "nbd+unix:///$1?socket=$WEIR_DATA_DIR/nbd.sock"; }
put() { timeout 60 qemu-io -f raw "$(at "$1")" -c "write -P $2 0 1M" -c flush | grep -q wrote; }
holds() { timeout 60 qemu-io -f raw "$(at "$1")" -c "read -P $2 0 1M" | { ! grep -E "failed|differ"; }; }
serve() {
    : >"$work/weir.log"
    "$weir" serve --volume a:64M >"$work/weir.out" 2>"$work/weir.log" </dev/null &
    weir_pid=$!
    wait_for_export "$(at a)"
}
refused_to_start() { refuse "$1" "$2" timeout 60 "$weir" serve --volume a:64M; }

serve
check "a first volume is created in a store that is not there yet" put a 1
mv "$work/store" "$work/away"
kill -USR2 "$weir_pid"
wait_seconds=20 wait_until "a program whose store is gone is not replaced" \
    grep -q "store .* is not there, and volumes of this data directory were in it" "$work/weir.log"
check "it goes on" kill -0 "$weir_pid"
check "a local flush of what it serves needs no store" timeout 30 "$weir" volume flush a
check "nor does a limit" timeout 30 "$weir" volume limit a --iops 5000
refuse "another name is still looked for in the store" "is not there, and volumes" \
    timeout 30 "$weir" volume flush nobody
refuse "nothing is attached out of it, and why is said" "gave up .*No such file" timeout 90 "$weir" volume attach b
check "no store is made" test ! -e "$work/store"
mv "$work/away" "$work/store"
kill -USR2 "$weir_pid"
wait_seconds=40 wait_until "it is replaced once the store is back" grep -q '^replacing the program' "$work/weir.log"
wait_for_export "$(at a)"
check "with its data" holds a 1
put a 2

# What the next program would not find is looked for before this one ends.
check "a second volume, so that the store is not empty" "$weir" volume create z --size 64M --attach
id=$("$weir" volume show a --output json | jq -r .id)
# not_replaced_without PLACE WHY WHAT: with a part of the store away.
not_replaced_without() {
    : >"$work/weir.log"
    mv "$work/store/$1" "$work/away"
    kill -USR2 "$weir_pid"
    wait_seconds=20 wait_until "a program whose store lost $3 is not replaced" grep -q "$2" "$work/weir.log"
    mv "$work/away" "$work/store/$1"
}
not_replaced_without names/a "volume a could not be opened again: .* has no volume of that name" "a name"
not_replaced_without "$id/manifest" "volume a could not be opened again: .* has no manifest of it" "a manifest"
id=$("$weir" volume show z --output json | jq -r .id)
not_replaced_without "$id/manifest" "volume z could not be opened again" "a manifest of the other one"
check "and events say so" sh -c \
    "curl -s --unix-socket '$WEIR_DATA_DIR/api.sock' http://weir/v1/events | grep -q '\"node_not_replaced\".*volume z could'"
check "it goes on beside all of that" holds a 2
check "and gives the other one back" "$weir" volume detach z
crash
mv "$work/store/names/a" "$work/away"
refused_to_start "a volume is not made anew whose name the store lost" \
    "has no volume \"a\", and yet there is a journal"
refuse "nor by weir up" "the store lost its name, or was set back" "$weir" up a --size 64M -- true
refuse "nor by weir volume create" "put the store back as it was" "$weir" volume create a --size 64M
mv "$work/away" "$work/store/names/a"

mv "$work/store" "$work/away"
refused_to_start "a store that is gone" "is not there, and volumes of this data directory were in it"
check "no store is made by that" test ! -e "$work/store"
refuse "nor by a listing" "is not there, and volumes" "$weir" volume list
mkdir "$work/store"
refused_to_start "a mount point without its file system" "has no volumes, and never had any"
refuse "weir up" "has no volumes, and never had any" "$weir" up a --size 64M -- true
refuse "weir volume create" "has no volumes, and never had any" "$weir" volume create b --size 64M
refuse "the way out is named" "take the line file://.*/store out of .*/stores" "$weir" volume create b --size 64M
rm -rf "$work/store"
mv "$work/away" "$work/store"
serve
check "nothing was lost" holds a 2
stop
check "the second volume goes" "$weir" volume delete z --yes
check "a volume more is created in a store that is there" "$weir" volume create b --size 64M
check "and deleted" "$weir" volume delete b --yes
check "the other one, too" "$weir" volume delete a --yes
check "a store whose volumes were all deleted takes a new one" "$weir" volume create c --size 64M
check "another store is begun without a question" \
    env WEIR_STORE="file://$work/other" "$weir" up a --size 64M -- true
rm -rf "$work/store"
sed -i '/\/store$/d' "$WEIR_DATA_DIR/stores"
check "and the same one, once it is forgotten" "$weir" up a --size 64M -- true

# ---- a file system that hangs ----
if [ "$(id -u)" != 0 ] || ! losetup -f >/dev/null 2>&1; then
    skip "a store that hangs: needs root and loop devices"
    exit 0
fi
truncate -s 256M "$work/disk.img"
mkfs.ext4 -q "$work/disk.img"
loop=$(losetup -f --show "$work/disk.img")
loops+=("$loop")
mkdir "$work/frozen"
mount "$loop" "$work/frozen"
mounts+=("$work/frozen")
export WEIR_STORE=file://$work/frozen/store
serve
check "a volume in a store of its own file system" put a 3
fsfreeze -f "$work/frozen"
kill -USR2 "$weir_pid"
wait_seconds=40 wait_until "a program whose store hangs is not replaced" \
    grep -q "the file system of the store does not answer" "$work/weir.log"
check "it takes writes all the same" put a 4
fsfreeze -u "$work/frozen"
kill -USR2 "$weir_pid"
wait_seconds=40 wait_until "it is replaced once the store answers" grep -q '^replacing the program' "$work/weir.log"
wait_for_export "$(at a)"
check "with what was written meanwhile" holds a 4
stop
