//! What came out.

use quell_model::{Nanos, Plan};
use quell_policy::invariants::Violation;

/// What became of one task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskReport {
    /// Latencies of answered requests, ascending.
    pub latencies: Vec<Nanos>,
    /// Requests that were not answered by the end.
    pub unanswered: u64,
    /// Time that its threads ran.
    pub ran: Nanos,
}

impl TaskReport {
    /// The latency that this many in a thousand requests do not exceed; zero of none.
    pub fn percentile(&self, per_mille: usize) -> Nanos {
        let at =
            (self.latencies.len() * per_mille / 1_000).min(self.latencies.len().saturating_sub(1));
        self.latencies.get(at).copied().unwrap_or_default()
    }
}

/// What became of a scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// By place.
    pub tasks: Vec<TaskReport>,
    /// Breaches of the invariants, judged at each decision.
    pub violations: Vec<(Nanos, Violation)>,
    /// Decisions.
    pub ticks: u64,
    /// Cores that changed hands in Plans.
    pub moves: u64,
    /// Times that a task's rung or shared cores changed in Plans.
    pub shifts: u64,
    /// Longest time in which some LC thread waited while a core that it is allowed on was idle or ran BE.
    pub longest_inversion: Nanos,
    /// A fingerprint of every Plan, to compare runs.
    pub digest: u64,
}

impl Report {
    /// Counts what a new Plan changes.
    pub(crate) fn compare(&mut self, before: &Plan, after: &Plan) {
        let cores = before.cores.iter().zip(&after.cores);
        self.moves += cores.filter(|(a, b)| a.owner != b.owner).count() as u64;
        let tasks = before.tasks.iter().zip(&after.tasks);
        let shifted = tasks.filter(|(a, b)| (a.rung, a.beneath) != (b.rung, b.beneath));
        self.shifts += shifted.count() as u64;
    }

    /// Adds a Plan to the fingerprint (FNV-1a over its printed form).
    pub(crate) fn fingerprint(&mut self, now: Nanos, plan: &Plan) {
        use std::fmt::Write;
        let mut hash = Fnv(self.digest ^ 0xcbf2_9ce4_8422_2325);
        // Writing to the hash cannot fail.
        let _ = write!(hash, "{now:?}{plan:?}");
        self.digest = hash.0;
    }
}

struct Fnv(u64);

impl std::fmt::Write for Fnv {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        Ok(())
    }
}
