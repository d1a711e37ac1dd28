//! What Quell can see of threads and hardware, and which further back ends could run.

use std::io;

use super::finding::{Check, Finding, Topic};
use super::host::Host;
use quell_observe::ObserveError;
use quell_observe::memory::Sources;

const COARSE: &str =
    "Quell reads /proc once a tick instead: waits shorter than a tick show only as a sum";

/// BPF, by the observer's programs, which were really loaded and attached.
pub(super) fn bpf(tried: &Result<(), ObserveError>) -> Finding {
    let check = Check { id: "bpf", topic: Topic::Signals, title: "BPF observer" };
    let source = "bpf(BPF_PROG_LOAD), bpf(BPF_LINK_CREATE)";
    let error = match tried {
        Ok(()) => {
            return check
                .pass(
                    "its programs were loaded and attached to the scheduler's tracepoints",
                    "every wait and run of a managed thread is seen as it happens",
                )
                .seen(source, "ok");
        }
        Err(error) => error,
    };
    let errno = match error {
        ObserveError::Kernel { source, .. } => source.raw_os_error(),
        _ => None,
    };
    let remedy = match errno {
        Some(libc::EPERM | libc::EACCES) => {
            "run as root (or with CAP_BPF and CAP_PERFMON), outside of kernel lockdown `confidentiality`"
        }
        Some(libc::ENOSYS) => "boot a kernel with CONFIG_BPF_SYSCALL and CONFIG_BPF_EVENTS",
        _ => "boot kernel 5.15 or later with CONFIG_BPF_EVENTS and CONFIG_DEBUG_INFO_BTF",
    };
    check.absent(format!("refused: {error}"), COARSE, remedy).seen(source, error)
}

/// The kernel's own type information, by which BPF programs fit themselves to it.
pub(super) fn btf(host: &Host) -> Finding {
    let check = Check { id: "btf", topic: Topic::Signals, title: "Kernel types (BTF)" };
    let file = "/sys/kernel/btf/vmlinux";
    let finding = if host.has(file) {
        check.pass("there", "the BPF programs fit themselves to this kernel")
    } else {
        check.absent("not there", COARSE, "boot a kernel with CONFIG_DEBUG_INFO_BTF")
    };
    let size = std::fs::metadata(host.path(file));
    finding
        .seen(file, size.map_or_else(|error| error.to_string(), |at| format!("{} bytes", at.len())))
}

/// The file system of tracepoints.
pub(super) fn tracefs(host: &Host) -> Finding {
    let check = Check { id: "tracefs", topic: Topic::Signals, title: "tracefs" };
    let mounted = host.mount_of("tracefs");
    let known = host.text("/proc/filesystems").lines().any(|line| line.ends_with("\ttracefs"));
    let consequence = "only looking closer at a delay by hand needs it (trace-cmd, perf trace); Quell \
                       itself does not";
    match mounted {
        Some(target) => check
            .pass(format!("mounted on {target}"), consequence)
            .seen("/proc/self/mounts", target),
        None if known => check
            .degraded("not mounted", consequence, "mount -t tracefs tracefs /sys/kernel/tracing")
            .seen("/proc/filesystems", "tracefs"),
        None => check
            .absent("the kernel has none", consequence, "boot a kernel with CONFIG_FTRACE")
            .seen("/proc/filesystems", "no tracefs"),
    }
}

/// pidfds of threads.
pub(super) fn thread_identity(tried: &io::Result<()>) -> Finding {
    let check = Check { id: "pidfd", topic: Topic::Signals, title: "Identity of threads" };
    match tried {
        Ok(()) => check
            .pass("pidfds of threads", "a thread is never mistaken for a later one with its number")
            .seen("pidfd_open(PIDFD_THREAD)", "ok"),
        Err(error) => check
            .degraded(
                format!("by start time alone: {error}"),
                "two threads with one number that start within the same 10 ms cannot be told apart",
                "boot kernel 6.9 or later",
            )
            .seen("pidfd_open(PIDFD_THREAD)", error),
    }
}

/// Hardware counters.
pub(super) fn counters(host: &Host, tried: &io::Result<()>) -> Finding {
    let check = Check { id: "pmu", topic: Topic::Signals, title: "Hardware counters (PMU)" };
    let blind = "cache misses of batch work are not counted, nor instructions per cycle: interference in caches \
                 and memory shows only as delay";
    let paranoid = host.read("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    let finding = match tried {
        Ok(()) => {
            check.pass("cycles can be counted", "the use of hardware by each task can be measured")
        }
        Err(error) => match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => check.degraded(
                format!("refused: {error}"),
                blind,
                "run as root, or sysctl -w kernel.perf_event_paranoid=1",
            ),
            _ => check.absent(
                format!("none: {error}"),
                blind,
                "run on bare metal, or have the hypervisor expose a virtual PMU",
            ),
        },
    };
    let answer = tried.as_ref().map_or_else(ToString::to_string, |()| "ok".into());
    finding
        .seen("perf_event_open(PERF_COUNT_HW_CPU_CYCLES)", answer)
        .seen("/proc/sys/kernel/perf_event_paranoid", paranoid)
}

/// Memory traffic, by the sources that a daemon would take.
pub(super) fn memory(found: &Sources) -> Finding {
    let (total, by_core) = found.counts();
    memory_of(total, by_core, found.estimates_total().is_some(), &found.in_words(), &found.lacks)
}

