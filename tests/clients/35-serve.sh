#!/usr/bin/env bash
# Many volumes from one process: settings, sockets, restart and replacement under load.
. "$(dirname "$0")/_lib.sh"

# serve FLAGS...: serves in the background; sets weir_pid.
serve() {
    : >"$work/weir.log"
    "$weir" serve "$@" >"$work/weir.out" 2>"$work/weir.log" </dev/null &
    weir_pid=$!
    wait_until_served
}
wait_until_served() {
    wait_on=$weir_pid wait_log=$work/weir.log wait_until "weir serve listens" \
        grep '^listening at ' "$work/weir.log" || exit 1
}
socket=$WEIR_DATA_DIR/nbd.sock
at() { echo "nbd+unix:///$1?socket=$socket"; }

# Settings.
cat >"$work/weir.toml" <<END
[defaults]
journal = "128M"
batch_age = 1.0
[[volumes]]
name = "one"
size = "64M"
[[volumes]]
name = "two"
size = "32M"
read_only = true
END
check "serve --check takes a good file" "$weir" serve --check --config "$work/weir.toml"
check "it created nothing" test ! -e "$WEIR_DATA_DIR"
sed 's/journal/jornal/' "$work/weir.toml" >"$work/bad.toml"
refuse "an unknown setting is refused with the nearest one" 'line 2: unknown field .jornal' \
    "$weir" serve --check --config "$work/bad.toml"
refuse "with a way out" 'help: did you mean .journal' "$weir" serve --config "$work/bad.toml"
refuse "a file that is not there" "reading $work/none.toml" "$weir" serve --config "$work/none.toml"
refuse "NBD elsewhere than on loopback is refused" "can be reached from other machines" \
    "$weir" serve --check --nbd-listen 0.0.0.0:0
refuse "an API over TCP without a token is refused" "no token is set" \
    "$weir" serve --check --api-listen 127.0.0.1:0

refuse "a key file that is not there" "key file $work/no-key gives no key" \
    "$weir" serve --check --key-file "$work/no-key"
echo garbage >"$work/garbage" && chmod 600 "$work/garbage"
refuse "a key file without keys" "key file $work/garbage gives no key" \
    "$weir" serve --check --encrypt --volume a:1G --key-file "$work/garbage"
refuse "encryption without a key" "no key is configured" "$weir" serve --check --encrypt
check "a key command is not run" "$weir" serve --check --encrypt --key-command "touch $work/asked; false"
check "it was not" test ! -e "$work/asked"
refuse "an unknown setting of limits" 'help: did you mean .upload_bandwidth' "$weir" serve --check \
    --config <(printf '[limits]\nupload_bandwith = "1M"\n')
refuse "an unknown setting of the file's own" 'help: did you mean .lease' "$weir" serve --check \
    --config <(printf 'leese = 60\n')
warns() {
    printf 'store = "file://%s"\n[[volumes]]\nname = "a"\nsize = "64M"\nreplicate_to = "%s"\n' "$work/s" "$2" \
        >"$work/replica.toml"
    "$weir" serve --check --config "$work/replica.toml" 2>&1 | grep -qE -- "$1"
}
check "a replica in the store of the volume is warned of" warns 'it is the store of the volume itself' "file://$work/s"
check "and one in no store" warns 'no replica is kept of volume a, .*unknown kind of store' s4://bucket/x
refuse "a limit of zero" "limit of zero|at least 1" "$weir" serve --check \
    --config <(printf '[limits]\nupload_requests = 0\n')
refuse "collection that ends before it begins" 'help: set collect_to to 80 or more, or collect_below to 60' \
    "$weir" serve --check --collect-to 60 --config <(printf '[defaults]\ncollect_below = 80\n')
refuse "an unknown order of collection" "possible values: greedy, cost-benefit" "$weir" serve --check \
    --collect-order oldest
