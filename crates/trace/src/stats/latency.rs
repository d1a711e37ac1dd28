//! How long threads wait between their wake-up and their core.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use quell_model::{Nanos, ThreadName};
use serde::Serialize;

/// Names with a histogram of their own; those that come later share one.
const NAMES_MAX: usize = 1024;

/// Wakeup latency of the threads of one name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// The name; empty for the threads of all names beyond the first 1024.
    pub name: String,
    /// Wake-ups that ended with the thread on a core.
    pub wakeups: u64,
    /// Nanoseconds: the median.
    pub p50_ns: u64,
    /// Nanoseconds that one in ten exceeds.
    pub p90_ns: u64,
    /// Nanoseconds that one in a hundred exceeds.
    pub p99_ns: u64,
    /// Nanoseconds that one in a thousand exceeds.
    pub p999_ns: u64,
    /// Nanoseconds: the longest.
    pub max_ns: u64,
}

/// Wakeup latencies by the name of the thread.
#[derive(Debug, Default)]
pub struct Latencies {
    by_name: BTreeMap<ThreadName, Histogram<u64>>,
    others: Option<Histogram<u64>>,
}

impl Latencies {
    /// Adds the latency of one wake-up.
    pub fn add(&mut self, name: ThreadName, latency: Nanos) {
        let names = self.by_name.len();
        let histogram = match self.by_name.get_mut(&name) {
            Some(histogram) => histogram,
            None if names < NAMES_MAX => self.by_name.entry(name).or_insert_with(histogram),
            None => self.others.get_or_insert_with(histogram),
        };
        // It grows as far as there are numbers.
        let _ = histogram.record(latency.0);
    }

    /// The most wake-ups first.
    pub fn finish(self) -> Vec<Latency> {
        let named = self.by_name.into_iter().map(|(name, histogram)| (name.to_string(), histogram));
        let all = named.chain(self.others.map(|histogram| (String::new(), histogram)));
        let mut all: Vec<Latency> = all
            .map(|(name, histogram)| Latency {
                name,
                wakeups: histogram.len(),
                p50_ns: histogram.value_at_quantile(0.5),
                p90_ns: histogram.value_at_quantile(0.9),
                p99_ns: histogram.value_at_quantile(0.99),
                p999_ns: histogram.value_at_quantile(0.999),
                max_ns: histogram.max(),
            })
            .collect();
        all.sort_by(|a, b| b.wakeups.cmp(&a.wakeups).then_with(|| a.name.cmp(&b.name)));
        all
    }
}

/// One part in a hundred precise, up to minutes.
#[expect(clippy::expect_used, reason = "these bounds are valid")]
fn histogram() -> Histogram<u64> {
    let mut histogram = Histogram::new_with_bounds(1, 1 << 20, 2).expect("valid bounds");
    histogram.auto(true);
    histogram
}
