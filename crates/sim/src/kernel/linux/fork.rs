//! Where new threads and new programs go: down the domains to the idlest group and its idlest core
//! (`find_idlest_group`, `find_idlest_cpu`).

use quell_model::{CoreId, MoveCause, Nanos, Search};

use super::domains::{Level, LevelGroup};
use super::fair::Arrival;
use super::load::Share;
use super::model::Comparison;
use super::sums::Sums;
use super::{Linux, Migration, SchedClass};

/// A group as a placement sees it; `min` of these is the idlest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Idleness {
    /// More threads than cores, exactly as many, fewer.
    crowded: u8,
    /// Average loads before Linux 5.5 and where crowded; else cores that do not idle.
    load: u64,
}

impl Linux {
    /// A new thread, forked by one that runs on this core. It starts on `start` if that is given and it may use it. The
    /// core in whose queue it is from now on.
    pub fn fork(
        &mut self,
        thread: usize,
        parent: CoreId,
        start: Option<CoreId>,
        now: Nanos,
    ) -> usize {
        self.fall_back(thread);
        let start = start.map(CoreId::index).filter(|core| self.may_use(thread, *core));
        let parent = start.unwrap_or(parent.index());
        // It is the parent's until it is placed.
        self.threads[thread].core = parent;
        let core = match (start, self.threads[thread].class) {
            (Some(core), _) => core,
            (None, SchedClass::RealTime(_)) => self.select_realtime(thread),
            (None, SchedClass::Fair { .. } | SchedClass::Idle) => {
                self.select_idlest(thread, parent, now)
            }
        };
        if core != parent {
            self.migrations.push(Migration {
                thread,
                from: parent,
                to: core,
                cause: MoveCause::Fork,
            });
        }
        let share = Share::new(self.model.load, self.tunables.granularity, now);
        if self.compares_types() && self.threads[thread].class.is_fair() {
            self.begin_used(thread, core, now);
        }
        let state = &mut self.threads[thread];
        let weight = state.class.weight();
        (state.core, state.has_run, state.share) = (core, true, share);
        state.counted = Sums::of(share.of(weight), share.of(1_024));
        self.enqueue(thread, core, Arrival::New, now);
        self.preempt_if_due(thread);
        core
    }

    /// A new thread is taken to use half of what its core has left at most, and as much for its weight as others there
    /// (`post_init_entity_util_avg`).
    fn begin_used(&mut self, thread: usize, core: usize, now: Nanos) {
        self.charge(core, now);
        let core_uses = self.cores[core].fair_share.of(1_024);
        let most = (1_024 - core_uses.min(1_024)) / 2;
        let weight = self.threads[thread].class.weight();
        let part = match core_uses {
            0 => most,
            uses => most.min(uses * weight / (self.core_load(core, now) + 1)),
        };
        let used = Share::part(part, now);
        (self.threads[thread].used, self.threads[thread].runnable) = (used, used);
        self.cores[core].fair_share.add(&used);
        self.cores[core].fair_runnable.add(&used);
    }

    /// A running thread becomes another program: it may go elsewhere first (`sched_exec`).
    pub fn exec(&mut self, thread: usize, now: Nanos) {
        let from = self.threads[thread].core;
        if !self.threads[thread].class.is_fair() {
            return;
        }
        let to = self.select_idlest(thread, from, now);
        if to != from {
            self.migrate(thread, to, MoveCause::Exec, now);
        }
    }

    /// From the highest level down: the idlest group, its idlest core, and on from there.
    fn select_idlest(&mut self, thread: usize, from: usize, now: Nanos) -> usize {
        let mut core = from;
        if self.model.takes_longest_idle() {
            // The paper's third fix is in effect for forks as well.
            let idle = self.threads[thread].allowed.intersection(&self.idle);
            let by_age = |core: &CoreId| (self.cores[core.index()].idle_since, *core);
            if let Some(found) = idle.iter().min_by_key(by_age) {
                return found.index();
            }
        }
        let mut below = usize::MAX;
        while let Some(at) = self.level_below(core, below) {
            let level = &self.domains.levels(core)[at];
            let span = level.span;
            below = span.len();
            let found = self.idlest_group(level, thread, core, now);
            self.note_search(core, Search::Idlest, span);
            let Some(group) = found else { continue };
            if let Some(found) = self.idlest_core(&group, thread, core, now) {
                core = found;
            }
        }
        match self.may_use(thread, core) {
            true => core,
            false => {
                let usable = self.threads[thread].allowed.intersection(&self.online);
                usable.first().map_or(core, |core| core.index())
            }
        }
    }

