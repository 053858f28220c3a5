#!/usr/bin/python3
"""A load that must not notice that the server of its disk is replaced. Nothing but the standard library, for guests.

    upgrade_load.py nbd URI SECONDS                     through libnbd
    upgrade_load.py file DEVICE SECONDS                 a block device, O_DIRECT
    upgrade_load.py kernel HOST PORT EXPORT SECONDS     the kernel's NBD client on /dev/nbd0, which is connected here

Four threads write, read back and flush, one request at a time each, in 16 MiB of their own. Every 4 KiB says which
write it belongs to, so each read is compared with the last write there that was answered well. At the end all is
read once more. It prints `NAME VALUE.` lines; it ends with 0 whatever it saw: the caller judges.
"""

import errno
import mmap
import os
import random
import select
import socket
import struct
import sys
import threading
import time

BLOCK = 4096
THREADS = 4
BLOCKS_PER_THREAD = 4096
BLOCKS_PER_REQUEST_MAX = 16
HEADER = struct.Struct("<QQ")
# How long the kernel's client waits for a reply before it asks again, and for a connection before it gives up.
KERNEL_TIMEOUT_SECONDS = 5
KERNEL_DEAD_SECONDS = 300
POOL = random.Random("upgrade").randbytes(1 << 20)


def content(block, generation):
    at = (block * 7919 + generation * 131) % (len(POOL) - BLOCK)
    return HEADER.pack(block, generation) + POOL[at:at + BLOCK - HEADER.size]


class NbdDisk:
    """A connection of libnbd's for each thread."""

    def __init__(self, uri):
        import nbd  # pylint: disable=import-outside-toplevel
        self.error = nbd.Error
        self.handle = nbd.NBD()
        self.handle.connect_uri(uri)

    def write(self, offset, data):
        self.handle.pwrite(data, offset)

    def read(self, offset, length):
        return bytes(self.handle.pread(length, offset))

    def flush(self):
        self.handle.flush()


class FileDisk:
    """A block device past the page cache."""

    error = OSError

    def __init__(self, path):
        self.file = os.open(path, os.O_RDWR | os.O_DIRECT)
        self.buffer = mmap.mmap(-1, BLOCK * BLOCKS_PER_REQUEST_MAX)

    def write(self, offset, data):
        self.buffer[:len(data)] = data
        done = os.pwritev(self.file, [memoryview(self.buffer)[:len(data)]], offset)
        if done != len(data):
            raise OSError(errno.EIO, f"{done} of {len(data)} bytes written")

    def read(self, offset, length):
        done = os.preadv(self.file, [memoryview(self.buffer)[:length]], offset)
        if done != length:
            raise OSError(errno.EIO, f"{done} of {length} bytes read")
        return self.buffer[:length]

    def flush(self):
        os.fsync(self.file)


class Worker(threading.Thread):
    """One thread's region and what it saw there."""

    def __init__(self, number, make_disk, stop_at):
        super().__init__()
        self.disk = make_disk()
        self.stop_at = stop_at
        self.random = random.Random(number)
        self.first = number * BLOCKS_PER_THREAD
        self.generations = [0] * BLOCKS_PER_THREAD
        self.generation = 0
        self.operations = self.errors = self.wrong = 0
        self.longest = 0.0
        self.seconds = []
        self.first_error = None

    def timed(self, call, *arguments):
        """The call's result; None after an error, which is counted."""
        began = time.monotonic()
        try:
            return call(*arguments)
        except self.disk.error as problem:
            self.errors += 1
            self.first_error = self.first_error or str(problem)
            return None
        finally:
            took = time.monotonic() - began
            self.operations += 1
            self.longest = max(self.longest, took)
            if len(self.seconds) < 200_000:
                self.seconds.append(took)

    def write(self, at, count):
        self.generation += 1
        blocks = range(self.first + at, self.first + at + count)
        data = bytearray(b"".join(content(block, self.generation) for block in blocks))
        # What a write that failed left there is not known: nothing is expected of it.
        self.generations[at:at + count] = [None] * count
        errors = self.errors
        self.timed(self.disk.write, blocks.start * BLOCK, data)
        if self.errors == errors:
            self.generations[at:at + count] = [self.generation] * count

    def verify(self, at, count):
        data = self.timed(self.disk.read, (self.first + at) * BLOCK, count * BLOCK)
        if data is None:
            return
        for index in range(count):
            generation = self.generations[at + index]
            expected = generation and content(self.first + at + index, generation)
            if expected and data[index * BLOCK:(index + 1) * BLOCK] != expected:
                self.wrong += 1

    def sweep(self, act):
        for at in range(0, BLOCKS_PER_THREAD, BLOCKS_PER_REQUEST_MAX):
            act(at, BLOCKS_PER_REQUEST_MAX)

    def run(self):
        while time.monotonic() < self.stop_at:
            count = self.random.choice((1, 1, 1, 2, 4, 8, 16))
            at = self.random.randrange(BLOCKS_PER_THREAD - count + 1)
            kind = self.random.random()
            if kind < 0.6:
                self.write(at, count)
            elif kind < 0.97:
                self.verify(at, count)
            else:
                self.timed(self.disk.flush)
            # A disk that refuses at once must not fill the memory with errors.
            if self.errors > 1000:
                break
        self.sweep(self.verify)


