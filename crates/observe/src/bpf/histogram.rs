//! Wake-to-run times in buckets, and the recent part of them.

use std::sync::atomic::{AtomicU32, Ordering};

use quell_model::Nanos;

use super::abi::{BUCKET_MIN_LOG2, BUCKETS};

/// How often each length of time occurred. Eight buckets for each power of two: a quantile is at most
/// 12.5 % above the true value, never below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: [u32; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: [0; BUCKETS] }
    }
}

impl Histogram {
    pub(super) fn read(&mut self, shared: &[AtomicU32; BUCKETS]) {
        for (to, from) in self.counts.iter_mut().zip(shared) {
            // Counters without order among them: a reader may see a moment's mixture.
            *to = from.load(Ordering::Relaxed);
        }
    }

    /// What was added since `earlier`, a former reading of the same counters. They may have wrapped.
    #[must_use]
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let pairs = |at: usize| self.counts[at].wrapping_sub(earlier.counts[at]);
        Histogram { counts: std::array::from_fn(pairs) }
    }

    /// How many times were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|&count| u64::from(count)).sum()
    }

    /// The upper bound of the bucket below which `permille` of all times lie, e.g. 999 for p99.9. `None`
    /// if nothing was counted.
    pub fn quantile(&self, permille: u32) -> Option<Nanos> {
        let total = self.count();
        let rank = (total * u64::from(permille.min(1000))).div_ceil(1000).max(1);
        let mut seen = 0;
        self.buckets().find_map(|(bound, count)| {
            seen += count;
            (seen >= rank).then_some(bound)
        })
    }

    /// As [`Histogram::quantile`], but never among the longest `spared` times: a few outliers of another
    /// cause, such as stalls of a hypervisor, say nothing about what is usual. `None` if no more than
    /// those were counted.
    pub fn quantile_sparing(&self, permille: u32, spared: u64) -> Option<Nanos> {
        let total = self.count();
        let rank = (total * u64::from(permille.min(1000))).div_ceil(1000);
        let rank = rank.min(total.checked_sub(spared)?);
        let mut seen = 0;
        self.buckets().find_map(|(bound, count)| {
            seen += count;
            (rank > 0 && seen >= rank).then_some(bound)
        })
    }

    /// The buckets that are not empty: upper bound and count.
    pub fn buckets(&self) -> impl Iterator<Item = (Nanos, u64)> + '_ {
        let all = self.counts.iter().enumerate();
        all.filter(|&(_, &count)| count > 0).map(|(at, &count)| (bound(at), u64::from(count)))
    }
}

/// The longest time that a bucket counts; the last one counts all that is longer, too.
fn bound(bucket: usize) -> Nanos {
    let Some(at) = bucket.checked_sub(1) else { return Nanos((1 << BUCKET_MIN_LOG2) - 1) };
    let octave = BUCKET_MIN_LOG2 as usize + at / 8;
    Nanos((((8 + at % 8 + 1) as u64) << (octave - 3)) - 1)
}

const EPOCH: Nanos = Nanos::from_millis(250);
const EPOCHS: usize = 4;

/// The last second of a histogram that only grows.
pub(super) struct Recent {
    /// Readings at the last epochs' ends, the oldest at `oldest`.
    before: [Histogram; EPOCHS],
    oldest: usize,
    due: Nanos,
}

impl Recent {
    /// Begins now: what was counted earlier is not recent.
    pub fn new(now: Nanos, counted: &Histogram) -> Recent {
        Recent { before: std::array::from_fn(|_| counted.clone()), oldest: 0, due: now + EPOCH }
    }

    /// What was counted in the last second, as of the reading `counted`.
    pub fn at(&mut self, now: Nanos, counted: &Histogram) -> Histogram {
        self.pass(now, counted);
        self.so_far(counted)
    }

    /// Forgets what is older than a second.
    pub fn pass(&mut self, now: Nanos, counted: &Histogram) {
        // A reader that slept through several epochs has no readings of their ends: those count as one.
        if now >= self.due {
            self.before[self.oldest].clone_from(counted);
            self.oldest = (self.oldest + 1) % EPOCHS;
            self.due = now + EPOCH;
        }
    }

    /// What was counted since the last second's oldest reading.
    pub fn so_far(&self, counted: &Histogram) -> Histogram {
        counted.since(&self.before[self.oldest])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(buckets: &[(usize, u32)]) -> Histogram {
        let mut histogram = Histogram::default();
        buckets.iter().for_each(|&(at, count)| histogram.counts[at] = count);
        histogram
    }

    #[test]
    fn bounds_grow_by_an_eighth_at_most() {
        let bounds: Vec<u64> = (0..BUCKETS).map(|at| bound(at).0).collect();
        assert_eq!((bounds[0], bounds[1], bounds[8], bounds[9]), (255, 287, 511, 575));
        assert!(
            bounds.windows(2).all(|pair| pair[0] < pair[1] && pair[1] <= pair[0] + pair[0] / 8 + 1)
        );
        assert!(bound(BUCKETS - 1) > Nanos::from_secs(8));
    }

    #[test]
    fn a_quantile_is_the_bound_of_its_bucket() {
        let histogram = with(&[(1, 999), (9, 1)]);
        assert_eq!(histogram.quantile(999), Some(Nanos(287)));
        assert_eq!(histogram.quantile(1000), Some(Nanos(575)));
        assert_eq!(with(&[(9, 1)]).quantile(0), Some(Nanos(575)));
        assert_eq!(Histogram::default().quantile(999), None);
    }

    #[test]
    fn a_second_later_nothing_is_recent() {
        let counted = with(&[(3, 5)]);
        let mut recent = Recent::new(Nanos::ZERO, &Histogram::default());
        assert_eq!(recent.at(Nanos::from_millis(100), &counted).count(), 5);
        for epoch in 1..=3 {
            assert_eq!(recent.at(Nanos::from_millis(250 * epoch), &counted).count(), 5);
        }
        let later =
            (4..=5).map(|epoch| recent.at(Nanos::from_millis(250 * epoch), &counted).count());
        assert_eq!(later.last(), Some(0));
    }

    #[test]
    fn a_counter_that_wrapped_still_counts() {
        let before = with(&[(2, u32::MAX)]);
        assert_eq!(with(&[(2, 4)]).since(&before).count(), 5);
    }

    #[test]
    fn a_few_outliers_do_not_make_a_tail() {
        let mut histogram = Histogram::default();
        histogram.counts[10] = 500;
        histogram.counts[100] = 8;
        assert_eq!(histogram.quantile(999), Some(bound(100)));
        assert_eq!(histogram.quantile_sparing(999, 8), Some(bound(10)));
        histogram.counts[100] = 40;
        assert_eq!(histogram.quantile_sparing(999, 8), Some(bound(100)));
        assert_eq!(Histogram::default().quantile_sparing(999, 8), None);
    }
}
