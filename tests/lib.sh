# shellcheck shell=bash
# What the campaigns share: a temporary directory, served volumes, disks attached through nbdfuse and a
# loop device, and an end that leaves nothing running, mounted or attached.
#
#   WEIR_BIN        the binary (target/release/weir of this checkout)
#   TMPDIR          where the temporary directory is made (/var/tmp)
#   WEIR_KEEP=1     leave the temporary directory of a run that failed
#
# With `--store s3://bucket/prefix` (see `take_store`) the volumes live there, below a prefix of the run's own; endpoint
# and credentials come from the AWS_* variables.
#
# With `--record` the verdict becomes a run of every goal that is measured by this script (tests/record.sh).
#
# A run prints what it does with the seconds since its start, `ok - ` or `not ok - ` for each check, and
# ends with one line that begins with `verdict`. What cannot run here says `skip - NAME: reason`; with
# CI=true that is a failure.
set -uo pipefail

# A mount namespace of our own: nobody else's namespace then holds a copy of our mounts, which would keep
# them busy, and we let go of the copies of theirs.
if [ -z "${CAMPAIGN_NAMESPACE:-}" ] && unshare --mount true 2>/dev/null; then
    export CAMPAIGN_NAMESPACE=1
    exec unshare --mount --propagation private -- bash "$0" "$@"
elif [ -n "${CAMPAIGN_NAMESPACE:-}" ]; then
    awk '$(NF-2) ~ /^fuse/ || $(NF-1) ~ "^/dev/loop" { print $5 }' /proc/self/mountinfo | sort -r \
        | while read -r place; do umount -l "$place"; done
fi
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$repository/tests/record.sh"
# The script that reads this file sees its arguments without --record.
take_record "$@"
set -- "${arguments[@]}"
weir=${WEIR_BIN:-$repository/target/release/weir}
weir=$(readlink -f "$weir" || echo "$weir")
keep=${WEIR_KEEP:-}
unset "${!WEIR_@}"
# A lost disk is a lost holder: whoever takes its volume over waits for its lease.
export WEIR_LEASE=3
export PATH="/usr/bin:$PATH:/usr/sbin:/sbin:$HOME/.cargo/bin:$repository/target/tools/bin"
export PYTHONDONTWRITEBYTECODE=1 LC_ALL=C
script=$(basename "$0")
tools=$repository/tests/campaigns
python=/usr/bin/python3

passed=0
failed=0
work=
weir_pid=
weir_log=
declare -A daemons=()
fuse_pid=
loop=
uri=
processes=()

say() { printf '[%5d] %s\n' "$SECONDS" "$*"; }
ok() {
    passed=$((passed + 1))
    echo "ok - $script: $*"
}
not_ok() {
    failed=$((failed + 1))
    echo "not ok - $script: $1"
    [ -n "${2:-}" ] && printf '%s\n' "$2" | tail -n 40 | sed 's/^/    /'
    return 0
}

# die MESSAGE [DETAILS]: a failure after which the rest makes no sense.
die() {
    not_ok "$1" "${2:-}"
    exit 1
}

# check NAME COMMAND...: the command must succeed; returns whether it did.
check() {
    local name=$1 output
    shift
    if output=$("$@" 2>&1); then
        ok "$name"
    else
        not_ok "$name" "$output"
        return 1
    fi
}

# refuse NAME COMMAND...: the command must fail; for negative controls.
refuse() {
    local name=$1 output
    shift
    if output=$("$@" 2>&1); then
        not_ok "$name" "it succeeded: $output"
        return 1
    fi
    ok "$name"
    printf '%s\n' "$output" | tail -n 3 | cut -c 1-300 | sed 's/^/    /'
}

. "$repository/tests/wait.sh"

skip_all() {
    if [ "${CI:-}" = true ]; then
        not_ok "$1 (nothing may be missing in CI)"
        exit 1
    fi
    echo "skip - $script: $1"
    exit 0
}

# requires COMMAND...: skips where one is missing, or where disks cannot be attached.
requires() {
    local tool
    [ -x "$weir" ] || die "there is no $weir; build it, or name it in WEIR_BIN"
    [ "$(id -u)" = 0 ] || skip_all "needs root"
    [ -c /dev/fuse ] || skip_all "needs /dev/fuse"
    losetup -f >/dev/null 2>&1 || skip_all "needs loop devices"
    for tool in "$@"; do
        command -v "$tool" >/dev/null || skip_all "$tool is not installed"
    done
}

