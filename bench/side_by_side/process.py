"""CPU time of processes and of their threads, from /proc, and processes that end by their pid."""

import atexit
import os
import subprocess

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def _ticks_of(stat):
    # The name may hold spaces and parentheses: fields are counted after its end.
    fields = stat[stat.rindex(")") + 2 :].split()
    return int(fields[11]) + int(fields[12])


def cpu_seconds(pid):
    """User and system time of a process: all its threads, those that have ended too."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return _ticks_of(file.read()) / TICKS_PER_SECOND


def thread_cpu_seconds(pid, prefix):
    """User and system time of the living threads whose name begins with `prefix`."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/stat", encoding="utf-8", errors="replace") as file:
                stat = file.read()
        except OSError:
            continue
        if stat[stat.index("(") + 1 :].startswith(prefix):
            total += _ticks_of(stat)
    return total / TICKS_PER_SECOND


def io_of(pid):
    """What the kernel counts of a process: `read_bytes` and `write_bytes` are those of the disk."""
    with open(f"/proc/{pid}/io", encoding="utf-8") as file:
        return {key: int(value) for key, value in (line.split(": ") for line in file)}


class Process:
    """A child that is ended by its pid, at the latest when this program ends."""

    def __init__(self, command, log_path, environment=None, stdin=subprocess.DEVNULL):
        with open(log_path, "ab") as log:
            self.child = subprocess.Popen(  # pylint: disable=consider-using-with
                command, stdin=stdin, stdout=log, stderr=log, env=environment
            )
        self.log_path = log_path
        atexit.register(self.kill)

    @property
    def pid(self):
        return self.child.pid

    def alive(self):
        return self.child.poll() is None

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def stop(self, seconds=120):
        """SIGTERM and waits; an error if it did not end well."""
        if self.child.poll() is None:
            self.child.terminate()
        status = self.child.wait(timeout=seconds)
        atexit.unregister(self.kill)
        return status

    def kill(self):
        """SIGKILL and waits."""
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        atexit.unregister(self.kill)
