#!/bin/bash
# kernel.sh [SERIES]: prints the path of a bootable Debian kernel, 6.12 if no other series is named; fetches it
# once into .vm/kernel, installs nothing. QUELL_VM_KERNEL=FILE names another one, QUELL_VM_KERNEL_6_1=FILE one
# to take for 6.1. QUELL_VM_FETCH=0 fetches none.
#   exit 0: printed    69: there is none and it cannot be fetched (stderr says why)
set -euo pipefail
cd "$(dirname "$0")/../.."

series=${1:-6.12}
# Debian's meta packages: one names its series, the other stands for that of the release (bookworm 6.1, trixie 6.12).
METAS=("linux-image-$series-cloud-amd64" linux-image-cloud-amd64)
CACHE=$PWD/.vm/kernel

fail() {
    echo "vm: error: $*" >&2
    exit 69
}

# The versioned package that a meta package stands for: its name moves with each security update.
resolve() {
    local meta package
    for meta in "${METAS[@]}"; do
        package=$(apt-cache depends "$meta" 2>/dev/null | awk '$1 == "Depends:" && index($2, "linux-image-'"$series"'.") == 1 {print $2; exit}')
        if [ -n "$package" ]; then
            echo "$package"
            return
        fi
    done
    return 1
}

fetch() {
    local package sandbox=()
    # apt's own user may not write into a directory of root's.
    [ "$(id -u)" = 0 ] && sandbox=(-o APT::Sandbox::User=root)
    package=$(resolve) || return 1
    echo "vm: fetching $package (about 40 MB, once)" >&2
    (cd "$1" && apt-get download -q "${sandbox[@]}" "$package" >&2) || return 1
    dpkg --fsys-tarfile "$1/$package"_*.deb | tar -x -C "$1" --wildcards './boot/vmlinuz-*'
}

variable=QUELL_VM_KERNEL
[ "$series" = 6.12 ] || variable+=_${series//./_}
named=${!variable:-}
if [ -n "$named" ]; then
    [ -r "$named" ] || fail "$variable=$named cannot be read"
    echo "$named"
    exit 0
fi
mkdir -p "$CACHE"
# The newest that was fetched.
newest() {
    find "$CACHE" -maxdepth 1 -name "vmlinuz-$series.*" | sort -V | tail -n 1
}
cached=$(newest)
if [ -n "$cached" ]; then
    echo "$cached"
    exit 0
fi
[ "${QUELL_VM_FETCH:-1}" != 0 ] || fail "no kernel of series $series is in .vm/kernel; run: scripts/vm/kernel.sh $series"
[ "$(uname -m)" = x86_64 ] || fail "the test kernel is for x86_64, this host is $(uname -m); set $variable"
command -v apt-get >/dev/null || fail "no apt to fetch a kernel with; set $variable to a kernel image ($series, SCHED_DEBUG, cgroup v2)"
work=$(mktemp -d "$CACHE/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
if ! fetch "$work"; then
    # Stale package lists name versions that the archive no longer has.
    root=()
    [ "$(id -u)" = 0 ] || root=(sudo -n)
    "${root[@]}" apt-get update -q >&2 || fail "the package lists do not have ${METAS[0]} and could not be refreshed; run: apt-get update"
    fetch "$work" || fail "could not fetch a kernel of series $series; is bookworm-security among the apt sources?"
fi
mv "$work"/boot/vmlinuz-* "$CACHE/"
newest
