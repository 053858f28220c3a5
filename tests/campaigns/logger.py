#!/usr/bin/python3
"""A logger of numbered writes, and a judge of which prefix of them a volume shows.

    logger.py run URI RECORD --seed S --weir BIN --volume NAME --store PLACE    until the server is gone
    logger.py judge URI RECORD                                                1 on a violation

The volume is seen as cells of 512 bytes, on a grid that is shifted by a random number of bytes. A
write covers some cells, and each of them says which write put it there; the rest of a cell is noise
that follows from that number, so that a cell shows one write entirely or is a violation. Now and then
a run of cells is zeroed or discarded. Several requests are in flight on two connections. One counter
numbers all events, issues and acknowledgements alike, so "A was acknowledged before B was issued" is
exact.

The prefix rule: if any byte of a write W is visible, then every write acknowledged before W was issued
is visible, or lies under a write that is not older: one that was not acknowledged before the hidden
one was issued. What was acknowledged before a successful `weir volume flush --remote --wait` was
started must be visible in the same sense. With --whole all acknowledged writes must be.
"""

import argparse
import hashlib
import os
import pickle
import random
import struct
import subprocess
import sys
import time

import nbd

CELL = 512
HEADER = struct.Struct("<QQ")
IN_FLIGHT_MAX = 16
PIECE = 1 << 20
NEVER = 1 << 62
POOL = random.Random("cells").randbytes(1 << 20)


def cell_of(number, cell):
    at = (number * 7919 + cell * 131) % (len(POOL) - CELL)
    return HEADER.pack(number, cell) + POOL[at:at + CELL - HEADER.size]


class Write:
    """Cells first..first+count; `issued` and `acked` are numbers of events, `when` is a clock."""

    __slots__ = ("number", "kind", "first", "count", "issued", "acked", "when")

    def __init__(self, number, kind, first, count, issued):
        self.number, self.kind, self.first, self.count = number, kind, first, count
        self.issued, self.acked, self.when = issued, NEVER, time.monotonic()

    def cells(self):
        return range(self.first, self.first + self.count)


