//! Boosts: background threads that go before the event threads of their task for [`LEND_TIME`].
//!
//! - **Spins.** An event thread exceeds its budget while a background thread of its process waits. There is one boost
//!   for each such report.
//! - **Sleeps.** A background thread waits behind threads with higher roles while a thread of its process sleeps whose
//!   sleeps it has ended. There is one boost on each core in each [`LEND_PERIOD`], whatever the number of such threads: a
//!   collector may have many.
//!
//! A boost ends earlier when the thread has used the budget of an event thread and others wait.

use quell_model::{Burst, CoreId, Nanos, Plan, Role, Rung, Snapshot, ThreadId, Waiter};

use super::{Demoted, LEND_PERIOD, LEND_TIME, Roles, rung_of};

/// Boosts for the sleep of another thread repeat for so long after a report. Reports say that a wait begins, not that
/// it lasts; but a boosted thread that needs more time is preempted when its boost ends, and that is reported again. A
/// thread without a report in ten boosts does not need them any more.
pub(super) const REPEAT_TIME: Nanos = Nanos::from_millis(100);

impl Roles {
    /// A thread exceeds the budget of an event thread while a background thread of its process waits: it may spin until
    /// that one releases a lock, so that one goes first for a budget.
    pub(super) fn boost(&mut self, waiter: Waiter, rung: Rung, now: Nanos) {
        if !waiter.same_process || rung != Rung::Lc {
            return;
        }
        if let Ok(index) = self.find(waiter.thread) {
            self.demoted[index].boost(now);
        }
    }

    pub(super) fn end_boost(&mut self, thread: ThreadId, now: Nanos) {
        if let Ok(index) = self.find(thread) {
            let role = self.demoted[index].assigned.unwrap_or(Role::Background);
            self.demoted[index].become_role(role, now);
        }
    }

    /// A background thread began to wait while a thread sleeps whose sleeps it ends.
    pub(super) fn note_ends_sleep(&mut self, burst: &Burst, now: Nanos) {
        if let Ok(index) = self.find(burst.thread)
            && matches!(self.demoted[index].planned.role, Role::Background | Role::Boosted)
        {
            self.demoted[index].ends_sleep = Some((burst.core, now + REPEAT_TIME));
        }
    }

    /// Boosts the background threads that end sleeps and wait behind LC threads: one at a time on each core, for
    /// [`LEND_TIME`] of [`LEND_PERIOD`], in turn. Returns when to look again.
    pub(super) fn boost_wakers(&mut self, now: Nanos, seen: &Snapshot, plan: &Plan) -> Nanos {
        self.boosted.retain(|(_, until)| now < *until);
        let mut next = Nanos::MAX;
        for index in 0..self.demoted.len() {
            let Some((core, until)) = self.demoted[index].ends_sleep else { continue };
            let from = self.boosts_from(core).max(now);
            if until <= from {
                self.demoted[index].ends_sleep = None;
            } else if !self.demoted[index].asks_for_boost(core) {
                // Boosted, fair, or behind a guest: it is looked at again when that ends.
            } else if now < from {
                next = next.min(from);
            } else if !self.waits_behind_lc(index, core, seen, plan) {
                next = next.min(now + LEND_PERIOD);
            } else if self.is_next(index, core, seen, plan) {
                let thread = &mut self.demoted[index];
                thread.boost(now);
                thread.boosted_at = now;
                self.boosted.push((core, now + LEND_PERIOD));
                next = next.min(now + LEND_TIME);
            }
        }
        next
    }

    /// When the next boost on a core may begin.
    fn boosts_from(&self, core: CoreId) -> Nanos {
        let last = self.boosted.iter().find(|(boosted, _)| *boosted == core);
        last.map_or(Nanos::ZERO, |(_, until)| *until)
    }

    /// Whether no other thread that may be boosted on this core had its last boost longer ago.
    fn is_next(&self, index: usize, core: CoreId, seen: &Snapshot, plan: &Plan) -> bool {
        let since = |at: usize| (self.demoted[at].boosted_at, at);
        let is_before = |at: usize| {
            self.demoted[at].asks_for_boost(core)
                && since(at) < since(index)
                && self.waits_behind_lc(at, core, seen, plan)
        };
        !(0..self.demoted.len()).any(is_before)
    }

    /// Whether an LC thread with a higher role runs on the core where it waits. Batch work is no reason for a boost:
    /// background threads go before it.
    fn waits_behind_lc(&self, index: usize, core: CoreId, seen: &Snapshot, plan: &Plan) -> bool {
        let own = &self.demoted[index].planned;
        let rung = rung_of(plan, own.task);
        let core = seen.cores.iter().find(|view| view.id == core);
        let running = core.and_then(|view| view.burst);
        matches!(rung, Some(Rung::Lc | Rung::LcOverflow))
            && running.is_some_and(|(other, _)| self.role(other) < Role::Background)
    }
}

impl Demoted {
    /// Whether it is in the background on this core for its bursts, and ends sleeps.
    fn asks_for_boost(&self, core: CoreId) -> bool {
        self.ends_sleep.is_some_and(|(own, _)| own == core)
            && self.planned.role == Role::Background
            && self.until.is_none()
    }

    fn boost(&mut self, now: Nanos) {
        self.become_role(Role::Boosted, now);
        self.until = Some(now + LEND_TIME);
    }
}
