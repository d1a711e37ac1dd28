//! Fake work: a loop whose speed is known.

use std::hint::black_box;

use quell_model::Nanos;
use serde::{Deserialize, Serialize};

use crate::clock::now;

/// Runs of the calibration. The fastest counts: nothing makes a run faster than the core is.
const RUNS: u32 = 40;
/// Steps of one run: about 0.2 ms, so that most runs are not interrupted.
const STEPS_A_RUN: u64 = 200_000;

/// How fast this machine computes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Steps of the loop in a microsecond.
    pub steps_per_us: f64,
}

impl Calibration {
    /// Measures it, in about 10 ms.
    pub fn measure() -> Calibration {
        let fastest = (0..RUNS)
            .map(|_| {
                let begun = now();
                burn(STEPS_A_RUN);
                now().since(begun)
            })
            .min()
            .unwrap_or(Nanos(1));
        Calibration { steps_per_us: STEPS_A_RUN as f64 * 1e3 / fastest.0.max(1) as f64 }
    }

    /// Computes for as long as `work_ns` take on an undisturbed core.
    pub fn work(&self, work_ns: u64) {
        burn(self.steps(work_ns));
    }

    /// Steps of the loop in so much time.
    fn steps(&self, work_ns: u64) -> u64 {
        (self.steps_per_us * work_ns as f64 / 1e3) as u64
    }
}

/// xorshift64 steps (Marsaglia 2003), each of which needs the last.
fn burn(steps: u64) {
    let mut state = black_box(0x9e37_79b9_7f4a_7c15u64);
    for _ in 0..steps {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    black_box(state);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_from_the_calibrated_speed() {
        let calibration = Calibration { steps_per_us: 1_500.0 };
        assert_eq!([0, 1_000, 3_000_000].map(|ns| calibration.steps(ns)), [0, 1_500, 4_500_000]);
        let measured = Calibration::measure().steps_per_us;
        assert!(measured.is_finite() && measured > 0.0, "{measured}");
    }
}
