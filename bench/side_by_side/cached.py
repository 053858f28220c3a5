"""Weir with the cache on the local disk and without it, over a MinIO whose answers come late."""

import os
import sys
import time

from . import fio, minio, place, servers
from .nbd_client import Client, NbdError
from .proxy import Proxy
from .s3_peers import StoreInMinio
from .servers import FILL_BLOCK_BYTES, Weir

MEMORY = "512M"
CACHE = "6G"
WARM_SECONDS_MAX = 1800
# When none was written for so long, none is on its way.
FILLS_REST_SECONDS = 0.3


class OverMinio(StoreInMinio, Weir):
    """Weir over a MinIO whose answers come late; over a directory where `is_directory` says so."""

    memory = MEMORY
    cache = "off"
    delay_us = 0
    is_directory = False

    def __init__(self, directory, size_bytes):
        if self.is_directory:
            self.where = ()
        options = ["--memory", self.memory, "--cache", self.cache]
        super().__init__(directory, size_bytes, options=[*self.where, *options])
        self.minio = None if self.is_directory else minio.Minio(self.directory)
        self.proxy = None

    def start(self):
        self.start_store()
        super().start()

    def start_store(self):
        """What it keeps its objects in, the first time."""
        if self.minio is None or self.minio.process is not None:
            return
        self.minio.start()
        self.access = self.minio.access()
        if self.delay_us:
            # Half on the way there, half on the way back.
            between = ("127.0.0.1:0", self.minio.endpoint.removeprefix("http://"))
            self.proxy = Proxy(self.directory, between, self.delay_us // 2)
            self.access = self.access | {"AWS_ENDPOINT_URL": f"http://{self.proxy.address}"}

    def end(self):
        """Stops what it keeps its objects in as well."""
        self.stop()
        if self.proxy:
            self.proxy.stop()
        if self.minio:
            self.minio.stop()

    def fill(self):
        fio.run(self.target(), rw="write", block_bytes=FILL_BLOCK_BYTES, depth=8, region=(0, self.size_bytes))
        self.rest()

    def read_all(self):
        """Reads every byte once, in order."""
        fio.run(self.target(), rw="read", block_bytes=FILL_BLOCK_BYTES, depth=4, region=(0, self.size_bytes))

    def restart(self):
        """A clean end and a new process: nothing is in memory."""
        self.stop()
        self.start()

    def wait_for_fills(self):
        """What came into the store is written to the cache behind it: until nothing more is."""
        before = None
        while (fills := self.counted()[0]["fills"]) != before:
            before = fills
            time.sleep(FILLS_REST_SECONDS)

    def counted(self):
        """What its process says of the cache, and of its requests to the store."""
        status = self.status()
        return status["cache"], status["store_requests"]

    def cache_file(self):
        return os.path.join(self.data, "cache", "blocks")

    def warm(self, enough):
        """Reads everything until `enough` of it is in the cache, each time with a new process."""
        deadline = time.monotonic() + WARM_SECONDS_MAX
        while True:
            self.restart()
            self.read_all()
            self.wait_for_fills()
            cache, _ = self.counted()
            print(f"{cache['bytes'] / place.MIB:,.0f} MiB are in the cache", file=sys.stderr)
            if enough(cache) or time.monotonic() > deadline:
                return cache


class Cached(OverMinio):
    """Weir with the cache on the local disk."""

    name = "weir"
    cache = CACHE


class Uncached(OverMinio):
    """The same without it."""

    name = "without cache"


class TwoVolumes(Cached):
    """`weir serve` with two volumes and one cache: which of them looked into it is counted for each."""

    def __init__(self, directory, sizes):
        super().__init__(directory, sum(sizes.values()))
        self.sizes = sizes

    def command(self):
        volumes = ",".join(f"{name}:{size}" for name, size in self.sizes.items())
        return [self.binary, "--data-dir", self.data, "serve", "--volume", volumes, "--nbd-socket", self.socket,
                *self.options]

    def is_ready(self):
        try:
            for name in self.sizes:
                Client(self.socket, export=name).close()
        except (OSError, NbdError):
            return False
        return True

    def target_of(self, name):
        """fio's arguments that name one of them."""
        return ["--ioengine=nbd", f"--uri=nbd+unix:///{name}?socket={self.socket}"]

    def fill(self):
        for name, size in self.sizes.items():
            fio.run(self.target_of(name), rw="write", block_bytes=FILL_BLOCK_BYTES, depth=8, region=(0, size))
        self.rest()

    def rest(self):
        servers.bring_to_rest(self.weir(), list(self.sizes), servers.COLLECTED_PERCENT, self.environment())

    def looks(self):
        """By volume: the looks into the cache that found what they asked for, and those that did not."""
        volumes = {volume["name"]: volume for volume in self.status()["volumes"]}
        return {name: (volumes[name]["log"]["cache_hits"], volumes[name]["log"]["cache_misses"]) for name in self.sizes}
