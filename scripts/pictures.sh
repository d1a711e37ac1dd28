#!/bin/bash
# Makes the pictures of docs/lab/sim-linux.md again, by the commands that stand there.
#
#   pictures.sh           needs `quell` and `quell-lab` in target/release (make build), or QUELL=FILE
set -euo pipefail
cd "$(dirname "$0")/.."
page=docs/lab/sim-linux.md

[ $# = 0 ] || {
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 64
}
quell=$(realpath "${QUELL:-target/release/quell}")
[ -x "$quell" ] || {
    echo "pictures: error: $quell is missing; run: make build" >&2
    exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Traces go to a directory of their own; exit status 1 of a simulation says that cores were wasted.
sed -n "/^## The paper's figures/,/^## Not modelled/s/^    quell //p" "$page" | sed -E "s#[a-z]+\\.pftrace#$work/&#" >"$work/commands"
[ -s "$work/commands" ] || {
    echo "pictures: error: $page has no commands" >&2
    exit 1
}
while read -r -a words; do
    "$quell" "${words[@]}" >"$work/out" || [ "${words[0]} $?" = "sim 1" ] || exit 1
done <"$work/commands"
for picture in docs/plots/wasted-cores-*.png; do
    echo "$picture: $(stat -c %s "$picture") bytes"
done
