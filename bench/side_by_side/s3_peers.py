"""The candidates of bench/s3 that keep their data in MinIO: Weir and s3backer."""

import os
import re
import resource
import shutil
import subprocess
import time

from . import fio, minio, process, servers
from .place import MIB, Refused

SETTLE_SECONDS_MAX = 600
S3BACKER_BLOCK_BYTES = 128 << 10


def _client_seconds():
    """CPU time of the children that have ended: of fio, as nothing else ends during a job."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Storage:
    """A candidate with everything behind it. What a job costs counts until the last byte has settled."""

    name = ""
    key = ""
    packages = {}
    needs_minio = True
    note = ""

    def __init__(self, directory, size_bytes):
        self.directory = os.path.join(directory, self.key)
        self.size_bytes = size_bytes
        os.makedirs(self.directory)

    @classmethod
    def missing(cls):
        """Packages that are not installed."""
        return [package for tool, package in cls.packages.items() if shutil.which(tool) is None]

    # What a candidate defines: start, stop, target, near_pids, far_pids, counters, settle, make_cold.

    def write_region(self, region, block_bytes=MIB):
        fio.run(self.target(), rw="write", block_bytes=block_bytes, depth=8, region=region)

    def fill(self):
        """Writes every byte once and lets it settle."""
        self.write_region((0, self.size_bytes))
        self.settle()

    def _cpu(self):
        return (sum(map(process.cpu_seconds, self.near_pids())),
                sum(map(process.cpu_seconds, self.far_pids())))

    def run(self, **job):
        """One fio job; CPU times in microseconds per operation, bytes and requests as they were counted."""
        before, cpu, client = self.counters(), self._cpu(), _client_seconds()
        result = fio.run(self.target(), **job)
        client = _client_seconds() - client
        began = time.monotonic()
        if "write" in job["rw"]:
            self.settle()
        result["settle_seconds"] = time.monotonic() - began
        near, far = (end - start for end, start in zip(self._cpu(), cpu))
        after = self.counters()
        scale = 1e6 / max(result["operations"], 1)
        result |= {"client_us": client * scale, "far_us": far * scale, "side_us": (near + far) * scale}
        if self.near_pids():
            result["near_us"] = near * scale
        for key, value in after.items():
            if not isinstance(value, dict):
                result[key] = value - before[key]
        return result

    def delete(self):
        shutil.rmtree(self.directory)


class _OverMinio(Storage):
    def __init__(self, directory, size_bytes):
        super().__init__(directory, size_bytes)
        self.minio = minio.Minio(self.directory)

    def far_pids(self):
        return self.minio.pids()

    def counters(self):
        return self.minio.counters()


class WeirOverMinio(_OverMinio):
    """`weir up`, store s3://."""

    name = "weir"
    key = "weir"
    weir = None

    def __init__(self, directory, size_bytes, options=()):
        super().__init__(directory, size_bytes)
        self.options = list(options)

    def start(self):
        self.minio.start()
        self.weir = _WeirServer(self.directory, self.size_bytes,
                                [*_WeirServer.where, *self.options])
        self.weir.access = self.minio.access()
        self.weir.start()

    def target(self):
        return self.weir.target()

    def near_pids(self):
        return [self.weir.process.pid]

    def settle(self):
        self.weir.settle()

    def rest(self):
        self.weir.rest()

    def make_cold(self):
        # A clean close leaves nothing in the journal; a new process has nothing in memory.
        self.weir.stop()
        self.minio.forget()
        self.weir.start()

    def stop(self):
        if self.weir:
            self.weir.stop()
        self.minio.stop()


class StoreInMinio:
    """What a Weir needs whose store is in a MinIO."""

    where = (f"--store=s3://{minio.BUCKET}/weir",)
    access = {}

    def environment(self):
        return super().environment() | self.access


class _WeirServer(StoreInMinio, servers.Weir):
    pass


class S3backer(_OverMinio):
    """s3backer's FUSE file with a write-back cache as large as the volume."""

    name = "s3backer"
    key = "s3backer"
    packages = {"s3backer": "s3backer"}
    note = ("s3backer: fsync does nothing, so that its write + flush promises nothing; a write is "
            "answered from the cache of its host. FUSE lets one write at a time through to a file, "
            "whatever the depth. Its cache holds the whole volume, the local page cache part of it")

    def __init__(self, directory, size_bytes):
        super().__init__(directory, size_bytes)
        self.mount = os.path.join(self.directory, "mount")
        self.cache = os.path.join(self.directory, "cache")
        self.process = None

    def start(self):
        self.minio.start()
        os.makedirs(self.mount)
        self._mount()

    def _mount(self):
        blocks = self.size_bytes // S3BACKER_BLOCK_BYTES
        self.process = _Mounted([
            "s3backer", "-f", f"--accessId={minio.USER}", f"--accessKey={minio.SECRET}",
            f"--baseURL={self.minio.endpoint}/", f"--blockSize={S3BACKER_BLOCK_BYTES >> 10}k",
            f"--size={self.size_bytes >> 20}m", f"--blockCacheSize={blocks + 64}",
            f"--blockCacheFile={self.cache}", "--blockCacheThreads=16", "--md5CacheSize=0",
            "--md5CacheTime=0", "--minWriteDelay=0", "--listBlocks", "--force", "--quiet",
            "--directIO", minio.BUCKET, self.mount,
        ], os.path.join(self.directory, "s3backer.log"), self.mount)
        deadline = time.monotonic() + servers.START_SECONDS_MAX
        while not os.path.exists(os.path.join(self.mount, "file")):
            if not self.process.alive() or time.monotonic() > deadline:
                raise Refused(f"s3backer did not start:\n{self.process.log()}")
            time.sleep(0.05)

    def _unmount(self):
        # It writes what is dirty before it ends.
        if self.process:
            subprocess.run(["umount", self.mount], check=True)
            self.process.child.wait(timeout=SETTLE_SECONDS_MAX)
            self.process.stop()
            self.process = None

    def target(self):
        return ["--ioengine=io_uring", "--direct=1", f"--filename={self.mount}/file"]

    def near_pids(self):
        return [self.process.pid]

    def _statistics(self):
        with open(os.path.join(self.mount, "stats"), encoding="utf-8") as file:
            return dict(re.findall(r"^(\S+)\s+([0-9.]+)", file.read(), re.M))

    def settle(self):
        """Until no block is dirty and none was written for a while: a block being written is not dirty."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        written, quiet_since = None, time.monotonic()
        while True:
            found = self._statistics()
            if found["block_cache_dirty_ratio"].strip("0.") or found["http_normal_blocks_written"] != written:
                written, quiet_since = found["http_normal_blocks_written"], time.monotonic()
            elif time.monotonic() - quiet_since > 1:
                return
            if time.monotonic() > deadline:
                raise Refused("s3backer does not write its dirty blocks")
            time.sleep(0.1)

    def make_cold(self):
        self._unmount()
        os.unlink(self.cache)
        self.minio.forget()
        self._mount()

    def stop(self):
        self._unmount()
        self.minio.stop()


class _Mounted(process.Process):
    """A FUSE daemon: its mount goes with it."""

    def __init__(self, command, log_path, mount):
        self.mount = mount
        super().__init__(command, log_path)

    def kill(self):
        subprocess.run(["umount", "--lazy", self.mount], check=False, stderr=subprocess.DEVNULL)
        super().kill()
