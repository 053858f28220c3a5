"""Forges blocks in the file of the cache, for a control: other bytes with the hash that belongs to them.

Nobody but a program that computes the hashes anew gets a wrong block past the cache. So what is found after this was read
from the file, and its reader was judged. The format is docs/formats/cache.md; XXH3 and CRC32C are here because Python
brings neither.
"""

import struct

BLOCK = 4096
BANDS_AT = 1 << 20
BAND_BLOCKS = 64
MAGIC_SUPERBLOCK, MAGIC_RUN = b"WEIR-CSB", b"WEIR-CRH"
ENTRIES_AT, ENTRY = 2048, 64

_MASK, _MASK64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
_PRIMES32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
_PRIMES64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248e"
    "e03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a"
    "51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8f"
    "f8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")


def _word(data, at):
    return int.from_bytes(data[at:at + 8], "little")


def _folded(one, other):
    product = one * other
    return (product ^ product >> 64) & _MASK64


def _avalanche(value):
    value = (value ^ value >> 37) * 0x165667919E3779F9 & _MASK64
    return value ^ value >> 32


def xxh3_64(data):
    """XXH3 of 33 to 64 bytes."""
    value = len(data) * _PRIMES64[0]
    for at, secret in ((16, 32), (len(data) - 32, 48), (0, 0), (len(data) - 16, 16)):
        value += _folded(_word(data, at) ^ _word(_SECRET, secret), _word(data, at + 8) ^ _word(_SECRET, secret + 8))
    return _avalanche(value & _MASK64)


def _accumulated(lanes, stripe, secret):
    for lane in range(8):
        word = _word(stripe, 8 * lane)
        keyed = word ^ _word(secret, 8 * lane)
        lanes[lane ^ 1] = (lanes[lane ^ 1] + word) & _MASK64
        lanes[lane] = (lanes[lane] + (keyed & _MASK) * (keyed >> 32)) & _MASK64


def _merged(lanes, secret, begin):
    value = begin + sum(
        _folded(lanes[lane] ^ _word(secret, 8 * lane), lanes[lane + 1] ^ _word(secret, 8 * lane + 8))
        for lane in range(0, 8, 2))
    return _avalanche(value & _MASK64)


def xxh3_128(data, seed):
    """XXH3 of a block, little-endian."""
    secret = b"".join(
        struct.pack("<2Q", (_word(_SECRET, at) + seed) & _MASK64, (_word(_SECRET, at + 8) - seed) & _MASK64)
        for at in range(0, len(_SECRET), 16))
    lanes = [_PRIMES32[2], *_PRIMES64[:4], _PRIMES32[1], _PRIMES64[4], _PRIMES32[0]]
    for number, at in enumerate(range(0, len(data) - 64, 64)):
        if number and number % 16 == 0:
            for lane in range(8):
                value = lanes[lane] ^ lanes[lane] >> 47 ^ _word(secret, len(secret) - 64 + 8 * lane)
                lanes[lane] = value * _PRIMES32[0] & _MASK64
        _accumulated(lanes, data[at:at + 64], secret[number % 16 * 8:])
    _accumulated(lanes, data[-64:], secret[len(secret) - 71:])
    low = _merged(lanes, secret[11:], len(data) * _PRIMES64[0] & _MASK64)
    high = _merged(lanes, secret[len(secret) - 75:], ~(len(data) * _PRIMES64[1]) & _MASK64)
    return struct.pack("<2Q", low, high)


def _crc_table():
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        yield byte


_CRC = tuple(_crc_table())


def crc32c(data):
    value = _MASK
    for byte in data:
        value = _CRC[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ _MASK


def _superblock(file):
    """Its columns, rows and blocks of a run."""
    for at in (0, BLOCK):
        file.seek(at)
        data = file.read(BLOCK)
        if data[:8] == MAGIC_SUPERBLOCK:
            rows, columns, _, run_blocks = struct.unpack_from("<4I", data, 40)
            return rows, columns, run_blocks
    raise ValueError("it has no superblock")


def _hash(block, header, index, run_blocks):
    device, band = header[48:80], struct.unpack_from("<Q", header, 80)[0]
    run = band * (BAND_BLOCKS // run_blocks) + struct.unpack_from("<I", header, 40)[0]
    return xxh3_128(block, xxh3_64(device + struct.pack("<QI", run, index)))


def forge(path, instead_of, most, most_of_run=2):
    """Puts what `instead_of(block)` says, where it says anything, in place of blocks that verify; how many it was.

    A few of each run: one whose object was collected holds what a volume shows, and nobody reads it any more.
    """
    forged = 0
    with open(path, "r+b") as file:
        rows, columns, run_blocks = _superblock(file)
        run_bytes = (1 + run_blocks) * BLOCK
        for number in range(rows * columns * BAND_BLOCKS // run_blocks):
            file.seek(BANDS_AT + number * run_bytes)
            run = bytearray(file.read(run_bytes))
            if run[:8] != MAGIC_RUN:
                continue
            before, present = forged, struct.unpack_from("<I", run, 144)[0]
            for index in range(run_blocks):
                at, entry = (1 + index) * BLOCK, ENTRIES_AT + index * ENTRY
                data = bytes(run[at:at + BLOCK])
                wanted = present >> index & 1 and forged < min(most, before + most_of_run)
                other = instead_of(data) if wanted else None
                # Old blocks under a newer header do not count for the cache either.
                if other is None or run[entry:entry + 16] != _hash(data, run, index, run_blocks):
                    continue
                run[at:at + BLOCK] = other
                run[entry:entry + 16] = _hash(other, run, index, run_blocks)
                forged += 1
            if forged > before:
                struct.pack_into("<I", run, 12, crc32c(bytes(run[:12] + run[16:BLOCK])))
                file.seek(BANDS_AT + number * run_bytes)
                file.write(run)
            if forged >= most:
                break
    return forged
