#!/bin/bash
# The harness tells each way to fail from success. Without this a broken guest could pass for a good one.
set -euo pipefail
cd "$(dirname "$0")/../.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# check NAME WANTED_STATUS GUEST_COMMANDS [OPTION]...
check() {
    local name=$1 wanted=$2 commands=$3 found=0
    shift 3
    echo "$commands" >"$work/guest.sh"
    scripts/vm/boot.sh -c 1 -t 1 -n 1 -m 256 -T 60 "$@" "$work/guest.sh" >"$work/out" 2>&1 || found=$?
    if [ "$found" = "$wanted" ]; then
        echo "ok    harness: $name"
    else
        echo "FAIL  harness: $name: wanted status $wanted, got $found"
        cat "$work/out"
        failures=$((failures + 1))
    fi
}

check "a script's status comes back" 3 'exit 3'
check "a panic is not a pass" 125 'echo c >/proc/sysrq-trigger'
check "a hang ends at the time limit" 124 'sleep 600' -T 8
check "a kernel warning is not a pass" 126 'echo "WARNING: raised by the self-test" >/dev/kmsg; exit 0'
[ "$failures" = 0 ]
