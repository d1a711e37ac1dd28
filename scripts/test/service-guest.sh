#!/bin/bash
# Runs in the container of service.sh, started by its systemd: what quell.service promises.
set -euo pipefail

fail() {
    echo "FAILED: $*"
    systemctl status quell --no-pager --lines=20
    exit 1
}
ok() { echo "ok    $*"; }

# What the host shows that Quell changes without any task.
host() {
    cat /proc/sys/kernel/sched_rt_runtime_us
    grep -H . /proc/irq/*/smp_affinity_list
}
shown() { systemctl show --value --property "$1" quell; }
# eventually WHAT COMMAND..: it succeeds within 30 s.
eventually() {
    local what=$1 deadline=$((SECONDS + 30))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$deadline" ] || fail "$what"
        sleep 0.1
    done
    ok "$what"
}
# Numbers of the processes with this program and this argument.
running() {
    local dir
    for dir in /proc/[0-9]*; do
        # One that has ended meanwhile is none.
        if { tr '\0' ' ' <"$dir/cmdline"; } 2>/dev/null | grep -q "^$1 $2"; then
            echo "${dir#/proc/}"
        fi
    done
}
policy() { cut -d' ' -f41 "/proc/$1/stat" 2>/dev/null; }
managed() { [ "$(cat /proc/sys/kernel/sched_rt_runtime_us)" = -1 ] && [ "$(shown ActiveState)" = active ] && quell status >/dev/null 2>&1; }
beneath() { [ "$(running sleep 3601 | wc -l)" = 1 ] && [ "$(policy "$(running sleep 3601)")" = 5 ]; }
restarted() { [ "$(shown MainPID)" != "$1" ] && managed; }
gone() { [ -z "$(running /usr/bin/quell run)$(running /proc/self/exe guardian)$(running sleep 3601)" ]; }
as_before() { [ "$(host)" = "$before" ]; }

before=$(host)
systemctl start quell
[ "$(shown ActiveState)" = inactive ] || fail "started without a task"
as_before || fail "something was changed without a task"
ok "without a task it does not start, and nothing is changed"

# Thread numbers of a container's own are nothing that BPF programs know.
cat >>/etc/quell/quell.toml <<'END'
[host]
observer = "proc"
[[task]]
name = "batch"
class = "be"
command = ["sleep", "3601"]
END
systemctl start quell
eventually "with a task it starts, and manages the cores" managed
eventually "the launched program is beneath" beneath
systemctl reload quell || fail "reload"
[ "$(running sleep 3601 | wc -l)" = 1 ] || fail "reload launched it again"
ok "a reload without a change changes nothing"

main=$(shown MainPID)
kill -KILL "$main"
eventually "a killed daemon is started again" restarted "$main"
eventually "the launched program runs once" beneath

# No restart, to see what the end leaves behind.
mkdir -p /run/systemd/system/quell.service.d
printf '[Service]\nRestart=no\n' >/run/systemd/system/quell.service.d/test.conf
systemctl daemon-reload
kill -KILL "$(shown MainPID)"
eventually "a killed daemon leaves no process" gone
eventually "and the host as it was" as_before

systemctl reset-failed quell
systemctl start quell
eventually "it starts again" beneath
mapfile -t all < <(shown MainPID; running /proc/self/exe guardian)
[ ${#all[@]} = 3 ] || fail "the daemon and two guardians are ${all[*]}"
kill -STOP "${all[@]}"
kill -KILL "${all[@]}"
eventually "killed with both guardians it leaves no process" gone
eventually "and the stop hook restores the host" as_before

systemctl reset-failed quell
systemctl start quell
eventually "it starts again" beneath
systemctl stop quell
[ "$(shown Result)" = success ] || fail "stopped with $(shown Result)"
as_before || fail "after a stop the host is not as it was"
gone || fail "after a stop a process is left"
ok "a stop leaves the host as it was, and no process"
echo "guest: passed"
