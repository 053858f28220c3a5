"""Weir elsewhere than on its embedded store with one volume: over MinIO, and with quiet volumes beside the measured one."""

from . import fio, minio
from .place import GIB, MIB
from .s3_peers import StoreInMinio
from .servers import FILL_BLOCK_BYTES, HeldBack, Weir, run_verb

QUIET_VOLUME_BYTES = 1 * GIB
QUIET_WRITTEN_BYTES = 64 * MIB


class _OverMinio(StoreInMinio):
    """Its store is a MinIO of its own."""

    def __init__(self, directory, size_bytes):
        super().__init__(directory, size_bytes, options=self.where)
        self.minio = minio.Minio(self.directory)

    def start(self):
        self.minio.start()
        self.access = self.minio.access()
        super().start()

    def stop(self):
        super().stop()
        self.minio.stop()


class BurstOverMinio(_OverMinio, Weir):
    """Weir, store s3://."""


class HeldBackOverMinio(_OverMinio, HeldBack):
    """The same with uploads held back."""


class _AmongQuiet:
    """One of several volumes of a node. The others have data, and nobody asks them for anything."""

    quiet = 0

    def command(self):
        return [self.binary, "--data-dir", self.data, "serve", "--nbd-socket", self.socket, *self.options]

    def is_ready(self):
        return "listening at" in self.process.log()

    def target(self, volume=Weir.VOLUME):
        return ["--ioengine=nbd", f"--uri=nbd+unix:///{volume}?socket={self.socket}"]

    def _create(self, volume, size_bytes):
        run_verb([*self.weir(), "volume", "create", volume, "--size", str(size_bytes), "--attach"], self.environment())

    def start(self):
        super().start()
        self._create(self.VOLUME, self.size_bytes)
        for number in range(self.quiet):
            volume = f"quiet{number}"
            self._create(volume, QUIET_VOLUME_BYTES)
            self.write_region((0, QUIET_WRITTEN_BYTES), volume)

    def write_region(self, region, volume=Weir.VOLUME):
        fio.run(self.target(volume), rw="write", block_bytes=FILL_BLOCK_BYTES, depth=8, region=region)


class WeirAmongQuiet(_AmongQuiet, Weir):
    """Weir with several volumes."""


class HeldBackAmongQuiet(_AmongQuiet, HeldBack):
    """The same with uploads held back."""


def among_quiet(quiet):
    """The two candidates with so many volumes beside the measured one."""
    _AmongQuiet.quiet = quiet
    return WeirAmongQuiet, HeldBackAmongQuiet
