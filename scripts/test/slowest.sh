#!/bin/bash
# Prints the ten slowest tests of a log of timed tests (scripts/test/timed.sh), slowest first; nothing without such.
#   slowest.sh LOG
set -euo pipefail

times() {
    sed -nE 's/^test (.*) \.\.\. (ok|FAILED) <([0-9.]+)s>.*/\3 \1/p' "$1" | sort -rn
}
if [ -n "$(times "$1")" ]; then
    echo "the ten slowest tests:"
    times "$1" | awk 'NR <= 10 {printf "%9.1f s  %s\n", $1, $2}'
fi
