//! A crowd of threads that sleep, that wake at a stated rate, or that wake each other as fast as they can.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::thread::{Builder, JoinHandle};

use anyhow::{Context as _, Result};
use quell_load::now;
use quell_model::Nanos;
use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::Timespec;

/// What the crowd does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Doing {
    /// All sleep, and nobody wakes them.
    Rest,
    /// Timers wake them, evenly spread, so often a second altogether.
    Wake {
        /// Wake-ups a second.
        per_s: f64,
    },
    /// They stand in so many circles; in each a token goes round, and whoever gets it wakes the next.
    Pass {
        /// Circles.
        circles: usize,
    },
}

/// Each thread only waits for its word.
const STACK_BYTES: usize = 64 << 10;
/// Behind the start of timers, so that all threads know of it.
const LEAD: Nanos = Nanos::from_millis(50);

/// In a thread's word: the token is its.
const TOKEN: u32 = 1;
/// In a thread's word: there is something new to do.
const CALL: u32 = 2;

/// The threads; they end with the value.
pub struct Crowd {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// A cache line of each thread's own.
#[derive(Default)]
#[repr(align(64))]
struct Seat {
    word: AtomicU32,
    /// How often it woke for its work; only it writes.
    turns: AtomicU64,
}

/// The settings are written before [`CALL`] is given, with release, and read after it was taken, with acquire.
struct Shared {
    seats: Vec<Seat>,
    /// Between two timers of one thread; 0: no timers.
    period_ns: AtomicU64,
    begin_ns: AtomicU64,
    /// 0: tokens are dropped.
    circles: AtomicU64,
    is_over: AtomicBool,
}

impl Crowd {
    /// Starts them; they rest.
    ///
    /// # Errors
    /// When the host does not allow so many threads.
    pub fn start(threads: usize) -> Result<Crowd> {
        let shared = Arc::new(Shared {
            seats: (0..threads).map(|_| Seat::default()).collect(),
            period_ns: AtomicU64::new(0),
            begin_ns: AtomicU64::new(0),
            circles: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let mut crowd = Crowd { shared, threads: Vec::with_capacity(threads) };
        for index in 0..threads {
            let shared = Arc::clone(&crowd.shared);
            let thread = Builder::new().name(format!("crowd-{index}")).stack_size(STACK_BYTES);
            let thread = thread.spawn(move || shared.sit(index));
            crowd.threads.push(thread.with_context(|| {
                format!("start thread {index} of {threads} (ulimit -u, kernel.pid_max, vm.max_map_count)")
            })?);
        }
        Ok(crowd)
    }

    /// Has them do something else.
    pub fn set(&self, doing: Doing) {
        let shared = &*self.shared;
        let threads = shared.seats.len();
        let (period, circles) = match doing {
            Doing::Rest => (0, 0),
            Doing::Wake { per_s } => ((threads as f64 * 1e9 / per_s).max(1.0) as u64, 0),
            Doing::Pass { circles } => (0, circles.clamp(1, threads)),
        };
        // Relaxed: published by the calls.
        shared.period_ns.store(period, Relaxed);
        shared.begin_ns.store((now() + LEAD).0, Relaxed);
        shared.circles.store(circles as u64, Relaxed);
        shared.call();
        (0..circles).for_each(|index| shared.give(index, TOKEN));
    }

    /// How often they woke for their work so far.
    pub fn turns(&self) -> u64 {
        // Relaxed: counts alone.
        self.shared.seats.iter().map(|seat| seat.turns.load(Relaxed)).sum()
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        // Relaxed: published by the calls.
        self.shared.is_over.store(true, Relaxed);
        self.shared.call();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn call(&self) {
        (0..self.seats.len()).for_each(|index| self.give(index, CALL));
    }

    fn give(&self, index: usize, what: u32) {
        let Some(seat) = self.seats.get(index) else { return };
        // Pairs with the acquire of whoever takes it.
        seat.word.fetch_or(what, Release);
        let _ = futex::wake(&seat.word, futex::Flags::PRIVATE, 1);
    }

    /// What one of the threads does.
    fn sit(&self, index: usize) {
        let seat = &self.seats[index];
        let mut due = None;
        loop {
            wait(&seat.word, due);
            // Pairs with the release of whoever gave it.
            let given = seat.word.swap(0, Acquire);
            if given & CALL != 0 {
                if self.is_over.load(Relaxed) {
                    return;
                }
                due = self.first_timer(index);
            }
            if given & TOKEN != 0 {
                self.pass_on(index);
            }
            let now = now();
            if let Some(at) = due.filter(|at| *at <= now) {
                seat.turn();
                due = self.next_timer(at, now);
            }
        }
    }

    fn pass_on(&self, index: usize) {
        let circles = self.circles.load(Relaxed) as usize;
        if circles > 0 {
            self.seats[index].turn();
            // The circles interlace: each circle has every so manieth thread.
            let next = index + circles;
            self.give(if next < self.seats.len() { next } else { index % circles }, TOKEN);
        }
    }

    fn first_timer(&self, index: usize) -> Option<Nanos> {
        let (period, begin) = (self.period_ns.load(Relaxed), self.begin_ns.load(Relaxed));
        let share = u128::from(period) * index as u128 / self.seats.len() as u128;
        (period > 0).then(|| Nanos(begin + share as u64))
    }

    /// Timers that are over by now are left out: nobody catches up.
    fn next_timer(&self, at: Nanos, now: Nanos) -> Option<Nanos> {
        let period = self.period_ns.load(Relaxed);
        let passed = now.since(at).0.checked_div(period)?;
        Some(Nanos(at.0 + period * (passed + 1)))
    }
}

impl Seat {
    fn turn(&self) {
        // Relaxed: only this thread writes, and nothing is published by it.
        self.turns.store(self.turns.load(Relaxed) + 1, Relaxed);
    }
}

/// Waits until the word is not 0, or until then.
fn wait(word: &AtomicU32, due: Option<Nanos>) {
    let due = due.map(|due| Timespec {
        tv_sec: (due.0 / 1_000_000_000) as i64,
        tv_nsec: (due.0 % 1_000_000_000) as i64,
    });
    let any = std::num::NonZeroU32::MAX;
    loop {
        // Of a bit set the time is that of the clock, not a length.
        match futex::wait_bitset(word, futex::Flags::PRIVATE, 0, due.as_ref(), any) {
            Err(Errno::INTR) => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn turns_until(crowd: &Crowd, enough: u64) -> u64 {
        let (before, until) = (crowd.turns(), Instant::now() + Duration::from_secs(20));
        while crowd.turns() < before + enough && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        crowd.turns() - before
    }

    #[test]
    fn a_crowd_does_what_it_is_told_and_rests_in_between() {
        let crowd = Crowd::start(40).unwrap();
        assert_eq!(crowd.turns(), 0);
        for doing in [Doing::Wake { per_s: 2_000.0 }, Doing::Pass { circles: 3 }] {
            crowd.set(doing);
            assert!(turns_until(&crowd, 200) >= 200, "{doing:?}");
            crowd.set(Doing::Rest);
            // A thread that is in its iteration finishes it first, whenever it gets a core.
            let until = Instant::now() + Duration::from_secs(60);
            loop {
                let before = crowd.turns();
                std::thread::sleep(Duration::from_millis(100));
                if crowd.turns() == before {
                    break;
                }
                assert!(Instant::now() < until, "{doing:?} does not end");
            }
        }
    }

    #[test]
    fn a_token_reaches_every_thread_of_its_circle() {
        let crowd = Crowd::start(7).unwrap();
        crowd.set(Doing::Pass { circles: 2 });
        let all = |seats: &[Seat]| seats.iter().all(|seat| seat.turns.load(Relaxed) > 2);
        let until = Instant::now() + Duration::from_secs(20);
        while !all(&crowd.shared.seats) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(all(&crowd.shared.seats));
    }

    #[test]
    fn timers_are_spread_over_the_period_and_late_ones_left_out() {
        let crowd = Crowd::start(4).unwrap();
        let shared = &crowd.shared;
        shared.period_ns.store(1_000, Relaxed);
        shared.begin_ns.store(5_000, Relaxed);
        assert_eq!(shared.first_timer(0), Some(Nanos(5_000)));
        assert_eq!(shared.first_timer(3), Some(Nanos(5_750)));
        assert_eq!(shared.next_timer(Nanos(5_000), Nanos(5_010)), Some(Nanos(6_000)));
        assert_eq!(shared.next_timer(Nanos(5_000), Nanos(8_500)), Some(Nanos(9_000)));
        shared.period_ns.store(0, Relaxed);
        assert_eq!(shared.first_timer(3), None);
        assert_eq!(shared.next_timer(Nanos(5_000), Nanos(5_010)), None);
    }
}
