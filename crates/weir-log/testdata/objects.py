#!/usr/bin/env python3
"""Objects of versions 3 and 4 as docs/formats/object.md describes them, made without Weir.

Needs the packages blake3, cryptography and lz4. Run in its directory, it prints what the files hold:
    ./objects.py object > v3/object.hex; ./objects.py large > v3/large.txt
    ./objects.py packed > v4/object.hex
"""

import hashlib
import hmac
import struct
import sys
import textwrap

import lz4.block
from blake3 import blake3
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

STREAM, OPENING, SALT, VOLUME_KEY = b"0123456789abcdef", b"opening of epoch", b"\x5a" * 16, b"\x07" * 32
SEQUENCE, EPOCH, FRAME, BLOCK = 7, 2, 65536, 4096
DATA, DISCARD = 0, 2

TABLE = []
for number in range(256):
    for _ in range(8):
        number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
    TABLE.append(number)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def hkdf(info, length):
    key = hmac.new(b"weir seal 1", VOLUME_KEY, hashlib.sha256).digest()
    out = block = b""
    for count in range(1, -(-length // 32) + 1):
        block = hmac.new(key, block + info + bytes([count]), hashlib.sha256).digest()
        out += block
    return out[:length]


def placed(extents, data):
    """The payload: aligned extents first."""
    aligned, others, at = b"", b"", 0
    for offset, length, kind in extents:
        if kind != DATA:
            continue
        if offset % BLOCK == 0 and length % BLOCK == 0:
            aligned += data[at:at + length]
        else:
            others += data[at:at + length]
        at += length
    return aligned + others


def packed(block):
    """What is stored of a block, which stays as it is where it does not shrink by an eighth."""
    small = lz4.block.compress(block, store_size=False)
    return small if len(small) <= len(block) - len(block) // 8 else block


def encoded(extents, data, sealed, version=3):
    payload = placed(extents, data)
    names = STREAM + struct.pack("<QQ", SEQUENCE, EPOCH)
    cipher = AESGCM(hkdf(b"weir object 1" + names + SALT, 32))
    frames, sums, lens, body = b"", b"", b"", b""
    codec = 3 if version == 4 else 0
    for index in range(0, -(-len(payload) // FRAME)):
        raw = payload[index * FRAME:(index + 1) * FRAME]
        identity = names + struct.pack("<IIB", index, len(raw), codec)
        stored = own = b""
        for number in range(0, -(-len(raw) // BLOCK)):
            block = raw[number * BLOCK:(number + 1) * BLOCK]
            if codec == 3:
                block = packed(block)
                lens += struct.pack("<H", len(block))
            context = identity + struct.pack("<II", number, len(block))
            if sealed:
                stored += cipher.encrypt(struct.pack("<QI", number + 1, index), block, context)
            else:
                stored += block
                own += struct.pack("<I", crc32c(context + block))
        crc = crc32c(identity + (stored if sealed else own))
        frames += struct.pack("<IIIB3x", len(stored), len(raw), crc, codec)
        sums += own
        body += stored
    table = b"".join(struct.pack("<QQ", offset, length | kind << 56) for offset, length, kind in extents)
    tables = frames + table + sums + lens
    if len(sums) >= 64:
        tables += bytes(-(208 + len(tables)) % BLOCK)
    counts = struct.pack("<III", len(frames) // 16, len(extents), 0)
    head = struct.pack("<I", 208 + len(tables)) + STREAM + struct.pack("<QQ", EPOCH, SEQUENCE)
    head += struct.pack("<QQQQQII", 1, 40, 2, 43, 1 << 30, 0, 0) + counts + struct.pack("<I", sealed)
    head += SALT + blake3(SALT + tables).digest() + (hkdf(b"weir data key id 1", 16) if sealed else bytes(16))
    begin = b"WOBJ" + struct.pack("<HBB", version, 1, 0)
    tag = bytes(16)
    if sealed:
        tag = cipher.encrypt(b"\xff" * 12, b"", begin + bytes(4) + head + tag + OPENING + tables)
    rest = head + tag + OPENING + tables
    return begin + struct.pack("<I", crc32c(rest + bytes([1]) + struct.pack("<H", version))) + rest + body


def wrapped(found):
    print("\n".join(textwrap.wrap(found.hex(), 64)))


def main():
    if sys.argv[1] == "object":
        wrapped(encoded([(4096, 5, DATA), (8192, 1 << 20, DISCARD)], b"water", False))
        return
    if sys.argv[1] == "packed":
        # Two blocks that shrink, and one, of an odd write, that does not. A run that ends before its block does: where
        # one goes on to the end, compressors differ in how much of it they leave.
        odd = hashlib.sha256(b"water").digest()
        data = odd + (b"water" * 816 + odd[:16]) * 2
        extents = [(4096, len(odd), DATA), (8192, 8192, DATA), (65536, 1 << 20, DISCARD)]
        wrapped(encoded(extents, data, False, 4))
        return
    extents = [(0, 102400, DATA), (200704, 512, DATA), (401408, 40960, DATA)]
    data = bytes(at % 251 for at in range(sum(length for _, length, _ in extents)))
    for name, sealed in (("plain", False), ("sealed", True)):
        found = encoded(extents, data, sealed)
        print(name, len(found), blake3(found).hexdigest())


main()
