# shellcheck shell=bash
# Waiting, for the client scripts and the campaigns. Both have `not_ok`.

# wait_until WHAT COMMAND...: until the command succeeds. When it has not within 60 s (wait_seconds), that is a failure,
# which says WHAT was waited for and what the command said last: whatever follows would judge something else.
wait_until() {
    local what=$1 limit=${wait_seconds:-60} output
    local end=$((SECONDS + limit))
    shift
    while ! output=$("$@" 2>&1); do
        if ((SECONDS >= end)); then
            not_ok "$what: not within $limit s" "$output"
            return 1
        fi
        sleep 0.05
    done
}
