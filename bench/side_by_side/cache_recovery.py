"""bench/cache --recovery: how long a full cache takes to be of use again, after a kill and after a stop in order."""

import random
import subprocess
import sys
import time

from . import place
from .cached import Cached
from .nbd_client import Client, NbdError

CACHE_BYTES = 16 * place.GIB
# More than the cache holds, so that it fills.
VOLUME_BYTES = 17 * place.GIB
FULL_SHARE = 0.9
# Where the cache does not get so full, what it took is measured, and that is said.
KEPT_SHARE = 0.99
CRASH_SECONDS_MAX, CLEAN_SECONDS_MAX = 2.0, 1.0
FIRST_READ_SECONDS_MAX = 120
KNOWN_SECONDS_MAX = 900
DISK_BYTES_MAX = 4 * place.GIB
BLOCK_BYTES = 4096


def need_bytes(scale):
    # It is written once, in order: there is little garbage.
    return (VOLUME_BYTES + VOLUME_BYTES // 4 + CACHE_BYTES) // scale + 4 * place.GIB


def _disk_rate(path, most):
    """Bytes a second of the file in order, past the page cache."""
    blocks = most // place.MIB
    begun = time.monotonic()
    subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=1M", f"count={blocks}", "iflag=direct"], check=True,
                   stderr=subprocess.DEVNULL)
    return blocks * place.MIB / (time.monotonic() - begun)


def _first_read(weir, begun):
    """Seconds until a client that tries all the time has read a block somewhere."""
    offset = random.randrange(weir.size_bytes // BLOCK_BYTES) * BLOCK_BYTES
    while True:
        try:
            client = Client(weir.socket)
            client.read(offset, BLOCK_BYTES)
            client.close()
            return time.monotonic() - begun
        except (OSError, NbdError):
            if not weir.process.alive() or time.monotonic() - begun > FIRST_READ_SECONDS_MAX:
                raise place.Refused(f"no read was served:\n{weir.process.log()}") from None
            time.sleep(0.002)


def _start(weir, held_bytes):
    """A start and what came when: the first read, and the cache as full as it was."""
    begun = time.monotonic()
    weir.begin()
    first = _first_read(weir, begun)
    while True:
        cache, _ = weir.counted()
        seconds = time.monotonic() - begun
        if "recovered_permille" not in cache or seconds > KNOWN_SECONDS_MAX:
            break
        time.sleep(0.02)
    return {"first_seconds": first, "known_seconds": seconds, "kept": cache["bytes"] / max(held_bytes, 1)}


def _one(weir, is_crash):
    held = weir.counted()[0]["bytes"]
    if is_crash:
        weir.process.kill()
        weir.process = None
    else:
        weir.stop()
    # Nothing of the file may come from the kernel's memory.
    place.drop_page_cache(weir.cache_file())
    return _start(weir, held)


def _text(name, runs):
    def spread(key):
        found = [run[key] for run in runs]
        return f"{min(found):.3f} to {max(found):.3f}" if len(found) > 1 else f"{found[0]:.3f}"
    return (f"{name}: first read after {spread('first_seconds')} s, all of the cache counts after "
            f"{spread('known_seconds')} s, {min(run['kept'] for run in runs):.1%} of it kept")


def run(directory, arguments, recorder, _facts):
    """What was found, and whether the goals were reached."""
    capacity = CACHE_BYTES // arguments.scale
    Cached.cache = str(capacity)
    weir = Cached(directory, VOLUME_BYTES // arguments.scale)
    try:
        print("filling the volume", file=sys.stderr)
        weir.start()
        weir.fill()
        cache = weir.warm(lambda cache: cache["bytes"] >= FULL_SHARE * cache["capacity_bytes"])
        full = cache["bytes"] / cache["capacity_bytes"]
        found = {"after a kill": [], "after a stop": []}
        for number in range(arguments.runs):
            found["after a kill"].append(_one(weir, True))
            found["after a stop"].append(_one(weir, False))
            print(f"run {number + 1} of {arguments.runs} done, load average {place.load_average()[0]:.1f}", file=sys.stderr)
        weir.stop()
        rate = _disk_rate(weir.cache_file(), min(DISK_BYTES_MAX, capacity))
    finally:
        weir.end()
    lines = [_text(name, runs) for name, runs in found.items()]
    print(f"a cache of {capacity / place.GIB:.2f} GiB, {full:.1%} full; the disk reads that file in order at "
          f"{rate / place.MIB:,.0f} MiB/s, all of it in {capacity / rate:.1f} s")
    print("\n".join(lines), flush=True)
    crash = max(run["first_seconds"] for run in found["after a kill"])
    clean = max(max(run["first_seconds"], run["known_seconds"]) for run in found["after a stop"])
    kept = min(run["kept"] for runs in found.values() for run in runs)
    shows = full >= FULL_SHARE and kept >= KEPT_SHARE
    if not shows:
        print(f"this shows nothing: the cache was {full:.1%} full, and {kept:.1%} of it was kept")
    reached = shows and crash <= CRASH_SECONDS_MAX and clean <= CLEAN_SECONDS_MAX
    print(f"{'reached' if reached else 'MISSED '}: first read {crash:.2f} s after a kill (goal {CRASH_SECONDS_MAX}), warm "
          f"{clean:.2f} s after a stop (goal {CLEAN_SECONDS_MAX})")
    known = max(run["known_seconds"] for run in found["after a kill"])
    note = (f"first read {crash:.2f} s after a kill, all known after {known:.1f} s, warm {clean:.2f} s after a stop; "
            f"{full:.0%} full, disk {rate / place.MIB:,.0f} MiB/s")
    if reached:
        recorder.seen("cache:recovery", note)
    elif shows:
        recorder.value("cache:recovery", crash, arguments.runs, note)
    return {"runs": found, "disk_bytes_per_second": rate, "full": full}, reached
