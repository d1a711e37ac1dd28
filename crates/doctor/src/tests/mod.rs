//! Checks on made-up hosts; [`this_host`] has those on the real one.

mod this_host;

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use quell_model::CoreSet;

use super::host::Host;
use super::timing::{Gaps, Overshoot};
use super::*;
use quell_act::Ladder;
use quell_act::RtTry;
use quell_observe::ObserveError;

/// A host made of files.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new(files: &[(&str, &str)]) -> Tree {
        let tree = Tree(tempfile::tempdir().unwrap());
        for (path, text) in files {
            tree.write(path, text);
        }
        tree
    }

    fn write(&self, path: &str, text: &str) {
        let file = self.0.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn host(&self) -> Host {
        Host::at(self.0.path())
    }
}

fn cores(list: &str) -> CoreSet {
    list.parse().unwrap()
}

fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

#[track_caller]
fn expect(finding: &Finding, status: Status, found: &str) {
    assert_eq!(finding.status, status, "{finding:#?}");
    assert!(finding.found.contains(found), "`{found}` not in {finding:#?}");
    assert_is_complete(finding);
}

#[track_caller]
fn assert_is_complete(finding: &Finding) {
    assert!(!finding.found.is_empty() && !finding.consequence.is_empty(), "{finding:#?}");
    assert!(!finding.remedy.is_empty() && !finding.evidence.is_empty(), "{finding:#?}");
    assert_eq!(finding.remedy == "none needed", finding.status == Status::Pass, "{finding:#?}");
}

const ROOT: (&str, &str) =
    ("/proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\nCpus_allowed_list:\t0-7\n");
const NOBODY: (&str, &str) =
    ("/proc/self/status", "Uid:\t65534\t65534\t65534\t65534\nCapEff:\t0000000000000000\n");
const KERNEL_6_12: (&str, &str) = ("/proc/sys/kernel/osrelease", "6.12.1-test\n");
const ONLINE: (&str, &str) = ("/sys/devices/system/cpu/online", "0-7\n");
const VIRTUAL: (&str, &str) = ("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu hypervisor\n");

#[test]
fn refused_realtime_names_the_right_remedy() {
    let refused = || RtTry::Refused(errno(libc::EPERM));
    let nobody = Tree::new(&[NOBODY, ("/proc/self/cgroup", "0::/a\n")]);
    let here = scheduling::realtime_here(&nobody.host(), &refused());
    expect(&here, Status::Absent, "`/a`");
    assert!(here.remedy.contains("CAP_SYS_NICE"), "{here:?}");

    // With the capability it is the cgroup that refuses.
    let root = Tree::new(&[ROOT, ("/budget/cpu.rt_runtime_us", "0\n")]);
    let cgroup = root.0.path().join("budget");
    let there = scheduling::realtime_there(&root.host(), &cgroup, &refused());
    expect(&there, Status::Absent, "refused");
    assert!(there.remedy.contains("budget/cpu.rt_runtime_us"), "{there:?}");
    let there = scheduling::realtime_there(&root.host(), Path::new("/v2"), &refused());
    assert!(there.remedy.contains("rt_group_sched=0"), "{there:?}");
}

#[test]
fn realtime_that_could_not_be_tried_is_not_called_refused() {
    let root = Tree::new(&[ROOT, ("/proc/self/cgroup", "2:cpu:/v1\n0::/v2\n")]);
    expect(&scheduling::realtime_here(&root.host(), &RtTry::Granted), Status::Pass, "`/v1`");
    let there = |tried| scheduling::realtime_there(&root.host(), Path::new("/x"), &tried);
    expect(&there(RtTry::Shut(errno(libc::EBUSY))), Status::Degraded, "could not enter");
    expect(&there(RtTry::Stuck), Status::Absent, "not run");
    expect(&there(RtTry::Untried(errno(libc::EAGAIN))), Status::Degraded, "no child");
}

