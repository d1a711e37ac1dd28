//! Softirq and interrupt threads, and interrupts on managed cores.

use quell_model::{CoreId, CoreSet};

use super::finding::{Check, Finding, Topic};
use super::host::{Host, KernelThread};
use super::rights::{CAP_SYS_NICE, has_capability};
use super::scheduling::is_root;

/// How many interrupts a finding names.
const NAMED_MAX: usize = 4;

fn policy(thread: &KernelThread) -> String {
    match thread.policy as i32 {
        libc::SCHED_FIFO => format!("SCHED_FIFO {}", thread.rt_priority),
        libc::SCHED_RR => format!("SCHED_RR {}", thread.rt_priority),
        libc::SCHED_OTHER => "SCHED_OTHER".into(),
        other => format!("policy {other}"),
    }
}

/// The core of a per-core kernel thread, from its name (`ksoftirqd/3`).
fn core_of(thread: &KernelThread) -> Option<CoreId> {
    thread.name.rsplit_once('/')?.1.parse().ok().map(CoreId)
}

fn cores_of(threads: &[&KernelThread]) -> CoreSet {
    threads.iter().filter_map(|thread| core_of(thread)).collect()
}

/// ksoftirqd of the managed cores, which takes packets and timers when there are many.
pub(super) fn softirq(host: &Host, managed: &CoreSet) -> Finding {
    let check = Check { id: "ksoftirqd", topic: Topic::Interrupts, title: "ksoftirqd" };
    let on_managed =
        |thread: &KernelThread| core_of(thread).is_some_and(|core| managed.contains(core));
    let threads: Vec<_> =
        host.kernel_threads("ksoftirqd/").into_iter().filter(on_managed).collect();
    let (raised, plain): (Vec<_>, Vec<_>) =
        threads.iter().partition(|thread| thread.rt_priority > 0);
    let starve = "packets and timers of a managed core wait while a raised thread is busy there: its \
                  tail latency then comes from the network";
    let finding = if threads.is_empty() {
        check.degraded(
            "not found",
            "unknown: its threads are not in this process' view of /proc",
            "run in the host's pid namespace, with /proc mounted without hidepid",
        )
    } else if plain.is_empty() {
        check.pass(
            format!("real-time on cores {}", cores_of(&raised)),
            "packets and timers are served beside raised threads, if their priority is higher",
        )
    } else if has_capability(host, CAP_SYS_NICE) {
        check.pass(
            format!("{} on cores {}, and may be raised", policy(plain[0]), cores_of(&plain)),
            "its rung is above that of latency-critical threads, so that packets and timers do not starve",
        )
    } else {
        check.degraded(
            format!("{} on cores {}, and may not be raised", policy(plain[0]), cores_of(&plain)),
            starve,
            "run as root",
        )
    };
    let values: Vec<_> = threads
        .iter()
        .take(NAMED_MAX)
        .map(|thread| format!("{} {}", thread.name, policy(thread)))
        .collect();
    finding.seen("/proc/PID/stat", values.join(", "))
}

/// Interrupt threads and their priorities.
pub(super) fn threads(host: &Host) -> Finding {
    let check = Check { id: "irq_threads", topic: Topic::Interrupts, title: "Interrupt threads" };
    let threads = host.kernel_threads("irq/");
    let lowest = threads.iter().min_by_key(|thread| thread.rt_priority);
    let values: Vec<_> = threads
        .iter()
        .take(NAMED_MAX)
        .map(|thread| format!("{} {}", thread.name, policy(thread)))
        .collect();
    let finding = match lowest {
        None => check.pass("none", "interrupts are handled without threads, before any thread"),
        Some(lowest) if lowest.rt_priority > 0 => check.pass(
            format!("{}, the lowest at {}", threads.len(), policy(lowest)),
            "they are real-time already; Quell keeps its rung for latency-critical threads below them",
        ),
        Some(lowest) => check.degraded(
            format!("{} is at {}", lowest.name, policy(lowest)),
            "the device that it serves waits while a raised thread is busy on its core",
            format!("chrt -f -p 50 $(pgrep -f {})", lowest.name),
        ),
    };
    finding.seen("/proc/PID/stat", values.join(", "))
}

/// Interrupts that the managed cores handle.
pub(super) fn placement(host: &Host, managed: &CoreSet) -> Finding {
    let check = Check {
        id: "irq_placement",
        topic: Topic::Interrupts,
        title: "Interrupts on managed cores",
    };
    let mut hits: Vec<(u64, String)> = host
        .list("/proc/irq")
        .into_iter()
        .filter(|number| number.parse::<u32>().is_ok())
        .filter_map(|number| handled_by(host, &number, managed))
        .collect();
    hits.sort_by(|a, b| b.cmp(a));
    let busy = hits.iter().filter(|(count, _)| *count > 0).count();
    let names: Vec<_> =
        hits.iter().take(NAMED_MAX).map(|(count, name)| format!("{name}: {count}")).collect();
    let finding = if !host.has("/proc/irq") {
        check.degraded(
            "could not be read",
            "unknown: devices may interrupt latency-critical threads",
            "mount /proc with its irq directory (containers hide it)",
        )
    } else if busy == 0 {
        check.pass("none that fired", "no device interrupts latency-critical threads")
    } else if is_root(host) && !host.runs("irqbalance") {
        check.pass(
            format!("{busy} that fired, most often {}", names.join(", ")),
            "Quell moves those that can be moved to unmanaged cores while it runs",
        )
    } else {
        let remedy = if is_root(host) {
            "stop irqbalance while Quell runs: it moves them back"
        } else {
            "run as root: Quell then moves them to unmanaged cores"
        };
        check.degraded(
            format!("{busy} that fired, most often {}", names.join(", ")),
            "each of them stops the thread that runs for some microseconds, and brings its softirq work \
             to that core",
            remedy,
        )
    };
    finding.seen("/proc/irq/*/effective_affinity_list", names.join(", "))
}

/// An interrupt that managed cores handle: how often it fired there, and its name.
fn handled_by(host: &Host, number: &str, managed: &CoreSet) -> Option<(u64, String)> {
    let directory = format!("/proc/irq/{number}");
    let cores = host
        .cores(&format!("{directory}/effective_affinity_list"))
        .filter(|cores| !cores.is_empty())
        .or_else(|| host.cores(&format!("{directory}/smp_affinity_list")))?;
    if cores.intersection(managed).is_empty() {
        return None;
    }
    // A directory with the handler's name is there as long as one is registered.
    let is_handler = |name: &String| host.path(&format!("{directory}/{name}")).is_dir();
    let name = host.list(&directory).into_iter().find(is_handler)?;
    Some((fired(host, number, managed), format!("{number} {name}")))
}

/// How often an interrupt fired on managed cores, from `/proc/interrupts`.
fn fired(host: &Host, number: &str, managed: &CoreSet) -> u64 {
    let table = host.text("/proc/interrupts");
    let mut lines = table.lines();
    let header = lines.next().unwrap_or_default();
    let columns: Vec<Option<u16>> =
        header.split_whitespace().map(|name| name.strip_prefix("CPU")?.parse().ok()).collect();
    let row = lines.find_map(|line| line.trim_start().strip_prefix(number)?.strip_prefix(':'));
    let counts = row.unwrap_or_default().split_whitespace().map(str::parse::<u64>);
    let on_managed = columns.iter().zip(counts).filter_map(|(core, count)| {
        core.filter(|&core| managed.contains(CoreId(core)))?;
        count.ok()
    });
    on_managed.sum()
}
