#!/bin/bash
# Builds the Debian package of programs that are built: OUT_DIR/quell_VERSION_ARCH.deb, printed at the end.
#   deb.sh [BIN_DIR [OUT_DIR]]    default: target/release, target/debian
set -euo pipefail
cd "$(dirname "$0")/../.."

bins=${1:-target/release}
out=${2:-target/debian}
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
arch=$(dpkg --print-architecture)
maintainer=${DEBEMAIL:-Quell developers <developers@quell.example>}
# The same tree gives the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH LC_ALL=C.UTF-8
umask 022

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
share=$root/usr/share
doc=$share/doc/quell

# put MODE DIR FILE...
put() {
    local mode=$1 dir=$root$2
    shift 2
    install -d "$dir"
    install -m "$mode" -t "$dir" "$@"
}

programs() {
    put 755 /usr/bin "$bins/quell"
    # What `quell bench` starts.
    put 755 /usr/libexec/quell "$bins/quell-antagonist" "$bins/quell-sleeper" "$bins/quell-bench-peers" \
        "$bins/quell-bench-quantum"
    strip --remove-section=.comment --remove-section=.note "$root"/usr/bin/* "$root"/usr/libexec/quell/*
}

documents() {
    "$bins/quell" generate man "$share/man/man1"
    "$bins/quell" generate completions "$work/completions"
    install -D -m 644 "$work/completions/quell.bash" "$share/bash-completion/completions/quell"
    install -D -m 644 "$work/completions/_quell" "$share/zsh/vendor-completions/_quell"
    install -D -m 644 "$work/completions/quell.fish" "$share/fish/vendor_completions.d/quell.fish"
    # The results are of the machine that measured them, and pictures.
    find docs -maxdepth 1 -name '*.md' ! -name results.md -exec install -D -m 644 -t "$doc" {} +
    put 644 /usr/share/doc/quell/examples examples/*.toml
    put 644 /usr/share/doc/quell/examples/lanes examples/lanes/*
    put 644 /usr/share/doc/quell packaging/debian/copyright
    # Which library is under which licence is known to cargo alone.
    ${CARGO:-cargo} tree --locked -p quell -p quell-bench-peers -e normal,no-proc-macro --prefix none -f '{p} {l}' |
        grep -v '(/' | sed 's/ (\*)$//' | sort -u >"$doc/libraries.txt"
    cat >"$doc/changelog" <<END
quell ($version) unstable; urgency=medium

  * As of commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown).

 -- $maintainer  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
END
    gzip -9n "$doc/changelog" "$share"/man/man1/*.1
}

service() {
    put 644 /usr/lib/systemd/system packaging/quell.service
    put 644 /etc/quell packaging/quell.toml
}

# For programs that hint what they do, and that have lanes of their own.
headers() {
    put 644 /usr/include crates/{shm,lane}/include/*.h
}

# Prints the lines of libraries that are needed by the programs, and by those of `quell bench` besides.
libraries() {
    mkdir -p "$work/shlibs/debian"
    printf 'Source: quell\n\nPackage: quell\nArchitecture: any\n' >"$work/shlibs/debian/control"
    (cd "$work/shlibs" && dpkg-shlibdeps -O \
        -dDepends -e"$root/usr/bin/quell" -dRecommends -e"$root/usr/libexec/quell/quell-antagonist") |
        sed 's/^shlibs:\([A-Za-z]*\)=/\1: /'
}

control() {
    install -d "$root/DEBIAN"
    install -m 755 -t "$root/DEBIAN" packaging/debian/{postinst,prerm,postrm}
    echo /etc/quell/quell.toml >"$root/DEBIAN/conffiles"
    cat >"$root/DEBIAN/control" <<END
Package: quell
Version: $version
Architecture: $arch
Maintainer: $maintainer
Installed-Size: $(du -k -s --apparent-size "$root" | cut -f1)
$(libraries)
Suggests: memcached, redis-server, nginx-light, stress-ng
Section: admin
Priority: optional
Description: latency-critical services and batch work on one host
 Quell lets services that answer users and batch work share one Linux host:
 the service keeps the tail latency that it has alone, the batch work gets
 what is left. On a stock kernel, for unmodified programs.
 .
 A daemon watches threads with BPF, decides which of them may use which core,
 and acts by real-time priorities and affinities. Whatever ends it, everything
 on the host goes back to what it was. The service is neither enabled nor
 started by the installation.
END
    (cd "$root" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
}

programs
documents
service
headers
control
mkdir -p "$out"
deb=$out/quell_${version}_$arch.deb
dpkg-deb --root-owner-group --build "$root" "$deb" >&2
echo "$deb"