    /// The highest level of a core that places threads and spans fewer cores.
    fn level_below(&self, core: usize, cores: usize) -> Option<usize> {
        let is_below = |level: &Level| level.places && level.span.len() < cores;
        self.domains.levels(core).iter().rposition(is_below)
    }

    /// A remote group that is idler than the local one, which holds the core; `None`: stay.
    fn idlest_group(
        &self,
        level: &Level,
        thread: usize,
        core: usize,
        now: Nanos,
    ) -> Option<LevelGroup> {
        let mut local: Option<Idleness> = None;
        let mut best: Option<(Idleness, LevelGroup)> = None;
        for group in &level.groups {
            if group.cores.intersection(&self.online).is_disjoint(&self.threads[thread].allowed) {
                continue;
            }
            let idleness = self.idleness(group, now);
            if group.cores.contains(Linux::id(core)) {
                // Of overlapping groups that hold the core, the last one is compared.
                local = Some(idleness);
            } else if best.as_ref().is_none_or(|(best, _)| idleness < *best) {
                best = Some((idleness, *group));
            }
        }
        let (remote, group) = best?;
        let Some(local) = local else { return Some(group) };
        if local.crowded != remote.crowded {
            return (remote.crowded < local.crowded).then_some(group);
        }
        self.goes_there(level, local, remote).then_some(group)
    }

    /// Whether the local group is so much busier than a remote one that is as crowded.
    fn goes_there(&self, level: &Level, local: Idleness, remote: Idleness) -> bool {
        if self.model.compares() != Comparison::Types {
            // Half of the usual imbalance is in favour of the local group.
            let margin = 100 + (level.imbalance_pct - 100) / 2;
            return 100 * local.load >= margin * remote.load;
        }
        match local.crowded {
            0 => remote.load < local.load,
            _ => 100 * local.load > level.imbalance_pct * remote.load,
        }
    }

    fn idleness(&self, group: &LevelGroup, now: Nanos) -> Idleness {
        let cores = group.cores.intersection(&self.online);
        let weight = cores.len().max(1) as u64;
        let load = || cores.iter().map(|core| self.core_load(core.index(), now)).sum::<u64>();
        if self.model.compares() != Comparison::Types {
            return Idleness { crowded: 0, load: load() * 1_024 / weight };
        }
        let queued: u64 = cores.iter().map(|core| u64::from(self.queued(core))).sum();
        let crowded = match queued.cmp(&weight) {
            std::cmp::Ordering::Less => 0,
            std::cmp::Ordering::Equal => 1,
            std::cmp::Ordering::Greater => 2,
        };
        let load = match crowded {
            0 => (cores.len() - cores.intersection(&self.idle).len()) as u64 * 1_024 / weight,
            _ => load() * 1_024 / weight,
        };
        Idleness { crowded, load }
    }

    /// The core of a group that became idle last, else the one with the least load.
    fn idlest_core(
        &self,
        group: &LevelGroup,
        thread: usize,
        own: usize,
        now: Nanos,
    ) -> Option<usize> {
        let usable =
            group.cores.intersection(&self.threads[thread].allowed).intersection(&self.online);
        let idle = usable.intersection(&self.idle);
        let latest =
            |core: &CoreId| (std::cmp::Reverse(self.cores[core.index()].idle_since), core.index());
        let lightest = |core: &CoreId| {
            let core = core.index();
            (self.core_load(core, now), core != own, core)
        };
        let found = idle.iter().min_by_key(latest).or_else(|| usable.iter().min_by_key(lightest));
        found.map(|core| core.index())
    }
}
