#!/usr/bin/env bash
# Volumes of one identity in two stores, and volumes of one store in two data directories: what is meant for one never
# reaches the other. And what one damaged volume does to the others of its store.
. "$(dirname "$0")/_lib.sh"

primary=${WEIR_STORE:-file://$work/store}
replica=file://$work/replica
export WEIR_STORE=$primary WEIR_LEASE=2

weir() { "$weir" "$@"; }
io() { qemu-io -f raw "$uri" -c "$1" >"$work/io" 2>&1 && ! grep -E "rror|failed|differ" "$work/io"; }
prints() { local pattern=$1; shift; weir "$@" 2>&1 | grep -E -- "$pattern"; }
lists() { weir snapshot list "$1" --store "$2" | grep -q "^$3 "; }

# A replica has the identity of its source.
start demo --size 64M --batch 256K --batch-age 1
check "write the first state" io "write -P 1 0 1M"
check "a snapshot of it" weir snapshot create demo@s1
check "replicate" weir replicate demo "$replica"
check "write the second state" io "write -P 2 0 1M"
another="which is another store"
refuse "rollback, meant for the replica" "$another" weir snapshot rollback demo@s1 --yes --store "$replica"
check "the primary stays as it is" io "read -P 2 0 1M"
refuse "delete a snapshot of the replica" "$another" weir snapshot delete demo@s1 --store "$replica"
check "the primary has it" lists demo "$primary" s1
check "the replica has it" lists demo "$replica" s1
refuse "take a snapshot of the replica" "$another" weir snapshot create demo@s2 --store "$replica"
refuse "flush the replica" "$another" weir volume flush demo --remote --wait --store "$replica"
refuse "grow the replica" "$another" weir volume resize demo 128M --store "$replica"
refuse "shrink the replica" "$another" weir volume resize demo 32M --shrink --yes --store "$replica"
check "the primary has its size" prints '67108864 bytes' volume show demo
refuse "compact the replica" "$another" weir volume compact demo --to 99 --store "$replica"
refuse "flatten the replica" "$another" weir volume flatten demo --store "$replica"
check "the takeover of the replica is set in its store" weir volume set demo --takeover manual --store "$replica"
check "that of the replica" prints 'takeover +manual' volume show demo --store "$replica"
check "the primary is served" prints '^demo .*served by' volume list
check "the replica is not" prints '^demo .*replica' volume list --store "$replica"
check "nor shown as served" sh -c '! "$0" volume show demo --store "$1" | grep "served by"' "$weir" "$replica"

# The same store, spelled in other ways.
if [[ $primary == file://* ]]; then
    path=${primary#file://}
    ln -s "$path" "$work/link"
    for spelling in "$primary/" "file://$work/link" "file://${path%/*}/./${path##*/}"; do
        check "flushed through the process, as ${spelling##*/}" \
            weir volume flush demo --remote --wait --store "$spelling"
    done
    check "a snapshot through the process" weir snapshot create demo@s3 --store "file://$work/link"
    refuse "a deletion" 'is served by process' weir volume delete demo --yes --store "file://$work/link"
fi

# The replica goes, and nothing of the primary with it.
check "delete the replica" weir volume delete demo --yes --store "$replica"
check "the primary's journal is there" sh -c 'ls "$0"/volumes/*/journal' "$WEIR_DATA_DIR"
check "the primary goes on" io "write -P 3 1M 1M"
crash
start demo
check "and has everything after a crash" io "read -P 3 1M 1M"
stop
check "replicate once more, elsewhere" weir replicate demo "$replica-2"
check "delete that replica with the primary closed" weir volume delete demo --yes --store "$replica-2"
check "the primary's journal is there still" sh -c 'ls "$0"/volumes/*/journal' "$WEIR_DATA_DIR"

# A copy of the store has the volumes, their identities and histories, and not what only the journal here holds.
if [[ $primary == file://* ]]; then
    start demo
    check "everything is in the store" weir volume flush demo --remote --wait
    cp -a "${primary#file://}" "$work/copy"
    check "write what only the journal has" io "write -P 4 2M 1M"
    crash
    refuse "delete in the copy" 'was not closed and may hold' weir volume delete demo --yes --store "file://$work/copy"
    sleep 3
    check "delete in the copy by force" weir volume delete demo --yes --take-over --store "file://$work/copy"
    start demo
    check "the original has what its journal held" io "read -P 4 2M 1M"
    stop
fi

# A volume that another data directory of this host serves, and that this one served before.
start other --size 64M
check "write" io "write -P 1 0 1M"
stop
first=$WEIR_DATA_DIR
export WEIR_DATA_DIR=$work/second
start other
check "write in the second directory" io "write -P 2 0 1M"
export WEIR_DATA_DIR=$first
refuse "deleted from the first directory" 'is open on' weir volume delete other --yes
refuse "taken over" 'is open on' weir volume delete other --yes --take-over
check "the second directory goes on" io "write -P 3 0 1M"
check "and gets to the store" sh -c 'WEIR_DATA_DIR=$1 "$0" volume flush other --remote --wait' "$weir" "$work/second"
crash
refuse "deleted after a crash elsewhere" 'was not closed and may hold' weir volume delete other --yes
export WEIR_DATA_DIR=$work/second
check "deleted where its journal is" weir volume delete other --yes
export WEIR_DATA_DIR=$first
refuse "it is gone" 'no volume "?other' weir volume show other

# One damaged volume among others.
if [[ $primary == file://* ]]; then
    weir volume create good --size 64M >/dev/null
    weir volume create bad --size 64M >/dev/null
    id=$(weir volume show bad --output json | sed -n 's/^ *"id": "\(.*\)",$/\1/p')
    manifest=$(ls "${primary#file://}/$id/manifest/"*.json | tail -n 1)
    printf '{"format": 1' >"$manifest"
    listing=$(weir volume list 2>"$work/warnings")
    status=$?
    check "the exit code of a listing tells of damage" [ "$status" = 3 ]
    weir volume list --output json >"$work/listing.json" 2>/dev/null
    check "in JSON as well" [ "$?" = 3 ]
    check "which names the damaged one" jq -e '.[] | select(.name == "bad") | .error' "$work/listing.json"
    check "the others are listed" grep -E '^good .*closed' <<<"$listing"
    check "the damaged one too" grep -E '^bad .*unreadable' <<<"$listing"
    check "with what is wrong" grep "bad cannot be read: $id/manifest/" "$work/warnings"
    "$weir" serve --nbd-socket "$work/nbd.sock" >/dev/null 2>"$work/serve.log" &
    serving=$!
    processes+=("$serving")
    wait_on=$serving wait_log=$work/serve.log wait_until "serve listens" grep -q '^listening' "$work/serve.log"
    check "serve says so" grep "volume bad is not served: $id/manifest/" "$work/serve.log"
    uri="nbd+unix:///good?socket=$work/nbd.sock"
    check "and serves the others" io "write -P 1 0 1M"
    check "status tells" sh -c '"$0" status | grep "bad is not served"' "$weir"
    kill "$serving"
    wait "$serving"
    check "it ends in order" [ "$?" = 0 ]
fi
