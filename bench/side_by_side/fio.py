"""One fio run against a server, and what its report says."""

import json
import subprocess

from .place import Refused

RUN_SECONDS_EXTRA = 120


def run(target, *, rw, block_bytes, depth, jobs=1, seconds=None, io_bytes=None, region=None,
        fsync=False, extra=()):
    """Runs one fio job on `target` (its engine's arguments) within `region` = (offset, length)."""
    offset, size = region
    command = [
        "fio", "--name=job", "--output-format=json", "--thread", "--randrepeat=0",
        "--norandommap", "--refill_buffers", "--group_reporting",
        "--percentile_list=50:99:99.9", *target,
        f"--rw={rw}", f"--bs={block_bytes}", f"--iodepth={depth}", f"--numjobs={jobs}",
        f"--offset={offset}", f"--size={size}",
    ]
    if seconds:
        command.append(f"--runtime={seconds}")
    if io_bytes:
        command.append(f"--io_size={io_bytes // jobs}")
    elif seconds:
        command.append("--time_based")
    if fsync:
        command.append("--fsync=1")
    command += extra
    done = subprocess.run(
        command, capture_output=True, text=True, check=False,
        timeout=(seconds or 600) + RUN_SECONDS_EXTRA,
    )
    if done.returncode != 0:
        raise Refused(f"fio failed: {' '.join(command)}\n{done.stdout}\n{done.stderr}")
    # fio may print notes before the report.
    report = json.loads(done.stdout[done.stdout.index("{"):])
    job = report["jobs"][0]
    if job["error"]:
        raise Refused(f"fio reports error {job['error']}: {' '.join(command)}\n{done.stderr}")
    return _result(job, "read" if "read" in rw else "write", fsync)


def _result(job, side, fsync):
    part = job[side]
    latency = part["clat_ns"].get("percentile", {})
    p50, p99 = (latency.get(key, 0) / 1000 for key in ("50.000000", "99.000000"))
    if fsync:
        # One operation is a write and the flush after it.
        flush = job["sync"]["lat_ns"].get("percentile", {})
        p50 += flush.get("50.000000", 0) / 1000
        p99 += flush.get("99.000000", 0) / 1000
    seconds = part["runtime"] / 1000
    return {
        "operations": part["total_ios"],
        "bytes": part["io_bytes"],
        "seconds": seconds,
        "iops": part["total_ios"] / seconds if seconds else 0.0,
        "p50_us": p50,
        "p99_us": p99,
        "client_cpu_percent": job["usr_cpu"] + job["sys_cpu"],
    }
