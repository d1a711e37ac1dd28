//! Medians, paired ratios and their intervals.
//!
//! Rounds interleave the systems, so what drifts with time (clock rate, the hypervisor's other
//! guests) hits all systems of a round alike: a ratio is taken within each round first, and the
//! median over the rounds after that. Intervals are percentile bootstrap intervals (Efron and
//! Tibshirani, "An Introduction to the Bootstrap", chapter 13) with a fixed seed, so that the same
//! values always give the same interval.

use rand::RngExt as _;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

/// Resamples an interval is made of.
const RESAMPLES: usize = 4_000;
/// Any number does; fixed so that reports are reproducible.
const SEED: u64 = 0x5155_454c_4c00_0001;
/// Share of the resamples that lies outside of the interval on each side.
const TAIL: f64 = 0.025;

/// A median with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The median.
    pub median: f64,
    /// Low end.
    pub low: f64,
    /// High end.
    pub high: f64,
}

/// The median; the mean of the middle two for an even count. `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    middle(&sorted)
}

fn middle(sorted: &[f64]) -> Option<f64> {
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[half]),
        _ => Some((sorted[half - 1] + sorted[half]) / 2.0),
    }
}

/// The median with its seeded bootstrap 95 % interval. `None` of nothing; of a single value the
/// interval is that value, which says nothing about the spread.
pub fn median_interval(values: &[f64]) -> Option<Interval> {
    let median = median(values)?;
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    let mut resample = vec![0.0; values.len()];
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .filter_map(|_| {
            for slot in &mut resample {
                *slot = values[rng.random_range(0..values.len())];
            }
            resample.sort_unstable_by(f64::total_cmp);
            middle(&resample)
        })
        .collect();
    medians.sort_unstable_by(f64::total_cmp);
    let cut = (RESAMPLES as f64 * TAIL) as usize;
    let (low, high) = (medians[cut], medians[RESAMPLES - 1 - cut]);
    Some(Interval { median: rounded(median), low: rounded(low), high: rounded(high) })
}

/// A ratio of two systems from pairs, with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairedRatio {
    /// The mean of the logarithms of the pairs' ratios, as a ratio.
    pub ratio: f64,
    /// Low end.
    pub low: f64,
    /// High end.
    pub high: f64,
    /// Standard deviation of the logarithms.
    pub log_sd: f64,
    /// How many pairs.
    pub pairs: usize,
}

/// Fewer pairs say nothing of their own spread.
pub const PAIRS_MIN: usize = 5;
/// 97.5 % quantiles of Student's t for [`PAIRS_MIN`] pairs, one more, and so on: from so few, a resample that draws one
/// value nearly throughout is common, and would widen the interval without bound.
const T_OF_FEW: [f64; 5] = [2.776, 2.571, 2.447, 2.365, 2.306];

/// The geometric mean of ratios with its studentised bootstrap interval (Efron and Tibshirani, chapter 12.5), which
/// holds its 95 % for ten pairs, where the percentile interval is too narrow; of fewer with Student's interval of the
/// logarithms. `None` of fewer than [`PAIRS_MIN`] and of ratios that are not positive.
pub fn paired_ratio(ratios: &[f64]) -> Option<PairedRatio> {
    resampled(ratios, RESAMPLES)
}

fn resampled(ratios: &[f64], resamples: usize) -> Option<PairedRatio> {
    if ratios.len() < PAIRS_MIN || !ratios.iter().all(|ratio| *ratio > 0.0 && ratio.is_finite()) {
        return None;
    }
    let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let (mean, sd) = mean_and_sd(&logs);
    let error = |sd: f64| sd / (logs.len() as f64).sqrt();
    let interval = |low: f64, high: f64| PairedRatio {
        ratio: rounded(mean.exp()),
        low: rounded(low.exp()),
        high: rounded(high.exp()),
        log_sd: rounded(sd),
        pairs: ratios.len(),
    };
    if let Some(t) = T_OF_FEW.get(logs.len() - PAIRS_MIN) {
        return Some(interval(mean - t * error(sd), mean + t * error(sd)));
    }
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    let mut resample = vec![0.0; logs.len()];
    let mut scores: Vec<f64> = (0..resamples)
        .filter_map(|_| {
            for slot in &mut resample {
                *slot = logs[rng.random_range(0..logs.len())];
            }
            let (again, sd) = mean_and_sd(&resample);
            // One value drawn throughout says nothing of the spread.
            (sd > 0.0).then(|| (again - mean) / error(sd))
        })
        .collect();
    scores.sort_unstable_by(f64::total_cmp);
    let score = |part: f64| quantile(&scores, part).unwrap_or_default();
    Some(interval(mean - score(1.0 - TAIL) * error(sd), mean - score(TAIL) * error(sd)))
}

