//! The clock: CLOCK_MONOTONIC, read by a counter of the processor where the kernel does so itself.
//!
//! The kernel's own way takes 20 to 40 ns, as it orders the read and follows every correction. A kthread reads the counter
//! itself and asks the kernel once a millisecond: clocks are slewed by 500 ppm at most, so it is off by half a microsecond at
//! most. Such times are for ages and quanta; deadlines that the application names are compared with them and may be as much off.
//!
//! Even the counter takes as long as a quarter of a switch. While switches follow each other closely, the scheduler reads it at
//! every eighth [`Steps::step`] alone: see there for how old its times may be.

use std::cell::Cell;
use std::sync::OnceLock;

use quell_model::Nanos;
pub(crate) use quell_os::clock::now;

/// How long the counter is trusted.
const TRUSTED: Nanos = Nanos::from_millis(1);
/// How long the counter's rate is measured for: the error, of reading the kernel's clock, is below 50 ppm.
const MEASURED: std::time::Duration = std::time::Duration::from_millis(2);
const READINGS: usize = 3;
const SHIFT: u32 = 32;

/// A reader of the clock for one thread.
#[derive(Debug)]
pub(crate) struct Clock {
    /// Nanoseconds of a tick times 2^32; zero: there is no counter.
    rate: u64,
    /// Ticks that a reading is trusted for.
    trusted: u64,
    ticks: Cell<u64>,
    at: Cell<Nanos>,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        static RATE: OnceLock<u64> = OnceLock::new();
        let rate = *RATE.get_or_init(measure);
        // Without a counter none is trusted.
        let trusted = (TRUSTED.0 << SHIFT).checked_div(rate).unwrap_or(0);
        let (ticks, at) = pair();
        Clock { rate, trusted, ticks: Cell::new(ticks), at: Cell::new(at) }
    }

    /// The time, off by half a microsecond at most.
    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        // A counter that runs backwards, because the thread moved, is a large step forwards here.
        let passed = ticks().wrapping_sub(self.ticks.get());
        if passed >= self.trusted {
            return self.ask();
        }
        Nanos(self.at.get().0 + ((passed * self.rate) >> SHIFT))
    }

    #[cold]
    fn ask(&self) -> Nanos {
        let (ticks, at) = pair();
        self.ticks.set(ticks);
        self.at.set(at);
        at
    }
}

/// Steps to a reading of the clock, while they are short.
const STEPS: u32 = 8;
/// What a short step takes at most, on average over those since the last reading.
const SHORT: Nanos = Nanos(250);

/// The time of a kthread's scheduler, which asks for it at each switch and each time that it makes a uthread ready: a *step*.
///
/// The clock is read at each step; or at each eighth, once and while steps take 250 ns or less on average. So a time may be too
/// old by the seven steps before it: by 2 us, but for a uthread that runs for long after short ones. That one's time of running
/// is missing until a reading: at its eighth call of this library, when nothing is ready any more, or after seven steps.
/// Times of one kthread only grow, by a nanosecond a step at least, so that they order what they stamp.
#[derive(Debug)]
pub(crate) struct Steps {
    clock: Clock,
    /// The last time that was told.
    told: Cell<Nanos>,
    /// When the clock was last read.
    read: Cell<Nanos>,
    /// Steps until the clock is to be read, now and just after it was.
    left: Cell<u32>,
    granted: Cell<u32>,
}

impl Steps {
    pub(crate) fn new() -> Steps {
        let clock = Clock::new();
        let now = clock.now();
        Steps {
            clock,
            told: Cell::new(now),
            read: Cell::new(now),
            left: Cell::new(0),
            granted: Cell::new(0),
        }
    }

    /// The time of a step.
    #[inline]
    pub(crate) fn step(&self) -> Nanos {
        let left = self.left.get();
        if left == 0 {
            return self.look();
        }
        self.left.set(left - 1);
        let now = Nanos(self.told.get().0 + 1);
        self.told.set(now);
        now
    }

    #[inline(never)]
    fn look(&self) -> Nanos {
        let (before, steps) = (self.read.get(), self.granted.get() + 1);
        let now = self.now();
        if now - before <= Nanos(SHORT.0 * u64::from(steps)) {
            self.left.set(STEPS - 1);
            self.granted.set(STEPS - 1);
        }
        now
    }

    /// The time now, by the clock. The next step reads it, too.
    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        let now = self.clock.now().max(Nanos(self.told.get().0 + 1));
        self.told.set(now);
        self.read.set(now);
        self.left.set(0);
        self.granted.set(0);
        now
    }

    /// When the clock was last read.
    #[inline]
    pub(crate) fn last_read(&self) -> Nanos {
        self.read.get()
    }

    /// The time that was last told.
    #[inline]
    pub(crate) fn last(&self) -> Nanos {
        self.told.get()
    }
}

/// The counter and the kernel's clock at one time: the closest of a few readings, as the thread may be interrupted in any one.
fn pair() -> (u64, Nanos) {
    let read = || {
        let (before, at, after) = (ticks(), now(), ticks());
        let width = after.wrapping_sub(before);
        (width, before.wrapping_add(width / 2), at)
    };
    let (_, ticks, at) = (0..READINGS).fold(read(), |best, _| best.min(read()));
    (ticks, at)
}

/// Nanoseconds of a tick times 2^32; zero where the kernel does not trust the counter.
fn measure() -> u64 {
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let trusted = std::fs::read_to_string(source).is_ok_and(|source| source.trim() == "tsc");
    if !trusted || cfg!(not(target_arch = "x86_64")) {
        return 0;
    }
    let begin = pair();
    std::thread::sleep(MEASURED);
    let end = pair();
    let passed = end.0.wrapping_sub(begin.0);
    // Slower than 1 MHz or faster than 1 THz: no such counter.
    let rate = ((end.1 - begin.1).0 << SHIFT).checked_div(passed).unwrap_or(0);
    if (1 << (SHIFT - 10)..1 << (SHIFT + 10)).contains(&rate) { rate } else { 0 }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn ticks() -> u64 {
    // SAFETY: the instruction is part of x86_64 and touches no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_follows_the_kernels() {
        let clock = Clock::new();
        for _ in 0..50_000 {
            let (before, seen, after) = (now(), clock.now(), now());
            assert!(seen + Nanos(2_000) >= before && seen <= after + Nanos(2_000));
        }
    }
    #[test]
    fn times_of_steps_only_grow_and_are_never_ahead_of_the_clock_by_more_than_their_number() {
        let steps = Steps::new();
        let mut last = steps.last();
        for round in 0..20_000u64 {
            let seen = if round % 1_000 == 0 { steps.now() } else { steps.step() };
            assert!(seen > last);
            assert!(seen <= now() + Nanos(2_000));
            last = seen;
        }
    }

    #[test]
    fn after_eight_steps_without_a_reading_the_time_is_that_of_the_clock() {
        let steps = Steps::new();
        // However short they were, and whatever was granted to them.
        assert!((0..100).all(|_| steps.step() > Nanos::ZERO));
        let before = now();
        while now() < before + Nanos::from_millis(2) {
            std::hint::spin_loop();
        }
        let seen = (0..STEPS).map(|_| steps.step()).max().unwrap();
        assert!(seen + Nanos(2_000) >= before + Nanos::from_millis(2));
    }
}