#[test]
fn throttling_counts_unless_it_is_off_or_has_nothing_to_say() {
    let finite = [
        ("/proc/sys/kernel/sched_rt_runtime_us", "950000\n"),
        ("/proc/sys/kernel/sched_rt_period_us", "1000000\n"),
    ];
    let tree = Tree::new(&finite);
    tree.write(KERNEL_6_12.0, KERNEL_6_12.1);
    expect(&scheduling::throttling(&tree.host()), Status::Pass, "unknown), and can be turned off");
    let config = "/boot/config-6.12.1-test";
    tree.write(config, "CONFIG_RT_GROUP_SCHED=y\n");
    expect(&scheduling::throttling(&tree.host()), Status::Pass, "with RT group");
    tree.write(config, "# CONFIG_RT_GROUP_SCHED is not set\n");
    expect(&scheduling::throttling(&tree.host()), Status::Pass, "SCHED_DEADLINE");
    tree.write(KERNEL_6_12.0, "6.1.0-9-amd64\n");
    tree.write("/boot/config-6.1.0-9-amd64", "# CONFIG_RT_GROUP_SCHED is not set\n");
    expect(&scheduling::throttling(&tree.host()), Status::Pass, "without RT group");
    tree.write(finite[0].0, "-1\n");
    expect(&scheduling::throttling(&tree.host()), Status::Pass, "off");
    expect(&scheduling::throttling(&Tree::new(&[]).host()), Status::Degraded, "could not be read");
}

#[test]
fn a_ladder_without_room_is_absent() {
    expect(&scheduling::ladder(&Ok(Ladder::default())), Status::Pass, "lc ");
    let crowded = io::Error::other("audio has priority 40");
    expect(&scheduling::ladder(&Err(crowded)), Status::Absent, "audio has priority 40");
}

#[test]
fn the_preemption_model_comes_from_the_most_reliable_source() {
    let version = "/proc/sys/kernel/version";
    let tree = Tree::new(&[KERNEL_6_12]);
    expect(&scheduling::preemption(&tree.host()), Status::Degraded, "could not be found out");
    tree.write(version, "#1 SMP Debian\n");
    let fixed = scheduling::preemption(&tree.host());
    expect(&fixed, Status::Degraded, "none or voluntary");
    assert!(fixed.remedy.contains("CONFIG_PREEMPT_DYNAMIC"), "{fixed:?}");
    tree.write(version, "#1 SMP PREEMPT Fri\n");
    expect(&scheduling::preemption(&tree.host()), Status::Pass, "full");
    tree.write(version, "#1 SMP PREEMPT_RT Fri\n");
    expect(&scheduling::preemption(&tree.host()), Status::Pass, "full");
    tree.write(version, "#1 SMP PREEMPT_DYNAMIC Fri\n");
    expect(&scheduling::preemption(&tree.host()), Status::Degraded, "could not be found out");
    tree.write(
        "/boot/config-6.12.1-test",
        "CONFIG_PREEMPT_VOLUNTARY=y\nCONFIG_PREEMPT_DYNAMIC=y\n",
    );
    let chosen = scheduling::preemption(&tree.host());
    expect(&chosen, Status::Degraded, "voluntary");
    assert_eq!(chosen.remedy, "boot with preempt=full");
    tree.write("/proc/cmdline", "quiet preempt=lazy\n");
    expect(&scheduling::preemption(&tree.host()), Status::Pass, "lazy");
    tree.write("/sys/kernel/debug/sched/preempt", "(none) voluntary full lazy\n");
    let switchable = scheduling::preemption(&tree.host());
    expect(&switchable, Status::Degraded, "none");
    assert!(switchable.remedy.contains("echo full >"), "{switchable:?}");
}

/// Eight cores, siblings adjacent.
fn eight_cores() -> Tree {
    let tree = Tree::new(&[ROOT, ONLINE]);
    for core in 0..8 {
        let first = core / 2 * 2;
        let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
        tree.write(&path, &format!("{first}-{}\n", first + 1));
    }
    tree
}

#[test]
fn all_but_the_lowest_physical_core_are_managed() {
    let tree = eight_cores();
    assert_eq!(cores::default_managed(&tree.host()), cores("2-7"));
    tree.write(ONLINE.0, "1-3\n");
    assert_eq!(cores::default_managed(&tree.host()), cores("2-3"));
    // Two siblings are all there is.
    tree.write(ONLINE.0, "0-1\n");
    assert_eq!(cores::default_managed(&tree.host()), CoreSet::EMPTY);
    tree.write(ONLINE.0, "0\n");
    assert_eq!(cores::default_managed(&tree.host()), CoreSet::EMPTY);
}

