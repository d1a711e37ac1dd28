#!/bin/sh
# Guest script: the machine that the other guest scripts count on is there.
# shellcheck source=tests/vm/assert.sh
. /lib/assert.sh

expect "8 cores are online" 0-7 "$(cat /sys/devices/system/cpu/online)"
expect "cores 2 and 3 are siblings" 2-3 "$(cat /sys/devices/system/cpu/cpu2/topology/thread_siblings_list)"
expect "cores 4 to 7 are on node 1" 4-7 "$(cat /sys/devices/system/node/node1/cpulist)"
expect "cgroup v2 has cpuset and cpu" yes \
    "$(grep -q cpuset /sys/fs/cgroup/cgroup.controllers && grep -qw cpu /sys/fs/cgroup/cgroup.controllers && echo yes)"
expect "the kernel has its own types (BTF)" yes "$([ -r /sys/kernel/btf/vmlinux ] && echo yes)"
expect "the fair server can be read" yes "$([ -r /sys/kernel/debug/sched/fair_server/cpu1/runtime ] && echo yes)"
echo 0 >/sys/devices/system/cpu/cpu7/online
expect "a core can go offline" 0-6 "$(cat /sys/devices/system/cpu/online)"
echo 1 >/sys/devices/system/cpu/cpu7/online
expect "and come back" 0-7 "$(cat /sys/devices/system/cpu/online)"
finish
