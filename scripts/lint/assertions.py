#!/usr/bin/env python3
"""Assertions per hundred functions in the production code of each crate. Some crates should have at least LEAST.

    assertions.py              prints
    assertions.py --enforce    fails for a crate that has fewer than it should
"""
import re
import sys

import source

LEAST = 5.0
SHOULD = ("policy", "act", "trace", "sim", "daemon")
ASSERTION = re.compile(r"\b(?:debug_)?assert(?:_eq|_ne)?!")
FUNCTION = re.compile(r"\bfn\s+\w+")


def count(text):
    """(assertions, functions) of a source."""
    code = source.blanked(text)
    return len(ASSERTION.findall(code)), len(FUNCTION.findall(code))


def main():
    few = []
    for crate in source.crates():
        counts = [count(text) for text in source.production(crate).values()]
        assertions, functions = (sum(column) for column in zip(*counts)) if counts else (0, 0)
        share = 100 * assertions / max(functions, 1)
        if crate in SHOULD and share < LEAST:
            few.append(crate)
        print(f"{crate:<12} {assertions:>5} assertions {functions:>6} functions {share:>6.1f} per 100")
    if few:
        print(f"fewer than {LEAST:.0f} assertions per 100 functions: {', '.join(few)}")
    return 1 if few and "--enforce" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
