#!/usr/bin/python3
"""Writers on a file system, and a judge of what is left of their files after a crash.

    writers.py run DIRECTORY RECORD --workers N --seed S    until an error or a signal
    writers.py judge DIRECTORY RECORD --workers N           exit code 1 on a violation

Each writer works alone in a directory of its own and makes one change at a time. RECORD is on another
disk: there a writer notes a change before it begins, and again when fsync of the file, and of the
directory where names changed, has returned. So at a crash at most one change of each writer is open:

- every file that no open change concerns must be there with every byte, and no other file may be;
- what an open change concerns must show the state before, the state after, or for data a mix of the
  two in which each byte is the old one, the new one, or a zero where there was none.

ext4 may answer an fsync after the disk below it went away: where the transaction of a change was given up for somebody
else's fsync just before, there is nothing left to wait for. What was noted after the kill (--until) need not be there.

After the loss of the local disk the files of each writer must be in one of the states that they went
through (--prefix), with the next change open.

The judge leaves the state for the next run, which goes on with the same files: its writers begin by
deleting what was open. Files named noise-* are written and not synced, to be in the way; nobody
judges them.
"""

import argparse
import json
import os
import pickle
import random
import signal
import sys
import time
import traceback

FILES_MAX = 160
SIZE_MAX = 1 << 20


def content(seed, length):
    return random.Random(seed).randbytes(length)


def some_length(rng):
    most = rng.choices((300, 5000, 70000, SIZE_MAX), (30, 40, 25, 5))[0]
    return rng.randint(1, most)


class Record:
    """A writer's notes: a file to which lines are appended, each by one write."""

    def __init__(self, directory, worker):
        self.log = os.path.join(directory, f"writer-{worker}.log")
        self.state = os.path.join(directory, f"writer-{worker}.state")

    def load(self):
        """The files as the last judge left them, and the names that were open."""
        if not os.path.exists(self.state):
            return {}, []
        with open(self.state, "rb") as file:
            return pickle.load(file)

    def store(self, files, unsettled):
        with open(self.state + ".new", "wb") as file:
            pickle.dump((files, unsettled), file)
        os.replace(self.state + ".new", self.state)
        if os.path.exists(self.log):
            os.unlink(self.log)

    def open(self):
        self.descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, **what):
        os.write(self.descriptor, json.dumps(what).encode() + b"\n")

    def changes(self):
        """All changes in order, each with when it was completed, if it was."""
        changes = []
        if os.path.exists(self.log):
            with open(self.log, encoding="ascii") as file:
                for line in file:
                    what = json.loads(line)
                    if "done" in what:
                        assert changes[-1][0]["number"] == what["done"]
                        changes[-1][1] = what["at"]
                    else:
                        changes.append([what, None])
        return changes


def after(files, what):
    """The files after a change."""
    files = dict(files)
    name, change = what["name"], what["change"]
    if change == "create":
        files[name] = content(what["seed"], what["length"])
    elif change == "append":
        files[name] = files[name] + content(what["seed"], what["length"])
    elif change == "overwrite":
        old, offset = files[name], what["offset"]
        files[name] = (
            old[:offset] + content(what["seed"], what["length"]) + old[offset + what["length"]:])
    elif change == "truncate":
        files[name] = files[name][:what["length"]]
    elif change == "rename":
        files[what["to"]] = files.pop(name)
    elif change == "delete":
        files.pop(name, None)
    else:
        raise ValueError(change)
    return files


