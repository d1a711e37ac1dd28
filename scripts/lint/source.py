"""Rust and C sources for the checks beside this file: comments, strings, and what belongs to tests."""
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# In this order: a quote within a comment begins no string.
TOKEN = re.compile(
    r"""
    (?P<comment> //[^\n]* | /\*.*?\*/ )
  | (?P<string> b?r(?P<hashes>\#*)".*?"(?P=hashes) | [bc]?"(?:\\.|[^"\\])*" )
  | (?P<char> b?'(?:\\(?:u\{[^}]*\}|x[0-9a-fA-F]{2}|.)|[^'\\\n])' )
    """,
    re.VERBOSE | re.DOTALL,
)
TEST_ATTRIBUTE = re.compile(r"#\[cfg\((?:test|all\(test\b.*?\))\)\]")
ATTRIBUTES = r"(?P<attributes>(?:\s|#\[(?:[^\[\]]|\[[^\]]*\])*\])*)"
MODULE = re.compile(ATTRIBUTES + r"(?:pub(?:\([^)]*\))?\s+)?mod\s+(?P<name>\w+)\s*;")
PATH = re.compile(r'#\[path = "([^"]+)"\]')


def tracked(*patterns):
    """Files of the repository, those that are new included, as paths relative to its root."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")
    return sorted(Path(name) for name in names if name and (ROOT / name).is_file())


def crates():
    """Names of the crates: the directories below crates/."""
    return sorted({path.parts[1] for path in tracked("crates/*/Cargo.toml")})


def tokens(text):
    """The comments and strings of a source, as (kind, text)."""
    for found in TOKEN.finditer(text):
        if found.lastgroup != "char" and found["char"] is None:
            yield ("comment" if found["comment"] is not None else "string"), found[0]


def blanked(text):
    """The source with comments, strings and characters replaced by spaces; lines stay."""
    return TOKEN.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def item_end(code, start):
    """Where the item that begins at `start` ends: after its `;`, or after its closing brace."""
    depth = 0
    for at in range(start, len(code)):
        if code[at] in "([{":
            depth += 1
        elif code[at] in ")]}":
            depth -= 1
            if depth == 0 and code[at] == "}":
                return at + 1
        elif code[at] == ";" and depth == 0:
            return at + 1
    return len(code)


def without_tests(text):
    """(the source with its `#[cfg(test)]` items removed, the declarations of modules among them)."""
    code, kept, modules, end = blanked(text), [], [], 0
    # The attribute's own text is code, but for a path in quotes.
    for found in TEST_ATTRIBUTE.finditer(code):
        if found.start() < end:
            continue
        kept.append(text[end : found.start()])
        end = item_end(code, found.end())
        declared = MODULE.match(text, found.end(), end)
        if declared:
            path = PATH.search(declared["attributes"])
            modules.append((declared["name"], path and path[1]))
    kept.append(text[end:])
    return "".join(kept), modules


def module_files(file, name, path):
    """The file of a module that `file` declares, and the directory of that module's own modules."""
    own = file.parent if file.stem in ("mod", "lib", "main") else file.parent / file.stem
    if path:
        return [file.parent / path]
    return [own / f"{name}.rs", own / name]


def production(crate):
    """The production sources of a crate: {path: text without test items}. Files of test modules are left out."""
    files = tracked(f"crates/{crate}/src/*.rs", f"crates/{crate}/src/**/*.rs")
    texts, tests = {}, []
    for file in files:
        texts[file], modules = without_tests((ROOT / file).read_text(encoding="utf-8"))
        for name, path in modules:
            tests += module_files(file, name, path)
    is_test = lambda file: any(file == test or test in file.parents for test in tests)
    return {file: text for file, text in texts.items() if not is_test(file)}
