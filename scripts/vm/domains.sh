#!/bin/bash
# Has kernels tell which scheduling domains they build for some machines: the data that DomainTrees::build is compared with.
#
#   domains.sh DIRECTORY [MACHINE]...
#     writes DIRECTORY/MACHINE-SERIES.txt for each machine (all, if none is named) and each of Linux 6.1 and 6.12
#
# With 64 cores a guest takes some minutes to boot.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# -gt 0 ] || {
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 64
}
directory=$1
shift
mkdir -p "$directory"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Messages of the kernel would tear the guest's last words.
cat >"$work/nothing" <<'GUEST'
#!/bin/sh
. /lib/assert.sh
echo 1 >/proc/sys/kernel/printk
finish
GUEST
# The kernel builds them anew.
cat >"$work/offline" <<'GUEST'
#!/bin/sh
. /lib/assert.sh
echo 0 >/sys/devices/system/cpu/cpu5/online
expect "core 5 is off line" 0-4,6-15 "$(cat /sys/devices/system/cpu/online)"
echo 1 >/proc/sys/kernel/printk
finish
GUEST

# MACHINE NTH SCRIPT OPTION...: the NTH dump of a guest.
tell() {
    local machine=$1 nth=$2 script=$3 series log
    shift 3
    for series in 6.1 6.12; do
        log=$work/$machine-$series
        echo "domains: $machine on Linux $series" >&2
        "$here/boot.sh" -k "$series" -T 1800 -o "$log" -a "sched_verbose loglevel=8" "$@" \
            "$script" "$here/../../tests/vm/assert.sh:/lib/assert.sh" >/dev/null
        sed 's/^\[ *[0-9.]*\] //' "$log" | awk -v nth="$nth" '
            /^CPU[0-9]+ attaching sched-domain/ { if (!inside) dump++; inside = 1 }
            /attaching NULL sched-domain/ { inside = 0; next }
            inside && dump == nth && /^CPU|^ +domain-|^ +groups:|^root domain span/
            /^root domain span/ { inside = 0 }
        ' >"$log.txt"
        [ -s "$log.txt" ] || {
            echo "domains: error: Linux $series told nothing of $machine" >&2
            exit 1
        }
        mv "$log.txt" "$directory/$machine-$series.txt"
    done
}

paper=$here/../../tests/vm/paper.distances
for machine in "${@:-all}"; do
    case $machine in
    all | paper-16 | paper-16-without-5 | siblings | ring-6 | paper-64) ;;
    *)
        echo "domains: error: no machine $machine: paper-16, paper-16-without-5, siblings, ring-6, paper-64" >&2
        exit 64
        ;;
    esac
    wanted() { [ "$machine" = all ] || [ "$machine" = "$1" ]; }
    ! wanted paper-16 || tell paper-16 1 "$work/nothing" -c 16 -t 1 -n 8 -m 1024 -d "$paper"
    ! wanted paper-16-without-5 || tell paper-16-without-5 2 "$work/offline" -c 16 -t 1 -n 8 -m 1024 -d "$paper"
    ! wanted siblings || tell siblings 1 "$work/nothing" -c 8 -t 2 -n 2
    ! wanted ring-6 || tell ring-6 1 "$work/nothing" -c 12 -t 1 -n 6 -m 1020 -d "$here/../../tests/vm/ring.distances"
    ! wanted paper-64 || tell paper-64 1 "$work/nothing" -c 64 -t 1 -n 8 -m 2048 -d "$paper"
done
