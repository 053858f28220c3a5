"""The candidates: Weir, its peers and the raw file, each behind the same few calls."""

import contextlib
import glob
import json
import os
import shutil
import subprocess
import time

from . import fio, process
from .place import GIB, MIB, Refused, clean_environment, drop_page_cache, tree_usage, weir_binary

START_SECONDS_MAX = 60
FILL_BLOCK_BYTES = 1 * MIB
# Live share, in percent, at which the collector stops.
COLLECTED_PERCENT = 75
# What is uploaded in a second while next to nothing is to be uploaded.
TRICKLE = "64K"


def bring_to_rest(weir, volumes, live_percent, environment):
    """Waits until volumes have everything in the store, and so much of their objects lives. `weir` is the command up to
    its verb, with what names data and store."""
    for verb, *words in (["flush", "--remote", "--wait"], ["compact", "--to", str(live_percent)]):
        for volume in volumes:
            run_verb([*weir, "volume", verb, volume, *words], environment)


def run_verb(command, environment):
    """Runs a verb to its end, in silence."""
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Server:
    """A candidate with its own data. `fill` writes every byte of it once, through the server."""

    name = ""
    tools = ()
    # The CPU that every server is bound to, if any.
    pinned_to = None

    def __init__(self, directory, size_bytes):
        self.directory = os.path.join(directory, self.name.replace(" ", "-"))
        self.size_bytes = size_bytes
        self.socket = os.path.join(self.directory, "socket")
        self.process = None
        os.makedirs(self.directory)

    def command(self):
        """What to run."""
        raise NotImplementedError

    def prepare(self):
        """Makes what must exist before the first start."""

    def begin(self):
        """Starts its process, and waits for nothing."""
        self.prepare()
        if os.path.exists(self.socket):
            os.unlink(self.socket)
        log = os.path.join(self.directory, "log")
        pin = [] if self.pinned_to is None else ["taskset", "--cpu-list", str(self.pinned_to)]
        self.process = process.Process(pin + self.command(), log, self.environment())
    def start(self):
        self.begin()
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self.is_ready():
            if not self.process.alive() or time.monotonic() > deadline:
                raise Refused(f"{self.name} did not start:\n{self.process.log()}")
            time.sleep(0.02)

    def environment(self):
        return None

    def is_ready(self):
        return os.path.exists(self.socket)

    def stop(self):
        if self.process:
            self.process.stop()
            self.process = None

    def target(self):
        """fio's arguments that name this server."""
        return ["--ioengine=nbd", f"--uri=nbd+unix:///?socket={self.socket}"]

    def run(self, **job):
        """One fio job, with the CPU time the server spent meanwhile."""
        before = self.cpu()
        result = fio.run(self.target(), **job)
        after = self.cpu()
        for key, seconds in after.items():
            result[key] = (seconds - before[key]) * 1e6 / max(result["operations"], 1)
        return result

    def cpu(self):
        """CPU seconds by kind, for differences."""
        if not self.process:
            return {}
        return {"cpu_us": process.cpu_seconds(self.process.pid)}

    def write_region(self, region):
        """Writes a region once, in order."""
        fio.run(self.target(), rw="write", block_bytes=FILL_BLOCK_BYTES, depth=8, region=region)

    def fill(self):
        self.write_region((0, self.size_bytes))
        self.settle()

    def settle(self):
        """Waits until everything that was written is where it belongs."""

    def rest(self):
        """Waits until nothing is left to do in the background, so that the next candidate has the machine alone."""
        self.settle()

    def make_cold(self):
        """Forgets what is cached in memory, as far as this candidate can."""

    def store_usage(self):
        """Files and bytes in the object store by kind; nothing for peers without one."""
        return {}


