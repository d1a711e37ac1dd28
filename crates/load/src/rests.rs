//! When batch work rests: seldom, shortly, at random, and all of its programs at once. Pure.
//!
//! A hypervisor with a quota stops a core for the rest of a period where all cores of the machine are busy all the time;
//! with a little idle time it does not (measured: none in two minutes with 2 %). A rest gives that time. It also ends
//! every starvation and lets a core halt, so requests that it meets are no part of a figure, and figures without rests
//! stand beside. The Go antagonist computes the same times.

use quell_model::Nanos;

/// One rest begins in each period.
pub const PERIOD: Nanos = Nanos::from_millis(300);
/// How long a rest is: 1.7 % of the time.
pub const LENGTH: Nanos = Nanos::from_millis(5);
/// A rest begins at most so long after its period: the next one is 205 ms away at least.
const JITTER: Nanos = Nanos::from_millis(90);

/// The rests of a measurement: times of CLOCK_MONOTONIC, the same for all programs with this seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rests {
    seed: u64,
}

impl Rests {
    /// Those of a seed.
    pub fn new(seed: u64) -> Rests {
        Rests { seed }
    }

    /// The rest of a period, from and to.
    fn of(self, period: u64) -> (Nanos, Nanos) {
        // SplitMix64 (Steele et al., OOPSLA 2014): one draw for each period, without state.
        let mut word = (self.seed ^ period).wrapping_add(0x9e37_79b9_7f4a_7c15);
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        let start = Nanos(period.saturating_mul(PERIOD.0).saturating_add(word % JITTER.0));
        (start, start + LENGTH)
    }

    /// When the rest that is on at `now` ends; `None` outside of rests.
    pub fn end_of(self, now: Nanos) -> Option<Nanos> {
        let (start, end) = self.of(now.0 / PERIOD.0);
        (start <= now && now < end).then_some(end)
    }

    /// All rests that touch a span of time, in order.
    pub fn between(self, start: Nanos, end: Nanos) -> Vec<(Nanos, Nanos)> {
        let periods = start.0 / PERIOD.0..=end.0 / PERIOD.0;
        let rests = periods.map(|period| self.of(period));
        rests.filter(|(from, to)| *from < end && *to > start).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        /// Rests are rare, of one length and far apart, and both ways to ask agree.
        #[test]
        fn rests_are_far_apart(seed: u64, first in 0u64..1_000_000) {
            let rests = Rests::new(seed);
            let start = Nanos(first * PERIOD.0);
            let all = rests.between(start, start + Nanos(PERIOD.0 * 50));
            proptest::prop_assert_eq!(all.len(), 50);
            for pair in all.windows(2) {
                proptest::prop_assert!(pair[1].0 - pair[0].1 >= Nanos::from_millis(200));
            }
            for (from, to) in all {
                proptest::prop_assert_eq!(to - from, LENGTH);
                proptest::prop_assert_eq!(rests.end_of(from), Some(to));
                proptest::prop_assert_eq!(rests.end_of(Nanos(to.0 - 1)), Some(to));
                proptest::prop_assert_eq!(rests.end_of(to), None);
            }
        }
    }

    #[test]
    fn the_go_program_computes_the_same_times() {
        // Held by `go/gc/main_test.go` as well.
        assert_eq!(Rests::new(7).of(3).0, Nanos(934_603_978));
        assert_eq!(LENGTH, Nanos::from_millis(5));
    }

    #[test]
    fn a_seed_has_rests_of_its_own() {
        let at = |seed| Rests::new(seed).between(Nanos::ZERO, Nanos::from_millis(3_000));
        assert_ne!(at(1), at(2));
    }
}
