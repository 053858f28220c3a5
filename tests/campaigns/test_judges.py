#!/usr/bin/python3
"""The judges of the campaigns, judged: what they must accept and what they must refuse."""

import contextlib
import io
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
REPOSITORY = os.path.dirname(os.path.dirname(HERE))
sys.path.append(os.path.join(REPOSITORY, "bench"))

import cache_forge
import cache_load
import logger
import one_writer
import writers


class Writers(unittest.TestCase):
    """A file that was created, one that was replaced by renaming it, one change open."""

    def setUp(self):
        self.directory, self.notes = tempfile.TemporaryDirectory(), tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.addCleanup(self.notes.cleanup)
        self.record = writers.Record(self.notes.name, 0)
        self.record.open()
        self.addCleanup(os.close, self.record.descriptor)
        self.record.note(number=1, change="create", name="a", length=100, seed=1)
        self.record.note(done=1, at=1)
        self.record.note(number=2, change="create", name="b", length=5000, seed=2)
        self.record.note(done=2, at=2)
        self.record.note(number=3, change="rename", name="a", to="b")
        self.record.note(done=3, at=3)
        self.a, self.b = writers.content(1, 100), writers.content(2, 5000)

    def judge(self, prefix=False, until=float("inf"), **files):
        for name, data in files.items():
            with open(os.path.join(self.directory.name, name), "wb") as file:
                file.write(data)
        faults = []
        held = writers.judge_writer(self.directory.name, self.record, faults.append, prefix, until)[1]
        for name in files:
            os.unlink(os.path.join(self.directory.name, name))
        return held if not faults else None

    def test_all_that_was_synced_must_be_there(self):
        self.assertEqual(self.judge(b=self.a), 3)
        self.assertIsNone(self.judge())
        self.assertIsNone(self.judge(b=self.b))
        self.assertIsNone(self.judge(b=self.a[:-1]))
        self.assertIsNone(self.judge(b=self.a[:-1] + b"?"))
        self.assertIsNone(self.judge(a=self.a, b=self.a))
        self.assertEqual(self.judge(b=self.a, **{"noise-1": b"anything"}), 3)

    def test_what_was_noted_after_the_kill_may_be_lost(self):
        self.assertEqual(self.judge(until=2.5, b=self.a), 3)
        self.assertEqual(self.judge(until=2.5, a=self.a, b=self.b), 2)
        self.assertIsNone(self.judge(until=2.5, a=self.a))
        self.assertIsNone(self.judge(until=2.5, a=self.a, b=self.b[:4096]))
        self.assertIsNone(self.judge(until=3.5, a=self.a, b=self.b))

    def test_after_a_loss_each_state_of_the_history_will_do(self):
        self.assertEqual(self.judge(prefix=True, b=self.a), 3)
        self.assertEqual(self.judge(prefix=True, a=self.a, b=self.b), 2)
        self.assertEqual(self.judge(prefix=True, a=self.a, b=self.b[:4096] + bytes(904)), 1)
        self.assertEqual(self.judge(prefix=True, a=self.a), 1)
        self.assertEqual(self.judge(prefix=True), 0)
        self.assertIsNone(self.judge(prefix=True, b=self.b))
        self.assertIsNone(self.judge(prefix=True, b=self.a, c=b""))

    def test_an_open_append_may_have_zeroes_and_nothing_foreign(self):
        self.record.note(number=4, change="append", name="b", length=50, seed=3)
        more = writers.content(3, 50)
        self.assertEqual(self.judge(b=self.a), 3)
        self.assertEqual(self.judge(b=self.a + more), 3)
        self.assertEqual(self.judge(b=self.a + more[:20] + bytes(30)), 3)
        foreign = bytes([more[20] ^ 0xFF or 1]) + bytes(29)
        self.assertIsNone(self.judge(b=self.a + more[:20] + foreign))
        self.assertIsNone(self.judge(b=self.a[:99]))
        self.assertIsNone(self.judge())

    def test_an_open_truncation_may_have_zeroed_what_goes(self):
        self.record.note(number=4, change="truncate", name="b", length=30)
        self.assertEqual(self.judge(b=self.a[:30]), 3)
        self.assertEqual(self.judge(b=self.a[:30] + bytes(70)), 3)
        self.assertIsNone(self.judge(b=self.a[:30] + bytes(69)))
        self.assertIsNone(self.judge(b=bytes(100)))

    def test_an_open_rename_is_undone_or_done(self):
        self.record.note(number=4, change="rename", name="b", to="c")
        self.assertEqual(self.judge(b=self.a), 3)
        self.assertEqual(self.judge(c=self.a), 3)
        self.assertIsNone(self.judge(b=self.a, c=self.a))
        self.assertIsNone(self.judge())


