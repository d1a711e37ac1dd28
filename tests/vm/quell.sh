#!/bin/sh
# Guest script: two latency-critical services and three batch programs on 8 cores (2 to 7 managed).
# Cores move as the policy says, a core may go offline, and whatever dies, the host goes back to what it
# was. Asserts on states and counts only: time in this machine is not real.
# Functions are called through those of assert.sh.
# shellcheck disable=SC2317 source=tests/vm/assert.sh
. /lib/assert.sh

# A service: works while /tmp/NAME.busy exists, else sleeps without creating processes.
cat >/bin/service <<'END'
#!/bin/sh
while :; do
    if [ -e "/tmp/$1.busy" ]; then
        i=0
        while [ $i -lt 500 ]; do i=$((i + 1)); done
    else
        read -r -t 1 _
    fi
done <>/tmp/never
END
printf '#!/bin/sh\nwhile :; do :; done\n' >/bin/hog
chmod +x /bin/service /bin/hog
mkfifo /tmp/never
# The services are adopted by name, which is that of the script.
cp /bin/service /bin/front
cp /bin/service /bin/back
front front &
front front &
front front &
back back &
back back &
# One batch program was there before Quell, the others are launched by it.
cp /bin/hog /bin/hog-found
hog-found &
bystander=$!

# More patience than usual: the host may stop an emulated core for long.
cat >/tmp/host.toml <<'END'
version = 1

[host]
watchdog_timeout_ms = 60000

[[task]]
name = "front"
class = "lc"
match = "front"
guaranteed = 2
runaway_ms = 0

[[task]]
name = "back"
class = "lc"
match = "back"
guaranteed = 1
runaway_ms = 0

[[task]]
name = "found"
class = "be"
match = "hog-found"

[[task]]
name = "many"
class = "be"
command = ["sh", "-c", "for n in 1 2 3 4 5; do hog & done; wait"]

[[task]]
name = "one"
class = "be"
command = ["hog"]
END

