# Threads that want a core (busybox sh).
# shellcheck shell=sh
# shellcheck disable=SC2317 # called through the functions of assert.sh

# A name that tells whose a thread is.
printf '#!/bin/sh\nwhile :; do :; done\n' >/bin/hog
chmod +x /bin/hog

hogs() {
    for _ in $(seq "$1"); do hog & done
}

# end NAME...: the processes of these names.
end() {
    # shellcheck disable=SC2046 # one word each
    kill -9 $(for name in "$@"; do pidof "$name"; done)
    wait 2>/dev/null
}

# cores_of NAME: the core of each process of this name, which is the 39th word of stat.
cores_of() { awk -v name="($1)" '$2 == name {print $39}' /proc/[0-9]*/stat 2>/dev/null | sort -n | xargs; }

# The emulator may crash a kernel whose code is patched while other cores run it, and that is what happens when a
# tracepoint gets its first user or its second: each gets two for good, while all cores idle.
hold_tracepoints() {
    mkdir /sys/kernel/tracing/instances/hold
    for at in /sys/kernel/tracing /sys/kernel/tracing/instances/hold; do
        echo 0 >"$at/tracing_on"
        for event in sched/sched_switch sched/sched_waking sched/sched_wakeup sched/sched_wakeup_new \
            sched/sched_migrate_task sched/sched_process_fork sched/sched_process_exec sched/sched_process_exit \
            irq/softirq_entry irq/softirq_exit cpuhp/cpuhp_exit; do
            echo 1 >"$at/events/$event/enable"
        done
    done
}