/// The same of what was found.
pub(super) fn memory_of(
    total: bool,
    by_core: bool,
    estimated: bool,
    sources: &str,
    lacks: &[String],
) -> Finding {
    let check = Check { id: "memory", topic: Topic::Signals, title: "Memory traffic" };
    let remedy = "use bare metal with resctrl mounted (mount -t resctrl resctrl /sys/fs/resctrl) and \
                  hardware counters, or name a file that tells it: [host.memory] source = \"file:PATH\"";
    let evidence = if lacks.is_empty() { "ok".to_owned() } else { lacks.join("; ") };
    let finding = match (total, by_core) {
        (true, true) if estimated => check.degraded(
            sources,
            "policy caladan has its bandwidth controller, by less than all traffic: what is written back \
             and what devices move is not counted",
            remedy,
        ),
        (true, true) => {
            check.pass(sources, "policy caladan has its bandwidth controller, which caps batch work by it")
        }
        _ => check.absent(
            if total || by_core { sources } else { "not measured" },
            "policy caladan does without its bandwidth controller, which needs the total and each core's part",
            remedy,
        ),
    };
    finding.seen("resctrl, uncore_imc, perf_event_open(PERF_COUNT_HW_CACHE_MISSES)", evidence)
}

/// Partitions of cache and memory bandwidth.
pub(super) fn resctrl(host: &Host) -> Finding {
    let check =
        Check { id: "resctrl", topic: Topic::Signals, title: "Cache and bandwidth control" };
    let without = "Quell cannot partition the last-level cache or throttle memory bandwidth: it moves \
                   or caps batch work instead";
    let known = host.text("/proc/filesystems").lines().any(|line| line.ends_with("\tresctrl"));
    if let Some(target) = host.mount_of("resctrl") {
        let kinds = host.list(&format!("{target}/info")).join(" ");
        return check
            .pass(format!("resctrl with {kinds}"), "cache and memory bandwidth can be partitioned")
            .seen(format!("{target}/info"), kinds);
    }
    if known {
        return check
            .degraded("there, not mounted", without, "mount -t resctrl resctrl /sys/fs/resctrl")
            .seen("/proc/filesystems", "resctrl");
    }
    check
        .absent(
            "the kernel or the processor has none",
            without,
            "use a processor with RDT (Intel) or QoS (AMD) on bare metal, and a kernel with \
             CONFIG_X86_CPU_RESCTRL",
        )
        .seen("/proc/filesystems", "no resctrl")
}

/// Schedulers written in BPF.
pub(super) fn sched_ext(host: &Host) -> Finding {
    let check = Check { id: "sched_ext", topic: Topic::Signals, title: "sched_ext" };
    let file = "/sys/kernel/sched_ext/state";
    match host.read(file) {
        Ok(state) if state == "disabled" => {
            check.pass("there, unused", "a back end could run on it").seen(file, state)
        }
        Ok(state) => {
            let name = host.text("/sys/kernel/sched_ext/root/ops");
            check
                .degraded(
                    format!("in use by another scheduler: {name}"),
                    "batch work is scheduled by that scheduler rather than the kernel's own; raised \
                     threads stay above it",
                    "stop it while Quell runs",
                )
                .seen(file, state)
        }
        Err(error) => check
            .absent(
                "not there",
                "no back end can run on it; elevation and cpuset need nothing of it",
                "boot kernel 6.12 or later with CONFIG_SCHED_CLASS_EXT, should a back end need it",
            )
            .seen(file, error),
    }
}

/// Loadable kernel modules.
pub(super) fn modules(host: &Host) -> Finding {
    let check = Check { id: "modules", topic: Topic::Signals, title: "Kernel modules" };
    let without = "no kernel module can serve as a back end; elevation and cpuset need none";
    let disabled = host.text("/proc/sys/kernel/modules_disabled") == "1";
    let barred = host.text("/proc/cmdline").split_whitespace().any(|word| word == "nomodule");
    let signed = host.text("/sys/module/module/parameters/sig_enforce") == "Y";
    let headers = format!("/lib/modules/{}/build", host.kernel().release());
    if !host.has("/proc/modules") {
        check
            .absent(
                "this kernel takes none",
                without,
                "boot a kernel with CONFIG_MODULES, should a back end need it",
            )
            .seen("/proc/modules", "not there")
    } else if disabled || barred {
        check
            .absent(
                "loading is turned off",
                without,
                "boot without nomodule, and leave kernel.modules_disabled at 0",
            )
            .seen("/proc/sys/kernel/modules_disabled", u8::from(disabled))
    } else if signed {
        check
            .degraded(
                "only signed ones load",
                without,
                "sign the module with an enrolled key, or turn secure boot off",
            )
            .seen("/sys/module/module/parameters/sig_enforce", "Y")
    } else if !host.has(&headers) {
        check
            .degraded(
                "they load, but this kernel's headers are missing",
                "a module could not be built here; elevation and cpuset need none",
                format!("apt-get install linux-headers-{}", host.kernel().release()),
            )
            .seen(headers, "not there")
    } else {
        check
            .pass("they load, and headers are there", "a module could serve as a back end")
            .seen(headers, "there")
    }
}
