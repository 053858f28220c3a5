#!/usr/bin/env bash
# Replicas: moved while the volume is served and written, cut off with kill -9, checked, exported, promoted; the old
# primary comes back and changes nothing.
. "$(dirname "$0")/_lib.sh"

primary=file://$work/primary
there=file://$work/there
export WEIR_STORE=$primary
refuses() { ! "$weir" "${@:2}" >"$work/out" 2>&1 && grep -qE -- "$1" "$work/out" || { cat "$work/out"; return 1; }; }
prints() { "$weir" "${@:2}" >"$work/out" 2>&1 && grep -qE -- "$1" "$work/out" || { cat "$work/out"; return 1; }; }
io() { qemu-io -f raw "$uri" -c "$1" >"$work/io" 2>&1 && ! grep -E "rror|failed" "$work/io"; }
# shows STORE COMMAND: of a volume that nobody serves.
shows() {
    "$weir" up demo --store "$1" -- sh -c "qemu-io -f raw \"\$WEIR_URI\" -c '$2'" >"$work/io" 2>&1 &&
        ! grep -E "rror|failed" "$work/io" || { cat "$work/io"; return 1; }
}
# The replica has the identity of its source, which this data directory serves: a reader has another one.
elsewhere() { WEIR_DATA_DIR=$work/elsewhere "$@"; }
# exports STORE: what the volume shows, in $work/out.img.
exports() { rm -f "$work/out.img" && "$weir" volume export demo "$work/out.img" --store "$1"; }
holds() { qemu-io -f raw "$work/out.img" -c "$1" >"$work/io" 2>&1 && ! grep -E "rror|failed" "$work/io"; }

start demo --size 64M --batch 256K --batch-age 1
check "write what a replica is to show" io "write -P 4 0 1M"
check "and put it in the store" "$weir" volume flush demo --remote --wait
once=file://$work/once
check "what is served is published to be replicated" prints 'shows it as of object' replicate demo "$once"
check "nothing of it is missing" sh -c "! grep warning '$work/out'"
check "the replica shows it" elsewhere exports "$once"
check "all of it" holds "read -P 4 0 1M"
check "write more, beside a replicator that cannot ask for it" io "write -P 5 0 1M"
check "and put it in the store" "$weir" volume flush demo --remote --wait
check "it says what is missing" elsewhere prints 'of objects that demo put into its store later are not at' \
    replicate demo "$once"
missed() { elsewhere "$weir" replicate demo "$1" >"$work/out" 2>&1; [ $? = 3 ] || { cat "$work/out"; return 1; }; }
refuse "what weir up serves is not detached, and that is said" 'serves one volume for as long as it runs' \
    "$weir" volume detach demo
crash
"$weir" volume delete demo --yes && start demo --size 64M --batch 256K --batch-age 1
check "write to a volume that has published nothing" io "write -P 4 0 1M"
check "and put it in the store" "$weir" volume flush demo --remote --wait
empty=file://$work/empty
check "a replica in which nothing is complete is no success" missed "$empty"
check "the way out is named" grep -q 'help: .*weir snapshot create demo@NAME' "$work/out"
check "it is listed as empty" prints '^demo .*replica, nothing complete yet' volume list --store "$empty"
refuse "and is not whole" 'not whole: it is a replica in which nothing is complete' \
    "$weir" volume check demo --store "$empty"
refuse "a volume that is not there" 'no volume named "nobody"|there is no volume' \
    "$weir" replicate nobody "file://$work/nobody"
