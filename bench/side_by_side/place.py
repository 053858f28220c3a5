"""Where a benchmark works: a directory that is gone afterwards, and facts about the machine."""

import atexit
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MIB = 1 << 20
GIB = 1 << 30


class Refused(Exception):
    """The benchmark cannot run here; the message says why and what to do."""


def weir_binary():
    path = os.environ.get("WEIR_BIN", os.path.join(REPOSITORY, "target/release/weir"))
    if not os.access(path, os.X_OK):
        raise Refused(f"{path} is not there: cargo build --release, or set WEIR_BIN")
    return os.path.abspath(path)


def clean_environment():
    """The environment without settings of Weir: those of the caller's shell must not leak into the measurement."""
    return {k: v for k, v in os.environ.items() if not k.startswith("WEIR_")}


def need_tools(names):
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        raise Refused("not installed: " + ", ".join(missing))


def work_directory(parent, need_bytes):
    """A fresh directory that is removed when this process ends, after a look at the free space."""
    parent = parent or os.environ.get("TMPDIR") or "/var/tmp"
    free = shutil.disk_usage(parent).free
    if free < need_bytes:
        raise Refused(
            f"{parent} has {free / GIB:.1f} GiB free and {need_bytes / GIB:.1f} GiB are needed: "
            "give another place with --dir, or run --quick"
        )
    directory = tempfile.mkdtemp(prefix="weir-bench.", dir=parent)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def end_in_order_on_signals():
    """Signals end the program through its exit handlers, which stop servers and delete data."""

    def leave(number, _frame):
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, leave)


def load_average():
    with open("/proc/loadavg", encoding="ascii") as file:
        return [float(word) for word in file.read().split()[:3]]


def _first_line(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return (done.stdout or done.stderr).strip().split("\n")[0]


def _version(text):
    """`weir 0.1.0 (d23a516-dirty)`: the commit is the one that the program was built from."""
    name, _, commit = text.partition(" (")
    return {"weir": name, "commit": commit.rstrip(")") or "built from an unknown commit"}


def facts():
    """The machine and the versions, for the head of a report."""
    model = "unknown"
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    with open("/proc/meminfo", encoding="ascii") as file:
        memory_kib = int(file.readline().split()[1])
    return {
        "date": time.strftime("%Y-%m-%d %H:%M %Z"),
        "cpu": model,
        "cpus": os.cpu_count(),
        "memory_gib": round(memory_kib / MIB, 1),
        "kernel": platform.release(),
        "load_average_at_start": load_average(),
        **_version(_first_line([weir_binary(), "--version"])),
        "fio": _first_line(["fio", "--version"]),
    }


def drop_page_cache(path):
    """Writes back what is cached of a file, or of every file under a directory, and forgets it."""
    files = [path]
    if os.path.isdir(path):
        files = [os.path.join(top, name) for top, _, names in os.walk(path) for name in names]
    for name in files:
        try:
            descriptor = os.open(name, os.O_RDONLY)
        except OSError:
            # A temporary file may have been renamed meanwhile.
            continue
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def tree_usage(path):
    """Files and bytes under a directory, by the name of the directory they lie in."""
    usage = {}
    for top, _, names in os.walk(path):
        kind = os.path.basename(top)
        for name in names:
            try:
                size = os.stat(os.path.join(top, name)).st_size
            except OSError:
                continue
            files, total = usage.get(kind, (0, 0))
            usage[kind] = (files + 1, total + size)
    return usage
