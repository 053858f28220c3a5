#!/usr/bin/env bash
# One writer: a second process, another host (another data directory over the same store), owners that were killed
# or stopped. The lease is short, so that waiting for it takes seconds.
. "$(dirname "$0")/_lib.sh"

export WEIR_STORE=file://$work/store
export WEIR_LEASE=3
here=$(uname -n)
flags=(--batch 64K --batch-age 0.2)

on_the_other_host() { WEIR_DATA_DIR=$work/other "$@"; }
put() { qemu-io -f raw "$1" -c "write -P $2 $3 $4" | grep -q wrote; }
holds() { qemu-io -f raw "$1" -c "read -P $2 $3 $4" | { ! grep -E "failed|differ"; }; }

# start_other NAME FLAGS...: serves a volume from the other host; sets other_pid and other_uri.
start_other() {
    : >"$work/other.log"
    WEIR_DATA_DIR=$work/other "$weir" up "$@" >"$work/other.out" 2>"$work/other.log" </dev/null &
    other_pid=$!
    processes+=("$other_pid")
    wait_on=$other_pid wait_log=$work/other.log wait_until "weir up $* serves on the other host" \
        grep '^serving ' "$work/other.log" || exit 1
    other_uri=$(sed -n 's/^serving //p' "$work/other.log")
}

end_other() {
    kill "-$1" "$other_pid"
    wait "$other_pid" 2>/dev/null
}

# One host.
start demo --size 64M "${flags[@]}"
refuse "a second process on the same host is refused with the holder" "is served by process $weir_pid" "$weir" up demo

# Another host, while the holder lives.
check "a write" put "$uri" 0x11 0 1M
refuse "another host is refused while the holder lives" "is open on $here, which renews its lease" \
    on_the_other_host "$weir" up demo
refuse "and --take-over changes nothing" "is open on $here, which renews its lease" \
    on_the_other_host "$weir" up demo --take-over

refuse "nor can another host change what happens then" "is open on $here, which renews its lease" \
    on_the_other_host "$weir" volume set demo --takeover auto

# The same host after kill -9: at once.
crash
# The last of what is written from here on stays in the journal.
start demo --batch 2M --batch-age 60
check "after kill -9 the same host does not wait" eval "! grep -q 'waiting until its lease' '$work/weir.log'"
check "and has everything" holds "$uri" 0x11 0 1M

# Another host after kill -9: waits, refuses, and takes a prefix.
writes=()
for number in $(seq 1 60); do writes+=(-c "write -P $number $((number * 65536)) 64K"); done
qemu-io -f raw "$uri" "${writes[@]}" >"$work/writes"
check "numbered writes" eval "[ $(grep -c wrote "$work/writes") = 60 ]"
crash
refuse "another host refuses without --take-over" "of $here, which was not closed and may hold" \
    on_the_other_host "$weir" up demo
refuse "after it waited for the lease" "waiting until its lease has run out" on_the_other_host "$weir" up demo
start_other demo --take-over "${flags[@]}"
# What was there before the numbered writes: 1 MiB of 0x11, and nothing behind it.
before() { holds "$other_uri" $(($1 < 16 ? 0x11 : 0)) $(($1 * 65536)) 64K; }
prefix() {
    local number gone=0
    for number in $(seq 1 60); do
        if holds "$other_uri" "$number" $((number * 65536)) 64K >/dev/null; then
            [ "$gone" = 0 ] || { echo "$number is there, $gone is not"; return 1; }
        elif before "$number" >/dev/null; then
            [ "$gone" != 0 ] || gone=$number
        else
            echo "$number is torn"
            return 1
        fi
    done
    echo "up to $gone"
}
check "with --take-over it shows a prefix" prefix
check "that holds what was there before" holds "$other_uri" 0x11 0 64K
check "a write there" put "$other_uri" 0x22 0 1M
refuse "the first host is refused now" "is open on $here, which renews its lease|went on without them" "$weir" up demo
end_other TERM
# Neither what the first host acknowledged nor what the other wrote since has to be given up.
refuse "nor is the volume deleted here with what only this journal holds" "holds [0-9]+ written blocks" \
    "$weir" volume delete demo --yes