check "makes no store" test ! -e "$work/nobody"
check "write what the first state shows" io "write -P 1 0 16M"
check "a snapshot publishes it" "$weir" snapshot create demo@first
check "replicate it" prints "demo: $there shows it as of object" replicate demo "$there"
check "again: nothing is new" prints ' 0 objects, 0 B sent' replicate demo "$there"
check "the replica is listed" prints '^demo .*replica' volume list --store "$there"
check "it is whole" prints 'it is whole' volume check demo --store "$there"
check "it is exported" elsewhere exports "$there"
check "with the bytes" holds "read -P 1 0 16M"
check "the snapshot is there" prints '^first ' snapshot list demo --store "$there"
check "it takes no writes" elsewhere refuses 'weir volume promote demo' up demo --store "$there" -- true
reads() {
    "$weir" up demo --read-only --store "$there" -- \
        sh -c 'qemu-io -r -f raw "$WEIR_URI" -c "read -P 1 0 16M"' >"$work/io" 2>&1 &&
        ! grep -E "rror|failed" "$work/io"
}
check "served read-only, it shows the bytes" elsewhere reads
view() { # STORE COMMAND...: while the replica there is served read-only
    "$weir" up demo --read-only --store "$1" -- "$weir" "${@:2}" --store "$1" >"$work/view" 2>&1
}
check "served read-only, it has nothing to repair" elsewhere view "$there" volume repair demo --yes
cp -r "$work/there" "$work/hurt"
find "$work/hurt" -type f -path "*/log/*" -print0 | xargs -0 truncate -s 600
mends_nothing() {
    ! view "file://$work/hurt" volume repair demo --yes &&
        grep -q "it is served read-only" "$work/view" || { cat "$work/view"; return 1; }
}
check "one that is damaged and served says that nothing is mended there" elsewhere mends_nothing
check "a volume is no replica" refuses 'is no replica' volume promote demo
check "onto itself" refuses 'it is the volume itself' replicate demo "$primary"

# Written over and over, and replicated in the middle of it by processes that are killed. A state is 16 MiB that do not
# shrink, behind them the byte of the state; at 8 MiB/s that takes two seconds, and the kills come within the first.
objects_there() { find "$work/there" -path '*/log/*' -type f | wc -l; }
more_objects_than() { [ "$(objects_there)" -gt "$1" ]; }
killed_half_way() { # sends some objects, and is killed while it sends more
    local before killed
    before=$(objects_there)
    "$weir" replicate demo "$there" --upload-bandwidth 8M >"$work/replicate.out" 2>&1 &
    killed=$!
    wait_until "objects arrive at the replica" more_objects_than "$before" || return
    sleep 0."$1"
    kill -KILL "$killed"
    wait "$killed"
    [ $? = 137 ] || { echo "it had ended before the kill:"; cat "$work/replicate.out"; return 1; }
}
for round in 2 3 4 5 6; do
    head -c 15M /dev/urandom >"$work/random"
    check "write state $round" io "write -s $work/random 1M 15M"
    check "and its byte" io "write -P $round 0 1M"
    check "a snapshot of state $round" "$weir" snapshot create "demo@s$round"
    check "a replicator is killed while it sends state $round" killed_half_way "$((round * 2 - 3))"
    check "the replica is whole" prints 'it is whole' volume check demo --store "$there"
    check "it is exported" elsewhere exports "$there"
    check "and shows the state before" holds "read -P $((round - 1)) 0 1M"
    check "the next replicator sends the rest" prints 'shows it as of object' replicate demo "$there"
done
# By a signal that can be handled, a replicator ends with what it sent so far.
interrupted_half_way() {
    local before replicating status
    before=$(objects_there)
    "$weir" replicate demo "$there" --upload-bandwidth 4M >"$work/out" 2>&1 &
    replicating=$!
    wait_until "objects arrive at the replica" more_objects_than "$before" || return
    kill -TERM "$replicating"
    wait "$replicating"
    status=$?
    [ $status = 143 ] && grep -q "interrupted: $there shows demo as of object" "$work/out" ||
        { echo "$status"; cat "$work/out"; return 1; }
}
head -c 15M /dev/urandom >"$work/random"
check "write another state" io "write -s $work/random 1M 15M"
check "a snapshot of it" "$weir" snapshot create demo@interrupted
check "a replicator that SIGTERM ends says what the replica shows" interrupted_half_way
check "replicate to the end" prints 'shows it as of object' replicate demo "$there" --output table
check "export it" elsewhere exports "$there"
check "the last state" holds "read -P 6 0 1M"
check "all of it" cmp -i "1M:0" -n 15M "$work/out.img" "$work/random"
"$weir" replicate demo "$there" --follow --age 1 --output json >"$work/follow.out" 2>"$work/follow.log" &
follower=$!
processes+=("$follower")
held() { grep '"holder": {' "$(find "$work/there" -path '*/manifest/*' -type f | sort | tail -n 1)"; }
wait_until "the replicator has opened the replica" held
check "a second replicator is refused" refuses 'is open on' replicate demo "$there"
check "write state 7" io "write -P 7 0 16M"
check "and publish it" "$weir" snapshot create demo@s7
followed() { grep '"roots_moved":1' "$work/follow.out" || { cat "$work/follow.out" "$work/follow.log"; return 1; }; }
check "it follows" wait_until "a root is moved" followed
check "write what only the primary has" io "write -P 8 0 1M"