class Writer:
    def __init__(self, directory, record, seed):
        self.directory = directory
        self.record = record
        self.rng = random.Random(seed)
        self.number = 0
        self.sizes = {}

    def path(self, name):
        return os.path.join(self.directory, name)

    def sync_names(self):
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def write(self, name, flags, offset, data):
        descriptor = os.open(self.path(name), os.O_WRONLY | flags, 0o600)
        try:
            at = 0
            while at < len(data):
                piece = data[at:at + self.rng.choice((512, 4096, 10000, 65536, 1 << 20))]
                at += os.pwrite(descriptor, piece, offset + at)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def apply(self, what):
        name, change = what["name"], what["change"]
        if change == "create":
            data = content(what["seed"], what["length"])
            self.write(name, os.O_CREAT | os.O_EXCL, 0, data)
            self.sync_names()
        elif change == "append":
            self.write(name, 0, self.sizes[name], content(what["seed"], what["length"]))
        elif change == "overwrite":
            self.write(name, 0, what["offset"], content(what["seed"], what["length"]))
        elif change == "truncate":
            descriptor = os.open(self.path(name), os.O_WRONLY)
            try:
                os.ftruncate(descriptor, what["length"])
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        elif change == "rename":
            os.rename(self.path(name), self.path(what["to"]))
            self.sync_names()
        elif change == "delete":
            try:
                os.unlink(self.path(name))
            except FileNotFoundError:
                if not what.get("missing_is_fine"):
                    raise
            self.sync_names()

    def do(self, **what):
        self.number += 1
        self.record.note(number=self.number, **what)
        self.apply(what)
        self.record.note(done=self.number, at=time.time())
        name, sizes = what["name"], self.sizes
        if what["change"] in ("create", "truncate"):
            sizes[name] = what["length"]
        elif what["change"] == "append":
            sizes[name] += what["length"]
        elif what["change"] == "rename":
            sizes[what["to"]] = sizes.pop(name)
        elif what["change"] == "delete":
            sizes.pop(name, None)

    def some_change(self):
        rng, names = self.rng, sorted(self.sizes)
        seed = rng.getrandbits(48)
        kind = rng.choices(
            ("create", "append", "overwrite", "truncate", "rename", "delete"),
            (30, 25, 15, 5, 10, 5 if len(names) < FILES_MAX else 60))[0]
        if kind == "create" or len(names) < 4:
            name = f"file-{rng.getrandbits(40):010x}"
            self.do(change="create", name=name, length=some_length(rng), seed=seed)
            return
        name = rng.choice(names)
        size = self.sizes[name]
        if kind == "append" and size < SIZE_MAX:
            self.do(change=kind, name=name, length=some_length(rng), seed=seed)
        elif kind == "overwrite" and size > 1:
            offset = rng.randrange(size)
            length = min(some_length(rng), size - offset)
            self.do(change=kind, name=name, offset=offset, length=length, seed=seed)
        elif kind == "truncate":
            self.do(change=kind, name=name, length=rng.randint(0, size))
        elif kind == "rename":
            onto = rng.choice(names)
            if rng.random() < 0.5 or onto == name:
                onto = f"file-{rng.getrandbits(40):010x}"
            self.do(change=kind, name=name, to=onto)
        else:
            self.do(change="delete", name=name)

    def noise(self):
        name = self.path(f"noise-{self.rng.randrange(8)}")
        if self.rng.random() < 0.3:
            if os.path.exists(name):
                os.unlink(name)
        else:
            with open(name, "ab") as file:
                if file.tell() < SIZE_MAX:
                    file.write(self.rng.randbytes(some_length(self.rng)))

    def run(self):
        os.makedirs(self.directory, exist_ok=True)
        files, unsettled = self.record.load()
        self.sizes = {name: len(data) for name, data in files.items()}
        self.record.open()
        for name in unsettled:
            self.do(change="delete", name=name, missing_is_fine=True)
        while True:
            self.some_change()
            if self.rng.random() < 0.2:
                self.noise()


def run(arguments):
    os.makedirs(arguments.record, exist_ok=True)
    children = []
    for worker in range(arguments.workers):
        child = os.fork()
        if child == 0:
            record = Record(arguments.record, worker)
            directory = os.path.join(arguments.directory, f"writer-{worker}")
            try:
                Writer(directory, record, f"{arguments.seed}-{worker}").run()
            except OSError as error:
                # Before the crash that is a violation; whoever started this knows.
                print(f"writer {worker} ends: {error}", flush=True)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            os._exit(3)
        children.append(child)

    def end(_signal, _frame):
        for child in children:
            os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(3 if any(code > 0 for code in codes) else 0)


def mixed(name, seen, old, new, complain):
    """Each byte must be the old one, the new one, or a zero where there was none."""
    low, high = sorted((len(old), len(new)))
    if not low <= len(seen) <= high:
        complain(f"{name}: length {len(seen)} is not within {low}..={high}")
        return
    for at, byte in enumerate(seen):
        allowed = (old[at] if at < len(old) else 0, new[at] if at < len(new) else 0)
        if byte not in allowed:
            complain(f"{name}: byte {at} of the open change is neither old nor new")
            return


def first_difference(seen, want):
    if len(seen) != len(want):
        return f"length {len(seen)} instead of {len(want)}"
    at = next(at for at in range(len(want)) if seen[at] != want[at])
    wrong = sum(1 for left, right in zip(seen, want) if left != right)
    return f"{wrong} of {len(want)} bytes are wrong, the first at {at}"


def judge_open(what, seen, files, complain):
    """Judges what an open change concerns."""
    name, change = what["name"], what["change"]
    if change == "rename":
        to = what["to"]
        both = [(found.get(name), found.get(to)) for found in (files, after(files, what))]
        if (seen.get(name), seen.get(to)) not in both:
            complain(f"{name}: an open rename to {to} is neither undone nor done")
    elif change == "delete":
        if name in seen and seen[name] != files.get(name):
            complain(f"{name}: an open deletion changed the file")
    elif change == "create":
        if name in seen:
            mixed(name, seen[name], b"", after(files, what)[name], complain)
    elif name not in seen:
        complain(f"{name}: lost in an open {change}")
    elif change == "truncate":
        # The kernel zeroes the rest of the last block, and may write it, before the length counts.
        old, new = files[name], after(files, what)[name]
        tail = zip(seen[name][len(new):], old[len(new):])
        possible = len(seen[name]) in (len(old), len(new)) and seen[name].startswith(new)
        if not (possible and all(byte in (0, before) for byte, before in tail)):
            complain(f"{name}: an open truncation is neither undone nor done")
    else:
        mixed(name, seen[name], files[name], after(files, what)[name], complain)


