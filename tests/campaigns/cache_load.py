#!/usr/bin/python3
"""The client of the cache campaign: stamped blocks, and a model that every read is held against.

    cache_load.py load STATE SOCKET --seed S       reads, writes and zeroes until the server is gone
    cache_load.py judge STATE SOCKET [--share 0.5] reads what was open and a share of the rest; 1 on a wrong one
    cache_load.py fresh STATE VOLUME MIB           the volume is new and empty, whatever had its name before
    cache_load.py fill STATE SOCKET VOLUME         writes all of it
    cache_load.py snapshot STATE VOLUME SNAPSHOT   one was taken, while nobody wrote
    cache_load.py rollback STATE VOLUME SNAPSHOT   the volume was set back to it
    cache_load.py clone STATE VOLUME SNAPSHOT NEW  a volume was made of it
    cache_load.py gone STATE VOLUME                the volume was deleted
    cache_load.py age STATE SOCKET                 a control: writes an older content to a block, past the model
    cache_load.py heal STATE SOCKET                and puts back what belongs there
    cache_load.py forge STATE FILE                 a control: puts older contents into the file of the cache, with the
                                                   hashes that belong to them; exits with 1 where it found no block

Each write has a number that no other write ever gets, of whatever volume. A block of 4 KiB says which write put it
there and where it lies, and the rest of it follows from both: so a block that is old, that belongs elsewhere, or that
is torn is told from the one that belongs there. No two writes are on their way to one block. A read must show, of
each block, what was acknowledged last before the read was issued, or a write that was on its way during the read.
After the server is gone a block shows what was acknowledged last or what was on its way then: no acknowledged write
is lost by the death of a process. What a judge saw of such a block must stay.
"""

import argparse
import os
import pickle
import random
import struct
import sys
import time
from array import array

import nbd

import cache_forge

BLOCK = 4096
HEAD = struct.Struct("<QQ")
POOL = random.Random("blocks").randbytes(1 << 20)
ZERO = bytes(BLOCK)
IN_FLIGHT_MAX = 12
PIECE_BLOCKS = 16
FILL_BLOCKS = 256
CONNECT_SECONDS = 60
FAULTS_SHOWN_MAX = 10
FORGED_MAX = 512


def block_of(number, block):
    """What write `number` puts at `block`; nothing but zeroes where no write was."""
    if number == 0:
        return ZERO
    at = (number * 7919 + block * 131) % (len(POOL) - BLOCK)
    return HEAD.pack(number, block) + POOL[at:at + BLOCK - HEAD.size]


def shown_by(data, block):
    """The number of the write that a block shows, None where it shows none as a whole."""
    if data == ZERO:
        return 0
    number, place = HEAD.unpack_from(data)
    return number if place == block and data == block_of(number, block) else None


def seen(data):
    number, place = HEAD.unpack_from(data)
    return f"what begins like write {number} at block {place}"


class Volume:
    """What each block shows, and which write was on its way to it when the server went."""

    def __init__(self, blocks):
        self.shows = array("Q", bytes(8 * blocks))
        self.open = {}
        # A block and the number before the one that it shows, for the control.
        self.aged = None

    def copy(self):
        assert not self.open, "a snapshot is taken while nobody writes"
        other = Volume(0)
        other.shows = array("Q", self.shows)
        return other


class Model:
    def __init__(self):
        self.volumes = {}
        self.snapshots = {}
        self.number = 0
        self.faults = []

    @classmethod
    def load(cls, path):
        if not os.path.exists(path):
            return cls()
        with open(path, "rb") as file:
            return pickle.load(file)

    def save(self, path):
        with open(path + ".new", "wb") as file:
            pickle.dump(self, file)
        os.replace(path + ".new", path)

    def next(self):
        self.number += 1
        return self.number

    def complain(self, text):
        self.faults.append(text)

    def look(self, where, data, block, allowed):
        """The write that a block shows; a complaint where that is none of the allowed ones."""
        number = shown_by(data, block)
        if number is None:
            self.complain(f"{where}: block {block} shows {seen(data)}, which is not whole or belongs elsewhere")
        elif number not in allowed:
            wanted = " or ".join(map(str, sorted(allowed)))
            self.complain(f"{where}: block {block} shows write {number} in place of {wanted}")
            return None
        return number

    def pin(self, name, block, data):
        """A block of a server that was started anew: what it shows counts from now on."""
        volume = self.volumes[name]
        allowed = {volume.shows[block]}
        if block in volume.open:
            allowed.add(volume.open[block])
        number = self.look(name, data, block, allowed)
        if number is not None:
            volume.shows[block] = number
        volume.open.pop(block, None)


