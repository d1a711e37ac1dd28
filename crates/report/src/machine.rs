//! The facts of the machine that stand beside every figure.

use std::collections::BTreeMap;
use std::fs;

use quell_model::CoreSet;
use serde::{Deserialize, Serialize};

/// What a reader has to know of the machine to judge a figure. `unknown` where the host does not say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor, as /proc/cpuinfo names it.
    pub cpu: String,
    /// The kernel's release and build line.
    pub kernel: String,
    /// The kernel's preemption model.
    pub preemption: String,
    /// Online cores.
    pub cores: usize,
    /// Whether cores share physical ones.
    pub smt: String,
    /// NUMA nodes.
    pub nodes: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// The hypervisor under it.
    pub hypervisor: String,
    /// The frequency governor.
    pub governor: String,
    /// The cpuidle driver and governor.
    pub idle: String,
    /// The clock source.
    pub clocksource: String,
    /// Mitigations of processor flaws that are on.
    pub mitigations: Vec<String>,
    /// `kernel.sched_rt_runtime_us`.
    pub rt_runtime_us: String,
}

impl Machine {
    /// Reads the facts; what cannot be read is `unknown`.
    pub fn read() -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Machine {
            cpu: field(&cpuinfo, "model name"),
            kernel: format!(
                "{} {}",
                line("/proc/sys/kernel/osrelease"),
                line("/proc/sys/kernel/version")
            ),
            preemption: preemption(),
            cores: std::thread::available_parallelism().map_or(0, usize::from).max(online_cores()),
            smt: match line("/sys/devices/system/cpu/smt/active").as_str() {
                "1" => "on".into(),
                "0" => "off".into(),
                other => other.into(),
            },
            nodes: line("/sys/devices/system/node/online")
                .parse::<CoreSet>()
                .map_or(1, |set| set.len()),
            memory_mib: field(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), "MemTotal")
                .split_whitespace()
                .next()
                .and_then(|kib| kib.parse::<u64>().ok())
                .map_or(0, |kib| kib / 1024),
            hypervisor: hypervisor(&cpuinfo),
            governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            idle: format!(
                "{} ({})",
                line("/sys/devices/system/cpu/cpuidle/current_driver"),
                line("/sys/devices/system/cpu/cpuidle/current_governor")
            ),
            clocksource: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            mitigations: mitigations(),
            rt_runtime_us: line("/proc/sys/kernel/sched_rt_runtime_us"),
        }
    }
}

/// What the machine can do, as far as it bears on the figures: `yes`, or why not.
pub fn capabilities() -> BTreeMap<String, String> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = field(&cpuinfo, "flags");
    let has = |flag: &str| flags.split(' ').any(|other| other == flag);
    let exists = |path: &str| fs::exists(path).unwrap_or(false);
    let yes_or = |yes: bool, why: &str| if yes { "yes".to_owned() } else { why.to_owned() };
    BTreeMap::from([
        ("bpf_btf".into(), yes_or(exists("/sys/kernel/btf/vmlinux"), "no kernel BTF")),
        ("pmu".into(), yes_or(exists("/sys/bus/event_source/devices/cpu"), "no hardware counters")),
        ("resctrl".into(), yes_or(has("cat_l3") || has("mba"), "the processor shows no RDT")),
        ("sched_ext".into(), yes_or(exists("/sys/kernel/sched_ext"), "not in this kernel")),
        ("modules".into(), yes_or(exists("/proc/modules"), "not in this kernel")),
        (
            "fair_server_settable".into(),
            yes_or(
                fs::read_dir("/sys/kernel/debug/sched/fair_server").is_ok(),
                "debugfs is not readable (lockdown or not mounted)",
            ),
        ),
        (
            "idle_halts".into(),
            yes_or(
                line("/sys/devices/system/cpu/cpuidle/current_driver") == "none",
                "a cpuidle driver chooses",
            ),
        ),
    ])
}

fn line(path: &str) -> String {
    match fs::read_to_string(path) {
        Ok(text) if !text.trim().is_empty() => text.trim().to_owned(),
        _ => "unknown".to_owned(),
    }
}

fn field(text: &str, name: &str) -> String {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map_or_else(|| "unknown".to_owned(), |(_, value)| value.trim().to_owned())
}

fn online_cores() -> usize {
    line("/sys/devices/system/cpu/online").parse::<CoreSet>().map_or(0, |set| set.len())
}

/// The boot line names it, unless debugfs shows the one chosen at run time.
fn preemption() -> String {
    let chosen = fs::read_to_string("/sys/kernel/debug/sched/preempt").unwrap_or_default();
    if let Some((_, rest)) = chosen.split_once('(')
        && let Some((model, _)) = rest.split_once(')')
    {
        return model.to_owned();
    }
    let version = line("/proc/sys/kernel/version");
    let model = version.split_whitespace().find(|word| word.starts_with("PREEMPT"));
    model.unwrap_or("none").to_owned()
}

fn hypervisor(cpuinfo: &str) -> String {
    let flags = field(cpuinfo, "flags");
    if !flags.split(' ').any(|flag| flag == "hypervisor") {
        return "none".to_owned();
    }
    match line("/sys/class/dmi/id/sys_vendor").as_str() {
        "unknown" => line("/sys/hypervisor/type").replace("unknown", "yes, unnamed"),
        vendor => vendor.to_owned(),
    }
}

fn mitigations() -> Vec<String> {
    let Ok(folder) = fs::read_dir("/sys/devices/system/cpu/vulnerabilities") else {
        return Vec::new();
    };
    let mut on: Vec<String> = folder
        .flatten()
        .filter_map(|entry| {
            let text = fs::read_to_string(entry.path()).ok()?;
            let what = text.trim().strip_prefix("Mitigation: ")?.to_owned();
            Some(format!("{}: {what}", entry.file_name().to_string_lossy()))
        })
        .collect();
    on.sort_unstable();
    on
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_kernel_and_cores() {
        let machine = Machine::read();
        assert!(machine.cores >= 1);
        assert!(machine.memory_mib > 0);
        assert_ne!(machine.kernel, "unknown unknown");
        assert!(!capabilities().is_empty());
    }

    #[test]
    fn a_missing_fact_is_unknown() {
        assert_eq!(line("/proc/there-is-no-such-file"), "unknown");
        assert_eq!(field("a : b", "c"), "unknown");
    }
}
