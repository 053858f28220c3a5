# shellcheck shell=bash
# Runs the blocks of one page, which the script that sources this calls one after the other. In a mount namespace of its
# own where it is root: the directories of a service are the page's own there.
if [ "$(id -u)" = 0 ] && [ -z "${GUIDE_NAMESPACE:-}" ]; then
    export GUIDE_NAMESPACE=1
    exec unshare --mount --propagation private -- bash "$0"
fi
set -eEo pipefail
# Every command that is begun in the background is a process group of its own, to be ended as a terminal does.
set -m
not_ok() { printf '%s\n%s\n' "$1" "${2:-}"; }
. "$REPOSITORY/tests/wait.sh"
. "$GUIDE/prepare.sh"
current=
served=()
mounted=()

end() {
    local status=$? group
    set +e
    trap - EXIT
    [ "$status" = 0 ] || echo "block $current ended with $status"
    for group in "${served[@]}"; do kill -KILL -- "-$group"; done 2>/dev/null
    [ -z "$(type -t "clean_up_${NAME//-/_}")" ] || "clean_up_${NAME//-/_}"
    for group in "${mounted[@]}"; do umount -l "$group"; done 2>/dev/null
    exit "$status"
}
trap end EXIT
# Not at once: the command that is run gets the signal too.
trap 'exit 130' INT TERM

# serve FILE OUTPUT: runs the commands of a file in the background until they serve; ends what served before.
serve() {
    end_served
    (
        set +m
        . "$1"
    ) >"$2" 2>&1 </dev/null &
    served=("$!")
    wait_on=$! wait_log=$2 wait_until "it serves" grep -E '^(serving|listening at) ' "$2"
}
serve_block() {
    current=$1
    serve "$BLOCKS/$1" "$BLOCKS/$1.out"
    echo "$1" >>"$BLOCKS/done"
}
# As Ctrl-C does. It ends in order.
end_served() {
    local group
    for group in "${served[@]}"; do
        kill -INT -- "-$group"
        wait "$group" || { echo "what served ended with $?"; return 1; }
    done
    served=()
}
# compare RUN SHOWN: what a block printed is what the page shows.
compare() { /usr/bin/python3 "$GUIDE/alike.py" "$BLOCKS/$2" "$BLOCKS/$1.out" >"$BLOCKS/$2.out"; }
end_page() {
    current="(the end)"
    [ -z "$(type -t "finish_${NAME//-/_}")" ] || "finish_${NAME//-/_}"
    end_served
}

# A place of the system's that the page writes to is a directory of its own.
own() {
    local place
    for place; do
        mkdir -p "$HOME/own$place"
        [ -d "$place" ] || mkdir -p "$place"
        mount --bind "$HOME/own$place" "$place"
        mounted+=("$place")
    done
}

if [ -n "$(type -t "prepare_${NAME//-/_}")" ]; then
    current="(prepare)"
    "prepare_${NAME//-/_}" >"$BLOCKS/prepare.out" 2>&1 || { cat "$BLOCKS/prepare.out"; exit 1; }
fi
