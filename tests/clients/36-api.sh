#!/usr/bin/env bash
# The HTTP/JSON API: verbs, metrics, and callers that should not be let in or make no sense.
. "$(dirname "$0")/_lib.sh"

command -v curl >/dev/null || { skip "api: curl is not installed"; exit 0; }
api_port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
head -c 32 /dev/urandom | base64 | tr -d '\n' >"$work/token"
"$weir" serve --volume demo:64M --batch-age 1 --api-listen "127.0.0.1:$api_port" \
    --api-token-file "$work/token" >"$work/weir.out" 2>"$work/weir.log" </dev/null &
weir_pid=$!
wait_until "the API is served" grep '^API at ' "$work/weir.log"
socket=$WEIR_DATA_DIR/api.sock
api() { curl -sS --max-time 60 --unix-socket "$socket" -H 'Content-Type: application/json' "$@"; }
# says PATTERN ARGUMENTS...: the answer must match.
says() {
    local pattern=$1 answer
    shift
    answer=$(api "$@")
    grep -qE -- "$pattern" <<<"$answer" || { echo "$answer"; return 1; }
}
# code CODE ARGUMENTS...: the answer must have this status.
code() { [ "$(api -o "$work/body" -w '%{http_code}' "${@:2}")" = "$1" ] || { cat "$work/body"; return 1; }; }

check "only the owner may use the socket" test "$(stat -c %a "$socket")" = 600
check "the node" says '"health":"ok"' http://weir/v1/node
check "its volumes" says '"name":"demo"' http://weir/v1/volumes
check "one volume" says '"size_bytes":67108864' http://weir/v1/volumes/demo
check "no such volume" code 404 http://weir/v1/volumes/none
check "creating" code 201 -d '{"name":"other","size_bytes":1048576}' http://weir/v1/volumes
check "creating it again" code 409 -d '{"name":"other","size_bytes":1048576}' http://weir/v1/volumes
check "a name that is none" code 400 -d '{"name":"a/b","size_bytes":1}' http://weir/v1/volumes
check "deleting what is served" code 409 -X DELETE http://weir/v1/volumes/demo
check "deleting" says '"state":"done"' -X DELETE http://weir/v1/volumes/other
check "it is gone" code 404 http://weir/v1/volumes/other
qemu-io -f raw "nbd+unix:///demo?socket=$WEIR_DATA_DIR/nbd.sock" -c "write -P 5 0 3M" >/dev/null
check "flush and wait" says '"state":"done"' -d '{"remote":true,"wait":true}' \
    http://weir/v1/volumes/demo/flush
nothing='"bytes":0,"blocks":0,"oldest_age_ms":null,"age_is_least":false,"bytes_are_least":false'
check "nothing is at risk then" says "\"at_risk\":\{$nothing\}" \
    http://weir/v1/node
check "resize" says '"state":"done"' -d '{"size_bytes":134217728}' http://weir/v1/volumes/demo/resize
check "shrinking" says '"state":"failed","kind":"Unsupported"' -d '{"size_bytes":1}' \
    http://weir/v1/volumes/demo/resize
check "check" says '"report":\{"objects":[1-9][0-9]*,.*"damage":\[\]' -X POST http://weir/v1/volumes/demo/check
check "limits" says '"upload_bytes_per_second":null' http://weir/v1/limits
check "limits are changed at once" says '"upload_bytes_per_second":5000000' -X PUT \
    -d '{"upload_bytes_per_second":5000000}' http://weir/v1/limits
check "and are seen" says 'weir_limit_upload_bytes_per_second 5000000' http://weir/metrics
check "a limit of zero" code 400 -X PUT -d '{"upload_requests_per_second":0}' http://weir/v1/limits
check "a list names no limit" code 422 -X PUT -d '[]' http://weir/v1/limits
check "and none of a volume" code 422 -X PATCH -d '[]' http://weir/v1/volumes/demo/limit
check "nothing given changes nothing" code 200 -X PATCH -d '{}' http://weir/v1/volumes/demo/limit
check "a flush of what is not there" says '"state":"failed","kind":"NotFound"' -d '{"remote":true,"wait":false}' \
    http://weir/v1/volumes/none/flush
