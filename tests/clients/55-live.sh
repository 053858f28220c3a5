#!/usr/bin/env bash
# Volumes come and go while a process serves others: created, attached, detached, deleted, and loaded anew.
. "$(dirname "$0")/_lib.sh"
# The bindings of libnbd belong to the Python of the system.
export PATH="/usr/bin:$PATH"

serve() {
    : >"$work/weir.log"
    "$weir" serve "$@" >"$work/weir.out" 2>"$work/weir.log" </dev/null &
    weir_pid=$!
    wait_until "weir serve listens" grep '^listening at ' "$work/weir.log" || exit 1
}
# eventually NAME COMMAND...: the command must succeed within a minute.
socket=$WEIR_DATA_DIR/nbd.sock
at() { echo "nbd+unix:///$1?socket=$socket"; }
offered() { nbdinfo --size "$(at "$1")"; }
not_offered() { ! offered "$1" >/dev/null 2>&1; }
says() { grep -E -- "$1" "$work/weir.log"; }

refuse "nothing is attached where nothing is served" "nothing is served from" "$weir" volume attach one

cat >"$work/weir.toml" <<END
[[volumes]]
name = "one"
size = "64M"
END
serve --config "$work/weir.toml"
check "a volume is created and attached" "$weir" volume attach two --size 32M
check "clients find it" offered two
check "attaching it again is no error" "$weir" volume attach two
check "a volume is created and served at once" "$weir" volume create three --size 16M --attach
check "clients find that one" offered three
refuse "a volume that is not there is not attached" "no volume|size" "$weir" volume attach nowhere
check "a write" qemu-io -f raw "$(at two)" -c "write -P 5 0 1M"

# With a client.
nbdsh --uri "$(at two)" -c 'import time; time.sleep(600)' >/dev/null 2>&1 &
client=$!
processes+=("$client")
clients_of_two() {
    "$weir" status --output json | python3 -c '
import json, sys
def volumes(part):
    if isinstance(part, dict):
        if part.get("name") == "two" and "clients" in part:
            yield part
        part = list(part.values())
    if isinstance(part, list):
        for item in part:
            yield from volumes(item)
print(sum(volume["clients"] for volume in volumes(json.load(sys.stdin))))'
}
connected() { [ "$(clients_of_two)" = 1 ]; }
eventually "a client is connected" connected
refuse "a volume with a client is not detached" "clients are connected" "$weir" volume detach two
check "it is served on" offered two
refuse "nor deleted" "clients are connected" "$weir" volume delete two --yes
check "the client is disconnected where that is asked for" "$weir" volume detach two --disconnect
check "it is not offered any more" not_offered two
kill "$client" 2>/dev/null
refuse "it cannot be detached twice" "is not served" "$weir" volume detach two
is_closed() { "$weir" volume show two --output json | grep '"holder": null'; }
check "it is closed, with everything in the store" is_closed
check "it is attached again, for reading" "$weir" volume attach two --read-only
check "what was written is there" qemu-io -r -f raw "$(at two)" -c "read -P 5 0 1M"
check "it is read-only" nbdinfo --is read-only "$(at two)"

# Loaded anew.
cat >>"$work/weir.toml" <<END
[[volumes]]
name = "four"
size = "16M"
END
cp "$work/weir.toml" "$work/good.toml"
echo 'nonsense = 1' >>"$work/weir.toml"
kill -HUP "$weir_pid"
eventually "a wrong file changes nothing" says 'the configuration was not loaded'
check "what was served is served" offered three
cp "$work/good.toml" "$work/weir.toml"
check "one that it names is detached" "$weir" volume detach one
kill -HUP "$weir_pid"
eventually "the file is loaded" says 'the configuration is loaded: 3 volumes are served'
check "what it names newly is served" says 'volume four is served now: a new volume of 16.0 MiB'
check "what was attached by hand is served on" offered two
check "and that one" offered three
check "what was detached by hand is not served" not_offered one
check "and the log says so" says 'volume one is left out: it stays detached'

# Replaced: what was attached is served on.
kill -USR2 "$weir_pid"
again() { [ "$(grep -c '^listening at ' "$work/weir.log")" = 2 ]; }
eventually "the program is replaced" again
check "what was attached is served on" nbdinfo --is read-only "$(at two)"
check "what was detached is not" not_offered one
sed -i 's/"64M"/"64M"\nread_only = true/' "$work/weir.toml"
kill -HUP "$weir_pid"
eventually "until the file says something else of it" offered one