class Run:
    def __init__(self, arguments):
        self.arguments = arguments
        self.rng = random.Random(arguments.seed)
        self.handles = []
        for _ in range(2):
            handle = nbd.NBD()
            handle.connect_uri(arguments.uri)
            self.handles.append(handle)
        self.shift = self.rng.randrange(CELL)
        self.cells = (self.handles[0].get_size() - self.shift) // CELL
        self.base = arguments.base
        self.writes = []
        self.event = 0
        self.in_flight = 0
        self.flushed = 0
        self.flushes = 0
        self.flush_sequence = 0
        self.command = None
        self.error = None

    def issue(self, kind, first, count, flags=0):
        self.event += 1
        write = Write(self.base + len(self.writes) + 1, kind, first, count, self.event)
        self.writes.append(write)
        handle = self.rng.choice(self.handles)
        offset, length = self.shift + first * CELL, count * CELL

        def completed(error):
            # An argument of libnbd's own kind: 0 is success, and 1 retires the command.
            self.in_flight -= 1
            if error == 0 or getattr(error, "value", 1) == 0:
                self.event += 1
                write.acked = self.event
            else:
                self.error = self.error or f"write {write.number}: {error}"
            return 1

        self.in_flight += 1
        if kind == "write":
            data = b"".join(cell_of(write.number, cell) for cell in write.cells())
            handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), offset, completed, flags)
        elif kind == "zero":
            handle.aio_zero(length, offset, completed, flags)
        else:
            handle.aio_trim(length, offset, completed, flags)

    def pump(self, most):
        """Waits until at most so many requests are in flight."""
        turn = 0
        while self.in_flight > most:
            handle = self.handles[turn % 2]
            turn += 1
            if handle.aio_in_flight() or self.in_flight == 0:
                handle.poll(5)

    def fill(self):
        """Every cell belongs to a write before the trial begins, and all of it is in the store."""
        for first in range(0, self.cells, PIECE // CELL):
            self.issue("write", first, min(PIECE // CELL, self.cells - first))
            self.pump(4)
        self.pump(0)
        self.start_flush()
        if self.command[0].wait() != 0:
            raise RuntimeError("the remote flush after the fill failed")
        self.poll_flush()

    def start_flush(self):
        a = self.arguments
        command = [a.weir, "volume", "flush", a.volume, "--remote", "--wait"]
        self.command = (subprocess.Popen(command, stderr=subprocess.DEVNULL), self.event)

    def poll_flush(self):
        if self.command is None or self.command[0].poll() is None:
            return
        process, event = self.command
        self.command = None
        if process.returncode == 0:
            self.flushed = event
            self.flushes += 1
            self.flush_sequence = newest_sequence(self.arguments.store)
            self.save()

    def some_request(self):
        rng = self.rng
        count = min(rng.choice((1, 1, 2, 3, 8, 8, 8, 16, 40, 128)), self.cells)
        hot = min(2048, self.cells)
        first = rng.randrange(hot if rng.random() < 0.4 else self.cells)
        count = min(count, self.cells - first)
        kind = rng.choices(("write", "zero", "trim"), (94, 3, 3))[0]
        fua = nbd.CMD_FLAG_FUA if rng.random() < 0.02 else 0
        self.issue(kind, first, count, fua)
        if rng.random() < 0.01:
            rng.choice(self.handles).aio_flush(lambda error: 1)

    def trial(self):
        begun, done = time.monotonic(), 0
        next_flush = begun + self.rng.uniform(0.3, 4)
        depth = 1
        while self.error is None:
            now = time.monotonic()
            if self.command is None and now > next_flush and not self.arguments.no_flush:
                self.start_flush()
                next_flush = now + self.rng.uniform(1, 8)
            self.poll_flush()
            if done % 50 == 0:
                depth = self.rng.randint(1, IN_FLIGHT_MAX)
                ahead = done / self.arguments.rate - (now - begun)
                if ahead > 0:
                    time.sleep(min(ahead, 0.2))
            self.some_request()
            self.pump(depth - 1)
            done += 1

    def save(self):
        state = {
            "shift": self.shift, "cells": self.cells, "flushed": self.flushed,
            "flushes": self.flushes, "flush_sequence": self.flush_sequence,
            "ended": time.monotonic(),
            "writes": [(w.number, w.kind, w.first, w.count, w.issued, w.acked, w.when)
                       for w in self.writes],
        }
        with open(self.arguments.record + ".new", "wb") as file:
            pickle.dump(state, file)
        os.replace(self.arguments.record + ".new", self.arguments.record)

    def run(self):
        self.fill()
        # Now the caller may begin to count.
        with open(self.arguments.record + ".filled", "w", encoding="ascii"):
            pass
        try:
            self.trial()
        except nbd.Error as error:
            self.error = self.error or str(error)
        if self.command is not None:
            # It ends, too; a success that is reported now still is one.
            self.command[0].wait()
            self.poll_flush()
        self.save()
        print(f"the server is gone: {self.error}")


def s3_client():
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "s3"))
    import client
    return client


def newest_sequence(place):
    """The highest sequence of an object in the store: a directory, or s3://bucket/prefix."""
    if place is not None and place.startswith("s3://"):
        bucket, prefix = place.removeprefix("s3://").split("/", 1)
        found = [key.rsplit("/", 1)[1] for key in s3_client().keys(bucket, prefix + "/")]
    elif place is not None and os.path.isdir(place):
        found = os.listdir(place)
    else:
        return 0
    names = [name for name in found if "-" in name]
    return max((int(name.split("-")[0], 16) for name in names), default=0)


class Judge:
    def __init__(self, record, image):
        with open(record, "rb") as file:
            state = pickle.load(file)
        self.shift, self.cells = state["shift"], state["cells"]
        self.flushed, self.flushes = state["flushed"], state["flushes"]
        self.ended = state["ended"]
        self.writes = []
        for entry in state["writes"]:
            write = Write(*entry[:5])
            write.acked, write.when = entry[5], entry[6]
            self.writes.append(write)
        self.base = self.writes[0].number
        self.image = image
        self.faults = []

    def complain(self, text):
        self.faults.append(text)

    def cell(self, cell):
        at = self.shift + cell * CELL
        return self.image[at:at + CELL]

    def resolve(self):
        """Which write each cell shows. For zeroes: of the candidates the last to be acknowledged, so that
        the judge errs on the volume's side, and when the first of them was issued."""
        self.shown = [None] * self.cells
        self.surely_issued = [0] * self.cells
        zeroes = {}
        for write in self.writes:
            if write.kind != "write":
                for cell in write.cells():
                    zeroes.setdefault(cell, []).append(write)
        blank = bytes(CELL)
        for cell in range(self.cells):
            seen = self.cell(cell)
            if seen == blank:
                if cell not in zeroes:
                    self.complain(f"cell {cell} is zero, no request zeroed it")
                    continue
                self.shown[cell] = max(zeroes[cell], key=lambda write: write.acked)
                self.surely_issued[cell] = min(write.issued for write in zeroes[cell])
                continue
            number, place = HEADER.unpack_from(seen)
            index = number - self.base
            if place != cell or not 0 <= index < len(self.writes) or seen != cell_of(number, cell):
                self.complain(f"cell {cell} holds what no write put there")
                continue
            write = self.writes[index]
            if cell not in write.cells() or write.kind != "write":
                self.complain(f"cell {cell} shows write {number}, which was elsewhere")
                continue
            self.shown[cell] = write
            self.surely_issued[cell] = write.issued

    def newest_older(self, through):
        """For each cell the latest issue of the writes that were acknowledged by an event."""
        newest = [0] * self.cells
        for write in self.writes:
            if write.acked <= through:
                for cell in write.cells():
                    newest[cell] = max(newest[cell], write.issued)
        return newest

    def judge(self, whole=False):
        self.resolve()
        visible = max(self.surely_issued)
        through = max(visible, self.flushed)
        if whole:
            through = NEVER - 1
        newest = self.newest_older(through)
        for cell in range(self.cells):
            shown = self.shown[cell]
            if shown is not None and shown.acked <= newest[cell]:
                why = "the remote flush" if visible < self.flushed else "what else is visible"
                self.complain(f"cell {cell} shows write {shown.number} of event {shown.issued}; a write"
                              f" issued at {newest[cell]} should be there, says {why}")
        held = lost = 0
        for write in self.writes:
            if write.acked != NEVER:
                shows = all(self.shown[cell] is not None and self.shown[cell].acked > write.issued
                            for cell in write.cells())
                held, lost = held + shows, lost + (not shows)
        acked = [write for write in self.writes if write.acked != NEVER]
        inside = sum(1 for write in acked if write.acked <= through)
        last = max((write.when for write in self.writes if write.issued <= visible))
        return (f"{len(acked)} writes acknowledged, {held} held, {lost} lost; the prefix proves"
                f" {inside}, the last of {self.flushes} remote flushes"
                f" {sum(1 for write in acked if write.acked <= self.flushed)};"
                f" {self.ended - last:.2f} s lost")

    def age_one_cell(self):
        """A control: one cell goes back to the write before the one it shows."""
        through = max(max(self.surely_issued), self.flushed)
        covering = {}
        for write in self.writes:
            if write.kind == "write" and write.acked <= through:
                for cell in write.cells():
                    covering.setdefault(cell, []).append(write)
        for cell, writes in sorted(covering.items()):
            # Surely older: acknowledged before the one that is shown was issued.
            shown = self.shown[cell]
            older = [write for write in writes if write.acked < shown.issued]
            if shown in writes and older and shown.acked < through:
                at = self.shift + cell * CELL
                self.image[at:at + CELL] = cell_of(older[-1].number, cell)
                return cell
        return None


def read_image(uri):
    handle = nbd.NBD()
    handle.connect_uri(uri)
    size = handle.get_size()
    image = bytearray()
    while len(image) < size:
        image += handle.pread(min(PIECE, size - len(image)), len(image))
    handle.shutdown()
    return image


def judge(arguments):
    image = read_image(arguments.uri)
    judged = Judge(arguments.record, image)
    text = judged.judge(arguments.whole)
    if arguments.control:
        if judged.faults:
            sys.exit("there are violations before the control")
        cell = judged.age_one_cell()
        if cell is None:
            sys.exit("no cell could be aged")
        judged = Judge(arguments.record, image)
        judged.judge(arguments.whole)
    for fault in judged.faults[:10]:
        print("violation:", fault)
    print(f"{text}; {len(judged.faults)} violations; image", hashlib.sha256(image).hexdigest()[:16])
    sys.exit(1 if judged.faults else 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=("run", "judge"))
    parser.add_argument("uri")
    parser.add_argument("record")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--base", type=int, default=0, help="numbers of writes begin after this")
    parser.add_argument("--rate", type=int, default=3000, help="requests a second at most")
    parser.add_argument("--weir", default="weir")
    parser.add_argument("--volume")
    parser.add_argument("--store", help="the volume's objects: a directory or s3://...")
    parser.add_argument("--no-flush", action="store_true", help="no remote flushes in the trial")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--control", action="store_true", help="age one cell first; must fail")
    arguments = parser.parse_args()
    if arguments.verb == "run":
        Run(arguments).run()
    else:
        judge(arguments)


if __name__ == "__main__":
    main()
