# The checker and the recorder on 16 cores of 8 nodes: what is wasted is found and told from what is not, and so it
# is when cores go away and come back meanwhile.
# shellcheck shell=sh
# shellcheck disable=SC2317 # called through the functions of assert.sh

# Time in this machine runs on while its cores wait for those of the host: what lasts is given more of it.
patience='--window 500ms'
alone=/sys/fs/cgroup/alone

are_on() { [ "$(cores_of hog)" = "$1" ]; }
have_cores() { [ "$(cores_of hog | xargs -n 1 | uniq | wc -l)" = "$1" ]; }

# A partition whose two cores balance with nobody, not even with each other. Two threads begin on one of them.
waste() {
    echo +cpuset >/sys/fs/cgroup/cgroup.subtree_control
    mkdir "$alone"
    echo 8-9 >"$alone/cpuset.cpus"
    echo isolated >"$alone/cpuset.cpus.partition"
    expect "cores 8 and 9 are a partition without balancing" isolated "$(cat "$alone/cpuset.cpus.partition")"
    sh -c "echo \$\$ >$alone/cgroup.procs; taskset -cp 8 \$\$ >/dev/null; hog & hog &"
    for pid in $(pidof hog); do taskset -cp 8-9 "$pid" >/dev/null; done
    eventually "two movable threads share core 8" are_on "8 8"
}
end_waste() {
    end hog
    eventually "the partition is empty" rmdir "$alone"
    echo -cpuset >/sys/fs/cgroup/cgroup.subtree_control
}

# Whether the report's violations are those of the partition, whichever cores are on line.
is_that_of_the_partition() {
    [ -n "$(on_core 8 "$1")" ] && ! on_core 8 "$1" | grep -v ' no-common-domain no-common-domain 9 hog$'
}
controls() {
    waste
    holds "without balancing movable hogs are violated, event by event" checked 1 --mode exact --duration 4s
    holds "for want of domains" is_that_of_the_partition /tmp/report.json
    # shellcheck disable=SC2086 # two words
    holds "and look by look" checked 1 --duration 8s $patience
    holds "for the same reason" is_that_of_the_partition /tmp/report.json
    end_waste
    hogs 6
    for _ in 1 2; do taskset -c 3 hog & done
    eventually "6 movable hogs have a core each, 2 pinned ones share one" have_cores 7
    holds "with balancing nothing is violated, event by event" checked 0 --mode exact --duration 4s
    # shellcheck disable=SC2086 # two words
    holds "nor look by look" checked 0 --duration 4s $patience
    end hog
}

now_s() { cut -d' ' -f1 /proc/uptime; }
grown() { [ -s "$1" ]; }

# finds_more_than COUNT: the checker that follows has told more violations of the partition.
finds_more_than() { [ "$(grep -c "core 8: hog" /tmp/live.err)" -gt "$1" ]; }

# without_core_9 REPORT: the partition's threads are violated before core 9 goes and after it came back, and not
# meanwhile; nor are those that may use core 5 and are left with core 4.
without_core_9() {
    on_core 8 "$1" | awk -v gone="$gone" -v back="$back" '
        $2 < gone && $3 <= gone + 0.02 {before++}
        $2 >= back - 0.02 {after++}
        END {exit !(before && after && before + after == NR)}' || return 1
    [ -z "$(violations "$1" | awk -v gone="$gone" -v back="$back" '($1 == 4 || $1 == 5) && $3 > gone && $2 < back')" ]
}
is_told() { grep -q "core [59] went off line" "$1" && grep -q "core [59] went on line" "$1"; }

hotplug() {
    waste
    for _ in 1 2; do taskset -c 4,5 hog & done
    quell record --quiet --output /tmp/hotplug.pftrace &
    recorder=$!
    quell check --mode exact --json --save /tmp/violation.pftrace >/tmp/live.json 2>/tmp/live.err &
    checker=$!
    eventually "the recorder writes" grown /tmp/hotplug.pftrace
    eventually "the checker finds what is violated" finds_more_than 0
    echo 0 >/sys/devices/system/cpu/cpu5/online
    echo 0 >/sys/devices/system/cpu/cpu9/online
    gone=$(now_s)
    sleep 4
    found=$(grep -c "core 8: hog" /tmp/live.err)
    back=$(now_s)
    echo 1 >/sys/devices/system/cpu/cpu9/online
    echo 1 >/sys/devices/system/cpu/cpu5/online
    eventually "it does again when the core is back" finds_more_than "$found"
    kill -TERM "$checker" "$recorder"
    wait "$recorder"
    expect "the recorder ends well" 0 $?
    wait "$checker"
    expect "the checker has found violations" 1 $?
    quell check --json /tmp/hotplug.pftrace >/tmp/recorded.json 2>/tmp/report.err
    expect "so it does in what was recorded" 1 $?
    for report in live recorded; do
        holds "$report: cores that go and come are told" is_told "/tmp/$report.json"
        holds "$report: a core that is gone is not idle, and is when it came back" without_core_9 "/tmp/$report.json" ||
            explain "/tmp/$report.json"
    done
    echo "gone at $gone s, back at $back s"
    end_waste
}

controls
hotplug
