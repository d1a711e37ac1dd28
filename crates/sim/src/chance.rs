//! The one source of chance. Every platform draws the same numbers: the generator is portable, and what is no plain
//! arithmetic comes from `libm`, which is written in Rust and does not ask the platform.

use quell_model::Nanos;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Seeded chance.
#[derive(Clone, Debug)]
pub(crate) struct Chance(ChaCha8Rng);

impl Chance {
    /// A stream of its own for each number under one seed.
    pub fn new(seed: u64, stream: u64) -> Chance {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Chance(rng)
    }

    /// A number below `end`; zero if that is zero.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(end)) >> 64) as u64
    }

    /// A number of the range, its end included.
    pub fn between(&mut self, range: std::ops::RangeInclusive<u64>) -> u64 {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// True `per_mille` times in a thousand.
    pub fn happens(&mut self, per_mille: u16) -> bool {
        per_mille > 0 && self.below(1_000) < u64::from(per_mille)
    }

    /// Above zero and up to one.
    fn uniform(&mut self) -> f64 {
        ((self.0.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Exponentially distributed with this mean.
    pub fn exponential(&mut self, mean: u64) -> u64 {
        (-libm::log(self.uniform()) * mean as f64) as u64
    }

    /// Lognormally distributed with this mean; `sigma` is the deviation of the logarithm in thousandths.
    pub fn lognormal(&mut self, mean: Nanos, sigma: u16) -> Nanos {
        let sigma = f64::from(sigma) / 1_000.0;
        // Box and Muller (1958).
        let radius = libm::sqrt(-2.0 * libm::log(self.uniform()));
        let normal = radius * libm::cos(std::f64::consts::TAU * self.uniform());
        Nanos((mean.0 as f64 * libm::exp(sigma * normal - sigma * sigma / 2.0)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(mut draw: impl FnMut(&mut Chance) -> u64) -> (u64, u64) {
        let mut chance = Chance::new(7, 0);
        let mut drawn: Vec<u64> = (0..100_000).map(|_| draw(&mut chance)).collect();
        drawn.sort_unstable();
        (drawn.iter().sum::<u64>() / drawn.len() as u64, drawn[99_000])
    }

    #[test]
    fn an_exponential_has_its_mean_and_its_tail() {
        let (mean, p99) = drawn(|chance| chance.exponential(100_000));
        assert!(mean.abs_diff(100_000) < 2_000, "mean {mean}");
        assert!(p99.abs_diff(460_517) < 20_000, "p99 {p99}");
    }

    #[test]
    fn a_lognormal_has_its_mean_and_its_tail() {
        let (mean, p99) = drawn(|chance| chance.lognormal(Nanos(20_000), 900).0);
        assert!(mean.abs_diff(20_000) < 400, "mean {mean}");
        // exp(2.326 sigma - sigma^2 / 2) times the mean.
        assert!(p99.abs_diff(108_200) < 5_000, "p99 {p99}");
    }

    #[test]
    fn streams_differ_and_seeds_differ() {
        let first = |seed, stream| Chance::new(seed, stream).below(u64::MAX);
        assert_ne!(first(1, 0), first(1, 1));
        assert_ne!(first(1, 0), first(2, 0));
        assert_eq!(first(1, 0), first(1, 0));
    }
}
