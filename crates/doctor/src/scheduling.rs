//! Real-time scheduling, and what in the kernel limits it.

use std::io;
use std::path::Path;

use quell_model::Rung;

use quell_act::Ladder;
use quell_act::backend::{has_rt_groups, throttles};

use super::finding::{Check, Finding, Topic};
use super::host::Host;
use super::rights::{CAP_SYS_NICE, has_capability};
use quell_act::RtTry;

const RT_RUNTIME: &str = "/proc/sys/kernel/sched_rt_runtime_us";
const RT_PERIOD: &str = "/proc/sys/kernel/sched_rt_period_us";
const PREEMPT: &str = "/sys/kernel/debug/sched/preempt";

/// SCHED_FIFO, tried by a child in this process' own cgroup.
pub(super) fn realtime_here(host: &Host, tried: &RtTry) -> Finding {
    let check = Check { id: "realtime", topic: Topic::Scheduling, title: "Real-time here" };
    let cgroup = host.text("/proc/self/cgroup").lines().map(cgroup_of_cpu).max();
    let cgroup = cgroup.map_or_else(|| "/".to_owned(), |(_, path)| path);
    realtime(&check, host, tried, &format!("this command's cgroup `{cgroup}`"), None)
}

/// Ranks a line of `/proc/PID/cgroup`: the v1 hierarchy with the cpu controller decides over RT, else
/// the unified one.
fn cgroup_of_cpu(line: &str) -> (u8, String) {
    let mut parts = line.splitn(3, ':').skip(1);
    let controllers = parts.next().unwrap_or_default();
    let path = parts.next().unwrap_or("/").to_owned();
    let rank = match controllers {
        _ if controllers.split(',').any(|name| name == "cpu") => 2,
        "" => 1,
        _ => 0,
    };
    (rank, path)
}

/// SCHED_FIFO, tried by a child that enters the cgroup of a task-to-be.
pub(super) fn realtime_there(host: &Host, cgroup: &Path, tried: &RtTry) -> Finding {
    let check = Check {
        id: "realtime_target",
        topic: Topic::Scheduling,
        title: "Real-time in the target cgroup",
    };
    realtime(&check, host, tried, &format!("`{}`", cgroup.display()), Some(cgroup))
}

fn realtime(
    check: &Check,
    host: &Host,
    tried: &RtTry,
    place: &str,
    target: Option<&Path>,
) -> Finding {
    let lost = "threads of tasks in it cannot be raised above batch work: Quell refuses such a task, \
                or runs the cpuset back end, which moves cores but cannot share one";
    let finding = match tried {
        RtTry::Granted => check.pass(
            format!("a child got SCHED_FIFO in {place}"),
            "Quell can raise latency-critical threads above batch work there",
        ),
        RtTry::Refused(error) => check.absent(
            format!("a child was refused SCHED_FIFO in {place}: {error}"),
            lost,
            refused_remedy(host, target),
        ),
        RtTry::Shut(error) => check.degraded(
            format!("a child could not enter {place}: {error}"),
            "unknown: whether its threads may be raised could not be tried",
            "run as root, and name a cgroup directory that exists and takes processes (a leaf, in cgroup v2)",
        ),
        RtTry::Stuck => check.absent(
            format!("a child that entered {place} was not run within 2 s"),
            "a task in it would not run either: the cgroup is frozen or has used up its CPU time",
            "thaw it (`echo 0 > cgroup.freeze`, v1: `echo THAWED > freezer.state`) or raise its CPU quota",
        ),
        RtTry::Untried(error) => check.degraded(
            format!("no child could be started to try it: {error}"),
            "unknown: whether threads may be raised could not be tried",
            "raise the limit on processes (`ulimit -u`, pids.max)",
        ),
    };
    finding.seen("sched_setscheduler(SCHED_FIFO, 1)", format_args!("{tried:?}"))
}

