# shellcheck shell=bash
# Sourced by tests that need a Debian system with the package in it: $root, made anew in memory. All mounts and processes are in
# namespaces that end with the script. Debian's part is fetched once, into .vm/deb.
# The caller is in the repository's directory.

name=$(basename "$0" .sh)
skip() {
    echo "$name: SKIPPED: $*"
    exit 0
}
fail() {
    echo "$name: FAILED: $*" >&2
    exit 1
}
ok() { echo "ok    $*"; }

# Starts the calling script again in namespaces of its own, unless it is there.
enter_namespaces() {
    [ "${QUELL_SKIP_DEB:-}" != 1 ] || skip "QUELL_SKIP_DEB=1"
    command -v debootstrap >/dev/null || skip "this host has no debootstrap, so no Debian system to install in"
    [ "$(id -u)" = 0 ] || fail "making a chroot needs root"
    [ -n "${QUELL_TEST_INSIDE:-}" ] ||
        QUELL_TEST_INSIDE=1 exec unshare --mount --pid --fork --kill-child --propagation private "$0"
}

# Prints the path of a tar of what debootstrap makes from the mirror that this host uses.
debian() {
    local tar work mirror suite
    # shellcheck source=/dev/null
    tar=.vm/deb/$(. /etc/os-release && echo "$VERSION_CODENAME").tar
    if [ ! -f "$tar" ]; then
        # shellcheck disable=SC2016 # apt expands
        read -r mirror suite < <(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' 'Component: main')
        echo "$name: fetching a small $suite system (about 100 MB, once)" >&2
        mkdir -p .vm/deb
        work=$(mktemp -d .vm/deb/fetch.XXXXXX)
        debootstrap --variant=minbase --include=man-db,libelf1,libgc1,systemd "$suite" "$work/root" "$mirror" >"$work/log" 2>&1 ||
            fail "debootstrap: $(tail -n 3 "$work/log")"
        tar -C "$work/root" --exclude='./var/cache/apt/archives/*.deb' --exclude='./var/lib/apt/lists/*' -cf "$work/tar" .
        mv "$work/tar" "$tar"
        rm -rf "$work"
    fi
    echo "$tar"
}

# Makes $root, with the packages of the debug build as /quell.deb and /quell-lab.deb; $deb and $lab_deb are their paths
# outside.
make_root() {
    local built=${CARGO_TARGET_DIR:-target} tar
    tar=$(debian)
    # Best compression would take most of the time.
    { read -r deb && read -r lab_deb; } < <(
        DPKG_DEB_COMPRESSOR_LEVEL=1 scripts/package/deb.sh "$built/debug" "$built/debian/test" 2>.vm/deb/package.log) ||
        fail "making the packages: $(tail -n 3 .vm/deb/package.log)"
    root=$(mktemp -d)
    # Only the directory is outside of the namespace.
    trap 'umount -l "$root" 2>/dev/null; rmdir "$root"' EXIT
    mount -t tmpfs tmpfs "$root"
    tar -C "$root" -xf "$tar"
    cp "$deb" "$root/quell.deb"
    cp "$lab_deb" "$root/quell-lab.deb"
    mount -t proc proc "$root/proc"
    mount -t tmpfs tmpfs "$root/run"
    mount --rbind /dev "$root/dev"
    # The host's may be the run directory of its own daemon.
    mount -t tmpfs tmpfs "$root/dev/shm"
}

inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 "$@"; }

# Alone among the tests that change or measure the host.
lock_host() {
    exec 9>/dev/shm/quell-test.lock
    flock 9
}
