#!/usr/bin/env python3
"""Production lines per crate against the maxima in lines.txt. Production is crates/*/src without test items and files of
test modules; comments and blank lines count.

    lines.py [--print]
"""
import sys
from pathlib import Path

import ratchet
import source

TABLE = Path(__file__).with_name("lines.txt")


def counts():
    """Lines by crate."""
    lines = lambda crate: sum(len(text.splitlines()) for text in source.production(crate).values())
    return {crate: lines(crate) for crate in source.crates()}


def main():
    found = counts()
    if "--print" in sys.argv[1:]:
        for crate, lines in found.items():
            print(f"{lines:>7} {crate}")
        print(f"{sum(found.values()):>7} in all")
        return 0
    remedy = "make them fewer, or say in the commit that raises the maximum why"
    return ratchet.run("production lines", TABLE, found, remedy, update=False)


if __name__ == "__main__":
    sys.exit(main())
