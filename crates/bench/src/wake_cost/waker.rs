//! Wakes a thread again and again from another core, at random times that a seed determines.
#![allow(unsafe_code)]

use std::io;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use quell_load::now;
use quell_model::{CoreId, CoreSet, Nanos};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::account::Account;
use super::woken::Woken;
use crate::host::{pin, set_nice};

/// As the client of `quell bench services`: a foreign thread on its core would delay wake-ups.
const NICE: i32 = -10;
/// A call that is not handled for so long never will be.
const HANDLED_MAX: Nanos = Nanos::from_secs(10);

// Commands of include/uapi/linux/membarrier.h.
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// What is done at each of the times.
#[derive(Clone, Copy)]
pub enum Call<'a> {
    /// Nothing: the core of the waker is busy as in all other arms.
    Nothing,
    /// Each core that runs a thread of this process is interrupted, and waited for.
    Interrupt,
    /// The thread is woken, unless it still handles the call before: so that each call is a wake-up.
    Wake(&'a Woken),
}

/// When.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// The waker's core.
    pub core: CoreId,
    /// Calls a second, in a Poisson process.
    pub rate: f64,
    /// Its seed.
    pub seed: u64,
    /// Calls before the accounts are read.
    pub warmup: Duration,
    /// From one reading to the other.
    pub time: Duration,
}

/// What happened between two readings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Driven {
    /// The accounts before and after.
    pub accounts: [Account; 2],
    /// Calls that were made.
    pub calls: u64,
}

/// Calls on a thread of its own until the time is over.
///
/// # Errors
/// When the thread cannot be placed, a call fails or is not handled, or an account cannot be read.
pub fn drive(
    schedule: &Schedule,
    call: Call,
    account: &(dyn Fn() -> Result<Account> + Sync),
) -> Result<Driven> {
    std::thread::scope(|scope| {
        let waker = std::thread::Builder::new().name("waker".into());
        let waker = waker.spawn_scoped(scope, || {
            pin(0, &CoreSet::of(schedule.core)).context("place the waker")?;
            set_nice(0, NICE).context("favour the waker")?;
            if matches!(call, Call::Interrupt) {
                membarrier(REGISTER_PRIVATE_EXPEDITED).context("membarrier")?;
            }
            let mut waker = Waker::new(schedule, call);
            waker.run_for(schedule.warmup)?;
            let (before, calls) = (account()?, waker.calls);
            waker.run_for(schedule.time)?;
            Ok(Driven { accounts: [before, account()?], calls: waker.calls - calls })
        });
        let waker = waker.context("start the waker")?;
        waker.join().map_err(|_| anyhow!("the waker panicked"))?
    })
}

struct Waker<'a> {
    call: Call<'a>,
    rate: f64,
    random: ChaCha8Rng,
    calls: u64,
    /// When the next call is due.
    next: Nanos,
    /// When the last one was made.
    last: Nanos,
    /// What of the thread's answers was taken.
    taken: u64,
}

impl<'a> Waker<'a> {
    fn new(schedule: &Schedule, call: Call<'a>) -> Waker<'a> {
        let random = ChaCha8Rng::seed_from_u64(schedule.seed);
        let start = now();
        Waker { call, rate: schedule.rate, random, calls: 0, next: start, last: start, taken: 0 }
    }

    fn run_for(&mut self, time: Duration) -> Result<()> {
        let end = now() + Nanos(time.as_nanos() as u64);
        // Reading an account took some time; what was due meanwhile is left out.
        self.next = self.next.max(now());
        while self.next < end {
            while now() < self.next {
                std::hint::spin_loop();
            }
            self.make().context("wake")?;
            self.next += gap(self.rate, self.random.random());
        }
        while now() < end {
            std::hint::spin_loop();
        }
        Ok(())
    }

    fn make(&mut self) -> Result<()> {
        match self.call {
            Call::Nothing => return Ok(()),
            Call::Interrupt => membarrier(PRIVATE_EXPEDITED)?,
            Call::Wake(woken) => {
                // Its count is asked for and nothing else: a system call on the connection would take its lock from the thread.
                if woken.handled() < self.calls {
                    if now() - self.last > HANDLED_MAX {
                        bail!("the woken thread handles nothing any more");
                    }
                    return Ok(());
                }
                if self.taken < self.calls {
                    woken.take_answers()?;
                    self.taken = self.calls;
                }
                self.last = now();
                woken.call()?;
            }
        }
        self.calls += 1;
        Ok(())
    }
}

/// An exponential gap of the mean that belongs to the rate, from a number of 0 to 1.
fn gap(rate: f64, uniform: f64) -> Nanos {
    Nanos((-(1.0 - uniform).ln() / rate * 1e9) as u64)
}

fn membarrier(command: libc::c_int) -> io::Result<()> {
    // SAFETY: no pointer is passed; the call only orders memory.
    match unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_have_the_mean_of_their_rate() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let sum: u64 = (0..100_000).map(|_| gap(20_000.0, random.random()).0).sum();
        let mean_us = sum as f64 / 100_000.0 / 1e3;
        assert!((49.0..51.0).contains(&mean_us), "{mean_us}");
        assert_eq!(gap(1.0, 0.0), Nanos::ZERO);
    }
}
