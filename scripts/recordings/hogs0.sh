#!/bin/bash
# Records recipes of CPU hogs (crates/sim/tests/placement/recipes.txt) in guests, for the test that replays them.
#
#   hogs.sh SERIES RECIPE...      writes DIRECTORY/RECIPE-SERIES.perfetto.gz for each
#
# Hogs are bound to their start cores for 0.3 s and run for 2.5 s more. The guest's clock counts instructions, so that a busy host
# takes no time from its cores; a recipe takes about a minute. Needs QEMU and the release build of quell.
#
#   QUELL=FILE         the program [target/release/quell]
#   RECORDINGS=DIR     where the recordings go [crates/study/tests/guests]
set -euo pipefail
cd "$(dirname "$0")/../.."

[ $# -ge 2 ] || {
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 64
}
series=$1
shift
quell=$(realpath "${QUELL:-target/release/quell}")
recordings=$(realpath "${RECORDINGS:-crates/study/tests/guests}")
recipes=crates/sim/tests/placement/recipes.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cc -std=c11 -O2 -Wall -Wextra -Werror -static -o "$work/hogs" tests/vm/hogs.c

# The guest's script: records each of the recipes in /recipes.txt, and prints the recordings as base64.
cat >"$work/test" <<'GUEST'
#!/bin/sh
. /lib/assert.sh
. /lib/threads.sh
# Messages of the kernel would tear lines.
echo 1 >/proc/sys/kernel/printk
echo 0 >/proc/sys/kernel/sched_autogroup_enabled
echo +cpu >/sys/fs/cgroup/cgroup.subtree_control
hold_tracepoints
awk '$1 == "recipe" {print $2, $3}' /recipes.txt | while read -r name machine; do
    awk -v name="$name" '$1 == "recipe" {wanted = $2 == name} wanted' /recipes.txt >/tmp/recipe.txt
    quell record --quiet --no-load --output "/tmp/$name" -- hogs /tmp/recipe.txt "$machine" 300 0 2500 100 || exit 1
    gzip -9 -c "/tmp/$name" | base64 | sed "s/^/@@$name /"
done
GUEST

# machine_of RECIPE
machine_of() { awk -v name="$1" '$1 == "recipe" && $2 == name {print $3}' "$recipes"; }

for machine in siblings nodes ring; do
    for name in "$@"; do
        [ "$(machine_of "$name")" != "$machine" ] || echo "$name"
    done >"$work/names"
    [ -s "$work/names" ] || continue
    case $machine in
    siblings) shape=(-c 8 -t 2 -n 2) ;;
    nodes) shape=(-c 8 -t 1 -n 2) ;;
    ring) shape=(-c 8 -t 1 -n 4 -d tests/vm/ring-4.distances) ;;
    esac
    awk 'FNR == NR {names[$1]; next} $1 == "recipe" {wanted = $2 in names} wanted' "$work/names" "$recipes" >"$work/recipes.txt"
    echo "hogs: $(xargs <"$work/names") on Linux $series" >&2
    scripts/vm/boot.sh -i 0 -k "$series" -T 3600 "${shape[@]}" -o "$work/console" "$work/test" "$work/hogs" "$quell:/bin/quell" \
        "$work/recipes.txt:/recipes.txt" tests/vm/assert.sh:/lib/assert.sh tests/vm/threads.sh:/lib/threads.sh >"$work/out" || {
        tail -n 20 "$work/out" >&2
        exit 1
    }
    while read -r name; do
        to=$recordings/$name-$series.perfetto.gz
        sed -n "s/^@@$name //p" "$work/console" | base64 -d | gzip -dc | gzip -9nc >"$work/compressed"
        mv "$work/compressed" "$to"
        chmod 644 "$to"
        echo "hogs: $to: $(stat -c %s "$to") bytes"
    done <"$work/names"
done
