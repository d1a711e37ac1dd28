#!/bin/bash
# Has kernels run the recipes of CPU hogs in DIRECTORY/recipes.txt: the data that crates/sim is compared with.
#
#   placement.sh DIRECTORY [MACHINE]...
#     writes DIRECTORY/MACHINE-SERIES.txt for each machine (all, if none is named) and each of Linux 6.1 and 6.12: lines
#     of a recipe's name and the mean number of hogs in the queue of each core. Each recipe runs ROUNDS (3) times.
#
# A guest takes about 7 s for each recipe and round.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# -gt 0 ] || {
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 64
}
directory=$1
shift
rounds=${ROUNDS:-3}
series=${SERIES:-6.1 6.12}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cc -std=c11 -O2 -Wall -Wextra -Werror -static -o "$work/hogs" "$here/../../tests/vm/hogs.c"

# MACHINE OPTION...: runs its recipes in a guest of each series.
run() {
    local machine=$1 of console
    shift
    cat >"$work/test" <<GUEST
#!/bin/sh
. /lib/assert.sh
# Messages of the kernel would tear lines.
echo 1 >/proc/sys/kernel/printk
# What is in no cgroup of a recipe shares the root's queues, whatever its session.
echo 0 >/proc/sys/kernel/sched_autogroup_enabled
echo +cpu >/sys/fs/cgroup/cgroup.subtree_control
for round in \$(seq $rounds); do
    holds "round \$round" hogs /recipes.txt $machine 1000 3000 3000 100
done
finish
GUEST
    for of in $series; do
        echo "placement: $machine on Linux $of" >&2
        console=$work/$machine-$of
        "$here/boot.sh" -k "$of" -T 3600 -o "$console" "$@" "$work/test" "$work/hogs" \
            "$directory/recipes.txt:/recipes.txt" "$here/../../tests/vm/assert.sh:/lib/assert.sh" >/dev/null || {
            tail -n 20 "$console" >&2
            exit 1
        }
        sed -n 's/^@@place \(.*\)@@$/\1/p' "$console" | sort --stable --key=1,1 >"$directory/$machine-$of.txt"
    done
}

for machine in "${@:-all}"; do
    case $machine in
    all | siblings | nodes | ring) ;;
    *)
        echo "placement: error: no machine $machine: siblings, nodes, ring" >&2
        exit 64
        ;;
    esac
    wanted() { [ "$machine" = all ] || [ "$machine" = "$1" ]; }
    ! wanted siblings || run siblings -c 8 -t 2 -n 2
    ! wanted nodes || run nodes -c 8 -t 1 -n 2
    ! wanted ring || run ring -c 8 -t 1 -n 4 -d "$here/../../tests/vm/ring-4.distances"
done
