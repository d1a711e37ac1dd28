#!/bin/sh
# The crash tests' daemon: the real one, with their victims as its tasks.
#   crash-run.sh QUELL RUN_DIR SEED PID...
# becomes `quell run` on a configuration of one latency-critical server, one latency-critical task whose children are
# batch work, and batch work of all other processes. An odd SEED lets batch work run on the lowest FIFO rung.
set -eu

quell=$1 run_dir=$2 seed=$3
shift 3
config=$(dirname "$run_dir")/crash.toml
rung=idle
[ $((seed % 2)) = 0 ] || rung=fifo-low
printf '[host]\nbe_rung = "%s"\n' "$rung" >"$config.new"
place=0
for pid; do
    place=$((place + 1))
    case $place in
        1) what='class = "lc"\nguaranteed = 1' ;;
        2) what='class = "lc"\nchildren = "be"' ;;
        *) what='class = "be"\nchildren = "adopt"' ;;
    esac
    # shellcheck disable=SC2059 # the format is the line above
    printf "[[task]]\nname = \"victim-$place\"\npid = $pid\n$what\n" >>"$config.new"
done
mv "$config.new" "$config"
QUELL_RUN_DIR=$run_dir exec "$quell" run --quiet "$config"