#[test]
fn cores_that_cannot_be_managed_are_said_so() {
    let tree = eight_cores();
    let host = tree.host();
    expect(&cores::managed(&host, &cores("2-7")), Status::Pass, "2-7 of 0-7");
    expect(&cores::managed(&host, &cores("7")), Status::Degraded, "7 of 0-7");
    expect(&cores::managed(&host, &CoreSet::EMPTY), Status::Absent, "none");
    expect(&cores::managed(&host, &cores("6-9")), Status::Absent, "8-9: not online");
    expect(&cores::managed(&host, &cores("0-7")), Status::Absent, "0-7");
    tree.write(ROOT.0, "Cpus_allowed_list:\t0-3\n");
    let narrow = cores::managed(&host, &cores("2-7"));
    expect(&narrow, Status::Degraded, "2-7");
    assert!(narrow.consequence.contains("0-3"), "{narrow:?}");
}

#[test]
fn a_virtual_machine_without_siblings_is_not_believed() {
    let tree = eight_cores();
    expect(&cores::siblings(&tree.host()), Status::Pass, "2 threads");
    let flat = Tree::new(&[ONLINE]);
    expect(&cores::siblings(&flat.host()), Status::Pass, "none");
    flat.write(VIRTUAL.0, VIRTUAL.1);
    expect(&cores::siblings(&flat.host()), Status::Degraded, "virtual");
}

#[test]
fn memory_that_moves_between_nodes_is_degraded() {
    let tree = Tree::new(&[("/sys/devices/system/node/online", "0-1\n")]);
    expect(&cores::nodes(&tree.host()), Status::Pass, "2 nodes");
    tree.write("/proc/sys/kernel/numa_balancing", "1\n");
    expect(&cores::nodes(&tree.host()), Status::Degraded, "moves memory");
    expect(&cores::nodes(&Tree::new(&[]).host()), Status::Pass, "one node");
}

#[test]
fn signals_tell_a_refusal_from_a_lack() {
    let tree = Tree::new(&[]);
    let host = tree.host();
    expect(&signals::bpf(&Ok(())), Status::Pass, "attached");
    let fails =
        |number| Err(ObserveError::Kernel { what: "loading".into(), source: errno(number) });
    let refused = signals::bpf(&fails(libc::EPERM));
    expect(&refused, Status::Absent, "refused");
    assert!(refused.remedy.contains("CAP_BPF"), "{refused:?}");
    let lacking = signals::bpf(&fails(libc::ENOSYS));
    assert!(lacking.remedy.contains("CONFIG_BPF_SYSCALL"), "{lacking:?}");

    expect(&signals::counters(&host, &Ok(())), Status::Pass, "cycles");
    expect(&signals::counters(&host, &Err(errno(libc::EACCES))), Status::Degraded, "refused");
    expect(&signals::counters(&host, &Err(errno(libc::ENOENT))), Status::Absent, "none");
    expect(&signals::thread_identity(&Ok(())), Status::Pass, "pidfds");
    expect(&signals::thread_identity(&Err(errno(libc::EINVAL))), Status::Degraded, "start time");
}

#[test]
fn memory_traffic_passes_only_where_it_is_whole_and_measured() {
    let found = |total, by_core, estimated| {
        signals::memory_of(total, by_core, estimated, "the total from x", &["resctrl: y".into()])
    };
    expect(&found(true, true, false), Status::Pass, "the total from x");
    expect(&found(true, true, true), Status::Degraded, "the total from x");
    expect(&found(true, false, false), Status::Absent, "the total from x");
    let nothing = found(false, false, false);
    expect(&nothing, Status::Absent, "not measured");
    assert!(nothing.remedy.contains("file:PATH"), "{nothing:?}");
    assert!(nothing.evidence[0].value.contains("resctrl: y"), "{nothing:?}");
}

#[test]
fn file_systems_may_be_absent_unmounted_or_there() {
    let tree = Tree::new(&[]);
    let host = tree.host();
    expect(&signals::btf(&host), Status::Absent, "not there");
    expect(&signals::tracefs(&host), Status::Absent, "none");
    expect(&signals::resctrl(&host), Status::Absent, "none");
    tree.write("/proc/filesystems", "nodev\ttracefs\nnodev\tresctrl\n");
    expect(&signals::tracefs(&host), Status::Degraded, "not mounted");
    expect(&signals::resctrl(&host), Status::Degraded, "not mounted");
    tree.write(
        "/proc/self/mounts",
        "t /sys/kernel/tracing tracefs rw 0 0\nr /sys/fs/resctrl resctrl rw 0 0\n",
    );
    tree.write("/sys/fs/resctrl/info/L3/num_closids", "16\n");
    tree.write("/sys/kernel/btf/vmlinux", "x");
    expect(&signals::tracefs(&host), Status::Pass, "/sys/kernel/tracing");
    expect(&signals::resctrl(&host), Status::Pass, "L3");
    expect(&signals::btf(&host), Status::Pass, "there");
}

