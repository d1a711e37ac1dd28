//! Keeps a BE task off LC's cores while its time inside the kernel delays LC threads.
//!
//! A real-time thread does not preempt the kernel on PREEMPT_NONE. Measured wake lateness (99.9th percentile):
//! 30 us over a user-space spinner, 505 us over huge-page faults, 912 us over write and fsync.
//!
//! The signal fades once the task is away, so the ban is a bounded quarantine: it ends, the task is let
//! in again for at least one window of the signal, and a relapse doubles the next quarantine. So a
//! task that delays LC always keeps a share, and one that does no longer is free soon.

use quell_model::{Class, Nanos, Snapshot, TaskId};
use serde::{Deserialize, Serialize};

use crate::state::{ensure, put, take};
use crate::{Advice, Advisor, BadState};

/// The first quarantine.
pub const QUARANTINE_MIN: Nanos = Nanos::from_millis(50);
/// The longest; with [`TRIAL`], a task is let in for some 5 % of the time at least.
pub const QUARANTINE_MAX: Nanos = Nanos::from_secs(2);
/// How long a task runs after a quarantine before it is judged again: one window of the signal, which until
/// then still shows what was before.
pub const TRIAL: Nanos = Nanos::from_millis(100);

/// See the module.
pub struct KernelSections {
    bound: Nanos,
    tasks: Vec<Record>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Record {
    id: TaskId,
    /// Length of the last quarantine; zero: none yet.
    length: Nanos,
    until: Nanos,
    delay: Nanos,
}

impl KernelSections {
    /// The advisor that tolerates delays below `bound`.
    pub fn new(bound: Nanos) -> KernelSections {
        KernelSections { bound, tasks: Vec::new() }
    }
}

impl Advisor for KernelSections {
    fn name(&self) -> &'static str {
        "kernel_sections"
    }

    fn advise(&mut self, now: Nanos, seen: &Snapshot, advice: &mut Advice) {
        self.tasks.truncate(seen.tasks.len());
        for (place, view) in seen.tasks.iter().enumerate() {
            let new =
                Record { id: view.id, length: Nanos::ZERO, until: Nanos::ZERO, delay: Nanos::ZERO };
            if place == self.tasks.len() {
                self.tasks.push(new);
            }
            let record = &mut self.tasks[place];
            if record.id != view.id || !view.alive {
                *record = new;
            }
            if !view.alive || view.limits.class != Class::BestEffort {
                continue;
            }
            record.judge(now, view.delay_caused.value(), self.bound);
            if now < record.until {
                advice.keep_off_lc(view.id, record.delay);
                advice.revisit(record.until);
            } else if view.delay_caused.value().is_some() {
                advice.revisit((record.until + TRIAL).max(now + TRIAL));
            }
        }
    }

    fn save(&self, state: &mut Vec<u8>) {
        put(&self.tasks, state);
    }

    fn restore(&mut self, state: &mut &[u8]) -> Result<(), BadState> {
        let tasks: Vec<Record> = take(state)?;
        let bounded = tasks.iter().all(|record| record.length <= QUARANTINE_MAX);
        ensure(bounded, "a quarantine longer than any")?;
        self.tasks = tasks;
        Ok(())
    }
}

impl Record {
    fn judge(&mut self, now: Nanos, delay: Option<Nanos>, bound: Nanos) {
        let first = self.length == Nanos::ZERO;
        if !first && now < self.until + TRIAL {
            return;
        }
        let Some(delay) = delay.filter(|delay| *delay > bound) else {
            // Behaved for as long again as the last quarantine: forgiven.
            if now >= self.until + TRIAL + self.length {
                self.length = Nanos::ZERO;
            }
            return;
        };
        let doubled = Nanos(self.length.0 * 2).max(QUARANTINE_MIN);
        self.length = if doubled > QUARANTINE_MAX { QUARANTINE_MAX } else { doubled };
        self.until = now + self.length;
        self.delay = delay;
    }
}

#[cfg(test)]
mod tests {
    use quell_model::{Limits, Signal, TaskView};

    use super::*;

    const BE: TaskId = TaskId { index: 0, generation: 0 };

    fn view(delay: Signal<Nanos>) -> TaskView {
        TaskView {
            running: 1,
            delay_caused: delay,
            ..TaskView::new(BE, Limits { max: 1, ..Limits::NONE })
        }
    }

    /// Milliseconds out of `span` in which the task is kept off, with this delay whenever it runs.
    fn kept_off(span: u64, delay: impl Fn(u64) -> Nanos) -> (u64, u64) {
        let mut advisor = KernelSections::new(Nanos::from_micros(300));
        let (mut off, mut longest, mut current) = (0, 0, 0);
        for ms in 0..span {
            let now = Nanos::from_millis(ms);
            let tasks = vec![view(Signal::Measured(delay(ms)))];
            let seen = Snapshot { now, tasks, ..Snapshot::default() };
            let mut advice = Advice::default();
            advice.clear(1, 1);
            advisor.advise(now, &seen, &mut advice);
            current = if advice.of(0).off_lc.is_some() { current + 1 } else { 0 };
            off += u64::from(current > 0);
            longest = longest.max(current);
        }
        (off, longest)
    }

    #[test]
    fn a_task_that_always_delays_lc_still_runs_at_times() {
        let (off, longest) = kept_off(60_000, |_| Nanos::from_micros(900));
        assert!(off > 45_000, "mostly kept off: {off}");
        assert_eq!(longest, QUARANTINE_MAX.as_micros() / 1_000);
    }

    #[test]
    fn a_task_that_behaves_is_left_alone_and_a_reformed_one_is_free_again() {
        assert_eq!(kept_off(10_000, |_| Nanos::from_micros(30)), (0, 0));
        let reformed = |ms| Nanos::from_micros(if ms < 1_000 { 900 } else { 30 });
        assert!(kept_off(60_000, reformed).0 < 3_000);
    }
}
