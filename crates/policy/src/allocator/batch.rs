//! What LC leaves, for BE.

use quell_model::{CoreId, Nanos, Reason, Snapshot};

use super::Allocator;
use super::constants::BE_QUANTUM;
use super::tables::TaskState;
use crate::Advice;

impl Allocator {
    /// Shared cores: every core without an LC owner gets a BE owner, spread evenly. Ownership means little
    /// here, since every BE task may run beneath on all of them; it keeps accounts and caps in order.
    pub(super) fn spread_leftover(&mut self, now: Nanos) {
        self.seat_lanes(now);
        for core in self.free.iter() {
            let Some(place) = self.poorest(core, u32::MAX) else { continue };
            self.assign(core, place, now, Reason::Leftover);
        }
        if self.stale {
            for core in self.be_owned.iter() {
                let holder = self.task(self.core(core).owner);
                if holder.burst() <= 0 {
                    continue;
                }
                if let Some(place) = self.poorest(core, holder.owned_len - 1) {
                    self.assign(core, place, now, Reason::Leftover);
                }
            }
        }
    }

    /// Shared cores: a BE lane that owns no core gets one before other batch work, which loses little: it continues at lower priority.
    /// The core on which the lane waits comes first, then one without an owner, then one that other batch work yields.
    fn seat_lanes(&mut self, now: Nanos) {
        for place in 0..self.tasks.len() as u32 {
            let task = self.task(place);
            if !task.is_be() || !task.is_lane() || task.owned_len >= task.cap {
                continue;
            }
            let waits_on = task.hosts;
            let yields = |core: &CoreId| {
                !self.core(*core).refuses(place, now)
                    && self
                        .owner_of(*core)
                        .is_none_or(|owner| owner.is_be() && !owner.is_lane() && owner.burst() > 0)
            };
            let key =
                |core: &CoreId| (!waits_on.contains(*core), !self.free.contains(*core), *core);
            let seat = self.open(place).iter().filter(yields).min_by_key(key);
            if let Some(core) = seat {
                self.assign(core, place, now, Reason::Leftover);
            }
        }
    }

    /// The BE task with the fewest cores, and fewer than `below`, that may have this one.
    fn poorest(&self, core: CoreId, below: u32) -> Option<u32> {
        let tasks = self.tasks.iter().zip(0u32..);
        let fits = tasks.filter(|(task, _)| {
            task.is_be()
                && task.owned_len < task.cap.min(below)
                && task.allowed.contains(core)
                && !(task.is_banned && task.banned.contains(core))
                && !self.shielded.contains(core)
        });
        fits.min_by_key(|(task, place)| (task.owned_len, *place)).map(|(_, place)| place)
    }

    /// Exclusive cores: free ones go to BE tasks with threads for them, equals get equal shares, and
    /// a task without any core takes one that another held for a quantum.
    pub(super) fn grant_be(&mut self, now: Nanos, seen: &Snapshot, advice: &Advice) {
        let mut claims = std::mem::take(&mut self.claims);
        claims.clear();
        self.survey();
        for place in 0..self.tasks.len() as u32 {
            let task = self.task(place);
            let wants = task.is_be() && task.unmet() > 0 && (task.waiting > 0 || task.is_short());
            if wants && self.has_prospects(place, now) && !self.awaits_start(place, now, seen) {
                claims.push(place);
            }
        }
        self.sort_be(&mut claims);
        // As for LC: a task short of its guarantee stays while cores move.
        let mut moved = true;
        while moved {
            moved = false;
            claims.retain(|&place| {
                let granted = self.grant_batch(place, now, seen, advice);
                moved |= granted;
                let task = self.task(place);
                task.unmet() > 0 && (granted || task.is_short())
            });
        }
        self.claims = claims;
        self.revisit_quantum(now);
    }

    fn grant_batch(&mut self, place: u32, now: Nanos, seen: &Snapshot, advice: &Advice) -> bool {
        let running_on = &seen.tasks[place as usize].running_on;
        let Some(core) = self.pick_core(place, now, running_on, advice) else { return false };
        let reason = match self.fell_idle.contains(core) {
            true => Reason::HandedOver,
            false => Reason::Leftover,
        };
        self.assign(core, place, now, reason);
        true
    }

    /// Whether there may be a core for this task at all.
    fn has_prospects(&self, place: u32, now: Nanos) -> bool {
        !self.free.is_empty() || self.be_yields_to(place, now)
    }

    /// Looks again when the first quantum of another BE task ends, if a BE task waits without a core.
    fn revisit_quantum(&mut self, now: Nanos) {
        let waits = |task: &TaskState| {
            task.is_be() && task.owned_len == 0 && task.waiting > 0 && task.cap > 0
        };
        if self.tasks.iter().any(waits) {
            self.survey();
            let quantum_ends = self.market.oldest_be + BE_QUANTUM;
            self.revisit(quantum_ends.max(now + Nanos(1)));
        }
    }
}
