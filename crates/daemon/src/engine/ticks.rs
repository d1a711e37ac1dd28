//! What the ticks counted.

use quell_control::protocol::Counters;
use quell_policy::Invariant;
use quell_policy::invariants::Rule;

/// Totals since the start.
#[derive(Default)]
pub struct Ticks {
    ticks: u64,
    by_event: u64,
    violations: [u64; 5],
    spent_ns: u64,
    last_ns: u64,
    max_ns: u64,
    pub plans: u64,
    pub changes: u64,
    pub refused: u64,
    pub stale: u64,
    pub forks: u64,
    pub events_lost: u64,
    pub role_changes: u64,
}

impl Ticks {
    /// One more tick.
    pub fn count(&mut self, by_event: bool) {
        self.ticks += 1;
        self.by_event += u64::from(by_event);
    }

    /// How long the last tick took.
    pub fn took(&mut self, ns: u64) {
        debug_assert!(self.by_event <= self.ticks, "{} of {} ticks", self.by_event, self.ticks);
        self.last_ns = ns;
        self.spent_ns += ns;
        self.max_ns = self.max_ns.max(ns);
    }

    /// One more violation.
    pub fn violated(&mut self, rule: Rule) {
        self.violations[match rule {
            Rule::Invariant(Invariant::Guarantee) => 0,
            Rule::Invariant(Invariant::LcFirst) => 1,
            Rule::Invariant(Invariant::WorkConservation) => 2,
            Rule::Invariant(Invariant::Advice) => 3,
            Rule::Shape => 4,
        }] += 1;
    }

    /// As the protocol shows them.
    pub fn counters(&self) -> Counters {
        let us = |ns: u64| ns as f64 / 1e3;
        let [guarantee, priority, conservation, advice, shape] = self.violations;
        Counters {
            ticks: self.ticks,
            ticks_by_event: self.by_event,
            plans: self.plans,
            host_writes: self.changes,
            host_writes_refused: self.refused,
            stale_decisions: self.stale,
            role_changes: self.role_changes,
            violations_guarantee: guarantee,
            violations_lc_first: priority,
            violations_work_conservation: conservation,
            violations_advice: advice,
            violations_malformed: shape,
            events_lost: self.events_lost,
            tick_last_us: us(self.last_ns),
            tick_total_us: us(self.spent_ns),
            tick_mean_us: us(self.spent_ns / self.ticks.max(1)),
            tick_max_us: us(self.max_ns),
            ..Counters::default()
        }
    }
}
