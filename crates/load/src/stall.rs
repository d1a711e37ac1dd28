//! Time that a spinning thread lost, seen from inside.
//!
//! A thread that never sleeps reads the clock all the time. A gap between two readings means that
//! it did not run: with a context switch in it, another thread had the core; without one, an
//! interrupt or the hypervisor did. On a VM the second kind sets the floor of every tail latency
//! measured there, so benchmarks must know its windows.

use quell_model::Nanos;
use serde::{Deserialize, Serialize};

use crate::clock::now;
use crate::rusage::context_switches;

/// A gap counts as a stall above this.
pub const STALL_THRESHOLD: Nanos = Nanos::from_micros(100);

/// How old the count of context switches may get. A gap is blamed on a switch at most this long
/// before it; one `getrusage` a millisecond costs 0.03 % of a core.
const SWITCHES_AGE_MAX: Nanos = Nanos::from_millis(1);

/// Stalls kept; later ones are counted only. At 20 a second this is an hour.
const STALLS_MAX: usize = 65_536;

/// What the thread was doing when time got lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activity {
    /// User code only.
    Spin,
    /// Asking which sockets are ready.
    Poll,
    /// Reading a socket.
    Read,
    /// Writing a socket; on loopback this runs the receiver's softirq too.
    Write,
    /// Sleeping: the wake-up was late.
    Sleep,
}

/// A window in which the thread did not run, or one system call took long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stall {
    /// Last clock reading before.
    pub start_ns: Nanos,
    /// First clock reading after.
    pub end_ns: Nanos,
    /// The thread was switched out at most a millisecond before the end: somebody ran here. Without,
    /// it was an interrupt or the hypervisor.
    pub switched: bool,
    /// What the thread was doing.
    pub during: Activity,
}

impl Stall {
    /// Whether the window and `[start, end]` share an instant.
    pub fn overlaps(&self, start: Nanos, end: Nanos) -> bool {
        self.start_ns <= end && start <= self.end_ns
    }
}

/// All stalls of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stalls {
    /// The shortest gap that counts.
    pub threshold_ns: Nanos,
    /// The stalls, in order of time.
    pub windows: Vec<Stall>,
    /// Stalls beyond the room for windows.
    pub unrecorded: u64,
}

impl Stalls {
    /// Time lost without a context switch: to interrupts and the hypervisor.
    pub fn unswitched(&self) -> Nanos {
        self.windows
            .iter()
            .filter(|stall| !stall.switched)
            .fold(Nanos::ZERO, |sum, stall| sum + stall.end_ns.since(stall.start_ns))
    }
}

/// The clock of a spinning thread: reads the time and notices gaps between readings.
///
/// Belongs to one thread, because context switches are counted for the thread that reads.
pub struct StallClock {
    last: Nanos,
    switches: u64,
    switches_at: Nanos,
    windows: Vec<Stall>,
    unrecorded: u64,
}

impl StallClock {
    /// Starts watching now, on the calling thread.
    pub fn start() -> StallClock {
        let at = now();
        StallClock {
            last: at,
            switches: context_switches(),
            switches_at: at,
            windows: Vec::with_capacity(STALLS_MAX),
            unrecorded: 0,
        }
    }

    /// The present; records a stall if the time since the last call is too long. `during` says what
    /// was done since then.
    #[inline]
    pub fn tick(&mut self, during: Activity) -> Nanos {
        let at = now();
        if at.since(self.last) > STALL_THRESHOLD {
            self.record(at, during);
        } else if at.since(self.switches_at) > SWITCHES_AGE_MAX {
            self.switches = context_switches();
            self.switches_at = at;
        }
        self.last = at;
        at
    }

    #[cold]
    fn record(&mut self, at: Nanos, during: Activity) {
        let switches = context_switches();
        let switched = switches != self.switches;
        self.switches = switches;
        self.switches_at = at;
        if self.windows.len() == STALLS_MAX {
            self.unrecorded += 1;
            return;
        }
        self.windows.push(Stall { start_ns: self.last, end_ns: at, switched, during });
    }

    /// The thread slept until now and meant to until `due`: only what is beyond counts.
    pub fn woke(&mut self, due: Nanos) {
        let at = now();
        (self.switches, self.switches_at) = (context_switches(), at);
        if at.since(due) > STALL_THRESHOLD {
            self.last = due;
            self.record(at, Activity::Sleep);
        }
        self.last = at;
    }

    /// What was seen so far.
    pub fn finish(self) -> Stalls {
        Stalls { threshold_ns: STALL_THRESHOLD, windows: self.windows, unrecorded: self.unrecorded }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_sleep_is_a_stall_with_a_switch() {
        let mut clock = StallClock::start();
        clock.tick(Activity::Spin);
        std::thread::sleep(Duration::from_millis(2));
        let end = clock.tick(Activity::Poll);
        let stalls = clock.finish();
        let last = stalls.windows.last().unwrap();
        assert!(last.switched && last.end_ns == end && last.during == Activity::Poll);
        assert!(last.end_ns.since(last.start_ns) >= Nanos::from_millis(2));
    }

    #[test]
    fn a_sleep_that_ends_in_time_is_no_stall() {
        let mut clock = StallClock::start();
        std::thread::sleep(Duration::from_millis(2));
        clock.woke(now());
        assert_eq!(clock.windows, []);
        let due = now();
        std::thread::sleep(Duration::from_millis(1));
        clock.woke(due);
        let late = clock.finish().windows[0];
        assert!(late.start_ns == due && late.during == Activity::Sleep && !late.switched);
    }

    #[test]
    fn windows_overlap_where_they_share_an_instant() {
        let stall = Stall {
            start_ns: Nanos(10),
            end_ns: Nanos(20),
            switched: false,
            during: Activity::Spin,
        };
        assert!(stall.overlaps(Nanos(0), Nanos(10)) && stall.overlaps(Nanos(12), Nanos(13)));
        assert!(!stall.overlaps(Nanos(0), Nanos(9)) && !stall.overlaps(Nanos(21), Nanos(30)));
    }
}