check "a salvage says what there is" "$weir" volume salvage demo --dry-run
cut_off() {
    local ms
    # In small steps, and up to what a busy machine needs.
    for ((ms = 50; ms < 6000; ms += ms / 10)); do
        timeout -s KILL "$((ms / 1000)).$(printf %03d $((ms % 1000)))" \
            "$weir" volume salvage demo saved >/dev/null 2>&1
        if "$weir" volume show saved --output json 2>&1 | grep -q '"state": "incomplete"'; then return 0; fi
        "$weir" volume delete saved --take-over --yes >/dev/null 2>&1
    done
    return 1
}
check "a salvage is killed before its end" cut_off
refuse "what it leaves is not served" "salvage again, which goes on with it" "$weir" up saved
check "a salvage goes on with it" "$weir" volume salvage demo saved
refuse "but not with a volume that is whole" "exists already" "$weir" volume salvage demo saved
start saved "${flags[@]}"
all_numbers() {
    local number
    for number in $(seq 1 60); do
        holds "$uri" "$number" $((number * 65536)) 64K || { echo "$number is missing"; return 1; }
    done
}
check "what was salvaged is all that the first host acknowledged" all_numbers
stop
start demo --discard-journal "${flags[@]}"
check "the first host sees what the other wrote" holds "$uri" 0x22 0 1M

# The owner is stopped, the other host takes over, the owner goes on.
check "a remote flush" "$weir" volume flush demo --remote --wait
id=$("$weir" volume show demo --output json | sed -n 's/.*"id": "\(.*\)".*/\1/p' | head -n 1)
epoch() {
    on_the_other_host "$weir" volume show "$1" --output json | sed -n 's/.*"epoch": \(.*\),/\1/p' | head -n 1
}
old_epoch=$(epoch demo)
kill -STOP "$weir_pid"
start_other demo --take-over "${flags[@]}"
check "the other host writes" put "$other_uri" 0x33 0 1M
kill -CONT "$weir_pid"
is_fenced() {
    qemu-io -f raw "$uri" -c "write -P 0x44 0 64K" >"$work/o" 2>&1
    cat "$work/o"
    grep -qi "transport endpoint shutdown" "$work/o"
}
eventually "the stopped owner is fenced when it goes on" is_fenced
refused() {
    qemu-io -f raw "$uri" -c "read 0 64K" >"$work/o" 2>&1
    cat "$work/o"
    grep -qi "transport endpoint shutdown" "$work/o"
}
check "its reads fail as well" refused
end_other TERM
crash
manifests_of_the_old_epoch() {
    local newest
    newest=$(ls "$work/store/$id/manifest" | tail -n 1)
    [ "$(epoch demo)" -gt "$old_epoch" ] && grep -q '"holder": null' "$work/store/$id/manifest/$newest"
}
check "the newest manifest is the new owner's" manifests_of_the_old_epoch
start_other demo "${flags[@]}"
check "nothing of the old epoch shows" holds "$other_uri" 0x33 0 1M
end_other TERM

# With takeover = auto nobody needs to be asked, and the old owner gives no answer after its deadline.
"$weir" volume create auto --size 64M --takeover auto >/dev/null
start auto "${flags[@]}"
check "a write to a volume with takeover = auto" put "$uri" 0x11 0 1M
check "flushed to the store" "$weir" volume flush auto --remote --wait
kill -STOP "$weir_pid"
start_other auto "${flags[@]}"
check "another host takes over by itself" holds "$other_uri" 0x11 0 1M
kill -CONT "$weir_pid"
check "the old owner answers no read" refused
eventually "and no write" is_fenced
end_other TERM
crash

# The same where the volume was set to it while it was served.
start live --size 64M "${flags[@]}"
check "a volume that is served is set to takeover = auto" "$weir" volume set live --takeover auto
check "a write to it" put "$uri" 0x55 0 1M
check "which reaches the store" "$weir" volume flush live --remote --wait
kill -STOP "$weir_pid"
start_other live "${flags[@]}"
check "another host takes it over by itself" holds "$other_uri" 0x55 0 1M
kill -CONT "$weir_pid"
check "its old owner answers no read" refused
end_other TERM
crash

# A volume that another host deleted, with what the first one acknowledged last in its journal.
start gone --size 64M --batch 2M --batch-age 60
check "a write that stays in the journal" put "$uri" 0x66 0 64K
crash
id=$("$weir" volume show gone --output json | sed -n 's/.*"id": "\(.*\)".*/\1/p' | head -n 1)
check "another host deletes the volume" on_the_other_host "$weir" volume delete gone --take-over --yes
unserved() { { "$weir" status || true; } 2>&1 | grep "volume gone ($id) is not served"; }
check "status names the journal" unserved
refuse "it is not given up without a word" "was deleted elsewhere; its journal in this data directory" \
    "$weir" volume delete gone --yes
check "status names it still" unserved
check "it is removed where that is asked for" "$weir" volume delete gone --discard-journal --yes
check "and nothing of it is left" eval "! unserved && [ ! -e '$WEIR_DATA_DIR/volumes/$id' ]"
refuse "once" 'there is no volume named "gone"|no volume "gone"' "$weir" volume delete gone --discard-journal --yes
