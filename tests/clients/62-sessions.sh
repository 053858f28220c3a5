#!/usr/bin/env bash
# Sessions of clients stay when the program is replaced: in the clear they are the next program's, under TLS the old
# process passes them on. No client here connects anew unless it says so.
. "$(dirname "$0")/_lib.sh"

export WEIR_PKI=$work/pki
issued() { echo "$WEIR_PKI/issued/$1"; }
{
    "$weir" pki init --name test && "$weir" pki issue server --host 127.0.0.1 --usage server &&
        "$weir" pki issue alice --usage client && "$weir" pki issue mallory --usage client
} >"$work/pki.log" 2>&1 || {
    not_ok "certificates are issued" "$(cat "$work/pki.log")"
    exit 1
}
# The same port before and after a replacement.
port=$(/usr/bin/python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat >"$work/weir.toml" <<END
[nbd]
listen = "127.0.0.1:$port"
[tls]
certificates = "$(issued server)"
[[volumes]]
name = "disk"
size = "256M"
[[volumes]]
name = "other"
size = "64M"
[[volumes]]
name = "third"
size = "64M"
END
serve() {
    : >"$work/weir.log"
    WEIR_LOG=info "$weir" serve --config "$work/weir.toml" --nbd-socket "$work/nbd.sock" \
        >"$work/weir.out" 2>>"$work/weir.log" </dev/null &
    weir_pid=$!
    wait_on=$weir_pid wait_log=$work/weir.log wait_until "weir serve listens" \
        grep '^listening at nbds://' "$work/weir.log" || exit 1
}
at() { echo "nbds://127.0.0.1:$port/$2?tls-certificates=$(issued "$1")"; }
says() { grep -qE "$1" "$work/weir.log"; }
times() { [ "$(grep -cE "$1" "$work/weir.log")" = "$2" ]; }
# replace N: the program is replaced for the Nth time.
replace() {
    kill -USR2 "$weir_pid"
    wait_on=$weir_pid wait_log=$work/weir.log wait_until "replacement $1" \
        times '^listening at nbds://' $(($1 + 1)) || exit 1
}
relays() { sed -n 's/^process \([0-9]*\) passes .* under TLS on$/\1/p' "$work/weir.log"; }

# Writes and reads with several requests in flight until there is NAME.enough; every block that was answered is read
# again at the end, by the same connection. A lost connection is an error.
cat >"$work/load.py" <<'END'
import nbd, os, random, sys, time
uri, name, seed = sys.argv[1:]
h = nbd.NBD(); h.set_uri_allow_local_file(True); h.connect_uri(uri)
BLOCK, BLOCKS, DEPTH = 16384, 1024, 16
rng, written, flights, count = random.Random(int(seed)), {}, {}, 0
slowest = 0.0
def reap():
    global slowest
    for cookie in list(flights):
        if not h.aio_command_completed(cookie):
            continue
        at, data, buffer, began = flights.pop(cookie)
        slowest = max(slowest, time.monotonic() - began)
        if data is None:
            assert bytes(buffer.to_bytearray()) == written[at], f"block {at} differs"
        else:
            written[at] = data
def begin():
    busy = {at for at, *_ in flights.values()}
    at = next(at for at in rng.sample(range(BLOCKS), 64) if at not in busy)
    if at in written and rng.random() < 0.4:
        buffer = nbd.Buffer(BLOCK)
        flights[h.aio_pread(buffer, at * BLOCK)] = (at, None, buffer, time.monotonic())
    else:
        data = rng.randbytes(BLOCK)
        buffer = nbd.Buffer.from_bytearray(bytearray(data))
        flights[h.aio_pwrite(buffer, at * BLOCK)] = (at, data, buffer, time.monotonic())
while not os.path.exists(name + ".enough"):
    while len(flights) < DEPTH:
        begin()
        count += 1
    h.poll(-1)
    reap()
    if count > 200:
        open(name + ".begun", "w").close()
    if count % 20 == 0:
        with open(name + ".new", "w") as file:
            file.write(str(count))
        os.replace(name + ".new", name + ".count")
while flights:
    h.poll(-1)
    reap()
h.flush()
for at, data in written.items():
    assert h.pread(BLOCK, at * BLOCK) == data, f"block {at} differs at the end"
h.shutdown()
print(f"operations: {count}, the slowest {slowest:.2f} s")
END
loads=()
# load URI NAME SEED.
load() {
    rm -f "$work/$2".{enough,begun,count}
    /usr/bin/python3 "$work/load.py" "$1" "$work/$2" "$3" >"$work/$2.out" 2>&1 &
    loads+=("$!")
    processes+=("$!")
    wait_on=$! wait_log=$work/$2.out wait_until "the load $2 begins" test -e "$work/$2.begun"
}
more_than() { [ "$(cat "$work/$1.count")" -gt "$2" ]; }
# goes_on NAME: it does another hundred operations.
goes_on() { wait_until "$1 goes on" more_than "$1" $(($(cat "$work/$1.count") + 100)); }
# ended_well NAME PID OUTPUT: the process has ended without an error.
ended_well() {
    local output
    if wait "$2"; then
        ok "$1"
    else
        output=$(cat "$work/$3")
        not_ok "$1" "$output"
    fi
    sed 's/^/# /' "$work/$3" | grep operations
}
# saw_nothing NAME PID: it ends without an error.
saw_nothing() {
    touch "$work/$1.enough"
    ended_well "$1 saw no error and no end" "$2" "$1.out"
}

serve
load "$(at alice disk)" tls 1
load "nbd+unix:///other?socket=$work/nbd.sock" clear 2
fio --name=verify --ioengine=nbd --uri="nbd+unix:///disk?socket=$work/nbd.sock" --rw=randwrite --bs=4k --iodepth=8 \
    --offset=64M --size=64M --time_based --runtime=12 --verify=crc32c --verify_backlog=512 --verify_fatal=1 \
    >"$work/fio.out" 2>&1 &
fio=$!
processes+=("$fio")
# fio cannot be told of certificates. QEMU is not told to connect anew.
commands=()
for ((i = 0; i < 150; i++)); do
    commands+=(-c "write -P $((i % 250 + 1)) $((128 * 1024 + i * 64))k 64k" -c "sleep 60")
done
for ((i = 0; i < 150; i++)); do commands+=(-c "read -P $((i % 250 + 1)) $((128 * 1024 + i * 64))k 64k"); done
qemu-io -t none --object "tls-creds-x509,id=tls,dir=$(issued alice),endpoint=client" --image-opts \
    "driver=nbd,host=127.0.0.1,port=$port,export=disk,tls-creds=tls" "${commands[@]}" >"$work/qemu.out" 2>&1 &
qemu=$!
processes+=("$qemu")
/usr/bin/python3 - "$(at mallory disk)" "$work" >"$work/mallory.out" 2>&1 <<'END' &
import nbd, sys, time
uri, work = sys.argv[1:]
h = nbd.NBD(); h.set_uri_allow_local_file(True); h.connect_uri(uri)
open(work + "/mallory", "w")
try:
    while True:
        h.pread(512, 200 << 20); time.sleep(0.01)
except nbd.Error as error:
    print("ended:", error)
END
mallory=$!
processes+=("$mallory")
wait_until "mallory is connected" test -e "$work/mallory"
/usr/bin/python3 - "$(at alice other)" "$work" >"$work/idle.out" 2>&1 <<'END' &
import nbd, os, sys, time
uri, work = sys.argv[1:]
h = nbd.NBD(); h.set_uri_allow_local_file(True); h.connect_uri(uri)
h.pwrite(b"idle" * 1024, 63 << 20)
open(work + "/idle", "w")
while not os.path.exists(work + "/idle.enough"):
    time.sleep(0.05)
assert h.pread(4096, 63 << 20) == b"idle" * 1024
h.flush(); h.shutdown()
END
idle=$!
processes+=("$idle")
wait_until "a client that does nothing is connected" test -e "$work/idle"

# ---- two replacements under load ----
sleep 2
replace 1
check "the log says how many go on, and how many of them under TLS" \
    says '^[0-9]+ sessions of clients go on, [0-9]+ of them under TLS'
all_go_on() { [ "$(grep -coE 'count=([0-9]+) of=\1' "$work/weir.log")" = "$1" ]; }
check "all of them do" all_go_on 1
goes_on tls && goes_on clear && ok "clients in the clear and under TLS go on"
relay=$(relays)
processes+=("$relay")
check "another process passes those under TLS on" kill -0 "$relay"
only_sockets() {
    local fd place odd=0
    for fd in "/proc/$relay/fd/"*; do
        place=$(readlink "$fd") || continue
        case $place in
        socket:* | pipe:* | /dev/null | anon_inode:*poll* | anon_inode:*eventfd*) ;;
        "$work"/weir.log | "$work"/weir.out) ;;
        *) echo "# $fd: $place" && odd=1 ;;
        esac
    done
    return "$odd"
}
check "which has no file of a volume" only_sockets
listens_nowhere() { ! ss -lnxtp | grep "pid=$relay,"; }
check "and listens nowhere" listens_nowhere
check "new clients are served" nbdinfo --size "$(at alice disk)"
sleep 1
replace 2
check "the second time they are sockets like others" says '^[0-9]+ sessions of clients go on, 0 of them under TLS'
check "and all go on once more" all_go_on 2
goes_on tls && goes_on clear && ok "clients in the clear and under TLS go on once more"
check "the same process passes them on" kill -0 "$relay"

