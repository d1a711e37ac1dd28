#!/bin/bash
# scripts/test/replay-hour.sh on four emulated cores, the highest of which goes and comes.
#
#   scripts/vm/replay-hour.sh [MINUTES]      60 minutes of target/release/quell by default
set -euo pipefail
cd "$(dirname "$0")/../.."

minutes=${1:-60}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "$minutes" >"$work/minutes"
scripts/vm/boot.sh -c 4 -t 1 -n 1 -m 6144 -T $((minutes * 90 + 900)) tests/vm/replay-hour.sh \
    "$work/minutes:minutes" scripts/test/replay-hour.sh:scripts/test/replay-hour.sh \
    target/release/quell /bin/bash "$(command -v flock)" "$(command -v memcached)" "$(command -v stress-ng)"
