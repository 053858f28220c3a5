#!/usr/bin/env bash
# Exports of other servers as volumes: qemu-nbd, nbdkit with blocks of several sizes, another Weir; servers that are
# killed under load, that are away, and that do not offer what is needed.
. "$(dirname "$0")/_lib.sh"

run_fio() {
    (cd "$work" && fio --ioengine=nbd --uri="$uri" --name=verify --rw=randwrite --iodepth=16 \
        --size=48M --verify=crc32c --randseed=7 --minimal --output="$work/fio.log" "$@") \
        || { cat "$work/fio.log"; return 1; }
}
odd=(--bsrange=512-128k --blockalign=512 --offset=16777219)

# wait_for SOCKET PID: a server that is not Weir listens.
wait_for_socket() { wait_on=$2 wait_until "$1 is there" test -S "$1" || exit 1; }

# qemu-nbd: bytes of any length, one connection or several.
truncate -s 128M "$work/disk.raw"
qemu-nbd --persistent --shared=8 --format=raw --export-name=disk --socket="$work/qemu.sock" "$work/disk.raw" &
processes+=("$!")
wait_for_socket "$work/qemu.sock" "$!"
start far --remote "nbd+unix:///disk?socket=$work/qemu.sock" --remote-connections 4
check "qemu-nbd: written and verified" run_fio --bsrange=512-1M --blockalign=512
check "qemu-nbd: at odd offsets" run_fio "${odd[@]}"
check "qemu-nbd: zeroes and discards" qemu-io -f raw "$uri" -c "write -P 5 0 1M" -c "write -z 4k 64k" \
    -c "discard 512k 100k" -c "read -P 5 0 4k" -c "read -P 0 4k 64k" -c "read -P 0 512k 100k" -c "read -P 5 612k 1k"
layer() { "$weir" status --output json | jq -e "[.. | .layers? // empty | .[] | .remote? // empty][0] | $1"; }
check "status shows the server" layer '.connected and .connections == 4 and .lost == 0'
nbdcopy "$uri" "$work/copy.raw"
stop
check "what was written is in the server's file" cmp "$work/copy.raw" "$work/disk.raw"

# nbdkit that takes whole blocks only.
for block in 512 4096; do
    nbdkit --foreground --unix "$work/nbdkit-$block.sock" --filter=blocksize-policy memory 128M \
        blocksize-minimum=$block blocksize-error-policy=error &
    processes+=("$!")
    wait_for_socket "$work/nbdkit-$block.sock" "$!"
    start far --remote "nbd+unix:///?socket=$work/nbdkit-$block.sock"
    check "nbdkit with blocks of $block: written and verified" run_fio --bsrange=512-128k --blockalign=512
    check "nbdkit with blocks of $block: at odd offsets" run_fio "${odd[@]}"
    check "nbdkit with blocks of $block: zeroes at odd offsets" qemu-io -f raw "$uri" -c "write -P 5 0 64k" \
        -c "write -z 1 10000" -c "read -P 5 0 1" -c "read -P 0 1 10000" -c "read -P 5 10001 1000"
    stop
done

# What cannot be used is refused at once, with the way out.
nbdkit --foreground --unix "$work/no-flush.sock" eval get_size='echo 1M' \
    pread='dd if=/dev/zero bs="$3" count=1 status=none' pwrite='cat >/dev/null' &
processes+=("$!")
wait_for_socket "$work/no-flush.sock" "$!"
refuse "a server without flush" "offers no FLUSH" "$weir" up far --remote "nbd+unix:///?socket=$work/no-flush.sock"
refuse "an export that there is not" "far.*not|refuses" "$weir" up far --remote "nbd+unix:///x?socket=$work/qemu.sock"
refuse "a server that is not there" "connecting" "$weir" up far --remote "nbd+unix:///x?socket=$work/none.sock"
refuse "an address that is none" "is no address of an export" "$weir" up far --remote "http://host/x"
refuse "TLS without a certificate" "give --tls-certificates" "$weir" up far --remote "nbds://localhost:1/x"
refuse "another size" "64|size" "$weir" up far --size 64M --remote "nbd+unix:///disk?socket=$work/qemu.sock"
printf '[[volumes]]\nname = "far"\nremote.uri = "disk"\n' >"$work/wrong.toml"
refuse "a wrong address in the file" "volume \"far\"" "$weir" serve --check --config "$work/wrong.toml"

