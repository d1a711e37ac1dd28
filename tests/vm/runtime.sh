#!/bin/sh
# Guest script: latency-critical runtimes and one of batch work on 8 cores (2 to 7 managed). Cores are granted to their kernel
# threads and revoked, green threads of those that lose their core are stolen and end, and one without a core of its own gets
# one when its timer is due or a message comes. Asserts on states and counts only: time in this machine is not real.
# Functions are called through those of assert.sh.
# shellcheck disable=SC2317 source=tests/vm/assert.sh
. /lib/assert.sh

# An emulated machine stands still for seconds.
cat >/tmp/host.toml <<'END'
version = 1
[host]
watchdog_timeout_ms = 60000
foreign_threads = "move"
END

# field PATTERN FIELD: the field of the object that has PATTERN in a line before it, in the JSON of status.
field() {
    quell status --json | awk -v object="$1" -v key="\"$2\":" '
        index($0, object) {inside = 1}
        inside && $1 == key {sub(/^[^:]*: /, ""); sub(/,$/, ""); gsub(/"/, ""); print; exit}'
}
task() { field "\"name\": \"$1\"" "$2"; }
total() { field '"counters"' "$1"; }
# How many cores a list such as 2-4,7 has.
count() {
    echo "$1" | tr ',' '\n' | awk -F- 'NF {n += (NF > 1 ? $2 - $1 : 0) + 1} END {print n + 0}'
}
# planned_as MODE TASK: a core of this task has this mode in the Plan.
planned_as() {
    quell status --json | awk -v mode="$1" -v owner="$2" '
        {gsub(/[",]/, "")}
        $1 == "mode:" {is = $2}
        $1 == "owner:" && $2 == owner && is == mode {found = 1}
        END {exit !found}'
}
granted_at_least() { [ "$(count "$(task "$1" granted)")" -ge "$2" ]; }
granted_at_most() { [ "$(count "$(task "$1" granted)")" -le "$2" ]; }
owns() { [ "$(count "$(task "$1" owned)")" = "$2" ]; }
at_least() { [ "$(task "$1" "$2")" -ge "$3" ]; }
# The last number after a word in a runtime's log; 0 before it says any.
last() { sed -n "s/.* $2 \([0-9]*\).*/\1/p" "/tmp/$1.log" | tail -n 1 | grep . || echo 0; }
further() { [ "$(last "$1" "$2")" -gt "$3" ]; }
goes_on() { eventually "$1" further "$2" "done" "$(last "$2" "done")"; }
gone() { [ -z "$(task "$1" name)" ]; }
says() { grep -q "$2" "/tmp/$1.log"; }

# runtime NAME CLASS GUARANTEED MAX WORK
runtime() {
    under_daemon "$@" >"/tmp/$1.log" 2>&1 &
    eventually "$1 is registered" at_least "$1" kthreads "$4"
}

quell run --quiet /tmp/host.toml >/tmp/quell.log 2>&1 &
daemon=$!
eventually "the daemon answers" quell status

runtime front lc 2 3 busy
front=$!
runtime back lc 1 2 naps
# Batch work for every core that is left.
runtime many be 0 6 busy
many=$!
eventually "who waits gets cores beyond its guarantee" granted_at_least front 3
holds "its cores are planned as those of a runtime" planned_as runtime front
goes_on "its green threads run" front
goes_on "one that naps wakes" back
goes_on "batch work runs on what is left" many
holds "batch work is beneath" [ "$(task many class)" = BE ]
runtime answerer lc 0 1 echo:7007
answerer=$!
eventually "it waits for messages" says answerer "done 0"
# An ordinary program, on a core that is not managed.
under_daemon asker ask 7007 10 >/tmp/asker.log 2>&1 &
eventually "each message to one without a core of its own is answered" says asker "answered 10"
goes_on "batch work goes on beside it" many

kill -9 $front $many $answerer
eventually "a killed runtime is gone" gone front
runtime job lc 0 4 /tmp/enough
eventually "it gets the cores that are free" granted_at_least job 3
moved=$(last job moved)
# Guaranteed three of six, and one is another's: the job has to leave what it has beyond the rest.
runtime late lc 3 3 busy
eventually "who is guaranteed cores gets them" owns late 3
eventually "the job lost cores" at_least job revokes 1
eventually "what waited there went on on another" further job moved "$moved"
runtime napper lc 0 1 naps
goes_on "one without a core of its own gets one when its timer is due" napper
: >/tmp/enough
eventually "all green threads of the job end" says job "finished 300"
goes_on "the one that came late runs" late
goes_on "one with a guarantee still naps" back

for rule in guarantee lc_first work_conservation advice malformed; do
    expect "no violation of $rule" 0 "$(total violations_$rule)"
done
kill -9 $daemon
goes_on "runtimes go on without a daemon" late
goes_on "all of them" back
quell run --quiet /tmp/host.toml >>/tmp/quell.log 2>&1 &
eventually "they register with the next" at_least late kthreads 3
eventually "and get their cores" owns late 3
goes_on "and run there" late
quell stop >/dev/null
goes_on "and when that is stopped, alone" back
[ "$failures" = 0 ] || {
    cat /tmp/quell.log
    tail -n 3 /tmp/*.log
}
finish
