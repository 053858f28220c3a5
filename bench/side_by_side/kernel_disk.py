"""An NBD export as a disk of the kernel's: nbdfuse and a loop device past the page cache, and ext4 on it."""

import os
import shutil
import subprocess
import time

from . import place
from .process import Process

SHOWN_SECONDS_MAX = 60


def need():
    """What it needs of the machine."""
    place.need_tools({"nbdfuse", "losetup", "mkfs.ext4", "mount", "umount"})
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        raise place.Refused("a disk of the kernel's needs root and /dev/fuse")


class KernelDisk:
    """A mounted file system on an export, until `end`."""

    def __init__(self, directory, uri):
        self.uri, self.where = uri, os.path.join(directory, "fs")
        self.shown = os.path.join(directory, "disk")
        self.log = os.path.join(directory, "nbdfuse.log")
        self.fuse = self.loop = None
        os.makedirs(self.where, exist_ok=True)

    def _attach(self):
        with open(self.shown, "a", encoding="ascii"):
            pass
        self.fuse = Process(["nbdfuse", "-C", "1", self.shown, self.uri], self.log)
        deadline = time.monotonic() + SHOWN_SECONDS_MAX
        while not (os.path.ismount(self.shown) and os.stat(self.shown).st_size):
            if not self.fuse.alive() or time.monotonic() > deadline:
                raise place.Refused(f"nbdfuse shows no disk:\n{self.fuse.log()}")
            time.sleep(0.02)
        command = ["losetup", "-f", "--show", "--direct-io=on", self.shown]
        self.loop = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    def begin(self, make=False):
        """Mounts it; with `make`, after a new file system was made."""
        self._attach()
        if make:
            subprocess.run(["mkfs.ext4", "-q", "-F", self.loop], check=True)
        subprocess.run(["mount", "-o", "noatime", self.loop, self.where], check=True)

    def end(self):
        """Unmounts it, with everything written."""
        if os.path.ismount(self.where):
            subprocess.run(["umount", self.where], check=True)
        if self.loop:
            subprocess.run(["losetup", "-d", self.loop], check=True)
            self.loop = None
        if self.fuse:
            if os.path.ismount(self.shown):
                subprocess.run(["umount", self.shown], check=True)
            self.fuse.child.wait(timeout=60)
            self.fuse.kill()
            self.fuse = None

    def used_bytes(self):
        """What its files have."""
        return shutil.disk_usage(self.where).used