def connect(socket, name):
    """The export may come a while after the server listens."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        handle = nbd.NBD()
        try:
            handle.connect_uri(f"nbd+unix:///{name}?socket={socket}")
            return handle
        except nbd.Error:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


class Read:
    """A read on its way: what its blocks may show."""

    def __init__(self, name, volume, first, count):
        self.name, self.first, self.count = name, first, count
        self.allowed = [{volume.shows[block]} for block in range(first, first + count)]
        for block in range(first, first + count):
            if block in volume.open:
                self.may_show(block, volume.open[block])

    def may_show(self, block, number):
        if self.first <= block < self.first + self.count:
            self.allowed[block - self.first].add(number)

    def judge(self, model, data):
        for index, allowed in enumerate(self.allowed):
            block = self.first + index
            piece = bytes(data[index * BLOCK:(index + 1) * BLOCK])
            model.look(f"{self.name}, under load", piece, block, allowed)


class Load:
    """Random requests on all volumes, several in flight, until a request fails."""

    def __init__(self, model, socket, seed, rate):
        self.model, self.rate = model, rate
        self.rng = random.Random(seed)
        self.handles = {name: connect(socket, name) for name in model.volumes}
        self.reads = []
        self.in_flight = 0
        self.error = None
        self.counts = {"reads": 0, "writes": 0}

    def completed(self, error, then):
        # An argument of libnbd's own kind: 0 is success, and 1 retires the command.
        self.in_flight -= 1
        if error == 0 or getattr(error, "value", 1) == 0:
            then()
        else:
            self.error = self.error or "a request failed"
        return 1

    def place(self, volume, counts):
        """Two of three requests go to the first third."""
        blocks = len(volume.shows)
        count = min(self.rng.choice(counts), blocks)
        span = blocks // 3 if self.rng.random() < 0.66 else blocks
        return self.rng.randrange(max(span - count, 0) + 1), count

    def read(self, name):
        volume = self.model.volumes[name]
        first, count = self.place(volume, (1, 1, 1, 2, 4, 16, 16, 32))
        read = Read(name, volume, first, count)
        buffer = nbd.Buffer(count * BLOCK)

        def done():
            self.reads.remove(read)
            self.counts["reads"] += 1
            read.judge(self.model, buffer.to_bytearray())

        self.reads.append(read)
        self.in_flight += 1
        self.handles[name].aio_pread(buffer, first * BLOCK, lambda error: self.completed(error, done))

    def write(self, name):
        volume = self.model.volumes[name]
        first, count = self.place(volume, (1, 1, 2, 4, 16, 48))
        blocks = range(first, first + count)
        if any(block in volume.open for block in blocks):
            return
        number = 0 if self.rng.random() < 0.05 else self.model.next()
        for block in blocks:
            volume.open[block] = number
        for read in self.reads:
            if read.name == name:
                for block in blocks:
                    read.may_show(block, number)

        def done():
            self.counts["writes"] += 1
            for block in blocks:
                if volume.shows[block] not in (0, number) and number:
                    volume.aged = (block, volume.shows[block])
                volume.shows[block] = number
                del volume.open[block]

        self.in_flight += 1
        handle = self.handles[name]
        if number == 0:
            handle.aio_zero(count * BLOCK, first * BLOCK, lambda error: self.completed(error, done))
            return
        data = b"".join(block_of(number, block) for block in blocks)
        buffer = nbd.Buffer.from_bytearray(bytearray(data))
        handle.aio_pwrite(buffer, first * BLOCK, lambda error: self.completed(error, done))

    def pump(self, most):
        """Waits until at most so many requests are in flight."""
        handles = list(self.handles.values())
        while self.in_flight > most and self.error is None:
            for handle in handles:
                if handle.aio_in_flight():
                    handle.poll(1)

    def run(self):
        begun, done = time.monotonic(), 0
        names = list(self.handles)
        try:
            while self.error is None and not self.model.faults:
                name = self.rng.choice(names)
                (self.write if self.rng.random() < 0.35 else self.read)(name)
                done += 1
                if done % 50 == 0:
                    ahead = done / self.rate - (time.monotonic() - begun)
                    time.sleep(min(max(ahead, 0), 0.2))
                self.pump(self.rng.randint(0, IN_FLIGHT_MAX))
        except nbd.Error as problem:
            self.error = str(problem)


def load(model, arguments):
    assert not any(volume.open for volume in model.volumes.values()), "the volumes were not judged after the last load"
    run = Load(model, arguments.socket, arguments.seed, arguments.rate)
    run.run()
    counts = run.counts
    return f"{counts['reads']} reads and {counts['writes']} writes, then: {run.error}"


def judge(model, arguments):
    """In random order: what one read brings into memory then says little about the next one."""
    rng = random.Random(arguments.seed)
    looked = pinned = 0
    for name, volume in model.volumes.items():
        pinned += len(volume.open)
        opened = {block // PIECE_BLOCKS for block in volume.open}
        pieces = range((len(volume.shows) + PIECE_BLOCKS - 1) // PIECE_BLOCKS)
        wanted = [piece for piece in pieces if piece in opened or rng.random() < arguments.share]
        rng.shuffle(wanted)
        handle = connect(arguments.socket, name)
        for piece in wanted:
            first = piece * PIECE_BLOCKS
            count = min(PIECE_BLOCKS, len(volume.shows) - first)
            data = bytes(handle.pread(count * BLOCK, first * BLOCK))
            for index in range(count):
                model.pin(name, first + index, data[index * BLOCK:(index + 1) * BLOCK])
            looked += count
        handle.shutdown()
    return f"{looked} blocks of {len(model.volumes)} volumes judged, {pinned} of them written as the server went"


def fill(model, arguments):
    volume = model.volumes[arguments.words[0]]
    handle = connect(arguments.socket, arguments.words[0])
    for first in range(0, len(volume.shows), FILL_BLOCKS):
        blocks = range(first, min(first + FILL_BLOCKS, len(volume.shows)))
        number = model.next()
        handle.pwrite(b"".join(block_of(number, block) for block in blocks), first * BLOCK)
        for block in blocks:
            volume.shows[block] = number
    handle.shutdown()
    return f"{len(volume.shows)} blocks written"


def write_aged(model, arguments, number_of):
    """Writes to the block of the control what `number_of` says."""
    name, volume = next((name, volume) for name, volume in model.volumes.items() if volume.aged)
    block, older = volume.aged
    handle = connect(arguments.socket, name)
    handle.pwrite(block_of(number_of(volume, block, older), block), block * BLOCK)
    handle.shutdown()
    return f"{name}: block {block}"


def forge(model, path):
    """What a volume shows now, as the file of the cache has it, becomes what another write would have put there."""
    def instead_of(data):
        number, block = HEAD.unpack_from(data)
        shown = any(block < len(volume.shows) and volume.shows[block] == number for volume in model.volumes.values())
        return block_of(number - 1, block) if shown and number > 1 and data == block_of(number, block) else None

    count = cache_forge.forge(path, instead_of, FORGED_MAX)
    if count == 0:
        sys.exit(f"{path} has no block that a volume shows")
    return f"{count} blocks forged"


def change(model, verb, words):
    """What happened to a volume while nobody wrote to it."""
    name = words[0]
    if verb == "fresh":
        model.volumes[name] = Volume((int(words[1]) << 20) // BLOCK)
    elif verb == "snapshot":
        # The campaign keeps one of them.
        model.snapshots = {(name, words[1]): model.volumes[name].copy()}
    elif verb == "rollback":
        model.volumes[name] = model.snapshots[(name, words[1])].copy()
    elif verb == "clone":
        model.volumes[words[2]] = model.snapshots[(name, words[1])].copy()
    elif verb == "gone":
        del model.volumes[name]
    elif verb == "forge":
        return forge(model, name)
    return f"{verb} {' '.join(words)}"


WITH_SERVER = {
    "load": load, "judge": judge, "fill": fill,
    "age": lambda model, arguments: write_aged(model, arguments, lambda _volume, _block, older: older),
    "heal": lambda model, arguments: write_aged(model, arguments, lambda volume, block, _older: volume.shows[block]),
}
CHANGES = ("fresh", "snapshot", "rollback", "clone", "gone", "forge")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=(*WITH_SERVER, *CHANGES))
    parser.add_argument("state")
    parser.add_argument("words", nargs="+")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--rate", type=int, default=2500, help="requests a second at most")
    parser.add_argument("--share", type=float, default=1.0, help="of the blocks that the judge reads")
    parser.add_argument("--leave", action="store_true", help="the state stays as it was")
    arguments = parser.parse_args()
    model = Model.load(arguments.state)
    if arguments.verb in WITH_SERVER:
        arguments.socket, *arguments.words = arguments.words
        text = WITH_SERVER[arguments.verb](model, arguments)
    else:
        text = change(model, arguments.verb, arguments.words)
    faults, model.faults = model.faults, []
    if not arguments.leave:
        model.save(arguments.state)
    for fault in faults[:FAULTS_SHOWN_MAX]:
        print("violation:", fault)
    print(f"{text}; {len(faults)} violations")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
