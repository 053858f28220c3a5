"""A volume in steady state: `weir serve` on a file:// store, a collector that is switched on and off, and samples."""

import bisect
import os
import signal
import threading
import time

from . import fio, node_api, place, process
from .servers import run_verb

START_SECONDS_MAX = 60
VOLUME = "bench"
WRITE_BLOCK = 1 << 20


class Aged:
    """The collector is switched by a change of the file of settings and a reload: the same process and journal."""

    def __init__(self, directory, sizes, collect_below):
        self.directory, self.sizes, self.collect_below = directory, sizes, collect_below
        self.binary = place.weir_binary()
        self.data = os.path.join(directory, "data")
        self.store = os.path.join(self.data, "store")
        self.configuration = os.path.join(directory, "weir.toml")
        self.log = os.path.join(directory, "log")
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("WEIR_")}
        self.process = None
        self.starts = 0

    def _configure(self, collects):
        with open(self.configuration, "w", encoding="ascii") as file:
            file.write(f"""data_dir = "{self.data}"
[defaults]
journal = {self.sizes['journal']}
batch = {self.sizes['batch']}
collect_below = {self.collect_below if collects else 0}
[[volumes]]
name = "{VOLUME}"
size = {self.sizes['volume']}
""")

    def _wait_until_it_serves(self):
        self.starts += 1
        deadline = time.monotonic() + START_SECONDS_MAX
        while self.process.log().count("listening at") < self.starts:
            if not self.process.alive() or time.monotonic() > deadline:
                raise place.Refused(f"weir does not serve:\n{self.process.log()}")
            time.sleep(0.05)

    def start(self):
        self._configure(True)
        command = [self.binary, "serve", "--config", self.configuration]
        self.process = process.Process(command, self.log, self.environment)
        self._wait_until_it_serves()

    def stop(self):
        self.process.stop()

    def _weir(self, *words):
        run_verb([self.binary, "--data-dir", self.data, *words], self.environment)

    def settle(self):
        self._weir("volume", "flush", VOLUME, "--remote", "--wait")

    def switch(self, collects):
        """The collector on or off; what went before is in the store."""
        self.settle()
        self._configure(collects)
        os.kill(self.process.pid, signal.SIGUSR2)
        self._wait_until_it_serves()

    def catch_up(self):
        """Collects the garbage of what went before: each window begins where this ends."""
        self._weir("volume", "compact", VOLUME, "--to", str(self.collect_below + 2))
        self.settle()

    def target(self):
        return ["--ioengine=nbd", f"--uri=nbd+unix:///{VOLUME}?socket={self.data}/nbd.sock"]

    def fill(self):
        fio.run(self.target(), rw="write", block_bytes=WRITE_BLOCK, depth=8, region=(0, self.sizes["used"]))
        self.settle()

    def overwrite(self, **limits):
        """Random writes all over what is used, as fast as they go."""
        return fio.run(self.target(), rw="randwrite", block_bytes=self.sizes["block"], depth=32,
                       region=(0, self.sizes["used"]), **limits)

    def fill_journal(self):
        """What follows has to go on at the rate of the uploads."""
        self.overwrite(io_bytes=self.sizes["journal"] * 3 // 2)

    def metrics(self):
        return node_api.volume_metrics(os.path.join(self.data, "api.sock"), VOLUME)

    def cpu(self):
        return process.cpu_seconds(self.process.pid)

    def stored_bytes(self):
        return sum(size for _, size in place.tree_usage(self.store).values())


class Sampler(threading.Thread):
    """Looks at the store while something else goes on: what it holds beside what it may hold."""

    def __init__(self, aged, every):
        super().__init__()
        self.aged, self.every = aged, every
        self.over, self.error = threading.Event(), None
        self.samples = []
        # Sequences, and payload bytes of clients and of the collector up to them.
        self.sequences, self.bytes = [], []

    def run(self):
        try:
            while not self.over.wait(self.every):
                self._look()
        except OSError as error:
            self.error = error

    def finish(self):
        self.over.set()
        self.join()
        if self.error:
            raise place.Refused(f"the store or the API could not be looked at: {self.error}")

    def _look(self):
        found = self.aged.metrics()
        sequence = found["committed_sequence"]
        written = found["data_bytes_total"] + found["collected_bytes_total"]
        if not self.sequences or sequence > self.sequences[-1]:
            self.sequences.append(sequence)
            self.bytes.append(written)
        self.samples.append({
            "stored": self.aged.stored_bytes(),
            "live": found["live_bytes"],
            "used": found["used_bytes"],
            "since_checkpoint": written - self._bytes_at(found["checkpoint_sequence"]),
        })

    def _bytes_at(self, sequence):
        """Bytes up to a sequence, on the line between two looks; before the first look, those of that."""
        at = bisect.bisect_left(self.sequences, sequence)
        if at == 0:
            return self.bytes[0]
        if at == len(self.sequences):
            return self.bytes[-1]
        low, high = self.sequences[at - 1], self.sequences[at]
        share = (sequence - low) / (high - low)
        return self.bytes[at - 1] + share * (self.bytes[at] - self.bytes[at - 1])
