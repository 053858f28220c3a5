#!/usr/bin/python3
"""Serves volumes as systemd does, and replaces the program again and again while it is told to.

    upgrade_server.py SOCKET EVERY WAYS BINARY... -- weir-ARGUMENTS...

Listens on the unix socket and on a port of loopback's, and hands both to `weir serve` (`LISTEN_FDS`). From SIGUSR1
until SIGUSR2 the program is replaced every EVERY seconds, by the WAYS in turn: `replace`, by SIGUSR2 after the next of
the binaries was installed in its place (what `systemctl reload` does), and `restart`, by SIGTERM and a new process with
the same listening sockets (`systemctl restart` with weir.socket). Ready means what the process tells NOTIFY_SOCKET. It
prints `NAME VALUE.` lines: PORT, SERVING, and for each replacement REPLACED or RESTARTED with the seconds until it was
ready. SIGTERM ends both.
"""

import os
import signal
import socket
import subprocess
import sys
import time

READY_SECONDS_MAX = 120
START = ("import os, sys; os.environ['LISTEN_PID'] = str(os.getpid()); "
         "[os.dup2(int(fd), 100 + at) for at, fd in enumerate(sys.argv[1:3])]; "
         "[os.dup2(100 + at, 3 + at) for at in range(2)]; os.execv(sys.argv[3], sys.argv[3:])")


def say(name, value):
    print(f"{name} {value}.", flush=True)


class Server:
    def __init__(self, path, binaries, arguments):
        self.directory = os.path.dirname(path)
        self.binaries, self.arguments = binaries, arguments
        self.program = os.path.join(self.directory, "weir")
        self.installed = 0
        self.install()
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind(path)
        self.tcp = socket.socket()
        self.tcp.bind(("127.0.0.1", 0))
        for listener in (self.unix, self.tcp):
            listener.listen(64)
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(path + ".notify")
        self.notify.settimeout(READY_SECONDS_MAX)
        self.log = open(path + ".log", "ab")  # pylint: disable=consider-using-with
        self.process = None
        say("PORT", self.tcp.getsockname()[1])

    def install(self):
        """Puts the next binary in the place of the one that runs, as a package does: by renaming."""
        new = self.program + ".new"
        os.link(self.binaries[self.installed % len(self.binaries)], new)
        os.rename(new, self.program)
        self.installed += 1

    def start(self):
        descriptors = [self.unix.fileno(), self.tcp.fileno()]
        environment = os.environ | {"LISTEN_FDS": "2", "NOTIFY_SOCKET": self.notify.getsockname()}
        self.process = subprocess.Popen(  # pylint: disable=consider-using-with
            [sys.executable, "-c", START, *map(str, descriptors), self.program, *self.arguments],
            pass_fds=descriptors, env=environment, stdin=subprocess.DEVNULL, stdout=self.log,
            stderr=self.log)
        self.wait_ready()

    def wait_ready(self):
        while b"READY=1" not in self.notify.recv(4096):
            pass

    def replace(self):
        self.install()
        began = time.monotonic()
        self.process.send_signal(signal.SIGUSR2)
        self.wait_ready()
        say("REPLACED", f"{time.monotonic() - began:.3f}")

    def restart(self):
        began = time.monotonic()
        self.stop()
        self.start()
        say("RESTARTED", f"{time.monotonic() - began:.3f}")

    def stop(self):
        self.process.terminate()
        status = self.process.wait(READY_SECONDS_MAX)
        if status:
            say("FAILED", f"weir ended with {status}")

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def main(arguments):
    split = arguments.index("--")
    path, every, ways, *binaries = arguments[:split]
    server = Server(path, binaries, arguments[split + 1:])
    wanted = {"replacing": False, "ending": False}
    signal.signal(signal.SIGUSR1, lambda *_: wanted.update(replacing=True))
    signal.signal(signal.SIGUSR2, lambda *_: wanted.update(replacing=False))
    signal.signal(signal.SIGTERM, lambda *_: wanted.update(ending=True))
    try:
        server.start()
        say("SERVING", path)
        ways = [{"replace": server.replace, "restart": server.restart}[way] for way in ways.split(",")]
        next_at, done = 0.0, 0
        while not wanted["ending"]:
            time.sleep(0.05)
            if server.process.poll() is not None:
                say("FAILED", f"weir ended by itself with {server.process.returncode}")
                return 1
            if not wanted["replacing"]:
                next_at = time.monotonic() + float(every) / 2
            elif time.monotonic() >= next_at:
                ways[done % len(ways)]()
                done += 1
                next_at = time.monotonic() + float(every)
                say("DONE", done)
        server.stop()
    except (OSError, subprocess.SubprocessError) as problem:
        say("FAILED", problem)
        return 1
    finally:
        server.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