class CacheLoad(unittest.TestCase):
    """Eight blocks: block 1 was written twice, block 2 is zeroes again, to block 3 a write is on its way."""

    def setUp(self):
        self.model = cache_load.Model()
        self.volume = cache_load.Volume(8)
        self.model.volumes["disk"] = self.volume
        self.older, self.newer, self.gone, self.base, self.under_way = (self.model.next() for _ in range(5))
        self.volume.shows[1], self.volume.shows[3] = self.newer, self.base
        self.volume.open[3] = self.under_way

    def pin(self, block, number, at=None, spoil=False):
        """Whether the judge takes it that `block` shows what write `number` put `at` some block."""
        data = cache_load.block_of(number, block if at is None else at)
        if spoil:
            data = data[:2048] + cache_load.block_of(self.older, block)[2048:]
        self.model.pin("disk", block, data)
        faults, self.model.faults = self.model.faults, []
        return not faults

    def test_what_was_acknowledged_last_must_show(self):
        self.assertTrue(self.pin(1, self.newer))
        self.assertFalse(self.pin(1, self.older))
        self.assertFalse(self.pin(1, 0))
        self.assertFalse(self.pin(1, self.newer, spoil=True))
        self.assertFalse(self.pin(1, self.newer, at=5))
        self.assertFalse(self.pin(1, self.newer + 40))
        self.assertTrue(self.pin(2, 0))
        self.assertFalse(self.pin(2, self.gone))
        self.assertTrue(self.pin(1, self.newer))

    def test_what_was_on_its_way_may_show_and_must_stay_then(self):
        self.assertFalse(self.pin(3, self.older))
        self.volume.open[3] = self.under_way
        self.assertTrue(self.pin(3, self.under_way))
        self.assertFalse(self.pin(3, self.base))
        self.volume.shows[3], self.volume.open[3] = self.base, self.under_way
        self.assertTrue(self.pin(3, self.base))
        self.assertFalse(self.pin(3, self.under_way))

    def test_a_volume_that_was_set_back_or_made_anew_shows_nothing_newer(self):
        self.volume.open.clear()
        cache_load.change(self.model, "snapshot", ["disk", "s"])
        self.volume.shows[1] = written = self.model.next()
        cache_load.change(self.model, "rollback", ["disk", "s"])
        self.volume = self.model.volumes["disk"]
        self.assertFalse(self.pin(1, written))
        self.assertTrue(self.pin(1, self.newer))
        cache_load.change(self.model, "clone", ["disk", "s", "clone"])
        self.assertEqual(self.model.volumes["clone"].shows[1], self.newer)
        cache_load.change(self.model, "fresh", ["disk", "1"])
        self.assertFalse(self.pin(1, self.newer))
        self.assertTrue(self.pin(1, 0))

    def read(self, *numbers, then=None):
        """Whether a read of blocks 1 to 3 may show these writes, `then` having been written meanwhile."""
        read = cache_load.Read("disk", self.volume, 1, 3)
        if then:
            read.may_show(*then)
        read.judge(self.model, b"".join(cache_load.block_of(number, 1 + at) for at, number in enumerate(numbers)))
        faults, self.model.faults = self.model.faults, []
        return not faults

    def test_a_read_shows_what_was_there_or_came_meanwhile(self):
        self.assertTrue(self.read(self.newer, 0, self.base))
        self.assertTrue(self.read(self.newer, 0, self.under_way))
        self.assertFalse(self.read(self.older, 0, self.base))
        self.assertFalse(self.read(self.newer, self.gone, self.base))
        later = self.model.next()
        self.assertFalse(self.read(later, 0, self.base))
        self.assertTrue(self.read(later, 0, self.base, then=(1, later)))
        self.assertTrue(self.read(self.newer, 0, self.base, then=(1, later)))
        self.assertFalse(self.read(self.older, 0, self.base, then=(1, later)))
        self.assertTrue(self.read(self.newer, 0, self.base, then=(7, later)))


