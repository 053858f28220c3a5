#!/usr/bin/env bash
# Images: import, export, copies between stores, sparse all the way; what is refused; kills in the middle.
. "$(dirname "$0")/_lib.sh"

command -v qemu-img >/dev/null || { skip "images: qemu-img is not installed"; exit 0; }
unset WEIR_STORE # the stores of this script are directories of its own
real=$(command -v qemu-img)
mkdir "$work/bin" "$work/images"
cd "$work/images" || exit 1

# A qemu-img that notes where each copy begins, and waits at copy number $(cat pause) until `go` is there.
cat >"$work/bin/qemu-img" <<END
#!/bin/sh
if [ "\$1" = convert ]; then
    for last; do :; done
    echo "\$last" | sed 's/.*"offset":\([0-9]*\).*/\1/' >>"$work/offsets"
    if [ "\$(wc -l <"$work/offsets")" = "\$(cat "$work/pause" 2>/dev/null)" ]; then
        echo \$\$ >"$work/paused"
        while [ ! -e "$work/go" ] && kill -0 \$PPID 2>/dev/null; do sleep 0.05; done
    fi
fi
exec "$real" "\$@"
END
chmod +x "$work/bin/qemu-img"

# paused NUMBER ARGUMENTS...: runs weir up to that copy; sets weir_pid.
paused() {
    rm -f "$work/offsets" "$work/paused" "$work/go"
    echo "$1" >"$work/pause"
    PATH=$work/bin:$PATH "$weir" "${@:2}" >"$work/weir.out" 2>"$work/weir.log" </dev/null &
    weir_pid=$!
    wait_on=$weir_pid wait_log=$work/weir.log wait_until "weir ${*:2} gets to copy $1" test -s "$work/paused"
}
# observed ARGUMENTS...: runs weir to its end; the copies that it makes are in `offsets`.
observed() {
    rm -f "$work/offsets" "$work/pause"
    PATH=$work/bin:$PATH "$weir" "$@"
}
record() { cat "$WEIR_DATA_DIR/volumes/$(id_of "$1")/copy.json"; }
done_bytes() { record "$1" | sed -n 's/.*"done_bytes": \([0-9]*\).*/\1/p'; }
# went_on_at BYTES: the first copy of the last run began there, behind the first range.
went_on_at() { [ "${1:-0}" -gt 0 ] && [ "$(head -n 1 "$work/offsets")" = "$1" ]; }
id_of() { "$weir" volume show "$1" --output json | sed -n 's/.*"id": "\(.*\)".*/\1/p'; }
same() { qemu-img compare -q "$1" "$2"; }
lists() { "$weir" volume list | grep -qE -- "$1"; }
# exports NAME IMAGE: what is exported is what is in the image, byte for byte.
exports() {
    rm -f exported.img
    "$weir" volume export "$1" exported.img && same "$2" exported.img
}
below() { [ "$1" -lt "$2" ] || { echo "$1 is not below $2"; return 1; }; }
kib_of() { du -k "$1" | cut -f 1; }

# Raw and qcow2.
truncate -s 40M raw.img
head -c 3000000 /dev/urandom | dd of=raw.img bs=1M seek=7 conv=notrunc status=none
check "import of a raw image" "$weir" volume import raw.img raw
check "it is the same" exports raw raw.img
check "to the last byte" cmp raw.img exported.img
qemu-img create -q -f qcow2 base.qcow2 600M
qemu-io -c "write -P 7 10M 30M" -c "write -P 9 300M 1M" -c "write -P 3 599M 1M" base.qcow2 >/dev/null
qemu-img create -q -f qcow2 -F qcow2 -b base.qcow2 top.qcow2
qemu-io -c "write -P 8 20M 1M" -c "write -z 300M 64k" -c "write -P 1 400M 7k" top.qcow2 >/dev/null
check "import of a qcow2 image over another" "$weir" volume import top.qcow2 demo
check "it is the same as both" exports demo top.qcow2
check "export to qcow2" "$weir" volume export demo out.qcow2
check "it is the same again" same top.qcow2 out.qcow2
is_qcow2() { qemu-img info out.qcow2 | grep -q 'file format: qcow2'; }
check "and qcow2 by its name" is_qcow2
json() { "$weir" volume export demo "$1" --output json | grep -q '"format": "vdi"'; }
check "export to vdi, as JSON says" json out.vdi
check "and back" "$weir" volume import out.vdi vdi
check "which changes nothing" exports vdi top.qcow2
check "a volume larger than its image" "$weir" volume import raw.img large --size 100M
larger() { "$weir" volume show large | grep -q '100.0 MiB'; }
check "has its size" larger
check "and zeroes behind it" exports large raw.img
check "a volume of any size" "$weir" volume create odd --size 1000001
check "is exported" "$weir" volume export odd odd.img
check "with that size" test "$(stat -c %s odd.img)" = 1000001

