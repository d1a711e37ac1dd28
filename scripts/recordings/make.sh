#!/bin/bash
# Makes the recordings in crates/trace/tests/recordings anew.
#
#   make.sh [NAME]...     all but guest, if none is named
#   make.sh --help        this text, and the names
#
# Needs root, memcached, stress-ng, perf, make, cc and perl, two cores (0 and 1 are used), and about a minute; `guest`,
# the recordings violation and hotplug, needs QEMU. Names of foreign programs are replaced. Afterwards:
#
#   QUELL_UPDATE_EXPECTED=1 cargo test -p quell-trace -p quell-view --test recordings
#
#   QUELL=FILE         the program [target/debug/quell]
#   ANONYMISE=FILE     the example of quell-trace [target/debug/examples/anonymise]
#   RECORDINGS=DIR     where the recordings go [crates/trace/tests/recordings]
set -euo pipefail
cd "$(dirname "$0")/../.."

NAMES=(memcached-hog make-j4 make-j4-ftrace fork-storm lane overflow trace-cmd perf-sched sim-64-cores
    sim-64-cores-static planted wasted-cores)
# Names of threads that stay in a recording; `*` at the end stands for any more characters.
KEPT=(memcached 'mc-*' 'stress-ng*' 'quell*' 'member-*' make cc cc1 as collect2 ld sh bash perf 'sched-*' sleep 'kworker/*'
    'ksoftirqd/*' 'rcu_*' 'rcuo*' 'migration/*' 'cpuhp/*' 'swapper*' kthreadd kcompactd0 khugepaged kswapd0 hog)

usage() {
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
    echo "names: ${NAMES[*]} guest"
}
fail() {
    echo "recordings: error: $*" >&2
    exit 1
}

for argument in "$@"; do
    case $argument in
    -h | --help) usage && exit 0 ;;
    *) [[ " ${NAMES[*]} guest " == *" $argument "* ]] || { usage >&2 && exit 64; } ;;
    esac
