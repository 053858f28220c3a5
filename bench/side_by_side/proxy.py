"""A proxy that holds bytes back: what a network between a client and a server costs."""

import os
import re
import subprocess
import time

from . import process
from .place import REPOSITORY, Refused
from .servers import START_SECONDS_MAX


def wait_for(pattern, started, what):
    """What a process that starts says of itself."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        found = re.search(pattern, started.log(), re.MULTILINE)
        if found:
            return found
        if not started.alive() or time.monotonic() > deadline:
            raise Refused(f"{what} did not start:\n{started.log()}")
        time.sleep(0.02)


class Proxy:
    """Between `at` and `to`; each direction takes `delay_us` longer."""

    def __init__(self, directory, between, delay_us, prefix=()):
        at, to = between
        log = os.path.join(directory, "proxy.log")
        binary = os.path.join(REPOSITORY, "target", "release", "netproxy")
        # It ends with its standard input, which is this program's to close.
        command = [*prefix, binary, "--listen", at, "--to", to, "--delay-us", str(delay_us)]
        self.process = process.Process(command, log, stdin=subprocess.PIPE)
        self.address = wait_for(r"^listening at (\S+)", self.process, "netproxy").group(1)

    def stop(self):
        """Ends it."""
        self.process.kill()