/// Resamples of each interval of [`null_coverage`], which makes many.
const COVERAGE_RESAMPLES: usize = 500;

/// The share of intervals of [`paired_ratio`] that hold 1 when the labels of each pair are exchanged at random, so that
/// the true ratio is 1 and only the recorded noise is left. `None` as there.
pub fn null_coverage(ratios: &[f64], relabellings: usize) -> Option<f64> {
    resampled(ratios, COVERAGE_RESAMPLES)?;
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    let holds = (0..relabellings).filter(|_| {
        let exchanged: Vec<f64> = ratios
            .iter()
            .map(|ratio| if rng.random::<bool>() { *ratio } else { 1.0 / ratio })
            .collect();
        resampled(&exchanged, COVERAGE_RESAMPLES)
            .is_some_and(|found| found.low <= 1.0 && 1.0 <= found.high)
    });
    Some(holds.count() as f64 / relabellings.max(1) as f64)
}

/// Pairs after which the interval of [`paired_ratio`] reaches as far as `within` (0.1: ±10 %) to either side.
pub fn pairs_needed(log_sd: f64, within: f64) -> usize {
    let reach = (1.0 + within).ln();
    let pairs = (1.96 * log_sd / reach).powi(2).ceil();
    if pairs.is_finite() { (pairs as usize).max(PAIRS_MIN) } else { PAIRS_MIN }
}

fn mean_and_sd(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0).max(1.0)).sqrt())
}

/// `system / against` for each round that has both as finite numbers and a positive denominator.
pub fn paired_ratios(system: &[f64], against: &[f64]) -> Vec<f64> {
    let pairs = system.iter().zip(against);
    pairs
        .filter(|(system, against)| system.is_finite() && against.is_finite() && **against > 0.0)
        .map(|(system, against)| system / against)
        .collect()
}

/// The value at `quantile` (0 to 1) of ascending values, by the nearest-rank rule: the smallest value
/// that at least this share of all values does not exceed.
pub fn quantile<T: Copy>(ascending: &[T], quantile: f64) -> Option<T> {
    let rank = (quantile * ascending.len() as f64).ceil() as usize;
    ascending.get(rank.clamp(1, ascending.len().max(1)) - 1).copied()
}

