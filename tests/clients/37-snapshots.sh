#!/usr/bin/env bash
# Snapshots: taken under a served volume and from the store alone, gone back to, deleted.
. "$(dirname "$0")/_lib.sh"

"$weir" serve --volume demo:64M --batch-age 1 >"$work/weir.out" 2>"$work/weir.log" </dev/null &
weir_pid=$!
uri="nbd+unix:///demo?socket=$WEIR_DATA_DIR/nbd.sock"
wait_for_export "$uri"
at() { qemu-io -f raw "$1" -c "$2" >"$work/io" 2>&1 && ! grep -E "rror|failed" "$work/io"; }
io() { at "$uri" "$1"; }
shows() { "$weir" up demo -- qemu-io -f raw "nbd+unix:///demo?socket=$WEIR_DATA_DIR/nbd/demo.sock" -c "$1" >"$work/io" 2>&1 &&
    ! grep -E "rror|failed" "$work/io"; }
refuses() { ! "$weir" "${@:2}" >"$work/out" 2>&1 && grep -qE -- "$1" "$work/out" || { cat "$work/out"; return 1; }; }
prints() { "$weir" "${@:2}" | grep -qE -- "$1" || { "$weir" "${@:2}"; return 1; }; }

check "write what the first snapshot shows" io "write -P 1 0 8M"
check "take a snapshot of a served volume" "$weir" snapshot create demo@first
check "the same name again" refuses 'has a snapshot first already' snapshot create demo@first
check "a name without @" refuses 'VOLUME@SNAPSHOT' snapshot create demo
check "write over it" io "write -P 2 0 8M"
check "another snapshot" "$weir" snapshot create demo@second
check "write over that" io "write -P 3 0 16M"
check "both are listed" prints '^second +20' snapshot list demo
check "as JSON" prints '"name": "first"' snapshot list demo --output json
check "a volume that is none" refuses 'no volume "none"' snapshot list none
first="nbd+unix:///demo@first?socket=$WEIR_DATA_DIR/nbd.sock"
lists() { nbdinfo --list --json "nbd+unix://?socket=$WEIR_DATA_DIR/nbd.sock" | grep -q "\"export-name\": \"$1\""; }
reads() { qemu-io -r -f raw "$1" -c "read $2" >"$work/io" 2>&1 && ! grep -E "rror|failed" "$work/io"; }
happened() { curl -s --unix-socket "$WEIR_DATA_DIR/api.sock" http://weir/v1/events | tail -c 200 | grep -q "$1"; }
check "each is an export of its own" lists demo@first
check "beside the volume" lists demo
check "it is read-only" nbdinfo --is read-only "$first"
check "it shows its bytes" reads "$first" "-P 1 0 8M"
check "and nothing that came later" reads "$first" "-P 0 8M 8M"
check "so does the other" reads "${first/first/second}" "-P 2 0 8M"
check "qemu-img copies it" qemu-img convert -f raw -O raw "$first" "$work/image"
check "into an image with its bytes" reads "$work/image" "-P 1 0 8M"
refuse "it takes no writes" "Permission denied|ead-only" qemu-io -f raw "$first" -c 'write 0 4k'
refuse "a snapshot that is none is no export" "no such|does not exist|not found|no export|unknown" \
    nbdinfo --size "${first/first/never}"
exec 8> >(qemu-io -r -f raw "$first" >/dev/null 2>&1)
wait_until "the snapshot is open" happened snapshot_opened
check "while it is read it stays" refuses 'snapshot "demo@first" is open' snapshot delete demo@first
exec 8>&-
check "the last client closes it" wait_until "the snapshot is closed" happened snapshot_closed
check "going back asks" refuses 'pass --yes' snapshot rollback demo@first
check "to a snapshot that is none" refuses 'has no snapshot never' snapshot rollback demo@never --yes
exec 9> >(qemu-io -f raw "$uri" >/dev/null 2>&1)
clients() { "$weir" volume show demo | grep -E "^ *clients +$1"; }
wait_until "a client is connected" clients 1
check "with clients it is refused" refuses 'clients are connected' snapshot rollback demo@first --yes
exec 9>&-
wait_until "the client is gone" clients 0
check "go back to the first" "$weir" snapshot rollback demo@first --yes
check "its bytes are there" io "read -P 1 0 8M"
check "and nothing else" io "read -P 0 8M 8M"
refuse "a wrong byte would be seen" "Pattern verification failed" qemu-io -f raw "$uri" -c 'read -P 9 0 1M'
check "what is written now stays" io "write -P 4 1M 1M"
# A rollback that takes its time: the store goes away for a while.
if [ -d "$WEIR_DATA_DIR/store" ]; then
    check "write over it all" io "write -P 5 0 8M"
    mv "$WEIR_DATA_DIR/store" "$WEIR_DATA_DIR/away"
    curl -sS --unix-socket "$WEIR_DATA_DIR/api.sock" -H 'Content-Type: application/json' \
        -d '{"action": "roll_back", "snapshot": "first"}' http://weir/v1/volumes/demo/snapshots >"$work/rollback" 2>&1 &
    rolling=$!
    wait_until "the rollback begins" grep -q running "$work/rollback"
    qemu-io -r -f raw "$uri" -c "read -P 1 0 8M" >"$work/meanwhile" 2>&1 &
    meanwhile=$!
    sleep 2
    mv "$WEIR_DATA_DIR/away" "$WEIR_DATA_DIR/store"
    wait "$rolling" "$meanwhile"
    check "the rollback ended" grep '"state":"done"' "$work/rollback"
    check "who came meanwhile saw no byte of before" bash -c \
        'grep -q "read 8388608/8388608" "$0" && ! grep -E "rror|failed" "$0"' "$work/meanwhile"
fi
check "and who comes now is let in" io "write -P 4 1M 1M"
stop
check "while nobody serves it: list" prints '^first +20' snapshot list demo
check "take one" "$weir" snapshot create demo@third
check "what differs is one run" prints '^ *1048576 +1048576 data$' snapshot diff demo@first third
differs() { [ "$("$weir" snapshot diff "$1" "$2" --output json | tr -d ' \n')" = "$3" ]; }
check "as JSON, and nothing else" differs demo@first demo@third '[{"length":1048576,"offset":1048576,"type":"data"}]'
check "the other way round" differs demo@third demo@first '[{"length":1048576,"offset":1048576,"type":"data"}]'
check "from itself nothing differs" differs demo@first first '[]'
check "of another volume" refuses 'only snapshots of one volume' snapshot diff demo@first other@third
check "with one that is none" refuses 'has no snapshot "never"' snapshot diff demo@first never
check "go to the second" "$weir" snapshot rollback demo@second --yes
check "its bytes" shows "read -P 2 0 8M"
check "back to the third" "$weir" snapshot rollback demo@third --yes
check "its bytes" shows "read -P 4 1M 1M"
for name in first second third; do
    check "delete $name" "$weir" snapshot delete "demo@$name"
done
check "deleting it again" refuses 'has no snapshot first' snapshot delete demo@first
check "none is left" test "$("$weir" snapshot list demo --output json | tr -d ' \n')" = "[]"
check "the volume is whole" prints 'demo: .*it is whole' volume check demo
