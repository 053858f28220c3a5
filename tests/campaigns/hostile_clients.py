#!/usr/bin/python3
"""The clients of the hostile-clients campaign.

    hostile_clients.py attack KIND COUNT PORT EXPORT...  connects, prints `ready COUNT`, goes on until its stdin ends
    hostile_clients.py good SOCKET PORT EXPORT SECONDS   prints `count p50 p99 connect` of a well-behaved client, in us;
                                                         with the SOCKET `tls` over TLS
    hostile_clients.py watch PID FILE                    writes the most memory of its own that a process has, in MiB

Kinds: `deaf` asks for reads of 32 MiB and takes no reply; `half` sends 31 MiB of a write of 32 MiB; `slow` sends one
byte of its handshake a second; `silent` connects and sends nothing. Under TLS: `tls-slow` sends one byte of its hello
a second; `tls-silent` sends nothing once TLS may begin; `stranger` shakes hands with a certificate of another
authority, again and again. Clients take turns over the EXPORTs. What the server ends is connected again, once a second.

Certificates are in the directories CERTIFICATES and STRANGER, of the environment.
"""

import os
import random
import select
import socket
import ssl
import struct
import sys
import time

MAGIC = 0x49484156454F5054
REQUEST = struct.Struct(">IHHQQI")
READ, WRITE, MIB = 0, 1, 1 << 20
LARGE = 32 * MIB


def go(export):
    """The whole handshake of a client that asks for no information: flags, then NBD_OPT_GO."""
    name = export.encode()
    data = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
    return struct.pack(">I", 3) + struct.pack(">QII", MAGIC, 7, len(data)) + data


def take(peer, length):
    parts = b""
    while len(parts) < length:
        part = peer.recv(length - len(parts))
        if not part:
            raise ConnectionError("the server ended the connection")
        parts += part
    return parts


def context(directory):
    """A client's side of TLS with the certificate in a directory."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.load_verify_locations(f"{directory}/ca-cert.pem")
    made.load_cert_chain(f"{directory}/client-cert.pem", f"{directory}/client-key.pem")
    return made


def start_tls(peer):
    """Until the server says that TLS may begin."""
    peer.settimeout(30)
    take(peer, 18)
    peer.sendall(struct.pack(">I", 3) + struct.pack(">QII", MAGIC, 5, 0))
    _magic, _option, kind, length = struct.unpack(">QIII", take(peer, 20))
    if kind != 1:
        raise ConnectionError(f"no TLS: {take(peer, length).decode(errors='replace')}")


def hello():
    """The first message of a client's TLS handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    try:
        made.wrap_bio(incoming, outgoing).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def handshake(peer, export):
    peer.settimeout(30)
    if isinstance(peer, ssl.SSLSocket):
        # Both have said what they can do before it began.
        peer.sendall(go(export)[4:])
    else:
        take(peer, 18)
        peer.sendall(go(export))
    while True:
        magic, _option, kind, length = struct.unpack(">QIII", take(peer, 20))
        said = take(peer, length)
        if magic != 0x3E889045565A9 or kind & 1 << 31:
            raise ConnectionError(f"refused: {said.decode(errors='replace')}")
        if kind == 1:
            return peer