refuse "an unknown kind of store" "unknown kind of store" "$weir" serve --check --store s4://bucket/x
refuse "what is no URL" "not a URL" "$weir" serve --check --store /srv/weir
check "--check takes a bucket, and asks it nothing" env AWS_ENDPOINT_URL=http://127.0.0.1:1 \
    AWS_ACCESS_KEY_ID=x AWS_SECRET_ACCESS_KEY=x "$weir" serve --check --store s3://bucket/prefix
check "--check takes a directory, and does not make it" "$weir" serve --check --store "file://$work/no-store"
check "it is not there" test ! -e "$work/no-store"

# Volumes by their names.
serve --config "$work/weir.toml"
size_is() { [ "$(nbdinfo --size "$1")" = "$2" ]; }
check "the first volume" size_is "$(at one)" $((64 << 20))
check "the second volume" size_is "$(at two)" $((32 << 20))
check "it is read-only" nbdinfo --is read-only "$(at two)"
refuse "no volume is the default among many" "no such|does not exist|not found|no export|unknown" nbdinfo --size "nbd+unix:///?socket=$socket"
both_listed() { nbdinfo --list "$(at one)" | grep -c '^export=' | grep -qx 2; }
check "both are listed" both_listed
refuse "a second daemon is refused with the first one's id" "process $weir_pid" \
    "$weir" serve --config "$work/weir.toml"
refuse "and so is up" "is served by process $weir_pid at nbd" "$weir" up one
check "a write" qemu-io -f raw "$(at one)" -c "write -P 7 0 1M"
status_says() { "$weir" status "${@:2}" | grep -qE -- "$1"; }
check "show says that one is read-only" sh -c "'$weir' volume show two | grep -E '^writes +refused'"
check "status names both volumes" status_says 'two +ok, read-only'
check "status as JSON" status_says '"health": "ok"' --output json
at_risk() { "$weir" status | grep -qE '^one .*(KiB|MiB|GiB), the oldest for|^one .* nothing'; }
check "status says what would be lost" at_risk
check "flush goes through the process" "$weir" volume flush one --remote --wait
check "then nothing would be lost" status_says '^one .* nothing$'

# Growing.
check "resize while it is served" "$weir" volume resize one 96M
check "new clients see the new size" size_is "$(at one)" $((96 << 20))
check "what is new can be written" qemu-io -f raw "$(at one)" -c "write -P 8 90M 1M"
refuse "shrinking by accident is refused" "takes --shrink" "$weir" volume resize one 1M
listed_size() { "$weir" volume list | grep -qE "^$1 +$2"; }
check "the listing has it" listed_size one 96.0
crash
check "after a crash, without a process" "$weir" volume resize one 128M
serve --config "$work/weir.toml" --volume one
check "it has that size" size_is "$(at one)" $((128 << 20))
holds() { qemu-io -f raw "$(at one)" -c "read -P $1 $2 $3" | { ! grep -E "failed|differ"; }; }
check "and its bytes" holds 8 90M 1M
check "what is new reads as zeroes" holds 0 120M 1M
connected() { "$weir" volume show one | grep -qE '^ *clients +1'; }
exec 9> >(qemu-io -f raw "$(at one)" >/dev/null 2>&1)
wait_until "a client is connected" connected
refuse "a volume with clients does not shrink" "clients are connected" "$weir" volume resize one 100M --shrink --yes
exec 9>&-
left() { "$weir" volume show one | grep -qE '^ *clients +0'; }
wait_until "the client is gone" left
check "one without does" "$weir" volume resize one 100M --shrink --yes
check "it has that size" size_is "$(at one)" $((100 << 20))
check "what is left is there" holds 8 90M 1M
check "it grows again" "$weir" volume resize one 128M
check "what was given up is zeroes" holds 0 100M 28M
stop

# All volumes of the store.
serve --nbd-socket "$work/all.sock"
check "without a list all volumes are served" size_is "nbd+unix:///two?socket=$work/all.sock" $((32 << 20))
stop