#[test]
fn further_back_ends_are_named_with_what_they_lack() {
    let tree = Tree::new(&[KERNEL_6_12]);
    let host = tree.host();
    expect(&signals::sched_ext(&host), Status::Absent, "not there");
    tree.write("/sys/kernel/sched_ext/state", "disabled\n");
    expect(&signals::sched_ext(&host), Status::Pass, "unused");
    tree.write("/sys/kernel/sched_ext/state", "enabled\n");
    tree.write("/sys/kernel/sched_ext/root/ops", "rusty\n");
    expect(&signals::sched_ext(&host), Status::Degraded, "rusty");

    expect(&signals::modules(&host), Status::Absent, "takes none");
    tree.write("/proc/modules", "");
    expect(&signals::modules(&host), Status::Degraded, "headers are missing");
    tree.write("/lib/modules/6.12.1-test/build/Makefile", "");
    expect(&signals::modules(&host), Status::Pass, "they load");
    tree.write("/sys/module/module/parameters/sig_enforce", "Y\n");
    expect(&signals::modules(&host), Status::Degraded, "signed");
    tree.write("/proc/cmdline", "quiet nomodule\n");
    expect(&signals::modules(&host), Status::Absent, "turned off");
}

/// The `stat` line of a kernel thread.
fn stat(pid: u32, name: &str, rt_priority: u32, policy: i32) -> String {
    format!("{pid} ({name}) S 2 0 0 0 -1 69238848{} {rt_priority} {policy} 0 0\n", " 0".repeat(30))
}

#[test]
fn softirq_threads_of_managed_cores_count() {
    let tree = Tree::new(&[ROOT]);
    let host = tree.host();
    let managed = cores("2-3");
    expect(&interrupts::softirq(&host, &managed), Status::Degraded, "not found");
    tree.write("/proc/10/stat", &stat(10, "ksoftirqd/0", 50, libc::SCHED_FIFO));
    tree.write("/proc/12/stat", &stat(12, "ksoftirqd/2", 0, libc::SCHED_OTHER));
    tree.write("/proc/13/stat", &stat(13, "ksoftirqd/3", 50, libc::SCHED_FIFO));
    // An ordinary program may take any name.
    let program = stat(14, "ksoftirqd/3", 0, 0).replace("69238848", "0");
    tree.write("/proc/14/stat", &program);
    expect(&interrupts::softirq(&host, &managed), Status::Pass, "SCHED_OTHER on cores 2,");
    tree.write(NOBODY.0, NOBODY.1);
    expect(&interrupts::softirq(&host, &managed), Status::Degraded, "may not be raised");
    tree.write("/proc/12/stat", &stat(12, "ksoftirqd/2", 50, libc::SCHED_FIFO));
    expect(&interrupts::softirq(&host, &managed), Status::Pass, "real-time on cores 2-3");
}

#[test]
fn interrupt_threads_must_be_realtime() {
    let tree = Tree::new(&[]);
    expect(&interrupts::threads(&tree.host()), Status::Pass, "none");
    tree.write("/proc/20/stat", &stat(20, "irq/24-nvme (0)", 50, libc::SCHED_FIFO));
    expect(&interrupts::threads(&tree.host()), Status::Pass, "SCHED_FIFO 50");
    tree.write("/proc/21/stat", &stat(21, "irq/25-eth0", 0, libc::SCHED_OTHER));
    expect(&interrupts::threads(&tree.host()), Status::Degraded, "irq/25-eth0");
}

#[test]
fn interrupts_on_managed_cores_are_counted_where_they_fire() {
    let tree = Tree::new(&[ONLINE]);
    let host = tree.host();
    let managed = cores("2-3");
    expect(&interrupts::placement(&host, &managed), Status::Degraded, "could not be read");
    tree.write("/proc/irq/24/effective_affinity_list", "0\n");
    tree.write("/proc/irq/24/eth0-rx/x", "");
    tree.write("/proc/irq/25/effective_affinity_list", "3\n");
    tree.write("/proc/irq/25/eth0-tx/x", "");
    let table = |on_3: u32| {
        format!(
            "     CPU0 CPU2 CPU3\n 24:  900  0  0  PCI  eth0-rx\n 25:  70  0  {on_3}  PCI  eth0-tx\n"
        )
    };
    tree.write("/proc/interrupts", &table(0));
    expect(&interrupts::placement(&host, &managed), Status::Pass, "none");
    tree.write("/proc/interrupts", &table(12));
    expect(&interrupts::placement(&host, &managed), Status::Degraded, "25 eth0-tx: 12");
    tree.write(ROOT.0, ROOT.1);
    expect(&interrupts::placement(&host, &managed), Status::Pass, "25 eth0-tx: 12");
    tree.write("/proc/99/comm", "irqbalance\n");
    let fought = interrupts::placement(&host, &managed);
    expect(&fought, Status::Degraded, "25 eth0-tx: 12");
    assert!(fought.remedy.contains("irqbalance"), "{fought:?}");
}