check "uploads crawl" code 200 -X PUT -d '{"upload_bytes_per_second":4096}' http://weir/v1/limits
# The first object is what a limit always lets through.
for offset in 0 1M; do
    head -c 1M /dev/urandom >"$work/noise"
    qemu-io -f raw "nbd+unix:///demo?socket=$WEIR_DATA_DIR/nbd.sock" -c "write -s $work/noise $offset 1M" >/dev/null
    api -o "$work/body" -d '{"remote":true,"wait":false}' http://weir/v1/volumes/demo/flush
done
check "a flush that is only begun" says '"state":"done","report":\{"done":false\}' -d '{"remote":true,"wait":false}' \
    http://weir/v1/volumes/demo/flush
check "a local flush is done at its end" says '"state":"done","report":\{"done":true\}' -X POST \
    http://weir/v1/volumes/demo/flush
check "no limit again" says '"upload_bytes_per_second":null' -X PUT -d '{}' http://weir/v1/limits
check "a flush to the store is waited for" says '"state":"done","report":\{"done":true\}' -d '{"remote":true}' \
    http://weir/v1/volumes/demo/flush
check "and nothing is at risk" says '"at_risk":\{"bytes":0,' http://weir/v1/node

# Connections that send half a head, or half a body, keep nobody out.
python3 - "$socket" "$work/half" <<'PYTHON' &
import socket, sys, time
half = []
for index in range(600):
    s = socket.socket(socket.AF_UNIX)
    s.connect(sys.argv[1])
    try:
        if index % 2:
            s.sendall(b"GET /v1/node HTTP/1.1\r\nHost: weir\r\n")
        else:
            s.sendall(b"POST /v1/volumes HTTP/1.1\r\nHost: weir\r\nContent-Length: 99\r\n\r\n{")
    except OSError:
        pass
    half.append(s)
open(sys.argv[2], "w").close()
time.sleep(60)
PYTHON
half_pid=$!
processes+=("$half_pid")
wait_on=$half_pid eventually "600 half-open connections are made" test -e "$work/half"
check "status beside them" timeout 5 "$weir" status
kill "$half_pid" 2>/dev/null

# The same from the command line.
prints() { "$weir" "${@:2}" | grep -qE -- "$1" || { "$weir" "${@:2}"; return 1; }; }
check "limits are shown" prints "^$weir_pid +none +none +off$" limits show
check "limits are set while it serves" prints "^$weir_pid +20.0 MiB/s +none +off$" limits set --upload-bandwidth 20M
check "one keeps the other" prints '"upload_bytes_per_second": 20971520' limits set --upload-requests 9 --output json
check "status shows them" prints '^  uploads at most 20.0 MiB/s, 9 requests/s$' status
head -c 24M /dev/urandom >"$work/random"
"$weir" limits set --upload-bandwidth 1M --upload-requests none >/dev/null
check "a write that is uploaded slowly" qemu-io -f raw "nbd+unix:///demo?socket=$WEIR_DATA_DIR/nbd.sock" \
    -c "write -s $work/random 8M 24M"
check "it is on its way" "$weir" volume flush demo --remote
check "and waits for its limit" wait_until "a PUT is on its way" says '"puts_in_flight":[1-9]' http://weir/v1/node
check "and they are off again" prints "^$weir_pid +none +none +off$" limits set --upload-bandwidth none \
    --upload-requests none
check "what waited goes on at once" "$weir" volume flush demo --remote --wait
check "metrics: time that uploads waited" says '^weir_store_upload_wait_seconds_total [0-9.]*[1-9]' http://weir/metrics

