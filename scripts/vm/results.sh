#!/bin/bash
# results.sh [SERIES CONSOLE]...: what the guests' recipes printed (tests/vm/recipes.sh), as one report in the shape of
# bench/results/*.json on standard output.
set -euo pipefail
cd "$(dirname "$0")/../.."

# wasted CASE CONSOLE: how many cores the checker found wasted, on average.
wasted() {
    sed -n "s/^@@row $1|wasted|\\([0-9.]*\\)@@$/\\1/p" "$2"
}

rows=() notes=() kernels=()
while [ $# -ge 2 ]; do
    # A host that has no time for a guest's core leaves its threads waiting beside idle ones, recipe or not.
    control=$(wasted control "$2")
    if ! awk -v control="${control:-1}" 'BEGIN {exit !(control < 0.25)}'; then
        echo "vm: $control cores are wasted on Linux $1 even without a recipe: this host was too busy to tell anything" >&2
        exit 1
    fi
    mapfile -t -O "${#rows[@]}" rows < <(sed -n 's/^@@row \(.*\)|\(.*\)|\([0-9.]*\)@@$/\1|\2|\3/p' "$2" | awk -F '|' -v series="$1" -v control="$control" '
        function row(metric, value) {
            printf "{\"case\":\"%s\",\"high\":%s,\"low\":%s,\"median\":%s,\"metric\":\"%s\",\"raw\":[%s],\"system\":\"Linux %s\"}\n",
                $1, value, value, value, metric, value, series
        }
        {row($2, $3)}
        $2 == "wasted" {row("seen", $3 >= 0.5 && $3 >= 2 * control ? 1 : 0)}')
    mapfile -t -O "${#notes[@]}" notes < <(sed -n 's/^@@note \([^:]*\): \(.*\)@@$/"\1, Linux '"$1"': \2."/p' "$2")
    kernels+=("$(sed -n 's/^@@kernel \(.*\)@@$/\1/p' "$2")")
    shift 2
done
[ ${#rows[@]} -gt 0 ] || {
    echo "vm: error: the guests printed no results" >&2
    exit 1
}
join() {
    local IFS=, all
    all=$*
    echo "${all//,/, }"
}
dirty=$(git diff --quiet HEAD -- . ':!bench/results' ':!docs' || echo -dirty)
# All but the first line, below the checksum of what one run wrote (crates/report/src/provenance.rs).
rest() {
    cat <<END
  "bench": "check-guests",
  "capabilities": {},
  "command": "make test-vm",
  "commit": "$(git rev-parse --short=12 HEAD)$dirty",
  "machine": {"clocksource":"tsc","cores":16,"cpu":"QEMU, emulated (TCG)","governor":"unknown","hypervisor":"QEMU","idle":"none","kernel":"$(join "${kernels[@]}")","memory_mib":1024,"mitigations":[],"nodes":8,"preemption":"unknown","rt_runtime_us":"950000","smt":"off"},
  "notes": [
$(printf '    %s,\n' "${notes[@]}")
    "Time in an emulated machine is not real, and each kernel was run once: these figures say whether something is there, not how much of it."
  ],
  "ratios": [],
  "rows": [
$(printf '    %s,\n' "${rows[@]}" | sed '$s/,$//')
  ]
}
END
}
# A gzip file ends with the CRC-32 and the length of what it holds.
checksum=$(rest | gzip -c | tail -c 8 | od -An -v -t x4 --endian=little -N 4 | tr -d ' ')
printf '{\n  "checksum": "%s",\n' "$checksum"
rest
