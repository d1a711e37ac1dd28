//! The deadline server that keeps the fair threads of a core from starving behind real-time ones (`fair_server`,
//! kernel/sched/deadline.c, Linux 6.12): 50 ms of each second. It is deferred: it acts at the last moment at which they still fit before
//! the deadline, if fair threads have not had them by then. A server that acts serves 50 ms at a stretch, whatever they had before,
//! and each second again, until they get time by themselves.

use quell_model::Nanos;

/// Fair threads run this long (`dl_runtime`) in each [`PERIOD`] (`dl_period`).
pub(super) const SERVED: Nanos = Nanos::from_millis(50);
const PERIOD: Nanos = Nanos::from_secs(1);

/// The server is not deferred further for less than this (`dl_server_min_res`).
const LEAST_DEFERRAL: Nanos = Nanos::from_millis(1);

/// What a core did in some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ran {
    Fair,
    Other,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// No fair thread is queued (`dl_server_stop`).
    #[default]
    Stopped,
    /// Fair threads may get their time by themselves until this time (`dl_defer_armed`).
    Deferred { until: Nanos },
    /// Fair threads go first.
    Serving,
    /// They had their time, and go first again at the deadline.
    Served,
}

/// The server of one core (`rq->fair_server`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FairServer {
    state: State,
    deadline: Nanos,
    /// What is left until the deadline; below 0 if a thread ran until the next tick.
    runtime: i64,
    /// It served, and fair threads have had nothing by themselves since (`dl_defer_running`).
    goes_on: bool,
}

impl FairServer {
    pub fn is_serving(&self) -> bool {
        self.state == State::Serving
    }

    /// Since `from` the core did this, and fair threads were in its queue or not.
    pub fn pass(&mut self, (from, now): (Nanos, Nanos), ran: Ran, is_wanted: bool) {
        if !is_wanted {
            self.state = State::Stopped;
            return;
        }
        if self.state == State::Stopped {
            self.start(from);
        }
        // The timer goes by what was charged before.
        self.expire(now);
        if ran == Ran::Fair {
            self.use_up(now.since(from), now);
        }
    }

    /// `dl_server_start`, `update_dl_entity`.
    fn start(&mut self, now: Nanos) {
        if self.deadline <= now {
            self.begin_period(now);
        } else if self.is_too_much(now) {
            match self.goes_on {
                true => {
                    // As much as fits before the deadline at its rate (`update_dl_revised_wakeup`).
                    self.runtime = share_of(self.deadline.since(now));
                    self.state = State::Serving;
                }
                false => self.begin_period(now),
            }
        } else if self.goes_on {
            self.state = if self.runtime > 0 { State::Serving } else { State::Served };
        } else {
            self.state = State::Deferred { until: self.last_moment() };
        }
    }

    /// What is left does not fit before the deadline at the server's rate (`dl_entity_overflow`).
    fn is_too_much(&self, now: Nanos) -> bool {
        self.runtime > share_of(self.deadline.since(now))
    }

    /// When what is left just fits before the deadline.
    fn last_moment(&self) -> Nanos {
        self.deadline - Nanos(self.runtime.max(0) as u64)
    }

    /// `replenish_dl_new_period`.
    fn begin_period(&mut self, now: Nanos) {
        self.replenish(now);
        self.goes_on = false;
        self.state = State::Deferred { until: self.last_moment() };
    }

    fn replenish(&mut self, now: Nanos) {
        (self.deadline, self.runtime) = (now + PERIOD, SERVED.0 as i64);
    }

    /// Timers that have expired by now (`dl_server_timer`).
    fn expire(&mut self, now: Nanos) {
        loop {
            match self.state {
                State::Deferred { until } if until <= now => {
                    if until + LEAST_DEFERRAL < self.last_moment() {
                        self.state = State::Deferred { until: self.last_moment() };
                        continue;
                    }
                    if self.is_too_much(until) {
                        self.replenish(until);
                    }
                    (self.goes_on, self.state) = (true, State::Serving);
                }
                State::Served if self.deadline <= now => {
                    while self.runtime <= 0 {
                        self.deadline += PERIOD;
                        self.runtime += SERVED.0 as i64;
                    }
                    self.state = State::Serving;
                }
                _ => return,
            }
        }
    }

