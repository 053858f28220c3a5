"""The text of bench/s3: for each job a table of the candidates, then what the figures do not say by themselves."""

from .place import GIB, MIB
from .stats import median, table

FIGURES = ("iops", "p50_us", "p99_us", "side_us", "near_us", "far_us", "client_us", "operations", "bytes",
           "seconds", "settle_seconds", "stored_bytes", "fetched_bytes", "write_requests", "read_requests")


def summarize(runs, jobs, names):
    """By job and candidate: medians over the rounds."""
    summary = {}
    for job in jobs:
        by_name = {}
        for name in names:
            mine = [run for run in runs if run["job"] == job.key and run["server"] == name]
            if mine:
                by_name[name] = {figure: median([run[figure] for run in mine])
                                 for figure in FIGURES if all(figure in run for run in mine)}
        summary[job.key] = {"title": job.title, "writes": job.writes, "medians": by_name}
    return summary


def text(facts, summary, notes):
    start, end = facts["load_average_at_start"], facts["load_average_at_end"]
    head = "\n".join([
        f"{facts['date']}, {facts['cpus']} x {facts['cpu']}, {facts['memory_gib']} GiB, "
        f"Linux {facts['kernel']}",
        f"{facts['weir']} ({facts['commit']}), {', '.join(facts['peers'])}, {facts['fio']}; "
        f"{facts['volume_bytes'] / GIB:.0f} GiB volume, {facts['rounds']} rounds, jobs of "
        f"{facts['seconds']:g} s, writes of at most {facts['burst_bytes'] // MIB} MiB",
        f"load average at the start {start[0]:.1f} {start[1]:.1f} {start[2]:.1f}, "
        f"at the end {end[0]:.1f} {end[1]:.1f} {end[2]:.1f}",
    ])
    return "\n\n".join([head, *map(_table, summary.values()), _legend(), *notes])


def _figure(value, digits=0):
    return "-" if value is None else f"{value:,.{digits}f}"


def _table(entry):
    rows = []
    for name, found in entry["medians"].items():
        moved = found.get("stored_bytes" if entry["writes"] else "fetched_bytes")
        share = None if moved is None or not found["bytes"] else moved / found["bytes"]
        asked = found.get("write_requests"), found.get("read_requests")
        per = [None if count is None else count * 1000 / max(found["operations"], 1) for count in asked]
        rows.append([
            name, _figure(found["iops"]), _figure(found["p50_us"]), _figure(found["p99_us"]),
            _figure(found["side_us"], 1), _figure(found.get("near_us"), 1), _figure(found["far_us"], 1),
            _figure(found["client_us"], 1), _figure(share, 2), _figure(per[0], 2), _figure(per[1], 2),
            _figure(found["seconds"], 1), _figure(found["settle_seconds"], 1),
        ])
    direction = "stored/B" if entry["writes"] else "fetched/B"
    head = [entry["title"], "IOPS", "p50 us", "p99 us", "side us/op", "near", "far", "client", direction,
            "PUT/1000", "GET/1000", "s", "settle s"]
    return table(head, rows)


def _legend():
    return "\n".join([
        "side: CPU time of the whole storage side per operation, until everything has settled: near (the",
        "process on the client's host) and far (MinIO, or all daemons of Ceph). client: fio with its library.",
        "stored/B: bytes that the store took (MinIO: bodies; Ceph: writes to the OSDs' files) per byte written;",
        "fetched/B: bytes that the store gave per byte read. PUT/1000, GET/1000: requests that write",
        "(deletes included) and that read (lists included) per 1000 operations.",
    ])