# ---- two processes pass on ----
load "$(at alice third)" late 3
replace 3
check "one that came between two replacements goes on as well" all_go_on 3
goes_on tls && goes_on clear && goes_on late && ok "beside the others"
late_relay=$(relays | tail -n 1)
processes+=("$late_relay")
check "with a process of its own" [ "$relay" != "$late_relay" ]

# ---- a revoked certificate ends a session that is passed on ----
check "mallory still reads" kill -0 "$mallory"
cp "$(issued server)/ca-crl.pem" "$work/first.pem"
check "mallory is revoked" "$weir" pki revoke mallory
cp "$WEIR_PKI/ca-crl.pem" "$(issued server)/"
kill -HUP "$weir_pid"
eventually "and disconnected" grep -q '^ended:' "$work/mallory.out"
check "which the log says" says "certificate is not accepted any more"
goes_on tls && ok "others go on"

# ---- what would let mallory in again keeps the program from being replaced, as it keeps a reload from counting ----
list=$(issued server)/ca-crl.pem
mv "$list" "$work/newest.pem"
kill -USR2 "$weir_pid"
eventually "without the list of what is revoked the program is not replaced" \
    says "^error: the program is not replaced: .*ca-crl.pem is missing, and those that it revoked would be let in again"
cp "$work/first.pem" "$list"
kill -USR2 "$weir_pid"
eventually "nor with an older one" \
    says "^error: the program is not replaced: .*is older than the one that is in use"
