//! What this process may do.

use std::path::Path;

use rustix::fs::Access;

use super::finding::{Check, Finding, Topic};
use super::host::Host;

/// A capability, by its bit (include/uapi/linux/capability.h).
#[derive(Clone, Copy)]
pub(super) struct Capability(u32);

pub(super) const CAP_SYS_NICE: Capability = Capability(23);
pub(super) const CAP_SYS_ADMIN: Capability = Capability(21);
const CAP_IPC_LOCK: Capability = Capability(14);
const CAP_SYS_RESOURCE: Capability = Capability(24);
const CAP_PERFMON: Capability = Capability(38);
const CAP_BPF: Capability = Capability(39);

/// What Quell maps and locks at most: thread slots, ring buffer and journal.
const LOCKED_BYTES: u64 = 64 << 20;

/// Whether a capability is in the effective set of this process.
pub(super) fn has_capability(host: &Host, capability: Capability) -> bool {
    let mask = host.own_status("CapEff").and_then(|hex| u64::from_str_radix(&hex, 16).ok());
    mask.is_some_and(|mask| mask >> capability.0 & 1 == 1)
}

/// The capabilities, each with what hangs on it.
pub(super) fn capabilities(host: &Host) -> Vec<Finding> {
    let has = |capability| has_capability(host, capability);
    // CAP_SYS_ADMIN stands for the newer two (capabilities(7)).
    let bpf = has(CAP_SYS_ADMIN) || (has(CAP_BPF) && has(CAP_PERFMON));
    let items = [
        (
            "cap_sys_nice",
            "CAP_SYS_NICE",
            has(CAP_SYS_NICE),
            "priorities and affinities of other processes can be set",
            "no thread can be raised: Quell can only show what it would do (--dry-run)",
        ),
        (
            "cap_ipc_lock",
            "CAP_IPC_LOCK",
            has(CAP_IPC_LOCK),
            "the scheduler's memory can be locked",
            "page faults may delay the scheduler under memory pressure",
        ),
        (
            "cap_bpf",
            "CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN",
            bpf,
            "the BPF observer may load",
            "Quell reads /proc once a tick instead: waits shorter than a tick show only as a sum",
        ),
        (
            "cap_sys_resource",
            "CAP_SYS_RESOURCE",
            has(CAP_SYS_RESOURCE),
            "limits on locked memory and open files can be raised, and the guardians kept from the OOM killer",
            "limits stay as they are, and the OOM killer may take a guardian (the other one restores)",
        ),
    ];
    let effective = host.own_status("CapEff").unwrap_or_else(|| "unreadable".into());
    items
        .into_iter()
        .map(|(id, name, there, good, bad)| {
            let check = Check { id, topic: Topic::Rights, title: name };
            let finding = if there {
                check.pass("held", good)
            } else if id == "cap_sys_nice" {
                check.absent("not held", bad, "run as root")
            } else {
                let remedy = format!(
                    "run as root with {name} in the bounding set (a container may drop it)"
                );
                check.degraded("not held", bad, remedy)
            };
            finding.seen("/proc/self/status CapEff", &effective)
        })
        .collect()
}

/// The limit on locked memory.
pub(super) fn locked_memory(host: &Host) -> Finding {
    let check = Check { id: "memlock", topic: Topic::Rights, title: "Locked memory" };
    let limits = host.text("/proc/self/limits");
    let line = limits.lines().find(|line| line.starts_with("Max locked memory"));
    let soft = line.and_then(|line| line.split_whitespace().nth(3)).unwrap_or("unreadable");
    let enough =
        soft == "unlimited" || soft.parse::<u64>().is_ok_and(|bytes| bytes >= LOCKED_BYTES);
    let finding = if enough {
        check.pass(format!("limit {soft}"), "the scheduler's memory can be locked")
    } else if has_capability(host, CAP_IPC_LOCK) {
        check.pass(
            format!("limit {soft} bytes, which CAP_IPC_LOCK lifts"),
            "the scheduler's memory can be locked",
        )
    } else {
        check.degraded(
            format!("limit {soft} bytes"),
            "page faults may delay the scheduler under memory pressure",
            "run as root, or raise it: ulimit -l unlimited (in a unit: LimitMEMLOCK=infinity)",
        )
    };
    finding.seen("/proc/self/limits Max locked memory", soft)
}

/// The run directory, which holds journal and control socket.
pub(super) fn run_directory(host: &Host, directory: &Path) -> Finding {
    let check = Check { id: "run_dir", topic: Topic::Rights, title: "Run directory" };
    let path = directory.display();
    let kind = host.filesystem_of(&path.to_string()).unwrap_or_else(|| "unknown".into());
    // It is made when it is first needed; until then the nearest directory above decides.
    let absolute = directory.ancestors().filter(|at| at.is_absolute());
    let existing = absolute.map(|at| host.path(&at.to_string_lossy())).find(|at| at.is_dir());
    let access = Access::WRITE_OK | Access::EXEC_OK;
    let writable = existing.is_some_and(|at| rustix::fs::access(at, access).is_ok());
    let finding = if !writable {
        check.absent(
            format!("{path} cannot be written to"),
            "nothing can be changed: each change is saved in the journal there first",
            "run as root, or name a directory on a tmpfs in QUELL_RUN_DIR",
        )
    } else if kind == "tmpfs" || kind == "ramfs" {
        check.pass(
            format!("{path}, on {kind}"),
            "the journal is written without a disk, and a reboot clears it with the changes",
        )
    } else {
        check.degraded(
            format!("{path}, on {kind}"),
            "the journal may wait for the disk, and outlives a reboot that has undone the changes",
            "name a directory on a tmpfs in QUELL_RUN_DIR",
        )
    };
    finding.seen("/proc/self/mounts", format_args!("{path} is on {kind}"))
}
