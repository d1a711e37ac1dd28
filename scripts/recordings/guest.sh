#!/bin/sh
# Guest script of make.sh, on four cores: an isolated partition of cores 2 and 3, in which two threads share core 2
# while core 3 idles. `violation` is recorded while nothing else changes. During `hotplug` cores 3 and 1 go offline and
# come back. The recordings are printed as base64.
set -eu

partition=/sys/fs/cgroup/alone
printf '#!/bin/sh\nwhile :; do :; done\n' >/bin/hog
chmod +x /bin/hog

echo +cpuset >/sys/fs/cgroup/cgroup.subtree_control
mkdir "$partition"
echo 2-3 >"$partition/cpuset.cpus"
echo isolated >"$partition/cpuset.cpus.partition"
sh -c "echo \$\$ >$partition/cgroup.procs; taskset -cp 2 \$\$ >/dev/null; hog & hog &"
sleep 1
for pid in $(pidof hog); do taskset -cp 2-3 "$pid" >/dev/null; done
echo "partition: $(cat "$partition/cpuset.cpus.partition"), hogs: $(pidof hog)"

# show NAME: the trace as lines of the console.
show() {
    gzip -9 -c "/tmp/$1" | base64 | sed "s/^/@@$1 /"
}

quell record --quiet -o /tmp/violation --duration 1500ms --keyframe-interval 500ms
show violation

# Two threads that may use cores 0 and 1 and are left with core 0 for a while.
for _ in 1 2; do taskset -c 0,1 hog & done
cat >/tmp/cycle.sh <<'END'
sleep 0.3
for core in 3 1; do
    echo 0 >/sys/devices/system/cpu/cpu$core/online
    sleep 0.5
    echo 1 >/sys/devices/system/cpu/cpu$core/online
    sleep 0.5
done
END
quell record --quiet -o /tmp/hotplug --no-load --keyframe-interval 500ms -- sh /tmp/cycle.sh
show hotplug
