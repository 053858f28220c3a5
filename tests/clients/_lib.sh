# shellcheck shell=bash
# What the client scripts share: a temporary directory, a served volume, checks that count, and an end
# that leaves nothing running, mounted or attached. Each check prints one line: `ok - NAME`,
# `not ok - NAME` with the output after it, or `skip - NAME: reason`. The script ends with 1 where one failed.
set -uo pipefail
export PATH="$PATH:/usr/sbin:/sbin"
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
weir=${WEIR_TEST_BINARY:-$repository/target/release/weir}
test_store=${WEIR_TEST_STORE:-}
unset "${!WEIR_@}"
script=$(basename "$0" .sh)
# WEIR_TEST_STORE=URL: the volumes live there, below a prefix of this run's own, instead of in the data directory.
[ -z "$test_store" ] || export WEIR_STORE=${test_store%/}/$script-$(date +%s)-$$

work=$(mktemp -d "${TMPDIR:-/var/tmp}/weir-$script.XXXXXX")
export WEIR_DATA_DIR=$work/data
weir_pid=
uri=
processes=()
mounts=()
loops=()

end() {
    local status=$? entry
    [ ! -e "$work/failed" ] || status=1
    for ((i = ${#mounts[@]} - 1; i >= 0; i--)); do
        mountpoint -q "${mounts[i]}" && { umount "${mounts[i]}" || umount -l "${mounts[i]}"; }
    done 2>/dev/null
    for entry in "${loops[@]}"; do losetup -d "$entry" 2>/dev/null; done
    for entry in "${processes[@]}" $weir_pid; do
        kill -KILL "$entry" 2>/dev/null && wait "$entry" 2>/dev/null
    done
    rm -rf "$work"
    exit "$status"
}
trap end EXIT
trap 'exit 130' INT TERM HUP

ok() { echo "ok - $script: $1"; }
# A file says it, as this may be a subshell.
not_ok() {
    touch "$work/failed"
    echo "not ok - $script: $1"
    [ -n "${2:-}" ] && printf '%s\n' "$2" | tail -n 30 | sed 's/^/    /'
    return 0
}
skip() { echo "skip - $script: $1"; }
. "$repository/tests/wait.sh"

# check NAME COMMAND...: the command must succeed.
check() {
    local name=$1 output
    shift
    if output=$("$@" 2>&1); then ok "$name"; else not_ok "$name" "$output"; fi
}

# refuse NAME PATTERN COMMAND...: the command must fail and say something that matches. Any failure would match an empty
# pattern, that of a test which is broken as well.
refuse() {
    local name=$1 pattern=$2 output
    shift 2
    if [ -z "$pattern" ]; then
        not_ok "$name" "a refusal needs a pattern"
        return
    fi
    if output=$("$@" 2>&1); then
        not_ok "$name" "it succeeded: $output"
    elif grep -qE -- "$pattern" <<<"$output"; then
        ok "$name"
    else
        not_ok "$name" "nothing matches $pattern: $output"
    fi
}

# start NAME FLAGS...: serves a volume in the background; sets weir_pid and uri.
start() {
    : >"$work/weir.log"
    "$weir" up "$@" >"$work/weir.out" 2>"$work/weir.log" </dev/null &
    weir_pid=$!
    wait_on=$weir_pid wait_log=$work/weir.log wait_until "weir up $* serves" grep '^serving ' "$work/weir.log" || exit 1
    uri=$(sed -n 's/^serving //p' "$work/weir.log")
}

# wait_for_export URI: until the process weir_pid serves it; without it the script ends.
wait_for_export() {
    wait_on=$weir_pid wait_log=$work/weir.log wait_until "$1 is served" nbdinfo --size "$1" || exit 1
}

# status_says CODE PATTERN: weir status ends with CODE, and says PATTERN.
status_says() { "$weir" status >"$work/status.log" 2>&1; [ $? = "$1" ] && grep -qE -- "$2" "$work/status.log"; }

# stop [SIGNAL]: ends the server in order; it must exit with 0. Not under `check`, which runs in a subshell: that has no
# such child, and would wait for nothing.
stop() {
    local status
    [ "$BASHPID" = "$$" ] || { echo "stop has no child to wait for in a subshell"; return 1; }
    kill "-${1:-TERM}" "$weir_pid"
    wait "$weir_pid"
    status=$?
    weir_pid=
    [ "$status" = 0 ] || not_ok "weir up ends with 0 after a signal" "$status: $(cat "$work/weir.log")"
}

# crash: kill -9.
crash() {
    kill -KILL "$weir_pid"
    wait "$weir_pid" 2>/dev/null
    weir_pid=
}

# free MEGABYTES: enough room in the temporary directory?
have_room() {
    [ "$(df --output=avail -m "$work" | tail -n 1)" -gt "$1" ]
}
