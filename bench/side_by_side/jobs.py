"""The jobs of bench/nbd and bench/s3: what is set up before each run, and what fio then does."""

from .place import MIB

# Written just before it is read, and small enough to stay in the memory of every candidate.
RAM_REGION_BYTES = 32 * MIB
# Enough writes elsewhere to push the copies of the journal region out of memory.
EVICTING_BYTES = 128 * MIB
# Written just before it is read in bench/s3: stays in the caches of every candidate.
WARM_REGION_BYTES = 128 * MIB


class Sizes:
    """What a run may use: the volume, seconds per job, and the bytes a burst may write."""

    def __init__(self, volume_bytes, seconds, burst_bytes):
        self.volume_bytes = volume_bytes
        self.seconds = seconds
        # A burst fits the journal beside what the uploads of earlier jobs still hold.
        self.burst_bytes = burst_bytes
        self.journal_region_bytes = min(256 * MIB, volume_bytes // 4)

    def whole(self):
        return (0, self.volume_bytes)


class Job:
    """One line of the report."""

    def __init__(self, key, title, setup, **fio):
        self.key = key
        self.title = title
        self.setup = setup
        self.fio = fio
        self.writes = "write" in fio["rw"]

    def run(self, server, sizes):
        region = self.setup(server, sizes)
        limits = {"io_bytes": sizes.burst_bytes} if self.writes else {}
        return server.run(region=region, seconds=sizes.seconds, **limits, **self.fio)


def whole(_server, sizes):
    """Nothing is set up, and all of the volume is used."""
    return sizes.whole()


def _ram(server, sizes):
    region = (sizes.volume_bytes // 2, RAM_REGION_BYTES)
    server.write_region(region)
    return region


def _journal(server, sizes):
    region = (0, sizes.journal_region_bytes)
    server.write_region(region)
    server.write_region((sizes.volume_bytes // 2, EVICTING_BYTES))
    server.settle()
    return region


def _cold(server, sizes):
    server.settle()
    server.make_cold()
    return sizes.whole()


JOBS = (
    Job("rw1", "4k random write QD1", whole, rw="randwrite", block_bytes=4096, depth=1),
    Job("rw32", "4k random write QD32", whole, rw="randwrite", block_bytes=4096, depth=32),
    Job("rw32x4", "4k random write QD32, 4 connections", whole, rw="randwrite",
        block_bytes=4096, depth=32, jobs=4),
    Job("fs1", "4k random write + flush QD1", whole, rw="randwrite", block_bytes=4096, depth=1,
        fsync=True),
    Job("sw8", "128k sequential write QD8", whole, rw="write", block_bytes=128 << 10, depth=8),
    Job("rr1-ram", "4k random read QD1, from RAM", _ram, rw="randread", block_bytes=4096, depth=1),
    Job("rr32-ram", "4k random read QD32, from RAM", _ram, rw="randread", block_bytes=4096,
        depth=32),
    Job("rr1-journal", "4k random read QD1, from the journal", _journal, rw="randread",
        block_bytes=4096, depth=1),
    Job("rr32-journal", "4k random read QD32, from the journal", _journal, rw="randread",
        block_bytes=4096, depth=32),
    Job("rr1-cold", "4k random read QD1, cold", _cold, rw="randread", block_bytes=4096, depth=1),
    Job("rr32-cold", "4k random read QD32, cold", _cold, rw="randread", block_bytes=4096,
        depth=32),
)


def _written(server, sizes):
    region = (sizes.volume_bytes // 2, WARM_REGION_BYTES)
    server.write_region(region)
    server.settle()
    return region


S3_JOBS = (
    Job("rw1", "4k random write QD1", whole, rw="randwrite", block_bytes=4096, depth=1),
    Job("rw32", "4k random write QD32", whole, rw="randwrite", block_bytes=4096, depth=32),
    Job("rw32-16k", "16k random write QD32", whole, rw="randwrite", block_bytes=16 << 10, depth=32),
    Job("fs1", "4k random write + flush QD1", whole, rw="randwrite", block_bytes=4096, depth=1,
        fsync=True),
    Job("sw8", "64k sequential write QD8", whole, rw="write", block_bytes=64 << 10, depth=8),
    Job("rr32-warm", "4k random read QD32, just written", _written, rw="randread", block_bytes=4096,
        depth=32),
    Job("rr32-cold", "4k random read QD32, cold", _cold, rw="randread", block_bytes=4096, depth=32),
)

_BY_KEY = {job.key: job for job in (*S3_JOBS, *JOBS)}
# What is a burst, of the jobs above.
BURST_JOBS = tuple(_BY_KEY[key] for key in ("rw32", "rw32-16k", "sw8", "rw1", "fs1", "rw32x4"))