# Ends everything, in the order in which it stands on each other, whatever state it is in.
end() {
    local status=$? entry
    trap - EXIT
    for entry in "${processes[@]}"; do kill -KILL "$entry" 2>/dev/null; done
    [ -n "${proxy_pid:-}" ] && { kill -KILL "$proxy_pid"; wait "$proxy_pid"; } 2>/dev/null
    if declare -F end_more >/dev/null; then end_more; fi
    abandon_all
    crash
    for entry in "${processes[@]}"; do wait "$entry" 2>/dev/null; done
    if [ -n "$work" ]; then
        mountpoint -q "$WEIR_DATA_DIR/store" && umount "$WEIR_DATA_DIR/store"
        if [ -n "$keep" ] && [ "$failed" != 0 ]; then
            echo "kept: $work"
        else
            rm -rf --one-file-system "$work"
        fi
    fi
    [ "$status" = 0 ] && [ "$failed" != 0 ] && status=1
    exit "$status"
}

# begin: makes the temporary directory. Call it once, after `requires`.
begin() {
    trap end EXIT
    trap 'echo "interrupted"; exit 130' INT TERM HUP
    work=$(mktemp -d "${TMPDIR:-/var/tmp}/weir-$script.XXXXXX")
    export WEIR_DATA_DIR=$work/data
    say "$("$weir" --version), $(uname -r), $(nproc) cpus, work in $work"
}

# verdict TEXT: the last line. `record_as` is the measure, where it is not the script's name.
verdict() {
    local word=passed
    record "${record_as:-$script}${store_url:+:${TEST_S3_SERVER:-s3}}" "$((passed + failed))" "$failed" "$*; $SECONDS s"
    [ "$failed" = 0 ] || word=FAILED
    echo "verdict: $script $word: $*, $passed checks passed, $failed failed, $SECONDS s"
    [ "$failed" = 0 ] && [ "$record_failed" = 0 ]
}

# number NAME VALUE: an option's value must be a number.
number() {
    [[ "$2" =~ ^[0-9]+$ ]] || { echo "error: $1 takes a number, not '$2'" >&2; exit 2; }
}

# ---- the daemon ----

# launch NAME FLAGS...: begins to serve a volume; sets weir_pid and weir_log.
launch() {
    weir_log=$work/$1.log
    : >"$weir_log"
    "$weir" up "$@" >/dev/null 2>"$weir_log" </dev/null &
    weir_pid=$!
    daemons[$weir_pid]=$weir_log
}

# wait_for_uri: until what was launched serves; sets uri. Fails with what it said where it ended instead.
wait_for_uri() {
    local i
    uri=
    for ((i = 0; i < 2400; i++)); do
        uri=$(sed -n 's/^serving //p' "$weir_log")
        [ -n "$uri" ] && return 0
        kill -0 "$weir_pid" 2>/dev/null || break
        sleep 0.05
    done
    cat "$weir_log"
    return 1
}

# start NAME FLAGS...: serves a volume in the background; sets weir_pid, weir_log and uri.
start() {
    launch "$@"
    wait_for_uri >/dev/null || die "weir up $* does not serve" "$(cat "$weir_log")"
}

# stop [PID]: ends a daemon in order; it must exit with 0.
stop() {
    local pid=${1:-$weir_pid} status
    kill -TERM "$pid"
    wait "$pid"
    status=$?
    [ "$status" = 0 ] || not_ok "weir up ends with 0" "$status: $(cat "${daemons[$pid]}")"
    unset "daemons[$pid]"
}

