//! Timers.

use std::time::{Duration, Instant};

pub use crate::thread::{sleep, sleep_until};

/// Goes off once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer {
    deadline: Instant,
}

impl Timer {
    /// Goes off after so long.
    pub fn after(duration: Duration) -> Timer {
        Timer::at(Instant::now() + duration)
    }

    /// Goes off then.
    pub fn at(deadline: Instant) -> Timer {
        Timer { deadline }
    }

    /// Waits until it goes off; returns at once if it has.
    pub fn wait(&self) {
        sleep_until(self.deadline);
    }

    /// How long it is until then: the timeout for whatever else has to be done by then.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

/// Goes off again and again, at multiples of its period: it does not drift.
///
/// ```
/// # let runtime = quell_runtime::Runtime::builder().daemon(quell_runtime::Daemon::Never).build()?;
/// # runtime.run(|| {
/// use std::time::Duration;
/// let mut interval = quell_runtime::time::Interval::new(Duration::from_millis(1));
/// for _ in 0..3 {
///     interval.tick();
/// }
/// # });
/// # Ok::<(), quell_runtime::BuildError>(())
/// ```
#[derive(Debug)]
pub struct Interval {
    first: Instant,
    next: Instant,
    period: Duration,
}

impl Interval {
    /// Goes off each `period` from now.
    pub fn new(period: Duration) -> Interval {
        let first = Instant::now() + period;
        Interval { first, next: first, period }
    }

    /// Waits until it goes off next. If that has passed, it returns at once, so none is left out.
    pub fn tick(&mut self) {
        sleep_until(self.next);
        self.next += self.period;
    }

    /// When it went off first, or will.
    pub fn first_at(&self) -> Instant {
        self.first
    }

    /// When it goes off next.
    pub fn next_at(&self) -> Instant {
        self.next
    }
}
