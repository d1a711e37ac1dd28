//! Which cores their owners no longer need.

use quell_model::{CoreId, Nanos};

use super::Allocator;
use super::tables::NONE;

impl Allocator {
    /// Takes cores that are not needed any more, so that they can be handed over in the same tick.
    pub(super) fn release_unneeded(&mut self, now: Nanos) {
        for place in 0..self.tasks.len() as u32 {
            let task = self.task(place);
            if task.owned_len == 0 {
                continue;
            }
            if !self.host.caps.shares_cores {
                self.release_idle(place, now);
            } else if task.is_lc() && task.owned_len > task.guaranteed {
                self.release_burst(place, now);
            }
        }
    }

    /// Exclusive cores: a core whose owner has no thread for it is free at once.
    fn release_idle(&mut self, place: u32, now: Nanos) {
        while self.task(place).owned_len > self.task(place).runnable {
            let owned = self.task(place).owned;
            let spare = owned.iter().filter(|&core| self.core(core).running != place);
            // Idle before busy with another's leaving thread; ties go to the highest number.
            let Some(core) = spare.max_by_key(|&core| (self.core(core).idle, core)) else { return };
            self.hand_back(core, now);
        }
    }

    /// Shared cores: burst cores go when a whole hold passed in which fewer threads wanted to run.
    fn release_burst(&mut self, place: u32, now: Nanos) {
        let task = &mut self.tasks[place as usize];
        let end = task.window + task.burst_hold.length;
        if now < end {
            self.revisit(end);
            return;
        }
        let needed = task.peak.max(task.guaranteed);
        (task.window, task.peak) = (now, task.runnable);
        let next = now + task.burst_hold.length;
        if task.owned_len > needed {
            task.burst_hold.end(now);
        }
        while self.task(place).owned_len > needed {
            let Some(core) = self.least_wanted(place) else { break };
            self.hand_back(core, now);
        }
        if self.task(place).owned_len > self.task(place).guaranteed {
            self.revisit(next);
        }
    }

    /// The core that its owner misses least: not reserved for it, not running it, the highest.
    pub(super) fn least_wanted(&self, place: u32) -> Option<CoreId> {
        let key = |core: &CoreId| {
            let state = self.core(*core);
            (state.reserved != place, state.running != place, state.reserved != NONE, *core)
        };
        self.task(place).owned.iter().max_by_key(key)
    }

    /// Gives a core back as one that fell idle.
    pub(super) fn hand_back(&mut self, core: CoreId, now: Nanos) {
        self.fell_idle.insert(core);
        self.give_back(core, now);
    }
}
