#!/usr/bin/python3
"""What may happen to the file of the cache while nobody has it open: cache_damage.py KIND FILE SEED [OLD]

    flip         single bits, anywhere behind the superblocks
    zero         ranges that were never written: zeroes
    tail         the file ends early, and is as long as before again: what came later was never written
    cut          the file ends early
    superblock   one of its two copies
    stale        ranges as they were in OLD, an earlier copy of the file: writes that the disk had promised and lost
    old          all of OLD in its place
"""

import os
import random
import shutil
import sys

SUPERBLOCK = 4096
BANDS_AT = 1 << 20
FLIPS = 2000
RANGES = 24
RANGE_BYTES_MAX = 1 << 20


def flip(file, size, rng):
    for _ in range(FLIPS):
        at = rng.randrange(BANDS_AT, size)
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << rng.randrange(8)]))


def ranges(size, rng):
    for _ in range(RANGES):
        length = rng.randrange(512, RANGE_BYTES_MAX) // 512 * 512
        yield rng.randrange(BANDS_AT, size - length) // 512 * 512, length


def zero(file, size, rng):
    for at, length in ranges(size, rng):
        file.seek(at)
        file.write(bytes(length))


def tail(file, size, rng):
    file.truncate(rng.randrange(size // 2, size))
    file.truncate(size)


def cut(file, size, rng):
    file.truncate(rng.randrange(0, size))


def superblock(file, _size, rng):
    file.seek(SUPERBLOCK * rng.randrange(2) + rng.randrange(SUPERBLOCK))
    file.write(rng.randbytes(1))


def stale(file, size, rng, old):
    with open(old, "rb") as before:
        for at, length in ranges(min(size, os.path.getsize(old)), rng):
            before.seek(at)
            file.seek(at)
            file.write(before.read(length))


KINDS = {"flip": flip, "zero": zero, "tail": tail, "cut": cut, "superblock": superblock, "stale": stale}


def main(kind, path, seed, old=None):
    if kind == "old":
        shutil.copyfile(old, path)
        return
    with open(path, "r+b") as file:
        more = [old] if kind == "stale" else []
        KINDS[kind](file, os.path.getsize(path), random.Random(seed), *more)


if __name__ == "__main__":
    main(*sys.argv[1:])
