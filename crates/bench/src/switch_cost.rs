//! What a switch costs on a core, measured in the run that needs it.

use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use quell_model::{CoreId, CoreSet};
use rustix::thread::futex;

use crate::host::pin;

/// How long two threads hand a word to and fro.
const TIME: Duration = Duration::from_millis(300);

/// Microseconds for a wake-up that switches to the woken thread, and the switch back when it sleeps:
/// what each wake-up of a service takes from batch work beneath it. Two threads on `core` hand a
/// futex word to and fro; a round of the word is two wake-ups with a switch each.
///
/// # Errors
/// When the threads cannot be placed.
pub fn measure(core: CoreId) -> Result<f64> {
    let word = AtomicU32::new(0);
    let over = AtomicU32::new(0);
    // Acquire and Release order nothing but the word itself here; SeqCst would do as well.
    let pass = |mine: u32| {
        while word.load(Acquire) != mine && over.load(Relaxed) == 0 {
            let _ = futex::wait(&word, futex::Flags::PRIVATE, 1 - mine, None);
        }
        word.store(1 - mine, Release);
        let _ = futex::wake(&word, futex::Flags::PRIVATE, 1);
    };
    let end = |last: u32| {
        over.store(1, Relaxed);
        word.store(last, Release);
        let _ = futex::wake(&word, futex::Flags::PRIVATE, 2);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if pin(0, &CoreSet::of(core)).is_err() {
                end(0);
            }
            while over.load(Relaxed) == 0 {
                pass(1);
            }
        });
        let driver = scope.spawn(|| {
            let placed = pin(0, &CoreSet::of(core));
            let (start, mut rounds) = (Instant::now(), 0u32);
            while placed.is_ok() && start.elapsed() < TIME && over.load(Relaxed) == 0 {
                pass(0);
                rounds += 1;
            }
            let passed = start.elapsed();
            end(1);
            placed.map(|()| passed.as_secs_f64() * 1e6 / f64::from(rounds.max(1)))
        });
        driver.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?.context("place a thread")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measured_cost_is_a_positive_number() {
        let cost = measure(CoreId(0)).unwrap();
        assert!(cost.is_finite() && cost > 0.0, "{cost}");
    }

    #[test]
    #[ignore = "test-all: needs a quiet host"]
    fn a_switch_takes_time() {
        assert!(measure(CoreId(0)).unwrap() > 0.05);
    }
}