# What begins and ends within a sector, on a volume that is blank otherwise.
check "a blank volume" "$weir" volume create within --size 1M
if command -v nbdsh >/dev/null; then
    writes_within() {
        # The bindings of libnbd belong to the Python of the system.
        PATH="/usr/bin:$PATH" "$weir" up within -- \
            sh -c 'nbdsh -u "$WEIR_URI" -c "h.pwrite(bytes([7]) * 3000, 100100)" -c "h.flush()"'
    }
    check "3,000 bytes at 100,100" writes_within
    truncate -s 1M within.img
    head -c 3000 /dev/zero | tr '\0' '\7' | dd of=within.img bs=1 seek=100100 conv=notrunc status=none
    check "its export" "$weir" volume export within within.out
    check "has every byte" cmp within.img within.out
    check "its copy" "$weir" volume copy within "file://$work/third/within"
    check "is exported" "$weir" --store "file://$work/third" volume export within within-copy.out
    check "and has every byte" cmp within.img within-copy.out
    converts() { "$weir" up within -- sh -c 'qemu-img convert -O raw "$WEIR_URI" within-convert.out'; }
    check "qemu-img convert" converts
    check "has every byte too" cmp within.img within-convert.out
else
    skip "bytes within a sector: nbdsh is not installed"
fi

# Sparse stays sparse.
qemu-img create -q -f qcow2 sparse.qcow2 200G
qemu-io -c "write -P 5 100G 3M" -c "write -P 5 199G 1M" sparse.qcow2 >/dev/null
check "import of 200 GiB of holes" "$weir" volume import sparse.qcow2 sparse
check "they take nothing in the store" below "$(du -sk "$WEIR_DATA_DIR/store/$(id_of sparse)" | cut -f 1)" 8192
check "export of 200 GiB of holes" "$weir" volume export sparse sparse.img
check "they take nothing in the file" below "$(kib_of sparse.img)" 8192
check "and nothing is lost" same sparse.qcow2 sparse.img
rm sparse.img

# What is refused.
cp base.qcow2 cut.qcow2
truncate -s 20M cut.qcow2
refuse "a truncated image" "cut.qcow2 is truncated or damaged" "$weir" volume import cut.qcow2 cut
qemu-img create -q -f qcow2 -F qcow2 -b cut.qcow2 over.qcow2
refuse "an image over a truncated one" "cut.qcow2 is truncated or damaged" "$weir" volume import over.qcow2 cut
refuse "an image that is not there" "nowhere.img: No such file" "$weir" volume import nowhere.img cut
refuse "a directory" "is a directory" "$weir" volume import . cut
refuse "another format" "not in qcow2 format" "$weir" volume import raw.img cut --format qcow2
refuse "no such format" "Unknown driver" "$weir" volume import raw.img cut --format nothing
refuse "too small a size" "too little" "$weir" volume import raw.img cut --size 1M
refuse "no qemu-img" "apt-get install qemu-utils" env PATH=/nonexistent "$weir" volume import raw.img cut
nothing_left() { lists '^demo' && ! lists '^cut'; }
check "nothing of these is left" nothing_left
refuse "a volume that is there" "exists already" "$weir" volume import raw.img demo
refuse "a file that is there" "exists already" "$weir" volume export demo out.qcow2
refuse "no such volume" "there is no volume nobody" "$weir" volume export nobody nobody.img
refuse "a volume that is too small" "not 629145600" "$weir" volume import top.qcow2 raw --overwrite
check "writing over a volume when asked to" "$weir" volume import raw.img demo --overwrite
check "leaves nothing of it" exports demo raw.img
check "writing over a file when asked to" "$weir" volume export demo out.qcow2 --overwrite
check "leaves nothing of it either" same raw.img out.qcow2

