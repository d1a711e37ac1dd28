//! Whether the kernel's RT throttling is switched off: only where FIFO threads fill a core by design.
//!
//! Elsewhere LC threads leave a tenth of each core by themselves (`quell_policy::roles`), so that throttling at 95 % never
//! acts, and a setting of the whole host stays as found.

use std::fmt;

use quell_control::config::{BackEndKind, HostConfig, Source, TaskConfig, Throttling};
use quell_model::BeRung;

use crate::engine::Pace;

/// Why it is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyOff {
    /// The configuration says so.
    Configured,
    /// The scheduler thread spins.
    Dedicated,
    /// A lane always has a member that runs, unless all sleep.
    Lane,
    /// Batch work is under SCHED_FIFO, too.
    FifoLow,
}

impl fmt::Display for WhyOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WhyOff::Configured => "`rt_throttling = \"off\"`",
            WhyOff::Dedicated => "the scheduler thread fills its core",
            WhyOff::Lane => "a lane may fill its core",
            WhyOff::FifoLow => "with `be_rung = \"fifo-low\"` batch work fills cores",
        })
    }
}

/// Why it is to be off from the start; `None`: it stays as found.
pub fn why_off(host: &HostConfig, tasks: &[TaskConfig], pace: Pace) -> Option<WhyOff> {
    match host.rt_throttling {
        // Nothing is elevated.
        _ if host.back_end != BackEndKind::Elevation => None,
        Throttling::Off => Some(WhyOff::Configured),
        Throttling::Leave => None,
        Throttling::Auto if pace == Pace::Dedicated => Some(WhyOff::Dedicated),
        Throttling::Auto if tasks.iter().any(fills_its_core) => Some(WhyOff::Lane),
        Throttling::Auto if host.be_rung == BeRung::FifoLow => Some(WhyOff::FifoLow),
        Throttling::Auto => None,
    }
}

/// Whether a task may fill its core with FIFO threads by design.
pub fn fills_its_core(task: &TaskConfig) -> bool {
    matches!(task.source, Source::Lane(_))
}

/// Whether FIFO threads leave a tenth of each core, since those of LC tasks have roles. Those of lanes and runtimes have none.
pub fn leaves_a_tenth(host: &HostConfig, observer: &str) -> bool {
    let has_roles = matches!(host.policy.as_str(), "quell" | "caladan") && observer == "bpf";
    has_roles && host.back_end == BackEndKind::Elevation && host.be_rung != BeRung::FifoLow
}

#[cfg(test)]
mod tests {
    use quell_control::config::Config;

    use super::*;

    const LC: &str = "[[task]]\nname = \"web\"\nclass = \"lc\"\nmatch = \"web\"\n";
    const LANE: &str = "[[task]]\nname = \"lane\"\nclass = \"be\"\n[task.lane]\ntable = \"web,log:20us\"\n\
                        [[task.lane.member]]\nname = \"web\"\npid = 7\n\
                        [[task.lane.member]]\nname = \"log\"\ncommand = \"./rotate\"\n";

    fn why(host: &str, tasks: &str, pace: Pace) -> Option<WhyOff> {
        let config = Config::parse(&format!("[host]\n{host}\n{tasks}"), "a.toml").unwrap();
        why_off(&config.host, &config.tasks, pace)
    }

    #[test]
    fn throttling_goes_off_only_where_threads_fill_a_core_by_design() {
        assert_eq!(why("", LC, Pace::Shared), None);
        assert_eq!(why("observer = \"proc\"", LC, Pace::Shared), None);
        assert_eq!(why("policy = \"static\"", LC, Pace::Shared), None);
        assert_eq!(why("", LC, Pace::Dedicated), Some(WhyOff::Dedicated));
        assert_eq!(why("", LANE, Pace::Shared), Some(WhyOff::Lane));
        assert_eq!(why("be_rung = \"fifo-low\"", LC, Pace::Shared), Some(WhyOff::FifoLow));
    }

    #[test]
    fn configuration_decides_over_what_fills_cores() {
        let off = "rt_throttling = \"off\"";
        assert_eq!(why(off, LC, Pace::Shared), Some(WhyOff::Configured));
        assert_eq!(why("rt_throttling = \"leave\"", LANE, Pace::Dedicated), None);
        let cpusets = format!("backend = \"cpuset\"\n{off}");
        assert_eq!(why(&cpusets, LC, Pace::Dedicated), None, "nothing is elevated");
    }

    #[test]
    fn a_tenth_is_left_where_threads_have_roles() {
        let leaves = |host: &str, observer| {
            let config = Config::parse(&format!("[host]\n{host}\n{LC}"), "a.toml").unwrap();
            leaves_a_tenth(&config.host, observer)
        };
        assert!(leaves("", "bpf"));
        assert!(!leaves("", "proc"));
        assert!(!leaves("policy = \"static\"", "bpf"));
        assert!(!leaves("be_rung = \"fifo-low\"", "bpf"));
    }
}
