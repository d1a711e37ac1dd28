# Reads what `quell check --json` printed (busybox sh and awk).
# shellcheck shell=sh
# shellcheck disable=SC2317 # called through the functions of assert.sh

# field REPORT NAME: a word or figure of the report itself, or of its sums.
field() { sed -n "s/^ \{2,4\}\"$2\": \"\{0,1\}\([^\",]*\).*/\1/p" "$1" | head -n 1; }

# violations REPORT: a line each: core, begin and end in seconds, milliseconds wasted, reach, label, idle cores, and the
# name of the thread that waited longest.
violations() {
    awk '
        /^  "violations": \[$/ {listed = 1; next}
        listed && /^  \]/ {exit}
        listed && /^      "[a-z_]*": [^[{]/ {
            name = $1
            gsub(/[":]/, "", name)
            gsub(/^[^:]*: "?|"?,?$/, "")
            of[name] = $0
        }
        listed && /^          "name": / && of["name"] == "" {
            of["name"] = $2
            gsub(/[",]/, "", of["name"])
        }
        listed && /^    }/ {
            printf "%s %.3f %.3f %.0f %s %s %s %s\n", of["core"], of["from_ns"] / 1e9, of["until_ns"] / 1e9,
                of["wasted_ms"], of["reach"], of["label"], of["idle"], of["name"]
            of["name"] = ""
        }' "$1"
}

# on_core CORE REPORT: the violations in the queue of that core.
on_core() { violations "$2" | awk -v core="$1" '$1 == core'; }

# checked STATUS OPTION...: `quell check` ends so; its report is in /tmp/report.json.
checked() {
    wanted=$1
    shift
    quell check --json --save /tmp/violation.pftrace "$@" >/tmp/report.json 2>/tmp/report.err
    found=$?
    [ "$found" = "$wanted" ] || explain /tmp/report.json
    [ "$found" = "$wanted" ]
}

# explain REPORT: for the reader of a test that failed.
explain() {
    tail -n 3 /tmp/report.err
    grep -E '"(verdict|verdict_reason|judged_s|samples|why)"' "$1"
    violations "$1" | head -n 20
}
