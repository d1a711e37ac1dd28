//! The wasted time of the whole host.

use quell_model::{CoreSet, Nanos};

use super::Waste;
use super::waiters::Beside;

/// Adds up SchedViz's three figures, over the pairs that affinity allows and no policy explains.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    since: Nanos,
    /// What is wasted at the moment: whether anything, cores, threads.
    rates: [u64; 3],
    /// Sums of rate × nanoseconds.
    sums: [u128; 3],
}

impl Tally {
    /// From `at` on the waiters of each queue stand like this.
    pub(super) fn set<'a>(&mut self, at: Nanos, queues: impl Iterator<Item = &'a Beside>) {
        let time = at.since(std::mem::replace(&mut self.since, at));
        for (sum, rate) in self.sums.iter_mut().zip(self.rates) {
            *sum += u128::from(rate) * u128::from(time.0);
        }
        let (mut idle, mut overloaded, mut waiters) = (CoreSet::EMPTY, 0, 0);
        for beside in queues {
            overloaded += 1;
            waiters += beside.waiters;
            idle = idle.union(&beside.cores);
        }
        let idle = idle.len() as u64;
        self.rates = [u64::from(idle > 0), idle.min(overloaded), idle.min(waiters)];
    }

    pub(super) fn sums(&self) -> Waste {
        let [any_s, cores_s, threads_s] = self.sums.map(|sum| sum as f64 / 1e9);
        Waste { any_s, cores_s, threads_s }
    }
}