# Killed in the middle.
paused 3 volume import top.qcow2 half && crash
check "kill -9 in the third range leaves the second" test "$(done_bytes half)" -ge $((128 << 20))
check "the volume says that it is incomplete" lists '^half +600.0 MiB +incomplete'
refuse "a check finds it incomplete" "not whole: the import, copy or salvage" "$weir" volume check half
"$weir" volume repair half --yes >"$work/out" 2>&1
check "and a repair cannot make it whole" test $? = 3
refuse "it is not served" "is incomplete.*" "$weir" up half -- true
refuse "nor exported" "is incomplete" "$weir" volume export half half.img
refuse "nor filled from something else" "not from this" "$weir" volume import base.qcow2 half
before=$(done_bytes half)
check "the next run" observed volume import top.qcow2 half
check "goes on where it stopped" went_on_at "$before"
check "and it is the same" exports half top.qcow2
check "and complete" lists '^half +600.0 MiB +closed'
paused 3 volume import top.qcow2 other && kill -TERM "$weir_pid"
wait "$weir_pid"
check "a signal ends it with its number" test $? = 143
check "and says how to go on" grep -q '^help: run the same command again' "$work/weir.log"
check "an incomplete volume is filled anew when asked to" "$weir" volume import raw.img other --overwrite --size 600M
check "with nothing left of the first try" exports other raw.img
fills() { "$weir" up full --size 600M -- sh -c 'qemu-io -f raw "$WEIR_URI" -c "write -P 1 0 600M"' | grep -q wrote; }
check "a volume full of something" fills
paused 3 volume import top.qcow2 full --overwrite && crash
check "is written over in two runs" "$weir" volume import top.qcow2 full
check "and nothing of it is left" exports full top.qcow2
paused 3 volume import top.qcow2 between && kill -TERM "$weir_pid"
wait "$weir_pid"
mine=$WEIR_DATA_DIR
elsewhere=(env "PATH=$work/bin:$PATH" "WEIR_DATA_DIR=$work/elsewhere" "$weir" --store "file://$mine/store")
paused_elsewhere() {
    weir=env paused 3 "${elsewhere[@]:1}" volume import base.qcow2 between --overwrite && kill -TERM "$weir_pid"
    wait "$weir_pid"
}
paused_elsewhere
refuse "a volume that another data directory filled meanwhile is not gone on with" "not from this" \
    "$weir" volume import top.qcow2 between
check "there it is" "${elsewhere[@]}" volume import base.qcow2 between
check "and it is the same" exports between base.qcow2
paused 2 volume import top.qcow2 gone && crash
check "an incomplete volume is deleted" "$weir" volume delete gone --yes
paused 1 volume import raw.img changed
touch raw.img
touch "$work/go"
wait "$weir_pid"
weir_pid=
check "an image that changes meanwhile is noticed" grep -q 'was changed while it was read' "$work/weir.log"
check "and the volume is not complete" lists '^changed .*incomplete'

paused 3 volume export half out.img && crash
check "a killed export leaves no image" test ! -e out.img
before=$(done_bytes half)
check "the next run of it" observed volume export half out.img
check "goes on where that stopped" went_on_at "$before"
check "and the image is the same" same top.qcow2 out.img
check "and nothing else is left" test ! -e out.img.part
rm out.img
paused 3 volume export half out.img && crash
touches() { "$weir" up half -- sh -c 'qemu-io -f raw "$WEIR_URI" -c "write -P 6 1M 1M"' | grep -q wrote; }
check "a volume that is written between two tries" touches
check "is exported" observed volume export half out.img
check "from the beginning" test "$(head -n 1 "$work/offsets")" = 0
finds() { qemu-io -f raw "$1" -c "read -P 6 1M 1M" | { ! grep -E "failed|differ"; }; }
check "with what was written" finds out.img
rm out.img
finds_later() { qemu-io -f raw "$1" -c "read -P 6 2M 200M" | { ! grep -E "failed|differ"; }; }
check "a snapshot" "$weir" snapshot create half@monday
again() { "$weir" up half -- sh -c 'qemu-io -f raw "$WEIR_URI" -c "write -P 6 2M 200M"' | grep -q wrote; }
check "what is written since" again
check "another snapshot" "$weir" snapshot create half@tuesday
paused 3 volume export half@monday days.img && crash
refuse "an export of one snapshot does not go on as that of another" "days.img.part exists already" \
    "$weir" volume export half@tuesday days.img
check "but from the beginning where that is wanted" "$weir" volume export half@tuesday days.img --overwrite
check "with its bytes" finds_later days.img
paused 3 volume copy half@monday days && crash
refuse "nor does a copy" "not from this" "$weir" volume copy half@tuesday days
check "the part of it is deleted" "$weir" volume delete days --yes
check "the volume is as it was again" "$weir" snapshot rollback half@monday --yes
check "and exported" "$weir" volume export half out.img
touch file.img.part
refuse "somebody else's file is not touched" "file.img.part exists already" "$weir" volume export half file.img

# A full disk.
mkdir full
if [ "$(id -u)" = 0 ] && mount -t tmpfs -o size=8M none full; then
    mounts+=("$work/images/full")
    refuse "export to a full disk" "No space left" "$weir" volume export half full/half.img
    check "leaves no image" test ! -e full/half.img
    mount -o remount,size=200M full
    check "once there is room" "$weir" volume export half full/half.img
    check "the image is whole" finds full/half.img
else
    skip "images: a full disk needs root"
fi