fn refused_remedy(host: &Host, target: Option<&Path>) -> String {
    if !has_capability(host, CAP_SYS_NICE) {
        return "run as root, or give the command CAP_SYS_NICE".into();
    }
    let budget = target.map(|path| path.join("cpu.rt_runtime_us")).filter(|path| path.exists());
    let lift = "lift the limit for the whole host: sysctl -w kernel.sched_rt_runtime_us=-1";
    match budget {
        Some(file) => {
            format!("give the cgroup a budget: echo 500000 > {}; or {lift}", file.display())
        }
        None => format!(
            "the kernel has RT group scheduling and gives this cgroup no budget: {lift}; or boot with \
             rt_group_sched=0 (kernel 6.15 and later); in a container also allow sched_setscheduler"
        ),
    }
}

/// The priorities that Quell's rungs would get beside the real-time threads that are there already.
pub(super) fn ladder(fitted: &io::Result<Ladder>) -> Finding {
    let check = Check { id: "ladder", topic: Topic::Scheduling, title: "Priorities in use" };
    let ladder = match fitted {
        Ok(ladder) => ladder,
        Err(error) => {
            return check
                .absent(
                    format!("no room for Quell's rungs: {error}"),
                    "no thread can be raised without standing above or below others by accident",
                    "lower the priority of the real-time threads named (chrt), or use `backend = \"cpuset\"`",
                )
                .seen("/proc/PID/task/TID/stat", error);
        }
    };
    let rungs = [Rung::Guardian, Rung::Scheduler, Rung::Softirq, Rung::Lc, Rung::LcOverflow];
    let shown: Vec<_> = rungs
        .into_iter()
        .filter_map(|rung| Some(format!("{rung} {}", ladder.priority(rung)?)))
        .collect();
    check
        .pass(
            format!("Quell's rungs fit between them: {}", shown.join(", ")),
            "no other real-time thread shares a priority with Quell's",
        )
        .seen("/proc/PID/task/TID/stat", shown.join(", "))
}

/// RT throttling (Documentation/scheduler/sched-rt-group.rst).
pub(super) fn throttling(host: &Host) -> Finding {
    let check =
        Check { id: "rt_throttling", topic: Topic::Scheduling, title: "Real-time throttling" };
    let (Some(runtime), Some(period)) =
        (host.number::<i64>(RT_RUNTIME), host.number::<i64>(RT_PERIOD))
    else {
        return check
            .degraded(
                "its limit could not be read",
                "unknown: real-time threads may be stopped for part of each second",
                format!("make {RT_RUNTIME} readable (is /proc mounted?)"),
            )
            .seen(RT_RUNTIME, "unreadable");
    };
    let (kernel, layout) = (host.kernel(), host.layout());
    let groups = match has_rt_groups(&kernel, &layout) {
        Some(true) => "with RT group scheduling",
        Some(false) => "without RT group scheduling",
        None => "RT group scheduling unknown",
    };
    let finding = if runtime < 0 || runtime >= period {
        check.pass(
            format!("off ({groups})"),
            "the kernel never stops raised threads; Quell bounds a runaway one itself",
        )
    } else if !throttles(&kernel, &layout) {
        check.pass(
            format!("{runtime} of {period} us, which bounds SCHED_DEADLINE alone on this kernel"),
            "it does not stop raised threads",
        )
    } else if host.may_write(RT_RUNTIME).is_ok() {
        check.pass(
            format!("{runtime} of {period} us ({groups}), and can be turned off"),
            "LC threads leave a tenth of each core, so it does not stop them; Quell turns it off only where a \
             lane or its own scheduler thread fills a core by design, or its configuration says so",
        )
    } else {
        check.degraded(
            format!("{runtime} of {period} us ({groups}), and cannot be turned off"),
            format!(
                "where raised threads keep a core busy the kernel stops them all for {} ms of each {} ms",
                (period - runtime) / 1000,
                period / 1000
            ),
            "run as root with /proc/sys mounted for writing, or: sysctl -w kernel.sched_rt_runtime_us=-1",
        )
    };
    finding.seen(RT_RUNTIME, runtime).seen(RT_PERIOD, period)
}

pub(super) fn is_root(host: &Host) -> bool {
    let uids = host.own_status("Uid").unwrap_or_default();
    uids.split_whitespace().nth(1) == Some("0")
}