check "it is the program of before" times '^listening at nbds://' 4
refuse "mallory stays out" "." nbdinfo --size "$(at mallory disk)"
goes_on tls && goes_on clear && ok "and nobody else notices"
mv "$work/newest.pem" "$list"

# ---- the end of the process that passes on ----
ended_well "fio in the clear saw no error, and read what it wrote" "$fio" fio.out
qemu_is_well() {
    [ "$(grep -c '^wrote ' "$work/qemu.out")" = 150 ] && [ "$(grep -c '^read ' "$work/qemu.out")" = 150 ] &&
        ! grep -qiE "error|failed|differ" "$work/qemu.out"
}
wait "$qemu"
check "QEMU under TLS saw no error, and read what it wrote" qemu_is_well
saw_nothing tls "${loads[0]}"
saw_nothing clear "${loads[1]}"
saw_nothing late "${loads[2]}"
eventually "its process ends with it" has_ended "$late_relay"
check "a client that does nothing keeps it" kill -0 "$relay"
touch "$work/idle.enough"
ended_well "that one saw nothing of it" "$idle" idle.out
eventually "it ends with its last client" has_ended "$relay"
check "which the log says" says "^process $relay has no client under TLS any more, and ends"

# ---- the end of the program ends clients that are passed on ----
loads=()
load "$(at alice disk)" stopped 4
replace 4
goes_on stopped
relay=$(relays | tail -n 1)
processes+=("$relay")
stop
eventually "a program that stops ends them" has_ended "${loads[0]}"
eventually "and nobody passes anything on" has_ended "$relay"
serve
loads=()
load "$(at alice disk)" killed 5
replace 1
goes_on killed
relay=$(relays | tail -n 1)
processes+=("$relay")
begun=$SECONDS
crash
eventually "a program that is killed ends them" has_ended "${loads[0]}"
eventually "with the process that passed them on" has_ended "$relay"
check "at once" [ $((SECONDS - begun)) -le 3 ]