#[test]
fn controllers_are_found_in_either_version() {
    let tree = Tree::new(&[]);
    let host = tree.host();
    for finding in [cgroups::layout(&host), cgroups::freezer(&host), cgroups::cpuset(&host)] {
        expect(&finding, Status::Absent, "");
    }
    tree.write("/proc/self/mounts", "c /sys/fs/cgroup cgroup2 rw 0 0\n");
    tree.write("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu memory\n");
    expect(&cgroups::layout(&host), Status::Pass, "v2 on /sys/fs/cgroup");
    expect(&cgroups::freezer(&host), Status::Pass, "v2");
    expect(&cgroups::cpuset(&host), Status::Pass, "v2");

    let v1 = "c /cg/cpuset cgroup rw,cpuset 0 0\nc /cg/freezer cgroup rw,freezer 0 0\n";
    tree.write("/proc/self/mounts", v1);
    tree.write("/cg/cpuset/tasks", "");
    expect(&cgroups::layout(&host), Status::Pass, "v1 with cpuset freezer");
    expect(&cgroups::cpuset(&host), Status::Pass, "v1 on /cg/cpuset");
    // The mount is there and the directory is not, as behind a mount namespace.
    expect(&cgroups::freezer(&host), Status::Degraded, "may not change");
    tree.write("/proc/self/mounts", &format!("c /sys/fs/cgroup cgroup2 rw 0 0\n{v1}"));
    tree.write("/sys/fs/cgroup/cgroup.controllers", "");
    expect(&cgroups::layout(&host), Status::Pass, "hybrid");
    expect(&cgroups::cpuset(&host), Status::Pass, "v1");
}

#[test]
fn rights_follow_the_effective_capabilities() {
    let tree = Tree::new(&[ROOT]);
    let root = rights::capabilities(&tree.host());
    root.iter().for_each(|finding| expect(finding, Status::Pass, "held"));
    tree.write(NOBODY.0, NOBODY.1);
    let nobody = rights::capabilities(&tree.host());
    assert_eq!(nobody.iter().filter(|finding| finding.status == Status::Absent).count(), 1);
    nobody.iter().for_each(|finding| expect(finding, finding.status, "not held"));
    // CAP_BPF with CAP_PERFMON do without CAP_SYS_ADMIN.
    let two = format!("CapEff:\t{:016x}\n", 1u64 << 38 | 1 << 39);
    tree.write(NOBODY.0, &two);
    let bpf = rights::capabilities(&tree.host());
    assert_eq!(bpf.iter().find(|finding| finding.id == "cap_bpf").unwrap().status, Status::Pass);
}

#[test]
fn locked_memory_needs_a_limit_or_the_capability() {
    let limit = |value: &str| format!("Max locked memory         {value}   {value}   bytes\n");
    let tree = Tree::new(&[NOBODY, ("/proc/self/limits", &limit("8388608"))]);
    expect(&rights::locked_memory(&tree.host()), Status::Degraded, "8388608");
    tree.write("/proc/self/limits", &limit("unlimited"));
    expect(&rights::locked_memory(&tree.host()), Status::Pass, "unlimited");
    tree.write("/proc/self/limits", &limit("65536"));
    tree.write(ROOT.0, ROOT.1);
    expect(&rights::locked_memory(&tree.host()), Status::Pass, "lifts");
}

#[test]
fn the_run_directory_wants_a_tmpfs() {
    let tree = Tree::new(&[("/run/x", ""), ("/dev/shm/x", ""), ("/var/x", "")]);
    let mounts = "d / ext4 rw 0 0\nt /run tmpfs rw 0 0\nt /dev/shm tmpfs rw 0 0\n";
    tree.write("/proc/self/mounts", mounts);
    let directory = |path: &str| rights::run_directory(&tree.host(), Path::new(path));
    expect(&directory("/run/quell"), Status::Pass, "/run/quell, on tmpfs");
    expect(&directory("/var/q"), Status::Degraded, "on ext4");
    expect(&directory("not/absolute"), Status::Absent, "cannot be written");
    // A mount point is not just any name that starts like one.
    expect(&directory("/runner"), Status::Degraded, "on ext4");
}

