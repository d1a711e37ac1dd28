# The four recipes of "A Decade of Wasted Cores" (section 3), on 16 cores of 8 nodes. Each makes the situation
# in which one of the paper's bugs bites, and tells what came of it:
#
#   @@row CASE|METRIC|VALUE@@
#   @@note CASE: WORDS@@
#
# Time in this machine is not real: nothing is asserted on these figures, but where threads are. The guest is
# slow when all cores work, so little is forked then. Labels follow from the threads, not from time.
# shellcheck shell=sh
# shellcheck disable=SC2317 # called through the functions of assert.sh

# Works a little whenever it is woken, and wakes the next one.
cat >/bin/worker <<'END'
#!/bin/sh
while read -r _; do
    i=0
    while [ $i -lt 200 ]; do i=$((i + 1)); done
    echo
done
END
chmod +x /bin/worker

# nodes_of NAME: on how many nodes, of two cores each, the processes of this name are. The core is the
# 39th word of stat.
nodes_of() {
    awk -v name="($1)" '$2 == name && !seen[int($39 / 2)]++ {nodes++} END {print nodes + 0}' /proc/[0-9]*/stat 2>/dev/null
}
on_nodes() { [ "$(nodes_of "$2")" = "$1" ]; }

# counted FIRST LAST FILES: the time, for how long these cores idled since boot, and for how long the threads
# of these schedstat files waited; all in seconds.
counted() {
    # shellcheck disable=SC2086 # one word each
    awk -v first="$1" -v last="$2" '
        FILENAME == "/proc/uptime" {now = $1}
        /^cpu[0-9]/ {core = substr($1, 4) + 0; if (core >= first && core <= last) idle += ($5 + $6) / 100}
        FILENAME ~ /schedstat/ {waited += $2 / 1e9}
        END {print now, idle, waited}' /proc/uptime /proc/stat $3
}

# measure CASE FIRST LAST NAME: records for some seconds, ends the processes of this name, and tells what the checker
# says of the recording. Beside it stands for how much of the same time, by the kernel's own counters, these cores idled
# and those processes waited: the smaller of both bounds what was wasted.
measure() {
    files=$(for pid in $(pidof "$4"); do echo "/proc/$pid/schedstat"; done)
    rm -f /tmp/recipe.pftrace
    quell record --quiet --no-load --output /tmp/recipe.pftrace >/tmp/recorder.txt 2>&1 &
    recorder=$!
    eventually "$1: the recorder writes" [ -s /tmp/recipe.pftrace ]
    before=$(counted "$2" "$3" "$files")
    sleep 6
    after=$(counted "$2" "$3" "$files")
    kill -TERM "$recorder"
    end "$4"
    quell check --json /tmp/recipe.pftrace >/tmp/report.json 2>/tmp/report.err
    status=$?
    echo "$before $after $(field /tmp/report.json threads_s) $(field /tmp/report.json cores_s) \
        $(field /tmp/report.json judged_s)" | xargs | awk -v name="$1" '
        function row(metric, value) {printf "@@row %s|%s|%.2f@@\n", name, metric, value}
        {
            idle = ($5 - $2) / ($4 - $1)
            waiting = ($6 - $3) / ($4 - $1)
            row("idle_cores", idle)
            row("waiting_threads", waiting)
            row("wasted_at_most", idle < waiting ? idle : waiting)
            row("wasted", $9 ? $7 / $9 : 0)
            row("wasted_core_s", $8)
            row("judged_s", $9)
        }'
    # Threads of the guest itself, woken now and then, are no part of the recipe.
    violations /tmp/report.json | awk -v name="$1" -v of="$4" -v verdict="$(field /tmp/report.json verdict)" '
        $8 == of {found[$6]++; if ($4 > most) {most = $4; worst = "core " $1 " beside idle cores " $7}}
        END {
            for (what in found) all = all "; " found[what] " " what
            if (most) all = all "; the longest wasted " most " ms: in the queue of " worst
            printf "@@note %s: %s%s@@\n", name, verdict, all
        }'
    [ "$status" -lt 2 ] || explain /tmp/report.json
    holds "$1: the checker can tell ($(uptime_s) s)" [ "$status" -lt 2 ]
}

# As many threads as there are cores, and two more, in one group: what the others are compared with.
control() {
    hogs 18
    eventually "control: 18 threads are on 8 nodes" on_nodes 8 hog
    measure control 0 15 hog
}

# woken NAME: a thread of this name waited where a wake-up had put it, or has a finding with the label of one.
woken() {
    awk -v name="\"$1\"," '/^ *"name": / {of = $2} /^ *"came": "woken/ && of == name {found++} END {exit !found}' /tmp/report.json ||
        violations /tmp/report.json | awk -v name="$1" '$8 == name && $6 ~ /^wakeup-/ {found++} END {exit !found}'
}
not_woken() { ! woken "$1"; }

# in_group GROUP COUNT: so many hogs in a cgroup of their own.
in_group() {
    mkdir "/sys/fs/cgroup/$1"
    sh -c "echo \$\$ >/sys/fs/cgroup/$1/cgroup.procs; for _ in \$(seq $2); do hog & done"
}

# Section 3.1: two heavy threads in groups of their own beside sixteen light ones in one.
group_imbalance() {
    echo +cpu >/sys/fs/cgroup/cgroup.subtree_control
    in_group r1 1
    in_group r2 1
    in_group make 16
    eventually "group imbalance: 18 threads are on 8 nodes" on_nodes 8 hog
    measure "group imbalance" 0 15 hog
    # The hogs never sleep: what is woken elsewhere in the guest is no cause of their waits.
    holds "group imbalance: no hog waits because of a wake-up" not_woken hog
    eventually "group imbalance: the groups are empty" rmdir /sys/fs/cgroup/r1 /sys/fs/cgroup/r2 /sys/fs/cgroup/make
}

# Section 3.2: twelve threads for two nodes that are two hops apart, started on one of them.
group_construction() {
    # shellcheck disable=SC2016 # by that shell
    taskset -c 2 sh -c 'taskset -cp 2-5 $$ >/dev/null; for _ in $(seq 12); do hog & done'
    eventually "group construction: 12 threads are on both nodes" on_nodes 2 hog
    measure "group construction" 2 5 hog
}

# Section 3.3: threads that start on one node, wake each other and sleep: half of them always want a core.
overload_on_wakeup() {
    workers=24
    for at in $(seq 0 $((workers - 1))); do mkfifo "/tmp/wakes.$at"; done
    for at in $(seq 0 $((workers - 1))); do
        taskset -c 0,1 worker <>"/tmp/wakes.$at" 1<>/tmp/wakes.$(((at + 1) % workers)) &
    done
    eventually "overload on wakeup: $workers threads sleep on one node" on_nodes 1 worker
    for at in $(seq 0 2 $((workers - 1))); do echo >"/tmp/wakes.$at"; done
    for pid in $(pidof worker); do taskset -cp 0-15 "$pid" >/dev/null; done
    measure "overload on wakeup" 0 15 worker
}

# Section 3.4: as many threads as cores, after a core went away and came back.
missing_domains() {
    echo 0 >/sys/devices/system/cpu/cpu5/online
    echo 1 >/sys/devices/system/cpu/cpu5/online
    hogs 16
    eventually "missing domains: 16 threads are on 8 nodes" on_nodes 8 hog
    measure "missing domains" 0 15 hog
}

for recipe in control group_imbalance group_construction overload_on_wakeup missing_domains; do
    $recipe
done
