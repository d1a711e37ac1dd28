//! Which core suits a task best, and which it may take.
//!
//! The rules and weights are Caladan's (`ias`), in integers: its locality of 0 to 1 is 0 to 1000 here.

use quell_model::{Class, CoreId, CoreSet, Nanos, TaskId};

use super::Allocator;
use super::constants::{BE_QUANTUM, COLD_AFTER};
use super::tables::NONE;
use crate::Advice;

const RESERVED: i64 = 7_000;
const OTHERS_RESERVED: i64 = -5_000;
const SIBLING_APART: i64 = 3_000;
const ALL_IDLE: i64 = 2_000;
const WARM: i64 = 1_000;

/// Who could yield cores to others: lets a claim without a chance be turned down at once.
pub(super) struct Market {
    /// The allocator's version when it was surveyed.
    version: u64,
    /// Cores of tasks that hold more than their guarantee.
    yielding: CoreSet,
    /// The most burst cores that one LC task and one BE task hold.
    top_burst: [i64; 2],
    /// Since when a BE task has held its yielding core that changed hands longest ago.
    pub oldest_be: Nanos,
}

impl Default for Market {
    fn default() -> Self {
        let (version, yielding, top_burst) = (u64::MAX, CoreSet::EMPTY, [0; 2]);
        Market { version, yielding, top_burst, oldest_be: Nanos::MAX }
    }
}

impl Allocator {
    /// The best core that the task may take: one without an owner, else a BE task's, else another LC
    /// task's burst core.
    pub(super) fn pick_core(
        &mut self,
        place: u32,
        now: Nanos,
        running_on: &CoreSet,
        advice: &Advice,
    ) -> Option<CoreId> {
        self.survey();
        let task = self.task(place);
        let open = self.open(place);
        let from_be = match task.class {
            Class::LatencyCritical => true,
            Class::BestEffort => self.be_yields_to(place, now),
        };
        let from_lc = task.is_lc() && self.market.top_burst[0] > task.burst() + 1;
        let sources = [
            Some(self.free),
            from_be.then_some(self.market.yielding.intersection(&self.be_owned)),
            from_lc.then_some(self.market.yielding.intersection(&self.lc_owned)),
        ];
        sources.iter().flatten().find_map(|cores| {
            self.best_of(place, now, &open.intersection(cores), running_on, advice)
        })
    }

    /// Whether some BE task has a core that this BE task could take, as far as numbers tell.
    pub(super) fn be_yields_to(&self, place: u32, now: Nanos) -> bool {
        let task = self.task(place);
        let rotates = task.owned_len == 0 && now.since(self.market.oldest_be) >= BE_QUANTUM;
        rotates || self.market.top_burst[1] > task.burst() + 1
    }

    /// Brings up to date who could yield at all, if a core changed hands since.
    pub(super) fn survey(&mut self) {
        if self.market.version == self.version {
            return;
        }
        let mut market = Market { version: self.version, ..Market::default() };
        for core in self.usable.difference(&self.free).iter() {
            let state = self.core(core);
            let holder = self.task(state.owner);
            if holder.burst() > 0 {
                market.yielding.insert(core);
                let class = usize::from(holder.is_be());
                market.top_burst[class] = market.top_burst[class].max(holder.burst());
                if holder.is_be() {
                    market.oldest_be = market.oldest_be.min(state.since);
                }
            }
        }
        self.market = market;
    }

    /// The best of these cores; ties go to the lowest.
    pub(super) fn best_of(
        &self,
        place: u32,
        now: Nanos,
        cores: &CoreSet,
        running_on: &CoreSet,
        advice: &Advice,
    ) -> Option<CoreId> {
        if cores.is_empty() {
            return None;
        }
        let id = self.task(place).id;
        let takeable = |core: &CoreId| {
            self.may_take(place, *core, now) && !self.core(*core).refuses(place, now)
        };
        let key = |core: &CoreId| {
            let score = self.score(place, *core, now, running_on) + preference(advice, id, *core);
            (score, std::cmp::Reverse(*core))
        };
        cores.iter().filter(takeable).max_by_key(key)
    }

    /// Whether the task may take the core from whoever has it. A core that another holds within its
    /// guarantee is never taken here: that is `grant_guaranteed`'s affair.
    fn may_take(&self, place: u32, core: CoreId, now: Nanos) -> bool {
        let state = self.core(core);
        if state.owner == NONE {
            return true;
        }
        let (taker, holder) = (self.task(place), self.task(state.owner));
        if state.owner == place || holder.burst() <= 0 {
            return false;
        }
        match (taker.class, holder.class) {
            (Class::LatencyCritical, Class::BestEffort) => true,
            (Class::BestEffort, Class::LatencyCritical) => false,
            _ if holder.burst() > taker.burst() + 1 => true,
            (Class::BestEffort, _) => taker.owned_len == 0 && now.since(state.since) >= BE_QUANTUM,
            (Class::LatencyCritical, _) => false,
        }
    }

    fn score(&self, place: u32, core: CoreId, now: Nanos, running_on: &CoreSet) -> i64 {
        let state = self.core(core);
        let siblings = &self.siblings[core.index()];
        let mut apart = true;
        let mut all_idle = state.idle;
        let mut warm = if running_on.contains(core) { WARM } else { 0 };
        warm = warm.max(warmth(&state.history, place, now));
        for &sibling in siblings {
            let sibling = self.core(sibling);
            apart &= sibling.running != place;
            all_idle &= sibling.idle;
            warm = warm.max(warmth(&sibling.history, place, now));
        }
        let reserved = match state.reserved {
            NONE => 0,
            owner if owner == place => RESERVED,
            _ => OTHERS_RESERVED,
        };
        let apart = if apart && !siblings.is_empty() { SIBLING_APART } else { 0 };
        reserved + apart + if all_idle { ALL_IDLE } else { 0 } + warm
    }
}

/// How warm a core's cache is for a task: falls linearly to zero at [`COLD_AFTER`].
fn warmth(history: &[(u32, Nanos); 2], place: u32, now: Nanos) -> i64 {
    let ran = history.iter().find(|(ran, _)| *ran == place);
    ran.map_or(0, |(_, at)| {
        let left = COLD_AFTER.since(now.since(*at));
        (left.0 * WARM as u64 / COLD_AFTER.0) as i64
    })
}

fn preference(advice: &Advice, task: TaskId, core: CoreId) -> i64 {
    let scores = advice.preferences.iter().filter(|p| p.task == task && p.core == core);
    scores.map(|p| i64::from(p.score)).sum::<i64>().clamp(-WARM, WARM)
}