# Policy, priority, affinity and cgroup of every thread that was there first, and the settings.
dump() {
    for name in front back hog-found; do
        for pid in $(pidof "$name" | tr ' ' '\n' | sort -n); do
            echo "$name $(sed 's/.*) //' "/proc/$pid/stat" | cut -d' ' -f38,39) $(grep Cpus_allowed: "/proc/$pid/status") $(cat "/proc/$pid/cgroup")"
        done
    done
    cat /proc/sys/kernel/sched_rt_runtime_us
    cat /sys/kernel/debug/sched/fair_server/cpu*/runtime
    grep -h '(ksoftirqd/' /proc/[0-9]*/stat 2>/dev/null | sed 's/^[^(]*//' | cut -d' ' -f1,39,40
    for file in /proc/irq/*/smp_affinity_list; do echo "$file $(cat "$file")"; done
}

# field PATTERN FIELD: the field of the object that has PATTERN in a line before it, in the JSON of status.
field() {
    quell status --json | awk -v object="$1" -v key="\"$2\":" '
        index($0, object) {inside = 1}
        inside && $1 == key {sub(/^[^:]*: /, ""); sub(/,$/, ""); gsub(/"/, ""); print; exit}'
}
task() { field "\"name\": \"$1\"" "$2"; }
core() { field "\"core\": $1," "$2"; }
total() { field '"counters"' "$1"; }

# How many cores a list such as 2-4,7 has.
count() {
    echo "$1" | tr ',' '\n' | awk -F- 'NF {n += (NF > 1 ? $2 - $1 : 0) + 1} END {print n + 0}'
}
# Cores that a task owns or may use beneath their owner, one a line.
usable_list() {
    quell status --json | awk -v object="\"name\": \"$1\"" '
        index($0, object) {inside = 1}
        inside && /"owned"|"shared_cores"/ {gsub(/[^0-9,-]/, ""); n = split($0, parts, ",")
            for (at = 1; at <= n; at++) if (parts[at] != "") {
                split(parts[at], range, "-")
                for (core = range[1]; core <= (range[2] == "" ? range[1] : range[2]); core++) print core
            }
        }
        inside && /"shared_cores"/ {exit}' | sort -un
}
usable() { [ "$(usable_list "$1" | tr '\n' ' ')" = "$2 " ]; }
owns() { [ "$(count "$(task "$1" owned)")" = "$2" ]; }
owns_at_most() { [ "$(count "$(task "$1" owned)")" -le "$2" ]; }
# Kernel policy numbers: 0 SCHED_OTHER, 1 SCHED_FIFO, 2 SCHED_RR, 5 SCHED_IDLE.
policies() {
    for pid in $(pidof "$1"); do sed 's/.*) //' "/proc/$pid/stat" | cut -d' ' -f39; done | sort -u | tr '\n' ' '
}
has_policy() { [ "$(policies "$1")" = "$2 " ]; }
restored() { dump >/tmp/now && cmp -s /tmp/before /tmp/now; }
is() { [ "$($1 "$2" "$3")" = "$4" ]; }
guardians() { pidof quell-guardian; }
replaced() { [ "$(guardians | wc -w)" = 2 ] && ! guardians | grep -qw "$1" && is field '"pid"' guardians 2; }
end_hogs() {
    # shellcheck disable=SC2046 # one word each
    kill -9 $(pidof hog) 2>/dev/null
}

start() {
    quell run --quiet /tmp/host.toml >>/tmp/quell.log 2>&1 &
    daemon=$!
    eventually "the daemon answers" quell status
    eventually "both guardians live" is field '"pid"' guardians 2
}

quell doctor --json >/tmp/doctor.json
expect "the doctor finds nothing absent that Quell needs" 0 $?
holds "the doctor loads BPF" grep -q '"its programs were loaded' /tmp/doctor.json
dump >/tmp/before
quell run --dry-run /tmp/host.toml >/tmp/dry.log 2>&1
expect "a dry run succeeds" 0 $?
holds "a dry run changes nothing" restored

start
expect "all but the lowest physical core is managed" 2-7 "$(field '"version"' managed)"
for name in front back found many one; do
    eventually "$name is watched" is task "$name" state running
done
expect "3 threads of front" 3 "$(task front threads)"
eventually "all 5 hogs and their shell are found" is task many threads 6
eventually "sleeping services are real-time already" has_policy front 1
eventually "the other one too" has_policy back 1
eventually "batch work is SCHED_IDLE" has_policy hog 5
eventually "the adopted one too" has_policy hog-found 5

touch /tmp/front.busy
eventually "front's 3 threads get a core each, one beyond its guarantee" owns front 3
touch /tmp/back.busy
eventually "back's 2 threads get a core each" owns back 2
eventually "front keeps its own" owns front 3
holds "batch work keeps what is left at most" owns_at_most many 1
for number in 0 1; do
    expect "core $number is nobody's" null "$(core $number owner)"
done
rm /tmp/front.busy /tmp/back.busy
eventually "front gives back the core beyond its guarantee" owns front 2
eventually "back likewise" owns back 1
eventually "batch work may use every managed core beneath the sleepers" usable many "2 3 4 5 6 7"

touch /tmp/front.busy
eventually "front is back on 3 cores" owns front 3
echo 0 >/sys/devices/system/cpu/cpu7/online
eventually "a core that went offline is nobody's" is core 7 owner null
eventually "front has 3 of the others" owns front 3
echo 1 >/sys/devices/system/cpu/cpu7/online
touch /tmp/back.busy
eventually "with the core back, both services have all they want" owns back 2
rm /tmp/front.busy /tmp/back.busy
expect "no invariant was violated" "0 0 0 0" \
    "$(total violations_guarantee) $(total violations_lc_first) $(total violations_work_conservation) $(total violations_advice)"
expect "no event was lost" 0 "$(total events_lost)"

quell remove one
expect "a drained task is given back" 0 $?
eventually "and gone" is task one state ''
quell stop
expect "stop succeeds" 0 $?
wait $daemon
eventually "stop restores the host" restored
expect "launched programs have ended" "" "$(pidof hog)"

start
eventually "services are raised again" has_policy front 1
kill -9 $daemon
eventually "guardians restore what a killed daemon left" restored
end_hogs

start
eventually "services are raised a third time" has_policy front 1
lost=$(guardians | cut -d' ' -f1)
kill -9 "$lost"
eventually "a lost guardian is replaced" replaced "$lost"
# All three, and the guardians stopped first, so that neither acts: nobody is left, until the next command.
# shellcheck disable=SC2046 # one word each
kill -STOP $(guardians)
# shellcheck disable=SC2046
kill -9 $daemon $(guardians)
end_hogs
sleep 1
holds "with all three killed the host stays changed" has_policy front 1
quell restore
expect "restore succeeds" 0 $?
eventually "restore restores the host" restored
holds "the bystander lives" kill -0 $bystander

# shellcheck source=tests/vm/controllers.sh
. /lib/controllers.sh

[ "$failures" = 0 ] || {
    diff /tmp/before /tmp/now
    cat /tmp/dry.log /tmp/quell.log
}
finish
