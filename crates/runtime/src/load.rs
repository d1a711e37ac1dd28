//! What the scheduler sees of this application, for overload control (Caladan tells Breakwater the same): as the daemon
//! tells it, or alone as the runtime itself sees it.

use std::sync::atomic::Ordering;

use quell_model::Nanos;
use quell_shm::runtime::KthreadState;

use crate::clock;
use crate::kthread::{Shared, local, lock};

/// How fast the smoothed load follows: the weight of a tick (Caladan's figures).
const WEIGHT: f64 = 0.1;
const TICK: Nanos = Nanos::from_micros(10);

/// The load, smoothed.
#[derive(Debug, Default)]
pub(crate) struct Smoothed {
    at: Nanos,
    busy: Nanos,
    cores: f64,
}

impl Smoothed {
    /// The kthreads were busy for so long in all by now.
    fn update(&mut self, now: Nanos, busy: Nanos) -> f64 {
        let passed = now - self.at;
        if passed >= TICK {
            let cores = (busy - self.busy).0 as f64 / passed.0 as f64;
            let keep = (1.0 - WEIGHT).powf(passed.0 as f64 / TICK.0 as f64);
            self.cores = self.cores * keep + cores * (1.0 - keep);
            (self.at, self.busy) = (now, busy);
        }
        self.cores
    }
}

/// The queueing delay: the greatest of the kthreads' sums of what waits longest.
///
/// # Panics
/// This and the other two: when no uthread runs here.
pub fn queueing_delay() -> Nanos {
    let now = clock::now();
    let _still = local::hold();
    local::with_shared(|shared| {
        if let Some(told) = shared.cores().told() {
            return told.queueing_delay;
        }
        let injected = shared.inject.oldest().map_or(Nanos::ZERO, |since| now - since);
        shared.work(now).map(|work| work.delay()).max().unwrap_or(Nanos::ZERO).max(injected)
    })
}

/// Cores in use now; under the daemon those granted.
pub fn cores() -> usize {
    let _still = local::hold();
    local::with_shared(|shared| {
        if let Some(told) = shared.cores().told() {
            return told.cores;
        }
        shared.work(clock::now()).filter(|work| work.state == KthreadState::Running).count()
    })
}

/// Cores in use by uthreads, smoothed (weight 0.1 each 10 us).
pub fn load() -> f64 {
    let _still = local::hold();
    local::with_shared(|shared| match shared.cores().told() {
        Some(told) => told.load,
        None => lock(&shared.load).update(clock::now(), busy(shared)),
    })
}

fn busy(shared: &Shared) -> Nanos {
    let counters = shared.kthreads.iter().map(|kthread| &kthread.lines().counters);
    Nanos(counters.map(|counters| counters.busy_ns.load(Ordering::Relaxed)).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smoothed_load_nears_what_it_is() {
        let mut smoothed = Smoothed::default();
        let mut last = 0.0;
        for tick in 1..100u64 {
            let cores = smoothed.update(Nanos(tick * TICK.0), Nanos(tick * TICK.0 * 2));
            assert!(cores > last && cores < 2.0);
            last = cores;
        }
        assert!(last > 1.99);
    }
}
