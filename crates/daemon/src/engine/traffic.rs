//! Memory traffic in the Snapshot.
//!
//! Readings come when they come, ticks more often. A policy that took the difference of a counter between two ticks
//! would see nothing, nothing, and then all at once. So what a counter grew by between its last two readings is
//! dealt out over as long a time from the last one on: sums are right, one reading late, and rates are steady.

use quell_control::protocol::MemoryStatus;
use quell_model::{Absence, Bytes, Estimate, Nanos, Signal, Snapshot};
use quell_observe::memory::Traffic;

use crate::memory::Gauge;

/// A reading counts as too old after so many intervals, and no sooner than after this time.
const HOLDS_FOR: u64 = 10;
const HOLDS_MIN: Nanos = Nanos::from_secs(1);

/// The last two readings.
pub struct Meter {
    gauge: Gauge,
    readings: Readings,
}

#[derive(Default)]
struct Readings {
    before: Traffic,
    last: Traffic,
    /// Scratch for the next one.
    next: Traffic,
}

impl Meter {
    /// A meter of what the gauge reads.
    pub fn new(gauge: Gauge) -> Meter {
        Meter { gauge, readings: Readings::default() }
    }

    /// Fills in the memory signals of a Snapshot.
    pub fn fill(&mut self, seen: &mut Snapshot) {
        if self.gauge.copy_newer(&mut self.readings.next) {
            self.readings.take_next();
        }
        let holds = Nanos(self.gauge.every.0.saturating_mul(HOLDS_FOR)).max(HOLDS_MIN);
        self.readings.fill(seen, holds, self.gauge.estimates_total);
    }

    /// What is known now.
    pub fn status(&self, seen: &Snapshot) -> MemoryStatus {
        let Readings { before, last, .. } = &self.readings;
        let passed = last.at.since(before.at).0;
        let grown = before.total.zip(last.total).map(|(a, b)| b.0.saturating_sub(a.0));
        let is_known = seen.memory.value().is_some() && before.at > Nanos::ZERO && passed > 0;
        let rate = grown.filter(|_| is_known).map(|grown| grown as f64 * 1e3 / passed as f64);
        MemoryStatus {
            source: self.gauge.source.clone(),
            total_mb_s: rate,
            provenance: provenance(seen.memory),
            cores: seen.cores.iter().filter(|core| core.memory.value().is_some()).count() as u32,
            problem: self.gauge.problem(),
        }
    }
}

impl Readings {
    fn take_next(&mut self) {
        // `next` keeps its time, by which it is told that there is no newer one.
        std::mem::swap(&mut self.before, &mut self.last);
        self.last.clone_from(&self.next);
    }

    fn fill(&self, seen: &mut Snapshot, holds: Nanos, estimates_total: Option<Estimate>) {
        let (now, last) = (seen.now, &self.last);
        if last.at == Nanos::ZERO || now.since(last.at) > holds {
            let why = if last.at == Nanos::ZERO { Absence::NoSource } else { Absence::Stale };
            seen.memory = Signal::Absent(why);
            seen.cores.iter_mut().for_each(|core| core.memory = Signal::Absent(why));
            return;
        }
        let had = self.before.at > Nanos::ZERO;
        let span = if had { last.at.since(self.before.at) } else { Nanos::ZERO };
        let passed = now.since(last.at).min(span);
        let now_at = |before: Option<Bytes>, last: Option<Bytes>| match (before, last) {
            (Some(before), Some(last)) => dealt(before, last, passed, span),
            (None, Some(last)) => Signal::Measured(last),
            (_, None) => Signal::Absent(Absence::NotSupported),
        };
        seen.memory = now_at(self.before.total, last.total);
        if let (Some(value), Some(how)) = (seen.memory.value(), estimates_total) {
            seen.memory = Signal::Estimated { value, how };
        }
        for core in &mut seen.cores {
            let of = |traffic: &Traffic| traffic.by_core.get(core.id.index()).copied().flatten();
            core.memory = now_at(of(&self.before), of(last));
        }
    }
}

