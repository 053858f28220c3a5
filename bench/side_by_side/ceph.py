"""Ceph RBD on one node for bench/s3: a monitor, a manager and three file-backed OSDs on loopback."""

import json
import os
import subprocess
import time
import uuid

from . import minio, process
from .place import GIB, Refused, drop_page_cache
from .s3_peers import Storage

START_SECONDS_MAX = 180
OSDS = 3
POOL, IMAGE = "bench", "volume"
# What one OSD's file may hold beside its share of the data: its database, its log, what is written aside.
OSD_BYTES_EXTRA = 4 * GIB
_TOOLS = {"ceph-mon": "ceph-mon", "ceph-mgr": "ceph-mgr", "ceph-osd": "ceph-osd", "ceph": "ceph-common",
          "rbd": "ceph-common", "ceph-authtool": "ceph-common", "monmaptool": "ceph-common"}


class Ceph(Storage):
    """`copies` says how many OSDs have each byte. fio speaks to the OSDs itself, through librbd."""

    packages = _TOOLS
    needs_minio = False
    copies = 0
    note = ("Ceph: the client's library runs in fio, so that its CPU time is in the column client; the "
            "cache of the client is off; stored bytes are what the OSDs wrote to their files")

    def __init__(self, directory, size_bytes):
        super().__init__(directory, size_bytes)
        self.configuration = os.path.join(self.directory, "ceph.conf")
        self.keyring = os.path.join(self.directory, "keyring")
        self.daemons = {}
        self.ended_bytes = {"stored_bytes": 0, "fetched_bytes": 0}

    # -- the cluster --

    def _write_configuration(self, cluster):
        first, second = minio.free_port(), minio.free_port()
        self.address = f"[v2:127.0.0.1:{first},v1:127.0.0.1:{second}]"
        directory = self.directory
        with open(self.configuration, "w", encoding="ascii") as file:
            file.write(f"""[global]
fsid = {cluster}
mon host = {self.address}
keyring = {self.keyring}
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
public addr = 127.0.0.1
cluster addr = 127.0.0.1
osd crush chooseleaf type = 0
osd pool default pg autoscale mode = off
mon allow pool size one = true
mon data = {directory}/mon
mon data avail warn = 1
mon data avail crit = 1
mgr data = {directory}/mgr
osd data = {directory}/osd-$id
run dir = {directory}
admin socket = {directory}/$name.asok
log file = {directory}/$name.log
mon cluster log file = {directory}/cluster.log
crash dir = {directory}
[osd]
osd objectstore = bluestore
bluestore block size = {self.size_bytes + OSD_BYTES_EXTRA}
bluestore debug enforce settings = ssd
osd memory target = {GIB}
[client]
rbd cache = false
admin socket =
log file = {directory}/client.log
""")

    def _call(self, *command, **options):
        """A tool of Ceph's with our configuration; its output."""
        tool, *rest = command
        done = subprocess.run([tool, "-c", self.configuration, *rest], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=START_SECONDS_MAX, check=False, **options)
        if done.returncode != 0:
            raise Refused(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def _make_keys(self):
        def key(name, *capabilities):
            exists = [] if os.path.exists(self.keyring) else ["--create-keyring"]
            allowed = [word for part in capabilities for word in ("--cap", *part)]
            subprocess.run(["ceph-authtool", self.keyring, *exists, "--gen-key", "-n", name, *allowed],
                           check=True, stdout=subprocess.DEVNULL)

        key("mon.", ("mon", "allow *"))
        key("client.admin", ("mon", "allow *"), ("osd", "allow *"), ("mgr", "allow *"))
        key("mgr.x", ("mon", "allow profile mgr"), ("osd", "allow *"))
        for number in range(OSDS):
            key(f"osd.{number}", ("mon", "allow profile osd"), ("osd", "allow *"),
                ("mgr", "allow profile osd"))

    def _run_daemon(self, kind, name):
        log = os.path.join(self.directory, f"{kind}-{name}.out")
        command = [f"ceph-{kind}", "-c", self.configuration, "-f", "-i", name]
        self.daemons[kind, name] = process.Process(command, log)

    def _wait(self, what, condition):
        deadline = time.monotonic() + START_SECONDS_MAX
        while not condition():
            ended = [entry for entry in self.daemons.values() if not entry.alive()]
            if ended or time.monotonic() > deadline:
                raise Refused(f"Ceph: {what} does not come: {self._call('ceph', 'status')}"
                              + "".join(entry.log()[-2000:] for entry in ended))
            time.sleep(0.5)

    def _all_clean(self):
        status = json.loads(self._call("ceph", "status", "--format=json"))
        placed = status["pgmap"].get("pgs_by_state", [])
        return (status["osdmap"]["num_up_osds"] == OSDS and len(placed) == 1
                and placed[0]["state_name"] == "active+clean")

    def start(self):
        cluster = str(uuid.uuid4())
        self._write_configuration(cluster)
        self._make_keys()
        monmap = os.path.join(self.directory, "monmap")
        subprocess.run(["monmaptool", "--create", "--clobber", "--fsid", cluster, "--addv", "a",
                        self.address, monmap], check=True, stdout=subprocess.DEVNULL)
        for name in ("mon", "mgr"):
            os.makedirs(os.path.join(self.directory, name))
        self._call("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", self.keyring)
        self._run_daemon("mon", "a")
        self._run_daemon("mgr", "x")
        for number in range(OSDS):
            identity = str(uuid.uuid4())
            os.makedirs(os.path.join(self.directory, f"osd-{number}"))
            self._call("ceph", "osd", "new", identity, str(number))
            self._call("ceph-osd", "--mkfs", "-i", str(number), "--osd-uuid", identity)
        self._start_osds()
        self._call("ceph", "osd", "pool", "create", POOL, "32")
        self._call("ceph", "osd", "pool", "set", POOL, "size", str(self.copies),
                   *(["--yes-i-really-mean-it"] if self.copies == 1 else []))
        self._call("ceph", "osd", "pool", "set", POOL, "min_size", str(max(self.copies - 1, 1)))
        self._wait("a clean pool", self._all_clean)
        self._call("rbd", "pool", "init", POOL)
        self._call("rbd", "create", f"{POOL}/{IMAGE}", "--size", f"{self.size_bytes >> 20}M",
                   "--image-feature", "layering")
        os.environ["CEPH_CONF"] = self.configuration

    def _osds(self):
        return [entry for (kind, _), entry in self.daemons.items() if kind == "osd"]

    def _start_osds(self):
        for number in range(OSDS):
            self._run_daemon("osd", str(number))

    def _stop(self, kinds):
        for kind, name in [key for key in self.daemons if key[0] in kinds]:
            daemon = self.daemons.pop((kind, name))
            if kind == "osd":
                for key, value in _bytes(daemon.pid).items():
                    self.ended_bytes[key] += value
            daemon.stop()

    def make_cold(self):
        self._stop(("osd",))
        for number in range(OSDS):
            drop_page_cache(os.path.join(self.directory, f"osd-{number}"))
        self._start_osds()
        self._wait("a clean pool after a restart", self._all_clean)

    def stop(self):
        for kind in ("osd", "mgr", "mon"):
            self._stop((kind,))
        os.environ.pop("CEPH_CONF", None)

    # -- measuring --

    def target(self):
        return ["--ioengine=rbd", "--clientname=admin", f"--pool={POOL}", f"--rbdname={IMAGE}"]

    def near_pids(self):
        return []

    def far_pids(self):
        return [entry.pid for entry in self.daemons.values()]

    def settle(self):
        # Every copy is on disk when a write is answered; the database goes on a little.
        time.sleep(2)

    def counters(self):
        total = dict(self.ended_bytes)
        for entry in self._osds():
            for key, value in _bytes(entry.pid).items():
                total[key] += value
        return total


class Ceph1(Ceph):
    name = "ceph, 1 copy"
    key = "ceph1"
    copies = 1


class Rbd(Ceph1):
    """The same for bench/cache, which reads."""

    name = "rbd"
    key = "rbd"

    def rest(self):
        self.settle()

    def run(self, **job):
        result = super().run(**job)
        return result | {"cpu_us": result["side_us"]}


class Ceph3(Ceph):
    name = "ceph, 3 copies"
    key = "ceph3"
    copies = 3


def _bytes(pid):
    """What a process read from and wrote to disks."""
    with open(f"/proc/{pid}/io", encoding="ascii") as file:
        found = dict(line.split(": ") for line in file.read().splitlines())
    return {"stored_bytes": int(found["write_bytes"]), "fetched_bytes": int(found["read_bytes"])}
