#!/usr/bin/env bash
# Incremental backup over NBD: what a snapshot says has changed since an earlier one, to the clients that there are.
. "$(dirname "$0")/_lib.sh"
# The bindings of libnbd belong to the Python of the system.
export PATH="/usr/bin:$PATH"

"$weir" serve --volume demo:1G --batch-age 1 >"$work/weir.out" 2>"$work/weir.log" </dev/null &
weir_pid=$!
at() { echo "nbd+unix:///$1?socket=$WEIR_DATA_DIR/nbd.sock"; }
wait_for_export "$(at demo)"
io() { qemu-io -f raw "$(at demo)" "$@" >"$work/io" 2>&1 && ! grep -E "rror|failed" "$work/io"; }
image() { nbdcopy "$(at "demo@$1")" "$work/$1.raw"; }
# The ranges that changed, one `OFFSET LENGTH` a line, by three ways: nbdinfo, qemu-img, and the command line.
bitmap=qemu:dirty-bitmap
map() { nbdinfo --map="$bitmap:$1" --json "$(at "demo@$2")" |
    jq -r '.[] | select(.type == 1) | "\(.offset) \(.length)"'; }
qemu_map() { qemu-img map --output json --image-opts \
    "driver=nbd,server.type=unix,server.path=$WEIR_DATA_DIR/nbd.sock,export=demo@$2,x-dirty-bitmap=${bitmap}:$1" |
    jq -r '.[] | select(.data == false) | "\(.start) \(.length)"'; }
diff_map() { "$weir" snapshot diff "demo@$1" "$2" --output json | jq -r '.[] | "\(.offset) \(.length)"' | blocks; }
# NBD tells of whole blocks of 4 KiB: one byte that changed makes its block changed.
blocks() {
    awk '{ from = $1 - $1 % 4096; to = $1 + $2 + 4095; to -= to % 4096 }
        n && from <= end { if (to > end) end = to; next } n { print start, end - start } { start = from; end = to
            n = 1 }
        END { if (n) print start, end - start }'
}
same_maps() {
    map "$1" "$2" >"$work/nbd.map" && diff_map "$1" "$2" >"$work/diff.map" && qemu_map "$1" "$2" >"$work/qemu.map" &&
        cmp "$work/nbd.map" "$work/diff.map" && cmp "$work/nbd.map" "$work/qemu.map"
}
# The incremental backup of docs/guide/snapshots.md.
catch_up() {
    cp --sparse=always "$work/$1.raw" "$work/backup.raw" || return 1
    truncate --size "$(nbdinfo --size "$(at "demo@$2")")" "$work/backup.raw" || return 1
    nbdsh --uri "$(at "demo@$2")" -c - <<PYTHON
import nbd
ranges = [tuple(map(int, line.split())) for line in open("$work/nbd.map")]
with open("$work/backup.raw", "r+b") as image:
    for offset, length in ranges:
        for at in range(offset, offset + length, 1 << 20):
            image.seek(at)
            image.write(h.pread(min(1 << 20, offset + length - at), at))
PYTHON
}
rebuilt() { cmp "$work/backup.raw" "$work/$1.raw"; }
contexts() { nbdinfo --json --list "nbd+unix:///$1?socket=$WEIR_DATA_DIR/nbd.sock" |
    jq -r ".exports[] | select(.[\"export-name\"] == \"$1\") | .contexts[]" | tr '\n' ' '; }
