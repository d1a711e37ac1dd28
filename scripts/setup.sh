#!/bin/bash
# Installs the Debian packages that Quell's build, tests and benchmarks need and that are missing, and the simulators
# that `quell bench sim` compares with into target/python.
# Does nothing, and needs neither root nor network, when all are there.
#   exit 0: everything is there    1: something is missing that this script cannot install
set -euo pipefail
cd "$(dirname "$0")/.."

# Any one of `a|b` will do; the first that the archive has is installed.
PACKAGES=(
    gcc libc6-dev make pkg-config                 # to build C parts of Rust crates
    'clang-16|clang-19|clang' libelf-dev zlib1g-dev bpftool   # BPF programs
    memcached redis-server nginx-light            # services to share a host with
    'postgresql-15|postgresql' 'openjdk-17-jdk-headless|default-jdk-headless'
    libgc-dev stress-ng sysbench                  # batch work
    fonts-dejavu-core                             # text in PNG plots
    prometheus                                    # scrapes the metrics endpoint in a test
    chromium                                      # opens the viewer's page in tests and `quell bench view`
    linux-perf bpftrace                           # what `quell bench check` compares with
    busybox-static cpio zstd qemu-system-x86      # the virtual machine of `make test-vm`
    iproute2 ethtool util-linux procps bc tmux shellcheck # scripts and tests
    man-db zsh fish                               # what reads man pages and completions
    systemd dpkg-dev debootstrap lintian          # the unit and the package of `make deb`, and their tests
    python3-venv                                  # for the peers of `quell bench sim`
)
# Any Go will do, also one that is no package.
command -v go >/dev/null || PACKAGES+=(golang-go)
# Simulators to compare with; Debian's are older.
PYTHON_PACKAGES=(simpy==4.1.2 salabim==26.0.9)
# These would start, and be started at boot; Quell starts its own instances.
SERVICES=(memcached redis-server nginx postgresql prometheus)

say() { echo "setup: $*"; }
fail() {
    echo "setup: error: $*" >&2
    exit 1
}

check_toolchain() {
    local needed found
    needed=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' Cargo.toml)
    if ! command -v cargo >/dev/null; then
        fail "cargo is not in PATH. Quell is built with stable Rust $needed or later; install it with
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal -c rustfmt -c clippy
    . \"\$HOME/.cargo/env\""
    fi
    found=$(rustc --version | awk '{print $2}')
    if [ "$(printf '%s\n%s\n' "$needed" "$found" | sort -V | head -n 1)" != "$needed" ]; then
        fail "Rust $found is too old, Quell needs $needed or later; run: rustup update stable"
    fi
    say "Rust $found"
}

installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# Prints the packages to install, one a line.
missing() {
    local entry alternative alternatives first
    for entry in "${PACKAGES[@]}"; do
        IFS='|' read -ra alternatives <<<"$entry"
        first=
        for alternative in "${alternatives[@]}"; do
            if installed "$alternative"; then
                continue 2
            fi
            if [ -z "$first" ] && apt-cache show "$alternative" >/dev/null 2>&1; then
                first=$alternative
            fi
        done
        echo "${first:-${alternatives[0]}}"
    done
}

# Stale package lists name files that the archive no longer has, empty ones no package at all.
# Fresh ones cost a download, so only when these do not do.
refresh() {
    say "refreshing the package lists"
    as_root apt-get update -q
    mapfile -t wanted < <(missing)
}

# A package that brings a service would start it at once. policy-rc.d is Debian's way to say no.
install() {
    local policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        # shellcheck disable=SC2064 # the path is meant to be expanded now
        trap "as_root rm -f $policy" EXIT
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod +x "$policy"
    fi
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
        -o Dpkg::Use-Pty=0 "$@"
}

keep_services_off() {
    local service
    [ -d /run/systemd/system ] || return 0
    for service in "${SERVICES[@]}"; do
        case " ${wanted[*]} " in
        *" $service"*)
            say "$service was installed as a program only: its service stays off"
            as_root systemctl disable --quiet "$service" 2>/dev/null || true
            ;;
        esac
    done
}

# Where the network or Python lacks something, the benchmark says why these are not measured: no error.
install_peers() {
    local python=target/python list="${PYTHON_PACKAGES[*]}" said
    [ "$(cat $python/installed 2>/dev/null)" = "$list" ] && return
    say "installing $list into $python"
    if said=$( (python3 -m venv $python && $python/bin/python -m pip install -q --disable-pip-version-check --timeout 20 "${PYTHON_PACKAGES[@]}") 2>&1); then
        echo "$list" >$python/installed
    else
        say "without the simulators that \`quell bench sim\` compares with: $(tail -n 1 <<<"$said")"
    fi
}

check_toolchain
if ! command -v apt-get >/dev/null; then
    lacking=()
    for tool in gcc make pkg-config clang memcached redis-server nginx pgbench javac go stress-ng sysbench prometheus chromium cpio \
        zstd qemu-system-x86_64 busybox ip ethtool bc tmux shellcheck man zsh fish; do
        command -v "$tool" >/dev/null || lacking+=("$tool")
    done
    [ ${#lacking[@]} = 0 ] && exit 0
    fail "this host has no apt, so nothing was installed. Install with its own package manager what provides:
    ${lacking[*]}
    and the headers of libelf, zlib and the Boehm garbage collector (libgc)"
fi
mapfile -t wanted < <(missing)
if [ ${#wanted[@]} = 0 ]; then
    say "all packages are installed"
    install_peers
    exit 0
fi
as_root() { "$@"; }
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null ||
        fail "installing needs root and there is no sudo; run as root: apt-get install -y ${wanted[*]}"
    as_root() { sudo "$@"; }
fi
apt-get install --simulate -q "${wanted[@]}" >/dev/null 2>&1 || refresh
say "installing ${#wanted[@]} packages: ${wanted[*]}"
if ! install "${wanted[@]}"; then
    refresh
    install "${wanted[@]}" || fail "apt-get could not install: ${wanted[*]} (its message is above)"
fi
keep_services_off
install_peers
say "done"
