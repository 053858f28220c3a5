"""A MinIO of one drive on loopback, and what it counts: requests by kind and bytes of bodies."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

from . import process
from .place import REPOSITORY, Refused, drop_page_cache

sys.path.insert(0, os.path.join(REPOSITORY, "tests/s3"))
import client  # noqa: E402  pylint: disable=wrong-import-position,import-error

START_SECONDS_MAX = 60
# MinIO keeps its counters' report for 10 s.
REPORT_SECONDS = 10.5
# How long it may keep what was deleted.
DELETED_FOR = "10s"
BUCKET = "bench"
# Neither credential protects anything: the server is on loopback and gone after the run.
USER, SECRET = "weir-bench", "only-for-benchmarks"
_REQUESTS = re.compile(r'^minio_s3_requests_total\{.*api="([a-z0-9]+)".*\} ([0-9.e+]+)$', re.M)
_BYTES = re.compile(r"^minio_s3_traffic_(received|sent)_bytes\{.*\} ([0-9.e+]+)$", re.M)
_WRITES = ("putobject", "completemultipartupload", "putobjectpart", "copyobject", "deleteobject",
           "deletemultipleobjects", "newmultipartupload")
_READS = ("getobject", "headobject", "listobjectsv1", "listobjectsv2")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def installed():
    """The binary of the tests, if it was built; `tests/s3/install` builds it."""
    cache = os.environ.get("WEIR_TEST_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "weir-tests")
    if os.path.isdir(cache):
        for name in sorted(os.listdir(cache)):
            path = os.path.join(cache, name, "minio")
            if os.access(path, os.X_OK):
                return path
    return None


def install():
    """Builds it, which takes some minutes."""
    subprocess.run([os.path.join(REPOSITORY, "tests/s3/install")], check=True,
                   stdin=subprocess.DEVNULL)


class Minio:
    """One server with its own data, which goes with `directory`."""

    def __init__(self, directory):
        self.data = os.path.join(directory, "minio")
        self.log = os.path.join(directory, "minio.log")
        self.endpoint = None
        self.process = None
        self.read_at = 0.0

    def start(self):
        os.makedirs(self.data, exist_ok=True)
        address = f"127.0.0.1:{free_port()}"
        self.endpoint = f"http://{address}"
        environment = os.environ | {
            "MINIO_ROOT_USER": USER, "MINIO_ROOT_PASSWORD": SECRET, "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off", "MINIO_CI_CD": "1", "MINIO_PROMETHEUS_AUTH_TYPE": "public",
            # It keeps what was deleted until its next look, five minutes by default, which fills the disk.
            "MINIO_API_DELETE_CLEANUP_INTERVAL": DELETED_FOR,
        }
        command = [installed(), "server", "--quiet", "--address", address, self.data]
        self.process = process.Process(command, self.log, environment)
        os.environ.update(self.access())
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                client.make(BUCKET)
                return
            except (OSError, client.Refused) as problem:
                if not self.process.alive() or time.monotonic() > deadline:
                    raise Refused(f"MinIO did not start: {problem}\n{self.process.log()}") from None
                time.sleep(0.1)

    def access(self):
        """The variables by which clients find it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint, "AWS_ACCESS_KEY_ID": USER,
            "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }

    def counters(self):
        """Requests that write and that read, and bytes in both directions, since the start.

        Waits until a report can be had that is made now."""
        wait = self.read_at + REPORT_SECONDS - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        with urllib.request.urlopen(f"{self.endpoint}/minio/v2/metrics/cluster", timeout=60) as reply:
            text = reply.read().decode()
        self.read_at = time.monotonic()
        requests = {}
        for name, count in _REQUESTS.findall(text):
            requests[name] = requests.get(name, 0) + float(count)
        found = dict(_BYTES.findall(text))
        return {
            "write_requests": sum(requests.get(name, 0) for name in _WRITES),
            "read_requests": sum(requests.get(name, 0) for name in _READS),
            "stored_bytes": float(found.get("received", 0)),
            "fetched_bytes": float(found.get("sent", 0)),
            "requests": requests,
        }

    def forget(self):
        """Drops its objects from the page cache."""
        drop_page_cache(self.data)

    def pids(self):
        return [self.process.pid]

    def stop(self):
        if self.process:
            self.process.stop()
            self.process = None


# What Weir sends: the default batch, and as many PUTs in flight as it has at most.
PUT_BYTES = 8 << 20
PUTS_IN_FLIGHT = 4
PUT_SECONDS = 10


def put_rate(server):
    """What a MinIO takes from a client that does nothing else."""
    script = os.path.join(os.path.dirname(__file__), "put_rate.py")
    command = ["python3", script, BUCKET, "rate", str(PUT_BYTES), str(PUTS_IN_FLIGHT), str(PUT_SECONDS)]
    cpu = sum(map(process.cpu_seconds, server.pids()))
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | server.access())
    spent = sum(map(process.cpu_seconds, server.pids())) - cpu
    shutil.rmtree(os.path.join(server.data, BUCKET, "rate"))
    return json.loads(done.stdout) | {"cpu_percent": spent * 100 / PUT_SECONDS}