# Renamed: no empty volume comes in its place.
still_named() { "$weir" volume rename four vier 2>&1 | grep "still name volume four"; }
check "a rename says that the file names the volume" still_named
: >"$work/weir.log"
kill -HUP "$weir_pid"
eventually "the file is loaded then" says 'the configuration is loaded: 4 volumes are served'
check "the volume is not created anew" says 'volume four is left out: it was renamed or deleted'
check "nor offered" not_offered four
check "it is renamed back" "$weir" volume rename vier four
check "a served volume is deleted" "$weir" volume delete two --yes
check "it is not offered any more" not_offered two
refuse "and it is gone" "no volume" "$weir" volume show two
stop

# A process that serves all volumes.
serve
check "all volumes are served" offered three
check "a snapshot of one" "$weir" snapshot create four@first
check "and a clone of that" "$weir" volume clone four@first copy-of-four
refuse "which cannot be deleted then" "copy-of-four" "$weir" volume delete four --yes
check "and is served on" offered four
check "the clone is deleted" "$weir" volume delete copy-of-four --yes
check "one is detached" "$weir" volume detach three
check "and is not offered" not_offered three
check "one is renamed" "$weir" volume rename four quatre
check "it is offered under its new name" offered quatre
check "and not under the old one" not_offered four
refuse "a name that is taken" "exists already" "$weir" volume rename quatre one
check "it is served as before" offered quatre
check "and renamed back" "$weir" volume rename quatre four
check "a volume that the API creates is served" curl -sSf --unix-socket "$WEIR_DATA_DIR/api.sock" \
    -H 'Content-Type: application/json' -d '{"name":"five","size_bytes":1048576}' http://weir/v1/volumes
check "at once" offered five
stop
none_open() { ! "$weir" volume list | grep -E ' open'; }
check "they are all closed" none_open

# One that another node holds delays only itself.
store=file://$work/shared
WEIR_DATA_DIR=$work/other "$weir" serve --store "$store" --volume held:16M --lease 20 \
    >"$work/other.out" 2>"$work/other.log" </dev/null &
other=$!
processes+=("$other")
wait_until "the other node serves" grep '^listening at ' "$work/other.log"
kill -STOP "$other"
serve --store "$store" --volume held --volume free:16M
check "the free one is served" offered free
check "the one that is held is not" not_offered held
waits() { grep 'held is not served: .*waiting for node' <<<"$("$weir" status --store "$store")"; }
check "status says what it waits for" waits
check "a verb on the free one works meanwhile" "$weir" volume resize --store "$store" free 32M
kill -CONT "$other"
kill -TERM "$other"
wait "$other"
eventually "it is served once the other node has closed it" offered held
stop

# One that another node serves all the time: it is opened once that node has closed it.
another_serves() {
    WEIR_DATA_DIR=$work/other "$weir" serve --store "$store" --volume held:16M --lease 10 \
        >"$work/other.out" 2>"$work/other.log" </dev/null &
    other=$!
    processes+=("$other")
    wait_until "the other node serves" grep '^listening at ' "$work/other.log"
}
another_serves
serve --store "$store" --volume held --volume free:16M
check "the free one is served beside it" offered free
# Long enough for a renewal of the other node to be seen, which ends a first try.
sleep 6
eventually "status says that it waits still" waits
kill -TERM "$other"
wait "$other"
eventually "it is served once the node that served it has closed it" offered held
stop

# The same where a file that is loaded anew names it.
another_serves
printf 'store = "%s"\n[[volumes]]\nname = "free"\n' "$store" >"$work/later.toml"
serve --config "$work/later.toml"
printf '[[volumes]]\nname = "held"\n[[volumes]]\nname = "late"\nsize = "16M"\n' >>"$work/later.toml"
kill -HUP "$weir_pid"
eventually "the file is loaded beside a volume that is held" says 'the configuration is loaded: 2 volumes are served'
check "what waits is said" says 'volume held is served later: it waits for node .*, which has not closed it'
check "the other one is served" offered late
kill -TERM "$other"
wait "$other"
eventually "and the one that was held, once it is closed" offered held
stop
refuse "the process of weir up takes no other volume" "nothing is served from" "$weir" volume attach one
