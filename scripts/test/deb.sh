#!/bin/bash
# Builds the Debian package of the debug build, and installs, uses, removes and purges it in a chroot of a small Debian
# system. The system is fetched once, into .vm/deb. All mounts are in a namespace that ends with this script.
#   exit 0: passed, or skipped by name    1: failed
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "deb: SKIPPED: $*"
    exit 0
}
fail() {
    echo "deb: FAILED: $*" >&2
    exit 1
}

[ "${QUELL_SKIP_DEB:-}" != 1 ] || skip "QUELL_SKIP_DEB=1"
command -v debootstrap >/dev/null || skip "this host has no debootstrap, so no Debian system to install in"
[ "$(id -u)" = 0 ] || fail "making a chroot needs root"
if [ -z "${QUELL_TEST_DEB_INSIDE:-}" ]; then
    # Another pid namespace: whatever is left running in the chroot ends with it.
    QUELL_TEST_DEB_INSIDE=1 exec unshare --mount --pid --fork --kill-child --propagation private "$0"
fi

# The system: a tar of what debootstrap made from the mirror that this host uses.
base=.vm/deb/$(. /etc/os-release && echo "$VERSION_CODENAME").tar
if [ ! -f "$base" ]; then
    # shellcheck disable=SC2016 # apt expands
    read -r mirror suite < <(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' 'Component: main')
    echo "deb: fetching a small $suite system (about 90 MB, once)"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    debootstrap --variant=minbase --include=man-db,libelf1,libgc1 "$suite" "$work/root" "$mirror" >"$work/log" 2>&1 ||
        fail "debootstrap: $(tail -n 3 "$work/log")"
    mkdir -p "${base%/*}"
    tar -C "$work/root" --exclude=./var/cache/apt/archives/*.deb --exclude=./var/lib/apt/lists/* -cf "$base.new" .
    mv "$base.new" "$base"
fi

# Best compression would take most of the test's time.
export DPKG_DEB_COMPRESSOR_LEVEL=1
deb=$(scripts/package/deb.sh "${CARGO_TARGET_DIR:-target}/debug" "${CARGO_TARGET_DIR:-target}/debian/test" 2>/dev/null)
# `quell doctor` is not to disturb tests that measure the host.
exec 9>/dev/shm/quell-test.lock
flock 9
root=$(mktemp -d)
# Only the directory is outside of the namespace.
trap 'umount -l "$root" 2>/dev/null; rmdir "$root"; rm -rf "${work:-}"' EXIT
mount -t tmpfs tmpfs "$root"
tar -C "$root" -xf "$base"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/run"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
# The host's may be the run directory of its own daemon.
mount -t tmpfs tmpfs "$root/dev/shm"
cp "$deb" "$root/quell.deb"

inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 "$@"; }
# Files of the system. What dpkg and man-db write about themselves is not the package's.
files() {
    (cd "$root" && find . -xdev ! -path './var/lib/dpkg/*' ! -path './var/log/*' ! -path './var/cache/man/*' | sort)
}
ok() { echo "ok    $*"; }

files >"$root/run/before"
inside dpkg -i /quell.deb >"$root/run/log" 2>&1 || fail "dpkg -i: $(cat "$root/run/log")"
ok "dpkg -i installs it"
[ -z "$(inside dpkg -V quell)" ] || fail "dpkg -V: $(inside dpkg -V quell)"
ok "dpkg -V finds every file as it was packed"
[ "$(inside quell --version)" = "quell $(dpkg-deb -f "$deb" Version)" ] || fail "quell --version: $(inside quell --version)"
ok "quell --version"
# 1 says that the host lacks something.
doctor=0
inside quell doctor --spin-ms 50 --json >"$root/run/doctor.json" || doctor=$?
[ "$doctor" -le 1 ] || fail "quell doctor exits with $doctor"
grep -q '"id": "realtime"' "$root/run/doctor.json" || fail "quell doctor --json says: $(head -c 500 "$root/run/doctor.json")"
ok "quell doctor --json"
inside man quell-run 2>&1 | grep -q 'Manage cores and tasks' || fail "man quell-run"
ok "man quell-run"
# There is no memcached in there, and that has to be all that it misses.
inside quell bench colocate --quick >"$root/run/log" 2>&1 && fail "quell bench colocate ran without memcached"
grep -q 'start memcached' "$root/run/log" || fail "quell bench colocate: $(cat "$root/run/log")"
ok "quell bench finds its programs"
[ ! -e "$root/etc/systemd/system/multi-user.target.wants/quell.service" ] || fail "the service is enabled"
ok "the service is not enabled"
inside bash -c 'source /usr/share/bash-completion/completions/quell; complete -p quell' >/dev/null || fail "bash completion"
ok "bash loads the completion"

echo '# edited' >>"$root/etc/quell/quell.toml"
inside dpkg -i /quell.deb >"$root/run/log" 2>&1 || fail "dpkg -i again: $(cat "$root/run/log")"
grep -q '# edited' "$root/etc/quell/quell.toml" || fail "an edited /etc/quell/quell.toml was overwritten"
inside dpkg --remove quell >"$root/run/log" 2>&1 || fail "dpkg --remove: $(cat "$root/run/log")"
grep -q '# edited' "$root/etc/quell/quell.toml" || fail "an edited /etc/quell/quell.toml was removed before the purge"
[ ! -e "$root/usr/bin/quell" ] || fail "the program is still there"
inside dpkg -i /quell.deb >"$root/run/log" 2>&1 || fail "dpkg -i after remove: $(cat "$root/run/log")"
grep -q '# edited' "$root/etc/quell/quell.toml" || fail "an edited /etc/quell/quell.toml was lost in a reinstallation"
ok "an edited configuration stays over an upgrade, a removal and a reinstallation"

inside dpkg --purge quell >"$root/run/log" 2>&1 || fail "dpkg --purge: $(cat "$root/run/log")"
files >"$root/run/after"
diff "$root/run/before" "$root/run/after" >"$root/run/differs" || fail "files after the purge: $(cat "$root/run/differs")"
[ ! -e "$root/run/quell" ] || fail "/run/quell is left"
ok "dpkg --purge leaves nothing"

if command -v lintian >/dev/null; then
    lintian --allow-root --fail-on error,warning "$deb" || fail "lintian"
    ok "lintian finds no error and no warning"
else
    echo "deb: no lintian here, so the package was not checked against Debian's policy"
fi
echo "deb: passed"
