# shellcheck shell=bash
# Waiting, for the client scripts, the campaigns and the S3 servers. Whoever sources this has `not_ok`.

# wait_until WHAT COMMAND...: until the command succeeds. When it has not within 60 s, that is a failure, which says
# WHAT was waited for and what the command said last: whatever follows would judge something else. Set for one call:
#   wait_seconds=N   the limit
#   wait_on=PID      the process that brings it: when it has ended and the command still fails, nothing will come
#   wait_log=FILE    shown with the failure, in place of what the command said
wait_until() {
    local what=$1 limit=${wait_seconds:-60} output why=
    local end=$((SECONDS + limit))
    shift
    while ! output=$("$@" 2>&1); do
        if [ -n "$why" ]; then
            [ -z "${wait_log:-}" ] || output=$(cat "$wait_log" 2>&1)
            not_ok "$what: $why" "$output"
            return 1
        fi
        # What is found here counts only if the command fails once more: a process may bring it and end meanwhile.
        if ((SECONDS >= end)); then
            why="not within $limit s"
        elif [ -n "${wait_on:-}" ] && has_ended "$wait_on"; then
            why="process $wait_on ended before"
        else
            sleep 0.05
        fi
    done
}

# eventually WHAT COMMAND...: the same as a check, which counts.
eventually() { wait_until "$@" && ok "$1"; }

# has_ended PID: whether that process has ended, also if nobody has waited for it yet.
has_ended() { ! grep -q '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$1/status" 2>/dev/null; }

# listens PORT: whether something accepts connections there, on loopback.
listens() { (: >"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