def read_all(directory, complain):
    seen = {}
    if not os.path.isdir(directory):
        return seen
    for name in sorted(os.listdir(directory)):
        if not name.startswith("noise-"):
            try:
                with open(os.path.join(directory, name), "rb") as file:
                    seen[name] = file.read()
            except OSError as error:
                complain(f"{name}: {error}")
    return seen


def judge_cut(files, unsettled, changes, cut, seen, complain):
    """Judges against the state after `cut` changes, with the next one open, if there is a next one."""
    unsettled = set(unsettled)
    for what, _ in changes[:cut]:
        unsettled.discard(what["name"])
    opened = changes[cut][0] if cut < len(changes) else None
    concerned = set(unsettled)
    judged = opened is not None and not opened.get("missing_is_fine")
    if judged:
        concerned.update(name for name in (opened["name"], opened.get("to")) if name)
    kept = {}
    for name, want in files.items():
        if name in concerned:
            continue
        kept[name] = want
        if name not in seen:
            complain(f"{name}: {len(want)} synced bytes, the file is lost")
        elif seen[name] != want:
            complain(f"{name}: {first_difference(seen[name], want)}")
    for name in seen:
        if name not in files and name not in concerned:
            complain(f"{name}: its deletion was synced, it is back")
    if judged:
        judge_open(opened, seen, files, complain)
    return cut, kept, sorted(concerned)


class DoesNotFit(Exception):
    """One state of many is not the one."""


def does_not_fit(text):
    raise DoesNotFit(text)


def judge_writer(directory, record, complain, prefix, until=float("inf")):
    files, unsettled = record.load()
    changes = record.changes()
    seen = read_all(directory, complain)
    completed = sum(1 for _, done in changes if done)
    if len(changes) - completed > 1:
        raise ValueError("a writer makes one change at a time")
    states = [files]
    for what, _ in changes[:completed]:
        states.append(after(states[-1], what))
    sure = 0 if prefix else sum(1 for _, done in changes if done and done < until)
    # The newest of the states in the writer's history that fits. One must.
    for cut in range(completed, sure - 1, -1):
        try:
            verdict = judge_cut(states[cut], unsettled, changes, cut, seen, does_not_fit)
        except DoesNotFit:
            continue
        return completed, *verdict
    if prefix:
        complain("the files are in no state that they went through")
        return completed, 0, {}, []
    return completed, *judge_cut(states[-1], unsettled, changes, completed, seen, complain)


def judge(arguments):
    faults = []
    total = {"changes": 0, "held": 0, "files": 0, "bytes": 0, "open": 0}
    settled, large = [], []
    for worker in range(arguments.workers):
        record = Record(arguments.record, worker)
        directory = os.path.join(arguments.directory, f"writer-{worker}")
        completed, held, kept, concerned = judge_writer(
            directory, record, lambda text: faults.append(f"writer-{worker}/{text}"),
            arguments.prefix, arguments.until)
        total["changes"] += completed
        total["held"] += held
        total["files"] += len(kept)
        total["bytes"] += sum(len(data) for data in kept.values())
        total["open"] += len(concerned)
        settled.append((record, kept, concerned))
        large += [os.path.join(directory, name) for name, data in kept.items() if len(data) > 16384]
    if arguments.large and large:
        print("large:", large[len(large) // 2])
    for fault in faults[:20]:
        print("violation:", fault)
    held = f", {total['held']} of them held" if arguments.prefix else ""
    print(f"{total['changes']} changes were synced{held}; {total['files']} files with {total['bytes']} bytes"
          f" judged, {total['open']} open; {len(faults)} violations")
    if not faults and not arguments.leave:
        for record, kept, concerned in settled:
            record.store(kept, concerned)
    sys.exit(1 if faults else 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=("run", "judge"))
    parser.add_argument("directory")
    parser.add_argument("record")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--prefix", action="store_true",
                        help="any state that the files went through will do")
    parser.add_argument("--until", type=float, default=float("inf"), metavar="SECONDS",
                        help="what was noted as synced later, by the clock, may be lost")
    parser.add_argument("--leave", action="store_true", help="judge without going on from here")
    parser.add_argument("--large", action="store_true", help="name a file over 16 KiB that counts")
    arguments = parser.parse_args()
    {"run": run, "judge": judge}[arguments.verb](arguments)


if __name__ == "__main__":
    main()