# ---- the process that passes on is killed: nothing that was answered is lost ----
serve
cat >"$work/again.py" <<'END'
import nbd, os, sys
uri, work = sys.argv[1:]
written, drops, number = {}, 0, 0
def connect():
    h = nbd.NBD(); h.set_uri_allow_local_file(True); h.connect_uri(uri)
    return h
h = connect()
while not os.path.exists(work + "/again.enough"):
    number += 1
    at, data = number % 512 * 8192, number.to_bytes(8, "little") * 1024
    try:
        h.pwrite(data, at)
    except nbd.Error:
        # What became of it is not known: it is written again.
        drops += 1
        number -= 1
        h = connect()
        continue
    written[at] = data
    if number == 100:
        open(work + "/again.begun", "w").close()
    with open(work + "/again.new", "w") as file:
        file.write(str(number))
    os.replace(work + "/again.new", work + "/again.count")
for at, data in written.items():
    assert h.pread(8192, at) == data, at
h.shutdown()
print("cut off:", drops)
END
/usr/bin/python3 "$work/again.py" "$(at alice disk)" "$work" >"$work/again.out" 2>&1 &
again=$!
processes+=("$again")
wait_until "a client that connects again begins" test -e "$work/again.begun"
replace 1
goes_on again
kill -KILL "$(relays | tail -n 1)"
goes_on again && ok "it goes on after the process that passed it on was killed"
touch "$work/again.enough"
ended_well "nothing that was answered is lost" "$again" again.out
check "it was cut off once" grep -q '^cut off: 1$' "$work/again.out"
stop

# ---- a session that began under TLS 1.2 goes on as long as that is spoken ----
sed -i 's|^\[tls\]$|[tls]\nmin_version = "1.2"|' "$work/weir.toml"
serve
cat >"$work/old.py" <<'END'
import os, socket, ssl, struct, sys, time
port, certificates, work = int(sys.argv[1]), sys.argv[2], sys.argv[3]
OPTION = 0x49484156454F5054
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.load_verify_locations(certificates + "/ca-cert.pem")
context.load_cert_chain(certificates + "/client-cert.pem", certificates + "/client-key.pem")
context.maximum_version = ssl.TLSVersion.TLSv1_2
clear = socket.create_connection(("127.0.0.1", port), timeout=30)
clear.recv(18, socket.MSG_WAITALL)
clear.sendall(struct.pack(">IQII", 3, OPTION, 5, 0))
clear.recv(20, socket.MSG_WAITALL)
tls = context.wrap_socket(clear, server_hostname="server")
def get(length):
    got = b""
    while len(got) < length:
        more = tls.recv(length - len(got))
        if not more:
            raise ConnectionError("the end")
        got += more
    return got
name = b"disk"
tls.sendall(struct.pack(">QIII", OPTION, 7, len(name) + 6, len(name)) + name + struct.pack(">H", 0))
kind = None
while kind != 1:
    _, _, kind, length = struct.unpack(">QIII", get(20))
    get(length)
print(tls.version(), flush=True)
count = 0
try:
    while True:
        tls.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 0, count, 0, 512))
        assert struct.unpack(">IIQ", get(16))[1:] == (0, count)
        get(512)
        count += 1
        with open(work + "/old.new", "w") as file:
            file.write(str(count))
        os.replace(work + "/old.new", work + "/old.count")
        time.sleep(0.005)
except (ConnectionError, ssl.SSLError) as error:
    print("ended:", error)
END
/usr/bin/python3 -W ignore "$work/old.py" "$port" "$(issued alice)" "$work" >"$work/old.out" 2>&1 &
old=$!
processes+=("$old")
eventually "a client that speaks TLS 1.2 is served" grep -qx TLSv1.2 "$work/old.out"
replace 1
goes_on old && ok "it goes on where that is spoken still"
sed -i '/^min_version/d' "$work/weir.toml"
replace 2
eventually "it ends where 1.3 is demanded since" has_ended "$old"
check "which the log says" says "must speak a newer version of TLS now"
check "others are served" nbdinfo --size "$(at alice disk)"
stop