# Checking.
check "a whole volume" "$weir" volume check one
id=$("$weir" volume show one --output json | sed -n 's/.*"id": "\(.*\)",/\1/p' | head -n 1)
object=$(ls -S "$WEIR_DATA_DIR/store/$id/log/"* | head -n 1)
cp "$object" "$work/object"
printf '\x55' | dd of="$object" bs=1 seek=$(($(stat -c %s "$object") - 3)) conv=notrunc status=none
refuse "a damaged object is named" "$id/log/.*checksum" "$weir" volume check one
refuse "with what is lost" "bytes [0-9]+ to [0-9]+ of the volume are lost" "$weir" volume check one
damaged() {
    "$weir" volume check one >/dev/null 2>&1
    [ $? = 3 ]
}
check "the exit code tells damage from failure" damaged
rm "$object"
refuse "a missing object is named" "$id/log/.*: .*missing" "$weir" volume check one
cp "$work/object" "$object"
check "with the object restored it is whole" "$weir" volume check one

# Readiness, and the end.
notified() {
    python3 - "$weir" "$work" <<'END'
import os, socket, subprocess, sys
weir, work = sys.argv[1:]
path = work + "/notify"
listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
listener.bind(path)
listener.settimeout(60)
process = subprocess.Popen([weir, "serve"], env={**os.environ, "NOTIFY_SOCKET": path}, stderr=subprocess.DEVNULL)
try:
    assert listener.recv(100) == b"READY=1\n"
    assert os.path.exists(os.environ["WEIR_DATA_DIR"] + "/nbd.sock")
    process.terminate()
    assert listener.recv(100) == b"STOPPING=1\n"
    assert process.wait(60) == 0
finally:
    process.kill()
END
}
check "systemd hears when it is ready and when it stops" notified
activated() {
    python3 - "$weir" "$work" <<'END'
import os, socket, subprocess, sys
weir, work = sys.argv[1:]
path = work + "/activated.sock"
listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
listener.bind(path)
listener.listen(16)
other = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
other.bind(work + "/datagrams.sock")
code = "import os, sys; os.environ['LISTEN_PID'] = str(os.getpid()); " \
    "[os.dup2(int(fd), 100 + at) for at, fd in enumerate(sys.argv[1:3])]; " \
    "[os.dup2(100 + at, 3 + at) for at in range(2)]; os.execv(sys.argv[3], [sys.argv[3], 'serve'])"
process = subprocess.Popen([sys.executable, "-c", code, str(listener.fileno()), str(other.fileno()), weir],
    env={**os.environ, "LISTEN_FDS": "2"}, pass_fds=[listener.fileno(), other.fileno()],
    stderr=open(work + "/activated.log", "wb"))
try:
    size = subprocess.check_output(["nbdinfo", "--size", f"nbd+unix:///two?socket={path}"], timeout=60)
    assert size.strip() == str(32 << 20).encode(), size
finally:
    process.terminate()
    assert process.wait(60) == 0
assert os.path.exists(path)
END
}
check "a socket of systemd's is used, and left" activated
check "one in which no sessions come is passed over, and the log says so" \
    grep 'socket="socket 1 of LISTEN_FDS"' "$work/activated.log"

# Read-only.
serve --read-only --store "file://$WEIR_DATA_DIR/store"
check "--read-only offers volumes for reading" nbdinfo --is read-only "$(at one)"
check "what is there is read" eval "qemu-io -r -f raw '$(at one)' -c 'read -P 8 90M 1M' | grep -q '^read'"
write_refused() {
    /usr/bin/python3 - "$(at one)" <<'END'
import nbd, sys
handle = nbd.NBD()
handle.set_strict_mode(0)
handle.connect_uri(sys.argv[1])
try:
    handle.pwrite(b"x" * 4096, 0)
except nbd.Error as error:
    sys.exit(error.errno != "EPERM")
sys.exit("it was taken")
END
}
check "a client that writes all the same is refused" write_refused
check "status says so" status_says '^one +ok, read-only'
stop

# A client that reconnects sees a pause, and no error, when the program is replaced and when it is killed.
serve --config "$work/weir.toml" --volume one
image="driver=nbd,server.type=unix,server.path=$socket,export=one,reconnect-delay=60"
commands=()
for ((i = 0; i < 200; i++)); do
    commands+=(-c "write -P $((i % 250 + 1)) $((i * 64))k 64k" -c "sleep 60")
