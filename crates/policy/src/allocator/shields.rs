//! Siblings that are kept idle while a request that takes long runs beside them.
//!
//! The rules are those of Caladan's hyperthread controller (OSDI'20; `ias_ht`), with the placement left to
//! the allocator:
//!
//! - only a core within the guarantee of the task whose request it serves is protected; burst cores are not;
//! - a core that is kept idle itself protects nobody;
//! - an LC thread on the sibling, of whatever task, has to find another core first. (The published code asks whether
//!   the *protected* task could take another core, which does not help the displaced one.)
//! - a task that wants cores and finds no other takes its own siblings back, the least endangered first.
//!
//! Where cores are shared the sibling stays its owner's and BE alone is kept off: the owner's threads
//! come first there anyhow.

use quell_model::{Class, CoreId, CoreSet, Nanos, Reason, Snapshot};

use super::Allocator;
use super::tables::{NONE, TaskState};
use crate::Advice;
use crate::explain::{Invariant, Offer, Veto};

/// What a task wants an idled core for.
#[derive(Clone, Copy)]
enum Needs {
    /// A task of this class is short of its guarantee.
    Guarantee(Class),
    /// An LC task is congested.
    Relief,
}

impl Allocator {
    /// Empties the cores that advice wants idle, strongest advice first.
    pub(super) fn take_shields(&mut self, now: Nanos, seen: &Snapshot, advice: &Advice) {
        let asked = advice.shields.iter().map(|shield| shield.0);
        self.shielded = asked.collect::<CoreSet>().intersection(&self.usable);
        let mut idled = CoreSet::EMPTY;
        for &(lane, protects) in &advice.shields {
            let known = self.usable.contains(lane) && self.usable.contains(protects);
            if !known || idled.contains(lane) {
                continue;
            }
            let served = self.core(protects).serving;
            self.shielded.insert(lane);
            let outcome = match idled.contains(protects) || served == NONE {
                true => Err(Some(Invariant::WorkConservation)),
                false => self.vacate(lane, protects, now, seen, advice),
            };
            match outcome {
                Ok(()) => {
                    idled.insert(lane);
                    self.cores[lane.index()].shields = protects.0;
                }
                Err(by) => {
                    self.shielded.remove(lane);
                    self.decline_shield(served, lane, by);
                }
            }
        }
        debug_assert!(idled.is_subset(&self.usable), "{idled} are idled, {} usable", self.usable);
        self.shielded = idled;
    }

    /// Takes the sibling from whom it has, or says what stands against that.
    fn vacate(
        &mut self,
        lane: CoreId,
        protects: CoreId,
        now: Nanos,
        seen: &Snapshot,
        advice: &Advice,
    ) -> Result<(), Option<Invariant>> {
        let (served, reserved) = (self.core(protects).serving, self.core(protects).reserved);
        if reserved != served || !self.task(served).is_lc() {
            return Err(Some(Invariant::WorkConservation));
        }
        let caps = self.host.caps;
        let stuck = |(place, task): (u32, &TaskState)| task.is_be() && self.open(place).is_empty();
        if !caps.idles_cores
            || (caps.shares_cores && !caps.freezes_tasks && (0..).zip(&self.tasks).any(stuck))
        {
            return Err(None);
        }
        let (owner, keeper) = (self.core(lane).owner, self.core(lane).reserved);
        let wanted = |place: u32| {
            place != NONE
                && place != served
                && !(caps.shares_cores && self.task(place).is_lc())
                && (self.is_entitled(place) || (place == owner && self.task(place).burst() <= 0))
        };
        if wanted(keeper) || wanted(owner) {
            return Err(Some(Invariant::Guarantee));
        }
        if owner == NONE {
            return Ok(());
        }
        match self.task(owner).class {
            Class::BestEffort => self.hand_back(lane, now),
            Class::LatencyCritical if caps.shares_cores => {}
            Class::LatencyCritical => {
                let running_on = &seen.tasks[owner as usize].running_on;
                let other = self.pick_core(owner, now, running_on, advice);
                let core = other.ok_or(Some(Invariant::WorkConservation))?;
                self.give_back(lane, now);
                self.assign(core, owner, now, Reason::InsteadOf(lane));
            }
        }
        Ok(())
    }

    /// Gives cores that are kept idle to those who have more right to them and found no other: tasks short of
    /// their guarantee, then congested LC tasks. True if a core changed hands.
    pub(super) fn relent(&mut self, now: Nanos, advice: &Advice) -> bool {
        if self.shielded.is_empty() {
            return false;
        }
        let moves = self.moves;
        for needs in [
            Needs::Guarantee(Class::LatencyCritical),
            Needs::Guarantee(Class::BestEffort),
            Needs::Relief,
        ] {
            for place in 0..self.tasks.len() as u32 {
                while let Some(lane) = self.lane_for(place, needs, now, advice) {
                    let (by, reason) = match needs {
                        Needs::Guarantee(_) => (Invariant::Guarantee, Reason::Guaranteed),
                        Needs::Relief => {
                            let delay = self.task(place).delay;
                            (Invariant::WorkConservation, Reason::Congested(delay))
                        }
                    };
                    debug_assert!(self.shielded.contains(lane), "core {lane} is not idled");
                    self.shielded.remove(lane);
                    self.assign(lane, place, now, reason);
                    self.decline_shield(place, lane, Some(by));
                }
            }
        }
        self.moves > moves
    }

    /// The idled core that the task gets next, if it needs one so: any for its guarantee, for relief the one
    /// beside the least late of its own requests.
    fn lane_for(&self, place: u32, needs: Needs, now: Nanos, advice: &Advice) -> Option<CoreId> {
        let task = self.task(place);
        let (needy, any) = match needs {
            Needs::Guarantee(class) => {
                let short = task.is_short() && task.unmet() > 0;
                (task.class == class && (short || self.is_entitled(place)), true)
            }
            Needs::Relief => (task.is_lc() && task.claims() > 0, false),
        };
        if !task.alive || !needy {
            return None;
        }
        let open = task.open();
        let takes = |lane: &CoreId| {
            let state = self.core(*lane);
            let own = || self.core(CoreId(state.shields)).reserved == place;
            self.shielded.contains(*lane)
                && state.owner == NONE
                && open.contains(*lane)
                && !state.refuses(place, now)
                && (any || own())
        };
        advice.shields.iter().rev().map(|shield| shield.0).find(takes)
    }

    fn decline_shield(&mut self, place: u32, lane: CoreId, by: Option<Invariant>) {
        if place != NONE {
            let task = self.task(place).id;
            self.veto(Veto { task, offer: Offer::Idle(lane), by });
        }
    }
}