def say(name, value):
    print(f"{name} {value}.", flush=True)


def kernel_errors():
    """Lines of the kernel's log that tell of I/O errors; None where it cannot be read."""
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    found = 0
    while True:
        try:
            line = os.read(log, 8192)
        except BlockingIOError:
            return found
        except OSError:
            # Overwritten meanwhile: the next one is read.
            continue
        found += b"I/O error" in line


def load(make_disk, seconds):
    say("LOADING", seconds)
    workers = [Worker(number, make_disk, time.monotonic() + seconds) for number in range(THREADS)]
    for worker in workers:
        worker.start()
    time.sleep(seconds)
    # From here on the server may stay as it is: all is read once more.
    say("SWEEPING", sum(worker.operations for worker in workers))
    for worker in workers:
        worker.join()
    times = sorted(took for worker in workers for took in worker.seconds)
    say("OPERATIONS", sum(worker.operations for worker in workers))
    say("MEDIAN", f"{times[len(times) // 2] * 1000:.1f}")
    say("SLOW", sum(took > 0.5 for took in times))
    say("LONGEST", f"{max(worker.longest for worker in workers) * 1000:.0f}")
    say("WRONG", sum(worker.wrong for worker in workers))
    say("ERRORS", sum(worker.errors for worker in workers))
    for worker in workers:
        if worker.first_error:
            say("ERROR", worker.first_error)


# ---- the kernel's client, by netlink ----

GENL_CONTROL, GET_FAMILY, FAMILY_ID, FAMILY_NAME, GROUPS, GROUP_NAME, GROUP_ID = 16, 3, 1, 2, 7, 1, 2
CONNECT, RECONFIGURE, LINK_DEAD = 1, 3, 4
INDEX, SIZE, BLOCK_SIZE, TIMEOUT, SERVER_FLAGS, SOCKETS, DEAD_TIMEOUT = 1, 2, 3, 4, 5, 7, 8
SOL_NETLINK, ADD_MEMBERSHIP = 270, 1
REQUEST, ACK, ERROR, NESTED = 1, 4, 2, 0x8000


def attribute(kind, value):
    if isinstance(value, str):
        value = value.encode() + b"\0"
    head = struct.pack("=HH", len(value) + 4, kind)
    return head + value + bytes(-len(value) % 4)


def attributes(data):
    found = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        found[kind & 0x3FFF] = data[4:length]
        data = data[(length + 3) & ~3:]
    return found


