#!/bin/bash
# Runs one step of the tests, then prints how long it took and its ten slowest tests.
#   step.sh NAME COMMAND...
set -uo pipefail

name=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
begun=$SECONDS
"$@" 2>&1 | tee "$log"
status=$?
took=$((SECONDS - begun))

[ -z "${QUELL_STEPS:-}" ] || echo "$took $name" >>"$QUELL_STEPS"
"$(dirname "$0")/slowest.sh" "$log"
printf 'step: %s: %d min %02d s\n' "$name" $((took / 60)) $((took % 60))
exit "$status"
