//! When a generator may sleep: a core that never halts, beside one that is busy, is stopped by a hypervisor more often.
//!
//! It sleeps only while no answer is outstanding and nothing is due for longer than twice the time that nearly all of
//! its own wake-ups take, which it measures as it goes; it wakes early by as much and spins.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::num::NonZeroU64;

use quell_model::Nanos;
use rustix::thread::{ClockId, Timespec, clock_nanosleep_absolute, set_current_timer_slack};
use serde::{Deserialize, Serialize};

use crate::clock::now;
use crate::latency::Recorder;

/// What a generator does while it has nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Idle {
    /// Spins: it is never late by a wake-up.
    #[default]
    Spin,
    /// Sleeps where no answer is outstanding and time is left.
    Sleep,
    /// Sleeps until an answer comes or something is due, and so leaves the core to others. Latencies then contain its
    /// wake-ups: give it a priority above the threads that it shares the core with.
    Wait,
}

/// Sleeps by which wake-ups are known before the first request.
const FIRST_SLEEPS: u32 = 100;
/// Length of one of them.
const FIRST_SLEEP: Nanos = Nanos::from_micros(50);
/// Wake-ups after which their quantile is taken again.
const SLEEPS_PER_LOOK: u64 = 1_000;
/// A wake-up counts as lasting at least and at most this: the quantile of few may be that of a stop.
const WAKE_UP_MIN: Nanos = Nanos::from_micros(5);
const WAKE_UP_MAX: Nanos = Nanos::from_millis(1);
/// No sleep is longer, so that a wish to stop is heard.
pub(crate) const SLEEP_MAX: Nanos = Nanos::from_millis(100);

/// The sleeps of a generator's thread.
pub(crate) struct Sleeper {
    wake_ups: Recorder,
    /// What 99 % of the wake-ups took at the last look.
    pub wake_up_p99: Nanos,
    /// Time slept.
    pub slept: Nanos,
    warmth: Option<Warmth>,
}

/// A connection to itself. A byte over it after a sleep takes the way of the next request through the kernel, which finds
/// caches then as those of a client that spins.
struct Warmth {
    near: TcpStream,
    far: TcpStream,
}

impl Warmth {
    fn open() -> io::Result<Warmth> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        let (far, _) = listener.accept()?;
        for end in [&near, &far] {
            end.set_nodelay(true)?;
            end.set_nonblocking(true)?;
        }
        Ok(Warmth { near, far })
    }

    /// What fails here is of no account: the next request finds colder caches.
    fn pass(&self) {
        let _ = (&self.near).write(&[0]);
        let _ = (&self.far).read(&mut [0; 16]);
    }
}

impl Sleeper {
    /// Measures the wake-ups of the calling thread, and makes its timers exact.
    pub fn start() -> Sleeper {
        // Without it the kernel may be 50 us late with each timer. A refusal shows in what is measured next.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let (wake_ups, wake_up_p99) = (Recorder::new(), WAKE_UP_MAX);
        let warmth = Warmth::open().ok();
        let mut sleeper = Sleeper { wake_ups, wake_up_p99, slept: Nanos::ZERO, warmth };
        for _ in 0..FIRST_SLEEPS {
            sleeper.sleep_until(now() + FIRST_SLEEP);
        }
        sleeper.look();
        sleeper.slept = Nanos::ZERO;
        sleeper
    }

    /// Sleeps, at `at`, if there is time to before something is `due`; until when it meant to.
    pub fn doze(&mut self, at: Nanos, due: Nanos) -> Option<Nanos> {
        let until = wake_at(at, due, self.wake_up_p99)?;
        let woken = self.sleep_until(until);
        self.slept += woken.since(at);
        if let Some(warmth) = &self.warmth {
            warmth.pass();
        }
        if self.wake_ups.count() >= SLEEPS_PER_LOOK {
            self.look();
        }
        Some(until)
    }

    fn sleep_until(&mut self, until: Nanos) -> Nanos {
        let request = Timespec {
            tv_sec: (until.0 / 1_000_000_000) as i64,
            tv_nsec: (until.0 % 1_000_000_000) as i64,
        };
        // A sleep that a signal ends is short, which does no harm.
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &request);
        let woken = now();
        self.wake_ups.record(woken.since(until));
        woken
    }

    fn look(&mut self) {
        self.wake_up_p99 = self.wake_ups.at(0.99).clamp(WAKE_UP_MIN, WAKE_UP_MAX);
        self.wake_ups.clear();
    }
}

/// Until when to sleep at `at` if something is `due`; `None` if that is too soon.
fn wake_at(at: Nanos, due: Nanos, wake_up_p99: Nanos) -> Option<Nanos> {
    let early = wake_up_p99 + wake_up_p99;
    (due.since(at) > early)
        .then(|| due.min(at + SLEEP_MAX) - early.min(SLEEP_MAX))
        .filter(|until| *until > at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A sleep ends twice the usual wake-up before what is due, and sleeps for a bounded time.
        #[test]
        fn a_sleep_leaves_time_to_wake(
            at in 0u64..1 << 40,
            ahead in 0u64..1_000_000_000,
            wake_up in 5_000u64..1_000_000,
        ) {
            let (at, due, wake_up) = (Nanos(at), Nanos(at + ahead), Nanos(wake_up));
            match wake_at(at, due, wake_up) {
                Some(until) => {
                    prop_assert!(until > at && until <= at + SLEEP_MAX);
                    prop_assert!(due.since(until) >= wake_up + wake_up);
                }
                None => prop_assert!(ahead <= 2 * wake_up.0),
            }
        }
    }

    #[test]
    fn what_warms_the_way_leaves_nothing_behind() {
        let warmth = Warmth::open().unwrap();
        (0..10_000).for_each(|_| warmth.pass());
        std::thread::sleep(std::time::Duration::from_millis(10));
        let _ = (&warmth.far).read(&mut [0; 16]);
        let rest = (&warmth.far).read(&mut [0; 16]);
        assert_eq!(rest.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn what_is_due_in_the_past_leaves_no_time() {
        assert_eq!(wake_at(Nanos(1_000), Nanos(10), WAKE_UP_MIN), None);
    }

    #[test]
    fn a_sleeper_knows_its_wake_ups() {
        let mut sleeper = Sleeper::start();
        assert!((WAKE_UP_MIN..=WAKE_UP_MAX).contains(&sleeper.wake_up_p99));
        let at = now();
        let until = sleeper.doze(at, at + Nanos::from_millis(10)).unwrap();
        assert!(now() >= until && until > at);
        assert!(sleeper.slept >= until - at);
    }
}
