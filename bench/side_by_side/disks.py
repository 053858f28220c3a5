"""Loop devices as the disks of a backend, and what the kernel counts of them."""

import atexit
import os
import subprocess
import time

from .place import Refused, need_tools

SECTOR_BYTES = 512
# Fields of /proc/diskstats after the name: kernel's Documentation/admin-guide/iostats.rst.
_READS, _SECTORS_READ, _WRITES, _SECTORS_WRITTEN, _BUSY_MS, _FLUSHES = 0, 2, 4, 6, 9, 15


class Disk:
    """A sparse file behind a loop device with direct I/O, mounted where `mount` says so. Gone at the end."""

    def __init__(self, path, size_bytes, mount=None):
        need_tools(["losetup", *(["mkfs.xfs"] if mount else [])])
        self.path, self.mount = path, mount
        with open(path, "xb") as file:
            file.truncate(size_bytes)
        self.device = None
        atexit.register(self.close)
        done = subprocess.run(["losetup", "--find", "--show", "--direct-io=on", path], capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            raise Refused(f"no loop device: {done.stderr}")
        self.device = done.stdout.strip()
        if mount:
            os.makedirs(mount)
            subprocess.run(["mkfs.xfs", "-q", self.device], check=True)
            subprocess.run(["mount", self.device, mount], check=True)

    def close(self):
        atexit.unregister(self.close)
        if self.device and self.mount:
            subprocess.run(["umount", "--lazy", self.mount], check=False, stderr=subprocess.DEVNULL)
        if self.device:
            subprocess.run(["losetup", "--detach", self.device], check=False)
            self.device = None


def counters(disks):
    """Operations that the disks were asked for, after merging, with their bytes and the time they were busy."""
    names = {os.path.basename(disk.device) for disk in disks}
    total = {"disk_reads": 0, "disk_writes": 0, "disk_flushes": 0, "disk_read_bytes": 0, "disk_written_bytes": 0,
             "busy_ms": 0}
    with open("/proc/diskstats", encoding="ascii") as file:
        for line in file:
            _, _, name, *words = line.split()
            if name not in names:
                continue
            fields = [int(word) for word in words]
            total["disk_reads"] += fields[_READS]
            total["disk_writes"] += fields[_WRITES]
            total["disk_flushes"] += fields[_FLUSHES]
            total["disk_read_bytes"] += fields[_SECTORS_READ] * SECTOR_BYTES
            total["disk_written_bytes"] += fields[_SECTORS_WRITTEN] * SECTOR_BYTES
            total["busy_ms"] += fields[_BUSY_MS]
    return total


def write_back(disks):
    """Nothing that was written is left in the page cache of a mounted disk."""
    for disk in disks:
        if disk.mount:
            subprocess.run(["sync", "--file-system", disk.mount], check=True)
    time.sleep(0.1)
