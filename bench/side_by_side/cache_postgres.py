"""bench/cache --postgres: transactions of pgbench on a volume over MinIO, with the cache on the local disk and without.

The data is four times the memory that PostgreSQL has, page cache included: a memory cgroup sees to that. Each run begins
with a new process of Weir, a new mount and a new PostgreSQL.
"""

import glob
import os
import random
import re
import shutil
import subprocess
import sys
import time

from . import place, stats
from .cached import Cached, Uncached
from .kernel_disk import KernelDisk, need
from .process import Process
from .servers import run_verb

MEMORY_BYTES = 512 * place.MIB
DATA_TIMES = 4
# What a unit of pgbench's scale takes, with its index.
UNIT_BYTES = 15 * place.MIB
VOLUME_BYTES = 6 * place.GIB
WEIR_MEMORY = "128M"
CGROUPS = "/sys/fs/cgroup/memory"
READY_SECONDS_MAX = 120
CLIENTS = 8
KINDS = {"TPC-B (sort of)": [], "select only": ["-S"]}
AS_POSTGRES = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]


def need_bytes(scale):
    return 6 * VOLUME_BYTES // scale + 8 * place.GIB


def _programs():
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/pgbench"))
    if not found or subprocess.run(["id", "postgres"], check=False, capture_output=True).returncode:
        raise place.Refused("PostgreSQL is not installed, or there is no user postgres")
    return os.path.dirname(found[-1])


class Postgres:
    """A PostgreSQL whose data is on a mounted disk, in a memory cgroup."""

    def __init__(self, directory, where, memory_bytes):
        self.programs = _programs()
        self.data, self.memory_bytes = os.path.join(where, "pg"), memory_bytes
        self.group = os.path.join(CGROUPS, f"weir-bench-{os.getpid()}")
        self.process = None
        self.sockets = os.path.join(directory, "pg")
        os.makedirs(self.sockets, exist_ok=True)
        shutil.chown(self.sockets, "postgres")

    def program(self, name, *words):
        return [*AS_POSTGRES, os.path.join(self.programs, name), *words]

    def initialize(self):
        os.makedirs(self.data, mode=0o700)
        shutil.chown(self.data, "postgres")
        subprocess.run(self.program("initdb", "-A", "trust", "-D", self.data), check=True, stdout=subprocess.DEVNULL)

    def _is_ready(self):
        ask = self.program("psql", "-h", self.sockets, "-XqtA", "-d", "postgres", "-c", "select 1")
        return subprocess.run(ask, check=False, capture_output=True).returncode == 0

    def start(self):
        os.makedirs(self.group, exist_ok=True)
        with open(os.path.join(self.group, "memory.limit_in_bytes"), "w", encoding="ascii") as limit:
            limit.write(str(self.memory_bytes))
        server = self.program("postgres", "-D", self.data, "-k", self.sockets, "-c", "listen_addresses=",
                              "-c", "max_wal_size=512MB")
        into = f'echo $$ >"{self.group}/cgroup.procs" && exec "$@"'
        self.process = Process(["sh", "-c", into, "sh", *server], os.path.join(self.sockets, "log"))
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self._is_ready():
            if not self.process.alive() or time.monotonic() > deadline:
                raise place.Refused(f"PostgreSQL does not answer:\n{self.process.log()}")
            time.sleep(0.05)

    def stop(self):
        """Its fast shutdown, with a checkpoint."""
        if self.process:
            self.process.child.send_signal(2)
            self.process.child.wait(timeout=300)
            self.process.kill()
            self.process = None
        if os.path.isdir(self.group):
            os.rmdir(self.group)

    def bench(self, *words):
        command = self.program("pgbench", "-h", self.sockets, *words, "postgres")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise place.Refused(f"pgbench: {done.stderr}")
        return done.stdout