    /// Fair threads ran (`dl_server_update`, `update_curr_dl_se`).
    fn use_up(&mut self, ran: Nanos, now: Nanos) {
        self.runtime -= ran.0 as i64;
        if self.runtime > 0 || ran == Nanos::ZERO {
            return;
        }
        match self.state {
            State::Serving => self.state = State::Served,
            // They had it by themselves: the next period begins.
            State::Deferred { .. } | State::Served => self.begin_period(now),
            State::Stopped => {}
        }
    }
}

/// What the server may have of a time.
fn share_of(time: Nanos) -> i64 {
    (time.0 * (SERVED.0 / 1_000_000) / (PERIOD.0 / 1_000_000)) as i64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TICK: Nanos = Nanos::from_millis(4);

    /// A core whose real-time thread runs and sleeps by turns, beside a fair thread that never sleeps.
    #[derive(Default)]
    struct TestCore {
        server: FairServer,
        now: Nanos,
        /// Time that the fair thread had.
        fair: Nanos,
        /// For how long at a time the real-time thread was stopped.
        stops: Vec<Nanos>,
        is_stopped: bool,
    }

    impl TestCore {
        /// Time passes up to the next tick at most.
        fn pass(&mut self, most: Nanos, is_awake: bool) -> Nanos {
            let from = self.now;
            let tick = Nanos((from.0 / TICK.0 + 1) * TICK.0);
            let passed = most.min(tick.since(from));
            self.now = from + passed;
            let is_fair = !is_awake || self.server.is_serving();
            self.server.pass((from, self.now), if is_fair { Ran::Fair } else { Ran::Other }, true);
            if is_fair {
                self.fair += passed;
            }
            match self.stops.last_mut() {
                Some(stop) if self.is_stopped && is_fair && is_awake => *stop += passed,
                _ if is_fair && is_awake => self.stops.push(passed),
                _ => {}
            }
            self.is_stopped = is_fair && is_awake;
            passed
        }

        fn run(runs: Nanos, sleeps: Nanos, length: Nanos) -> TestCore {
            let mut core = TestCore::default();
            while core.now < length {
                let mut left = runs;
                while left > Nanos::ZERO && core.now < length {
                    let passed = core.pass(left, true);
                    if !core.is_stopped {
                        left = left.since(passed);
                    }
                }
                let mut left = sleeps;
                while left > Nanos::ZERO {
                    left = left.since(core.pass(left, false));
                }
            }
            core
        }
    }

    #[test]
    fn a_busy_core_is_stopped_each_second_for_50_ms() {
        let ms = Nanos::from_millis;
        let core = TestCore::run(Nanos::from_secs(20), Nanos::ZERO, Nanos::from_secs(10));
        assert_eq!(core.stops.len(), 10, "{:?}", core.stops);
        // What a stop is too long, for it ends at a tick, is taken from the next one.
        assert!(core.stops.iter().all(|stop| (ms(46)..=ms(54)).contains(stop)), "{:?}", core.stops);
        assert!((ms(498)..=ms(502)).contains(&core.fair), "{}", core.fair);
    }

    proptest! {
        #[test]
        fn fair_threads_get_a_twentieth_in_any_pattern(
            runs_us in 100u64..200_000,
            sleeps_us in 0u64..50_000,
        ) {
            let (runs, sleeps) = (Nanos::from_micros(runs_us), Nanos::from_micros(sleeps_us));
            let TestCore { fair, stops, .. } = TestCore::run(runs, sleeps, Nanos::from_secs(10));
            prop_assert!(fair >= Nanos::from_millis(430), "{fair} of 10 s");
            // Each ends at a tick.
            prop_assert!(stops.iter().all(|stop| *stop <= Nanos::from_millis(54)), "{stops:?}");
            // Whole sleeps in the time for which the server is deferred at least.
            let by_themselves = 949_000 / (runs_us + sleeps_us) * sleeps_us;
            prop_assert!(by_themselves < 50_000 || stops.is_empty(), "{by_themselves}: {stops:?}");
        }
    }
}
