# Assertions for guest scripts (busybox sh). Failures are counted, so that one run shows them all.
# shellcheck shell=sh

failures=0

# expect WHAT WANTED FOUND
expect() {
    if [ "$2" = "$3" ]; then
        echo "ok    $1"
    else
        echo "FAIL  $1: wanted '$2', found '$3'"
        failures=$((failures + 1))
    fi
}

# holds WHAT COMMAND...
holds() {
    what=$1
    shift
    if "$@"; then
        echo "ok    $what"
    else
        echo "FAIL  $what: does not hold: $*"
        failures=$((failures + 1))
        return 1
    fi
}

uptime_s() {
    cut -d. -f1 /proc/uptime
}

# For how many seconds `eventually` waits.
patience_s=60

# eventually WHAT COMMAND...: the command succeeds within that time.
eventually() {
    what=$1
    shift
    deadline=$(($(uptime_s) + patience_s))
    until "$@" >/dev/null 2>&1; do
        if [ "$(uptime_s)" -ge "$deadline" ]; then
            echo "FAIL  $what: never held: $*"
            failures=$((failures + 1))
            return 1
        fi
        sleep 0.2
    done
    echo "ok    $what ($(uptime_s) s)"
}

finish() {
    echo "$failures failed"
    [ "$failures" = 0 ]
    exit
}
