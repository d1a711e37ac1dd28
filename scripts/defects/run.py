#!/usr/bin/env python3
"""Builds a crate with each of the defects of its `tests/defects.toml`, and asks its random lives to find it.

    run.py --check           each defect still applies to the sources
    run.py [--only NAME]     finds each, within SEEDS lives; beside it the first life that does, and by what
"""
import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CRATE = Path("crates/net-engine")
SEEDS = 1_000
PATIENCE_SECONDS = 600
SEED = re.compile(r"seed (\d+): run it alone")


def defects():
    return tomllib.loads((ROOT / CRATE / "tests/defects.toml").read_text())["defect"]


def planted(defect, text):
    """The source with the defect; it has to apply at one place."""
    count = text.count(defect["old"])
    if count != 1:
        sys.exit(f"defect {defect['name']}: {defect['file']} has {count} places for it, not one")
    return text.replace(defect["old"], defect["new"])


def check(all_defects):
    names = [defect["name"] for defect in all_defects]
    if len(set(names)) != len(names):
        sys.exit("a name is there twice")
    for defect in all_defects:
        planted(defect, (ROOT / CRATE / defect["file"]).read_text())


def live(tree, seeds):
    """Runs the lives of a tree. Returns whether one failed, and what it said."""
    environment = {name: value for name, value in os.environ.items() if name != "QUELL_NET_SEED"} | {
        "CARGO_TARGET_DIR": str(ROOT / "target/defects/build"),
        "QUELL_NET_SEEDS": str(seeds),
        "RUST_BACKTRACE": "0",
    }
    command = ["cargo", "test", "--quiet", "--package", "quell-net-engine", "--test", "it", "random"]
    build = subprocess.run([*command, "--no-run"], cwd=tree, env=environment, capture_output=True, text=True)
    if build.returncode != 0:
        sys.exit(f"it does not build:\n{build.stderr}")
    run = subprocess.Popen(
        command, cwd=tree, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )
    try:
        said, _ = run.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        sys.exit(f"the lives do not end within {PATIENCE_SECONDS} s")
    if run.returncode != 0 and not SEED.search(said):
        sys.exit(f"the lives fail, and no life is named:\n{said}")
    return run.returncode != 0, said


def in_words(said):
    seed = SEED.search(said)
    lines = said.splitlines()
    panics = [after for before, after in zip(lines, lines[1:]) if "panicked at" in before]
    return f"life {seed.group(1)}: {panics[0][:110]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only whether each defect still applies")
    parser.add_argument("--only", help="one defect by its name")
    options = parser.parse_args()
    all_defects = defects()
    check(all_defects)
    if options.check:
        return
    chosen = [defect for defect in all_defects if options.only in (None, defect["name"])]
    if not chosen:
        sys.exit(f"no defect is called {options.only}; there are {', '.join(d['name'] for d in all_defects)}")
    tree = ROOT / "target/defects/tree"
    shutil.rmtree(tree, ignore_errors=True)
    ignored = shutil.ignore_patterns("target", ".git", ".vm", "results")
    # With times of its own, so that cargo sees what has changed since the last run.
    shutil.copytree(ROOT, tree, ignore=ignored, symlinks=True, copy_function=shutil.copy)
    failed, said = live(tree, SEEDS)
    if failed:
        sys.exit(f"the engine fails without a defect:\n{said}")
    missed = []
    for defect in chosen:
        path = tree / CRATE / defect["file"]
        sound = path.read_text()
        path.write_text(planted(defect, sound))
        found, said = live(tree, SEEDS)
        path.write_text(sound)
        print(f"{defect['name']:32} {in_words(said) if found else 'NOT FOUND'}", flush=True)
        missed += [] if found else [defect["name"]]
    if missed:
        sys.exit(f"not found within {SEEDS} lives: {', '.join(missed)}")


main()
