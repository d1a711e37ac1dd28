//! A fault that is planted: a SCHED_FIFO thread above a service takes its core for short bursts at random. Intervals
//! that do not see it are worth nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use quell_load::now;
use quell_model::{CoreId, CoreSet, Nanos};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::host::{Policy, pin, set_policy};

/// Above services in their own classes, below the threads of interrupts.
const PRIORITY: i32 = 40;
/// Share of the core's time that the bursts take: a hundred times as many requests as lie beyond a p99.9 meet none.
const SHARE: f64 = 0.01;
/// Shortest and longest burst.
const BURST_MIN: Nanos = Nanos::from_micros(20);
const BURST_MAX: Nanos = Nanos::from_millis(200);

/// Bursts that delay about one request in a hundred so that a tail becomes `times` as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bursts {
    /// Length of one.
    pub length: Nanos,
    /// From the end of one to the start of the next, in the mean.
    pub gap: Nanos,
}

impl Bursts {
    /// For a service whose tail and median latency are known.
    ///
    /// A request that a burst of length L meets waits between 0 and L beside its usual time: the longest tenth, which is
    /// what lies beyond the p99.9 of all, waits 0.9 L.
    pub fn for_tail(tail: Nanos, median: Nanos, times: f64) -> Bursts {
        let wanted = tail.0 as f64 * times - median.0 as f64;
        let length = Nanos((wanted.max(0.0) / 0.9) as u64).clamp(BURST_MIN, BURST_MAX);
        Bursts { length, gap: Nanos((length.0 as f64 * (1.0 - SHARE) / SHARE) as u64) }
    }
}

/// Bursts under way, until dropped.
pub struct Planted {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Planted {
    /// Begins with them on a core.
    ///
    /// # Errors
    /// When the thread cannot be started, placed or raised.
    pub fn start(bursts: Bursts, core: CoreId, seed: u64) -> Result<Planted> {
        let end = Arc::new(AtomicBool::new(false));
        let (ended, (tell, told)) = (end.clone(), std::sync::mpsc::channel());
        let thread = std::thread::Builder::new().name("bursts".into());
        let thread = thread.spawn(move || {
            let placed =
                pin(0, &CoreSet::of(core)).and_then(|()| set_policy(0, Policy::Fifo(PRIORITY)));
            let failed = placed.is_err();
            // Nobody listens any more only if the benchmark is over.
            let _ = tell.send(placed);
            if !failed {
                burst(bursts, &ended, seed);
            }
        });
        let planted = Planted { end, thread: Some(thread.context("start a thread")?) };
        told.recv()
            .context("the thread of bursts is gone")?
            .context("raise the thread of bursts")?;
        Ok(planted)
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        // Relaxed: a flag alone, nothing is published by it.
        self.end.store(true, Ordering::Relaxed);
        // A thread that panicked has ended as well.
        self.thread.take().map(JoinHandle::join);
    }
}

fn burst(bursts: Bursts, end: &AtomicBool, seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // Relaxed: as in `drop`.
    while !end.load(Ordering::Relaxed) {
        let uniform: f64 = rng.random();
        let gap = -(1.0 - uniform).ln() * bursts.gap.0 as f64;
        std::thread::sleep(Duration::from_nanos(gap as u64));
        let until = now() + bursts.length;
        while now() < until {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_take_a_hundredth_of_the_core_and_reach_beyond_the_tail() {
        let (tail, median) = (Nanos::from_micros(300), Nanos::from_micros(40));
        let bursts = Bursts::for_tail(tail, median, 1.2);
        let share = bursts.length.0 as f64 / (bursts.length + bursts.gap).0 as f64;
        assert!((share - SHARE).abs() < 1e-4, "{share}");
        // The 90th percentile of the waits lies at 1.2 times the tail.
        let reached = 0.9 * bursts.length.0 as f64 + median.0 as f64;
        assert!((reached / tail.0 as f64 - 1.2).abs() < 1e-3);
    }

    #[test]
    fn a_tail_of_nothing_still_gets_a_burst() {
        assert_eq!(Bursts::for_tail(Nanos::ZERO, Nanos::from_micros(5), 1.2).length, BURST_MIN);
    }
}