/// A counter that grew between two readings, as it stands when `passed` of as long a `span` is over again.
fn dealt(before: Bytes, last: Bytes, passed: Nanos, span: Nanos) -> Signal<Bytes> {
    // One that fell was started anew.
    let Some(grown) = last.0.checked_sub(before.0).filter(|_| passed < span) else {
        return Signal::Measured(last);
    };
    let part = u128::from(grown) * u128::from(passed.0) / u128::from(span.0);
    debug_assert!(part <= u128::from(grown), "{part} dealt out of {grown}");
    let value = Bytes(before.0 + u64::try_from(part).unwrap_or(grown));
    Signal::Estimated { value, how: Estimate::Interpolated }
}

fn provenance<T: Copy>(signal: Signal<T>) -> String {
    match signal {
        Signal::Measured(_) => "measured".to_owned(),
        Signal::Estimated { how, .. } => format!("estimated: {how}"),
        Signal::Absent(why) => format!("absent: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use quell_model::{CoreId, CoreView};

    const HOLDS: Nanos = Nanos::from_secs(1);

    fn reading(at: u64, total: u64, core: Option<u64>) -> Traffic {
        let by_core = vec![None, core.map(Bytes)];
        Traffic { at: Nanos(at), total: Some(Bytes(total)), by_core }
    }

    fn read(readings: &mut Readings, traffic: Traffic) {
        readings.next = traffic;
        readings.take_next();
    }

    fn at(readings: &Readings, now: u64) -> Snapshot {
        let cores = (0..2).map(|core| CoreView::new(CoreId(core))).collect();
        let mut seen = Snapshot { now: Nanos(now), cores, ..Snapshot::default() };
        readings.fill(&mut seen, HOLDS, None);
        seen
    }

    #[test]
    fn what_a_counter_grew_by_is_dealt_out_until_the_next_reading() {
        let mut readings = Readings::default();
        assert_eq!(at(&readings, 50).memory, Signal::Absent(Absence::NoSource));
        read(&mut readings, reading(1_000, 70, Some(5)));
        assert_eq!(at(&readings, 1_000).memory, Signal::Measured(Bytes(70)));
        read(&mut readings, reading(2_000, 170, None));
        let how = Estimate::Interpolated;
        assert_eq!(at(&readings, 2_000).memory, Signal::Estimated { value: Bytes(70), how });
        assert_eq!(at(&readings, 2_400).memory, Signal::Estimated { value: Bytes(110), how });
        assert_eq!(at(&readings, 3_000).memory, Signal::Measured(Bytes(170)));
        assert_eq!(at(&readings, 9_000).memory, Signal::Measured(Bytes(170)), "no further");
        assert_eq!(at(&readings, 2_000).cores[1].memory, Signal::Absent(Absence::NotSupported));
        let late = at(&readings, 2_001 + HOLDS.0);
        assert_eq!(late.memory, Signal::Absent(Absence::Stale));
        assert_eq!(late.cores[0].memory, Signal::Absent(Absence::Stale));
    }

    #[test]
    fn what_a_total_is_derived_from_is_said() {
        let mut readings = Readings::default();
        read(&mut readings, reading(1_000, 70, None));
        let mut seen = Snapshot { now: Nanos(1_000), ..Snapshot::default() };
        readings.fill(&mut seen, HOLDS, Some(Estimate::CacheMisses));
        let how = Estimate::CacheMisses;
        assert_eq!(seen.memory, Signal::Estimated { value: Bytes(70), how });
    }

    proptest! {
        #[test]
        fn counters_never_run_backwards_and_end_at_what_was_read(
            steps in proptest::collection::vec((1u64..2_000, 0u64..1 << 50, 1u64..9), 2..20),
        ) {
            let (mut readings, mut now, mut total) = (Readings::default(), 1, 0);
            let mut known = Bytes(0);
            for (passed, grown, ticks) in steps {
                total += grown;
                now += passed;
                read(&mut readings, reading(now, total, Some(total)));
                for tick in 0..ticks {
                    let seen = at(&readings, now + passed * tick / ticks);
                    let value = seen.memory.value().unwrap();
                    prop_assert!(value >= known && value.0 <= total);
                    prop_assert_eq!(seen.cores[1].memory.value(), Some(value));
                    known = value;
                }
            }
            prop_assert_eq!(at(&readings, now + 5_000).memory, Signal::Measured(Bytes(total)));
        }
    }
}