# Work in the background: what it had, what clients leave to it, and a host that is to be left.
check "nothing bounds it while no client is there" wait_until "clients are at rest" prints \
    '^  background: uploads and copies at full speed: no client asks for anything$' status
check "status says what it had" says '"class":"upload","bytes":[1-9]' http://weir/v1/node
check "metrics: uploads in the background" says 'weir_background_bytes_total\{class="upload"\} [1-9]' http://weir/metrics
check "metrics: how long it waited" says 'weir_background_wait_seconds_total\{class="upload"\} [0-9]' http://weir/metrics
check "the rpo" says '"rpo_ms":60000,"rpo_missed":[0-9]+,"upload_pressure":[0-9]+' http://weir/v1/node
check "metrics: the rpo" says 'weir_volume_rpo_seconds\{volume="demo"\} 60.0' http://weir/metrics
check "metrics: an rpo that was kept" says 'weir_volume_rpo_missed_total\{volume="demo"\} 0' http://weir/metrics
check "a batch_age has a word in the log" grep -q 'batch_age is derived from rpo now, which is 60 s' "$work/weir.log"
check "the node is drained" prints "^$weir_pid +none +none +on$" limits set --drain on
check "limits show it" prints '"drain": true' limits show --output json
check "status shows it" prints 'at full speed, whatever clients feel, until weir limits set --drain off$' status
check "metrics: it is drained" says '^weir_limit_drain 1' http://weir/metrics
check "one limit keeps it" prints "^$weir_pid +none +7/s +on$" limits set --upload-requests 7
check "and it is not" prints "^$weir_pid +none +7/s +off$" limits set --drain off
timeout 60 bash -c 'while sleep 0.2; do echo "write -P 6 0 64K"; done' |
    qemu-io -f raw "nbd+unix:///demo?socket=$WEIR_DATA_DIR/nbd.sock" >/dev/null 2>&1 &
client_pid=$!
processes+=("$client_pid")
held='held back for clients, but for what clients or commands wait for, within the limits on uploads'
check "a client that is there holds the background back" wait_until "a client is felt" prints \
    "^  background: uploads and copies at up to [0-9.]+ [KMG]iB/s, $held\$" status
kill "$client_pid"
wait "$client_pid" 2>/dev/null
"$weir" limits set --upload-requests none >/dev/null
check "events: limits" says '"kind":"limits_changed".*drain on' http://weir/v1/events
refuse "a drain that is neither" "possible values: on, off" "$weir" limits set --drain maybe
refuse "an rpo of less than a second" "an rpo of 0.01 seconds is not within 1 to 86400" \
    "$weir" serve --check --rpo 0.01
refuse "a limit that is none of these" "is no size" "$weir" limits set --upload-bandwidth fast
refuse "nothing to set" "required" "$weir" limits set
refuse "limits where nothing is served" "nothing is served from $work/nowhere" \
    env WEIR_DATA_DIR="$work/nowhere" "$weir" limits set --upload-bandwidth 1M

# The lease, and what happens when it runs out.
check "the lease" says '"lease":\{"node":"[0-9a-f]{32}".*"length_ms":60000,' http://weir/v1/node
check "status shows the lease" prints '^  lease [0-9a-f]{32}: [0-9.]+ s of 60.0 s left$' status
check "metrics: the lease" says '^weir_lease_left_seconds [1-5][0-9]' http://weir/metrics
check "metrics: volumes under it" says 'weir_volume_lease_held\{volume="demo"\} 1.0' http://weir/metrics
check "takeover is manual" says '"takeover":"manual"' http://weir/v1/volumes/demo
check "takeover is changed while the volume is served" "$weir" volume set demo --takeover auto
check "the store says so" prints '^takeover +auto$' volume show demo
check "and the process" says '"lease_held":true,"takeover":"auto"' http://weir/v1/node
check "back again through the API" says '"state":"done"' -d '{"takeover":"manual"}' \
    http://weir/v1/volumes/demo/takeover
