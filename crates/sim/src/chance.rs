//! The one source of chance, in integers only, so that every platform draws the same numbers.

use quell_model::Nanos;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Fractional bits of a logarithm.
const BITS: u32 = 32;

/// Seeded chance.
pub(crate) struct Chance(ChaCha8Rng);

impl Chance {
    pub fn new(seed: u64) -> Chance {
        Chance(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A number below `end`; zero if that is zero.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(end)) >> 64) as u64
    }

    /// True `per_mille` times in a thousand.
    pub fn happens(&mut self, per_mille: u16) -> bool {
        self.below(1_000) < u64::from(per_mille)
    }

    /// Exponentially distributed with this mean: minus the logarithm of a uniform number.
    pub fn exponential(&mut self, mean: Nanos) -> Nanos {
        let uniform = self.0.next_u64() | 1;
        // ln(2^64 / u) = ln 2 * (64 - log2 u)
        let log2 = (u128::from(64u32) << BITS) - log2(uniform);
        const LN2: u128 = 2_977_044_471; // ln 2 * 2^32
        Nanos(((u128::from(mean.0) * log2 * LN2) >> (2 * BITS)) as u64)
    }
}

/// The binary logarithm in fixed point: the integer part from the leading bit, one bit of the fraction for each
/// squaring of the mantissa.
fn log2(of: u64) -> u128 {
    let whole = 63 - of.leading_zeros();
    let mut mantissa = u128::from(of) << (63 - whole);
    let mut log = u128::from(whole);
    for _ in 0..BITS {
        mantissa = (mantissa * mantissa) >> 63;
        let carry = mantissa >> 64;
        mantissa >>= carry;
        log = log << 1 | carry;
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_right() {
        for (of, expected) in
            [(1u64, 0.0), (2, 1.0), (10, std::f64::consts::LOG2_10), (u64::MAX, 64.0)]
        {
            let got = log2(of) as f64 / f64::powi(2.0, BITS as i32);
            assert!((got - expected).abs() < 1e-5, "log2({of}) = {got}");
        }
    }

    #[test]
    fn an_exponential_has_its_mean_and_its_tail() {
        let mut chance = Chance::new(7);
        let mean = Nanos::from_micros(100);
        let mut drawn: Vec<u64> = (0..100_000).map(|_| chance.exponential(mean).0).collect();
        drawn.sort_unstable();
        let average = drawn.iter().sum::<u64>() / drawn.len() as u64;
        assert!(average.abs_diff(mean.0) < 2_000, "mean {average}");
        let p99 = drawn[99_000];
        assert!(p99.abs_diff(460_517) < 20_000, "p99 {p99}");
    }
}