class Weir(Server):
    """`weir up` with its defaults and the embedded file:// store."""

    name = "weir"
    VOLUME = "bench"
    # Options that name its store, if it has another than the embedded one.
    where = ()
    # Beyond this the volume is made anew.
    STORE_BYTES_EXTRA_MAX = 10 * GIB

    def __init__(self, directory, size_bytes, options=(), binary=None):
        super().__init__(directory, size_bytes)
        self.binary = binary or weir_binary()
        self.options = list(options)
        self.data = os.path.join(self.directory, "data")
        self.store = os.path.join(self.data, "store")

    def weir(self):
        """The command up to its verb."""
        return [self.binary, "--data-dir", self.data, *self.where]

    def command(self):
        return [
            self.binary, "--data-dir", self.data, "up", self.VOLUME,
            "--size", str(self.size_bytes), "--nbd-socket", self.socket, *self.options,
        ]

    def environment(self):
        return clean_environment()

    def api(self):
        """The socket of its API: `up` makes one for its volume."""
        return glob.glob(os.path.join(self.data, "control", "*.sock"))[0]

    def status(self):
        """What its process says of itself."""
        command = [self.binary, "--data-dir", self.data, "status", "--output", "json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=self.environment())
        # It ends with 3 while something is degraded: a backlog that is old, for one.
        if done.returncode not in (0, 3):
            raise Refused(f"weir status: {done.stderr}")
        return json.loads(done.stdout)[0]

    def is_ready(self):
        return os.path.exists(self.socket) and "serving nbd" in self.process.log()

    def cpu(self):
        return super().cpu() | {
            "shard_cpu_us": process.thread_cpu_seconds(self.process.pid, "shard-")
        }

    def run(self, **job):
        """Adds what reached the store, and the CPU time until everything has."""
        before_cpu, before_store = self.cpu(), self.store_usage()
        result = super().run(**job)
        if "write" not in job["rw"]:
            return result
        self.settle()
        spent = self.cpu()["cpu_us"] - before_cpu["cpu_us"]
        result["cpu_with_upload_us"] = spent * 1e6 / max(result["operations"], 1)
        result["store"] = difference(before_store, self.store_usage())
        return result

    def limit_uploads(self, bandwidth):
        """Bounds the uploads from now on; `none` lifts the bound."""
        run_verb([*self.weir(), "limits", "set", "--upload-bandwidth", bandwidth], self.environment())

    @contextlib.contextmanager
    def uploads_held_back(self):
        """Next to nothing is uploaded meanwhile."""
        self.limit_uploads(TRICKLE)
        try:
            yield
        finally:
            self.limit_uploads("none")

    def settle(self):
        flush = ["volume", "flush", self.VOLUME, "--remote", "--wait"]
        run_verb([*self.weir(), *flush], self.environment())

    def rest(self):
        # The collector works on for a while after a burst.
        bring_to_rest(self.weir(), [self.VOLUME], COLLECTED_PERCENT, self.environment())

    def make_cold(self):
        # A clean close leaves nothing in the journal; a new process has nothing in memory.
        self.stop()
        drop_page_cache(self.store)
        self.start()

    def store_usage(self):
        return tree_usage(self.store)

    def is_overgrown(self):
        used = sum(size for _, size in self.store_usage().values())
        return used > self.size_bytes + self.STORE_BYTES_EXTRA_MAX

    def renew(self):
        """Deletes the volume and fills a new one."""
        self.stop()
        shutil.rmtree(self.data)
        self.start()
        self.fill()


class OtherWeir(Weir):
    """Another build of Weir, to see what a change brought."""

    name = "other weir"


class HeldBack(Weir):
    """Weir with next to nothing uploaded while a job runs: what a burst is without background work."""

    name = "held back"

    def run(self, **job):
        with self.uploads_held_back():
            return super().run(**job)

    def settle(self):
        self.limit_uploads("none")
        super().settle()


class FileServer(Server):
    """A peer that serves one file, written once before it is measured."""

    def __init__(self, directory, size_bytes):
        super().__init__(directory, size_bytes)
        self.file = os.path.join(self.directory, "file")

    def prepare(self):
        if not os.path.exists(self.file):
            with open(self.file, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, self.size_bytes)

    def settle(self):
        with open(self.file, "rb") as file:
            os.fdatasync(file.fileno())

    def make_cold(self):
        drop_page_cache(self.file)


class QemuNbd(FileServer):
    """qemu-nbd, raw file, O_DIRECT, io_uring."""

    name = "qemu-nbd"
    tools = ("qemu-nbd",)

    def command(self):
        return [
            "qemu-nbd", "--persistent", "--shared=8", "--format=raw", "--cache=none",
            "--aio=io_uring", "--discard=unmap", f"--socket={self.socket}", self.file,
        ]


class NbdkitFile(FileServer):
    """nbdkit's file plugin: writes are acknowledged from the page cache."""

    name = "nbdkit file"
    tools = ("nbdkit",)

    def command(self):
        return ["nbdkit", "--foreground", "--unix", self.socket, "file", self.file]


class NbdkitMemory(Server):
    """nbdkit's memory plugin: what the protocol costs without a disk."""

    name = "nbdkit memory"
    tools = ("nbdkit",)

    def command(self):
        return ["nbdkit", "--foreground", "--unix", self.socket, "memory", str(self.size_bytes)]


class RawFile(FileServer):
    """fio itself on a file with O_DIRECT: what the disk gives without any server."""

    name = "raw file"

    def command(self):
        raise NotImplementedError

    def start(self):
        self.prepare()

    def target(self):
        return ["--ioengine=io_uring", "--direct=1", f"--filename={self.file}"]


KINDS = (Weir, QemuNbd, NbdkitFile, NbdkitMemory, RawFile)


def difference(before, after):
    """What was added between two usages, by kind: files and bytes."""
    added = {}
    for kind, (files, total) in after.items():
        files_before, total_before = before.get(kind, (0, 0))
        if files != files_before or total != total_before:
            added[kind] = (files - files_before, total - total_before)
    return added
