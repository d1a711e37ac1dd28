//! Distributions of times: recording, and the quantiles that reports show.

use hdrhistogram::Histogram;
use quell_model::Nanos;
use serde::{Deserialize, Serialize};

/// Longest time told apart: 100 s. Longer ones count as this.
const LONGEST_NS: u64 = 100_000_000_000;

/// Records times into an HDR histogram of three digits (0.1 % of the value).
#[derive(Clone, Debug)]
pub struct Recorder(Histogram<u64>);

impl Default for Recorder {
    fn default() -> Self {
        Recorder::new()
    }
}

impl Recorder {
    /// An empty recorder, its memory already touched: recording never faults a page in.
    pub fn new() -> Recorder {
        #[expect(clippy::expect_used, reason = "the bounds are constants that the crate accepts")]
        let mut histogram =
            Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("valid histogram bounds");
        histogram.reset();
        Recorder(histogram)
    }

    /// Adds one time.
    #[inline]
    pub fn record(&mut self, time: Nanos) {
        self.0.saturating_record(time.0);
    }

    /// Adds all times of another recorder.
    pub fn merge(&mut self, other: &Recorder) {
        // Both have the same bounds, so nothing can be out of range.
        let _ = self.0.add(&other.0);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.0.reset();
    }

    /// How many times were recorded.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The time that a share `quantile` (0 to 1) does not exceed, zero if none was recorded.
    pub fn at(&self, quantile: f64) -> Nanos {
        if self.0.is_empty() { Nanos::ZERO } else { Nanos(self.0.value_at_quantile(quantile)) }
    }

    /// The quantiles that reports show.
    pub fn summary(&self) -> Latency {
        let us = |quantile| self.at(quantile).0 as f64 / 1e3;
        Latency {
            count: self.count(),
            mean_us: self.0.mean() / 1e3,
            min_us: if self.0.is_empty() { 0.0 } else { self.0.min() as f64 / 1e3 },
            p50_us: us(0.5),
            p90_us: us(0.9),
            p99_us: us(0.99),
            p999_us: us(0.999),
            p9999_us: us(0.9999),
            max_us: us(1.0),
        }
    }
}

impl FromIterator<Nanos> for Recorder {
    fn from_iter<I: IntoIterator<Item = Nanos>>(times: I) -> Recorder {
        let mut recorder = Recorder::new();
        times.into_iter().for_each(|time| recorder.record(time));
        recorder
    }
}

/// Quantiles of a distribution of times, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// How many times.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Shortest.
    pub min_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90 %.
    pub p90_us: f64,
    /// 99 %.
    pub p99_us: f64,
    /// 99.9 %.
    pub p999_us: f64,
    /// 99.99 %.
    pub p9999_us: f64,
    /// Longest.
    pub max_us: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_a_known_distribution() {
        let all: Recorder = (1..=10_000).map(Nanos::from_micros).collect();
        let summary = all.summary();
        let near = |is: f64, should: f64| (is / should - 1.0).abs() < 0.002;
        assert!(near(summary.p50_us, 5_000.0) && near(summary.p99_us, 9_900.0));
        assert!(near(summary.p9999_us, 9_999.0) && near(summary.max_us, 10_000.0));
    }

    #[test]
    fn an_empty_distribution_is_all_zero() {
        assert_eq!(Recorder::new().summary(), Latency::default());
    }

    #[test]
    fn times_beyond_the_range_still_count() {
        let one: Recorder = [Nanos::from_secs(1_000)].into_iter().collect();
        assert_eq!(one.count(), 1);
        assert!(one.at(1.0) >= Nanos::from_secs(99));
    }
}
