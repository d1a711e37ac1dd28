//! Whether a latency keeps its bound, and how much of the time it does not.

use quell_control::protocol::{SloState, SloStatus};
use quell_model::Nanos;

use super::Reading;

/// Judges readings as they come. A reading holds until the next one or until it is too old; time without
/// one is neither met nor missed.
#[derive(Debug)]
pub struct Slo {
    bound: Nanos,
    state: SloState,
    since: Nanos,
    /// When the reading in force is too old.
    until: Nanos,
    /// Up to here time is accounted for.
    settled: Nanos,
    met: Nanos,
    missed: Nanos,
}

impl Slo {
    /// Nothing is known at first.
    pub fn new(bound: Nanos, now: Nanos) -> Slo {
        Slo {
            bound,
            state: SloState::Unknown,
            since: now,
            until: Nanos::ZERO,
            settled: now,
            met: Nanos::ZERO,
            missed: Nanos::ZERO,
        }
    }

    /// A new reading is in force.
    pub fn note(&mut self, reading: &Reading) {
        self.settle(reading.at);
        let state = match reading.latency.value() {
            None => SloState::Unknown,
            Some(latency) if latency <= self.bound => SloState::Met,
            Some(_) => SloState::Missed,
        };
        self.enter(state, reading.at);
        self.until = reading.until();
    }

    /// What is so at `now`.
    pub fn status(&mut self, now: Nanos) -> SloStatus {
        self.settle(now);
        let known = self.met + self.missed;
        SloStatus {
            latency_us: self.bound.0 as f64 / 1e3,
            state: self.state,
            since_s: now.since(self.since).0 as f64 / 1e9,
            missed_percent: (known > Nanos::ZERO)
                .then(|| self.missed.0 as f64 * 100.0 / known.0 as f64),
        }
    }

    fn settle(&mut self, now: Nanos) {
        let span = now.min(self.until).since(self.settled);
        match self.state {
            SloState::Unknown => {}
            SloState::Met => self.met += span,
            SloState::Missed => self.missed += span,
        }
        self.settled = self.settled.max(now);
        if now >= self.until {
            self.enter(SloState::Unknown, self.until);
        }
    }

    fn enter(&mut self, state: SloState, at: Nanos) {
        if state != self.state {
            (self.state, self.since) = (state, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use quell_model::Signal;

    use super::*;

    fn reading(at_ms: u64, latency_us: u64) -> Reading {
        Reading {
            at: Nanos::from_millis(at_ms),
            every: Nanos::from_secs(1),
            latency: Signal::Measured(Nanos::from_micros(latency_us)),
            load: Signal::default(),
        }
    }

    #[test]
    fn missed_time_is_counted_against_the_time_that_is_known() {
        let mut slo = Slo::new(Nanos::from_micros(500), Nanos::ZERO);
        assert_eq!(slo.status(Nanos::from_secs(1)).missed_percent, None);
        slo.note(&reading(10_000, 500));
        slo.note(&reading(11_000, 501));
        slo.note(&reading(12_000, 900));
        let status = slo.status(Nanos::from_millis(12_000));
        assert_eq!((status.state, status.since_s), (SloState::Missed, 1.0));
        assert_eq!(status.missed_percent, Some(50.0));
        // The last reading holds for three intervals, and after that nothing is known.
        let later = slo.status(Nanos::from_secs(25));
        assert_eq!((later.state, later.since_s), (SloState::Unknown, 10.0));
        assert_eq!(later.missed_percent, Some(80.0));
        slo.note(&reading(30_000, 100));
        let again = slo.status(Nanos::from_secs(32));
        assert_eq!((again.state, again.since_s), (SloState::Met, 2.0));
        assert_eq!(again.missed_percent.map(f64::round), Some(57.0));
    }
}
