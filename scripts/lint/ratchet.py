"""A table of counts that may only fall, in a file: `COUNT NAME` a line, sorted by name."""
import sys


def read(file):
    """The table of a file; comments begin with #."""
    table = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            count, name = line.split(maxsplit=1)
            table[name] = int(count)
    return table


def write(file, counts):
    """Writes the counts and keeps the file's comments."""
    head = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    rows = [f"{count:>7} {name}" for name, count in sorted(counts.items())]
    file.write_text("\n".join(head + rows) + "\n", encoding="utf-8")


def problems(maxima, counts):
    """What is against the table. A name without a row, such as a new crate, has no count to keep to but the total's."""
    found = [
        f"{name}: {counts[name]}, at most {most}"
        for name, most in sorted(maxima.items())
        if counts.get(name, 0) > most
    ]
    for name in sorted(set(counts) - set(maxima)):
        found.append(f"{name}: {counts[name]}, and the table has no row")
    return found


def may_replace(maxima, counts):
    """Whether the counts may become the table: none rose, and rows that are new or renamed do not raise the total."""
    known = all(count <= maxima[name] for name, count in counts.items() if name in maxima)
    return known and sum(counts.values()) <= sum(maxima.values())


def run(what, file, counts, remedy, update):
    """Checks, or rewrites where that is asked for and allowed. The exit status."""
    maxima = read(file)
    if update:
        if not may_replace(maxima, counts):
            print(f"{what}: not updated, because these rose:", *problems(maxima, counts), sep="\n  ", file=sys.stderr)
            return 1
        write(file, counts)
        return 0
    found = problems(maxima, counts)
    if found:
        print(f"{what}: above {file.name}; {remedy}:", *found, sep="\n  ", file=sys.stderr)
        return 1
    print(f"{what}: {sum(counts.values())} in all, at most {sum(maxima.values())}")
    return 0
