"""Servers whose bytes are the export of another server: Weir's remote volume and the NBD clients of others, each in front
of a Weir of its own that keeps its bytes in memory."""

import json
import os
import subprocess

from . import process
from .place import Refused, clean_environment, weir_binary
from .proxy import Proxy, wait_for
from .servers import Server

EXPORT = "bench"


class Way:
    """How a client reaches its server: in the clear over a unix socket, or over TCP, under TLS and over a veth pair or
    not; and with which delay."""

    def __init__(self, directory, tls, delay_us, veth=None):
        self.delay_us = delay_us
        self.veth = veth
        self.host = veth.address if veth else "localhost"
        # Where the far end listens, if it is not a unix socket.
        self.listen = veth.address if veth else "127.0.0.1" if tls else None
        self.certificates = None
        if tls:
            self.certificates = os.path.join(directory, "pki")
            for words in (["init"], ["issue", "server", "--host", self.host], ["issue", "client", "--usage", "client"]):
                command = [weir_binary(), "pki", "--pki", self.certificates, *words]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def of(self, name):
        """The directory of one side's certificates."""
        return os.path.join(self.certificates, "issued", name)

    def far(self):
        """What a command at the far end begins with."""
        return self.veth.prefix if self.veth else ()


class Far:
    """The server at the far end, and the proxy before it."""

    def __init__(self, directory, size_bytes, way):
        self.way = way
        self.directory = directory
        self.size_bytes = size_bytes
        self.proxy = None
        self.server = None

    def start(self):
        log = os.path.join(self.directory, "far.log")
        place = os.path.join(self.directory, "far.sock")
        where = ["--nbd-socket", place]
        if self.way.listen:
            secure = ["--tls-certificates", self.way.of("server")] if self.way.certificates else ["--insecure"]
            where = ["--nbd-listen", f"{self.way.listen}:0", *secure]
        data = os.path.join(self.directory, "far")
        self.server = process.Process(
            [*self.way.far(), weir_binary(), "--data-dir", data, "up", EXPORT, "--size", str(self.size_bytes), "--endpoint", "memory",
             *where], log, clean_environment())
        served = wait_for(r"^serving nbds?(?:\+unix)?://(?:[\d.]+:(\d+))?", self.server, "the far server")
        address = place if served.group(1) is None else f"{self.way.listen}:{served.group(1)}"
        if self.way.delay_us:
            address = self._delayed(address)
        return address

    def _delayed(self, address):
        at = f"{self.way.listen}:0" if self.way.listen else os.path.join(self.directory, "proxy.sock")
        self.proxy = Proxy(self.directory, (at, address), self.way.delay_us, self.way.far())
        return self.proxy.address

    def stop(self):
        if self.proxy:
            self.proxy.stop()
        self.server.stop()


class Remote(Server):
    """A candidate: an NBD server over its own NBD client."""

    def __init__(self, directory, size_bytes, way):
        super().__init__(directory, size_bytes)
        self.way = way
        self.far = Far(self.directory, size_bytes, way)
        self.address = None

    def start(self):
        self.address = self.far.start()
        super().start()

    def stop(self):
        super().stop()
        self.far.stop()

    def environment(self):
        return clean_environment()

    def uri(self):
        """Where the far server, or its proxy, is."""
        if self.way.listen:
            scheme = "nbds" if self.way.certificates else "nbd"
            return f"{scheme}://{self.way.host}:{self.address.rsplit(':', 1)[1]}/{EXPORT}"
        return f"nbd+unix:///{EXPORT}?socket={self.address}"

    def cpu(self):
        found = super().cpu()
        if self.far.server:
            found["far_cpu_us"] = process.cpu_seconds(self.far.server.pid)
        return found


class WeirRemote(Remote):
    """`weir up --remote`."""

    name = "weir"

    def command(self):
        tls = ["--tls-certificates", self.way.of("client")] if self.way.certificates else []
        return [weir_binary(), "--data-dir", os.path.join(self.directory, "data"), "up", "near", "--remote", self.uri(),
                "--nbd-socket", self.socket, *tls]

    def is_ready(self):
        return os.path.exists(self.socket) and "serving nbd" in self.process.log()


class QemuRemote(Remote):
    """qemu-nbd over QEMU's NBD driver."""

    name = "qemu-nbd"
    tools = ("qemu-nbd",)

    def command(self):
        command = ["qemu-nbd", "--persistent", "--shared=8", f"--socket={self.socket}"]
        if not self.way.certificates:
            return [*command, "--format=raw", self.uri()]
        server = {"driver": "nbd", "server.type": "inet", "server.host": self.way.host,
                  "server.port": self.address.rsplit(":", 1)[1], "export": EXPORT, "tls-creds": "tls"}
        options = ",".join(f"file.{key}={value}" for key, value in server.items())
        return [*command, "--object", f"tls-creds-x509,id=tls,dir={self.way.of('client')},endpoint=client",
                "--image-opts", f"driver=raw,{options}"]


class NbdkitRemote(Remote):
    """nbdkit's nbd plugin, which is libnbd."""

    name = "nbdkit nbd"
    tools = ("nbdkit",)

    def command(self):
        tls = [f"tls-certificates={self.way.of('client')}"] if self.way.certificates else []
        return ["nbdkit", "--foreground", "--unix", self.socket, "nbd", f"uri={self.uri()}", *tls]


class Direct(Remote):
    """fio at the far server itself: what there is without a client in between."""

    name = "direct"

    def start(self):
        self.address = self.far.start()
        size = json.loads(subprocess.run(["nbdinfo", "--json", self.fio_uri()], check=True, capture_output=True,
                                         text=True).stdout)["exports"][0]["export-size"]
        if size != self.size_bytes:
            raise Refused(f"the far server has {size} bytes")

    def command(self):
        raise NotImplementedError

    def cpu(self):
        return {"far_cpu_us": process.cpu_seconds(self.far.server.pid)}

    def stop(self):
        self.far.stop()

    def fio_uri(self):
        """The address with the certificates of a client."""
        if self.way.certificates:
            return f"{self.uri()}?tls-certificates={self.way.of('client')}"
        return self.uri()

    def target(self):
        return ["--ioengine=nbd", f"--uri={self.fio_uri()}"]


KINDS = (WeirRemote, QemuRemote, NbdkitRemote, Direct)