# While a process serves the volume.
start demo
check "export of a served volume" exports demo raw.img
qemu-io -f raw "$uri" -c "write -P 6 0 40M" >/dev/null
check "import over a served volume" "$weir" volume import raw.img demo --overwrite
served_same() { qemu-img compare -q -f raw -F raw raw.img "$uri"; }
check "its clients see it" served_same
refuse "but not unasked" "exists already" "$weir" volume import raw.img demo
coproc client { qemu-io -f raw "$uri"; }
# The shell forgets the variable as soon as it ends.
client_pid=$client_PID
connected() { "$weir" volume show demo --output json | grep '"clients": 1'; }
check "a client connects" wait_until "one client" connected
refuse "behind whose back nothing is written" "to 1 client, which" "$weir" volume import raw.img demo --overwrite
warned() { rm -f w.img; "$weir" volume export demo w.img 2>&1 | grep -q 'warning: 1 client is connected'; }
check "and of whom an export warns" warned
eval "exec ${client[1]}>&-"
wait "$client_pid" 2>/dev/null
# Streams, and snapshots, of a volume that is served.
same_raw() { qemu-img compare -q -f raw -F raw "$1" "$2"; }
streamed() { "$weir" volume export "$1" - 2>/dev/null >streamed.img && same_raw streamed.img "$2"; }
check "its bytes on standard output" streamed demo raw.img
check "a snapshot" "$weir" snapshot create demo@before
qemu-io -f raw "$uri" -c "write -P 9 0 16M" >/dev/null
check "the bytes of a snapshot on standard output" streamed demo@before raw.img
streamed_other() { ! streamed demo raw.img; }
check "they are not those of now" streamed_other
check "a snapshot in an image" exports demo@before raw.img
check "a copy of a snapshot" "$weir" volume copy demo@before "file://$work/second/before"
refuse "of one that is none" "has no snapshot never" "$weir" volume export demo@never never.img
refuse "a copy into a snapshot" "takes no bytes" "$weir" volume copy demo demo@before
size_of() { "$weir" volume show "$1" --output json | sed -n 's/^  "size_bytes": \([0-9]*\),/\1/p'; }
through() { "$weir" volume export demo@before - 2>/dev/null | "$weir" volume import - piped --size "$(size_of demo)"; }
check "from one to the other" through
check "it is the same" exports piped raw.img
cut_off() { head -c 1M raw.img | "$weir" volume import - cut --size "$(stat -c %s raw.img)"; }
refuse "a pipe that ends early" "standard input ended after 1.0 MiB" cut_off
refuse "leaves a volume that is not whole" "is incomplete" "$weir" volume export cut cut.img
check "which can be deleted" "$weir" volume delete cut --yes
echo junk >junk.qcow2
refuse "junk called qcow2" "is no qcow2 image" "$weir" volume import junk.qcow2 junk
check "the snapshot again" "$weir" snapshot rollback demo@before --yes
check "copy of a served volume" "$weir" volume copy demo "file://$work/second/served"
stop
WEIR_STORE=file://$work/second check "the copy of the snapshot has its bytes" exports before raw.img
WEIR_STORE=file://$work/second check "it is the same" exports served raw.img

# Copies between stores.
second=file://$work/second
check "a copy to another store" "$weir" volume copy half "$second/half"
at_second() { "$weir" --store "$second" volume export half second.img && finds second.img; }
check "is there" at_second
check "and whole" same out.img second.img
rm -f second.img
refuse "a copy onto itself" "onto itself" "$weir" volume copy half half
refuse "a copy onto another" "exists already" "$weir" volume copy demo "$second/half"
refuse "a copy of nothing" "there is no volume nothing" "$weir" volume copy nothing "$second/x"
refuse "a store without a name" "no volume in it" "$weir" volume copy half s3://bucket
check "a copy in the same store" "$weir" volume copy half twin
check "is the same" exports twin out.img
paused 3 volume copy half "$second/again" && crash
at_stop=$(WEIR_STORE=$second done_bytes again)
check "a killed copy" observed volume copy half "$second/again"
check "goes on" went_on_at "$at_stop"
check "to the end" "$weir" volume copy "$second/again" back
check "and is the same" exports back out.img

# Killed at any moment, from before the volume is there until after it is whole: the same import goes on.
truncate -s 40M kill.img
head -c 3000000 /dev/urandom | dd of=kill.img bs=1M seek=7 conv=notrunc status=none
for delay in 0.02 0.04 0.06 0.08 0.1 0.13 0.16 0.2 0.3 0.5; do
    for ((i = 0; i < 4; i++)); do
        timeout -s KILL "$delay" "$weir" volume import kill.img "kill-$delay" >>"$work/kill.log" 2>&1
    done
    # It may have come to its end all the same.
    lists "^kill-$delay +[0-9.]+ MiB +closed" ||
        check "killed after $delay s it goes on" "$weir" volume import kill.img "kill-$delay"
    check "killed after $delay s it is whole in the end" exports "kill-$delay" kill.img
done
check "none was taken for another import" sh -c '! grep "not from this" "$0"' "$work/kill.log"
