#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# A lane in a POSIX shell, with chrt and taskset (util-linux): two programs take turns on a core.
#
#   sudo ./lanes.sh [CORE [TURNS [COMMAND_A COMMAND_B]]]      default: core 1, 40 turns, two busy loops
#
# The levels are those of quell_lane.h. This script is the dispatcher on another core: it raises the next program and
# then lowers the last one, in this order, and sleeps for a slice. Each chrt is a program of its own, so slices are of
# tens of milliseconds; `quell lane run` has them of microseconds.
#
# At the end a line for each program: its name and its CPU time in clock ticks. Two busy loops have about the same. The
# programs, which belong to this example, are ended; nothing else was changed.
set -eu

core=${1:-1}
turns=${2:-40}
a=${3:-while :; do :; done}
b=${4:-while :; do :; done}
slice=0.05
parked=4 running=6

pid_a='' pid_b=''
finish() {
    trap - EXIT
    for pid in $pid_a $pid_b; do
        kill -KILL "$pid" 2>/dev/null || true
    done
}
trap finish EXIT
trap 'exit 130' HUP INT TERM

# Explicit in policy and priority (-f); what the program starts begins as an ordinary one (-R).
level() {
    chrt -R -f -p "$1" "$2"
}

# Whether it is there and no zombie.
alive() {
    [ -r "/proc/$1/stat" ] && ! grep -q ') Z ' "/proc/$1/stat"
}

ticks() {
    # Fields 14 and 15 of proc(5), counted behind the name.
    sed 's/^.*) //' "/proc/$1/stat" | { read -r _ _ _ _ _ _ _ _ _ _ _ user system _; echo $((user + system)); }
}

# They are on their level from the start: exec keeps it.
chrt -R -f "$parked" taskset -c "$core" sh -c "$a" &
pid_a=$!
chrt -R -f "$parked" taskset -c "$core" sh -c "$b" &
pid_b=$!
for pid in $pid_a $pid_b; do
    until chrt -p "$pid" | grep -q SCHED_FIFO || ! alive "$pid"; do sleep 0.01; done
done

next=$pid_a last=$pid_b turn=0
while [ "$turn" -lt "$turns" ] && alive "$next" && alive "$last"; do
    level "$running" "$next"
    level "$parked" "$last"
    sleep "$slice"
    swap=$next next=$last last=$swap
    turn=$((turn + 1))
done

for program in "A $pid_a" "B $pid_b"; do
    pid=${program#* }
    if alive "$pid"; then
        echo "${program%% *} $(ticks "$pid")"
    else
        echo "${program%% *} ended"
    fi
done