printf '[[volumes]]\nname = "far"\nremote.uri = "nbds://localhost/x"\n' >"$work/secure.toml"
refuse "TLS without a certificate, before anything is served" "volume far: nbds://localhost/x: it needs TLS" \
    "$weir" serve --check --config "$work/secure.toml"

# A server that comes back with a smaller disk has not what was flushed.
truncate -s 64M "$work/small.raw"
serve_disk_of() {
    qemu-nbd --persistent --shared=8 --format=raw --export-name=disk --socket="$work/swap.sock" "$1" &
    swap_pid=$!
    processes+=("$swap_pid")
    wait_for_socket "$work/swap.sock" "$swap_pid"
}
serve_disk_of "$work/disk.raw"
start far --remote "nbd+unix:///disk?socket=$work/swap.sock"
check "a disk that is written and flushed" qemu-io -f raw "$uri" -c "write -P 7 0 64k" -c flush
kill -KILL "$swap_pid"
wait "$swap_pid" 2>/dev/null
rm -f "$work/swap.sock"
serve_disk_of "$work/small.raw"
is_failed() { { "$weir" status || true; } | grep -q 'has 67108864 bytes now, and had 134217728 before'; }
eventually "a smaller one in its place is not taken for it" is_failed
refuse "and answers nothing" "Stale|error|failed" qemu-io -f raw "$uri" -c "read 0 4k"
check "the log says what happened" grep -q "answers nothing until it is detached.*bytes now, and had" "$work/weir.log"
no_other_owner() { ! grep "another owner" "$work/weir.log"; }
check "and nothing of another owner" no_other_owner
crash
kill "$swap_pid"
wait "$swap_pid" 2>/dev/null

# Another Weir behind it.
server_pid=
serve_disk() {
    # Before it begins: what the one before it said must not be taken for its own words.
    : >"$work/server.log"
    "$weir" --data-dir "$work/server" up disk --size 256M --nbd-socket "$work/server.sock" \
        >"$work/server.log" 2>&1 </dev/null &
    server_pid=$!
    processes+=("$server_pid")
    wait_on=$server_pid wait_log=$work/server.log wait_until "the server serves" grep '^serving ' "$work/server.log"
}
kill_server() {
    kill -KILL "$server_pid"
    wait "$server_pid" 2>/dev/null
}
serve_disk
start far --remote "nbd+unix:///disk?socket=$work/server.sock"
run_fio --bsrange=4k-64k --blockalign=4k --rate=8m --fsync=50 --do_verify=0 >"$work/fio.out" 2>&1 &
fio_pid=$!
processes+=("$fio_pid")
for _ in 1 2 3; do
    sleep 1.2
    kill_server
    sleep 0.3
    serve_disk
done
if wait "$fio_pid"; then
    ok "no write fails while the server is killed and restarted three times"
else
    not_ok "no write fails while the server is killed and restarted three times" \
        "$(cat "$work/fio.out" "$work/weir.log")"
fi
check "all of it is there" run_fio --bsrange=4k-64k --blockalign=4k --verify_only
check "status counts the times" layer '.connected and .lost >= 3'
stop
check "all of it is at the server" sh -c "nbdcopy 'nbd+unix:///disk?socket=$work/server.sock' '$work/server.raw'"

# Alone: others get it read-only, and the right outlives a restart of the server.
start far --remote "nbd+unix:///disk?socket=$work/server.sock" --remote-exclusive
check "alone: written" qemu-io -f raw "$uri" -c "write -P 7 0 4k" -c flush
refuse "alone: others cannot write" "[Rr]ead-only|Permission denied" qemu-io -f raw \
    "nbd+unix:///disk?socket=$work/server.sock" -c "write -P 8 0 4k"
check "alone: others can read" qemu-io -r -f raw "nbd+unix:///disk?socket=$work/server.sock" -c "read -P 7 0 4k"
refuse "alone: a second one is refused" "another client has exclusive" "$weir" up second --data-dir "$work/second" \
    --remote "nbd+unix:///disk?socket=$work/server.sock" --remote-exclusive
