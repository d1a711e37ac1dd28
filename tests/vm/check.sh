#!/bin/sh
# Guest script: 16 cores on 8 nodes with the distances of the machine in "A Decade of Wasted Cores". The
# kernel's scheduling domains are as they should be, stay so when a core goes away and comes back, and a dump
# with the paper's bugs in it is told from a sound one. Then come the checker, the recorder, and the paper's recipes.
# Booted with `sched_verbose`.
# Functions are called through those of assert.sh.
# shellcheck disable=SC2317 source=tests/vm/assert.sh
. /lib/assert.sh

# lints STATUS DUMP...: what the lint says of them.
lints() {
    wanted=$1
    shift
    quell check --lint "$@" >/tmp/lint.txt 2>&1
    found=$?
    [ "$found" = "$wanted" ] || cat /tmp/lint.txt
    [ "$found" = "$wanted" ]
}
says() { grep -q "$1" /tmp/lint.txt; }

expect "16 cores are online" 0-15 "$(cat /sys/devices/system/cpu/online)"
expect "on 8 nodes" 0-7 "$(cat /sys/devices/system/node/online)"
expect "nodes 0 and 3 are two hops apart" 22 "$(cut -d' ' -f4 /sys/devices/system/node/node0/distance)"

holds "the domains of this kernel are clean" lints 0 --save /tmp/before.json
holds "cores, nodes, one hop, two hops" says "levels .*NUMA < NUMA"
dmesg >/tmp/boot.log
holds "the kernel's own dump is clean, too" lints 0 /tmp/boot.log
holds "and tells what BPF reads" lints 0 /tmp/boot.log /tmp/before.json

# Groups of the highest level built from core 0 for all cores (section 3.2 of the paper).
awk '/domain-[0-9]+:/ {top = /span=0-15 /}
    /groups:/ && top {if (groups == "") groups = $0; print groups; next}
    {print}' /tmp/boot.log >/tmp/core0.log
holds "groups built from core 0 are found" lints 1 /tmp/core0.log
holds "as groups that are not the core's own" says "^L3 on cores"
holds "and as nodes that cannot be told apart" says "^L4 on cores"
# The levels between nodes are lost (section 3.4).
awk '/domain-[0-9]+:/ {lost = /level=NUMA/} lost && /domain-|groups:/ {next} {print}' /tmp/boot.log >/tmp/lost.log
holds "lost levels are found" lints 1 /tmp/lost.log
holds "as cores that are out of reach" says "^L1 on cores"
holds "and as a change" lints 1 /tmp/before.json /tmp/lost.log
holds "from before" says "^L5 on cores"

echo 0 >/sys/devices/system/cpu/cpu5/online
holds "without core 5 the domains are clean" lints 0 --save /tmp/without.json
holds "what a core that is away had cannot be compared" lints 2 /tmp/before.json /tmp/without.json
echo 1 >/sys/devices/system/cpu/cpu5/online
holds "with core 5 back, too" lints 0 --save /tmp/after.json
holds "and as before" lints 0 /tmp/before.json /tmp/after.json

# shellcheck source=tests/vm/threads.sh
. /lib/threads.sh
# shellcheck source=tests/vm/reports.sh
. /lib/reports.sh
hold_tracepoints
# To load BPF programs takes minutes where 16 busy cores share two.
export patience_s=300
# shellcheck source=tests/vm/checker.sh
. /lib/checker.sh
# shellcheck source=tests/vm/recipes.sh
. /lib/recipes.sh
echo "@@kernel $(uname -r)@@"
finish
