#!/bin/bash
# Boots a kernel in QEMU (emulated, so no KVM is needed), runs a script there, and returns its status.
#
#   boot.sh [OPTION]... GUEST_SCRIPT [FILE[:GUEST_PATH]]...
#     -c CORES     logical CPUs (8)          -t THREADS  per physical core (2)
#     -n NODES     NUMA nodes (2)            -m MIB      memory (768)
#     -d FILE      distances of the nodes, a row each, as /sys/devices/system/node/node*/distance shows them
#     -k SERIES    Debian's kernel (6.12)    -a WORDS    more for the kernel's command line
#     -T SECONDS   time limit (180)          -o FILE     keep the console output
#     -i SHIFT     the guest's clock counts instructions, 2^SHIFT ns each. Its cores take turns, so that all keep the same
#                  pace: on a busy host the guest takes longer, and its cores do not lack time. Linux 6.1
#                  does not boot so
#
# The guest is an initramfs of busybox, the files (into /bin unless a path is given, with the shared
# libraries that they need), and the script as /test.sh. Time in the guest is not real: scripts assert
# on states and counts, and wait for them with generous limits.
#
#   exit 0..63  the guest script's status
#        64     wrong usage
#        69     QEMU, busybox or the kernel is missing
#        124    the time limit passed
#        125    the guest died before it reported (panic, kernel crash)
#        126    the script succeeded but the kernel logged a BUG, WARNING, Oops or stall
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

cores=8 threads=2 nodes=2 memory=768 limit=180 series=6.12 distances='' append='' keep='' shift=''
usage() {
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 64
}
while getopts c:t:n:m:d:k:a:T:o:i: option; do
    case $option in
    c) cores=$OPTARG ;; t) threads=$OPTARG ;; n) nodes=$OPTARG ;;
    m) memory=$OPTARG ;; d) distances=$OPTARG ;; k) series=$OPTARG ;;
    a) append=$OPTARG ;; T) limit=$OPTARG ;; o) keep=$OPTARG ;;
    i) shift=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
if [ $# = 0 ] || [ ! -r "$1" ]; then
    usage
fi
script=$1
shift
per_node=$((cores / nodes))
[ $((per_node / threads * threads * nodes)) = "$cores" ] || {
    echo "vm: error: $cores cores cannot be split into $nodes nodes of $threads threads a core" >&2
    exit 64
}
for tool in qemu-system-x86_64 busybox cpio zstd cc; do
    command -v "$tool" >/dev/null || {
        echo "vm: error: $tool is missing; run: make setup" >&2
        exit 69
    }
done
kernel=$("$here/kernel.sh" "$series")

work=$(mktemp -d)
qemu=
# shellcheck disable=SC2317 # called by the trap
cleanup() {
    [ -z "$qemu" ] || kill "$qemu" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# Copies a file, and what it is linked with, to the guest.
add() {
    local from=$1 to=$2 library
    mkdir -p "$work/root/$(dirname "$to")"
    cp -L "$from" "$work/root/$to"
    file_is_elf "$from" || return 0
    # Debug information is most of a debug build and of no use in there.
    strip --strip-debug "$work/root/$to" 2>/dev/null || true
    for library in $(ldd "$from" 2>/dev/null | grep -o '/[^ ]*'); do
        [ -e "$work/root$library" ] || { mkdir -p "$work/root$(dirname "$library")" && cp -L "$library" "$work/root$library"; }
    done
}
file_is_elf() {
    [ "$(head -c 4 "$1" | tr -d '\0')" = $'\x7fELF' ]
}

mkdir -p "$work/root"/{bin,dev,proc,sys,tmp,run,etc}
cp "$(command -v busybox)" "$work/root/bin/busybox"
ldd "$work/root/bin/busybox" >/dev/null 2>&1 && add "$(command -v busybox)" bin/busybox
cp "$here/init" "$work/root/init"
cp "$script" "$work/root/test.sh"
chmod +x "$work/root/init" "$work/root/test.sh"
for entry in "$@"; do
    case $entry in
    *:*) add "${entry%%:*}" "${entry#*:}" ;;
    *) add "$entry" "bin/$(basename "$entry")" ;;
    esac
done
(cd "$work/root" && find . -print0 | cpio --null -o -H newc --quiet) | zstd -q -1 >"$work/initrd"

numa=()
if [ "$nodes" -gt 1 ]; then
    for ((node = 0; node < nodes; node++)); do
        numa+=(-object "memory-backend-ram,id=node$node,size=$((memory / nodes))M"
            -numa "node,nodeid=$node,memdev=node$node,cpus=$((node * per_node))-$(((node + 1) * per_node - 1))")
    done
    if [ -n "$distances" ]; then
        mapfile -t dist < <(awk '{for (to = 1; to <= NF; to++) print "-numa\ndist,src=" NR - 1 ",dst=" to - 1 ",val=" $to}' "$distances")
        [ "${#dist[@]}" = $((2 * nodes * nodes)) ] || {
            echo "vm: error: $distances does not have $nodes rows of $nodes distances" >&2
            exit 64
        }
        numa+=("${dist[@]}")
    fi
fi
# The guest would measure the rate of its clock at boot. On a busy host it is given no core just then, and has a clock
# that is ten times too fast ever after.
cc -O2 -o "$work/tsc" "$here/tsc.c"
khz=$("$work/tsc")
clock=(-accel "tcg,thread=multi")
if [ -n "$shift" ]; then
    # Counted instructions make its time stamp counter, a tick a nanosecond.
    khz=1000000
    clock=(-accel "tcg,thread=single" -icount "shift=$shift,sleep=off")
fi
append="tsc=reliable tsc_early_khz=$khz $append"
# A genuine Intel vendor string keeps the kernel from warning about hyperthreads on an unknown CPU.
timeout --foreground -k 5 "$limit" qemu-system-x86_64 -M q35 "${clock[@]}" \
    -cpu max,vendor=GenuineIntel -m "$memory" "${numa[@]}" \
    -smp "$cores,sockets=$nodes,cores=$((per_node / threads)),threads=$threads" \
    -kernel "$kernel" -initrd "$work/initrd" \
    -append "console=ttyS0 quiet panic=-1 oops=panic mitigations=off random.trust_cpu=on $append" \
    -display none -serial "file:$work/console" -monitor none -nodefaults -no-reboot -nic none \
    </dev/null >"$work/qemu" 2>&1 &
qemu=$!
ended=0
wait "$qemu" || ended=$?
qemu=

touch "$work/console"
tr -d '\r' <"$work/console" >"$work/text"
sed '/^@@quell-vm/d' "$work/text"
cat "$work/qemu" >&2
[ -z "$keep" ] || cp "$work/text" "$keep"
report() {
    sed -n "s/^@@quell-vm $1=\([0-9]*\)@@\$/\1/p" "$work/text" | tail -n 1
}
status=$(report status)
splats=$(report splats)
if [ "$ended" = 124 ] || [ "$ended" = 137 ]; then
    echo "vm: the time limit of $limit s passed" >&2
    exit 124
elif [ -z "$status" ]; then
    echo "vm: the guest died before it reported (QEMU's status $ended)" >&2
    exit 125
elif [ "$status" = 0 ] && [ "${splats:-0}" != 0 ]; then
    echo "vm: the kernel logged $splats warnings (its log is above)" >&2
    exit 126
fi
exit "$status"
