#!/usr/bin/env bash
# A service that runs as a user of its own, and an administrator who works beside it as root.
. "$(dirname "$0")/_lib.sh"

[ "$(id -u)" = 0 ] || { skip "only root makes files that others cannot read"; exit 0; }
command -v setpriv >/dev/null || { skip "setpriv is not installed"; exit 0; }
unset WEIR_STORE # the embedded store, which both write to
# Another user must get to the program and to the data directory.
cp "$weir" "$work/weir" && chmod 755 "$work/weir" && chmod 711 "$work"
weir=$work/weir
mkdir -m 700 "$WEIR_DATA_DIR" && chown nobody "$WEIR_DATA_DIR"
service=(setpriv --reuid nobody --clear-groups --inh-caps=-all --)
"${service[@]}" test -x "$weir" || { skip "another user does not get to $work"; exit 0; }
serve() {
    : >"$work/weir.log"
    "${service[@]}" "$weir" serve >"$work/weir.out" 2>"$work/weir.log" </dev/null &
    weir_pid=$!
    wait_until "the service listens" grep -q '^listening at ' "$work/weir.log"
}
none_of_root() { ! find "$WEIR_DATA_DIR" -user root | grep .; }

serve
check "create a volume as root" "$weir" volume create byroot --size 64M
truncate -s 1M "$work/image"
check "import one as root" "$weir" volume import "$work/image" imported
check "write to one as root" "$weir" up another --size 64M -- sh -c 'qemu-io -f raw "$WEIR_URI" -c "write 0 1M"'
check "a snapshot as root" "$weir" snapshot create another@cut
check "a clone as root" "$weir" volume clone another@cut clone
check "nothing in the data directory is root's" none_of_root
stop
check "it has nothing of root's" none_of_root
serve
for volume in byroot imported another clone; do
    check "the service serves $volume" sh -c '"$0" volume list | grep -q "^$1 .*served by"' "$weir" "$volume"
done
check "and takes writes" qemu-io -f raw "nbd+unix:///byroot?socket=$WEIR_DATA_DIR/nbd.sock" -c "write 0 1M"
stop
