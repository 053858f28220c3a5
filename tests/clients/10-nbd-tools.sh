#!/usr/bin/env bash
# nbdinfo, nbdcopy, qemu-img and qemu-io against a served volume.
. "$(dirname "$0")/_lib.sh"

start demo --size 2G
check "nbdinfo lists the export" nbdinfo --list "$uri"
size_is() { [ "$(nbdinfo --size "$1")" = "$2" ]; }
check "nbdinfo sees the size" size_is "$uri" $((2 << 30))
check "the empty name is the volume, too" size_is "${uri/demo?/?}" $((2 << 30))
refuse "another name is refused" "no such|does not exist|not found|no export|unknown" \
    nbdinfo --size "${uri/demo?/other?}"
is_hole() { nbdinfo --map "$uri" | grep -q '^ *0 *2147483648 *3 *hole,zero'; }
check "a new volume is one hole" is_hole

dd if=/dev/urandom of="$work/random" bs=1M count=1024 status=none
check "nbdcopy puts 1 GiB in" nbdcopy --flush "$work/random" "$uri"
nbdcopy "$uri" "$work/out" 2>"$work/err"
check "nbdcopy gets the same 1 GiB out" cmp -n $((1 << 30)) "$work/random" "$work/out"
rm -f "$work/out"

qemu-img create -q -f qcow2 "$work/image.qcow2" 2G
qemu-io -f qcow2 "$work/image.qcow2" -c "write -P 0x11 0 3M" -c "write -P 0x22 511M 1000k" \
    -c "write -z 1G 64M" -c "write -P 0x33 2147483136 512" >/dev/null
check "qemu-img converts a qcow2 in" qemu-img convert -n -O raw "$work/image.qcow2" "$uri"
check "qemu-img finds them equal" qemu-img compare -f qcow2 -F raw "$work/image.qcow2" "$uri"

qio() { qemu-io -f raw "$uri" "$@" | { ! grep -E "failed|error|differ"; }; }
check "qemu-io writes unaligned" qio -c "write -P 0xab 1000 777" -c "read -P 0xab 1000 777"
check "what lies beside is untouched" qio -c "read -P 0x11 0 1000" -c "read -P 0x11 1777 1000"
check "write zeroes" qio -c "write -z 5000 3333" -c "read -P 0 5000 3333" -c "read -P 0x11 8333 99"
check "discard reads as zeroes" qio -c "discard 1M 1M" -c "read -P 0 1M 1M" -c flush
check "FUA" qio -c "write -f -P 0x44 12345 54321" -c "read -P 0x44 12345 54321"
# QEMU refuses by itself what lies past the end: libnbd sends it when it is told not to look.
past_the_end() {
    /usr/bin/python3 - "$uri" <<'END'
import errno, nbd, sys
handle = nbd.NBD()
handle.set_strict_mode(0)
handle.connect_uri(sys.argv[1])
size = handle.get_size()
requests = {
    "read": (errno.EINVAL, lambda at: handle.pread(512, at)),
    "write": (errno.ENOSPC, lambda at: handle.pwrite(bytes(512), at)),
    "zero": (errno.ENOSPC, lambda at: handle.zero(512, at)),
    "trim": (errno.EINVAL, lambda at: handle.trim(512, at)),
    "cache": (errno.EINVAL, lambda at: handle.cache(512, at)),
}
for at in (size - 256, size, size + 4096, (1 << 63) - 512):
    for name, (expected, request) in requests.items():
        try:
            request(at)
        except nbd.Error as error:
            assert error.errnum == expected, f"{name} at {at}: {error}"
        else:
            sys.exit(f"{name} at {at} of {size} was not refused")
# The connection goes on, and nothing was written at the end.
assert handle.pread(256, size - 256) == b"\x33" * 256
END
}
check "past the end is refused, by every request" past_the_end

stop
start demo
check "it is all there after a restart" \
    qio -c "read -P 0xab 1000 777" -c "read -P 0x44 12345 54321" -c "read -P 0x33 2147483136 512"
stop
