#!/bin/bash
# Builds the Debian packages of programs that are built, OUT_DIR/quell_VERSION_ARCH.deb and OUT_DIR/quell-lab_VERSION_ARCH.deb,
# and prints their paths at the end.
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
# The package that is being filled.
package=
root=
share=
doc=

# fill PACKAGE
fill() {
    package=$1
    root=$work/$package
    share=$root/usr/share
    doc=$share/doc/$package
}

# put MODE DIR FILE...
put() {
    local mode=$1 dir=$root$2
    shift 2
    install -d "$dir"
    install -m "$mode" -t "$dir" "$@"
}

stripped() {
    strip --remove-section=.comment --remove-section=.note "$@"
}

# generated PROGRAM: its man pages and completions.
generated() {
    "$bins/$1" generate man "$share/man/man1"
    "$bins/$1" generate completions "$work/completions"
    install -D -m 644 "$work/completions/$1.bash" "$share/bash-completion/completions/$1"
    install -D -m 644 "$work/completions/_$1" "$share/zsh/vendor-completions/_$1"
    install -D -m 644 "$work/completions/$1.fish" "$share/fish/vendor_completions.d/$1.fish"
    gzip -9n "$share"/man/man1/*.1
}

# papers CRATE...: licences and changelog, for the libraries of these crates.
papers() {
    local crates=("${@/#/-p}")
    put 644 "/usr/share/doc/$package" packaging/debian/copyright
    # Which library is under which licence is known to cargo alone.
    ${CARGO:-cargo} tree --locked "${crates[@]}" -e normal,no-proc-macro --prefix none -f '{p} {l}' |
        grep -v '(/' | sed 's/ (\*)$//' | sort -u >"$doc/libraries.txt"
    cat >"$doc/changelog" <<END
$package ($version) unstable; urgency=medium

  * As of commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown).

 -- $maintainer  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
END
    gzip -9n "$doc/changelog"
}

# libraries PROGRAM: the packages of the shared libraries that it needs.
libraries() {
    mkdir -p "$work/shlibs/debian"
    printf 'Source: quell\n\nPackage: quell\nArchitecture: any\n' >"$work/shlibs/debian/control"
    (cd "$work/shlibs" && dpkg-shlibdeps -O -e"$1") | sed 's/^shlibs:Depends=//'
}

# control RELATIONS DESCRIPTION
control() {
    install -d "$root/DEBIAN"
    cat >"$root/DEBIAN/control" <<END
Package: $package
Version: $version
Architecture: $arch
Maintainer: $maintainer
Installed-Size: $(du -k -s --apparent-size "$root" | cut -f1)
$1
Section: admin
Priority: optional
Description: $2
END
    (cd "$root" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
}

build() {
    local deb=$out/${package}_${version}_$arch.deb
    dpkg-deb --root-owner-group --build "$root" "$deb" >&2
    echo "$deb"
}

quell() {
    fill quell
    put 755 /usr/bin "$bins/quell"
    stripped "$root/usr/bin/quell"
    generated quell
    # The results are of the machine that measured them, and pictures.
    local group
    for group in guide reference tools lab; do
        put 644 "/usr/share/doc/quell/$group" "docs/$group"/*.md
    done
    put 644 /usr/share/doc/quell/examples examples/*.toml
    put 644 /usr/share/doc/quell/examples/lanes examples/lanes/*
    papers quell
    put 644 /usr/lib/systemd/system packaging/quell.service
    put 644 /etc/quell packaging/quell.toml
    # For programs that hint what they do, and that have lanes of their own.
    put 644 /usr/include crates/{shm,lane}/include/*.h
    install -d "$root/DEBIAN"
    install -m 755 -t "$root/DEBIAN" packaging/debian/{postinst,prerm,postrm}
    echo /etc/quell/quell.toml >"$root/DEBIAN/conffiles"
    control "Depends: $(libraries "$root/usr/bin/quell")
Recommends: quell-lab (= $version)" 'latency-critical services and batch work on one host
 Quell lets services that answer users and batch work share one Linux host:
 the service keeps the tail latency that it has alone, the batch work gets
 what is left. On a stock kernel, for unmodified programs.
 .
 A daemon watches threads with BPF, decides which of them may use which core,
 and acts by real-time priorities and affinities. Whatever ends it, everything
 on the host goes back to what it was. The service is neither enabled nor
 started by the installation.'
    build
}

lab() {
    fill quell-lab
    # What `quell bench`, `quell load` and `quell sim` execute, and what those start.
    put 755 /usr/libexec/quell "$bins/quell-lab" "$bins/quell-antagonist" "$bins/quell-sleeper" \
        "$bins/quell-bench-peers" "$bins/quell-bench-quantum"
    stripped "$root"/usr/libexec/quell/*
    generated quell-lab
    papers quell-lab quell-bench-peers
    control "Depends: $(libraries "$root/usr/libexec/quell/quell-lab"), fonts-dejavu-core
Recommends: quell (= $version), $(libraries "$root/usr/libexec/quell/quell-antagonist")
Suggests: memcached, redis-server, nginx-light, stress-ng" 'benchmarks, load generator and simulator of Quell
 What the commands quell bench, quell load and quell sim execute: benchmarks
 of services beside batch work, an open-loop load generator, and a simulator
 of hosts that runs the same policies as the daemon.'
    build
}

mkdir -p "$out"
quell
lab