# crash [PID...]: kill -9 of daemons, in one call; of all without an argument.
crash() {
    local pid
    [ $# -gt 0 ] || set -- "${!daemons[@]}"
    [ $# -gt 0 ] || return 0
    kill -KILL "$@" 2>/dev/null
    for pid; do
        wait "$pid" 2>/dev/null
        unset "daemons[$pid]"
    done
}

# ---- the store ----

store_url=
proxy_port=
s3=$repository/tests/s3

# take_store URL: the value of --store.
take_store() {
    [[ "$1" =~ ^s3://[^/]+ ]] || { echo "error: --store takes s3://bucket/prefix, not '$1'" >&2; exit 2; }
    [ -n "${AWS_ENDPOINT_URL:-}" ] || { echo "error: --store needs AWS_ENDPOINT_URL" >&2; exit 2; }
    store_url=${1%/}/$script-$(date +%s)-$$
}

# Makes the store one that can be made to refuse writes, before the first start: a mount of its own for the one in the
# data directory, a proxy in front of an S3 service on this machine.
mount_store() {
    if [ -n "$store_url" ]; then
        export WEIR_STORE=$store_url
        say "store $store_url at $AWS_ENDPOINT_URL"
        [[ "$AWS_ENDPOINT_URL" =~ ^http://127\.0\.0\.1:([0-9]+)/?$ ]] || {
            say "the service is not on 127.0.0.1: there are no outages in this run"
            return 0
        }
        proxy_port=$("$python" -c 'import socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
        "$python" "$s3/fault_proxy.py" serve "$proxy_port" "${BASH_REMATCH[1]}" </dev/null &
        proxy_pid=$!
        wait_on=$proxy_pid wait_until "the proxy in front of the store listens" listens "$proxy_port" || exit 1
        export AWS_ENDPOINT_URL=http://127.0.0.1:$proxy_port
        return 0
    fi
    mkdir -p "$WEIR_DATA_DIR/store"
    chmod 700 "$WEIR_DATA_DIR" "$WEIR_DATA_DIR/store"
    mount --bind "$WEIR_DATA_DIR/store" "$WEIR_DATA_DIR/store" || die "mount --bind of the store"
}
store_fails() {
    local until=$((SECONDS + 60))
    if [ -z "$store_url" ]; then
        # It is refused while a file below it is open for writing: an upload under way.
        while ((SECONDS < until)); do
            mount -o remount,bind,ro "$WEIR_DATA_DIR/store" 2>/dev/null && return
            sleep 0.002
        done
        not_ok "remount,ro"
    elif [ -n "$proxy_port" ]; then
        "$python" "$s3/fault_proxy.py" set "$proxy_port" busy=1 || not_ok "the store fails"
    fi
}
store_works() {
    if [ -z "$store_url" ]; then
        mount -o remount,bind,rw "$WEIR_DATA_DIR/store" || not_ok "remount,rw"
    elif [ -n "$proxy_port" ]; then
        "$python" "$s3/fault_proxy.py" set "$proxy_port" || not_ok "the store works"
    fi
}

# log_of ID: where the objects of a volume are, for the functions below and for logger.py.
log_of() { echo "${store_url:-$WEIR_DATA_DIR/store}/$1/log"; }

# list_objects PLACE: their names, sorted. remove_object PLACE NAME: one of them, as if it had never been uploaded.
list_objects() {
    local bucket
    case $1 in
        s3://*)
            bucket=${1#s3://}
            "$python" "$s3/client.py" list "${bucket%%/*}" "${bucket#*/}/" | sed 's|.*/||'
            ;;
        *) ls "$1" ;;
    esac
}
remove_object() {
    local bucket
    case $1 in
        s3://*)
            bucket=${1#s3://}
            "$python" "$s3/client.py" delete "${bucket%%/*}" "${bucket#*/}/$2"
            ;;
        *) rm "$1/$2" ;;
    esac
}

# ---- a disk of the kernel's: nbdfuse and a loop device ----

fuse_shows_disk() { mountpoint -q "$work/disk/disk" && [ -s "$work/disk/disk" ]; }
loop_is_free() { ! losetup -n -O BACK-FILE "$loop" 2>/dev/null | grep -qF "$work"; }

# attach [URI]: a loop device over the export; sets fuse_pid and loop.
attach() {
    local from=${1:-$uri}
    mkdir -p "$work/disk"
    : >>"$work/disk/disk"
    nbdfuse -C 1 "$work/disk/disk" "$from" >"$work/nbdfuse.log" 2>&1 </dev/null &
    fuse_pid=$!
    wait_on=$fuse_pid wait_log=$work/nbdfuse.log wait_until "nbdfuse shows the disk" fuse_shows_disk || exit 1
    loop=$(losetup -f --show --direct-io=on "$work/disk/disk") || die "losetup failed"
}

# detach: in order, with everything written.
detach() {
    if mountpoint -q "$work/fs"; then umount "$work/fs" || not_ok "umount"; fi
    losetup -d "$loop"
    loop=
    umount "$work/disk/disk" || not_ok "umount of nbdfuse"
    wait "$fuse_pid"
    fuse_pid=
}

# abandon: after a crash of what stands below; nothing of it may be left. (The shell may say that nbdfuse
# was aborted: that is how it ends now and then when its server is gone.)
abandon() {
    if [ -n "$fuse_pid" ]; then
        kill -KILL "$fuse_pid" 2>/dev/null
        wait "$fuse_pid" 2>/dev/null
        fuse_pid=
    fi
    mountpoint -q "$work/fs" && { umount "$work/fs" || umount -l "$work/fs"; } 2>/dev/null
    if [ -n "$loop" ]; then
        losetup -d "$loop" 2>/dev/null
        wait_seconds=10 wait_until "the kernel lets go of $loop" loop_is_free
        loop=
    fi
    umount "$work/disk/disk" 2>/dev/null || umount -l "$work/disk/disk" 2>/dev/null
    return 0
}

abandon_all() {
    [ -n "$work" ] || return 0
    abandon
}
