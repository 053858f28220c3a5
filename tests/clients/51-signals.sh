#!/usr/bin/env bash
# Signals on a bad day: a store that is away while writers wait for a full journal, a volume that another host took,
# signals that follow each other closely.
. "$(dirname "$0")/_lib.sh"
if [ "$(id -u)" != 0 ]; then
    skip "a store that goes away needs root, to mount it"
    exit 0
fi

serve() { # serve FLAGS...
    : >"$work/weir.log"
    "$weir" serve --config "$work/weir.toml" "$@" >"$work/weir.out" 2>"$work/weir.log" </dev/null &
    weir_pid=$!
    served
}
served() {
    wait_until "weir serves" grep -q '^listening at ' "$work/weir.log" && return
    cat "$work/weir.log"
    exit 1
}
at() { echo "nbd+unix:///$1?socket=$WEIR_DATA_DIR/nbd.sock"; }
put() { timeout 60 qemu-io -f raw "$(at "$1")" -c "write -P $2 $3 $4" | grep -q wrote; }
holds() { timeout 60 qemu-io -f raw "$(at "$1")" -c "read -P $2 $3 $4" | { ! grep -E "failed|differ"; }; }
ended() { ! kill -0 "$weir_pid" 2>/dev/null; }

mkdir -p "$work/store"
mount -t tmpfs -o size=600m none "$work/store" || { not_ok "a mount for the store"; exit 1; }
mounts+=("$work/store")
export WEIR_STORE=file://$work/store
store_is_away() { mount -o remount,ro "$work/store" || not_ok "the store goes away"; }
store_is_back() { mount -o remount,rw "$work/store" || not_ok "the store comes back"; }
for name in jam well; do
    printf '[[volumes]]\nname = "%s"\nsize = "256M"\njournal = "64M"\n' "$name"
done >"$work/weir.toml"

# jam: fills the journal of that volume until a write waits, and leaves it waiting.
jam() {
    local i
    for ((i = 0; i < 64; i++)); do
        timeout 4 qemu-io -f raw "$(at jam)" -c "write -P $((i % 250 + 1)) ${i}M 1M" 2>&1 | grep -q wrote || break
    done
    answered=$i
    qemu-io -f raw "$(at jam)" -c "write -P 255 200M 1M" >"$work/waits.log" 2>&1 &
    waits=$!
    processes+=("$waits")
    sleep 1
    check "the journal is full, and a write waits" kill -0 "$waits"
}
all_answered() {
    local i
    for ((i = 0; i < answered; i++)); do holds jam $((i % 250 + 1)) "${i}M" 1M || return 1; done
}

# ---- the store is away, and the journal is full ----
serve
check "a write to the other volume" put well 7 0 1M
store_is_away
jam
: >"$work/weir.log"
kill -USR2 "$weir_pid"
# It can be read, and the next program would serve nobody before it has written to it.
wait_seconds=40 wait_until "the program is not replaced, and why is said" \
    grep -q 'the program is not replaced: the store fails: .*[Rr]ead-only file system' "$work/weir.log"
check "the write waits on" kill -0 "$waits"
check "both volumes are served on, with what was answered" all_answered
check "and the other one takes writes" put well 8 0 1M
store_is_back
wait_seconds=40 wait_until "the write ends" sh -c "! kill -0 $waits 2>/dev/null"
check "it is there" holds jam 255 200M 1M
kill -USR2 "$weir_pid"
wait_seconds=40 wait_until "the program is replaced" grep -q '^replacing the program' "$work/weir.log"
served
check "both volumes are served again, with what was answered" all_answered
check "and the other one" holds well 8 0 1M

store_is_away
jam
begun=$SECONDS
kill -TERM "$weir_pid"
wait_seconds=60 wait_until "SIGTERM ends it" ended
wait "$weir_pid"
echo "# exit code $?, $((SECONDS - begun)) s"
weir_pid=
check "it says that the journals keep the rest" grep -q "the journals keep the rest" "$work/weir.log"
unserved() { { "$weir" status 2>&1 || true; } | grep "volume jam .* is not served: .* in its journal alone"; }
check "status names the journal that was closed in order and holds the rest" unserved
store_is_back
serve
check "the next start has everything" all_answered

# A second signal while it is asked whether the program can be replaced.
store_is_away
jam
kill -USR2 "$weir_pid"
sleep 0.3
kill -TERM "$weir_pid"
wait_seconds=60 wait_until "SIGTERM ends it" ended
wait "$weir_pid" 2>/dev/null
weir_pid=
store_is_back
serve
check "and nothing is lost by it" all_answered
stop