/// When a waking real-time thread takes a core from a thread that is inside the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Preemption {
    /// When that leaves the kernel or blocks.
    None,
    /// At its voluntary points as well, if the kernel has them.
    Voluntary,
    /// At once. Lazy preemption is no different for a real-time thread.
    AtOnce,
}

/// The kernel's preemption model.
pub(super) fn preemption(host: &Host) -> Finding {
    let check = Check { id: "preemption", topic: Topic::Scheduling, title: "Kernel preemption" };
    let Some((model, name, source)) = preemption_model(host) else {
        return check
            .degraded(
                "the model could not be found out",
                "unknown: batch work inside the kernel (page faults, file writes) may delay \
                 latency-critical threads by up to milliseconds",
                "run as root with debugfs mounted, or boot with preempt=full",
            )
            .seen("/proc/sys/kernel/version", host.text("/proc/sys/kernel/version"));
    };
    let remedy = if host.text("/proc/sys/kernel/version").contains("PREEMPT_DYNAMIC") {
        if host.may_write(PREEMPT).is_ok() {
            format!("echo full > {PREEMPT}, or boot with preempt=full")
        } else {
            "boot with preempt=full".to_owned()
        }
    } else {
        "boot a kernel that is built with CONFIG_PREEMPT_DYNAMIC, with preempt=full".to_owned()
    };
    let delays = |how: &str| {
        format!(
            "batch work inside the kernel (page faults, file writes, large unmaps) {how}: it delays \
             latency-critical threads by up to milliseconds; Quell measures this and moves such work off"
        )
    };
    let finding = match model {
        Preemption::AtOnce => {
            check.pass(name, "a waking latency-critical thread takes its core at once")
        }
        Preemption::None => check.degraded(name, delays("is not preempted"), remedy),
        Preemption::Voluntary => {
            check.degraded(name, delays("is preempted only at certain points, if at all"), remedy)
        }
    };
    finding.seen(source.0, source.1)
}

/// The file that names the preemption model, and what it says.
type Source = (String, String);

/// The model, its name, and what says so, the most reliable first.
fn preemption_model(host: &Host) -> Option<(Preemption, String, Source)> {
    const VERSION: &str = "/proc/sys/kernel/version";
    let found = |name: &str, source: &str, value: &str| {
        Some((by_name(name)?, name.to_owned(), (source.to_owned(), value.to_owned())))
    };
    let list = host.text(PREEMPT);
    if let Some((_, rest)) = list.split_once('(') {
        return found(rest.split(')').next().unwrap_or_default(), PREEMPT, &list);
    }
    let version = host.text(VERSION);
    if version.contains("PREEMPT_RT") {
        return found("full", VERSION, &version);
    }
    let dynamic = version.contains("PREEMPT_DYNAMIC");
    if let Some(name) = host.kernel().boot_parameter("preempt").filter(|_| dynamic) {
        return found(&name, "/proc/cmdline", &format!("preempt={name}"));
    }
    for (option, name) in [
        ("PREEMPT_NONE", "none"),
        ("PREEMPT_VOLUNTARY", "voluntary"),
        ("PREEMPT_LAZY", "lazy"),
        ("PREEMPT", "full"),
    ] {
        if let Some((true, source)) = host.kernel().config(option) {
            return found(name, &source, &format!("CONFIG_{option}=y"));
        }
    }
    // Without the configuration a kernel that cannot choose still names itself, if it is preemptible.
    match (dynamic, version.split_whitespace().any(|word| word == "PREEMPT")) {
        (false, true) => found("full", VERSION, &version),
        (false, false) if !version.is_empty() => found("none or voluntary", VERSION, &version),
        _ => None,
    }
}

fn by_name(name: &str) -> Option<Preemption> {
    match name {
        "none" => Some(Preemption::None),
        "voluntary" | "none or voluntary" => Some(Preemption::Voluntary),
        "full" | "lazy" => Some(Preemption::AtOnce),
        _ => None,
    }
}