#[test]
fn coarse_or_late_timers_are_degraded() {
    let micros = Duration::from_micros;
    let measured = |resolution, median| Overshoot { resolution, median, longest: micros(900) };
    expect(&timing::timers(None), Status::Degraded, "could not");
    let fine = Duration::from_nanos(1);
    expect(&timing::timers(Some(&measured(fine, micros(60)))), Status::Pass, "60 us late");
    expect(
        &timing::timers(Some(&measured(micros(4000), micros(60)))),
        Status::Degraded,
        "4000000 ns",
    );
    expect(&timing::timers(Some(&measured(fine, micros(800)))), Status::Degraded, "800 us late");
}

#[test]
fn stalls_above_one_in_a_thousand_are_degraded() {
    let gaps = |stalled_us| Gaps {
        spun: Duration::from_millis(500),
        stalls: 3,
        stalled: Duration::from_micros(stalled_us),
        longest: Duration::from_micros(200),
        preempted: 7,
        steal: None,
    };
    expect(&timing::stalls(&gaps(499)), Status::Pass, "besides 7");
    expect(&timing::stalls(&gaps(500)), Status::Degraded, "3 gaps");
    expect(&timing::stalls(&Gaps::default()), Status::Degraded, "not measured");
}

#[test]
fn clocks_and_power_states_follow_their_files() {
    let tree = Tree::new(&[ONLINE]);
    let host = tree.host();
    expect(&timing::hypervisor(&host), Status::Pass, "none");
    expect(&timing::clock(&host), Status::Degraded, "unknown");
    expect(&timing::frequency(&host), Status::Pass, "not in the hands");
    expect(&timing::idle(&host), Status::Pass, "halt");
    tree.write("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n");
    expect(&timing::clock(&host), Status::Pass, "tsc");
    let governor = "/sys/devices/system/cpu/cpu7/cpufreq/scaling_governor";
    tree.write(governor, "powersave\n");
    expect(&timing::frequency(&host), Status::Degraded, "powersave");
    tree.write(governor, "performance\n");
    expect(&timing::frequency(&host), Status::Pass, "performance");
    tree.write("/sys/devices/system/cpu/cpuidle/current_driver", "intel_idle\n");
    tree.write("/sys/devices/system/cpu/cpu0/cpuidle/state1/latency", "2\n");
    expect(&timing::idle(&host), Status::Pass, "2 us");
    tree.write("/sys/devices/system/cpu/cpu0/cpuidle/state2/latency", "133\n");
    expect(&timing::idle(&host), Status::Degraded, "133 us");
    tree.write("/sys/devices/system/cpu/cpu0/cpuidle/state2/disable", "1\n");
    expect(&timing::idle(&host), Status::Pass, "2 us");
    tree.write("/sys/devices/system/cpu/cpuidle/current_driver", "haltpoll\n");
    tree.write(VIRTUAL.0, VIRTUAL.1);
    expect(&timing::idle(&host), Status::Degraded, "hypervisor");
    tree.write("/sys/class/dmi/id/sys_vendor", "Some Cloud\n");
    expect(&timing::hypervisor(&host), Status::Degraded, "Some Cloud");
}

#[test]
fn a_host_without_files_or_with_garbage_is_examined_all_the_same() {
    let empty = Tree::new(&[]);
    by_files(&empty.host(), &CoreSet::EMPTY).iter().for_each(assert_is_complete);
    let garbage = "\u{0}\u{fffd})( -9223372036854775809 0-4294967295,,-\n\n:::";
    let tree = Tree::new(&[]);
    for path in [
        "/proc/self/status",
        "/proc/self/mounts",
        "/proc/self/limits",
        "/proc/sys/kernel/osrelease",
        "/proc/sys/kernel/version",
        "/proc/sys/kernel/sched_rt_runtime_us",
        "/proc/1/stat",
        "/proc/irq/1/effective_affinity_list",
        "/proc/interrupts",
        "/proc/config.gz",
        "/sys/devices/system/cpu/online",
        "/sys/devices/system/node/online",
        "/sys/kernel/debug/sched/preempt",
        "/sys/kernel/sched_ext/state",
    ] {
        tree.write(path, garbage);
    }
    by_files(&tree.host(), &cores("1-1023")).iter().for_each(assert_is_complete);
}