class _Place:
    """One candidate: Weir, the disk over it, and PostgreSQL on that."""

    def __init__(self, server, memory_bytes):
        self.server = server
        uri = f"nbd+unix:///?socket={server.socket}"
        self.disk = KernelDisk(server.directory, uri)
        os.chmod(server.directory, 0o711)
        self.postgres = Postgres(server.directory, self.disk.where, memory_bytes)

    def fill(self, scale):
        self.server.start()
        self.disk.begin(make=True)
        self.postgres.initialize()
        self.postgres.start()
        self.postgres.bench("-i", "-q", "-s", str(scale))
        self.postgres.stop()
        used = self.disk.used_bytes()
        self.disk.end()
        self.server.rest()
        if isinstance(self.server, Cached):
            run_verb([*self.server.weir(), "volume", "warm", self.server.VOLUME], self.server.environment())
        return used

    def run(self, words, seconds):
        """Transactions a second, and what was asked of the store."""
        self.server.restart()
        self.disk.begin()
        self.postgres.start()
        before = self.server.counted()[1]
        said = self.postgres.bench("-n", "-c", str(CLIENTS), "-j", "2", "-T", str(seconds), *words)
        after = self.server.counted()[1]
        self.end_run()
        found = re.search(r"^tps = ([0-9.]+)", said, re.MULTILINE)
        return {"tps": float(found[1]), "gets": after["gets"] - before["gets"]}

    def end_run(self):
        self.postgres.stop()
        self.disk.end()


def _judge(kind, runs, names):
    """Prints what was found of one kind of transactions; the note of it."""
    of = [[found for found in runs if found["kind"] == kind and found["server"] == name] for name in names]
    with_it, without = (stats.median([found["tps"] for found in found_of]) for found_of in of)
    gets = [stats.median([found["gets"] for found in found_of]) for found_of in of]
    ratio = stats.ratio([(cached["tps"], uncached["tps"]) for cached, uncached in zip(*of)])
    interval = f" [{ratio['low']:.1f}, {ratio['high']:.1f}]" if ratio["low"] else ""
    print(f"{kind}: {with_it:,.1f} transactions a second with the cache, {without:,.1f} without, {ratio['ratio']:.2f} x"
          f"{interval}; {gets[0]:,.0f} and {gets[1]:,.0f} GETs", flush=True)
    return f"{kind} {with_it:,.0f} and {without:,.0f} tps, {ratio['ratio']:.1f} x{interval}"


def run(directory, arguments, recorder, _facts):
    """What was found; no goal is set."""
    need()
    memory_bytes = max(MEMORY_BYTES // arguments.scale, 128 * place.MIB)
    scale = DATA_TIMES * memory_bytes // UNIT_BYTES
    Cached.memory = Uncached.memory = WEIR_MEMORY
    Cached.cache = str(VOLUME_BYTES // arguments.scale)
    os.chmod(directory, 0o711)
    places = [_Place(kind(directory, VOLUME_BYTES // arguments.scale), memory_bytes) for kind in (Cached, Uncached)]
    runs = []
    try:
        for one in places:
            print(f"filling {one.server.name}, scale {scale}", file=sys.stderr)
            used = one.fill(scale)
            print(f"{used / place.MIB:,.0f} MiB in the file system", file=sys.stderr)
        for pair in range(arguments.pairs):
            for kind, words in KINDS.items():
                for one in random.sample(places, len(places)):
                    found = one.run(words, max(int(arguments.seconds), 1))
                    runs.append({"pair": pair, "kind": kind, "server": one.server.name, **found})
            load = place.load_average()[0]
            print(f"pair {pair + 1} of {arguments.pairs} done, load average {load:.1f}", file=sys.stderr)
    finally:
        for one in places:
            one.end_run()
            one.server.end()
    notes = [_judge(kind, runs, [one.server.name for one in places]) for kind in KINDS]
    recorder.seen("cache:postgres", "; ".join(notes) + f"; {memory_bytes >> 20} MiB of memory, data {DATA_TIMES} x")
    return {"runs": runs}, True
