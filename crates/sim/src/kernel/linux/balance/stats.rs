//! What a pass knows of each group (`update_sd_lb_stats`, `update_sg_lb_stats`).

use quell_model::{CoreId, CoreSet, GroupKind, Nanos};

use super::super::domains::{Level, LevelGroup};
use super::super::model::Comparison;
use super::super::record::PassNotes;
use super::super::{CoreQueue, Linux};
use super::Entry;

/// The capacity of a core, and a load of one.
pub(super) const ONE: u64 = 1_024;

/// A core as passes see it: as of the last event there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CoreView {
    load: u64,
    capacity: u64,
    queued: u32,
    /// Time that fair threads ran, in 1/1,024ths; of a core that runs something.
    used: u64,
}

/// A group in a pass. Loads and capacities are sums over its cores.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct GroupStats {
    pub cores: CoreSet,
    /// Its cores that are online.
    pub weight: u64,
    pub load: u64,
    pub capacity: u64,
    /// Time that fair threads ran.
    pub used: u64,
    pub queued: u64,
    pub idle: u64,
    /// The load of its least and its most loaded core.
    pub least: u64,
    pub most: u64,
    pub kind: GroupKind,
}

impl GroupStats {
    /// Load for each core's worth of capacity.
    pub fn average(&self) -> u64 {
        self.load * ONE / self.capacity.max(1)
    }

    /// Load of a thread.
    pub fn per_thread(&self) -> u64 {
        self.load / self.queued.max(1)
    }

    /// `group_is_overloaded`.
    fn is_overloaded(&self, pct: u64) -> bool {
        self.queued > self.weight && self.capacity * 100 < self.used * pct
    }

    /// `group_has_capacity`.
    pub fn has_capacity(&self, pct: u64) -> bool {
        self.queued < self.weight || self.capacity * 100 > self.used * pct
    }
}

/// All groups of a level, seen from one core.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LevelStats {
    pub local: GroupStats,
    pub busiest: Option<GroupStats>,
    /// Of all groups.
    pub load: u64,
    pub capacity: u64,
}

impl LevelStats {
    pub fn average(&self) -> u64 {
        self.load * ONE / self.capacity.max(1)
    }
}

impl Linux {
    /// Looks at all groups; the busiest is chosen among those that are not local.
    pub(super) fn level_stats(
        &mut self,
        core: usize,
        level: usize,
        among: &CoreSet,
        now: Nanos,
        notes: &mut PassNotes,
    ) -> LevelStats {
        let span = self.domains.levels(core)[level].span;
        self.look_at_stale(&span, now);
        let of = &self.domains.levels(core)[level];
        let own = Linux::id(core);
        let mut stats = LevelStats::default();
        let mut is_overloaded = false;
        let mut has_local = false;
        notes.begin_groups();
        for group in &of.groups {
            let mut seen = self.group_stats(group, of, among, now);
            is_overloaded |= !group.cores.is_disjoint(&self.crowded);
            stats.load += seen.load;
            stats.capacity += seen.capacity;
            // Of overlapping groups that hold the core the last one is local, as in the kernel's walk.
            if group.cores.contains(own) {
                notes.note_group(&seen, false);
                notes.last_is_local();
                stats.local = seen;
                has_local = true;
                continue;
            }
            let local_has_room = has_local && stats.local.has_capacity(of.imbalance_pct);
            let by_types = self.model.compares() == Comparison::Types;
            if !by_types && of.prefers_siblings && local_has_room && seen.queued > 1 {
                seen.kind = GroupKind::Overloaded;
            }
            let is_busiest = stats.busiest.is_none_or(|busiest| self.is_busier(&seen, &busiest))
                && seen.queued > 0;
            if is_busiest {
                stats.busiest = Some(seen);
            }
            notes.note_group(&seen, is_busiest);
        }
        if level + 1 == self.domains.levels(core).len() {
            self.is_overloaded = is_overloaded;
        }
        stats
    }

