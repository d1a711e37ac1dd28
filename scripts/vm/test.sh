#!/bin/bash
# The tests that need more cores than this host may have: builds Quell, boots the test machine, runs
# tests/vm there. QUELL_SKIP_VM=1 skips them; nothing else does.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ "${QUELL_SKIP_VM:-}" = 1 ]; then
    echo "vm: SKIPPED, because QUELL_SKIP_VM=1"
    exit 0
fi
${CARGO:-cargo} build --locked --bin quell
quell=${CARGO_TARGET_DIR:-target}/debug/quell
scripts/vm/selftest.sh
for guest in machine quell; do
    echo "vm: tests/vm/$guest.sh on 8 cores, 2 threads a core, 2 nodes"
    scripts/vm/boot.sh -T 400 "tests/vm/$guest.sh" tests/vm/assert.sh:lib/assert.sh "$quell"
done
echo "vm: passed"
