//! Advice into each task's bans and cap. What an earlier invariant forbids is declined and noted.

use quell_model::{CoreSet, Nanos};

use super::Allocator;
use crate::Advice;
use crate::explain::{Invariant, Offer, Veto};

impl Allocator {
    /// Sets bans and caps for this tick and takes away what they leave no room for.
    pub(super) fn take_advice(&mut self, now: Nanos, advice: &Advice) {
        let bans_classes = !advice.everyone.is_empty() || !advice.best_effort.is_empty();
        for place in 0..self.tasks.len() as u32 {
            let task = &mut self.tasks[place as usize];
            if !task.alive {
                continue;
            }
            if bans_classes || advice.concerns(place as usize) {
                self.take_cap(place, advice);
                self.take_bans(place, now, advice);
            } else {
                task.cap = task.limits.core_limit().max(task.guaranteed);
                (task.is_banned, task.off_lc, task.give_up) = (false, None, None);
            }
            self.fit(place, now);
        }
    }

    /// A cap below the guarantee is followed down to the guarantee.
    fn take_cap(&mut self, place: u32, advice: &Advice) {
        let own = advice.of(place as usize);
        let advised = own.cap;
        let task = &mut self.tasks[place as usize];
        // Without a freezer a task cannot be left without any core.
        let least = u32::from(self.host.caps.shares_cores && !self.host.caps.freezes_tasks);
        let floor = task.guaranteed.max(least).min(task.limits.core_limit());
        task.cap = task.limits.core_limit().min(advised).max(floor);
        task.give_up = own.give_up;
        let (id, declined) = (task.id, advised < floor);
        let by = (advised < task.guaranteed).then_some(Invariant::Guarantee);
        if declined {
            self.veto(Veto { task: id, offer: Offer::Cap(advised), by });
        }
    }

    fn take_bans(&mut self, place: u32, now: Nanos, advice: &Advice) {
        let caps = self.host.caps;
        let task = &self.tasks[place as usize];
        let own = advice.of(place as usize);
        let mut banned = own.banned.union(&advice.everyone);
        let mut reason = own.reason;
        if task.is_be() && !advice.best_effort.is_empty() {
            banned = banned.union(&advice.best_effort);
            if own.banned.is_empty() {
                reason = advice.best_effort_reason;
            }
        }
        banned = banned.intersection(&task.allowed);
        let (id, reserved, allowed) = (task.id, task.reserved, task.allowed);
        let guaranteed = task.guaranteed;
        let off_lc = own.off_lc.filter(|_| task.is_be() && caps.shares_cores && caps.idles_cores);
        let keeps_one = task.is_be() && caps.shares_cores && !caps.freezes_tasks;
        if !banned.is_empty() {
            // A task that has too few reserved cores for its guarantee may use any core for it.
            let refused = |core| self.core(core).refuses(place, now);
            let short = reserved.len() < guaranteed as usize || reserved.iter().any(refused);
            let guarded = if short { banned } else { banned.intersection(&reserved) };
            self.decline(id, &guarded, Some(Invariant::Guarantee));
            banned = banned.difference(&guarded);
            // Without a freezer a task cannot be left without any core.
            if !caps.idles_cores || (keeps_one && allowed.is_subset(&banned)) {
                self.decline(id, &banned, None);
                banned = CoreSet::EMPTY;
            }
        }
        let task = &mut self.tasks[place as usize];
        (task.banned, task.ban_reason, task.off_lc) = (banned, reason, off_lc);
        task.is_banned = !banned.is_empty();
    }

    pub(super) fn decline(
        &mut self,
        task: quell_model::TaskId,
        cores: &CoreSet,
        by: Option<Invariant>,
    ) {
        for core in cores.iter() {
            self.veto(Veto { task, offer: Offer::Ban(core), by });
        }
    }

    /// Takes banned cores away, and those past the cap: the one that advice names, unreserved idle ones, then
    /// the highest.
    fn fit(&mut self, place: u32, now: Nanos) {
        let task = self.task(place);
        if task.is_banned {
            let banned = task.owned.intersection(&task.banned);
            banned.iter().for_each(|core| self.hand_back(core, now));
        }
        while self.task(place).owned_len > self.task(place).cap {
            let task = &mut self.tasks[place as usize];
            let named = task.give_up.take().filter(|core| task.owned.contains(*core));
            let Some(core) = named.or_else(|| self.least_wanted(place)) else { return };
            self.hand_back(core, now);
        }
    }
}
