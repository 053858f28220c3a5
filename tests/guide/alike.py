#!/usr/bin/python3
"""Whether a command printed what its page shows.

    alike.py SHOWN PRINTED

Every line that is shown must be printed, in this order; other lines may lie between them. Numbers and identities differ
from run to run, and columns are as wide as their contents, so digits, hexadecimal identities, sizes' units and runs of
blanks and lines count as alike; `...` stands for anything.
"""

import re
import sys


def plain(line):
    line = re.sub(r"\b[0-9a-f]{16,}\b", "ID", line.rstrip())
    line = re.sub(r"\d+(\.\d+)*", "N", line)
    line = re.sub(r"\bN (B|[KMGT]iB)\b", "SIZE", line)
    return re.sub(r"\s+", " ", line)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        shown = [plain(line) for line in file if line.strip()]
    with open(sys.argv[2], encoding="utf-8", errors="replace") as file:
        printed = [plain(line) for line in file]
    at = 0
    for line in shown:
        pattern = ".*".join(re.escape(part) for part in line.split("..."))
        while at < len(printed) and not re.fullmatch(pattern, printed[at]):
            at += 1
        if at == len(printed):
            print(f"shown, and not printed: {line}", "printed:", *printed, sep="\n    ")
            sys.exit(1)
        at += 1
    if not shown:
        sys.exit("nothing is shown")


main()
