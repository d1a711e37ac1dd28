//! Whether the kernel's RT throttling is switched off, and why.
//!
//! Where LC leaves a tenth of each core by itself (roles of threads), throttling at 95 % never acts, and a setting of
//! the whole host is better left alone.

use std::fmt;

use quell_act::backend::{Layout, has_rt_budgets};
use quell_control::config::{BackEndKind, HostConfig, Source, TaskConfig, Throttling};

use crate::engine::Pace;

/// Why it is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyOff {
    /// The configuration says so.
    Configured,
    /// The scheduler thread spins.
    Dedicated,
    /// A lane or a runtime orders its threads itself and may fill a core with them.
    FillsCores,
    /// Nothing keeps LC from filling a core: bursts are not seen, or the policy gives no roles to threads.
    NoRoles,
    /// Cgroups of version 1 have real-time budgets (RT_GROUP_SCHED), as a rule none: services in them could not be raised.
    Budgets,
}

impl fmt::Display for WhyOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WhyOff::Configured => "configured",
            WhyOff::Dedicated => "the scheduler thread fills its core",
            WhyOff::FillsCores => "lanes and runtimes may fill their cores",
            WhyOff::NoRoles => {
                "without BPF, or under another policy than `quell`, services may fill their cores"
            }
            WhyOff::Budgets => "cgroups have real-time budgets here",
        })
    }
}

/// Whether threads have roles (`quell_policy::roles`), so that LC leaves a tenth of each core by itself.
pub fn has_roles(host: &HostConfig, observer: &str) -> bool {
    observer == "bpf" && host.policy == "quell" && host.back_end == BackEndKind::Elevation
}

/// Why it is to be off from the start; `None`: it stays as found.
pub fn why_off(
    host: &HostConfig,
    tasks: &[TaskConfig],
    pace: Pace,
    observer: &str,
    layout: &Layout,
) -> Option<WhyOff> {
    let fills = |task: &TaskConfig| matches!(task.source, Source::Lane(_));
    match host.rt_throttling {
        _ if host.back_end != BackEndKind::Elevation => None,
        Throttling::Off => Some(WhyOff::Configured),
        Throttling::Leave => None,
        Throttling::Auto if pace == Pace::Dedicated => Some(WhyOff::Dedicated),
        Throttling::Auto if tasks.iter().any(fills) => Some(WhyOff::FillsCores),
        Throttling::Auto if !has_roles(host, observer) => Some(WhyOff::NoRoles),
        Throttling::Auto if has_rt_budgets(layout) => Some(WhyOff::Budgets),
        Throttling::Auto => None,
    }
}

#[cfg(test)]
mod tests {
    use quell_control::config::Config;

    use super::*;

    fn why(text: &str, pace: Pace, observer: &str) -> Option<WhyOff> {
        let config = Config::parse(text, "a.toml").unwrap();
        why_off(&config.host, &config.tasks, pace, observer, &Layout::default())
    }

    #[test]
    fn it_stays_as_found_unless_something_fills_cores_by_design() {
        let plain = "[[task]]\nname = \"web\"\nclass = \"lc\"\nmatch = \"web\"\n";
        assert_eq!(why(plain, Pace::Shared, "bpf"), None);
        assert_eq!(why(plain, Pace::Dedicated, "bpf"), Some(WhyOff::Dedicated));
        assert_eq!(why(plain, Pace::Shared, "proc"), Some(WhyOff::NoRoles));
        let lane = "[[task]]\nname = \"lane\"\nclass = \"be\"\n[task.lane]\ntable = \"web,log:20us\"\n\
                    [[task.lane.member]]\nname = \"web\"\npid = 7\n\
                    [[task.lane.member]]\nname = \"log\"\ncommand = \"./rotate\"\n";
        assert_eq!(why(lane, Pace::Shared, "bpf"), Some(WhyOff::FillsCores));
        let told = |word: &str| format!("[host]\nrt_throttling = \"{word}\"\n{lane}");
        assert_eq!(why(&told("leave"), Pace::Dedicated, "proc"), None);
        assert_eq!(why(&told("off"), Pace::Shared, "bpf"), Some(WhyOff::Configured));
        let other = format!("[host]\npolicy = \"caladan\"\n{plain}");
        assert_eq!(why(&other, Pace::Shared, "bpf"), Some(WhyOff::NoRoles));
        let cpusets = "[host]\nbackend = \"cpuset\"\nrt_throttling = \"off\"\n";
        assert_eq!(why(cpusets, Pace::Dedicated, "proc"), None, "nothing is elevated");
    }
}
