#!/usr/bin/env bash
# Starting, stopping, being killed, and running a command.
. "$(dirname "$0")/_lib.sh"

put() { qemu-io -f raw "$uri" -c "write -P $1 $2 $3" | grep -q wrote; }
holds() { qemu-io -f raw "$uri" -c "read -P $1 $2 $3" | { ! grep -E "failed|differ"; }; }

start demo --size 64M
check "a write" put 0x01 4096 10000
stop INT
start demo
check "it is there after SIGINT" holds 0x01 4096 10000
check "another write" put 0x02 1000000 333
kill -USR1 "$weir_pid"
kill -USR2 "$weir_pid"
wait_until "signals that mean nothing are named" grep -q "means nothing here; SIGTERM ends" "$work/weir.log"
check "and do not end it" put 0x02 1000000 333
crash
start demo
check "an acknowledged write survives kill -9 without a flush" holds 0x02 1000000 333
check "recovery says so" grep -q '^recovered .* of writes that were only in the journal' "$work/weir.log"

refuse "a second process is refused with the holder's id" "is served by process $weir_pid at nbd" \
    "$weir" up demo
refuse "deleting is refused, too" "is served by process $weir_pid" "$weir" volume delete demo --yes
kill -STOP "$weir_pid"
refuse "a stopped holder is named as well" "is served by process $weir_pid" \
    timeout 60 "$weir" volume delete demo --yes
kill -CONT "$weir_pid"
check "flush --remote --wait reaches the process" "$weir" volume flush demo --remote --wait
check "flush reaches the process" "$weir" volume flush demo
served() { "$weir" volume list | grep -q "served by $weir_pid"; }
check "volume list names the process" served
stop

exit_code() {
    local want=$1
    shift
    "$@" >/dev/null 2>&1
    [ $? = "$want" ]
}
check "the command's exit code is handed on" exit_code 7 "$weir" up demo -- sh -c 'exit 7'
check "a command that a signal ended" exit_code 143 "$weir" up demo -- sh -c 'kill $$'
check "a command that is not there" exit_code 127 "$weir" up demo -- /nonexistent/command
finds_uri() {
    [ "$("$weir" up demo -- sh -c 'nbdinfo --size "$WEIR_URI"' 2>/dev/null)" = $((64 << 20)) ]
}
check "the command finds WEIR_URI, and standard output is its own" finds_uri

check "flush without a process" "$weir" volume flush demo --remote --wait
read_only() { "$weir" up demo --read-only -- sh -c 'nbdinfo --is read-only "$WEIR_URI"'; }
check "--read-only is announced" read_only

start demo --nbd-listen 127.0.0.1:0
size_is() { [ "$(nbdinfo --size "$1")" = "$2" ]; }
check "TCP on loopback" size_is "$uri" $((64 << 20))
stop
refuse "TCP elsewhere is refused" "help: .*--insecure" "$weir" up demo --nbd-listen 0.0.0.0:0

start demo --nbd-socket "$work/own.sock"
check "a socket of one's own" size_is "nbd+unix:///?socket=$work/own.sock" $((64 << 20))
crash
start demo --nbd-socket "$work/own.sock"
check "an abandoned socket is replaced" size_is "$uri" $((64 << 20))
sockets() { [ "$(find "$work" -type s | wc -l)" -ge 2 ]; }
check "a socket for clients and one for commands are there while it serves" sockets
stop
gone() {
    local left
    left=$(find "$work" -type s) || return
    [ -z "$left" ] || { echo "$left"; return 1; }
}
check "no socket stays behind" gone

check "delete" "$weir" volume delete demo --yes
left() { local left; left=$(ls "$WEIR_DATA_DIR/volumes") && [ -z "$left" ]; }
check "no journal stays behind" left
