# shellcheck shell=bash
# --record, for campaigns and benchmarks in bash: what was found becomes a run of every goal that is measured by it.
# See docs/evidence/README.md; bench/side_by_side/evidence.py is the same for Python.
#
#   take_record "$@"; set -- "${arguments[@]}"    takes --record out of the arguments
#   record MEASURE N VALUE [NOTE [LOW HIGH]]      does nothing without --record

record_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
record_load=$(cut -d ' ' -f 1 /proc/loadavg)
record_command=
recording=
record_failed=0
arguments=()

# take_record ARGUMENTS...: the others are left in `arguments`. The command is known as it would be typed in the
# repository, with the S3 server that tests/s3/with started for it.
take_record() {
    local argument
    arguments=()
    recording=
    for argument; do
        if [ "$argument" = --record ]; then recording=1; else arguments+=("$argument"); fi
    done
    record_command=$(realpath -s --relative-to="$record_root" "$0")
    [ -z "${TEST_S3_SERVER:-}" ] || record_command="tests/s3/with $TEST_S3_SERVER $record_command"
    record_command="$record_command ${arguments[*]}"
}

# The commit of the program that ran: as it says itself, or that of the tree where nothing else is known.
record_commit() {
    local said=
    [ -z "${weir:-}" ] || said=$("$weir" --version | sed -n 's/.*(\(.*\))$/\1/p')
    [ -n "$said" ] || said=$(git -C "$record_root" describe --always --dirty --exclude '*' 2>/dev/null)
    echo "$said"
}

# record MEASURE N VALUE [NOTE [LOW HIGH]]
record() {
    local interval=()
    [ -n "$recording" ] || return 0
    [ -z "${6:-}" ] || interval=(--low "$5" --high "$6")
    (cd "$record_root" && cargo run -q -p evidence -- record "$1" --n "$2" --value "$3" --load "$record_load" \
        --commit "$(record_commit)" --command "$record_command" --note="${4:-}" "${interval[@]}") && return
    echo "not recorded: $1"
    record_failed=1
}
