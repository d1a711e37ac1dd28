#!/bin/bash
# Runs one recipe of CPU hogs (crates/sim/tests/placement/recipes.txt) in a guest, for `quell bench sim`.
#
#   recipe.sh NAME SERIES SECONDS
#     boots Debian's kernel SERIES, has the hogs of NAME run for SECONDS, and prints the uptime of the guest when they
#     began and when they had ended, in seconds. QUELL_VM_FETCH=0: no kernel is fetched
#
#   exit 0: printed    64: wrong usage    69: QEMU, busybox or the kernel is missing    else: the guest failed
set -euo pipefail
cd "$(dirname "$0")/../.."
recipes=crates/sim/tests/placement/recipes.txt

usage() {
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 64
}
fail() {
    echo "recipe: error: $*" >&2
    exit 64
}
if [ $# != 3 ] || ! [[ $3 =~ ^[0-9]{1,3}$ ]]; then
    usage
fi
name=$1 series=$2 seconds=$3
machine=$(awk -v name="$name" '$1 == "recipe" && $2 == name {print $3}' "$recipes")
case $machine in
siblings) shape=(-c 8 -t 2 -n 2) ;;
nodes) shape=(-c 8 -t 1 -n 2) ;;
ring) shape=(-c 8 -t 1 -n 4 -d tests/vm/ring-4.distances) ;;
*) fail "$recipes has no recipe $name" ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
command -v cc >/dev/null || {
    echo "recipe: error: cc is missing; run: make setup" >&2
    exit 69
}
cc -std=c11 -O2 -Wall -Wextra -Werror -static -o "$work/hogs" tests/vm/hogs.c
awk -v name="$name" '$1 == "recipe" {wanted = $2 == name} wanted' "$recipes" >"$work/recipes.txt"

# Hogs are bound to their start cores for the first second.
cat >"$work/test" <<GUEST
#!/bin/sh
echo 1 >/proc/sys/kernel/printk
echo 0 >/proc/sys/kernel/sched_autogroup_enabled
echo +cpu >/sys/fs/cgroup/cgroup.subtree_control
read -r begin _ </proc/uptime
hogs /recipes.txt $machine 1000 0 $((seconds * 1000 - 1000)) 500 || exit 1
read -r end _ </proc/uptime
echo "@@ran \$begin \$end@@"
GUEST
scripts/vm/boot.sh -k "$series" -T 600 "${shape[@]}" -o "$work/console" "$work/test" "$work/hogs" \
    "$work/recipes.txt:/recipes.txt" >"$work/out" || {
    status=$?
    tail -n 5 "$work/out" >&2
    exit $status
}
sed -n 's/^@@ran \([0-9.]*\) \([0-9.]*\)@@$/\1 \2/p' "$work/console"