offers() { [ "$(contexts "$1")" = "$2" ] || { contexts "$1"; return 1; }; }
several() {
    map first third >"$work/nbd.map"
    nbdsh -c - <<PYTHON
import nbd
h.add_meta_context("base:allocation")
h.add_meta_context("qemu:dirty-bitmap:first")
h.add_meta_context("qemu:dirty-bitmap:second")
h.add_meta_context("qemu:dirty-bitmap:never")
h.connect_uri("$(at demo@third)")
assert not h.can_meta_context("qemu:dirty-bitmap:never")
def ask(offset, flags=0):
    told = {}
    def tell(context, start, entries, error):
        told[context] = (start, list(zip(entries[0::2], entries[1::2])))
    h.block_status((1 << 30) - offset, offset, tell, flags)
    assert sorted(told) == ["base:allocation", "${bitmap}:first", "${bitmap}:second"], sorted(told)
    return told
one = ask(12345, nbd.CMD_FLAG_REQ_ONE)
assert one["qemu:dirty-bitmap:first"] == (12345, [(20480 - 12345, 1)]), one
assert all(len(entries) == 1 for _, entries in one.values()), one
at, found = 0, []
while at < 1 << 30:
    start, entries = ask(at)["qemu:dirty-bitmap:first"]
    assert start == at
    for length, flags in entries:
        if flags == 1 and found and sum(found[-1]) == at:
            found[-1] = (found[-1][0], found[-1][1] + length)
        elif flags == 1:
            found.append((at, length))
        at += length
expected = [tuple(map(int, line.split())) for line in open("$work/nbd.map")]
assert found == expected, f"{len(found)} ranges, not {len(expected)}"
PYTHON
}

check "write what the first snapshot shows" io -c "write -P 1 0 8M" -c "write -P 1 600M 4M"
check "take it" "$weir" snapshot create demo@first
check "write here and there" io -c "write -P 2 1M 64k" -c "write -P 2 511M 2M" -c "write -P 2 12345 4096" \
    -c "discard 601M 1M"
check "take another" "$weir" snapshot create demo@second
small=()
for ((i = 0; i < 1200; i++)); do small+=(-c "write -P 3 $((i * 815104 + i % 7 * 512)) 512"); done
check "many small ones" io "${small[@]}"
check "take a third" "$weir" snapshot create demo@third
check "the volume itself offers no comparison" offers demo "base:allocation "
check "nor does the first snapshot" offers demo@first "base:allocation "
check "the third can be compared with both" offers demo@third "base:allocation $bitmap:first $bitmap:second "
for snapshot in first second third; do check "a full copy of $snapshot" image $snapshot; done
for pair in "first second" "second third" "first third"; do
    # shellcheck disable=SC2086
    set -- $pair
    check "$1 to $2: nbdinfo, qemu-img and snapshot diff agree" same_maps "$1" "$2"
    check "something changed" test -s "$work/nbd.map"
    check "the copy of $1 and what changed" catch_up "$1" "$2"
    check "are $2" rebuilt "$2"
    refuse "and a wrong byte would be seen" "differ: byte" cmp "$work/$1.raw" "$work/backup.raw"
done
check "several contexts at once" several
to_full() { timeout 15 "$weir" snapshot diff demo@first third >/dev/full; }
refuse "a comparison that cannot be printed ends" "No space left" to_full
api() { curl -s --unix-socket "$WEIR_DATA_DIR/api.sock" "http://weir$1"; }
space() { "$weir" volume show demo --space --output json | jq -c .snapshots; }
sums_up() {
    space | jq -e 'length == 3 and
        all(.[]; .shared_bytes + .reclaimable_bytes == .reached_bytes and .reached_bytes > 0)'
}
check "what the snapshots take is summed up" sums_up
check "the API says the same" test "$(space)" = "$(api /v1/volumes/demo/space | jq -c .)"
check "as a table" grep -qE '^first .* B' <("$weir" volume show demo --space)
check "only where it is asked for" test "$("$weir" volume show demo --output json | jq 'has("snapshots")')" = false
check "the volume grows" "$weir" volume resize demo 1200M
check "take a fourth" "$weir" snapshot create demo@fourth
map third fourth >"$work/nbd.map"
check "what was added counts as changed" test "$(cat "$work/nbd.map")" = "1073741824 184549376"
exec 8> >(nbdsh --uri "$(at demo@fourth)" -c "import sys; open('$work/connected', 'w'); sys.stdin.read()")
wait_until "a client of the fourth is connected" test -e "$work/connected"
check "an earlier snapshot can be deleted" "$weir" snapshot delete demo@first
check "and is not offered any more" offers demo@third "base:allocation qemu:dirty-bitmap:second "
exec 8>&-
stop