# ---- a volume that another host took ----
serve --lease 3
kill -STOP "$weir_pid"
WEIR_DATA_DIR=$work/elsewhere "$weir" up jam --lease 3 --take-over -- true >"$work/other.log" 2>&1
check "another host takes it while this one stands still" test $? = 0
refuse "a verb says in time that the process stands still" "kill -CONT $weir_pid" timeout 20 "$weir" volume attach well
is_named_once() { ! { "$weir" status 2>&1 || true; } | grep -q "process $weir_pid: process"; }
check "status names it once" is_named_once
kill -CONT "$weir_pid"
is_failed() { { "$weir" status 2>&1 || true; } | grep -q "jam: it takes no writes"; }
wait_until "it knows that it lost the volume" is_failed
: >"$work/weir.log"
kill -USR2 "$weir_pid"
served
check "a lost volume does not keep the program from being replaced" kill -0 "$weir_pid"
check "the other volume is served" holds well 8 0 1M
stop

# The only one of a process.
printf '[[volumes]]\nname = "jam"\nsize = "256M"\njournal = "64M"\n' >"$work/weir.toml"
serve --lease 3
kill -STOP "$weir_pid"
# A log of its own: that of the other host above says "serving" as well, until the new process has emptied it.
WEIR_DATA_DIR=$work/elsewhere "$weir" up jam --lease 3 --take-over >"$work/only.log" 2>&1 &
other=$!
processes+=("$other")
wait_until "the other host serves it" grep -q '^serving ' "$work/only.log"
kill -CONT "$weir_pid"
wait_until "it knows that it lost its only volume" is_failed
: >"$work/weir.log"
kill -USR2 "$weir_pid"
wait_until "the program is replaced" grep -q '^replacing the program' "$work/weir.log"
served
check "it goes on without a volume" kill -0 "$weir_pid"
says_so() { { "$weir" status 2>&1 || true; } | grep -q "jam is not served"; }
check "and says which is not served" says_so
stop
kill -TERM "$other"
wait "$other"

# ---- signals that follow each other closely ----
serve
twice=0
for pause in 0.005 0.02 0.03 0.04 0.05 0.08; do
    : >"$work/weir.log"
    kill -USR2 "$weir_pid"
    sleep "$pause"
    kill -USR2 "$weir_pid" 2>/dev/null
    sleep 1
    served
    kill -0 "$weir_pid" 2>/dev/null && twice=$((twice + 1))
done
check "a second SIGUSR2 after 5 to 80 ms ends nothing" [ "$twice" = 6 ]
stop
heard=0
for pause in 0.005 0.01 0.02 0.03 0.04 0.05 0.06 0.08; do
    serve
    kill -USR2 "$weir_pid"
    sleep "$pause"
    kill -TERM "$weir_pid"
    wait_seconds=15 wait_until "SIGTERM $pause s after SIGUSR2 is heard" ended && heard=$((heard + 1))
    ended || crash
done
check "SIGTERM 5 to 80 ms after SIGUSR2 is never lost" [ "$heard" = 8 ]
weir_pid=

# ---- another process of this machine has volumes open as the service starts, as a verb may ----
export WEIR_STORE=file://$work/store/locked WEIR_DATA_DIR=$work/locked
printf '[[volumes]]\nname = "%s"\nsize = "64M"\njournal = "64M"\n' jam well >"$work/weir.toml"
serve
check "a write" put jam 9 0 1M
stop
hold() { # hold SECONDS FILE: locks it as a process does that opens the volume
    flock -x "$2" sh -c "echo \$\$ >'$2'; touch '$work/held'; exec sleep $1" &
    processes+=("$!")
    wait_until "the lock is held" test -e "$work/held"
    rm "$work/held"
}
for lock in "$WEIR_DATA_DIR"/volumes/*/lock; do hold 2 "$lock"; done
serve
check "a service waits a moment for who has its volumes open" status_says 0 "jam +ok"
check "it has what was written" holds jam 9 0 1M
stop
locks=("$WEIR_DATA_DIR"/volumes/*/lock)
hold 9 "${locks[0]}"
serve
check "one that takes longer delays only its own volume" \
    status_says 3 "it is being opened: waiting for process [0-9]+, which has it open"
wait_seconds=15 wait_until "that is served once it has ended" status_says 0 "jam +ok"
check "status has nothing more of it" status_says 0 "well +ok"
check "nor is anything lost" holds jam 9 0 1M
stop
