//! What is offered, and when: pure.

use std::time::Duration;

use quell_load::Step;
use quell_model::Nanos;

use crate::stage::nanos;

/// Parts of the peak: steady, overload, steady again.
const PARTS: [f64; 3] = [0.5, 1.3, 0.5];
/// Length of the overload.
pub const OVERLOAD: Duration = Duration::from_secs(5);
/// The part of the peak that is sustained.
pub const SUSTAINED: f64 = 0.95;

/// A load script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Script {
    /// Steady load before the overload.
    pub before: Duration,
    /// Steady load after it. An overload leaves a backlog of `0.3 x 5 s` at peak speed; half of the peak is left to
    /// clear it, which takes three seconds where nothing else runs.
    pub after: Duration,
}

impl Script {
    /// The load of the service.
    pub fn steps(&self, peak_rps: f64) -> Vec<Step> {
        let lengths = [self.before, OVERLOAD, self.after];
        let step = |(part, length): (f64, Duration)| Step {
            rate_rps: peak_rps * part,
            duration: nanos(length),
        };
        PARTS.into_iter().zip(lengths).map(step).collect()
    }

    /// Start, start and end of the overload, and end, when the script begins at `start`.
    pub fn times(&self, start: Nanos) -> [Nanos; 4] {
        let overload = start + nanos(self.before);
        let after = overload + nanos(OVERLOAD);
        [start, overload, after, after + nanos(self.after)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_the_peak() {
        let script = Script { before: Duration::from_secs(4), after: Duration::from_secs(8) };
        let rates: Vec<f64> = script.steps(1_000.0).iter().map(|step| step.rate_rps).collect();
        assert_eq!(rates, [500.0, 1_300.0, 500.0]);
        let total = script.steps(1.0).iter().fold(Nanos::ZERO, |sum, step| sum + step.duration);
        assert_eq!(total, Nanos::from_secs(17));
        let second = Nanos::from_secs;
        assert_eq!(script.times(second(1)), [second(1), second(5), second(10), second(18)]);
    }
}