    fn group_stats(
        &self,
        group: &LevelGroup,
        level: &Level,
        among: &CoreSet,
        now: Nanos,
    ) -> GroupStats {
        let cores = group.cores.intersection(among);
        let mut stats = GroupStats { cores, least: u64::MAX, ..GroupStats::default() };
        for core in cores.iter() {
            let CoreView { load, capacity, queued, used } = self.views[core.index()];
            let is_idle = self.idle.contains(core);
            let used = if is_idle { self.used(core.index(), now) } else { used };
            stats.weight += 1;
            stats.load += load;
            stats.capacity += capacity;
            stats.used += used;
            stats.queued += u64::from(queued);
            stats.idle += u64::from(is_idle);
            (stats.least, stats.most) = (stats.least.min(load), stats.most.max(load));
        }
        stats.least = if stats.weight == 0 { 0 } else { stats.least };
        stats.kind = self.group_type(&stats, group, level);
        stats
    }

    /// Brings what is seen of these cores up to date, where something happened there. Between two events of a core the kernel
    /// updates its averages no more than this does.
    fn look_at_stale(&mut self, cores: &CoreSet, now: Nanos) {
        let stale = self.stale.intersection(cores);
        if stale.is_empty() {
            return;
        }
        for core in stale.iter().map(CoreId::index) {
            let queue = &self.cores[core];
            self.views[core] = CoreView {
                load: self.core_load(core, now),
                capacity: capacity(queue, now),
                queued: queue.queued,
                used: self.used(core, now),
            };
        }
        self.stale = self.stale.difference(&stale);
    }

    /// For how much of the past fair threads ran on a core.
    fn used(&self, core: usize, now: Nanos) -> u64 {
        self.cores[core].fair_share.at(now, self.runs_fair(core)).of(ONE)
    }

    /// A fair thread runs on the core.
    pub(in super::super) fn runs_fair(&self, core: usize) -> bool {
        self.cores[core].running.is_some_and(|thread| self.threads[thread].class.is_fair())
    }

    /// `group_classify`.
    fn group_type(&self, stats: &GroupStats, group: &LevelGroup, level: &Level) -> GroupKind {
        if stats.is_overloaded(level.imbalance_pct) {
            GroupKind::Overloaded
        } else if self.domains.is_imbalanced(group) {
            GroupKind::Imbalanced
        } else if self.model.compares() != Comparison::Types
            || stats.has_capacity(level.imbalance_pct)
        {
            GroupKind::HasSpare
        } else {
            GroupKind::FullyBusy
        }
    }

    /// `update_sd_pick_busiest`: the higher type; of equals the one with more to give.
    fn is_busier(&self, group: &GroupStats, than: &GroupStats) -> bool {
        if group.kind != than.kind {
            return group.kind > than.kind;
        }
        match (self.model.compares(), group.kind) {
            (Comparison::Averages, _) => group.average() > than.average(),
            // The text leaves open which of groups with the same least load; the one with more to give.
            (Comparison::LeastLoads, _) => {
                (group.least, group.average()) > (than.least, than.average())
            }
            (Comparison::Types, GroupKind::Imbalanced) => false,
            (Comparison::Types, GroupKind::HasSpare) => {
                (than.idle, group.queued) > (group.idle, than.queued)
                    && (group.idle < than.idle || group.queued > than.queued)
            }
            (Comparison::Types, GroupKind::FullyBusy | GroupKind::Overloaded) => {
                group.average() > than.average()
            }
        }
    }

    /// Whether this core balances for its group: the first idle one of those that may, else the first of these
    /// (`should_we_balance`).
    pub(super) fn is_designated(&self, core: usize, level: usize, entry: Entry) -> bool {
        if entry == Entry::NewIdle {
            return true;
        }
        let local = &self.domains.levels(core)[level].groups[0];
        let usable = local.balance.intersection(&self.online);
        let first = usable.intersection(&self.idle).first().or_else(|| usable.first());
        first == Some(Linux::id(core))
    }
}

/// What real-time threads leave of a core (`scale_rt_capacity`).
pub(super) fn capacity(queue: &CoreQueue, now: Nanos) -> u64 {
    (ONE - queue.realtime_share.at(now, false).of(ONE).min(ONE)).max(1)
}
