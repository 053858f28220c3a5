#!/usr/bin/python3
"""Cuts the fenced blocks out of a page.

    blocks.py PAGE DIRECTORY

Each block becomes DIRECTORY/NUMBER; a line per block on standard output: number, line in the page, info string.
"""

import re
import sys


def main():
    page, directory = sys.argv[1:]
    number, fence, info, text, began = 0, None, None, [], 0
    with open(page, encoding="utf-8") as lines:
        for at, line in enumerate(lines, 1):
            if fence is None:
                opening = re.match(r"( *)(`{3,})\s*(.*)", line)
                if opening:
                    fence, info, text, began = opening[2], opening[3].strip(), [], at
            elif line.strip() == fence:
                number += 1
                with open(f"{directory}/{number}", "w", encoding="utf-8") as block:
                    block.writelines(text)
                print(f"{number}\t{began}\t{info or '-'}")
                fence = None
            else:
                text.append(line)
    if fence is not None:
        sys.exit(f"{page}:{began}: the block does not end")


main()
