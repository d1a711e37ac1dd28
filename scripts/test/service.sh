#!/bin/bash
# Boots a real systemd in a container of a small Debian system with the package in it, and tests quell.service there:
# scripts/test/service-guest.sh.
#   exit 0: passed, or skipped by name    1: failed
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/test/debian.sh
. scripts/test/debian.sh

# Cgroups of the container's own, in each hierarchy that systemd or Quell uses: they are its roots.
hierarchies=()
enter_cgroups() {
    local hierarchy file
    for hierarchy in /sys/fs/cgroup{,/systemd,/unified,/freezer,/cpuset}; do
        [ -e "$hierarchy/cgroup.procs" ] || continue
        hierarchies+=("$hierarchy")
        mkdir -p "$hierarchy/quell-service"
        # A cpuset of version 1 starts empty.
        for file in cpuset.cpus cpuset.mems; do
            [ ! -e "$hierarchy/cgroup.clone_children" ] || [ ! -e "$hierarchy/$file" ] ||
                cat "$hierarchy/$file" >"$hierarchy/quell-service/$file"
        done
        echo "$BASHPID" >"$hierarchy/quell-service/cgroup.procs"
    done
}
leave_cgroups() {
    local group
    for group in /sys/fs/cgroup{,/*}/quell-service; do
        # Their processes may be on their way out.
        for _ in $(seq 100); do
            [ -d "$group" ] || break
            find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.05
        done
    done
}

# Within the container's namespaces: becomes systemd.
boot() {
    local hierarchy
    mount -t proc proc "$root/proc"
    mount -t sysfs sysfs "$root/sys"
    if [ "${hierarchies[0]}" != /sys/fs/cgroup ]; then
        mount -t tmpfs tmpfs "$root/sys/fs/cgroup"
    fi
    for hierarchy in "${hierarchies[@]}"; do
        mkdir -p "$root$hierarchy"
        case $hierarchy in
            /sys/fs/cgroup | */unified) mount -t cgroup2 cgroup2 "$root$hierarchy" ;;
            */systemd) mount -t cgroup -o none,name=systemd cgroup "$root$hierarchy" ;;
            *) mount -t cgroup -o "${hierarchy##*/}" cgroup "$root$hierarchy" ;;
        esac
    done
    exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 container=quell-service \
        /lib/systemd/systemd --unit=test.target --log-target=null --show-status=no
}

if [ "${1:-}" = boot ]; then
    root=$2
    read -ra hierarchies <<<"$3"
    boot
fi

# Outside of all namespaces, so that it is done even if they are ended from without.
finish() {
    QUELL_RUN_DIR=$runs "${CARGO_TARGET_DIR:-target}/debug/quell" restore >/dev/null || echo "service: the host could not be restored" >&2
    leave_cgroups
    rm -rf "$runs"
}
if [ -z "${QUELL_TEST_INSIDE:-}" ]; then
    lock_host
    runs=$(mktemp -d /dev/shm/quell-service.XXXXXX)
    export runs
    trap finish EXIT
    trap 'exit 130' INT TERM
    status=0
    (enter_namespaces) || status=$?
    exit "$status"
fi

make_root
mkdir "$root/run/quell"
# The journal outlives the container.
mount --bind "$runs" "$root/run/quell"
inside dpkg -i /quell.deb >"$root/log" 2>&1 || fail "dpkg -i: $(cat "$root/log")"
install -m 755 scripts/test/service-guest.sh "$root/test"
cat >"$root/etc/systemd/system/test.target" <<'END'
[Unit]
Wants=test.service
DefaultDependencies=no
END
cat >"$root/etc/systemd/system/test.service" <<'END'
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
ExecStart=/test
StandardOutput=append:/said
StandardError=append:/said
ExecStopPost=/bin/sh -c 'systemctl --force --force poweroff >/dev/null 2>&1'
END
enter_cgroups
# A container that is powered off ends by a signal.
timeout --signal=KILL 240 unshare --mount --pid --fork --kill-child --cgroup --uts --ipc --net \
    "$0" boot "$root" "${hierarchies[*]}" </dev/null >"$root/log" 2>&1 || true
cat "$root/said" 2>/dev/null || fail "systemd did not come up: $(tail -n 5 "$root/log")"
grep -qx 'guest: passed' "$root/said" || fail "see above"
echo "service: passed"