/// Six significant digits: more is noise, and makes the reports hard to read.
pub fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digits = 5 - value.abs().log10().floor() as i32;
    if digits > 12 {
        return 0.0;
    }
    let scale = 10f64.powi(digits.abs());
    if digits >= 0 { (value * scale).round() / scale } else { (value / scale).round() * scale }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn medians_of_odd_even_and_nothing() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
        assert_eq!(median_interval(&[]), None);
    }

    #[test]
    fn intervals_of_exchanged_labels_hold_one_about_as_often_as_they_promise() {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        // The sum of uniform values is near enough to normal, and a shift is undone by the exchange.
        let normal = |rng: &mut ChaCha8Rng| (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0;
        let ratios: Vec<f64> = (0..20).map(|_| (0.3 * normal(&mut rng)).exp()).collect();
        let coverage = null_coverage(&ratios, 60).unwrap();
        assert!((0.85..=1.0).contains(&coverage), "{coverage}");
        assert_eq!(null_coverage(&ratios[..3], 60), None);
    }

    #[test]
    fn quantiles_follow_the_nearest_rank() {
        let values: Vec<u32> = (1..=1000).collect();
        assert_eq!(quantile(&values, 0.5), Some(500));
        assert_eq!(quantile(&values, 0.999), Some(999));
        assert_eq!(quantile(&values, 0.9999), Some(1000));
        assert_eq!(quantile(&values, 0.0), Some(1));
        assert_eq!(quantile(&values, 1.0), Some(1000));
        assert_eq!(quantile::<u32>(&[], 0.5), None);
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The machine was twice as slow in the second round; the ratio does not see it.
        assert_eq!(paired_ratios(&[10.0, 20.0], &[5.0, 10.0]), [2.0, 2.0]);
        assert_eq!(paired_ratios(&[10.0, f64::NAN, 3.0], &[0.0, 1.0, 1.0]), [3.0]);
    }

    #[test]
    fn the_interval_of_equal_values_is_that_value() {
        let interval = median_interval(&[1.5; 10]).unwrap();
        assert_eq!(interval, Interval { median: 1.5, low: 1.5, high: 1.5 });
    }

    #[test]
    fn the_interval_covers_the_middle_of_a_known_sample() {
        // For 15 ordered values the exact 95 % interval of the median by order statistics is
        // [4th, 12th]; the percentile bootstrap comes within one rank of it.
        let values: Vec<f64> = (1..=15).map(f64::from).collect();
        let interval = median_interval(&values).unwrap();
        assert_eq!(interval.median, 8.0);
        assert!((3.0..=5.0).contains(&interval.low), "{interval:?}");
        assert!((11.0..=13.0).contains(&interval.high), "{interval:?}");
    }

    /// Ratios whose logarithms are spread normally around that of `centre`.
    fn spread(rng: &mut ChaCha8Rng, pairs: usize, centre: f64, log_sd: f64) -> Vec<f64> {
        let mut normal = || {
            let (a, b): (f64, f64) = (rng.random::<f64>().max(1e-12), rng.random());
            (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
        };
        (0..pairs).map(|_| centre * (log_sd * normal()).exp()).collect()
    }

    #[test]
    fn the_interval_of_pairs_holds_the_truth_as_often_as_it_says() {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        for (pairs, log_sd) in [(5, 0.4), (9, 0.4), (10, 0.2), (10, 0.6), (17, 0.4), (40, 0.6)] {
            let held = (0..400)
                .filter(|_| {
                    let interval = paired_ratio(&spread(&mut rng, pairs, 1.2, log_sd)).unwrap();
                    interval.low <= 1.2 && 1.2 <= interval.high
                })
                .count();
            assert!((370..=392).contains(&held), "{held} of 400 with {pairs} pairs of {log_sd}");
        }
    }

    #[test]
    fn as_many_pairs_as_are_needed_reach_as_far_as_wanted() {
        assert_eq!(pairs_needed(0.6, 0.1), 153);
        assert_eq!(pairs_needed(0.2, 0.1), 17);
        assert_eq!(pairs_needed(0.2, 0.25), 5);
        let mut rng = ChaCha8Rng::seed_from_u64(8);
        let interval = paired_ratio(&spread(&mut rng, pairs_needed(0.4, 0.1), 1.0, 0.4)).unwrap();
        assert!(interval.high / interval.ratio < 1.14 && interval.ratio / interval.low < 1.14);
    }

    #[test]
    fn one_odd_pair_of_five_does_not_widen_the_interval_without_bound() {
        let interval = paired_ratio(&[1.2, 1.25, 1.3, 1.28, 1.5]).unwrap();
        assert!(interval.low > 1.15 && interval.high < 1.5, "{interval:?}");
    }

    #[test]
    fn few_pairs_and_no_ratios_give_no_interval() {
        assert_eq!(paired_ratio(&[1.0; 4]), None);
        assert_eq!(paired_ratio(&[1.0, 1.0, 1.0, 1.0, 0.0]), None);
        let equal = paired_ratio(&[1.1; 6]).unwrap();
        assert_eq!((equal.ratio, equal.low, equal.high), (1.1, 1.1, 1.1));
    }

    #[test]
    fn six_digits_are_kept() {
        assert_eq!(rounded(123_456.78), 123_457.0);
        assert_eq!(rounded(0.001_234_567_8), 0.001_234_57);
        assert_eq!(rounded(12_345_678.0), 12_345_700.0);
        assert_eq!(rounded(0.0), 0.0);
    }

    proptest! {
        #[test]
        fn the_interval_holds_the_median_and_repeats(
            values in proptest::collection::vec(0.0f64..1e6, 1..30)
        ) {
            let interval = median_interval(&values).unwrap();
            prop_assert!(interval.low <= interval.median && interval.median <= interval.high);
            prop_assert_eq!(median_interval(&values), Some(interval));
        }
    }
}
