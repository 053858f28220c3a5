"""From runs to medians, ratios with their interval, and text."""

from .place import GIB, MIB
from .stats import median, ratio, table

WEIR = "weir"
# Median of these over the pairs; a candidate without one shows a dash.
FIGURES = ("iops", "p50_us", "p99_us", "cpu_us", "shard_cpu_us", "cpu_with_upload_us", "seconds",
           "client_cpu_percent")
# Weir divided by the peer.
RATIOS = ("iops", "p50_us", "p99_us", "cpu_us")


def summarize(runs, jobs, names):
    """By job: medians by candidate, ratios of Weir to every peer, what reached the store."""
    summary = {}
    for job in jobs:
        by_server = {
            name: {run["pair"]: run for run in runs
                   if run["job"] == job.key and run["server"] == name}
            for name in names
        }
        medians = {name: _medians(by_pair.values()) for name, by_pair in by_server.items()}
        own = by_server.get(WEIR, {})
        ratios = {
            name: {figure: _ratio(own, by_pair, figure) for figure in RATIOS}
            for name, by_pair in by_server.items() if name != WEIR
        }
        summary[job.key] = {"title": job.title, "medians": medians, "ratios": ratios,
                            "store": _store(own.values()) if job.writes else None}
    return summary


def _medians(runs):
    runs = list(runs)
    return {
        figure: median([run[figure] for run in runs])
        for figure in FIGURES if runs and all(figure in run for run in runs)
    }


def _ratio(own, peer, figure):
    pairs = [(own[pair][figure], peer[pair][figure]) for pair in own
             if pair in peer and figure in own[pair] and figure in peer[pair]]
    return ratio(pairs) if pairs else None


def _store(runs):
    """Payload written, and files and bytes that came into the store for it, over all pairs."""
    written = operations = 0
    kinds = {}
    for run in runs:
        written += run["bytes"]
        operations += run["operations"]
        for kind, (files, size) in run.get("store", {}).items():
            files_before, size_before = kinds.get(kind, (0, 0))
            kinds[kind] = (files_before + files, size_before + size)
    return {"payload_bytes": written, "operations": operations, "kinds": kinds}


def text(facts, summary, jobs):
    parts = [_head(facts)]
    for job in jobs:
        parts.append(_job_table(summary[job.key]))
    parts.append(_ratio_table(summary, jobs))
    if any(job.writes for job in jobs):
        parts.append(_store_table(summary, jobs))
    return "\n\n".join(parts)


def _head(facts):
    start, end = facts["load_average_at_start"], facts["load_average_at_end"]
    return "\n".join([
        f"{facts['date']}, {facts['cpus']} x {facts['cpu']}, {facts['memory_gib']} GiB, "
        f"Linux {facts['kernel']}",
        f"{facts['weir']} ({facts['commit']}), {facts['fio']}; "
        f"{facts['volume_bytes'] / GIB:.0f} GiB volume, {facts['pairs']} pairs, jobs of "
        f"{facts['seconds']} s, bursts of at most {facts['burst_bytes'] // MIB} MiB",
        f"load average at the start {start[0]:.1f} {start[1]:.1f} {start[2]:.1f}, "
        f"at the end {end[0]:.1f} {end[1]:.1f} {end[2]:.1f}",
    ])


def _figure(value, digits=1):
    return "-" if value is None else f"{value:,.{digits}f}"


def _job_table(entry):
    rows = []
    for name, medians in entry["medians"].items():
        rows.append([
            name,
            _figure(medians.get("iops"), 0),
            _figure(medians.get("p50_us")),
            _figure(medians.get("p99_us")),
            _figure(medians.get("cpu_us")),
            _figure(medians.get("shard_cpu_us")),
            _figure(medians.get("cpu_with_upload_us")),
            _figure(medians.get("seconds")),
        ])
    head = [entry["title"], "IOPS", "p50 us", "p99 us", "CPU us/op", "shard", "with upload", "s"]
    return table(head, rows)


def _interval(found):
    if not found:
        return "-"
    if found["low"] is None:
        return f"{found['ratio']:.2f}"
    return f"{found['ratio']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"


def _ratio_table(summary, jobs):
    rows = []
    for job in jobs:
        for name, ratios in summary[job.key]["ratios"].items():
            rows.append([job.key, name, *(_interval(ratios[figure]) for figure in RATIOS)])
    return table(["weir : peer", "peer", "IOPS", "p50", "p99", "CPU/op"], rows)


def _store_table(summary, jobs):
    rows = []
    for job in jobs:
        store = summary[job.key]["store"]
        if not store or not store["payload_bytes"]:
            continue
        files = sum(count for count, _ in store["kinds"].values())
        size = sum(total for _, total in store["kinds"].values())
        kinds = ", ".join(f"{count} {kind}" for kind, (count, _) in sorted(store["kinds"].items()))
        rows.append([
            job.key, f"{store['payload_bytes'] / MIB:,.0f}", f"{size / MIB:,.0f}",
            f"{size / store['payload_bytes']:.3f}", f"{files}",
            f"{store['operations'] / max(files, 1):,.0f}", kinds,
        ])
    head = ["to the store", "written MiB", "stored MiB", "bytes ratio", "PUTs", "writes per PUT",
            "of which"]
    return table(head, rows)
