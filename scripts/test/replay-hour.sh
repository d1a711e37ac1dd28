#!/bin/bash
# Records the decisions of a real daemon under load, task churn and (with HOTPLUG=1, on three cores or more) hotplug,
# and replays them: every Plan has to come out byte for byte. Prints the size per hour.
#
#   scripts/test/replay-hour.sh [MINUTES] [QUELL]      60 minutes of target/release/quell by default; needs root
set -euo pipefail
cd "$(dirname "$0")/../.."

minutes=${1:-60}
quell=$(realpath "${2:-target/release/quell}")
port=22399
dir=$(mktemp -d /dev/shm/quell-replay.XXXXXX)
pids=()

finish() {
    QUELL_RUN_DIR=$dir "$quell" stop >/dev/null 2>&1 || true
    for pid in "${pids[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    [ -z "${core:-}" ] || echo 1 >"/sys/devices/system/cpu/cpu$core/online"
    rm -rf "$dir"
}
trap finish EXIT

# The tests that change the host hold the same lock.
exec 9>/dev/shm/quell-test.lock
flock 9

memcached -u nobody -l 127.0.0.1 -p $port -t 1 9>&- &
pids+=($!)
# An emulated machine may stand still for seconds.
lc="[host]
watchdog_timeout_ms = 60000
[[task]]
name = \"memcached\"
class = \"lc\"
pid = $!
guaranteed = 1
"
task() { # NAME CLASS COMMAND
    printf '[[task]]\nname = "%s"\nclass = "%s"\ncommand = ["%s"]\n' "$1" "$2" "${3// /\", \"}"
}
storm=$(task storm be "stress-ng --fork 2 --pthread 1 --pthread-max 32 --quiet")
batch=$(task batch be "stress-ng --cpu 2 --quiet")
second=$(task second lc "stress-ng --pipe 1 --quiet")
sets=("$storm" "$storm"$'\n'"$batch" "$batch"$'\n'"$second" "" "$batch")

export QUELL_RUN_DIR=$dir
printf '%s%s\n' "$lc" "$storm" >"$dir/quell.toml"
"$quell" run --quiet "$dir/quell.toml" --record-decisions "$dir/decisions" 9>&- &
pids+=($!)
until "$quell" status >/dev/null 2>&1; do
    kill -0 "${pids[1]}" || exit 1
    sleep 0.2
done

end=$((SECONDS + minutes * 60))
round=0
while [ $SECONDS -lt $end ]; do
    "$quell" load memcached 127.0.0.1:$port --rate $((2000 + round % 5 * 4000)) --duration 7 --core 0 >/dev/null 9>&- &
    load=$!
    printf '%s%s\n' "$lc" "${sets[round % ${#sets[@]}]}" >"$dir/quell.toml"
    # On an emulated core a program may take too long to start; the next round has other tasks.
    "$quell" apply "$dir/quell.toml" >/dev/null || true
    if [ "${HOTPLUG:-0}" = 1 ] && [ "$(nproc --all)" -ge 3 ]; then
        core=$(($(nproc --all) - 1))
        echo $((round % 2)) >"/sys/devices/system/cpu/cpu$core/online"
    fi
    wait $load || true
    round=$((round + 1))
done
"$quell" status
"$quell" stop
"$quell" replay "$dir/decisions"
"$quell" replay "$dir/decisions" --policy static --limit 1
