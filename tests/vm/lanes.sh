#!/bin/sh
# Guest script: one dedicated scheduler thread over three lanes, then a shared lane on every managed core (2 to 7), each of
# one daemon; then two lanes beside two services. Whose turn follows whose, how many turns each has had, that a lane moves as
# a whole, and that a killed daemon leaves nothing elevated. Members note
# their turns themselves. A core of this machine stands still now and then for longer than a slice, whose member then
# notes nothing: one turn in ten may be missing.
# shellcheck disable=SC2317 source=tests/vm/assert.sh
. /lib/assert.sh
# shellcheck source=tests/vm/threads.sh
. /lib/threads.sh

hold_tracepoints
# Off, so that a lane's order is its table's alone: Quell leaves it as it is. While the cores idle the write is safe (with a
# thread queued, 6.12 may warn in task_non_contending).
for core in 2 3 4 5 6 7; do echo 0 >/sys/kernel/debug/sched/fair_server/cpu$core/runtime; done
# Nothing of this script runs on a core that has a lane.
taskset -p 3 $$ >/dev/null

# Three members a lane; a lane's notes are in /tmp/notes.CORE. They are started before, and so outlive the lanes.
members() {
    for number in 0 1 2; do
        noting "/tmp/notes.$1" $number &
        eval "pid_$1_$number=$!"
    done
}

# lane MEMBERS CORES PATTERN POLICY [TABLE]: a lane of the file, with the members of this number.
lane() {
    echo "[[task]]"
    echo "name = \"lane-$1\""
    echo "class = \"be\""
    echo "cores = \"$2\""
    echo "[task.lane]"
    echo "pattern = \"$3\""
    [ "$3" = shared ] || echo "scheduler_core = 7"
    echo "policy = \"$4\""
    [ -z "${5:-}" ] || echo "table = \"$5\""
    echo "slice = \"50ms\""
    for number in 0 1 2; do
        eval "pid=\$pid_$1_$number"
        echo "[[task.lane.member]]"
        # shellcheck disable=SC2154 # eval
        echo "pid = $pid"
    done
}

# host MANAGED: an emulated machine stands still for seconds, and the daemon's own thread does not spin.
host() {
    echo "[host]"
    echo "managed = \"$1\""
    echo "watchdog_timeout_ms = 60000"
    echo "pattern = \"shared\""
}

# start FILE: the daemon of a file.
start() {
    quell run --quiet "$1" >"$1.log" 2>&1 &
    daemon=$!
    eventually "the daemon answers" quell status || cat "$1.log"
}

# From now on they keep their core busy.
go() { touch "/tmp/notes.$1.go"; }
# The turns of a lane so far, in order.
notes() { noting "/tmp/notes.$1"; }
# At least so many turns on this core.
has_turns() { [ "$(notes "$1" | wc -c)" -gt "$2" ]; }
# Of 10 changes, 9 at least are among these pairs.
follows() {
    notes "$1" | awk -v pairs=" $2 " '{
        for (at = 1; at < length($0); at++) {
            seen++
            odd += !index(pairs, " " substr($0, at, 2) " ")
        }
        print odd + 0 " of " seen " are others: " substr($0, 1, 60)
        exit odd * 10 > seen || seen < 20
    }'
}
goes_round() { follows "$1" "AB BC CA" || follows "$1" "AC CB BA"; }

# turns CORE: how many turns each member of this lane has had by the scheduler's own count, in a row.
turns() {
    quell lane status --json | tr -c 'a-z0-9_":-' '\n' | awk -F: -v wanted="$1" '
        $1 == "\"core\"" {core = $2}
        $1 == "\"slices\"" && core == wanted {print $2}' | xargs
}
# turned CORE BEFORE: the lane there has had turns since.
turned() { [ "$(turns "$1")" != "$2" ]; }
# How many scheduler threads there are.
schedulers() { quell lane status --json | tr -s ',{' '\n' | grep '"tid"' | sort -u | wc -l; }
# lane_is NAME KEY VALUE: what the status of a lane says.
lane_is() {
    quell status --json | awk -v name="\"$1\"," -v key="\"$2\":" -v value="$3" '
        $1 == "\"name\":" {inside = $2 == name}
        inside && $1 == "\"lane\":" {lane = 1}
        lane && $1 == key {sub(/,$/, "", $2); found = $2 == value; exit}
        END {exit !found}'
}
# counts CORE A B C: from now on the turns are to each other as these numbers, but for one in ten. Not from the start: who begins
# late leaves turns to the others.
counts() {
    before=$(turns "$1")
    for _ in $(seq 60); do
        sleep 1
        echo "$before $(turns "$1")" | awk '{exit !($4 - $1 > 20 && $5 - $2 > 20 && $6 - $3 > 20)}' && break
    done
    echo "$before $(turns "$1")" | awk -v a="$2" -v b="$3" -v c="$4" '
        function near(x, y) {return x - y <= 3 + y / 10 && y - x <= 3 + x / 10}
        {
            print $4 - $1, $5 - $2, $6 - $3
            exit !($4 - $1 > 20 && near(($4 - $1) / a, ($5 - $2) / b) && near(($5 - $2) / b, ($6 - $3) / c))
        }'
}

