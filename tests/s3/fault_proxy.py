#!/usr/bin/python3
"""A proxy in front of an S3 service that misbehaves on demand. Nothing but the standard library.

    fault_proxy.py serve PORT UPSTREAM_PORT    until it is killed; on 127.0.0.1
    fault_proxy.py set PORT [NAME=VALUE...]    these faults, and no others; without any it is honest again
    fault_proxy.py counts PORT                 how often each happened, as NAME COUNT; and PUTs whose body came with a
                                               checksum in place of a signature, as checksums

Faults, each with its chance from 0 to 1:

    busy          any request: 503 SlowDown, and nothing is done
    spoilt_put    one byte of a large PUT's body is changed on its way
    lost_put      a PUT is done, and its answer never comes
    short_get     the body of a GET breaks off in the middle
    lying_get     the body of a ranged GET is a byte short, and its length says that it has to be so
    stale_list    a LIST leaves its last key out
    two_winners   a PUT of a key that another PUT created meanwhile is told that it created it
    overwrites    a PUT of a key that is taken is told that it created it, whenever that was
    down          the connection is closed without a word
    slow_lease=S  a PUT of a lease is passed on after so many seconds
    answer=STATUS:CODE   every request gets this error of S3

The Host header goes through as it came, since it is signed.
"""

import http.client
import http.server
import json
import random
import re
import sys
import threading
import time

CONTROL = "/_faults"
LARGE_BYTES = 64 << 10


class State:
    def __init__(self, upstream):
        self.upstream = upstream
        self.faults = {}
        self.counts = {}
        self.spared = {}
        self.created = {}
        self.lock = threading.Lock()

    def happens(self, name):
        """By chance; but the first time at the latest when by its chance it should have happened once, so that a test
        with few requests meets it."""
        chance = float(self.faults.get(name, 0))
        if not chance:
            return False
        with self.lock:
            spared = self.spared[name] = self.spared.get(name, 0) + 1
            is_due = name not in self.counts and spared * chance >= 1
        if random.random() >= chance and not is_due:
            return False
        self.count(name)
        return True

    def count(self, name):
        with self.lock:
            self.counts[name] = self.counts.get(name, 0) + 1


def error(code):
    return f"<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    state = None

    def log_message(self, *_):
        pass

    def answer(self, status, body, headers=()):
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def hang_up(self):
        self.close_connection = True

    def control(self, body):
        state = self.state
        with state.lock:
            if self.command == "PUT":
                state.faults = json.loads(body)
        self.answer(200, json.dumps(state.counts).encode())

    def handle_request(self):
        state = self.state
        self.arrived = time.monotonic()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == CONTROL:
            return self.control(body)
        if state.happens("down"):
            return self.hang_up()
        if "answer" in state.faults:
            status, code = state.faults["answer"].split(":")
            return self.answer(int(status), error(code))
        if "slow_lease" in state.faults and self.command == "PUT" and "/nodes/" in self.path:
            time.sleep(float(state.faults["slow_lease"]))
        if state.happens("busy"):
            return self.answer(503, error("SlowDown"))
        if self.command == "PUT" and len(body) >= LARGE_BYTES:
            if "x-amz-checksum-crc64nvme" in self.headers:
                state.count("checksums")
            if state.happens("spoilt_put"):
                at = random.randrange(len(body))
                body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1:]
        try:
            reply, content = self.forward(body)
        except OSError:
            return self.hang_up()
        return self.hand_back(reply, content)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_request

    def forward(self, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.state.upstream, timeout=120)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() != "connection":
                    connection.putheader(name, value)
            connection.endheaders(body)
            reply = connection.getresponse()
            return reply, reply.read()
        except http.client.HTTPException as problem:
            raise OSError(problem) from problem
        finally:
            connection.close()

    def hand_back(self, reply, content):
        state = self.state
        skipped = ("content-length", "connection", "transfer-encoding", "date", "server")
        headers = [(n, v) for n, v in reply.getheaders() if n.lower() not in skipped]
        listing = "list-type=" in self.path
        if self.command == "PUT":
            if reply.status == 200:
                with state.lock:
                    state.created[self.path] = time.monotonic()
            elif reply.status == 412:
                raced = state.created.get(self.path, 0) > self.arrived
                if state.happens("overwrites") or raced and state.happens("two_winners"):
                    return self.answer(200, b"", [("ETag", '"e"')])
            if state.happens("lost_put"):
                return self.hang_up()
        if self.command == "GET" and reply.status in (200, 206) and not listing and content:
            if reply.status == 206 and state.happens("lying_get"):
                content = content[:-1]
            elif state.happens("short_get"):
                self.send_response_only(reply.status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[:len(content) // 2])
                return self.hang_up()
        if listing and b"<Contents>" in content and state.happens("stale_list"):
            content = re.sub(rb"<Contents>(?:(?!<Contents>).)*?</Contents>(?!.*<Contents>)", b"", content, flags=re.S)
        if self.command == "HEAD":
            self.send_response_only(reply.status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", reply.getheader("Content-Length") or "0")
            self.end_headers()
            return None
        return self.answer(reply.status, content, headers)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):
        pass


def control(port, method, faults=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, CONTROL, json.dumps(faults or {}))
    counts = json.loads(connection.getresponse().read())
    connection.close()
    return counts


def main(arguments):
    verb, port, *rest = arguments
    port = int(port)
    if verb == "serve":
        Handler.state = State(int(rest[0]))
        Server(("127.0.0.1", port), Handler).serve_forever()
    elif verb == "set":
        control(port, "PUT", dict(pair.split("=", 1) for pair in rest))
    elif verb == "counts":
        for name, count in sorted(control(port, "GET").items()):
            print(name, count)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
