"""`--record`: what a benchmark found becomes a run of every goal that is measured by it.

See docs/evidence/README.md; tests/record.sh is the same for bash.
"""

import os
import shlex
import subprocess
import sys

from . import place, stats


def add_argument(parser):
    parser.add_argument("--record", action="store_true", help="add what is found to the records in docs/evidence")


def _evidence(*arguments):
    command = ["cargo", "run", "-q", "-p", "evidence", "--", *arguments]
    return subprocess.run(command, cwd=place.REPOSITORY, check=True, stdout=subprocess.PIPE, text=True).stdout


def _without_paths(words):
    """The arguments of a command as they are recorded: without `--record`, and without what is a path of this machine."""
    kept, words = [], iter(words)
    for word in words:
        if word in ("--json", "--dir"):
            next(words, None)
        elif word == "--against":
            kept += [word, "BINARY"]
            next(words, None)
        elif word != "--record":
            kept.append(word)
    return kept


class Recorder:
    """Does nothing without `--record`. Made before the run: the load average is that of the machine without it."""

    def __init__(self, arguments, facts=None):
        self.active = arguments.record
        self.known = _evidence("measures").splitlines() if self.active else []
        self.facts = (facts or place.facts()) if self.active else None

    def ratio(self, measure, found, note=""):
        """What `stats.ratio` found."""
        if found:
            self._record(measure, found["ratio"], found["pairs"], found["low"], found["high"], note)

    def farthest(self, measure, ratios, at_most=False):
        """Of ratios by name the one that is farthest from the goal; all are its note."""
        choose = max if at_most else min
        name = choose(ratios, key=lambda name: ratios[name]["ratio"])
        note = f"{name}; " + ", ".join(f"{name} {found['ratio']:.2f}" for name, found in ratios.items())
        self.ratio(measure, ratios[name], note)

    def over_pairs(self, measure, values, note=""):
        """A figure of each pair: its geometric mean and interval."""
        self.ratio(measure, stats.ratio([(value, 1) for value in values]), note)

    def value(self, measure, value, n=None, note=""):
        self._record(measure, value, n, None, None, note)

    def failures(self, measure, count, n, note=""):
        self._record(measure, count, n, None, None, note)

    def seen(self, measure, note):
        """A statement, of which a person could see that it holds."""
        if self.active and measure in self.known:
            print(_evidence(*self._head(measure), "--verdict", "reached", f"--note={note}"), end="", file=sys.stderr)

    def _head(self, measure):
        path = os.path.relpath(os.path.realpath(sys.argv[0]), place.REPOSITORY)
        return ["record", measure, "--commit", self.facts["commit"], "--load", str(self.facts["load_average_at_start"][0]),
                "--command", shlex.join([path, *_without_paths(sys.argv[1:])])]

    def _record(self, measure, value, n, low, high, note):
        if not self.active or measure not in self.known:
            return
        command = [*self._head(measure), "--value", f"{value:.6g}"]
        if low is not None:
            command += ["--low", f"{low:.6g}", "--high", f"{high:.6g}"]
        if n is not None:
            command += ["--n", str(n)]
        if note:
            command.append(f"--note={note}")
        print(_evidence(*command), end="", file=sys.stderr)
