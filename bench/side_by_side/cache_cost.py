"""bench/cache --cost: what the cache costs who does not need it: writers, and readers of what is in memory."""

import sys

from . import fio, interleave, place, report, stats
from .cached import Cached, Uncached
from .jobs import JOBS, RAM_REGION_BYTES, Job, Sizes

VOLUME_BYTES, CACHE_BYTES, BURST_BYTES = 2 * place.GIB, 4 * place.GIB, 512 * place.MIB
COST_MAX = 1.05
PAIRS_MIN = 10


def _in_memory(server, sizes):
    """Read once just before, and nothing is left to be written behind the reads that count."""
    region = (sizes.volume_bytes // 2, RAM_REGION_BYTES)
    server.write_region(region)
    server.settle()
    fio.run(server.target(), rw="read", block_bytes=place.MIB, depth=4, region=region)
    return region


_WRITES = [job for job in JOBS if job.key in ("rw32", "rw1", "sw8")]
_READS = [Job("rr1-ram", "4k random read QD1, from RAM", _in_memory, rw="randread", block_bytes=4096, depth=1),
          Job("rr32-ram", "4k random read QD32, from RAM", _in_memory, rw="randread", block_bytes=4096, depth=32)]
COST_JOBS = (*_WRITES, *_READS)


def need_bytes(scale):
    return 2 * (4 * VOLUME_BYTES + CACHE_BYTES) // scale + 4 * place.GIB


def _figure(job):
    """A write costs what is spent until its object is in the store, collected and in the cache, a read what is spent
    meanwhile."""
    return "cpu_with_upload_us" if job.writes else "cpu_us"


class _Settling:
    """A run ends in the same state for both: all of it is in the store, collected, and in the cache if there is one. Who
    ended earlier would leave the work of the collector out."""

    def settle(self):
        self.rest()
        self.wait_for_fills()


class _Cached(_Settling, Cached):
    pass


class _Uncached(_Settling, Uncached):
    pass


def ratios(runs, jobs):
    """By job: CPU per operation with the cache to without it."""
    found = {}
    for job in jobs:
        of = {name: {run["pair"]: run[_figure(job)] for run in runs if (run["job"], run["server"]) == (job.key, name)}
              for name in (Cached.name, Uncached.name)}
        pairs = [(of[Cached.name][pair], of[Uncached.name][pair]) for pair in of[Cached.name]]
        found[job.key] = stats.ratio(pairs)
    return found


def run(directory, arguments, recorder, facts):
    """What was found, and whether the goal was reached."""
    Cached.cache = str(CACHE_BYTES // arguments.scale)
    jobs = COST_JOBS
    volume_bytes = VOLUME_BYTES // arguments.scale
    servers = [_Cached(directory, volume_bytes), _Uncached(directory, volume_bytes)]
    sizes = Sizes(volume_bytes, arguments.seconds, BURST_BYTES // arguments.scale)
    try:
        for server in servers:
            print(f"filling {server.name}", file=sys.stderr)
            server.start()
            server.fill()
        runs = interleave.measure(servers, jobs, sizes, arguments.pairs)
        cache, _ = servers[0].counted()
    finally:
        for server in servers:
            server.end()
    facts |= {"volume_bytes": volume_bytes, "burst_bytes": sizes.burst_bytes, "load_average_at_end": place.load_average()}
    summary = report.summarize(runs, jobs, [server.name for server in servers])
    print(f"\n{report.text(facts, summary, jobs)}\n")
    print(f"the cache took {cache['fills']:,} frames, {cache['dropped']:,} came too fast, {cache['bytes'] / place.MIB:,.0f} "
          "MiB are in it")
    found = {key: ratio for key, ratio in ratios(runs, jobs).items() if ratio}
    reached = arguments.pairs >= PAIRS_MIN and cache["fills"] > 0
    if not reached:
        print("this shows nothing: fewer than ten pairs, or nothing was written to the cache")
    for key, ratio in found.items():
        is_held = ratio["high"] is not None and ratio["high"] <= COST_MAX
        reached &= is_held
        interval = f" [{ratio['low']:.3f}, {ratio['high']:.3f}]" if ratio["high"] is not None else ""
        print(f"{'reached' if is_held else 'MISSED '}: {key}: CPU per operation {ratio['ratio']:.3f}{interval} (goal: upper "
              f"end at most {COST_MAX})")
    if found and cache["fills"]:
        worst = max(found, key=lambda key: found[key]["high"] or found[key]["ratio"])
        recorder.ratio("cache:cost", found[worst], f"{worst}; " + ", ".join(
            f"{key} {ratio['ratio']:.3f}" for key, ratio in found.items()))
    return {"summary": summary, "runs": runs, "ratios": found}, reached
