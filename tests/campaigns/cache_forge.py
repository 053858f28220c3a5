"""Forges blocks in the file of the cache, for a control: other bytes with the hash that belongs to them.

Nobody but a program that computes the hashes anew gets a wrong block past the cache. So what is found after this was read
from the file, and its reader was judged. The format is docs/formats/cache.md; BLAKE3 and CRC32C are here because Python
brings neither.
"""

import struct

BLOCK = 4096
BANDS_AT = 1 << 20
BAND_BLOCKS = 64
MAGIC_SUPERBLOCK, MAGIC_RUN = b"WEIR-CSB", b"WEIR-CRH"
ENTRIES_AT, ENTRY = 2048, 64

_IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
_ORDER = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_MIXED = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
          (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
_CHUNK_START, _CHUNK_END, _PARENT, _ROOT = 1, 2, 4, 8
_MASK = 0xFFFFFFFF


def _turned(value, by):
    return (value >> by | value << 32 - by) & _MASK


def _compress(chain, words, counter, length, flags):
    state = [*chain, *_IV[:4], counter & _MASK, counter >> 32, length, flags]
    for turn in range(7):
        for number, (a, b, c, d) in enumerate(_MIXED):
            for word, first, second in ((words[2 * number], 16, 12), (words[2 * number + 1], 8, 7)):
                state[a] = (state[a] + state[b] + word) & _MASK
                state[d] = _turned(state[d] ^ state[a], first)
                state[c] = (state[c] + state[d]) & _MASK
                state[b] = _turned(state[b] ^ state[c], second)
        if turn < 6:
            words = [words[index] for index in _ORDER]
    return [state[index] ^ state[index + 8] for index in range(8)]


def _tree(data, first, is_root):
    """The chaining value of what begins at chunk `first`."""
    root = _ROOT if is_root else 0
    if len(data) > 1024:
        left = 1024
        while left * 2 < len(data):
            left *= 2
        both = _tree(data[:left], first, False) + _tree(data[left:], first + left // 1024, False)
        return _compress(_IV, both, 0, 64, _PARENT | root)
    chain = _IV
    blocks = [data[at:at + 64] for at in range(0, len(data), 64)] or [b""]
    for number, block in enumerate(blocks):
        flags = _CHUNK_START if number == 0 else 0
        if number == len(blocks) - 1:
            flags |= _CHUNK_END | root
        words = struct.unpack("<16I", block.ljust(64, b"\0"))
        chain = _compress(chain, words, first, len(block), flags)
    return chain


def blake3(data):
    return struct.pack("<8I", *_tree(data, 0, True))


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
    return blake3(block + device + struct.pack("<QI", run, index))[:16]


def forge(path, instead_of, most):
    """Puts what `instead_of(block)` says, where it says anything, in place of blocks that verify; how many it was."""
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
                other = instead_of(data) if present >> index & 1 and forged < most else None
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