check "the store says that" prints '^takeover +manual$' volume show demo
check "the volume still takes writes" qemu-io -f raw "nbd+unix:///demo?socket=$WEIR_DATA_DIR/nbd.sock" \
    -c "write -P 6 0 1M"
check "and they reach the store" "$weir" volume flush demo --remote --wait
check "a takeover that is none" code 422 -d '{"takeover":"never"}' http://weir/v1/volumes/demo/takeover
check "takeover of no volume" says '"state":"failed","kind":"NotFound"' -d '{"takeover":"auto"}' \
    http://weir/v1/volumes/none/takeover
check "creating with takeover" says '"takeover":"auto"' -d '{"name":"auto","size_bytes":4096,"takeover":"auto"}' \
    http://weir/v1/volumes
check "takeover of one that is closed" says '"state":"done"' -d '{"takeover":"manual"}' \
    http://weir/v1/volumes/auto/takeover
check "the closed one says so" prints '^takeover +manual$' volume show auto

# Compaction, of a volume that is served.
check "every block is overwritten twice" qemu-io -f raw "nbd+unix:///demo?socket=$WEIR_DATA_DIR/nbd.sock" \
    -c "write -P 7 0 4M" -c "write -P 8 1M 2M"
check "and stored" "$weir" volume flush demo --remote --wait
check "it is compacted" prints '"live_percent_after": (9[5-9]|100),' volume compact demo --output json
check "and through the API" says '"report":\{"copied_objects":0,.*"obstacle":null' -d '{"percent":80}' \
    http://weir/v1/volumes/demo/compact
check "a share that is none" says '"state":"failed","kind":"Invalid"' -d '{"percent":101}' \
    http://weir/v1/volumes/demo/compact

check "events" says '"kind":"volume_resized","volume":"demo"' 'http://weir/v1/events?after=1'
check "events: takeover" says '"kind":"takeover_changed","volume":"demo","message":"auto"' http://weir/v1/events
check "the document" says '"/v1/volumes/\{name\}/check"' http://weir/v1/openapi.json

check "metrics: latency by volume and operation" \
    says 'weir_operation_seconds_count\{volume="demo",operation="write"\} [1-9]' http://weir/metrics
check "metrics: age of the oldest byte not in the store" \
    says 'weir_volume_oldest_dirty_seconds\{volume="demo"\} 0.0' http://weir/metrics
check "metrics: requests to the store" says 'weir_store_requests_total\{kind="put"\} [1-9]' http://weir/metrics

# Callers that make no sense.
check "no such route" code 404 http://weir/nothing
check "another method" code 405 -X DELETE http://weir/v1/node
check "no JSON" code 400 -d 'garbage' http://weir/v1/volumes
check "an unknown field" code 422 -d '{"name":"x","size_bytes":1,"colour":"red"}' http://weir/v1/volumes
check "a wrong parameter" code 400 'http://weir/v1/events?after=x'
head -c 200000 /dev/zero | tr '\0' 'x' >"$work/long"
# The server hangs up once it has read too much, and a client that still sends then may not read the answer.
too_long() {
    for _ in 1 2 3 4 5; do
        code 413 --data-binary "@$work/long" http://weir/v1/volumes && return
    done
    return 1
}
check "a long body" too_long
garbage() {
    python3 - "$socket" <<'END'
import os, socket, sys
many = b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20000 + b"\r\n"
for data in [os.urandom(100000), b"\0" * 1000, b"GET " + b"/" * 200000, many,
             b"POST /v1/volumes HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", b"\r\n" * 10000]:
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(30)
    s.connect(sys.argv[1])
    try:
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
        while s.recv(65536):
            pass
    except (BrokenPipeError, ConnectionResetError):
        pass
    s.close()
END
}
check "garbage is answered or hung up on" garbage
silent() {
    python3 - "$socket" <<'END'
import socket, sys
held = []
for _ in range(300):
    s = socket.socket(socket.AF_UNIX)
    s.setblocking(False)
    if s.connect_ex(sys.argv[1]) == 0:
        held.append(s)
assert len(held) >= 64, f"only {len(held)} connections were taken"
for s in held[:64]:
    s.settimeout(60)
    answer = s.recv(100)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 408"), answer
END
}
check "a flood of silent callers is let go" silent
check "and the next one is served" says '"health":"ok"' http://weir/v1/node

