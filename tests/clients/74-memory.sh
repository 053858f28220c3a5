#!/usr/bin/env bash
# A store far slower than its clients, and a node with little memory: writers wait, and memory does not grow.
. "$(dirname "$0")/_lib.sh"
command -v fio >/dev/null || { skip "fio is not installed"; exit 0; }

resident_mib() { awk '/^RssAnon:/ {print int($2 / 1024)}' "/proc/$weir_pid/status"; }
most=0
watch_memory() { # until the process $1 ends
    local now
    while kill -0 "$1" 2>/dev/null; do
        now=$(resident_mib)
        [ "${now:-0}" -le "$most" ] || most=$now
        sleep 0.2
    done
}

start little --size 1G --memory 64M --journal 128M --batch 1M --batch-age 1 --upload-bandwidth 5M
at_rest=$(resident_mib)
# Asks for reads and never takes a reply.
/usr/bin/python3 - "${uri#*socket=}" "$work/held-back" <<'PY' &
import socket, struct, sys, time
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
client.recv(18, socket.MSG_WAITALL)
client.sendall(struct.pack(">IQIIIH", 3, 0x49484156454F5054, 7, 6, 0, 0))
client.settimeout(1)
try:
    while True:
        client.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 0, 1, 0, 1 << 20))
except TimeoutError:
    open(sys.argv[2], "w").close()
    time.sleep(600)
PY
deaf=$!
processes+=("$deaf")
(cd "$work" && timeout 300 fio --ioengine=nbd --uri="$uri" --name=fast --rw=randwrite --bs=4k --iodepth=32 --numjobs=2 \
    --thread --size=1G --time_based --runtime=20 --minimal --output="$work/fio.log") >"$work/fio.out" 2>&1 &
fio_pid=$!
watch_memory "$fio_pid"
if wait "$fio_pid"; then
    ok "clients that are faster than the store get no error"
else
    not_ok "clients that are faster than the store get no error" "$(cut -c 1-300 "$work/fio.out" "$work/fio.log")"
fi
check "a client that takes no replies is held back" test -e "$work/held-back"
check "and keeps its connection" kill -0 "$deaf"
kill "$deaf" 2>/dev/null
wait "$deaf" 2>/dev/null
# Maps and threads come on top of the budget: a volume of 1 GiB of blocks needs some 10 MiB of maps.
limit=$((64 + at_rest + 16))
echo "# most memory ${most} MiB, limit ${limit} MiB"
check "memory was measured" [ "$most" -ge "${at_rest:-1}" ]
check "memory stays within its budget" [ "$most" -le "$limit" ]
stop