class CacheForge(unittest.TestCase):
    """A cache of one band whose two runs have the same blocks."""

    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.path = os.path.join(self.directory.name, "blocks")
        self.block = cache_load.block_of(7, 3)
        head = bytearray(b"WEIR-CSB".ljust(4096, b"\0"))
        struct.pack_into("<4I", head, 40, 1, 1, 64, 16)
        with open(self.path, "wb") as file:
            file.write(head)
            file.seek(cache_forge.BANDS_AT)
            for number in range(2):
                file.write(self.run_of(number) + self.block * 16)

    @staticmethod
    def header(number):
        header = bytearray(b"WEIR-CRH".ljust(4096, b"\0"))
        struct.pack_into("<I", header, 40, number)
        header[48:80] = b"device".ljust(32, b"d")
        struct.pack_into("<Q", header, 80, 5)
        struct.pack_into("<I", header, 144, 0b110)
        return header

    def hash(self, block, number, index):
        seed = cache_forge.xxh3_64(b"device".ljust(32, b"d") + struct.pack("<QI", 20 + number, index))
        return cache_forge.xxh3_128(block, seed)

    def run_of(self, number):
        header = self.header(number)
        for index in (1, 2):
            # The second run has the hash of another block.
            header[2048 + 64 * index:2064 + 64 * index] = self.hash(self.block, 0, index)
        return header

    def test_the_hashes_are_those_of_others(self):
        self.assertEqual(cache_forge.crc32c(b"123456789"), 0xE3069283)
        self.assertEqual(f"{cache_forge.xxh3_64(bytes(range(44))):016x}", "88837c359af56b89")
        data = bytes(byte % 251 for byte in range(4096))
        self.assertEqual(cache_forge.xxh3_128(data, 7).hex(), "c5171c12ce3ecc83d10b1f0d89574e33")

    def test_blocks_that_count_are_forged_with_their_hash(self):
        other = cache_load.block_of(6, 3)
        self.assertEqual(cache_forge.forge(self.path, lambda data: other if data == self.block else None, 9), 2)
        with open(self.path, "rb") as file:
            file.seek(cache_forge.BANDS_AT)
            runs = file.read()
        header = runs[:4096]
        blocks = [runs[4096 * at:4096 * at + 4096] for at in range(1, 5)]
        self.assertEqual(blocks, [self.block, other, other, self.block])
        self.assertEqual(header[2048 + 64:2064 + 64], self.hash(other, 0, 1))
        self.assertEqual(struct.unpack_from("<I", header, 12)[0], cache_forge.crc32c(header[:12] + header[16:]))
        self.assertEqual(runs[17 * 4096:18 * 4096], self.run_of(1))
        self.assertEqual(cache_forge.forge(self.path, lambda data: None, 9), 0)


