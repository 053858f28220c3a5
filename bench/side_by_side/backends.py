"""The candidates of bench/backend, each with several volumes and its backend on loop devices of its own."""

import json
import os
import resource
import shutil
import time

from . import ceph, disks, fio, minio, node_api, place, process, servers

FILL_BLOCK_BYTES = place.MIB
START_SECONDS_MAX = 60
# Live share, in percent, to which the collector is brought before and after each step, so that none leaves it work.
LIVE_PERCENT = 70


def _client_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class WeirBackend:
    """`weir serve` with all volumes; MinIO on an XFS of its own."""

    name, key = "weir", "weir"
    operations = "requests that MinIO counts: PUT, GET, DELETE, LIST, HEAD"

    def __init__(self, directory, volumes, size_bytes):
        self.directory = os.path.join(directory, self.key)
        os.makedirs(self.directory)
        self.volumes = [f"v{number}" for number in range(volumes)]
        self.size_bytes = size_bytes
        self.minio = minio.Minio(self.directory)
        self.binary = place.weir_binary()
        self.data = os.path.join(self.directory, "data")
        self.store = f"s3://{minio.BUCKET}/weir"
        self.disks, self.process = [], None

    def start(self):
        # MinIO deletes what was deleted later, with a pause after each object: 20 GiB wait for it behind 8 volumes.
        room = int(len(self.volumes) * self.size_bytes * 2.5) + 40 * place.GIB
        self.disks = [disks.Disk(os.path.join(self.directory, "disk"), room, mount=self.minio.data)]
        self.minio.start()
        command = [self.binary, "--data-dir", self.data, "--store", self.store, "serve", "--journal", "512M",
                   *(word for name in self.volumes for word in ("--volume", f"{name}:{self.size_bytes}"))]
        self.process = process.Process(command, os.path.join(self.directory, "log"), self._environment())
        deadline = time.monotonic() + START_SECONDS_MAX
        while "listening at" not in self.process.log():
            if not self.process.alive() or time.monotonic() > deadline:
                raise place.Refused(f"weir did not start:\n{self.process.log()}")
            time.sleep(0.05)

    def _environment(self):
        return {k: v for k, v in os.environ.items() if not k.startswith("WEIR_")} | self.minio.access()

    def targets(self, count):
        return [["--ioengine=nbd", f"--uri=nbd+unix:///{name}?socket={self.data}/nbd.sock"]
                for name in self.volumes[:count]]

    def settle(self):
        weir = [self.binary, "--data-dir", self.data, "--store", self.store]
        servers.bring_to_rest(weir, self.volumes, LIVE_PERCENT, self._environment())
        disks.write_back(self.disks)

    def cpu(self):
        return {"near": process.cpu_seconds(self.process.pid), "far": sum(map(process.cpu_seconds, self.minio.pids()))}

    def counters(self):
        found = self.minio.counters()
        socket = os.path.join(self.data, "api.sock")
        logs = [node_api.volume_metrics(socket, name) for name in self.volumes]
        return {"backend_operations": sum(found["requests"].values()), "backend_bytes": found["stored_bytes"],
                "copied_bytes": sum(log["collected_bytes_total"] for log in logs)} | {
                    f"requests_{name}": count for name, count in found["requests"].items()}

    def stop(self):
        if self.process:
            self.process.stop()
        self.minio.stop()
        for disk in self.disks:
            disk.close()
        shutil.rmtree(self.directory)


class _CephOnDisks(ceph.Ceph1):
    """Its OSDs on loop devices, as many images as there are volumes."""

    def __init__(self, directory, volumes, size_bytes):
        super().__init__(directory, size_bytes)
        self.images = [ceph.IMAGE] + [f"{ceph.IMAGE}{number}" for number in range(1, volumes)]
        self.disks = []

    def _write_configuration(self, cluster):
        super()._write_configuration(cluster)
        room = len(self.images) * self.size_bytes + ceph.OSD_BYTES_EXTRA
        with open(self.configuration, "a", encoding="ascii") as file:
            for number in range(ceph.OSDS):
                self.disks.append(disks.Disk(os.path.join(self.directory, f"disk-{number}"), room))
                file.write(f"[osd.{number}]\nbluestore block path = {self.disks[-1].device}\n")

    def start(self):
        super().start()
        for image in self.images[1:]:
            self._call("rbd", "create", f"{ceph.POOL}/{image}", "--size", f"{self.size_bytes >> 20}M",
                       "--image-feature", "layering")

    def operations(self):
        """What clients, and OSDs for each other, asked the OSDs for, from their own counters."""
        total = {"op": 0, "op_w": 0, "op_r": 0, "op_rw": 0, "subop": 0}
        for number in range(ceph.OSDS):
            path = os.path.join(self.directory, f"osd.{number}.asok")
            found = json.loads(self._call("ceph", "--admin-daemon", path, "perf", "dump", "osd"))["osd"]
            for key in total:
                total[key] += found[key]
        return total


class CephBackend:
    """RBD with one copy and without a cache in the client."""

    name, key = "ceph rbd, 1 copy", "ceph"
    operations = "operations that the OSDs count: osd.op and osd.subop of `ceph daemon osd.N perf dump`"

    def __init__(self, directory, volumes, size_bytes):
        self.cluster = _CephOnDisks(directory, volumes, size_bytes)

    @property
    def disks(self):
        return self.cluster.disks

    def start(self):
        self.cluster.start()

    def targets(self, count):
        return [["--ioengine=rbd", "--clientname=admin", f"--pool={ceph.POOL}", f"--rbdname={image}"]
                for image in self.cluster.images[:count]]

    def settle(self):
        self.cluster.settle()

    def cpu(self):
        return {"near": 0.0, "far": sum(map(process.cpu_seconds, self.cluster.far_pids()))}

    def counters(self):
        found = self.cluster.operations()
        return {"backend_operations": found["op"] + found["subop"]} | {f"osd_{k}": v for k, v in found.items()}

    def stop(self):
        self.cluster.stop()
        for disk in self.disks:
            disk.close()
        self.cluster.delete()


KINDS = (WeirBackend, CephBackend)


def fill(backend, count, size_bytes):
    """Every byte of every volume, once."""
    for target in backend.targets(count):
        fio.run(target, rw="write", block_bytes=FILL_BLOCK_BYTES, depth=8, region=(0, size_bytes))
    backend.settle()


def step(backend, count, **job):
    """One load on so many volumes, until everything has settled: what it cost behind them."""
    before, on_disks, cpu, client = backend.counters(), disks.counters(backend.disks), backend.cpu(), _client_seconds()
    began = time.monotonic()
    result = fio.run_on_each(backend.targets(count), **job)
    result["client_cpu"] = _client_seconds() - client
    backend.settle()
    result["until_settled"] = time.monotonic() - began
    result |= {f"{key}_cpu": end - cpu[key] for key, end in backend.cpu().items()}
    result |= {key: end - on_disks[key] for key, end in disks.counters(backend.disks).items()}
    # The reports of MinIO may be 10 s old, and are waited for: last, so that nothing else is counted in that time.
    result |= {key: end - before.get(key, 0) for key, end in backend.counters().items()}
    result["disk_operations"] = result["disk_reads"] + result["disk_writes"] + result["disk_flushes"]
    result["disks"] = len(backend.disks)
    return result