kill_server
serve_disk
check "alone: goes on after a restart of the server" qemu-io -f raw "$uri" -c "write -P 9 4k 4k" \
    -c "read -P 7 0 4k" -c flush
refuse "a remote volume is not served to another node" "use its server" "$weir" up third --data-dir "$work/third" \
    --remote "$uri"
# Somebody else writes while it is not there.
kill -STOP "$weir_pid"
kill_server
serve_disk
check "another client writes meanwhile" qemu-io -f raw "nbd+unix:///disk?socket=$work/server.sock" \
    -c "write -P 8 0 4k" -c flush
kill -CONT "$weir_pid"
refuse "alone no more: nothing is answered" "error|fail" qemu-io -f raw "$uri" -c "read -P 7 0 4k"
refuse "status says why" "exclusive access is lost" sh -c "'$weir' status; exit 1"
kill -TERM "$weir_pid"
wait "$weir_pid"
weir_pid=

# The server's volume is grown.
start far --remote "nbd+unix:///disk?socket=$work/server.sock"
size_is() { [ "$(nbdinfo --size "$uri")" = "$1" ]; }
check "grown at its server" "$weir" --data-dir "$work/server" volume resize disk 512M
eventually "it has the new size" size_is 536870912
check "and is written there" qemu-io -f raw "$uri" -c "write -P 4 511M 4k" -c flush
stop

# A server that is no Weir: what was acknowledged and not flushed is said to be lost.
serve_qemu() {
    rm -f "$work/lost.sock"
    qemu-nbd --persistent --shared=8 --format=raw --export-name=disk --socket="$work/lost.sock" "$work/disk.raw" &
    qemu_pid=$!
    processes+=("$qemu_pid")
    wait_for_socket "$work/lost.sock" "$qemu_pid"
}
serve_qemu
start far --remote "nbd+unix:///disk?socket=$work/lost.sock" --remote-deadline 5
check "written and flushed" qemu-io -f raw "$uri" -c "write -P 1 0 4k" -c "flush"
/usr/bin/python3 - "$uri" <<'PYTHON'
import os, sys, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pwrite(b"x" * 4096, 8192)
os._exit(0)
PYTHON
kill -KILL "$qemu_pid"
wait "$qemu_pid" 2>/dev/null
serve_qemu
refuse "a write fails" "Input/output|error" qemu-io -f raw "$uri" -c "write -P 2 64k 4k"
refuse "a flush fails" "flush" /usr/bin/python3 -c 'import sys, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.flush()' "$uri"
check "what was flushed is read" qemu-io -f raw "$uri" -c "read -P 1 0 4k"
refuse "status says what is lost" "may be lost" sh -c "'$weir' status; exit 1"
kill -TERM "$weir_pid"
wait "$weir_pid"
weir_pid=

# From a configuration, beside a volume of the store.
cat >"$work/weir.toml" <<END
[[volumes]]
name = "near"
size = "64M"
[[volumes]]
name = "far"
remote.uri = "nbd+unix:///disk?socket=$work/server.sock"
END
: >"$work/weir.log"
"$weir" serve --config "$work/weir.toml" --nbd-socket "$work/nbd.sock" >"$work/weir.out" 2>"$work/weir.log" </dev/null &
weir_pid=$!
wait_for_export "nbd+unix:///far?socket=$work/nbd.sock"
both() { nbdinfo --list --json "nbd+unix:///?socket=$work/nbd.sock" | jq -e '.exports | length == 2'; }
check "both are served" both
refuse "a snapshot of it is refused with the reason" "is no volume of a store, and has no snapshots" \
    "$weir" snapshot create far@one
check "it is shown" sh -c "'$weir' volume show far --output json | jq -e '.serving.layers[-1].remote.connected'"
check "it can be detached" "$weir" volume detach far
check "and attached" "$weir" volume attach far
check "and written" qemu-io -f raw "nbd+unix:///far?socket=$work/nbd.sock" -c "write -P 3 0 1M"
stop
