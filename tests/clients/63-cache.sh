#!/usr/bin/env bash
# The cache of the store's objects on the local disk: filled, warm after a stop and after a kill, and never a wrong
# byte, whatever happens to its file.
. "$(dirname "$0")/_lib.sh"

prints() { "$weir" "${@:2}" >"$work/out" 2>&1 && grep -qE -- "$1" "$work/out" || { cat "$work/out"; return 1; }; }
holds() { qemu-img convert -f raw -O raw "$uri" "$work/back" && cmp "$work/pattern" "$work/back"; }
# cached NAME: a number of what the process says of the cache.
cached() { "$weir" status --output json | sed -n '/"cache": {/,/}/s/.*"'"$1"'": \([0-9]*\).*/\1/p' | head -n 1; }
cached_bytes() { [ "$(cached bytes)" -ge "$1" ] || { echo "$(cached bytes) of $1 bytes"; return 1; }; }
no_misses() { [ "$(cached misses)" = 0 ] && [ "$(cached hits)" -gt 0 ] || { "$weir" status --output json; return 1; }; }
damaged() { [ "$(cached damaged)" -gt 0 ] || { "$weir" status --output json; return 1; }; }
# All of the volume is in the cache: what a queue had no room for comes with the next look.
fills() {
    holds || return 1
    wait_for_bytes=$((32 << 20))
    cached_bytes "$wait_for_bytes"
}
file=$WEIR_DATA_DIR/cache/blocks
head -c 32M /dev/urandom >"$work/pattern"

refuse "too small a cache" 'a cache of 1048576 bytes is too small' "$weir" up demo --size 32M --cache 1M
refuse "no size" 'neither "auto", "off" nor a size' "$weir" up demo --size 32M --cache much

if [ -z "$test_store" ]; then
    start demo --size 32M
    check "none where the store is on the same disk" prints '"none_because": "the store is on the same disk"' \
        status --output json
    silent() { ! prints 'cache:' status; }
    check "nor a line of it" silent
    stop
