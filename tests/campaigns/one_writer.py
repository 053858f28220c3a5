#!/usr/bin/python3
"""The client of the one-writer campaign: numbered blocks, and requests that wait in the socket of a stopped owner.

    one_writer.py write URI FIRST            blocks FIRST, FIRST+1, ... until the server is gone; prints the last answer
    one_writer.py judge URI FIRST LAST       exits with 1 unless the blocks from FIRST that show are a prefix, each of
                                             them whole; prints the last one. LAST was the last one answered: with
                                             --whole it must show
    one_writer.py fill URI FIRST COUNT       writes COUNT blocks from FIRST and flushes them
    one_writer.py wait URI                   on a line on stdin sends requests, on the next one collects their answers

Block N lies at N times 64 KiB and says N in each of its cells of 512 bytes. Block 0 is the page that `wait` works on.
"""

import errno
import struct
import sys
import time

import nbd

BLOCK = 64 << 10
CELL = struct.Struct("<QQ")
REQUESTS = 16


def block_of(number):
    cell = CELL.pack(number, number ^ 0x5A5A5A5A) + bytes([number % 251 + 1]) * (512 - CELL.size)
    return cell * (BLOCK // 512)


def connect(uri):
    handle = nbd.NBD()
    handle.connect_uri(uri)
    return handle


def write(uri, first):
    handle = connect(uri)
    number, answered = int(first), int(first) - 1
    try:
        while (number + 1) * BLOCK <= handle.get_size():
            handle.pwrite(block_of(number), number * BLOCK)
            answered = number
            number += 1
            time.sleep(0.002)
    except nbd.Error:
        pass
    print(answered)


def judge(handle, first, last, whole=False):
    shown, gone, empty = first - 1, None, bytes(BLOCK)
    # A block fits a record of the journal: it is there whole or not at all, answered or not. One more may show than
    # was answered: it was on its way.
    for number in range(first, last + 2):
        content = handle.pread(BLOCK, number * BLOCK)
        if content == block_of(number):
            if gone is not None:
                sys.exit(f"block {number} shows and block {gone} does not")
            shown = number
            continue
        if content != empty:
            block = block_of(number)
            wrong = next(at for at in range(0, BLOCK, 512) if content[at:at + 512] != block[at:at + 512])
            sys.exit(f"block {number} shows in part, or something else does: it is wrong at {wrong}")
        if gone is None:
            gone = number
    if whole and shown < last:
        sys.exit(f"block {last} was answered, and {shown} is the last that shows")
    print(shown)


def fill(handle, first, count):
    for number in range(first, first + count):
        handle.pwrite(block_of(number), number * BLOCK)
    handle.flush()


def wait(uri):
    """Prints how many requests were answered well, how many with ESHUTDOWN, otherwise, and never."""
    handle = connect(uri)
    handle.pwrite(b"\x11" * BLOCK, 0)
    print("ready", flush=True)
    sys.stdin.readline()
    cookies = []
    for number in range(REQUESTS):
        if number % 2:
            cookies.append(handle.aio_pread(nbd.Buffer(4096), number * 4096))
        else:
            cookies.append(handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(b"\x44" * 4096)), number * 4096))
    # As much as the socket takes while nobody reads from it.
    handle.poll(100)
    print("sent", flush=True)
    sys.stdin.readline()
    counts = {"answered": 0, "shut_down": 0, "failed": 0, "unanswered": 0}
    for cookie in cookies:
        try:
            for _ in range(600):
                if handle.aio_command_completed(cookie):
                    counts["answered"] += 1
                    break
                handle.poll(100)
            else:
                counts["unanswered"] += 1
        except nbd.Error as problem:
            counts["shut_down" if problem.errnum == errno.ESHUTDOWN else "failed"] += 1
    print(" ".join(f"{name} {count}" for name, count in counts.items()), flush=True)


def main(arguments):
    whole = "--whole" in arguments
    verb, uri, *rest = [a for a in arguments if a != "--whole"]
    if verb == "write":
        write(uri, *rest)
    elif verb == "judge":
        judge(connect(uri), *map(int, rest), whole=whole)
    elif verb == "fill":
        fill(connect(uri), *map(int, rest))
    elif verb == "wait":
        wait(uri)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
