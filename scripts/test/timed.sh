#!/bin/sh
# Cargo's runner for test programs: they print the time of each test. Stable Rust's test harness allows that option only
# with this variable, and only at run time, so that nothing is built anew. Other programs run unchanged.
program=$1
shift
case $program in
    */deps/*) RUSTC_BOOTSTRAP=1 exec "$program" "$@" -Z unstable-options --report-time ;;
esac
exec "$program" "$@"