done
qemu-io -t none --image-opts "$image" "${commands[@]}" >"$work/load.log" 2>&1 &
load=$!
processes+=("$load")
replaced=0
for ((round = 0; round < 3; round++)); do
    sleep 1
    kill -0 "$load" 2>/dev/null || break
    : >"$work/weir.log"
    kill -USR2 "$weir_pid"
    wait_until_served
    grep -q '^replacing the program' "$work/weir.log" && replaced=$((replaced + 1))
done
check "the program was replaced three times under load, in the same process" test "$replaced" = 3
# A thread that still ends must not close what is handed over: nothing else may ever have these descriptors.
reserved() {
    local fd
    for ((fd = 3; fd < 67; fd++)); do
        [ "$(readlink "/proc/$weir_pid/fd/$fd")" = /dev/null ] || { echo "# descriptor $fd"; return 1; }
    done
}
check "what it hands over has descriptors of its own" reserved
check "the load still runs when the program is killed" kill -0 "$load"
crash
serve --config "$work/weir.toml" --volume one
wait "$load"
check "the client saw no error" test $? = 0
no_errors() { [ "$(grep -c '^wrote ' "$work/load.log")" = 200 ] && ! grep -qi error "$work/load.log"; }
check "every write was answered" no_errors
all_there() {
    local i reads=()
    for ((i = 0; i < 200; i++)); do reads+=(-c "read -P $((i % 250 + 1)) $((i * 64))k 64k"); done
    qemu-io -f raw "$(at one)" "${reads[@]}" >"$work/reads.log" 2>&1 || return 1
    [ "$(grep -c '^read ' "$work/reads.log")" = 200 ] && ! grep -qE "failed|differ" "$work/reads.log"
}
check "and everything is there" all_there
stop

# A volume that is taken out of the file, and loaded away while it holds what the store has not.
volumes() { for name; do printf '[[volumes]]\nname = "%s"\nsize = "64M"\nbatch_age = 60.0\n' "$name"; done; }
volumes stays goes >"$work/two.toml"
serve --config "$work/two.toml"
check "write to it" qemu-io -f raw "$(at goes)" -c "write -P 7 0 1M"
volumes stays >"$work/two.toml"
: >"$work/weir.log"
kill -USR2 "$weir_pid"
wait_until_served
wait_until "it is closed" sh -c '"$0" volume list | grep -qE "^goes +[0-9.]+ [A-Za-z]+ +closed"' "$weir"
check "nothing is wrong" "$weir" status
elsewhere() {
    local store=${WEIR_STORE:-file://$WEIR_DATA_DIR/store}
    WEIR_DATA_DIR=$work/elsewhere WEIR_STORE=$store "$weir" up goes -- \
        sh -c 'qemu-io -f raw "$WEIR_URI" -c "read -P 7 0 1M" | { ! grep -E "failed|differ"; }'
}
check "another host opens it, with everything in it" elsewhere
check "the other one is served" qemu-io -f raw "$(at stays)" -c "write -P 8 0 1M"
stop

# Who may connect to the NBD socket.
printf '[nbd]\nsocket = "%s"\nmode = "0660"\n' "$work/open.sock" >"$work/open.toml"
serve --config "$work/open.toml"
check "the NBD socket has the mode that the file says" test "$(stat -c %a "$work/open.sock")" = 660
stop
refuse "a mode that is none" "is no mode" "$weir" serve --check --nbd-socket-mode 999
refuse "a group that is none" "no group" "$weir" serve --check --nbd-socket-group no-such-group

# A stop that takes its time says how much is left.
serve --volume slow:64M --batch-age 60 --upload-bandwidth 1M
head -c 24M /dev/urandom >"$work/random"
check "write what is uploaded slowly" qemu-io -f raw "$(at slow)" -c "write -s $work/random 0 24M"
stop
check "the stop said how much was left" grep -E '^[0-9.]+ [KM]iB are not in the store yet$' "$work/weir.log"
