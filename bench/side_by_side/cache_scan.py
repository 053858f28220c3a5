"""bench/cache --scan: what a scan of another volume takes from a hot set that fits the cache."""

import sys
import threading
import time

from . import fio, place
from .cached import TwoVolumes

HOT_BYTES, SCAN_BYTES, CACHE_BYTES = place.GIB, 8 * place.GIB, 2 * place.GIB
# Little, so that the hot set is read from the cache and not from memory; the least that a node takes.
MEMORY_BYTES, MEMORY_BYTES_MIN = 256 * place.MIB, 64 * place.MIB
HOT, SCAN = "hot", "scan"
POINTS_MAX = 2
# Below this the hot set was not in the cache before the scan, and above it the scan did not leave the cache alone.
WARM_RATIO_MIN, SCAN_RATIO_MAX = 0.9, 0.5
LOOKS_MIN = 1000
COUNTS = ("fills", "dropped", "evictions")
# Warm enough to begin.
WARM_RATIO = 0.995
WINDOW_SECONDS = 1
WARM_SECONDS_MAX = 300
HOT_JOB = {"rw": "randread", "block_bytes": 4096, "depth": 4}


def need_bytes(scale):
    return (2 * (HOT_BYTES + SCAN_BYTES) + CACHE_BYTES) // scale + 4 * place.GIB


class _Looks:
    """Looks of a volume into the cache since the last time that somebody asked."""

    def __init__(self, weir):
        self.weir = weir
        self.before = weir.looks()

    def of(self, name):
        """The share of hits, and of how many looks; None where there was none."""
        now = self.weir.looks()
        hits, misses = (after - before for after, before in zip(now[name], self.before[name]))
        self.before = self.before | {name: now[name]}
        return (hits / (hits + misses), hits + misses) if hits + misses else None


def _window(weir, seconds):
    """The share of hits of the hot set when nobody else reads."""
    looks = _Looks(weir)
    fio.run(weir.target_of(HOT), region=(0, weir.sizes[HOT]), seconds=seconds, **HOT_JOB)
    found = looks.of(HOT)
    if found is None or found[1] < LOOKS_MIN:
        raise place.Refused("next to no read of the hot set looked into the cache: memory holds it; use a smaller --scale")
    return found[0]


def _warm(weir):
    """Reads the hot set until next to nothing of it is missing."""
    deadline = time.monotonic() + WARM_SECONDS_MAX
    while True:
        fio.run(weir.target_of(HOT), rw="read", block_bytes=place.MIB, depth=4, region=(0, weir.sizes[HOT]))
        weir.wait_for_fills()
        if _window(weir, WINDOW_SECONDS) > WARM_RATIO or time.monotonic() > deadline:
            return


def _beside_a_scan(weir, rate_mib):
    """What the looks of both volumes found while the other one is read once in order, and in each second of it."""
    scanned = []
    limit = [f"--rate={rate_mib}m"] if rate_mib else []

    def scan():
        try:
            scanned.append(fio.run(weir.target_of(SCAN), rw="read", block_bytes=128 << 10, depth=8,
                                   region=(0, weir.sizes[SCAN]), extra=limit))
        except place.Refused as problem:
            scanned.append(problem)

    whole, looks, windows = _Looks(weir), _Looks(weir), []
    thread = threading.Thread(target=scan)
    thread.start()
    while thread.is_alive():
        fio.run(weir.target_of(HOT), region=(0, weir.sizes[HOT]), seconds=WINDOW_SECONDS, **HOT_JOB)
        windows.append(looks.of(HOT))
    thread.join()
    if isinstance(scanned[0], place.Refused):
        raise scanned[0]
    hot, of_scan = whole.of(HOT), whole.of(SCAN)
    return {"during": hot[0] if hot else 0.0, "looks": hot[1] if hot else 0, "scan": of_scan[0] if of_scan else 1.0,
            "worst": min((window[0] for window in windows if window), default=0.0), "windows": len(windows),
            "scan_bytes_per_second": weir.sizes[SCAN] / scanned[0]["seconds"]}


def _one(weir, seconds, rate_mib):
    weir.restart()
    _warm(weir)
    before = _window(weir, seconds)
    counted, _ = weir.counted()
    found = {"before": before, **_beside_a_scan(weir, rate_mib)}
    found["after"] = _window(weir, seconds)
    # What came too fast was not taken in, and takes nothing from anybody either.
    found |= {key: count - counted[key] for key, count in weir.counted()[0].items() if key in COUNTS}
    found["fall_points"] = 100 * (before - min(found["during"], found["after"]))
    return found


def _shows(found):
    """Whether the hot set was in the cache, the scan was not, and both were read."""
    return found["before"] >= WARM_RATIO_MIN and found["scan"] <= SCAN_RATIO_MAX and found["looks"] >= LOOKS_MIN


def run(directory, arguments, recorder, _facts):
    """What was found, and whether the goal was reached."""
    TwoVolumes.cache = str(CACHE_BYTES // arguments.scale)
    TwoVolumes.memory = str(max(MEMORY_BYTES // arguments.scale, MEMORY_BYTES_MIN))
    weir = TwoVolumes(directory, {HOT: HOT_BYTES // arguments.scale, SCAN: SCAN_BYTES // arguments.scale})
    try:
        print("filling both volumes", file=sys.stderr)
        weir.start()
        weir.fill()
        runs = []
        for number in range(1, arguments.runs + 1):
            found = _one(weir, arguments.seconds, arguments.scan_mib)
            runs.append(found)
            print(f"run {number}: hits of the hot set {found['before']:.2%} before, {found['during']:.2%} of {found['looks']:,} "
                  f"looks beside the scan (worst second {found['worst']:.2%} of {found['windows']}), {found['after']:.2%} after: "
                  f"{found['fall_points']:.2f} points; the scan read {found['scan_bytes_per_second'] / place.MIB:,.0f} MiB/s, "
                  f"{found['scan']:.1%} of its looks were hits; {found['fills']:,} frames written, {found['dropped']:,} came too "
                  f"fast, {found['evictions']:,} bands made room", flush=True)
    finally:
        weir.end()
    worst = max(found["fall_points"] for found in runs)
    shows = all(map(_shows, runs))
    if not shows:
        print("this shows nothing: the hot set was not in the cache before, or the scan was")
    reached = shows and worst <= POINTS_MAX
    print(f"{'reached' if reached else 'MISSED '}: the hot set loses {worst:.2f} points at most (goal {POINTS_MAX})")
    if shows:
        recorder.value("cache:scan", max(worst, 0.0), len(runs),
                       "; ".join(f"{found['before']:.1%}, {found['during']:.1%} beside the scan, {found['after']:.1%} after"
                                 for found in runs))
    return {"runs": runs}, reached
