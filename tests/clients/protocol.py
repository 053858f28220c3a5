#!/usr/bin/python3
"""Asks an NBD export for every command with every flag, checks the bytes, and prints a line for each.

    protocol.py URI     `NAME<tab>RESULT`: ok, `not offered` where the server does not say that it takes the command or
                        the flag, or the errno of a refusal that the protocol asks for

Exits with 1 and a message where a result or a byte is wrong. The export must have 8 MiB or more; its first 8 MiB are
overwritten.
"""

import errno
import sys

import nbd

MIB = 1 << 20
SIZE = 8 * MIB


class Wrong(Exception):
    pass


class Checked:
    """An export, and what its first bytes should be."""

    def __init__(self, uri):
        self.nbd = nbd.NBD()
        # Flags and ranges that the server did not offer are for it to refuse.
        self.nbd.set_strict_mode(0)
        self.nbd.add_meta_context("base:allocation")
        self.nbd.connect_uri(uri)
        self.model = bytearray(SIZE)
        self.nbd.pwrite(bytes(SIZE), 0)

    def write(self, offset, data, flags=0):
        self.nbd.pwrite(data, offset, flags)
        self.model[offset:offset + len(data)] = data
        self.check(offset, len(data))

    def zero(self, offset, length, flags=0):
        self.nbd.zero(length, offset, flags)
        self.model[offset:offset + length] = bytes(length)
        self.check(offset, length)

    def trim(self, offset, length, flags=0):
        before = bytes(self.model[offset:offset + length])
        self.nbd.trim(length, offset, flags)
        # What is read afterwards is the server's choice.
        now = self.nbd.pread(length, offset)
        if any(a not in (b, 0) for a, b in zip(now, before)):
            raise Wrong(f"a trim of {length} at {offset} made bytes of its own")
        self.model[offset:offset + length] = now
        self.check(max(offset - 10, 0), length + 20)

    def check(self, offset, length):
        found = self.nbd.pread(length, offset)
        if found != self.model[offset:offset + length]:
            raise Wrong(f"{length} bytes at {offset} are not what was written")

    def status(self, offset, length, flags=0):
        found = []
        self.nbd.block_status(length, offset, lambda _context, _at, extents, _error: found.extend(extents) or 0, flags)
        lengths, kinds = found[::2], found[1::2]
        if not found or min(lengths) == 0 or (flags and (len(lengths) > 1 or lengths[0] > length)):
            raise Wrong(f"extents {found}")
        at = offset
        for length, kind in zip(lengths, kinds):
            part = self.model[at:at + length]
            if kind & 2 and any(part):
                raise Wrong(f"{length} bytes at {at} are said to be zeroes")
            at += length
        return kinds

    def refused(self, wanted, call):
        try:
            call()
        except nbd.Error as error:
            if error.errnum not in wanted:
                raise Wrong(f"refused with {error.errno}") from error
            return error.errno
        raise Wrong("it was taken")


def pattern(length, seed):
    return bytes((n * seed + n // 251) % 256 for n in range(length))


def rows(one):
    """Name, whether it is offered, and what is asked."""
    server, size = one.nbd, one.nbd.get_size()
    writes = not server.is_read_only()
    yield "READ", True, lambda: one.check(0, 2 * MIB)
    yield "READ, at any byte", True, lambda: one.check(4097, 333)
    yield "READ, DF", server.can_df(), lambda: server.pread(65536, 0, nbd.CMD_FLAG_DF)
    yield "READ, structured", server.get_structured_replies_negotiated(), lambda: structured(one)
    yield "READ past the end", True, lambda: one.refused([errno.EINVAL], lambda: server.pread(2, size - 1))
    yield "WRITE", writes, lambda: one.write(0, pattern(2 * MIB, 7))
    yield "WRITE, at any byte", writes, lambda: one.write(12345, pattern(777, 11))
    yield "WRITE, FUA", writes and server.can_fua(), lambda: one.write(8192, pattern(4096, 5), nbd.CMD_FLAG_FUA)
    yield "WRITE past the end", writes, lambda: one.refused(
        [errno.ENOSPC, errno.EINVAL], lambda: server.pwrite(b"xx", size - 1))
    yield "FLUSH", server.can_flush(), server.flush
    yield "TRIM", server.can_trim(), lambda: one.trim(MIB, MIB)
    yield "TRIM, at any byte", server.can_trim(), lambda: one.trim(1001, 5003)
    yield "TRIM, FUA", server.can_trim() and server.can_fua(), lambda: one.trim(65536, 4096, nbd.CMD_FLAG_FUA)
    yield "WRITE_ZEROES", server.can_zero(), lambda: one.zero(131072, 262144)
    yield "WRITE_ZEROES, at any byte", server.can_zero(), lambda: one.zero(300001, 70003)
    yield "WRITE_ZEROES, NO_HOLE", server.can_zero(), lambda: one.zero(400000, 4096, nbd.CMD_FLAG_NO_HOLE)
    yield "WRITE_ZEROES, FUA", server.can_zero() and server.can_fua(), lambda: one.zero(
        500000, 4096, nbd.CMD_FLAG_FUA)
    yield "WRITE_ZEROES, FAST_ZERO", server.can_fast_zero(), lambda: fast_zero(one)
    yield "CACHE", server.can_cache(), lambda: server.cache(65536, 0)
    told = server.can_meta_context("base:allocation")
    yield "BLOCK_STATUS", told, lambda: one.status(0, SIZE)
    yield "BLOCK_STATUS, REQ_ONE", told, lambda: one.status(4096, MIB, nbd.CMD_FLAG_REQ_ONE)
    yield "64 at a time", True, lambda: many(one)


def structured(one):
    parts = []
    one.nbd.pread_structured(65536, 4096, lambda data, at, _status, _error: parts.append((at, bytes(data))) or 0)
    found = b"".join(data for _, data in sorted(parts))
    # A hole is told without bytes.
    if len(found) == 65536 and found != one.model[4096:4096 + 65536]:
        raise Wrong("the chunks are not what was written")


def fast_zero(one):
    """Done, or refused with ENOTSUP: both are right."""
    try:
        one.zero(MIB, 65536, nbd.CMD_FLAG_FAST_ZERO)
    except nbd.Error as error:
        if error.errnum != errno.ENOTSUP:
            raise
        return error.errno
    return None


def many(one):
    cookies = []
    for n in range(64):
        data = pattern(4096, n + 1)
        cookies.append(one.nbd.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), 3 * MIB + n * 4096))
        one.model[3 * MIB + n * 4096:3 * MIB + (n + 1) * 4096] = data
    while cookies := [cookie for cookie in cookies if not one.nbd.aio_command_completed(cookie)]:
        one.nbd.poll(-1)
    one.check(3 * MIB, 64 * 4096)


def main(uri):
    one = Checked(uri)
    for name, offered, ask in rows(one):
        if not offered:
            print(f"{name}\tnot offered")
            continue
        try:
            said = ask()
        except (Wrong, nbd.Error) as error:
            sys.exit(f"{name}: {error}")
        print(f"{name}\t{said if isinstance(said, str) else 'ok'}")
    one.check(0, SIZE)
    one.nbd.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
