#!/bin/sh
# The crash tests' daemon: the real one, with their victims as its tasks.
#   crash-run.sh QUELL RUN_DIR SEED PID...
# becomes `quell run` on a configuration of one latency-critical server, one latency-critical task whose children are
# batch work, a lane of two programs, and batch work of all other processes. An odd
# SEED lets batch work run on the lowest FIFO rung.
# So that there is always a change under way, two configurations are applied in turn while the daemon lives: in the one
# half of the tasks have another class than in the other, and the core is guaranteed to the server instead of to a lane.
set -eu

quell=$1 QUELL_RUN_DIR=$2 seed=$3
shift 3
export QUELL_RUN_DIR
dir=$(dirname "$QUELL_RUN_DIR")
rung=sched-idle
[ $((seed % 2)) = 0 ] || rung=fifo-low

# lane PID...: of the third and the fourth.
lane() {
    printf '[[task]]\nname = "lane"\nclass = "lc"\nguaranteed = 1\n[task.lane]\ntable = "A,B"\nslice = "1ms"\n'
    printf '[[task.lane.member]]\npid = %s\n' "$3" "$4"
}

# configure FILE ODD PID...: with ODD=1, batch work at odd places is latency-critical, without a core guaranteed.
configure() {
    file=$1 odd=$2 place=0
    shift 2
    {
        printf '[host]\nbe_rung = "%s"\n' "$rung"
        for pid; do
            place=$((place + 1))
            case $odd$place in 03 | 04) continue ;; esac
            printf '[[task]]\nname = "victim-%s"\npid = %s\n' "$place" "$pid"
            case $place in
                1) printf 'class = "lc"\nguaranteed = %s\n' "$odd" ;;
                2) printf 'class = "lc"\nchildren = "be"\n' ;;
                *) [ $((odd * place % 2)) = 1 ] && echo 'class = "lc"' || printf 'class = "be"\nchildren = "adopt"\n' ;;
            esac
        done
        [ "$odd" = 1 ] || lane "$@"
    } >"$file"
}

configure "$dir/even.toml" 0 "$@"
configure "$dir/odd.toml" 1 "$@"
# Not one of Quell's processes: without the mark by which the tests know those.
# shellcheck disable=SC2016 # the inner shell expands
env -u QUELL_KILL_POINT sh -c '
    while kill -0 "$1"; do
        "$2" apply "$3/odd.toml" || sleep 0.01
        "$2" apply "$3/even.toml" || sleep 0.01
    done
' sh $$ "$quell" "$dir" >/dev/null 2>&1 &
exec "$quell" run --quiet "$dir/even.toml"
