"""Metrics of a process that serves volumes, from its API on a unix socket."""

import http.client
import re
import socket

_LINE = re.compile(r'^(weir_[a-z_0-9]+)(?:\{([^}]*)\})? ([0-9.e+-]+)$', re.M)


class _Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("weir", timeout=60)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def metrics(path):
    """Values by name and labels, as `weir_volume_live_bytes{volume="a"}`."""
    connection = _Connection(path)
    try:
        connection.request("GET", "/metrics")
        reply = connection.getresponse()
        text = reply.read().decode()
        if reply.status != 200:
            raise OSError(f"GET /metrics of {path}: {reply.status} {text}")
    finally:
        connection.close()
    return {name + (f"{{{labels}}}" if labels else ""): float(value) for name, labels, value in _LINE.findall(text)}


def volume_metrics(path, volume):
    """What has the label of one volume alone, without `weir_volume_`."""
    label = f'{{volume="{volume}"}}'
    return {name[len("weir_volume_"):-len(label)]: value for name, value in metrics(path).items()
            if name.startswith("weir_volume_") and name.endswith(label)}