class Logger(unittest.TestCase):
    """Two cells. Writes 1 and 2 fill them, 3 follows both, 4 and 5 are in flight together."""

    SHIFT = 5

    def judge(self, *shown, flushed=0, whole=False):
        """The writes that the cells show; None is zeroes."""
        never = logger.NEVER
        record = {
            "shift": self.SHIFT, "cells": 2, "flushed": flushed, "flushes": 0, "ended": 0.0,
            # number, kind, first cell, cells, issued, acknowledged, when
            "writes": [
                (1, "write", 0, 1, 1, 2, 0.0), (2, "write", 1, 1, 3, 4, 0.0),
                (3, "write", 0, 1, 5, 6, 0.0), (4, "write", 1, 1, 7, 9, 0.0),
                (5, "write", 0, 1, 8, never, 0.0), (6, "zero", 1, 1, 10, never, 0.0)],
        }
        image = bytearray(self.SHIFT)
        for cell, number in enumerate(shown):
            image += bytes(logger.CELL) if number is None else logger.cell_of(number, cell)
        with tempfile.NamedTemporaryFile() as file:
            pickle.dump(record, file)
            file.flush()
            judge = logger.Judge(file.name, image)
        judge.judge(whole)
        return not judge.faults

    def test_prefixes(self):
        self.assertTrue(self.judge(1, 2))
        self.assertTrue(self.judge(3, 2))
        self.assertTrue(self.judge(3, 4))
        # 4 and 5 were in flight together: either may be there without the other.
        self.assertTrue(self.judge(5, 2))
        self.assertTrue(self.judge(5, 4))
        self.assertTrue(self.judge(3, None))

    def test_what_is_no_prefix(self):
        # 4 was issued after 3 was acknowledged.
        self.assertFalse(self.judge(1, 4))
        self.assertFalse(self.judge(1, None))
        # Cells of a write that was elsewhere, of a number that no write has, zeroes that nobody wrote.
        self.assertFalse(self.judge(2, 2))
        self.assertFalse(self.judge(9, 2))
        self.assertFalse(self.judge(None, 2))

    def test_a_remote_flush_holds(self):
        self.assertTrue(self.judge(1, 2, flushed=4))
        self.assertFalse(self.judge(1, 2, flushed=6))
        self.assertTrue(self.judge(3, 2, flushed=6))
        self.assertFalse(self.judge(3, 2, whole=True))
        self.assertTrue(self.judge(3, 4, whole=True))
        self.assertTrue(self.judge(5, 4, whole=True))


class Blocks(unittest.TestCase):
    """What a new owner may show of the blocks 1 to 3 that were answered."""

    def accepts(self, *blocks, whole=False):
        content = bytes(one_writer.BLOCK) + b"".join(blocks) + bytes(one_writer.BLOCK)

        class Handle:
            @staticmethod
            def pread(count, at):
                return content[at:at + count]

        try:
            with contextlib.redirect_stdout(io.StringIO()):
                one_writer.judge(Handle, 1, len(blocks), whole)
        except SystemExit:
            return False
        return True

    def test_prefixes(self):
        one, two, three = (one_writer.block_of(number) for number in (1, 2, 3))
        none, half = bytes(one_writer.BLOCK), one_writer.BLOCK // 2
        self.assertTrue(self.accepts(one, two, three, whole=True))
        self.assertTrue(self.accepts(one, two, none))
        self.assertTrue(self.accepts(none, none, none))
        # A block fits a record: a part of one is never a prefix.
        self.assertFalse(self.accepts(one, two[:half] + none[half:], none))
        self.assertFalse(self.accepts(one, none[:half] + two[half:], none))
        self.assertFalse(self.accepts(one, two, none, whole=True))
        self.assertFalse(self.accepts(one, none, three))
        self.assertFalse(self.accepts(one, two[:half] + none[half:], three))
        self.assertFalse(self.accepts(one, none, three[:half] + none[half:]))
        self.assertFalse(self.accepts(one, two[:half + 7] + none[half + 7:], none))
        self.assertFalse(self.accepts(one, three, none))


