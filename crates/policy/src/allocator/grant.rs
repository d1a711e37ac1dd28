//! Cores for guarantees and for congested LC tasks.

use std::cmp::Reverse;

use quell_model::{CoreId, Nanos, Outcome, Reason, Snapshot};

use super::Allocator;
use super::constants::{PENDING_PATIENCE, PENDING_PATIENCE_MIN};
use crate::Advice;

impl Allocator {
    /// Invariant 1: every task gets the reserved cores that it is entitled to, whoever has them.
    ///
    /// A task that thereby loses a core may become short itself and take its own reserved one, so
    /// this repeats; each taking puts a task on a core reserved for it, so it ends.
    pub(super) fn grant_guaranteed(&mut self, now: Nanos) {
        let mut moved = true;
        while moved {
            moved = false;
            for place in 0..self.tasks.len() as u32 {
                while self.is_entitled(place) {
                    let Some(core) = self.next_reserved(place, now) else { break };
                    self.assign(core, place, now, Reason::Guaranteed);
                    moved = true;
                }
            }
        }
    }

    /// On a shared host a task has its guarantee always, else when it has threads for it.
    pub(super) fn is_entitled(&self, place: u32) -> bool {
        let task = self.task(place);
        let shared = self.host.caps.shares_cores;
        let wanted = if shared { task.reserved_len } else { task.reserved_len.min(task.runnable) };
        task.owned_len < wanted
    }

    /// A reserved core that the task does not have yet: without an owner, else from BE, else from LC.
    fn next_reserved(&self, place: u32, now: Nanos) -> Option<CoreId> {
        let task = self.task(place);
        let missing = task.reserved.difference(&task.owned).intersection(&self.open(place));
        let key =
            |core: &CoreId| (self.lc_owned.contains(*core), self.be_owned.contains(*core), *core);
        let shared = self.host.caps.shares_cores;
        let open = |core: &CoreId| shared || !self.core(*core).refuses(place, now);
        missing.iter().filter(open).min_by_key(key)
    }

    /// Cores for LC tasks that claim some: those without a core first (first come, first served), then by
    /// burst cores in use, one core a round, so that equals get equal shares.
    pub(super) fn grant_lc(&mut self, now: Nanos, seen: &Snapshot, advice: &Advice) {
        let mut claims = std::mem::take(&mut self.claims);
        claims.clear();
        for place in 0..self.tasks.len() as u32 {
            let task = self.task(place);
            if task.is_lc() && task.claims() > 0 && !self.awaits_start(place, now, seen) {
                claims.push(place);
            }
        }
        claims.sort_unstable_by_key(|&place| {
            let task = self.task(place);
            (task.owned_len > 0, task.burst(), task.since, place)
        });
        // A task short of its guarantee stays while cores move: another's may come to exceed its own.
        let mut moved = true;
        while moved {
            moved = false;
            claims.retain(|&place| {
                let granted = self.grant_one(place, now, seen, advice);
                moved |= granted;
                let task = self.task(place);
                task.claims() > 0 && (granted || task.is_short())
            });
        }
        self.claims = claims;
        if !self.host.caps.shares_cores {
            self.grant_eager(now, seen, advice);
        }
    }

    fn grant_one(&mut self, place: u32, now: Nanos, seen: &Snapshot, advice: &Advice) -> bool {
        let running_on = &seen.tasks[place as usize].running_on;
        let Some(core) = self.pick_core(place, now, running_on, advice) else { return false };
        let task = self.task(place);
        let reason = match self.fell_idle.contains(core) {
            true => Reason::HandedOver,
            false => Reason::Congested(task.delay),
        };
        self.assign(core, place, now, reason);
        let task = &mut self.tasks[place as usize];
        task.burst_hold.begin(now);
        (task.window, task.peak) = (now, task.runnable);
        let end = now + task.burst_hold.length;
        self.revisit(end);
        true
    }

    /// Exclusive cores: a wait below the target is no reason to take a core, but to use a free one.
    fn grant_eager(&mut self, now: Nanos, seen: &Snapshot, advice: &Advice) {
        for place in 0..self.tasks.len() as u32 {
            if self.free.is_empty() {
                return;
            }
            while self.task(place).is_lc() && self.task(place).waiting > 0 {
                let task = self.task(place);
                let free = self.open(place).intersection(&self.free);
                if task.unmet() == 0 || self.awaits_start(place, now, seen) {
                    break;
                }
                let running_on = &seen.tasks[place as usize].running_on;
                let best = self.best_of(place, now, &free, running_on, advice);
                let Some(core) = best else { break };
                self.assign(core, place, now, Reason::HandedOver);
            }
        }
    }

    /// Whether the task was granted a core that it has not started on, so that what is seen of it does not
    /// show the grant yet. A grant that stays pending for long counts as lost and holds up nothing.
    pub(super) fn awaits_start(&mut self, place: u32, now: Nanos, seen: &Snapshot) -> bool {
        let task = self.task(place);
        let (core, at) = task.granted;
        let started = seen.tasks[place as usize].running_on.contains(core);
        let pending = task.owned.contains(core)
            && !task.is_short()
            && at < now
            && self.core(core).outcome == Outcome::Pending
            && !started;
        let actuation_delay =
            Nanos(self.host.caps.actuation_delay.0.saturating_mul(PENDING_PATIENCE));
        let lost_at = at + actuation_delay.max(PENDING_PATIENCE_MIN);
        if pending && now < lost_at {
            self.revisit(lost_at);
            return true;
        }
        false
    }

    /// BE places that want a core, fewest burst cores first, then first come, first served. Who was granted one since it
    /// came goes to the end: a task with more threads than cores waits for ever, and would always be the first.
    pub(super) fn sort_be(&self, claims: &mut [u32]) {
        claims.sort_unstable_by_key(|&place| {
            let task = self.task(place);
            let came = task.since.max(task.granted.1);
            (Reverse(task.owned_len == 0), task.burst(), came, task.granted.1, place)
        });
    }
}
