#!/usr/bin/python3
"""The client of the late-writes campaign.

    late_writes.py put URI SLOT SEED     writes a slot and flushes it
    late_writes.py hold URI SLOT SEED    sends the same write, waits a moment and prints `held` or `answered`
    late_writes.py judge URI SLOT SEED [OTHER]
                                         exits with 1 unless the slot shows SEED, or OTHER, in every cell; prints which

A slot has 2 MiB: one record of the journal takes it, so it is there whole or not at all. SEED 0 was never written.
"""

import struct
import sys
import time

import nbd

SLOT = 2 << 20
CELL = struct.Struct("<QQ")


def content(seed):
    if seed == 0:
        return bytes(SLOT)
    return b"".join(CELL.pack(seed, at) + bytes([seed % 251 + 1]) * (512 - CELL.size) for at in range(0, SLOT, 512))


def main(verb, uri, slot, *seeds):
    handle = nbd.NBD()
    handle.connect_uri(uri)
    offset = int(slot) * SLOT
    seeds = [int(seed) for seed in seeds]
    if verb == "put":
        handle.pwrite(content(seeds[0]), offset)
        handle.flush()
    elif verb == "hold":
        cookie = handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(content(seeds[0]))), offset)
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            handle.poll(20)
            if handle.aio_command_completed(cookie):
                print("answered")
                return
        print("held")
    elif verb == "judge":
        shown = bytes(handle.pread(SLOT, offset))
        for seed in seeds:
            if shown == content(seed):
                print(seed)
                return
        wrong = next(at for at in range(0, SLOT, 512) if shown[at:at + 512] != content(seeds[0])[at:at + 512])
        sys.exit(f"slot {slot} does not show {seeds}: at {wrong} it has {shown[wrong:wrong + 16].hex()}")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