class Netlink:
    """Generic netlink: one request at a time."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
        self.socket.bind((0, 0))

    def send(self, family, command, payload):
        body = struct.pack("=BBH", command, 1, 0) + payload
        head = struct.pack("=IHHII", len(body) + 16, family, REQUEST | ACK, 1, 0)
        self.socket.send(head + body)

    def messages(self):
        data = self.socket.recv(65536)
        while len(data) >= 16:
            length, kind = struct.unpack_from("=IH", data)
            yield kind, data[16:length]
            data = data[(length + 3) & ~3:]

    def call(self, family, command, payload):
        """The answer before the acknowledgement, if there is one."""
        self.send(family, command, payload)
        answer = None
        while True:
            for kind, body in self.messages():
                if kind == ERROR:
                    number = struct.unpack_from("=i", body)[0]
                    if number:
                        raise OSError(-number, os.strerror(-number))
                    return answer
                answer = body[4:]


def exact(connection, length):
    data = b""
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise ConnectionError("the server went away")
        data += part
    return data


def negotiate(address, export):
    """A connection that is ready for requests, the size, and the transmission flags."""
    connection = socket.create_connection(address, 60)
    exact(connection, 18)
    name = export.encode()
    data = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
    connection.sendall(struct.pack(">IQII", 1, 0x49484156454F5054, 7, len(data)) + data)
    size = flags = None
    while True:
        _, _, kind, length = struct.unpack(">QIII", exact(connection, 20))
        body = exact(connection, length)
        if kind & 0x80000000:
            raise ConnectionError(f"the export is refused: {body!r}")
        if kind == 1:
            # The kernel goes on with it, and it blocks.
            connection.settimeout(None)
            return connection, size, flags
        if kind == 3 and body[:2] == b"\0\0":
            size, flags = struct.unpack(">QH", body[2:12])


def socket_list(connection):
    item = attribute(1 | NESTED, attribute(1, struct.pack("=I", connection.fileno())))
    return attribute(SOCKETS | NESTED, item)


class KernelClient(threading.Thread):
    """/dev/nbd0 with one connection, which is made anew whenever the kernel says that it is dead."""

    def __init__(self, address, export):
        super().__init__(daemon=True)
        self.address, self.export = address, export
        self.control, self.events = Netlink(), Netlink()
        answer = attributes(self.control.call(GENL_CONTROL, GET_FAMILY, attribute(FAMILY_NAME, "nbd")))
        self.family = struct.unpack("=H", answer[FAMILY_ID])[0]
        for group in attributes(answer[GROUPS]).values():
            number = struct.unpack("=I", attributes(group)[GROUP_ID])[0]
            self.events.socket.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, number)
        self.reconnections = 0
        connection, size, flags = negotiate(address, export)
        self.control.call(self.family, CONNECT, b"".join((
            attribute(INDEX, struct.pack("=I", 0)), attribute(SIZE, struct.pack("=Q", size)),
            attribute(BLOCK_SIZE, struct.pack("=Q", BLOCK)),
            attribute(TIMEOUT, struct.pack("=Q", KERNEL_TIMEOUT_SECONDS)),
            attribute(DEAD_TIMEOUT, struct.pack("=Q", KERNEL_DEAD_SECONDS)),
            attribute(SERVER_FLAGS, struct.pack("=Q", flags)), socket_list(connection))))
        connection.close()
        self.start()

    def run(self):
        while True:
            select.select([self.events.socket], [], [])
            dead = any(body[:1] == bytes((LINK_DEAD,)) for _, body in self.events.messages())
            while dead:
                try:
                    connection, _, _ = negotiate(self.address, self.export)
                    self.control.call(self.family, RECONFIGURE,
                                      attribute(INDEX, struct.pack("=I", 0)) + socket_list(connection))
                    connection.close()
                    self.reconnections += 1
                    dead = False
                except OSError as problem:
                    # ENOSPC: no connection of the device's is dead (any more).
                    dead = problem.errno != errno.ENOSPC
                    time.sleep(0.1)


def main(arguments):
    kind, *rest, seconds = arguments
    seconds = int(seconds)
    client = None
    if kind == "nbd":
        load(lambda: NbdDisk(rest[0]), seconds)
    elif kind == "file":
        load(lambda: FileDisk(rest[0]), seconds)
    else:
        host, port, export = rest
        client = KernelClient((host, int(port)), export)
        load(lambda: FileDisk("/dev/nbd0"), seconds)
        say("RECONNECTIONS", client.reconnections)
    if kind != "nbd":
        say("KERNEL", kernel_errors())


if __name__ == "__main__":
    main(sys.argv[1:])