# Over TCP.
size_over_nbd() { [ "$(nbdinfo --size "nbd+unix:///demo?socket=$WEIR_DATA_DIR/nbd.sock")" = "$1" ]; }
tcp() { curl -sS --max-time 60 -o "$work/body" -w '%{http_code}' "$@" "http://127.0.0.1:$api_port/v1/node"; }
tcp_code() { [ "$(tcp "${@:2}")" = "$1" ]; }
tcp_metrics() {
    [ "$(curl -sS -o "$work/body" -w '%{http_code}' "http://127.0.0.1:$api_port/metrics")" = "$1" ]
}
check "TCP without a token" tcp_code 401
check "TCP with a wrong token" tcp_code 401 -H 'Authorization: Bearer 0123456789abcdef'
check "TCP with the token" tcp_code 200 -H "Authorization: Bearer $(cat "$work/token")"
check "the metrics need the token as well" tcp_metrics 401
# Who has no token sends what it likes, as often as it likes.
flooded() {
    python3 - "$api_port" <<'PYTHON'
import socket, sys
# Some on connections of their own, as whoever wants to fill the log would have it.
for connection in range(150):
    s = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=20)
    answers = s.makefile("rb")
    for _ in range(2):
        s.sendall(b"GET /v1/" + b"A" * 60000 + b" HTTP/1.1\r\nHost: weir\r\n\r\n")
        assert b" 401 " in answers.readline()
        length = 0
        while (line := answers.readline().lower()) != b"\r\n":
            if line.startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        answers.read(length)
    s.close()
PYTHON
}
before=$(stat -c %s "$work/weir.log")
check "hundreds of requests with long paths and without a token" flooded
log_grew() { local grown=$(($(stat -c %s "$work/weir.log") - before)); echo "$grown bytes"; [ "$grown" -lt 30000 ]; }
check "leave little in the log" log_grew
check "and so does a change" test "$(curl -sS -o /dev/null -w '%{http_code}' -X PUT -d '{}' \
    "http://127.0.0.1:$api_port/v1/limits")" = 401
check "a refusal says how to send it" grep -q 'Authorization: Bearer TOKEN' "$work/body"
refuse "TCP elsewhere than on loopback" "the API there is not encrypted" \
    "$weir" serve --check --api-listen 0.0.0.0:0 --api-token-file "$work/token"
echo short >"$work/short"
refuse "a short token" "fewer than 16 characters" \
    "$weir" serve --check --api-listen 127.0.0.1:0 --api-token-file "$work/short"
refuse "serving over TCP without a token" "cannot be served at 127.0.0.1:0: no token is set" \
    env WEIR_DATA_DIR="$work/other" "$weir" serve --volume x:1M --api-listen 127.0.0.1:0
check "and nothing was begun" test ! -e "$work/other"

# Two daemons and one socket.
other_daemon() { env WEIR_DATA_DIR="$work/other" "$weir" serve --volume x:1M "$@"; }
refuse "another daemon at the same NBD socket" "$WEIR_DATA_DIR/nbd.sock is in use" \
    other_daemon --nbd-socket "$WEIR_DATA_DIR/nbd.sock"
refuse "another daemon at the same API address" "listening on 127.0.0.1:$api_port" \
    other_daemon --api-listen "127.0.0.1:$api_port" --api-token-file "$work/token"
check "the first one is still there" size_over_nbd 134217728
check "and answers" says '"health":"ok"' http://weir/v1/node
stop
