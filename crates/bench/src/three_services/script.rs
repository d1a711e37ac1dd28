//! Loads that step at random: pure.

use std::time::Duration;

use quell_load::Step;
use quell_model::Nanos;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use crate::stage::nanos;

/// Parts of the core that a service takes: three at the upper bound take most of it.
const PARTS: (f64, f64) = (0.03, 0.28);
/// Lengths of a step.
const LENGTHS_MS: (u64, u64) = (1_000, 4_000);

/// Steps that fill a time, for a service whose requests cost so much.
pub fn steps(cost: Nanos, whole: Duration, rng: &mut ChaCha8Rng) -> Vec<Step> {
    let mut left = nanos(whole);
    let mut steps = Vec::new();
    while left > Nanos::ZERO {
        let rate_rps = rng.random_range(PARTS.0..PARTS.1) * 1e9 / cost.0.max(1) as f64;
        let length = Nanos::from_millis(rng.random_range(LENGTHS_MS.0..LENGTHS_MS.1));
        let duration = length.min(left);
        left = left - duration;
        steps.push(Step { rate_rps, duration });
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;

    #[test]
    fn steps_fill_the_time_within_their_bounds_and_come_again_with_the_seed() {
        let whole = Duration::from_secs(60);
        let of = |seed| steps(Nanos::from_millis(1), whole, &mut ChaCha8Rng::seed_from_u64(seed));
        let first = of(1);
        assert_eq!(first, of(1));
        assert_ne!(first, of(2));
        let sum = first.iter().fold(Nanos::ZERO, |sum, step| sum + step.duration);
        assert_eq!(sum, nanos(whole));
        assert!((15..=60).contains(&first.len()), "{} steps", first.len());
        assert!(first.iter().all(|step| (30.0..280.0).contains(&step.rate_rps)));
    }
}