# Threads of members with a real-time policy, which is the 41st word of stat.
elevated() { awk '$2 == "(noting)" && $41 != 0' /proc/[0-9]*/task/[0-9]*/stat 2>/dev/null | wc -l; }
nothing_elevated() { [ "$(elevated)" = 0 ]; }
all_elevated() { [ "$(elevated)" = "$1" ]; }
allowed() { for pid in $(pidof noting); do grep Cpus_allowed_list: "/proc/$pid/status"; done | sort -u | cut -f2; }

# Three lanes on one scheduler thread.
for core in 4 5 6; do members $core; done
{
    host 2-6
    lane 4 4 dedicated table A,B,A,C
    lane 5 5 dedicated round-robin
    lane 6 6 dedicated table A,A,B,C
} >/tmp/dedicated.toml
start /tmp/dedicated.toml
eventually "three lanes have all their members" all_elevated 9 || cat /tmp/dedicated.toml.log
expect "one thread schedules them" 1 "$(schedulers)"
for core in 4 5 6; do go $core; done
for core in 4 5 6; do eventually "the lane on core $core goes round" has_turns $core 60; done
expect "members run on the cores of their lanes" "4 5 6" "$(cores_of noting | tr ' ' '\n' | sort -u | xargs)"
holds "A-B-A-C is followed" follows 4 "AB BA AC CA"
holds "round robin goes round, one way or the other" goes_round 5
holds "A-A-B-C is followed" follows 6 "AB BC CA"
holds "A has twice the turns of A-B-A-C" counts 4 2 1 1
holds "in round robin all have as many" counts 5 1 1 1
kill -INT $daemon
wait $daemon
expect "it ends well" 0 $? || cat /tmp/dedicated.toml.log
expect "nothing is elevated then" 0 "$(elevated)"
expect "and all may run where they could before" 0-1 "$(allowed)"
end noting

# A shared lane on every managed core, each with a scheduler thread of its own.
rm -f /tmp/notes.*
for core in 2 3 4 5 6 7; do members $core; done
{
    host 2-7
    for core in 2 3 4 5 6 7; do lane $core $core shared table A,B,C; done
} >/tmp/shared.toml
start /tmp/shared.toml
eventually "six lanes have all their members" all_elevated 18 || cat /tmp/shared.toml.log
expect "each has a scheduler thread of its own" 6 "$(schedulers)"
for core in 2 3 4 5 6 7; do go $core; done
for core in 2 3 4 5 6 7; do
    eventually "the lane on core $core goes round" has_turns $core 60
    holds "in order" follows $core "AB BC CA"
    holds "and all have as many turns" counts $core 1 1 1
done

# Whatever happens to the scheduler, no thread stays elevated.
kill -9 $daemon
eventually "a killed daemon leaves nothing elevated" nothing_elevated
expect "and all may run where they could before" 0-1 "$(allowed)"
expect "the members live" 18 "$(pidof noting | wc -w)"
end noting

# Two lanes and two services: a service takes a lane's core, and the lane moves as a whole, or waits.
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
chmod +x /bin/service
mkfifo /tmp/never
rm -f /tmp/notes.*
members 2
members 4
lanes_alone() {
    host 2-7
    lane 2 2,3 shared table A,B,C
    lane 4 4-7 shared round-robin
}
# service NAME CORE
service() {
    printf '[[task]]\nname = "%s"\nclass = "lc"\nmatch = "%s"\nrunaway_ms = 0\ncores = "%s"\n' "$1" "$1" "$2"
}
lanes_alone >/tmp/alone.toml
start /tmp/alone.toml
eventually "two lanes have all their members" all_elevated 6 || cat /tmp/alone.toml.log
go 2
go 4
eventually "each has a core of its own" lane_is lane-2 scheduling true
eventually "each has a core of its own" lane_is lane-4 scheduling true
here=2
lane_is lane-2 core 2 || here=3
there=$((5 - here))
# Where the members of a lane may run.
# shellcheck disable=SC2154 # eval
places() {
    for number in 0 1 2; do
        eval "member=\$pid_$1_$number"
        grep Cpus_allowed_list: "/proc/$member/status" | cut -f2
    done | sort -u | xargs
}
all_on() { [ "$(places "$1")" = "$2" ]; }
cp /bin/service /bin/front
cp /bin/service /bin/back
touch /tmp/front.busy /tmp/back.busy
front front &
back back &
{
    lanes_alone
    service front $here
} >/tmp/front.toml
quell apply /tmp/front.toml
eventually "the lane moves as a whole" all_on 2 $there
eventually "and is scheduled there" lane_is lane-2 scheduling true
before=$(turns $there)
eventually "its slices go on" turned $there "$before"
{
    lanes_alone
    service front $here
    service back $there
} >/tmp/both.toml
quell apply /tmp/both.toml
eventually "without a core it waits" lane_is lane-2 scheduling false
holds "as a whole" [ "$(places 2 | wc -w)" = 1 ]
holds "the other lane goes on" lane_is lane-4 scheduling true
rm /tmp/back.busy
eventually "it has a core again once the service sleeps" lane_is lane-2 scheduling true
quell apply /tmp/alone.toml
quell stop >/dev/null
wait $daemon
expect "it ends well" 0 $? || cat /tmp/alone.toml.log
expect "nothing is elevated then" 0 "$(elevated)"
expect "and all may run where they could before" 0-1 "$(allowed)"
finish
