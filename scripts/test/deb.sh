#!/bin/bash
# Builds the Debian package of the debug build, and installs, uses, removes and purges it in a chroot of a small Debian
# system.
#   exit 0: passed, or skipped by name    1: failed
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/test/debian.sh
. scripts/test/debian.sh

enter_namespaces
make_root
mount --rbind /sys "$root/sys"
# `quell doctor` tries what it tells.
lock_host

# Files of the system. What dpkg and man-db write about themselves is not the package's.
files() {
    (cd "$root" && find . -xdev ! -path './var/lib/dpkg/*' ! -path './var/log/*' ! -path './var/cache/man/*' | sort)
}

files >"$root/run/before"
inside dpkg -i /quell.deb >"$root/run/log" 2>&1 || fail "dpkg -i: $(cat "$root/run/log")"
ok "dpkg -i installs it"
[ -z "$(inside dpkg -V quell)" ] || fail "dpkg -V: $(inside dpkg -V quell)"
ok "dpkg -V finds every file as it was packed"
[ "$(inside quell --version)" = "quell $(dpkg-deb -f "$deb" Version)" ] || fail "quell --version: $(inside quell --version)"
ok "quell --version"
# 1 says that the host lacks something.
doctor=0
inside quell doctor --stall-test 50ms --json >"$root/run/doctor.json" || doctor=$?
[ "$doctor" -le 1 ] || fail "quell doctor exits with $doctor"
grep -q '"id": "realtime"' "$root/run/doctor.json" || fail "quell doctor --json says: $(head -c 500 "$root/run/doctor.json")"
ok "quell doctor --json"
inside man quell-run 2>&1 | grep -q 'Manage cores and tasks' || fail "man quell-run"
ok "man quell-run"
# Without the laboratory one line names the package.
status=0
inside quell bench services >"$root/run/log" 2>&1 || status=$?
[ "$status" = 2 ] || fail "quell bench without quell-lab exits with $status"
[ "$(wc -l <"$root/run/log")" = 1 ] || fail "quell bench without quell-lab: $(cat "$root/run/log")"
grep -q 'install the package quell-lab' "$root/run/log" || fail "quell bench without quell-lab: $(cat "$root/run/log")"
ok "without quell-lab, quell bench names the package"
inside dpkg -i --force-depends /quell-lab.deb >"$root/run/log" 2>&1 || fail "dpkg -i quell-lab: $(cat "$root/run/log")"
ok "dpkg -i installs quell-lab"
inside quell load --help | grep -q 'Usage: quell load' || fail "quell load --help"
inside man quell-load-serve 2>&1 | grep -q 'Serve\|serve' || fail "man quell-load-serve"
ok "quell load and its man page"
inside quell sim --json - /usr/share/doc/quell/examples/none.toml >"$root/run/log" 2>&1 && fail "quell sim without its file"
grep -q 'none.toml' "$root/run/log" || fail "quell sim: $(cat "$root/run/log")"
ok "quell sim"
# There is no memcached in there, and that has to be all that it misses.
inside quell bench services --quick --service memcached >"$root/run/log" 2>&1 && fail "quell bench services ran without memcached"
grep -q 'package memcached' "$root/run/log" || fail "quell bench services: $(cat "$root/run/log")"
ok "quell bench finds its programs"
[ ! -e "$root/etc/systemd/system/multi-user.target.wants/quell.service" ] || fail "the service is enabled"
ok "the service is not enabled"
inside bash -c 'source /usr/share/bash-completion/completions/quell; complete -p quell' >/dev/null || fail "bash completion"
ok "bash loads the completion"

for header in quell_hints.h quell_lane.h; do
    [ -s "$root/usr/include/$header" ] || fail "/usr/include/$header"
done
ok "the headers are there"

echo '# edited' >>"$root/etc/quell/quell.toml"
inside dpkg -i /quell.deb >"$root/run/log" 2>&1 || fail "dpkg -i again: $(cat "$root/run/log")"
grep -q '# edited' "$root/etc/quell/quell.toml" || fail "an edited /etc/quell/quell.toml was overwritten"
inside dpkg --remove quell >"$root/run/log" 2>&1 || fail "dpkg --remove: $(cat "$root/run/log")"
grep -q '# edited' "$root/etc/quell/quell.toml" || fail "an edited /etc/quell/quell.toml was removed before the purge"
[ ! -e "$root/usr/bin/quell" ] || fail "the program is still there"
inside dpkg -i /quell.deb >"$root/run/log" 2>&1 || fail "dpkg -i after remove: $(cat "$root/run/log")"
grep -q '# edited' "$root/etc/quell/quell.toml" || fail "an edited /etc/quell/quell.toml was lost in a reinstallation"
ok "an edited configuration stays over an upgrade, a removal and a reinstallation"

# The laboratory alone.
inside dpkg --force-depends --purge quell >"$root/run/log" 2>&1 || fail "dpkg --purge quell: $(cat "$root/run/log")"
inside /usr/libexec/quell/quell-lab load --help | grep -q 'Usage: quell load' || fail "quell-lab without quell"
inside /usr/libexec/quell/quell-lab bench overhead --quick >"$root/run/log" 2>&1 && fail "quell-lab bench overhead without quell"
grep -q 'install the package quell' "$root/run/log" || fail "quell-lab bench overhead: $(cat "$root/run/log")"
ok "quell-lab alone names the package quell where it needs it"
inside dpkg --purge quell-lab >"$root/run/log" 2>&1 || fail "dpkg --purge quell-lab: $(cat "$root/run/log")"
files >"$root/run/after"
diff "$root/run/before" "$root/run/after" >"$root/run/differs" || fail "files after the purge: $(cat "$root/run/differs")"
[ ! -e "$root/run/quell" ] || fail "/run/quell is left"
ok "dpkg --purge leaves nothing"

if command -v lintian >/dev/null; then
    lintian --allow-root --fail-on error,warning "$deb" "$lab_deb" || fail "lintian"
    ok "lintian finds no error and no warning"
else
    echo "deb: no lintian here, so the package was not checked against Debian's policy"
fi
echo "deb: passed"
