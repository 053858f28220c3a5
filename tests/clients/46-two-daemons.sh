#!/usr/bin/env bash
# Two daemons and one volume: the first one closed it, was killed, was stopped or lives; the second one is on the same
# host or on another (another data directory over the same store).
. "$(dirname "$0")/_lib.sh"

export WEIR_STORE=${WEIR_STORE:-file://$work/store}
export WEIR_LEASE=3
here=$(uname -n)
flags=(--batch 64K --batch-age 0.2)

put() { qemu-io -f raw "$1" -c "write -P $2 $3 $4" | grep -q wrote; }
holds() { qemu-io -f raw "$1" -c "read -P $2 $3 $4" | { ! grep -E "failed|differ"; }; }
# first VOLUME STATE: serves it on this host, writes, flushes to the store, writes again, and gets into the state.
first() {
    export WEIR_DATA_DIR=$work/data
    start "$1" --size 16M "${flags[@]}"
    first_pid=$weir_pid
    first_uri=$uri
    put "$uri" 0x11 0 1M && "$weir" volume flush "$1" --remote --wait >/dev/null && put "$uri" 0x22 2M 64K \
        || not_ok "$1: the first daemon writes"
    case $2 in
        closed) stop ;;
        killed) crash ;;
        stopped) kill -STOP "$weir_pid" ;;
    esac
    processes+=("$first_pid")
}
second_on() { [ "$1" = same ] && export WEIR_DATA_DIR=$work/data || export WEIR_DATA_DIR=$work/other; }
no_wait() { ! grep -q "waiting until its lease" "$work/weir.log"; }
# It shows everything, or everything up to the flush: the last write is there whole or not at all.
all_of_it() { holds "$uri" 0x11 0 1M && holds "$uri" 0x22 2M 64K; }
a_prefix() { holds "$uri" 0x11 0 1M && { holds "$uri" 0x22 2M 64K || holds "$uri" 0 2M 64K; }; }
gone() { kill -KILL "$first_pid" 2>/dev/null; wait "$first_pid" 2>/dev/null; }

for place in same other; do
    name="closed, $place host"
    first "closed-$place" closed
    second_on "$place"
    start "closed-$place" "${flags[@]}"
    check "$name: opened at once" no_wait
    check "$name: everything is there" all_of_it
    stop
done

first killed-same killed
start killed-same "${flags[@]}"
check "killed, same host: opened at once" no_wait
check "killed, same host: everything is there" all_of_it
stop

first killed-other killed
second_on other
refuse "killed, other host: refused" "of $here, which was not closed and may hold" "$weir" up killed-other
start killed-other "${flags[@]}" --take-over
check "killed, other host: a prefix with --take-over" a_prefix
check "killed, other host: a write" put "$uri" 0x33 0 1M
stop
second_on same
start killed-other "${flags[@]}" --discard-journal
check "killed, other host: back on the first host its old journal is not replayed" holds "$uri" 0x33 0 1M
stop

for take_over in "" --take-over; do
    first "stopped-same$take_over" stopped
    refuse "stopped, same host ${take_over:-without --take-over}: refused with its process" \
        "is served by process $first_pid" timeout 60 "$weir" up "stopped-same$take_over" $take_over
    kill -CONT "$first_pid"
    check "stopped, same host: it goes on as if nothing had been" holds "$first_uri" 0x22 2M 64K
    gone
done

first stopped-other stopped
second_on other
refuse "stopped, other host: refused" "of $here, which was not closed and may hold" "$weir" up stopped-other
start stopped-other "${flags[@]}" --take-over
check "stopped, other host: a prefix with --take-over" a_prefix
check "stopped, other host: a write" put "$uri" 0x33 0 1M
kill -CONT "$first_pid"
told() {
    qemu-io -f raw "$first_uri" -c "write -P 0x44 0 64K" >"$work/o" 2>&1
    cat "$work/o"
    grep -qi "transport endpoint shutdown" "$work/o"
}
eventually "stopped, other host: the first one is told when it goes on" told
check "stopped, other host: and its writes show nowhere" holds "$uri" 0x33 0 1M
gone
stop

for take_over in "" --take-over; do
    first "lives$take_over" lives
    refuse "lives, same host ${take_over:-without --take-over}: refused with its process" \
        "is served by process $first_pid" "$weir" up "lives$take_over" $take_over
    second_on other
    refuse "lives, other host ${take_over:-without --take-over}: refused with its host" \
        "is open on $here, which renews its lease" "$weir" up "lives$take_over" $take_over
    check "lives: it goes on as if nothing had been" holds "$first_uri" 0x22 2M 64K
    gone
done
weir_pid=
