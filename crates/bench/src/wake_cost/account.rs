//! What hog and woken threads did up to one moment, and what that is per second.

use anyhow::{Context as _, Result};
use quell_load::now;
use quell_model::Nanos;

use super::hog::Hog;

/// Counters at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Account {
    /// When.
    pub at: Nanos,
    /// What the hog did.
    pub ops: u64,
    /// Its CPU time.
    pub hog_cpu: Nanos,
    /// How often another thread was put in its place.
    pub preemptions: u64,
    /// What woken threads used.
    pub woken: Used,
}

/// What woken threads used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// CPU time.
    pub cpu: Nanos,
    /// How often they went to sleep, and so woke.
    pub sleeps: u64,
}

impl Account {
    /// Reads them. Those that matter most are read first and at once.
    ///
    /// # Errors
    /// When the hog is gone, or what `woken` says.
    pub fn read(hog: &Hog, woken: impl Fn() -> Result<Used>) -> Result<Account> {
        let (ops, at) = (hog.ops(), now());
        let woken = woken()?;
        let hog_cpu = hog.cpu().context("read the CPU time of the hog")?;
        let preemptions = switches(hog.tid())?.1;
        Ok(Account { at, ops, hog_cpu, preemptions, woken })
    }
}

/// How often a thread of any process gave up its core by going to sleep, and how often it lost it to another.
///
/// # Errors
/// When it is gone.
pub fn switches(tid: i32) -> Result<(u64, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{tid}/status"))
        .with_context(|| format!("read the switches of thread {tid}"))?;
    parsed(&text).with_context(|| format!("the switches of thread {tid} are malformed"))
}

fn parsed(text: &str) -> Option<(u64, u64)> {
    let count = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    Some((count("voluntary_ctxt_switches:")?, count("nonvoluntary_ctxt_switches:")?))
}

/// What one arm showed in one round, a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// What the hog did.
    pub ops: f64,
    /// Its CPU time, as a share of the time.
    pub hog_cpu: f64,
    /// How often it lost the core.
    pub preemptions: f64,
    /// CPU time of the woken threads, as a share of the time.
    pub woken_cpu: f64,
    /// Wake-ups; in arms that wake nobody, interrupts.
    pub events: f64,
    /// Requests, or what stands for them.
    pub requests: f64,
    /// Share of the time in which the hypervisor stopped the core, where a timer watched for that.
    pub stopped_share: Option<f64>,
}

impl Seen {
    /// From the accounts at both ends; wake-ups are those of the woken threads.
    pub fn between(before: &Account, after: &Account) -> Seen {
        let seconds = (after.at - before.at).0.max(1) as f64 / 1e9;
        let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
        let share = |before: Nanos, after: Nanos| rate(before.0, after.0) / 1e9;
        Seen {
            ops: rate(before.ops, after.ops),
            hog_cpu: share(before.hog_cpu, after.hog_cpu),
            preemptions: rate(before.preemptions, after.preemptions),
            woken_cpu: share(before.woken.cpu, after.woken.cpu),
            events: rate(before.woken.sleeps, after.woken.sleeps),
            requests: 0.0,
            stopped_share: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_become_rates() {
        let used = |cpu, sleeps| Used { cpu: Nanos::from_millis(cpu), sleeps };
        let account = |at, ops, cpu, preemptions, woken| Account {
            at: Nanos::from_millis(at),
            ops,
            hog_cpu: Nanos::from_millis(cpu),
            preemptions,
            woken,
        };
        let before = account(1_000, 100, 50, 7, used(10, 1_000));
        let after = account(1_500, 1_100, 450, 1_007, used(60, 3_000));
        let seen = Seen::between(&before, &after);
        assert_eq!((seen.ops, seen.preemptions, seen.events), (2_000.0, 2_000.0, 4_000.0));
        assert!((seen.hog_cpu - 0.8).abs() < 1e-9 && (seen.woken_cpu - 0.1).abs() < 1e-9);
    }

    #[test]
    fn both_kinds_of_switches_are_told_apart() {
        let text = "Name:\tx\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(parsed(text), Some((12, 3)));
        assert_eq!(parsed("voluntary_ctxt_switches:\tx\n"), None);
    }
}
