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
        self.forget_claims(now);
        let mut next = Nanos::MAX;
        for index in 0..self.demoted.len() {
            let Some((core, _)) = self.demoted[index].ends_sleep else { continue };
            let from = self.boosts_from(core);
            if !self.demoted[index].asks_for_boost(core) {
                // Boosted, fair, or behind a guest: it is looked at again when that ends.
            } else if now < from {
                next = next.min(from);
            } else if self.gains(index, core, seen, plan) && self.is_next(index, core, seen, plan) {
                let thread = &mut self.demoted[index];
                thread.boost(now);
                thread.boosted_at = now;
                self.boosted.push((core, now + LEND_PERIOD));
                next = next.min(now + LEND_TIME);
            } else {
                next = next.min(now + LEND_PERIOD);
            }
        }
        next
    }

    /// Claims that no boost can meet any more.
    fn forget_claims(&mut self, now: Nanos) {
        for index in 0..self.demoted.len() {
            let claim = self.demoted[index].ends_sleep;
            if claim.is_some_and(|(core, until)| until <= self.boosts_from(core).max(now)) {
                self.demoted[index].ends_sleep = None;
            }
        }
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
                && self.gains(at, core, seen, plan)
        };
        !(0..self.demoted.len()).any(is_before)
    }

    /// Whether a boost lets it go before, or next after, the LC thread above the fair class that runs on the core where it
    /// waits. Batch work is no reason for a boost: background threads go before it. A guest gains nothing behind the core's owner.
    fn gains(&self, index: usize, core: CoreId, seen: &Snapshot, plan: &Plan) -> bool {
        let Some(own) = rung_of(plan, self.demoted[index].planned.task) else { return false };
        let Some(view) = seen.cores.iter().find(|view| view.id == core) else { return false };
        let (Some((thread, _)), Some(task)) = (view.burst, view.running) else { return false };
        let role = self.role(thread);
        let running = rung_of(plan, task).map(|rung| rung.of_role(role));
        matches!(own, Rung::Lc | Rung::LcOverflow)
            && !matches!(role, Role::Background | Role::Fair)
            && running.is_some_and(|running| own.of_role(Role::Boosted) <= running)
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
