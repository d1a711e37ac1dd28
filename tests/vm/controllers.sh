# Caladan's controllers on a real kernel: siblings are kept idle from the start of a late request until its end, and
# batch work loses and regains a core a step as memory traffic rises and falls. Asserts on states, order and counts only.
# For tests/vm/quell.sh, whose functions this uses.
# shellcheck shell=sh disable=SC2154,SC2317

# Since the start of the guest.
centiseconds() {
    IFS=' .' read -r seconds hundredths _ </proc/uptime
    echo $((seconds * 100 + ${hundredths#0}))
}

# The traffic that the source tells of: 5 GB a second while /tmp/pressure exists, however seldom this has a turn. Batch work on
# every core has its part.
tell_traffic() {
    total=0
    last=$(centiseconds)
    while :; do
        now=$(centiseconds)
        if [ -e /tmp/pressure ]; then total=$((total + (now - last) * 50000000)); fi
        last=$now
        {
            echo "total $total"
            for n in 2 3 4 5 6 7; do echo "core $n $((total / 6))"; done
        } >/tmp/traffic.new
        mv /tmp/traffic.new /tmp/traffic
        sleep 0.1
    done
}

# What batch work lost (-) and regained (+) since this time, oldest first: microseconds and sign.
turnover() {
    quell status --json | awk -v since="$1" '
        /"decisions": \[/ {inside = 1}
        /"advice": \[/ {inside = 0}
        !inside {next}
        {value = $2; sub(/,$/, "", value)}
        $1 == "\"at_us\":" {at = value}
        $1 == "\"from\":" {from = value}
        $1 == "\"to\":" {to = value}
        $1 == "\"reason\":" && at + 0 > since + 0 {
            if (from == "\"batch\"" && to == "null") print at, "-"
            if (to == "\"batch\"" && from == "null") print at, "+"
        }'
}

# Why it does not hold: what moved since, and where batch work may be.
tell_moves() {
    turnover "$1"
    for pid in $(pidof hog); do sed -n 's/^Cpus_allowed:/may use/p' "/proc/$pid/status"; done
}

allows() { usable_list batch | grep -qx "$1"; }
denies() { ! allows "$1"; }
batch_cores() { count "$(usable_list batch | tr '\n' ',')"; }
batch_has() { [ "$(batch_cores)" = "$1" ]; }
batch_has_at_most() { [ "$(batch_cores)" -le "$1" ]; }
serves() { [ "$(core "$1" request_age_us)" != null ]; }
serves_nothing() { ! serves "$1"; }
# The cores on which threads of batch work are now.
hog_cores() { for pid in $(pidof hog); do sed 's/.*) //' "/proc/$pid/stat" | cut -d' ' -f37; done | sort -u; }
hogs_on() { hog_cores | grep -qx "$1"; }
no_hogs_on() { ! hogs_on "$1"; }
# The kernel lets no thread of batch work onto this core. A look at where they are takes a while: one may come meanwhile.
hogs_barred_from() {
    for pid in $(pidof hog); do
        mask=$(sed -n 's/^Cpus_allowed:[^0-9a-f]*//p' "/proc/$pid/status")
        [ $((0x$mask >> $1 & 1)) = 0 ] || return 1
    done
}
left_by_hogs() { hogs_barred_from "$1" && no_hogs_on "$1"; }

cat >/tmp/caladan.toml <<'END'
version = 1

[host]
policy = "caladan"
foreign_threads = "move"
nonpreemptible_delay_limit_us = 1000000
watchdog_timeout_ms = 30000

[host.controllers]
bandwidth_limit_mb_s = 1000
bandwidth_step_us = 3000000

[host.memory]
source = "file:/tmp/traffic"
interval_us = 1000000

[[task]]
name = "served"
class = "lc"
match = "hinting"
guaranteed = 1
runaway_ms = 0
sibling_idle_after_us = 200000
hints = "/dev/shm/served"

[[task]]
name = "batch"
class = "be"
command = ["sh", "-c", "for n in 1 2 3 4 5 6 7 8 9; do hog & done; wait"]
END

hinting /dev/shm/served &
tell_traffic &
teller=$!
quell run --quiet /tmp/caladan.toml >>/tmp/quell.log 2>&1 &
daemon=$!
eventually "the daemon answers under caladan" quell status
eventually "the service is watched" is task served state running
eventually "its page of hints is read" is task served threads 1
own=$(task served owned)
expect "the service has one core" 1 "$(count "$own")"
siblings=$(cat "/sys/devices/system/cpu/cpu$own/topology/thread_siblings_list")
sibling=$(echo "$siblings" | sed 's/[,-]/\n/' | grep -vx "$own")
eventually "batch work may use every managed core" batch_has 6
eventually "and runs on the service's sibling" hogs_on "$sibling"
expect "no controller is missing" 0 "$(quell status | grep -c '^degraded: caladan without')"

touch /tmp/request
eventually "the request is seen where it is served" serves "$own"
eventually "its sibling is taken from batch work" is core "$sibling" reason "kept idle to protect core $own"
eventually "batch work may not use it" denies "$sibling"
eventually "batch work leaves it" left_by_hogs "$sibling"
looked=$(field '"version"' at_us)
for look in 1 2 3 4 5; do
    holds "batch work keeps off it while the request lasts ($look)" no_hogs_on "$sibling" || tell_moves "$looked"
done
holds "the request still lasts" serves "$own"
rm /tmp/request
eventually "the end of the request is seen" serves_nothing "$own"
eventually "batch work may use the sibling again" allows "$sibling"
eventually "and runs there again" hogs_on "$sibling"
eventually "batch work has every managed core again" batch_has 6

# Five cores are its own then; the sixth is the service's, which it may use beneath.
since=$(field '"version"' at_us)
touch /tmp/pressure
eventually "batch work loses cores while memory is over its limit" owns_at_most batch 2
rm /tmp/pressure
eventually "and has them all again when it no longer is" batch_has 6
turnover "$since" >/tmp/turnover
cat /tmp/turnover
# It lost three or more, then regained as many; never two at once, and never sooner than a step of 3 s after another.
one_a_step() {
    awk 'NR > 1 && $1 - last < 2900000 {bad = 1}
        $2 == "-" {lost++; if (regained) bad = 1}
        $2 == "+" {regained++}
        {last = $1}
        END {exit bad || lost < 3 || lost != regained}' /tmp/turnover
}
holds "one core a step, down and up again" one_a_step
expect "no invariant was violated under caladan" "0 0 0 0" \
    "$(total violations_guarantee) $(total violations_lc_first) $(total violations_work_conservation) $(total violations_advice)"
quell stop
expect "stop succeeds under caladan" 0 $?
wait $daemon
eventually "stop restores the host once more" restored
kill $teller
# shellcheck disable=SC2046 # one word each
kill $(pidof hinting)
