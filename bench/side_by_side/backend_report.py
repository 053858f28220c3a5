"""The text, the page and the plot of bench/backend."""

import os

from . import plot, stats
from .place import GIB

GOAL = 25
WEIR, PEER = "weir", "ceph rbd, 1 copy"

LEGEND = """disk writes, flushes, reads: what the block layer passed to the backend's disks per 1000 writes of
clients, after merging (/proc/diskstats of loop devices); written/B, read/B: their bytes per byte written by clients;
busy: mean over the disks. side: CPU time of near (the process on the client's host) and far (MinIO, or all daemons of
Ceph); client: fio with its library. All of it until everything has settled, s seconds."""


def _per_1000(step, key):
    return step[key] * 1000 / step["operations"]


def _disk_busy(step):
    """Share of the time until all had settled in which the disks were busy, in percent, as a mean over them."""
    return step["busy_ms"] / step["disks"] / step["until_settled"] / 10


def _rows(steps):
    rows = []
    for step in steps:
        written = step["bytes"]
        cpu = [step[key] * 1e6 / step["operations"] for key in ("near_cpu", "far_cpu", "client_cpu")]
        rows.append([
            f"{step['candidate']}, {step['volumes']}", f"{step['iops']:,.0f}",
            f"{_per_1000(step, 'backend_operations'):,.1f}",
            f"{_per_1000(step, 'disk_writes'):,.1f}", f"{_per_1000(step, 'disk_flushes'):,.1f}",
            f"{_per_1000(step, 'disk_reads'):,.1f}", f"{step['disk_written_bytes'] / written:.2f}",
            f"{step['disk_read_bytes'] / written:.2f}", f"{_disk_busy(step):.0f}",
            f"{cpu[0] + cpu[1]:,.1f}", *(f"{value:,.1f}" for value in cpu), f"{step['until_settled']:.0f}"])
    return rows


def _ratios(steps):
    """By volumes: how many times fewer operations Weir's backend has per client write."""
    found = []
    for count in sorted({step["volumes"] for step in steps}):
        both = {step["candidate"]: step for step in steps if step["volumes"] == count}
        if WEIR in both and PEER in both:
            found.append((count, *(_per_1000(both[PEER], key) / max(_per_1000(both[WEIR], key), 1e-9)
                                   for key in ("backend_operations", "disk_operations"))))
    return found


def _requests(steps):
    lines = []
    for step in steps:
        kinds = {key[len("requests_"):]: count for key, count in step.items() if key.startswith("requests_") and count}
        if kinds:
            named = ", ".join(f"{name} {count:,.0f}" for name, count in sorted(kinds.items()))
            lines.append(f"{step['candidate']}, {step['volumes']}: {named}; {step['operations']:,} writes;\n"
                         f"  {step['copied_bytes'] / step['bytes']:.2f} bytes copied by the collector per byte written")
    return lines


def goals(steps):
    """How many times fewer operations Weir's backend and its disks have than RBD's, by measure, for each load."""
    ratios = _ratios(steps)
    if not ratios:
        return {}
    return {"backend:operations": [entry[1] for entry in ratios], "backend:disk": [entry[2] for entry in ratios]}


def text(facts, steps, operations):
    """The report, and whether every goal in it was reached."""
    start, end = ([f"{value:.1f}" for value in facts[f"load_average_at_{when}"]] for when in ("start", "end"))
    head = "\n".join([
        f"{facts['date']}, {facts['cpus']} x {facts['cpu']}, {facts['memory_gib']} GiB, Linux {facts['kernel']}",
        f"{facts['weir']} ({facts['commit']}), {facts['fio']}; volumes of {facts['size_bytes'] / GIB:g} GiB, "
        f"random writes of 16 KiB",
        f"at depth 32 on each for {facts['seconds']} s, after {facts['age']} s on all; load average at the start "
        f"{' '.join(start)}, at the end {' '.join(end)}"])
    table = stats.table(["volumes", "IOPS", "ops/1000", "disk writes", "flushes", "reads", "written/B", "read/B",
                         "busy %", "side us/op", "near", "far", "client", "s"], _rows(steps))
    legend = ["ops/1000: operations of the backend per 1000 writes of clients:",
              *(f"  {name}: {what}" for name, what in operations.items()), LEGEND]
    verdicts, reached = [], True
    for title, index in (("operations of the backend", 1), ("operations of its disks", 2)):
        ratios = [(entry[0], entry[index]) for entry in _ratios(steps)]
        if ratios:
            good = all(value >= GOAL for _, value in ratios)
            reached &= good
            found = ", ".join(f"{value:,.1f} x at {count}" for count, value in ratios)
            verdicts.append(f"{'reached' if good else 'MISSED '}: fewer {title} per write than RBD: {found} "
                            f"(goal {GOAL} x)")
    parts = [head, table, "\n".join(legend), "\n".join(_requests(steps)), "\n".join(verdicts)]
    return "\n\n".join(part for part in parts if part), reached


def _plot(steps):
    names = list(dict.fromkeys(step["candidate"] for step in steps))

    def series(x, y):
        return {name: [(x(step), y(step)) for step in steps if step["candidate"] == name] for name in names}

    labels = {name: [str(step["volumes"]) for step in steps if step["candidate"] == name] for name in names}
    return plot.svg([
        {"title": "Operations of the backend", "x": "volumes", "y": "per 1000 client writes", "decades": True,
         "series": series(lambda s: s["volumes"], lambda s: _per_1000(s, "backend_operations"))},
        {"title": "Operations of its disks", "x": "volumes", "y": "per 1000 client writes", "decades": True,
         "series": series(lambda s: s["volumes"], lambda s: _per_1000(s, "disk_operations"))},
        {"title": "Disks busy (numbers: volumes)", "x": "client IOPS", "y": "% of the time", "labels": labels,
         "series": series(lambda s: s["iops"], _disk_busy)},
    ])


PAGE = """# Backend efficiency

What random writes of 16 KiB cost behind the volumes: Weir over MinIO beside Ceph RBD with one copy and no cache in the
client, all on one node. LSVD's section 4.5 found 25 times less load. [How it is measured](../../bench/README.md).

```
{command}
```

![operations and busy disks](backend.svg)

```
{text}
```
"""


def publish(directory, facts, steps, report):
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "backend.svg"), "w", encoding="utf-8") as file:
        file.write(_plot(steps))
    with open(os.path.join(directory, "backend.md"), "w", encoding="utf-8") as file:
        file.write(PAGE.format(command=facts["command"], text=report))
