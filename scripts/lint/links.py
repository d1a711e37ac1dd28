#!/usr/bin/env python3
"""Relative links of all pages: their files and anchors exist.

    links.py
"""
import re
import sys
from pathlib import Path

import source

FENCE = re.compile(r"^( {0,3})(```+|~~~+).*?^\1\2[^\n]*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*\s*$", re.MULTILINE)
ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")


def without_code(text):
    """The page with its code replaced by nothing; lines stay."""
    text = FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)
    return CODE.sub("", text)


def slug(heading):
    """The anchor that GitHub gives a heading."""
    heading = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(text):
    """All anchors of a page."""
    seen, found = {}, set(ANCHOR.findall(text))
    for heading in HEADING.findall(FENCE.sub("", text)):
        name = slug(heading)
        count = seen.get(name, 0)
        seen[name] = count + 1
        found.add(f"{name}-{count}" if count else name)
    return found


def broken(page, text, read):
    """The links of a page that lead nowhere, as (line, link). `read` gives the text of a path, or None."""
    body = without_code(text)
    for found in LINK.finditer(body):
        link = found[1]
        if re.match(r"[a-z][a-z0-9+.-]*:", link) or link.startswith("//"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        there = text if not path else read(target)
        if there is None or (anchor and target.suffix == ".md" and anchor not in anchors(there)):
            yield body.count("\n", 0, found.start()) + 1, link


def read(path):
    """The text of a file below the root; an empty one for a directory or another kind of file."""
    file = source.ROOT / path
    if not file.exists():
        return None
    return file.read_text(encoding="utf-8") if file.suffix == ".md" else ""


def main():
    pages = source.tracked("*.md")
    found = [
        f"{page}:{line}: {link}: no such file or heading"
        for page in pages
        for line, link in broken(page, read(page), read)
    ]
    print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
    if not found:
        print(f"links: all of {len(pages)} pages lead somewhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