class Recording(unittest.TestCase):
    """--record: what `cargo run -p evidence` is asked for, with a cargo that writes down its arguments."""

    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.asked = os.path.join(self.directory.name, "asked")
        self.stub("cargo", f'printf "%s\\n" "$*" >>{self.asked}; echo "${{KNOWN:-}}"; exit "${{STATUS:-0}}"')
        self.weir = self.stub("weir", 'echo "weir 0.1.0 (0123456-dirty)"')

    def stub(self, name, script):
        path = os.path.join(self.directory.name, name)
        with open(path, "w", encoding="ascii") as file:
            file.write(f"#!/bin/sh\n{script}\n")
        os.chmod(path, 0o755)
        return path

    def environment(self, **more):
        return {**os.environ, "PATH": f"{self.directory.name}:{os.environ['PATH']}", **more}

    def lines(self):
        try:
            with open(self.asked, encoding="ascii") as file:
                return file.read().splitlines()
        except FileNotFoundError:
            return []

    def campaign(self, *arguments, **more):
        """A script as the campaigns are: it takes --record, and records."""
        script = os.path.join(self.directory.name, "campaign")
        with open(script, "w", encoding="ascii") as file:
            file.write(f'set -u\nweir={self.weir}\n. "{REPOSITORY}/tests/record.sh"\ntake_record "$@"\n'
                       'set -- "${arguments[@]}"\necho "$*"\nrecord crash 116 0 "a note"\n'
                       'record p99 6 1.2 "" 1.0 1.4\nexit "$record_failed"\n')
        return subprocess.run(["bash", script, *arguments], env=self.environment(**more), capture_output=True,
                              text=True, check=False)

    def test_a_campaign_records_when_it_is_asked_to(self):
        done = self.campaign("--rounds", "2")
        self.assertEqual((done.stdout, done.returncode, self.lines()), ("--rounds 2\n", 0, []))
        done = self.campaign("--rounds", "--record", "2", TEST_S3_SERVER="minio")
        self.assertEqual((done.stdout.splitlines()[0], done.returncode), ("--rounds 2", 0))
        crash, p99 = self.lines()
        self.assertRegex(crash, "^run -q -p evidence -- record crash --n 116 --value 0 --load [0-9.]+ "
                         "--commit 0123456-dirty --command tests/s3/with minio .*campaign --rounds 2 --note=a note$")
        self.assertTrue(p99.endswith("--note= --low 1.0 --high 1.4"), p99)

    def test_what_is_not_recorded_is_a_failure(self):
        done = self.campaign("--record", STATUS="1")
        self.assertIn("not recorded: crash", done.stdout)
        self.assertEqual(done.returncode, 1)

    def test_a_benchmark_records_what_goals_are_measured_by(self):
        code = ("import argparse, sys; from side_by_side import evidence, stats\n"
                "parser = argparse.ArgumentParser(); evidence.add_argument(parser)\n"
                "facts = {'commit': '0123456', 'load_average_at_start': [0.5, 0, 0]}\n"
                "recorder = evidence.Recorder(parser.parse_args(), facts)\n"
                "recorder.ratio('drain', stats.ratio([(2, 1), (2.2, 1)]), 'a note')\n"
                "recorder.ratio('drain', None)\n"
                "recorder.value('other', 1)\n")
        run = [sys.executable, "-B", "-c", code]
        for arguments, expected in (([], 0), (["--record"], 2)):
            subprocess.run([*run, *arguments], env=self.environment(KNOWN="drain", PYTHONPATH=sys.path[-1]),
                           capture_output=True, check=True)
            self.assertEqual(len(self.lines()), expected)
        self.assertRegex(self.lines()[1], "record drain --commit 0123456 --load 0.5 --command .* --value 2.09762 "
                         "--low 1.14.* --high 3.8.* --n 2 --note=a note$")


if __name__ == "__main__":
    unittest.main()
