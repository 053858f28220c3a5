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
    job = _report(command, (seconds or 600) + RUN_SECONDS_EXTRA)[0]
    return _result(job, "read" if "read" in rw else "write", fsync)


def run_together(target, *, writes, reads, seconds, ramp_seconds, region):
    """Writers and, where there are `reads`, readers beside them: threads of one operation at a time.

    Each is the arguments of its job: blocks, threads, rate. The result is that of the writes, with their flushes;
    `reads` in it is that of the reads."""
    offset, size = region
    command = ["fio", "--output-format=json", "--thread", "--randrepeat=0", "--norandommap", "--refill_buffers",
               "--group_reporting", "--percentile_list=50:99:99.9", *target, f"--offset={offset}", f"--size={size}",
               f"--runtime={seconds}", "--time_based", f"--ramp_time={ramp_seconds}", "--bs=4096", "--blockalign=4096",
               "--name=writes", "--rw=randwrite", *writes]
    if reads:
        command += ["--name=reads", "--new_group", "--rw=randread", *reads]
    jobs = _report(command, seconds + ramp_seconds + RUN_SECONDS_EXTRA)
    result = _result(jobs[0], "write", False)
    if reads:
        result["reads"] = _result(jobs[1], "read", False)
    if jobs[0]["sync"]["total_ios"]:
        result["flushes"] = jobs[0]["sync"]["total_ios"]
        result["flush_p99_us"] = jobs[0]["sync"]["lat_ns"]["percentile"]["99.000000"] / 1000
    return result


def run_beside(target, steady, burst, *, block_bytes, seconds, region):
    """A client that writes all the time, and a burst of another beside it: what each saw."""
    offset, size = region
    command = ["fio", "--output-format=json", "--thread", "--randrepeat=0", "--norandommap", "--refill_buffers",
               "--percentile_list=50:99:99.9", *target, f"--offset={offset}", f"--size={size}", "--rw=randwrite",
               f"--bs={block_bytes}", "--name=steady", f"--runtime={seconds}", "--time_based", *steady,
               "--name=burst", *burst]
    jobs = _report(command, seconds + RUN_SECONDS_EXTRA)
    return {"steady": _result(jobs[0], "write", False), "burst": _result(jobs[1], "write", False)}


def run_on_each(targets, *, rw, block_bytes, depth, seconds, region):
    """The same job on several targets at once; what they did together."""
    offset, size = region
    command = ["fio", "--output-format=json", "--thread", "--randrepeat=0", "--norandommap", "--refill_buffers",
               "--group_reporting", "--percentile_list=50:99:99.9", f"--rw={rw}", f"--bs={block_bytes}",
               f"--iodepth={depth}", f"--offset={offset}", f"--size={size}", f"--runtime={seconds}", "--time_based"]
    for number, target in enumerate(targets):
        command += [f"--name=job{number}", *target]
    return _result(_report(command, seconds + RUN_SECONDS_EXTRA)[0], "read" if "read" in rw else "write", False)


def _report(command, timeout):
    """The jobs of a run that went well."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    if done.returncode != 0:
        raise Refused(f"fio failed: {' '.join(command)}\n{done.stdout}\n{done.stderr}")
    # fio may print notes before the report.
    jobs = json.loads(done.stdout[done.stdout.index("{"):])["jobs"]
    for job in jobs:
        if job["error"]:
            raise Refused(f"fio reports error {job['error']}: {' '.join(command)}\n{done.stderr}")
    return jobs


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
        "p999_us": latency.get("99.900000", 0) / 1000,
        "max_us": part["clat_ns"]["max"] / 1000,
        "client_cpu_percent": job["usr_cpu"] + job["sys_cpu"],
    }