class Hostile:
    """One connection. `step` does what can be done now without waiting."""

    def __init__(self, kind, port, export):
        self.kind, self.port, self.export = kind, port, export
        self.peer, self.left, self.lives = None, b"", 0
        self.tls = context(os.environ["STRANGER"]) if kind == "stranger" else None

    def connect(self):
        peer = socket.socket()
        if self.kind == "deaf":
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.settimeout(30)
        peer.connect(("127.0.0.1", self.port))
        self.left = b""
        if self.kind == "deaf":
            handshake(peer, self.export)
            self.left = b"".join(REQUEST.pack(0x25609513, 0, READ, n, 0, LARGE) for n in range(4))
        elif self.kind == "half":
            handshake(peer, self.export)
            self.left = REQUEST.pack(0x25609513, 0, WRITE, 1, 0, LARGE) + bytes(31 * MIB)
        elif self.kind == "slow":
            self.left = go(self.export)
        elif self.kind.startswith("tls-"):
            start_tls(peer)
            self.left = hello() if self.kind == "tls-slow" else b""
        elif self.kind == "stranger":
            start_tls(peer)
            # It is refused once the server has seen the certificate: the first read says so.
            with self.tls.wrap_socket(peer) as secured:
                secured.recv(1)
            raise ConnectionError("the server took a stranger")
        peer.setblocking(False)
        self.peer, self.lives = peer, self.lives + 1

    def step(self):
        if self.peer is None:
            try:
                self.connect()
            except OSError as error:
                if "took a stranger" in str(error):
                    sys.exit(str(error))
                self.lives += self.kind == "stranger"
                self.peer = None
                return
        if self.left:
            try:
                sent = self.peer.send(self.left[:1] if self.kind.endswith("slow") else self.left[:MIB])
                self.left = self.left[sent:]
            except BlockingIOError:
                pass
            except OSError:
                self.drop()
                return
        if self.kind in ("slow", "silent", "half", "tls-slow", "tls-silent"):
            # Whether the server has ended it; nothing else comes.
            try:
                if select.select([self.peer], [], [], 0)[0] and not self.peer.recv(4096):
                    self.drop()
            except OSError:
                self.drop()

    def drop(self):
        self.peer.close()
        self.peer = None


def attack(kind, count, port, *exports):
    clients = [Hostile(kind, int(port), exports[n % len(exports)]) for n in range(int(count))]
    os.nice(10)
    # Everybody once, and what fits of the halves, before anything is measured.
    for _ in range(40 if kind == "half" else 1):
        for client in clients:
            client.step()
    print("ready", sum(client.peer is not None for client in clients), flush=True)
    while not select.select([sys.stdin], [], [], 1)[0]:
        for client in clients:
            client.step()
    print("lives", sum(client.lives for client in clients), flush=True)


def good(path, port, export, seconds):
    began = time.monotonic()
    other = socket.socket()
    # A peer of another address than that of the hostile ones.
    other.bind(("127.0.0.2", 0))
    other.settimeout(60)
    other.connect(("127.0.0.1", int(port)))
    if path == "tls":
        start_tls(other)
        other = context(os.environ["CERTIFICATES"]).wrap_socket(other)
    handshake(other, export)
    connect = time.monotonic() - began
    peer = other
    if path != "tls":
        other.close()
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(path)
        handshake(peer, export)
    chance, taken = random.Random(1), []
    end = time.monotonic() + float(seconds)
    cookie = 0
    while time.monotonic() < end:
        cookie += 1
        offset = chance.randrange(1 << 14) << 12
        write = cookie % 2
        began = time.monotonic()
        if write:
            peer.sendall(REQUEST.pack(0x25609513, 0, WRITE, cookie, offset, 4096) + bytes([cookie % 251]) * 4096)
            reply = take(peer, 16)
        else:
            peer.sendall(REQUEST.pack(0x25609513, 0, READ, cookie, offset, 4096))
            reply = take(peer, 16)
            take(peer, 4096)
        taken.append(time.monotonic() - began)
        if struct.unpack(">IIQ", reply) != (0x67446698, 0, cookie):
            sys.exit(f"a wrong reply: {reply.hex()}")
    taken.sort()
    at = [int(taken[int(len(taken) * part)] * 1e6) for part in (0.5, 0.99)]
    print(len(taken), *at, int(connect * 1e6))


def watch(pid, file):
    """What is the process's own, and no file's, every 50 ms until stdin ends."""
    most = 0
    while not select.select([sys.stdin], [], [], 0.05)[0]:
        with open(f"/proc/{pid}/status") as status:
            own = [line.split()[1] for line in status if line.startswith("RssAnon:")]
        most = max(most, int(own[0]) >> 10 if own else 0)
    with open(file, "w") as out:
        print(most, file=out)


if __name__ == "__main__":
    if sys.argv[1:2] == ["attack"]:
        attack(*sys.argv[2:])
    elif sys.argv[1:2] == ["good"]:
        good(*sys.argv[2:])
    elif sys.argv[1:2] == ["watch"]:
        watch(*sys.argv[2:])
    else:
        sys.exit(__doc__)
