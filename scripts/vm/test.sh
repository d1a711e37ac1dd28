#!/bin/bash
# The tests that need more cores than this host may have: builds Quell, boots the test machines, runs tests/vm there.
# One has hyperthreads; the other is that of "A Decade of Wasted Cores", booted with two kernels, and takes some minutes
# with each: QUELL_VM_QUICK=1 leaves it out. QUELL_SKIP_VM=1 skips all; nothing else does.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ "${QUELL_SKIP_VM:-}" = 1 ]; then
    echo "vm: SKIPPED, because QUELL_SKIP_VM=1"
    exit 0
fi
# As `make test-unit` builds it: with less named, cargo would build much of it again with other features.
${CARGO:-cargo} test --workspace --no-run --locked
quell=${CARGO_TARGET_DIR:-target}/debug/quell
under_daemon=${CARGO_TARGET_DIR:-target}/debug/examples/under_daemon
kept=$(mktemp -d)
console=$kept/console
trap 'rm -rf "$kept"' EXIT

libraries=()
for name in assert threads reports checker recipes controllers; do
    libraries+=("tests/vm/$name.sh:lib/$name.sh")
done

# A service that hints, by the header that services include.
cc -std=c11 -O2 -Wall -Wextra -Werror -Icrates/shm/include -o "$kept/hinting" tests/vm/hinting.c
# A member of a lane that notes its turns.
cc -std=c11 -O2 -Wall -Wextra -Werror -o "$kept/noting" tests/vm/noting.c

# run GUEST [OPTION]...: boots with these options of boot.sh, and runs tests/vm/GUEST.sh there.
run() {
    local guest=$1
    shift
    scripts/vm/boot.sh -T 1200 "$@" "tests/vm/$guest.sh" "${libraries[@]}" "$quell" "$under_daemon" "$kept/hinting" "$kept/noting" 2>&1 | tee "$console"
}

# passes WHERE GUEST [OPTION]...
passes() {
    echo "vm: tests/vm/$2.sh on $1"
    shift
    # QEMU without KVM may run a core on code that the guest's kernel is patching (a tracepoint is switched on):
    # an int3 that nobody awaits then kills the guest, at boot too. That says nothing about Quell: it is booted again.
    local boots=1
    until run "$@"; do
        [ "$boots" -lt 6 ] && grep -q "Oops: int3" "$console" || exit 1
        boots=$((boots + 1))
        echo "vm: the emulator failed the guest's kernel (int3); boot $boots"
    done
}

scripts/vm/selftest.sh
for guest in machine quell lanes runtime; do
    passes "8 cores, 2 threads a core, 2 nodes" "$guest"
done
if [ "${QUELL_VM_QUICK:-}" = 1 ]; then
    echo "vm: passed (QUELL_VM_QUICK=1: without the machine of \"A Decade of Wasted Cores\")"
    exit 0
fi
# Debian's last kernel with CFS and its first with EEVDF, on the machine of "A Decade of Wasted Cores".
# All its cores are busy for minutes, on the two of a small host: a stalled core says nothing there, and a debug build
# could not follow.
${CARGO:-cargo} build --locked --release --bin quell
quell=${CARGO_TARGET_DIR:-target}/release/quell
patient='nowatchdog rcupdate.rcu_cpu_stall_suppress=1'
results=()
for series in 6.1 6.12; do
    passes "16 cores on 8 nodes, Linux $series" check \
        -T 1800 -k "$series" -c 16 -t 1 -n 8 -m 1024 -d tests/vm/paper.distances -a "sched_verbose $patient"
    cp "$console" "$kept/$series"
    results+=("$series" "$kept/$series")
done
# Figures are shown, not asserted: time in there is not real.
scripts/vm/results.sh "${results[@]}" >target/check-guests.json
echo "vm: the table of bugs and kernels: target/check-guests.json (docs/lab/check-guests.md says what to do with it)"
echo "vm: passed"
