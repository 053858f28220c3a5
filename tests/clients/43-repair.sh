#!/usr/bin/env bash
# Damage in the store: found, located, given up while clients go on; checks that are limited and interrupted.
. "$(dirname "$0")/_lib.sh"

if [ -n "$test_store" ]; then
    skip "it damages the embedded store's files"
    exit 0
fi
start() {
    "$weir" serve --volume demo:64M --batch-age 1 --batch 1M --compression none \
        >"$work/weir.out" 2>>"$work/weir.log" </dev/null &
    weir_pid=$!
    wait_for_export "$uri"
}
uri="nbd+unix:///demo?socket=$WEIR_DATA_DIR/nbd.sock"
io() { qemu-io -f raw "$uri" -c "$1" >"$work/io" 2>&1 && ! grep -E "rror|failed" "$work/io"; }
fails() { ! qemu-io -f raw "$uri" -c "$1" >"$work/io" 2>&1 && grep "Input/output error" "$work/io"; }
says() { "$weir" "${@:2}" >"$work/out" 2>&1; grep -qE -- "$1" "$work/out" || { cat "$work/out"; return 1; }; }

start
check "write" io "write -P 1 0 16M"
check "to the store" "$weir" volume flush demo --remote --wait
log=$(find "$WEIR_DATA_DIR" -type d -name log)
whole=$(find "$log" -type f -size +512k | sort | sed -n 3p)
check "there is nothing to repair, and the map is published" says 'demo: nothing to repair' volume repair demo
cp "$whole" "$work/object"
rm "$whole"
check "a missing object is lost bytes" says 'bytes [0-9]+ to [0-9]+ of the volume are lost' volume check demo
refuse "giving up asks" "pass --yes" "$weir" volume repair demo
check "nothing was given up" says 'is missing' volume check demo
check "the journal still has it" says 'were saved from the journal' volume repair demo --yes
check "so it is whole" "$weir" volume check demo
restart() { stop; start; }
restart
whole=$(find "$log" -type f -size +512k | sort | sed -n 3p)
cp "$whole" "$work/object"
rm "$whole"
check "after a restart it is lost" says 'bytes [0-9]+ to [0-9]+ of the volume are lost' volume check demo
if command -v qemu-img >/dev/null; then
    refuse "an export says what to do about damage" "help: weir volume check demo --store file://.* says whether" \
        "$weir" volume export demo "$work/demo.raw"
    refuse "a copy does" "help: weir volume check demo --store" "$weir" volume copy demo twin
    "$weir" volume delete twin --yes
    rm -f "$work/demo.raw.part"
fi
refuse "a stream does" "help: weir volume check demo --store" sh -c "'$weir' volume export demo - >/dev/null"
check "the check again" says 'bytes [0-9]+ to [0-9]+ of the volume are lost' volume check demo
read -r first last < <(sed -n 's/.*bytes \([0-9]*\) to \([0-9]*\) of .*/\1 \2/p' "$work/out")
check "a client writes into it" io "write -P 7 $((first + 4096)) 4096"
check "to the store" "$weir" volume flush demo --remote --wait
check "give it up" says 'were given up' volume repair demo --yes
check "what was lost fails" fails "read $first 512"
check "what was written is there" io "read -P 7 $((first + 4096)) 4096"
check "no object is damaged any more, and it is said why" says 'given up by a repair' volume check demo
restart
check "the status says so before anybody reads" \
    says 'reads fail in the [0-9]+ bytes at [0-9]+.*given up by a repair' status
check "and what can be done" says 'pass --zero to make zeroes of them' volume repair demo
refuse "making zeroes asks" "pass --yes" "$weir" volume repair demo --zero
check "make zeroes of it while it is served" says 'are zeroes now' volume repair demo --zero --yes
check "they are" io "read -P 0 $first 512"
check "and the status is well again" "$weir" status
check "what was written stays" io "read -P 7 $((first + 4096)) 4096"
check "nothing is lost any more" "$weir" volume check demo
check "write it anew" io "write -P 1 $first $((last - first))"
check "to the store" "$weir" volume flush demo --remote --wait
check "it is whole" "$weir" volume check demo
check "and reads" io "read -P 1 0 $first"
check "publish" "$weir" volume compact demo
cp "$work/object" "$whole"
check "an object that nobody needs" says '1 orphaned' volume check demo
check "is removed" says '1 object that nobody needs removed' volume repair demo
check "and gone" test ! -e "$whole"
stop
damaged=$(find "$log" -type f -size +512k | sort | tail -1)
printf 'X' | dd of="$damaged" bs=1 seek=300000 conv=notrunc status=none
check "while nobody serves it, with zeroes" says 'are zeroes now' volume repair demo --zero --yes
check "it is whole" "$weir" volume check demo
"$weir" volume check demo --limit 2M --resume "$work/record" >/dev/null 2>&1 &
sleep 3
kill -KILL $! && wait $! 2>/dev/null
check "an interrupted check left a record" test -s "$work/record"
check "the next one goes on with it" \
    says '[0-9]+ known to be whole.*; it is whole' volume check demo --resume "$work/record"
check "and removes it" test ! -e "$work/record"
echo "something else" >"$work/other"
refuse "a limit that comes to no end" "too few for a check" "$weir" volume check demo --limit 5
refuse "a file that is no record is left alone" "no record of a check" "$weir" volume check demo --resume "$work/other"
start
check "served again" io "read 0 16M"
stop
manifest=$(find "${log%/log}/manifest" -name '*.json' | sort | tail -1)
cp "$manifest" "$work/manifest"
sed -i 's/"size": [0-9]*/"size": 1/' "$manifest"
check "a damaged manifest is found" says 'one thing is damaged' volume check demo
"$weir" volume repair demo --yes >"$work/out" 2>&1
check "and a repair that cannot mend it says so" test $? = 3
check "with what can be done" grep -q 'put what the store has of demo back from a backup' "$work/out"
cp "$work/manifest" "$manifest"
check "put back, it is whole" "$weir" volume check demo
start
manifest=$(find "${log%/log}/manifest" -name '*.json' | sort | tail -1)
sed -i 's/"size": [0-9]*/"size": 1/' "$manifest"
check "beside a process that serves it, that is found too" says 'one thing is damaged' volume check demo
: >"$work/weir.log"
kill -USR2 "$weir_pid"
# The next program could not open it.
wait_until "the program is not replaced" grep -q 'not replaced: volume demo could not be opened again' "$work/weir.log"
check "it is served on" io "read 0 16M"
check "a repair has the process write it anew" "$weir" volume repair demo --yes
check "so it is whole" "$weir" volume check demo
: >"$work/weir.log"
kill -USR2 "$weir_pid"
wait_until "and the program is replaced" grep -q 'replacing the program' "$work/weir.log"
wait_until "it is served" io "read 0 16M"
stop
