#!/usr/bin/env python3
"""Words that the project does without, in comments, documentation and string literals: their counts, per crate, may only
fall below vocabulary.txt.

    vocabulary.py             checks
    vocabulary.py --update    writes the counts, if none rose
    vocabulary.py --list UNIT prints each occurrence in a crate, or in `docs` or `bpf`
"""
import re
import sys
from pathlib import Path

import ratchet
import source

TABLE = Path(__file__).with_name("vocabulary.txt")
WORDS = re.compile(
    r"\b(?:who|whom|whoever|nobody|somebody|everybody|told|tells|hears|beneath|hand(?:ed)?[- ]over|whose turn|untold"
    r"|lowly|ghost|haunt|bequest|heir|forebear|bystander|yardstick|alone-warm|standstill|stood still|wake-to-run"
    r"|kernel section|mend|folder|on line|as found|giv(?:e|es|en|ing) back|does not read|what became of|came of it)\b",
    re.IGNORECASE,
)
# Generated from results, and a table of the old names of tests.
NOT_COUNTED = {"docs/lab/tests-moved.md"}
# Generated: their words are counted where they are written.
GENERATED = "docs/results"


def units():
    """{unit: its files}."""
    found = {crate: source.tracked(f"crates/{crate}/*.rs", f"crates/{crate}/**/*.rs") for crate in source.crates()}
    found["bpf"] = source.tracked("bpf/*.c", "bpf/*.h")
    found["docs"] = source.tracked("*.md")
    return found


def prose(file):
    """The parts of a file that are written for people, each with the number of its first line."""
    text = (source.ROOT / file).read_text(encoding="utf-8")
    if file.suffix == ".md":
        yield from enumerate(text.splitlines(), start=1)
        return
    for found in source.TOKEN.finditer(text):
        if found["char"] is None:
            yield text.count("\n", 0, found.start()) + 1, found[0]


def occurrences(file):
    """(line, word) of each word."""
    if str(file) in NOT_COUNTED or str(file).startswith(GENERATED):
        return
    for line, text in prose(file):
        for found in WORDS.finditer(text):
            yield line + text.count("\n", 0, found.start()), found[0]


def main():
    if "--list" in sys.argv[1:]:
        unit = sys.argv[sys.argv.index("--list") + 1]
        for file in units()[unit]:
            for line, word in occurrences(file):
                print(f"{file}:{line}: {word}")
        return 0
    counts = {unit: sum(1 for file in files for _ in occurrences(file)) for unit, files in units().items()}
    remedy = "say it in plain technical English (vocabulary.py --list CRATE shows where)"
    return ratchet.run("words", TABLE, counts, remedy, update="--update" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
