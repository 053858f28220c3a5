#!/usr/bin/env bash
# Bad days of a store that lasts: tokens that expire, minutes of 503, listings that go stale, renewals of the lease that
# take long. A proxy in front of versitygw plays them (tests/s3/fault_proxy.py).
. "$(dirname "$0")/_lib.sh"
. "$repository/tests/s3/servers.sh"
servers_or_skip
start_versitygw versitygw && start_proxy || {
    not_ok "versitygw and the proxy start" "$(cat "$work/versitygw.log")"
    exit 1
}

export WEIR_STORE=s3://weir/tests
export WEIR_LEASE=6
small=(--size 256M --journal 64M --batch 1M --batch-age 1)
client() { /usr/bin/python3 "$repository/tests/campaigns/one_writer.py" "$@"; }
put() { qemu-io -f raw "$uri" -c "write -P $1 $2 $3" | grep -q wrote; }
holds() { qemu-io -f raw "$uri" -c "read -P $1 $2 $3" | { ! grep -E "failed|differ"; }; }
logged() { grep -qE "$1" "$work/weir.log"; }
slowly() { # fio in the background, for 10 s if nothing holds it up
    (cd "$work" && timeout 300 fio --ioengine=nbd --uri="$uri" --name=verify --rw=randwrite --iodepth=8 --size=120M \
        --rate=12M --bsrange=512-256k --blockalign=512 --verify=crc32c --randseed=7 --minimal \
        --output="$work/fio.log") >"$work/fio.out" 2>&1 &
    fio_pid=$!
}
fio_ends() {
    if wait "$fio_pid"; then ok "$1"; else not_ok "$1" "$(cut -c 1-300 "$work/fio.out" "$work/fio.log")"; fi
}

start days "${small[@]}"
slowly
sleep 2
faults answer=400:ExpiredToken
sleep 6
check "a token that expires under load is said in the log" wait_until "it is said" logged "expired"
faults
fio_ends "and gives no error at the client once there is a new one"
slowly
sleep 2
faults busy=1
sleep 20
faults
fio_ends "20 s of nothing but 503 give no error at the client"
stop

# A store that passed its probe, and whose listings are stale later. Whoever lists too little takes itself for one that
# was replaced, and ends: nothing that was answered may be missing, nothing may be wrong.
start stale "${small[@]}"
client write "$uri" 1 >"$work/answered" &
writer=$!
sleep 2
faults stale_list=1
sleep 8
crash
wait "$writer"
faults
check "stale listings happened" [ "$(fault_count stale_list)" -gt 0 ]
check "and writes were answered beside them" [ "$(cat "$work/answered")" -gt 20 ]
start stale "${small[@]}"
whole() { client judge "$uri" 1 "$(cat "$work/answered")" --whole; }
check "listings that go stale under load: all that was answered is there" whole
check "and the store takes it" "$weir" volume flush stale --remote --wait
stop
rm -rf "$WEIR_DATA_DIR/volumes"
start stale "${small[@]}" --take-over
check "from the store alone as well" whole
stop

# Renewals every 2 s. A second each is in time; with 8 s the deadline passes.
"$weir" volume create auto --size 16M --takeover auto >/dev/null
"$weir" volume create manual --size 16M >/dev/null
held() { for ((i = 0; i < 12; i++)); do put 0x55 0 64K && holds 0x55 0 64K || return 1; sleep 1; done; }
start auto --batch-age 0.2
faults slow_lease=1
check "renewals that take a second: takeover = auto goes on" held
faults slow_lease=8
sleep 12
shut_down() {
    qemu-io -f raw "$uri" -c "$1" >"$work/o" 2>&1
    cat "$work/o"
    grep -qi "transport endpoint shutdown" "$work/o"
}
check "renewals that take longer than the lease: takeover = auto answers no read" shut_down "read 0 64K"
check "and no write" shut_down "write 0 64K"
check "its log says that the deadline was missed" logged "missed the deadline"
faults
crash
start auto --batch-age 0.2
check "opened again it is all there" holds 0x55 0 64K
stop
start manual --batch-age 0.2
faults slow_lease=8
sleep 12
check "takeover = manual goes on" held
waits() {
    timeout 5 "$weir" volume flush manual --remote --wait >"$work/o" 2>&1
    [ $? = 124 ] || { cat "$work/o"; return 1; }
}
check "but a remote flush waits" waits
faults
check "until the lease is held again" timeout 60 "$weir" volume flush manual --remote --wait
stop