done
[ $# -gt 0 ] || set -- "${NAMES[@]}"

quell=$(realpath "${QUELL:-target/debug/quell}")
anonymise=$(realpath "${ANONYMISE:-target/debug/examples/anonymise}")
recordings=$(realpath "${RECORDINGS:-crates/trace/tests/recordings}")
[ "$(id -u)" = 0 ] || fail "recording needs root; run it as root"
[ -x "$quell" ] || fail "$quell is missing; run: cargo build --locked --bin quell"
[ -x "$anonymise" ] || fail "$anonymise is missing; run: cargo build --locked -p quell-trace --example anonymise"

work=$(mktemp -d /dev/shm/quell-recordings.XXXXXX)
tracing=$work/tracing
buffer=$tracing/instances/quell-recordings
# Programs in the background by pid. One that was waited for is none of ours: its pid may be used again.
declare -A started=()
# shellcheck disable=SC2317 # called by the trap
cleanup() {
    # A daemon restores the host before it ends.
    for pid in "${!started[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    for pid in "${!started[@]}"; do
        wait "$pid" 2>/dev/null || true
    done
    [ ! -d "$buffer" ] || rmdir "$buffer"
    ! mountpoint -q "$tracing" || umount "$tracing"
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

export QUELL_RUN_DIR=$work/run
mkdir "$QUELL_RUN_DIR" "$tracing"

# Tests that change the host hold the same lock. Programs in the background must not inherit it.
exec 9>/dev/shm/quell-test.lock
alone() {
    flock 9
    "$@"
    flock -u 9
}

# record NAME OPTION...: as `quell record`, into a file of that name. Compressed, 950K are less than 200 KB.
record() {
    local name=$1
    shift
    "$quell" record --quiet --size 950K -o "$work/$name.pftrace" "$@" 9>&-
}

# store NAME: the Perfetto file of that name, without foreign names, compressed.
store() {
    "$anonymise" "$work/$1.pftrace" "$work/$1.perfetto" "${KEPT[@]}"
    compress "$work/$1.perfetto"
}

# store_text NAME: the same of a text of ftrace or perf.
store_text() {
    perl -pe '
        BEGIN { $kept = join "|", map { s/\*$// ? quotemeta . ".*" : quotemeta } split / /, shift }
        sub name { my $name = shift; $name =~ /^(?:$kept|<idle>|<\.\.\.>)$/o ? $name : "other" }
        s/((?:^|\s|_)comm=)(.*?)(?= (?:\w+_)?pid=)/$1 . name($2)/ge;
        s/^(\s*)(\S.*?)(?=-\d+\s+\[\d+\]|\s+\d+\s+\[\d+\])/$1 . name($2)/e;
        s/filename=\S*/filename=file/;
    ' "${KEPT[*]}" "$work/$1.full" >"$work/$1.txt"
    compress "$work/$1.txt"
}

compress() {
    local to
    to=$recordings/$(basename "$1").gz
    gzip -9nc "$1" >"$work/compressed"
    mv "$work/compressed" "$to"
    chmod 644 "$to"
    echo "recordings: $(basename "$to"): $(stat -c %s "$to") bytes"
}

# eventually COMMAND...: the command succeeds within ten seconds.
eventually() {
    local end=$((SECONDS + 10))
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || fail "never succeeded: $*"
        sleep 0.1
    done
}

# stop PID: ends a program that this script started. await PID: waits for its own end.
stop() {
    kill "$1" 2>/dev/null || true
    await "$1"
}
await() {
    wait "$1" 2>/dev/null || true
    unset "started[$1]"
}

# A service beside batch work on core 1, under the daemon, loaded from core 0. The service owns the core only
# while it is congested, and the load comes in bursts: the core changes its owner often.
memcached_hog() {
    local port=22398 service daemon load
    memcached -u nobody -l 127.0.0.1 -p $port -t 1 -o no_modern 9>&- &
    service=$!
    started[$service]=1
    cat >"$work/tasks.toml" <<END
version = 1

[host]
managed = "1"

[[task]]
name = "memcached"
class = "lc"
pid = $service
guaranteed = 0
max = 1

[[task]]
name = "batch"
class = "be"
command = ["stress-ng", "--cpu", "2", "--quiet"]
END
    "$quell" run --quiet "$work/tasks.toml" 9>&- &
    daemon=$!
    started[$daemon]=1
    eventually "$quell" status
    # Another program on core 0 must not stop the load.
    chrt -r 1 "$quell" load memcached 127.0.0.1:$port --keys 1000 --rate 100 --arrivals bursts:4000:0.1:0.04 \
        --warmup 0 --duration 20 --core 0 >"$work/load" 9>&- &
    load=$!
    started[$load]=1
    sleep 0.5
    record memcached-hog --duration 1300ms --keyframe-interval 300ms
    stop "$load"
    stop "$daemon"
    stop "$service"
    store memcached-hog
}

# project FILES: a C project, not built.
project() {
    local number
    rm -rf "$work/project"
    mkdir -p "$work/project"
    {
        echo 'all: program'
        printf 'OBJECTS ='
        seq -f ' part%g.o' "$1" | tr -d '\n'
        # shellcheck disable=SC2016 # for make
        printf '\nprogram: $(OBJECTS) main.o\n\tcc -o $@ $^\n%%.o: %%.c\n\tcc -O1 -c -o $@ $<\n'
    } >"$work/project/Makefile"
    for number in $(seq "$1"); do
        printf '#include <stdio.h>\nint part%d(int n)\n{\n\treturn printf("%%d\\n", n * %d);\n}\n' \
            "$number" "$number" >"$work/project/part$number.c"
    done
    echo 'int part1(int); int main(void) { return part1(1) < 0; }' >"$work/project/main.c"
}

make_j4() {
    project 12
    record make-j4 --no-load --keyframe-interval 250ms -- make --silent -C "$work/project" -j4 all >&2
    store make-j4
}

# What people record who want little: no fork, no exec, no sched_wakeup_new.
make_j4_ftrace() {
    local event
    project 40
    mountpoint -q "$tracing" || mount -t tracefs nodev "$tracing"
    mkdir -p "$buffer"
    echo mono >"$buffer/trace_clock"
    echo 8192 >"$buffer/buffer_size_kb"
    for event in switch waking wakeup migrate_task; do
        echo 1 >"$buffer/events/sched/sched_$event/enable"
    done
    make --silent -C "$work/project" -j4 all 9>&-
    echo 0 >"$buffer/tracing_on"
    cat "$buffer/trace" >"$work/make-j4-ftrace.full"
    rmdir "$buffer"
    umount "$tracing"
    store_text make-j4-ftrace
}

fork_storm() {
    # shellcheck disable=SC2016 # for sh
    record fork-storm --no-load --keyframe-interval 100ms -- \
        sh -c 'i=0; while [ $i -lt 400 ]; do (:) & i=$((i + 1)); done; wait' >&2
    store fork-storm
}

# Three members: two always want the core, one sleeps half of its time.
lane() {
    local member lane
    cat >"$work/member.c" <<'END'
#include <stdlib.h>
#include <time.h>
static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}
int main(int argc, char **argv)
{
	long sleep_us = argc > 1 ? atol(argv[1]) : 0;
	for (;;) {
		double end = now() + 700;
		while (now() < end)
			;
		if (sleep_us)
			nanosleep(&(struct timespec){.tv_nsec = sleep_us * 1000}, NULL);
	}
}
END
    for member in a b c; do
        cc -O1 -o "$work/member-$member" "$work/member.c"
    done
    "$quell" lane run --quiet --core 1 --slice 1ms --duration 3s -- \
        "exec $work/member-a" "exec $work/member-b" "exec $work/member-c 700" 9>&- &
    lane=$!
    started[$lane]=1
    sleep 1.5
    record lane --duration 900ms --keyframe-interval 300ms
    await $lane
    store lane
}

# Bursts of switches through a ring of eight pages, which is known again after each.
overflow() {
    record overflow --buffer 32K --keyframe-interval 100ms -- sh -c '
        for burst in 1 2 3; do
            sleep 0.15
            perf bench -f simple sched pipe --loop 4000 >/dev/null
        done
        sleep 0.15' >&2
    store overflow
}

# The text of a real trace-cmd that the importer's tests have: trace-cmd itself needs the kernel's function tracer.
trace_cmd() {
    cp crates/trace/tests/data/trace-cmd.txt "$work/trace-cmd.txt"
    compress "$work/trace-cmd.txt"
}

perf_sched() {
    project 12
    perf sched record -q -o "$work/perf.data" -- make --silent -C "$work/project" -j4 all >&2 9>&-
    perf sched -i "$work/perf.data" script >"$work/perf-sched.full" 9>&-
    store_text perf-sched
}

# simulate NAME POLICY: exit status 1 only says that the policy wasted cores.
simulate() {
    "$quell" sim "$recordings/sim-64-cores.toml" --policy "$2" --trace "$work/$1.perfetto" >&2 || [ $? = 1 ]
    compress "$work/$1.perfetto"
}

# planted-6-cores and planted-64-cores: no command makes them, a test does.
planted() {
    QUELL_UPDATE_EXPECTED=1 cargo test --quiet --locked -p quell-view --test recordings planted 9>&- >&2
}

# The recorder of the Wasted Cores authors needs a patched kernel: their format is written from another trace.
wasted_cores() {
    gzip -dc "$recordings/planted-64-cores.perfetto.gz" >"$work/planted.perfetto"
    "$anonymise" "$work/planted.perfetto" "$work/wasted-cores.txt" '*'
    compress "$work/wasted-cores.txt"
}

# Both recordings of a guest with four cores (guest.sh says what happens there).
guest() {
    local name
    scripts/vm/boot.sh -c 4 -t 1 -n 1 -T 1200 -o "$work/console" scripts/recordings/guest.sh "$quell" 9>&- >"$work/guest" ||
        fail "the guest failed: $(tail -n 20 "$work/guest")"
    for name in violation hotplug; do
        sed -n "s/^@@$name //p" "$work/console" | base64 -d | gzip -d >"$work/$name.pftrace"
        store $name
    done
}

for name in "$@"; do
    case $name in
    memcached-hog) alone memcached_hog ;;
    make-j4) alone make_j4 ;;
    make-j4-ftrace) alone make_j4_ftrace ;;
    fork-storm) alone fork_storm ;;
    lane) alone lane ;;
    overflow) alone overflow ;;
    trace-cmd) trace_cmd ;;
    perf-sched) alone perf_sched ;;
    sim-64-cores) simulate sim-64-cores quell ;;
    sim-64-cores-static) simulate sim-64-cores-static static ;;
    planted) planted ;;
    wasted-cores) wasted_cores ;;
    guest) guest ;;
    esac
done
