//! What a pass knows of each group (`update_sd_lb_stats`, `update_sg_lb_stats`).

use quell_model::{CoreId, CoreSet, GroupKind, Nanos};

use super::super::domains::{Level, LevelGroup, LevelKind};
use super::super::model::{Comparison, Fix};
use super::super::record::PassNotes;
use super::super::{CoreQueue, Linux};
use super::Entry;

/// The capacity of a core, and a load of one.
pub(in super::super) const ONE: u64 = 1_024;

/// A core as passes see it: as of the last event there, and as it is now while it idles.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CoreView {
    load: u64,
    capacity: u64,
    /// Time that fair threads ran, and were runnable since group types.
    used: u64,
    runnable: u64,
    queued: u32,
}

/// A group in a pass. Loads and capacities are sums over its cores.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct GroupStats {
    pub cores: CoreSet,
    /// Its cores that are online.
    pub weight: u64,
    pub load: u64,
    pub capacity: u64,
    /// The capacity of its weakest core (`sgc->min_capacity`), where capacities differ.
    pub least_capacity: u64,
    /// Its physical cores.
    pub physical: u64,
    /// Time that fair threads ran.
    pub used: u64,
    /// Time that fair threads were runnable, since group types.
    pub runnable: u64,
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
        self.queued > self.weight
            && (self.capacity * 100 < self.used * pct || self.capacity * pct < self.runnable * 100)
    }

    /// `group_has_capacity`.
    pub fn has_capacity(&self, pct: u64) -> bool {
        self.queued < self.weight
            || self.capacity * pct >= self.runnable * 100 && self.capacity * 100 > self.used * pct
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
        (core, level): (usize, usize),
        entry: Entry,
        among: &CoreSet,
        now: Nanos,
        notes: &mut PassNotes,
    ) -> LevelStats {
        let span = self.domains.levels(core)[level].span;
        self.look_at_changed(&span, now);
        let of = &self.domains.levels(core)[level];
        let own = Linux::id(core);
        let mut stats = LevelStats::default();
        let mut is_overloaded = false;
        let mut has_local = false;
        notes.begin_groups();
        for group in &of.groups {
            let mut seen = self.group_stats(group, of, among, now);
            let is_local = group.cores.contains(own);
            seen.kind = self.group_type(&seen, group, of, entry != Entry::Busy && !is_local);
            is_overloaded |= !group.cores.is_disjoint(&self.crowded);
            stats.load += seen.load;
            stats.capacity += seen.capacity;
            // Of overlapping groups that hold the core the last one is local, as in the kernel's walk.
            if is_local {
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
            let is_busiest = seen.queued > 0
                && !self.slows_down(of, &seen, core)
                && stats.busiest.is_none_or(|busiest| self.is_busier(of, &seen, &busiest));
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
        let still = cores.intersection(&self.still);
        let count = still.len() as u64;
        (stats.weight, stats.idle, stats.capacity) = (count, count, count * ONE);
        stats.least = if count > 0 { 0 } else { u64::MAX };
        for core in cores.difference(&still).iter() {
            let CoreView { load, capacity, used, runnable, queued } = self.views[core.index()];
            stats.weight += 1;
            stats.load += load;
            stats.capacity += capacity;
            stats.used += used;
            stats.runnable += runnable;
            stats.queued += u64::from(queued);
            stats.idle += u64::from(self.idle.contains(core));
            (stats.least, stats.most) = (stats.least.min(load), stats.most.max(load));
        }
        // With fewer threads than cores it makes no difference what is used (`is_overloaded`, `has_capacity`).
        if stats.queued >= stats.weight {
            stats.used += still.iter().map(|core| self.used(core.index(), now)).sum::<u64>();
        }
        debug_assert!(
            still.iter().all(|core| self.has_nothing(core, now)),
            "cores {still} have a load, or real-time threads ran there"
        );
        stats.least = if stats.weight == 0 { 0 } else { stats.least };
        if self.compares_types() {
            // Those of the whole group, also where some queues are left out (`group->group_weight`, `sgc->capacity`).
            let all = group.cores.intersection(&self.online);
            stats.weight = all.len() as u64;
            stats.capacity = all.iter().map(|core| self.views[core.index()].capacity).sum();
            if level.is_asymmetric {
                let least = all.iter().map(|core| self.views[core.index()].capacity).min();
                stats.least_capacity = least.unwrap_or_default();
            }
            stats.physical = if level.of_siblings { 1 } else { self.physical_cores(&all) };
        }
        stats
    }

    /// Brings what is seen of these cores up to date, where something happened there or where they idle. Between two events of a
    /// core the kernel updates its averages no more than this does.
    fn look_at_changed(&mut self, cores: &CoreSet, now: Nanos) {
        let by_types = self.compares_types();
        let changed = self.stale.union(&self.idle.difference(&self.still)).intersection(cores);
        for core in changed.iter().map(CoreId::index) {
            let queue = &self.cores[core];
            let view = CoreView {
                load: self.core_load(core, now),
                capacity: capacity(queue, now),
                used: self.used(core, now),
                runnable: if by_types { self.core_runnable(core, now) } else { 0 },
                queued: queue.queued,
            };
            match !by_types && self.is_still(core, &view) {
                true => self.still.insert(Linux::id(core)),
                false => self.still.remove(Linux::id(core)),
            }
            self.views[core] = view;
        }
        self.stale = self.stale.difference(&changed);
    }

    /// What passes compare of an idle core, but for [`CoreView::used`], does not change until something happens there: before group
    /// types only what runs or waits is a load. Cores of less than the full capacity are left out: those that are still are counted.
    fn is_still(&self, core: usize, view: &CoreView) -> bool {
        let is_empty = self.is_idle(core) && view.load == 0 && view.queued == 0;
        is_empty && self.cores[core].realtime_share.is_none() && self.cores[core].scale == ONE
    }

    /// The core has no load now, and no real-time thread ran there, as passes take for granted of those in [`Linux::still`].
    fn has_nothing(&self, core: CoreId, now: Nanos) -> bool {
        let at = core.index();
        let load = self.core_load(at, now);
        let is_fresh = !self.stale.contains(core) && capacity(&self.cores[at], now) == ONE;
        is_fresh && self.is_still(at, &CoreView { load, ..CoreView::default() })
    }

    /// For how much of the past fair threads ran on a core.
    fn used(&self, core: usize, now: Nanos) -> u64 {
        self.cores[core].fair_share.at(now, self.runs_fair(core)).of(ONE)
    }

    /// Physical cores of these cores, where that makes a difference.
    fn physical_cores(&self, cores: &CoreSet) -> u64 {
        if !self.model.balances_siblings || !self.topology.has_siblings() {
            return cores.len() as u64;
        }
        let is_first = |core: &CoreId| {
            self.siblings_of(core.index()).intersection(cores).first() == Some(*core)
        };
        cores.iter().filter(is_first).count() as u64
    }

    /// A fair thread runs on the core.
    pub(in super::super) fn runs_fair(&self, core: usize) -> bool {
        self.cores[core].running.is_some_and(|thread| self.threads[thread].class.is_fair())
    }

    /// `group_classify`. The group may help an idle core.
    fn group_type(
        &self,
        stats: &GroupStats,
        group: &LevelGroup,
        level: &Level,
        helps_idle: bool,
    ) -> GroupKind {
        let is_imbalanced = self.domains.is_imbalanced(group);
        let goes_first = self.compares_types() && self.model.fixes.imbalanced_group != Fix::None;
        if stats.is_overloaded(level.imbalance_pct) && !(is_imbalanced && goes_first) {
            GroupKind::Overloaded
        } else if is_imbalanced {
            GroupKind::Imbalanced
        } else if helps_idle
            && self.model.balances_siblings
            && level.of_siblings
            && stats.queued > 1
        {
            GroupKind::Siblings
        } else if self.model.compares() != Comparison::Types
            || stats.has_capacity(level.imbalance_pct)
        {
            GroupKind::HasSpare
        } else {
            GroupKind::FullyBusy
        }
    }

    /// Whether threads of a group have faster cores of their own than this one, which would slow them down
    /// (`update_sd_pick_busiest`).
    fn slows_down(&self, level: &Level, group: &GroupStats, core: usize) -> bool {
        level.is_asymmetric
            && self.compares_types()
            && group.kind <= GroupKind::FullyBusy
            && is_greater(group.least_capacity, self.views[core].capacity)
    }

    /// `update_sd_pick_busiest`: the higher type; of equals the one with more to give.
    fn is_busier(&self, level: &Level, group: &GroupStats, than: &GroupStats) -> bool {
        let has_less_room = || (than.idle, group.queued) > (group.idle, than.queued);
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
            (Comparison::Types, GroupKind::HasSpare) => has_less_room(),
            (Comparison::Types, GroupKind::Siblings) if group.idle > 0 || than.idle > 0 => {
                has_less_room()
            }
            // Their average loads are not known: the first one, since Linux 6.6 the last one but for siblings.
            (Comparison::Types, GroupKind::FullyBusy | GroupKind::Siblings) => {
                self.model.balances_siblings && !level.of_siblings
            }
            (Comparison::Types, GroupKind::Overloaded) => group.average() > than.average(),
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
        let idle = usable.intersection(&self.idle);
        let is_between_cores = self.domains.levels(core)[level].kind != LevelKind::Siblings;
        let whole = idle.iter().find(|core| self.idles_whole(*core));
        let first = match self.model.balances_siblings && is_between_cores {
            true => whole.or_else(|| idle.first()),
            false => idle.first(),
        };
        first.or_else(|| usable.first()) == Some(Linux::id(core))
    }
}

/// What real-time threads leave of a core (`scale_rt_capacity`).
pub(super) fn capacity(queue: &CoreQueue, now: Nanos) -> u64 {
    (queue.scale - queue.realtime_share.at(now, false).of(queue.scale).min(queue.scale)).max(1)
}

/// A capacity is noticeably greater than another one (`capacity_greater`).
pub(super) fn is_greater(capacity: u64, than: u64) -> bool {
    capacity * ONE > than * 1_078
}
