#!/usr/bin/env bash
# Clones: made of a snapshot of a served volume, written to, cloned again, flattened; what they need stays.
. "$(dirname "$0")/_lib.sh"

socket=$WEIR_DATA_DIR/nbd.sock
exports() { nbdinfo --list --json "nbd+unix://?socket=$socket"; }
# lists EXPORT, lists_not EXPORT: the listing works, and has it or not.
names() { exports | jq -r '.exports[]["export-name"]'; }
lists() { names | grep -Fx -- "$1"; }
lists_not() { local all; all=$(names) && grep -Fxq image <<<"$all" && ! grep -Fx -- "$1" <<<"$all"; }
serve() {
    "$weir" serve --batch-age 1 "$@" >"$work/weir.out" 2>>"$work/weir.log" </dev/null &
    weir_pid=$!
    wait_until "the volumes are served" exports
}
io() { qemu-io -f raw "nbd+unix:///$1?socket=$socket" -c "$2" >"$work/io" 2>&1 && ! grep -E "rror|failed" "$work/io"; }
refuses() { ! "$weir" "${@:2}" >"$work/out" 2>&1 && grep -qE -- "$1" "$work/out" || { cat "$work/out"; return 1; }; }
prints() { "$weir" "${@:2}" | grep -qE -- "$1" || { "$weir" "${@:2}"; return 1; }; }

serve --volume image:64M
check "an image" io image "write -P 1 0 8M"
check "a snapshot of it" "$weir" snapshot create image@v1
check "which the image is written over" io image "write -P 2 0 8M"
check "a clone, while the image is served" prints '^ *size +64.0 MiB' volume clone image@v1 web
check "it is shown as one" prints '^ *clone of +image@v1' volume show web
check "the same name again" refuses 'volume "web" exists already' volume clone image@v1 web
check "of a snapshot that is none" refuses 'has no snapshot "never"' volume clone image@never other
check "of a volume that is none" refuses 'no volume "none"' volume clone none@v1 other
check "a dozen more" bash -c 'for n in $(seq 12); do "$0" volume clone image@v1 c$n >/dev/null || exit 1; done' "$weir"
stop
serve
check "a clone shows the snapshot" io web "read -P 1 0 8M"
check "it takes writes" io web "write -P 3 1M 1M"
check "which nobody else sees" io image "read -P 2 0 8M"
check "nor another clone" io c7 "read -P 1 0 8M"
check "a snapshot of the clone" "$weir" snapshot create web@v2
check "a clone of that" "$weir" volume clone web@v2 deep
check "the space of the snapshot names what needs it" prints 'v2 .*needed by 1 clone$' volume show web --space
check "the snapshot is an export" lists image@v1
check "deleting the snapshot that clones need" "$weir" snapshot delete image@v1
check "hides it" refuses 'has no snapshot' volume clone image@v1 late
check "it is no export any more" lists_not image@v1
check "and keeps it" prints 'v1 \(deleted, needed by clones\)' snapshot list image
check "clones go on" io web "read -P 1 2M 6M"
stop
serve
check "after a restart too" io web "read -P 3 1M 1M"
check "the clone of the clone" io deep "read -P 3 1M 1M"
check "with what it has of the image" io deep "read -P 1 2M 6M"
check "flatten it" prints 'deep: .* copied, it needs no other volume' volume flatten deep
check "its bytes" io deep "read -P 1 2M 6M"
stop
check "the image is needed" refuses 'needed by .*web' volume delete image --yes
for name in $(seq -f 'c%g' 12); do "$weir" volume delete "$name" --yes || echo "$name"; done >"$work/out" 2>&1
check "the dozen are deleted" test ! -s "$work/out"
"$weir" volume flatten web >"$work/out" 2>&1
check "flattening the last one says what is left" test $? = 3
check "and why" grep -q 'it needs image still' "$work/out"
check "its snapshot holds it" "$weir" snapshot delete web@v2
check "without it nothing does" prints 'it needs no other volume' volume flatten web
check "now the image may go" "$weir" volume delete image --yes
check "web is whole" prints 'web: .*it is whole' volume check web
check "deep is whole" prints 'deep: .*it is whole' volume check deep
serve
check "web without the image" io web "read -P 1 2M 6M"
check "with its own bytes" io web "read -P 3 1M 1M"
