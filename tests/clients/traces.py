#!/usr/bin/python3
"""Writes one trace in every format of text, once more compressed, and says what it comes to.

    traces.py DIRECTORY     prints a line for each file: name, format, reads, writes, bytes written, bytes stored

Three disks, requests of 512 bytes to 64 KiB at multiples of 512, half of them in a hot part, two in three of them
writes. Less is written than one batch holds, so what is stored is what a set of sectors says: each sector once.
"""

import os
import random
import struct
import sys

SECTOR = 512
DISKS = 3


def requests():
    rng = random.Random("traces")
    for number in range(900):
        sectors = rng.choice((1, 2, 7, 8, 16, 33, 128))
        span = 2_000 if rng.random() < 0.5 else 2_000_000
        kind = "W" if rng.random() < 2 / 3 else "R"
        yield number, rng.randrange(DISKS), kind, rng.randrange(span), sectors


def lines(kind):
    """The lines of the trace in one format. Times are 1 ms apart."""
    word = {"W": "Write", "R": "Read"}
    if kind == "fio":
        yield "fio version 2 iolog"
        for disk in range(DISKS):
            yield f"/dev/disk{disk} add"
            yield f"/dev/disk{disk} open"
    for number, disk, op, sector, sectors in requests():
        at, length = sector * SECTOR, sectors * SECTOR
        yield {
            "csv": f"{number * 1000},{op},{disk},{at},{length}",
            "msr": f"{128166372000000000 + number * 10000},host,{disk},{word[op]},{at},{length},100",
            "alibaba": f"{disk},{op},{at},{length},{number * 1000}",
            "tencent": f"{1538323200 + number // 1000},{sector},{sectors},{int(op == 'W')},{disk}",
            "systor": f"{1455592042 + number / 1000:.6f},0.000100,{op},{disk},{at},{length}",
            "spc": f"{disk},{sector},{length},{op.lower()},{number / 1000:.6f}",
            "blkparse": f"8,{disk * 16}   0   {number + 1}   {number / 1000:.9f}   77   Q   {op}"
                        f"   {sector} + {sectors} [test]",
            "fio": f"/dev/disk{disk} {word[op].lower()} {at} {length}",
        }[kind]


def zstd(data):
    """A zstd frame of blocks that are stored as they are."""
    out = bytearray(struct.pack("<IBB", 0xFD2FB528, 0, 0x50))
    piece = 100_000
    for at in range(0, len(data), piece):
        block = data[at:at + piece]
        last = at + piece >= len(data)
        out += (len(block) << 3 | last).to_bytes(3, "little") + block
    return bytes(out)


def main(directory):
    os.makedirs(directory)
    reads, writes, written, stored = 0, 0, 0, set()
    for _, disk, op, sector, sectors in requests():
        if op == "R":
            reads += 1
            continue
        writes += 1
        written += sectors * SECTOR
        stored.update((disk, s) for s in range(sector, sector + sectors))
    answer = f"{reads} {writes} {written} {len(stored) * SECTOR}"
    files = {}
    for kind in ("csv", "msr", "alibaba", "tencent", "systor", "spc", "blkparse", "fio"):
        files[f"trace.{kind}"] = kind, "".join(line + "\n" for line in lines(kind)).encode()
    files["trace.csv.zst"] = "csv", zstd(files["trace.csv"][1])
    for name, (kind, content) in files.items():
        with open(os.path.join(directory, name), "wb") as file:
            file.write(content)
        print(name, kind, answer)


if __name__ == "__main__":
    main(sys.argv[1])
