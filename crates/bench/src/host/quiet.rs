//! Keeps a kernel thread that samples memory out of a measurement.
//!
//! `kdamond` (Documentation/mm/damon) wakes when mappings change, which is what starting a daemon does, and then
//! holds a core for several ticks. On the client's core that looks like a service that is milliseconds late, in
//! whichever system happened to start something. At SCHED_IDLE it waits for a core that nobody uses.

use std::fs;

use super::sched::{Policy, policy, set_policy};

/// Kernel threads that are held back.
const NAMES: [&str; 1] = ["kdamond."];
/// SCHED_OTHER, as `sched_getscheduler(2)` numbers it.
const OTHER: i32 = 0;

/// Holds them back while it lives.
pub struct Quiet {
    held: Vec<i32>,
}

impl Quiet {
    /// Holds back those that run in the fair class; others were set by somebody who meant it.
    pub fn keep() -> Quiet {
        let named = |pid: &i32| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let kernel = fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.is_empty());
            kernel && NAMES.iter().any(|start| name.starts_with(start))
        };
        let fair = |pid: &i32| policy(*pid).is_ok_and(|(number, _)| number == OTHER);
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let held = processes
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(named)
            .filter(fair)
            .filter(|pid| set_policy(*pid, Policy::Idle).is_ok())
            .collect();
        Quiet { held }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        for pid in &self.held {
            // One that ended meanwhile needs nothing back.
            let _ = set_policy(*pid, Policy::Other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_held_back_is_given_back() {
        let held = {
            let quiet = Quiet::keep();
            assert!(
                quiet.held.iter().all(|pid| policy(*pid).is_ok_and(|(number, _)| number != OTHER))
            );
            quiet.held.clone()
        };
        assert!(held.iter().all(|pid| policy(*pid).is_ok_and(|(number, _)| number == OTHER)));
    }
}