# The primary is lost; its replicator still runs.
crash
check "promote the replica" prints 'is a volume of its own now' volume promote demo --store "$there"
check "asked for again" prints 'is a volume of its own now' volume promote demo --store "$there"
check "the last state that was moved" shows "$there" "read -P 7 0 16M"
check "it takes writes" shows "$there" "write -P 9 1M 1M"
told() { grep 'was promoted' "$work/follow.log" || { cat "$work/follow.log"; return 1; }; }
# The old primary wakes.
check "the old primary has what it acknowledged" shows "$primary" "read -P 8 0 1M"
check "and goes on" shows "$primary" "write -P 66 0 16M"
check "its replicator is told" wait_until "it ends" told
check "it moves nothing any more" refuses 'was promoted' replicate demo "$there"
check "nothing changed here" shows "$there" "read -P 7 0 1M"
check "what was written here" shows "$there" "read -P 9 1M 1M"
check "a snapshot from before" "$weir" snapshot rollback demo@s3 --yes --store "$there"
check "is gone back to" shows "$there" "read -P 3 0 1M"
check "the promoted volume is whole" prints 'it is whole' volume check demo --store "$there"
back=file://$work/back
check "replicate it to a third store" prints 'shows it as of object' replicate demo "$back" --store "$there"
check "which is whole" prints 'it is whole' volume check demo --store "$back"

# Kept by the process that serves the volume.
cat >"$work/weir.toml" <<END
store = "$back-source"
[[volumes]]
name = "kept"
size = "32M"
batch_age = 1.0
replicate_to = "$back-kept"
replicate_age = 1.0
END
warns() {
    "$weir" serve --check --store "$back-source" --config "$1" 2>&1 |
        grep "^warning: no replica is kept of volume kept.*$2"
}
sed "s|^replicate_to.*|replicate_to = \"$back-source\"|" "$work/weir.toml" >"$work/itself.toml"
sed 's|^replicate_to.*|replicate_to = "/backup"|' "$work/weir.toml" >"$work/no-url.toml"
check "a store is no replica of itself" warns "$work/itself.toml" 'store of the volume itself'
check "a path is no store" warns "$work/no-url.toml" '/backup'
"$weir" serve --store "$back-source" --config "$work/weir.toml" >"$work/weir.out" 2>"$work/weir.log" </dev/null &
weir_pid=$!
uri="nbd+unix:///kept?socket=$WEIR_DATA_DIR/nbd.sock"
wait_for_export "$uri"
check "write to a volume whose replica is kept" io "write -P 5 0 8M"
check "publish it" "$weir" snapshot create kept@now --store "$back-source"
kept() { "$weir" snapshot list kept --store "$back-kept" | grep '^now ' || { tail -n 5 "$work/weir.log"; return 1; }; }
check "the replica is kept" wait_until "its snapshot is there" kept
check "status says how far it is" sh -c "'$weir' status --output json | grep -q '\"lag_bytes\"'"
stop
check "the kept replica is whole" prints 'it is whole' volume check kept --store "$back-kept"
