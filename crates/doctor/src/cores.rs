//! Cores: which ones Quell would manage, and what they share.

use quell_model::{Core, CoreSet};

use super::finding::{Check, Finding, Topic};
use super::host::Host;

const CPU: &str = "/sys/devices/system/cpu";

/// The cores that Quell would manage now if it were not told which.
pub(super) fn default_managed(host: &Host) -> CoreSet {
    let managed = host.topology().map(|topology| topology.default_managed());
    managed.unwrap_or_default().intersection(&host.online())
}

/// The managed cores.
pub(super) fn managed(host: &Host, cores: &CoreSet) -> Finding {
    let check = Check { id: "managed", topic: Topic::Cores, title: "Managed cores" };
    let online = host.online();
    let allowed = host.own_status("Cpus_allowed_list").and_then(|list| list.parse().ok());
    let allowed: CoreSet = allowed.unwrap_or(online);
    let shown = format!("{cores} of {online} ({} of {})", cores.len(), online.len());
    let finding = if cores.is_empty() {
        check.absent(
            format!("none of {online}"),
            "there is nothing to manage: the lowest physical core is left to the rest of the host",
            "use a machine with two physical cores, or name the cores (`managed = \"1\"` under [host])",
        )
    } else if !cores.is_subset(&online) {
        check.absent(
            format!("{}: not online", cores.difference(&online)),
            "a core that is offline cannot be managed",
            format!("choose from the online cores {online}"),
        )
    } else if *cores == online {
        check.absent(
            shown,
            "Quell refuses it: one core at least is never managed, so that the host stays reachable",
            format!("leave out one of {online}"),
        )
    } else if !cores.is_subset(&allowed) {
        check.degraded(
            shown,
            format!("this process may only use {allowed}: threads cannot be put on the others"),
            "run it in a cpuset with all managed cores, and without taskset",
        )
    } else if cores.len() == 1 {
        check.degraded(
            shown,
            "one core is shared by all tasks, by priority; there is none to move, and the scheduler \
             runs in the shared pattern",
            "use a machine with more cores for more than one latency-critical core",
        )
    } else {
        check.pass(
            shown,
            "Quell moves these between tasks; the others stay with the rest of the host",
        )
    };
    let isolated = host.cores(&format!("{CPU}/isolated")).unwrap_or_default().intersection(cores);
    let finding = finding.seen(format!("{CPU}/online"), online);
    if isolated.is_empty() {
        return finding;
    }
    finding.seen(
        format!("{CPU}/isolated"),
        format_args!("{isolated}: the kernel does not balance these"),
    )
}

/// Hyperthreads.
pub(super) fn siblings(host: &Host) -> Finding {
    let check = Check { id: "smt", topic: Topic::Cores, title: "Hyperthreads" };
    let topology = host.topology();
    let widest = topology.as_ref().map_or(1, |topology| {
        let threads = |core: &Core| topology.siblings(core.id).len() + 1;
        topology.cores().iter().map(threads).max().unwrap_or(1)
    });
    let control = host.read(&format!("{CPU}/smt/control")).unwrap_or_else(|_| "not there".into());
    let finding = if widest > 1 {
        check.pass(
            format!("{widest} threads on a physical core"),
            "Quell counts a busy sibling against a core when it chooses one",
        )
    } else if is_virtual(host) {
        check.degraded(
            "none shown, but this is a virtual machine",
            "the hypervisor may run another core, or another guest, on the sibling of a managed core: \
             Quell cannot see or avoid it",
            "ask for a machine that shows its topology, or for whole physical cores",
        )
    } else {
        check.pass("none", "no two cores share a physical core")
    };
    finding.seen(format!("{CPU}/smt/control"), control)
}

/// Whether the processor says that it is virtual.
pub(super) fn is_virtual(host: &Host) -> bool {
    let info = host.text("/proc/cpuinfo");
    let flags = info.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    flags.split_whitespace().any(|flag| flag == "hypervisor") || host.has("/sys/hypervisor/type")
}

/// NUMA nodes.
pub(super) fn nodes(host: &Host) -> Finding {
    let check = Check { id: "numa", topic: Topic::Cores, title: "NUMA" };
    let file = "/sys/devices/system/node/online";
    let list = host.text(file);
    // Node numbers read as core lists do.
    let count = list.parse::<CoreSet>().map_or(1, |nodes| nodes.len().max(1));
    let balancing = host.text("/proc/sys/kernel/numa_balancing");
    let finding = if count == 1 {
        check.pass("one node", "all memory is equally near")
    } else if matches!(balancing.as_str(), "" | "0") {
        check.pass(
            format!("{count} nodes"),
            "Quell prefers cores of the node where a task already runs",
        )
    } else {
        check.degraded(
            format!("{count} nodes, and the kernel moves memory between them"),
            "its page faults, taken to find out which node uses a page, delay latency-critical threads",
            "sysctl -w kernel.numa_balancing=0",
        )
    };
    finding.seen(file, list).seen("/proc/sys/kernel/numa_balancing", balancing)
}