fi
start demo --size 32M --cache 96M
check "write" qemu-img convert -n -f raw -O raw "$work/pattern" "$uri"
check "all of it in the store" "$weir" volume flush demo --remote --wait
stop
# A new process, which reads objects.
start demo --cache 96M
check "what is read is cached" wait_until "all of it is in the cache" fills
check "status says so" prints 'cache: 32\.0 MiB of [0-9.]+ MiB on the local disk' status
# Not through a pipe: grep would end before curl has written all.
measured() {
    curl -sS --unix-socket "$WEIR_DATA_DIR"/control/*.sock http://weir/metrics >"$work/metrics" &&
        grep -E "$1" "$work/metrics" || { grep cache "$work/metrics"; return 1; }
}
check "so do the metrics" measured '^weir_cache_bytes 33554432(\.0)?$'
stop
start demo --cache 96M
check "after a stop nothing is read from the store" holds
check "not one look was in vain" no_misses
crash
# Memory holds less than the volume, so that what another size of the cache lacks is read from the store.
start demo --cache 96M --memory 64M
is_known() { ! "$weir" status --output json | grep -q recovered_permille; }
known() { wait_until "all of it is known" is_known; }
check "after a kill the file is read anew" known
check "and all is there" holds
check "again not one look was in vain" no_misses

# Shown, and given other sizes while it is in use.
check "it is shown" prints 'hit ratio +100\.0 %' cache show
check "so is what the volume has of it" prints 'demo +[0-9]+ bands' cache show
refuse "a size beyond the disk" 'leaves less than 256.0 MiB to journals' "$weir" cache resize 900P
refuse "removing what is in use" 'has the cache of .* open' "$weir" cache destroy --yes
check "another size" prints 'which says 96M: set' cache resize 128M
check "all is read all the same" holds
check "and cached anew" wait_until "all of it is in the cache" fills
check "a map of it" curl -sSf --unix-socket "$WEIR_DATA_DIR"/control/*.sock -o "$work/map.png" \
    http://weir/v1/cache/map
check "is a picture" [ "$(head -c 4 "$work/map.png" | tail -c 3)" = PNG ]
check "turned off while in use" prints 'no cache: it is turned off' cache resize off
check "all is read from the store" holds
check "turned on again it has what it had" prints 'and holds 3[0-9.]+ MiB' cache resize 128M
check "its old size again" prints 'has it so as well' cache resize 96M
check "filled again" wait_until "all of it is in the cache" fills

# A second process in the same data directory.
"$weir" up other --size 32M --cache 96M >"$work/other.out" 2>"$work/other.log" </dev/null &
processes+=($!)
check "another process serves without it" wait_until "it serves" grep '^serving ' "$work/other.log"
check "and says why" grep -q "serving without a cache on the local disk.*is locked" "$work/other.log"
kill "${processes[-1]}" && wait "${processes[-1]}"
stop

# Every seventh block of the file is other bytes, as of a disk that lies.
for ((block = 300; block < 8000; block += 7)); do
    printf 'damage' | dd of="$file" bs=1 seek=$((block * 4096 + 1000)) conv=notrunc status=none
done
start demo --cache 96M
check "damaged blocks are read from the store" holds
check "and counted" damaged
stop
truncate --size=20M "$file"
start demo --cache 96M
check "a file that was cut off is no obstacle" holds
stop
printf 'no superblock' | dd of="$file" conv=notrunc status=none
printf 'no superblock' | dd of="$file" seek=8 conv=notrunc status=none
start demo --cache 96M
check "nor is one that is no cache" holds
check "it is begun anew, and that is said" grep -q "could not be used and begins empty" "$work/weir.log"
stop
start demo --cache 128M
check "another size begins anew" grep -q "it had another size" "$work/weir.log"
check "and all is read" holds
stop
check "the file is shown without a process" prints 'closed in order' cache show
check "it is removed" "$weir" cache destroy --yes
refuse "there is none then" 'there is no cache in' "$weir" cache show
check "it is made beforehand" "$weir" cache create 128M
start demo --cache 128M --cache-share 5% --cache-wear 500G --memory 64M
check "that one is used" holds
not_more() {
    sleep 2
    [ "$(cached bands)" -le 25 ] && [ "$(cached bands)" -gt 0 ] || { "$weir" cache show; return 1; }
}
check "up to its share" not_more
check "which is shown" prints ' 5 %' cache show
check "as is the limit on wear" prints '500\.0 GiB a day' cache show
refuse "a share of nothing" 'is no share: give 1 to 100 percent' "$weir" volume limit demo --cache-share 0%
check "another share" prints '10 % of the cache' volume limit demo --cache-share 10%
check "is shown at once" prints ' 10 %' cache show
check "a limit on operations" prints '10 % of the cache' volume limit demo --iops 90000
check "leaves the share as it is" prints ' 10 %' cache show
check "as volume show says" prints 'limits .*90000/s.* 10 % of the cache' volume show demo
check "the share is taken away" prints 'operations 90000/s' volume limit demo --cache-share none
check "and nothing is limited" "$weir" volume limit demo --none
check "so that all of it fits" wait_until "all of it is in the cache" fills
stop
start demo --cache off
check "turned off it is not used" prints '"none_because": "it is turned off"' status --output json
check "and all is read still" holds
stop

# Warmed: nobody has read it before.
rm -r "$WEIR_DATA_DIR/cache"
refuse "warm what nobody serves" 'volume "demo" is not served by this process' "$weir" volume warm demo
start demo --cache off
refuse "warm without a cache" 'because it is turned off; where no other .* .weir cache resize SIZE. gives it one now' \
    "$weir" volume warm demo
stop
start demo --cache 8M
refuse "warm more than the cache holds" 'of the cache on the local disk, and that holds .*--range FROM..TO' \
    "$weir" volume warm demo
stop
start demo --cache 96M
refuse "warm what is beyond the volume" 'goes beyond the volume' "$weir" volume warm demo --range 1M..33M
refuse "warm no range" 'is no range: give it as FROM..TO' "$weir" volume warm demo --range 1M
check "warm a range" prints '^demo: [89]\.[0-9] MiB warmed, 0 B were there already; [0-9]+ objects? read in ' \
    volume warm demo --range 8M..16M
check "and no more" [ "$(cached bytes)" -lt $((10 << 20)) ]
for _ in 1 2 3 4; do "$weir" volume warm demo --range 16M..24M >>"$work/warm.log" 2>&1 & done
wait $(jobs -p | tail -n 4)
warmings() { grep -cE 'warmed, |warms a volume already' "$work/warm.log"; }
check "of four at once none is in another's way" [ "$(warmings)" = 4 ]
check "warm the rest" prints '^demo: 1[5-7]\.[0-9] MiB warmed, 1[5-7]\.[0-9] MiB were there already; ' volume warm demo
check "all of it is in the cache" cached_bytes $((32 << 20))
check "it is read from there" holds
check "without one look in vain" no_misses
check "warmed again it costs nothing" prints '"requests": 0$' volume warm demo --output json
check "take a snapshot" "$weir" snapshot create demo@cut
check "its blocks are the same" prints '^demo@cut: 0 B warmed, 3[0-9]\.[0-9] MiB were there already; 0 objects' \
    volume warm demo@cut
refuse "warm a snapshot that is not there" 'no snapshot "?none' "$weir" volume warm demo@none
stop

# Encrypted: nothing of a volume is in the file.
mark="marked plaintext of this test: $$-$RANDOM."
while :; do echo "$mark $RANDOM$RANDOM$RANDOM"; done | head -c 32M >"$work/pattern"
shows() { grep -qaF -- "$mark" "$file"; }
start plain --size 32M --cache 96M
check "write a mark to a plain volume" qemu-img convert -n -f raw -O raw "$work/pattern" "$uri"
check "flush it" "$weir" volume flush plain --remote --wait
stop
start plain --cache 96M
check "it is cached" wait_until "all of it is in the cache" fills
stop
check "it is in the file, so the search works" shows
rm -r "$WEIR_DATA_DIR/cache"
head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >"$work/keys"
chmod 600 "$work/keys"
export WEIR_KEY_FILE=$work/keys
start secret --size 32M --cache 96M --encrypt
check "write it to an encrypted one" qemu-img convert -n -f raw -O raw "$work/pattern" "$uri"
check "flush that" "$weir" volume flush secret --remote --wait
stop
start secret --cache 96M
check "that is cached" wait_until "all of it is in the cache" fills
crash
check "the mark is not in the file" [ "$(shows && echo shown)" = "" ]
start secret --cache 96M
check "its file is read anew" known
check "and it is read from there" holds
check "without one look in vain" no_misses
stop

# A disk of the cache's own that hangs: the volumes are served without it, and with it once it answers.
if [ "$(id -u)" != 0 ] || ! losetup -f >/dev/null 2>&1; then
    skip "a cache whose disk hangs: needs root and loop devices"
    exit 0
fi
rm -r "$WEIR_DATA_DIR/cache"
truncate -s 512M "$work/disk.img"
mkfs.ext4 -q "$work/disk.img"
loop=$(losetup -f --show "$work/disk.img")
loops+=("$loop")
mkdir "$WEIR_DATA_DIR/cache"
mount "$loop" "$WEIR_DATA_DIR/cache"
mounts+=("$WEIR_DATA_DIR/cache")
start plain --cache 96M
stop
fsfreeze -f "$WEIR_DATA_DIR/cache"
start plain --cache 96M
# It ends with another code than 0 where something is degraded.
late() { { "$weir" status --output json || true; } | grep -q '"none_because": "its disk has not answered yet'; }
check "the start does not wait for the disk of the cache" late
check "the volume is read from the store" holds
check "and written" qemu-io -f raw "$uri" -c "write -P 3 0 64k" -c flush
fsfreeze -u "$WEIR_DATA_DIR/cache"
there() { [ "$(cached capacity_bytes)" -gt 0 ]; }
eventually "the cache is used once its disk answers" there
stop

# Ends the server while a disk hangs. The kernel cannot let go of a process with a thread that waits for that disk, so
# that it is a zombie until then.
ends_beside_it() {
    kill -TERM "$weir_pid"
    wait_seconds=40 wait_until "the server ends" has_ended "$weir_pid" && ok "$1"
}
# Once its disk answers: how it ended.
ended_in_order() {
    wait "$weir_pid"
    [ $? = 0 ] && ok "$1" || not_ok "$1" "$(cat "$work/weir.log")"
    weir_pid=
}

# One that hangs while it is in use: its writes must not take what the journal needs.
rm "$WEIR_DATA_DIR/cache/blocks"
start plain --cache 96M --memory 64M
fsfreeze -f "$WEIR_DATA_DIR/cache"
check "volumes are read" nbdcopy "$uri" null:
"$weir" volume warm plain >"$work/warm.out" 2>&1 &
warming=$!
processes+=("$warming")
sleep 1
check "and written and synced" timeout 20 qemu-io -f raw "$uri" -c "write -P 4 0 64k" -c flush -c "read -P 4 0 64k"
refuse "another size is refused while it hangs" 'does not answer' timeout 30 "$weir" cache resize 64M
check "without it all goes on" timeout 30 "$weir" cache resize off
check "which is said" prints '"none_because": "it is turned off"' status --output json
check "volumes are written still" timeout 20 qemu-io -f raw "$uri" -c "write -P 5 0 64k" -c flush
ends_beside_it "nor does the end wait for its disk in use"
fsfreeze -u "$WEIR_DATA_DIR/cache"
ended_in_order "which is one in order"
wait "$warming"

# One that hangs while the start opens it.
fsfreeze -f "$WEIR_DATA_DIR/cache"
start plain --cache 96M
refuse "what waits is said" 'the cache on the local disk is being opened, for' timeout 30 "$weir" cache resize off
refuse "who has it as well" "process $weir_pid has the cache of .* open: it is being opened" \
    timeout 30 "$weir" cache destroy --yes
{ "$weir" status || true; } >"$work/out"
check "the status says so" grep -q 'cache: it is being opened, for' "$work/out"
ends_beside_it "nor does the end wait for its disk"
first=$weir_pid
start plain --cache off
check "the next one serves beside what is left of it" qemu-io -f raw "$uri" -c "read -P 5 0 64k"
stop
fsfreeze -u "$WEIR_DATA_DIR/cache"
weir_pid=$first
ended_in_order "the first one ended in order as well"
