#!/usr/bin/env bash
# Every command of NBD with every flag, as libnbd sends them: to Weir, and through remote volumes of Weir to other
# servers.
# The results are the table of docs/operations/conformance.md: `61-protocol.sh --write` writes it anew.
. "$(dirname "$0")/_lib.sh"

page=$repository/docs/operations/conformance.md
columns=()
# ask COLUMN URI: one column of the table.
ask() {
    columns+=("$1")
    check "$1" sh -c '/usr/bin/python3 "$1/protocol.py" "$2" >"$3"' - "$(dirname "$0")" "$2" \
        "$work/column-${#columns[@]}"
}
wait_for_socket() { wait_on=$2 wait_until "$1 is there" test -S "$1" || exit 1; }

start disk --size 64M
ask "Weir" "$uri"
stop

# served_by COLUMN COMMAND...: a server on far.sock, and a remote volume of Weir over it.
served_by() {
    local column=$1
    shift
    rm -f "$work/far.sock"
    "$@" &
    processes+=("$!")
    wait_for_socket "$work/far.sock" "$!"
    start far --remote "nbd+unix:///${export_name:-}?socket=$work/far.sock"
    ask "$column" "$uri"
    stop
    # nbd-server in the foreground ends with its client.
    kill "${processes[-1]}" 2>/dev/null
    wait "${processes[-1]}" 2>/dev/null
}

truncate -s 64M "$work/disk.raw"
export_name=disk served_by "Weir, qemu-nbd" qemu-nbd --persistent --shared=8 --format=raw --export-name=disk \
    --discard=unmap --socket="$work/far.sock" "$work/disk.raw"
served_by "Weir, nbdkit" nbdkit --foreground --unix "$work/far.sock" memory 64M
served_by "Weir, nbdkit blocks" nbdkit --foreground --unix "$work/far.sock" --filter=blocksize-policy memory 64M \
    blocksize-minimum=4096 blocksize-error-policy=error
if command -v nbd-server >/dev/null; then
    cat >"$work/nbd-server.conf" <<EOF
[generic]
unixsock = $work/far.sock
allowlist = true
[disk]
exportname = $work/disk.raw
flush = true
fua = true
trim = true
EOF
    export_name=disk served_by "Weir, nbd-server" nbd-server -d -C "$work/nbd-server.conf" -p "$work/nbd-server.pid"
else
    skip "nbd-server is not installed"
fi
far_data=$work/far-data
rm -f "$work/far.sock"
"$weir" --data-dir "$far_data" up disk --size 64M --nbd-socket "$work/far.sock" >/dev/null 2>"$work/far.log" &
processes+=("$!")
wait_for_socket "$work/far.sock" "$!"
start far --remote "nbd+unix:///disk?socket=$work/far.sock"
ask "Weir, Weir" "$uri"
stop

# The table, a row for each command.
table() {
    local head='| command |' line='| --- |' column
    for column in "${columns[@]}"; do head+=" $column |" line+=" --- |"; done
    printf '%s\n%s\n' "$head" "$line"
    paste "$work"/column-* \
        | awk -F '\t' '{ row = "| " $1 " |"; for (i = 2; i <= NF; i += 2) row = row " " $i " |"; print row }'
}
written() { sed -n '/<!-- table -->/,/<!-- \/table -->/p' "$page" | grep '^|'; }
if [ "${1:-}" = --write ]; then
    { sed '/<!-- table -->/q' "$page"; table; sed -n '/<!-- \/table -->/,$p' "$page"; } >"$work/page"
    cat "$work/page" >"$page"
fi
table >"$work/table"
if [ "${#columns[@]}" = 6 ]; then
    check "the page has these results" diff <(written) "$work/table"
else
    skip "the page has these results: a server is missing"
fi
