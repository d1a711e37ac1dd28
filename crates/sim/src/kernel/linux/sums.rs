//! Sums of the loads of threads: of a group on a core, of a group, of a core.

use quell_model::Nanos;

use super::fair::FairQueue;
use super::load::decayed;
use super::{Linux, ROOT, TaskGroup};

/// Sums over threads. Sleeping threads count as blocked, and decay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    /// Loads of runnable threads.
    pub load: u64,
    /// Shares of the past in which they were runnable, in 1/1,024ths.
    pub time: u64,
    blocked_load: u64,
    blocked_time: u64,
    /// Up to when the blocked ones have decayed.
    at: Nanos,
}

impl Sums {
    /// A runnable thread with this load.
    pub fn of(load: u64, time: u64) -> Sums {
        Sums { load, time, ..Sums::default() }
    }

    fn decay(&mut self, now: Nanos) {
        let passed = now.since(self.at);
        self.blocked_load = decayed(self.blocked_load, passed);
        self.blocked_time = decayed(self.blocked_time, passed);
        self.at = self.at.max(now);
    }

    /// A thread becomes runnable here.
    pub fn add(&mut self, thread: &Sums) {
        self.load += thread.load;
        self.time += thread.time;
    }

    /// It no longer is.
    pub fn subtract(&mut self, thread: &Sums) {
        debug_assert!(
            self.load >= thread.load && self.time >= thread.time,
            "{self:?} < {thread:?}"
        );
        self.load = self.load.saturating_sub(thread.load);
        self.time = self.time.saturating_sub(thread.time);
    }

    /// It sleeps from now on.
    pub fn block(&mut self, thread: &Sums, now: Nanos) {
        self.decay(now);
        self.blocked_load += thread.load;
        self.blocked_time += thread.time;
    }

    /// It slept since `slept`, and does no longer.
    pub fn unblock(&mut self, thread: &Sums, slept: Nanos, now: Nanos) {
        self.decay(now);
        let passed = now.since(slept);
        self.blocked_load = self.blocked_load.saturating_sub(decayed(thread.load, passed));
        self.blocked_time = self.blocked_time.saturating_sub(decayed(thread.time, passed));
    }

    /// Loads of runnable and blocked threads.
    pub fn all_load(&self, now: Nanos) -> u64 {
        self.load + decayed(self.blocked_load, now.since(self.at))
    }

    fn all_time(&self, now: Nanos) -> u64 {
        self.time + decayed(self.blocked_time, now.since(self.at))
    }
}

/// A task group on a core.
#[derive(Clone, Debug)]
pub(super) struct GroupCore {
    /// Its threads.
    pub queue: FairQueue,
    pub sums: Sums,
    /// Its place in the virtual time of the root queue while it has no threads there.
    pub place: i64,
}

impl GroupCore {
    pub fn new(queue: FairQueue) -> GroupCore {
        GroupCore { queue, sums: Sums::default(), place: 0 }
    }
}

impl TaskGroup {
    /// Its sums on a core, and over all cores.
    pub(super) fn sums_of(&mut self, core: usize) -> [&mut Sums; 2] {
        [&mut self.on[core].sums, &mut self.total]
    }
}

impl Linux {
    /// Brings what a thread counts for in the sums up to date; it was runnable, or not, since the last time.
    pub(super) fn refresh(&mut self, thread: usize, now: Nanos, was_runnable: bool) {
        let state = &mut self.threads[thread];
        state.share.pass(now, was_runnable);
        let counts = Sums::of(state.share.of(state.class.weight()), state.share.of(1_024));
        let before = std::mem::replace(&mut state.counted, counts);
        let (group, core, is_queued) = (state.group, state.core, state.is_queued);
        if is_queued && state.class.is_fair() {
            for sums in self.groups[group].sums_of(core) {
                sums.subtract(&before);
                sums.add(&counts);
            }
        }
    }

    /// What the entity of a group counts for on a core: its part of the group's shares, less if the group seldom runs
    /// (`__update_group_entity_contrib`).
    pub(super) fn group_load(&self, group: usize, core: usize, now: Nanos) -> u64 {
        let TaskGroup { shares, on, total } = &self.groups[group];
        let here = on[core].sums.all_load(now);
        if self.compares_types() {
            // `update_tg_cfs_load`: the weight of its entity, for as much of the past as that was runnable.
            let weight = on[core].queue.weight().max(here);
            if weight == 0 {
                return 0;
            }
            let others = total.all_load(now).saturating_sub(here);
            let weight = shares * weight / (others + weight).max(1);
            return weight * on[core].sums.all_time(now).min(1_024) / 1_024;
        }
        let load = shares * here / (total.all_load(now) + 1);
        load * total.all_time(now).min(1_024) / 1_024
    }

    /// The weight of the entity of a group on a core (`calc_cfs_shares`).
    pub(super) fn group_weight(&self, group: usize, core: usize, now: Nanos) -> u64 {
        let TaskGroup { shares, on, total } = &self.groups[group];
        let weight = on[core].queue.weight();
        let others = total.all_load(now).saturating_sub(on[core].sums.all_load(now));
        (shares * weight / (others + weight).max(1)).clamp(2, *shares)
    }

    /// The load of a core: of all that is runnable there (`weighted_cpuload`), since group types also of what sleeps
    /// (`cpu_load`).
    pub(super) fn core_load(&self, core: usize, now: Nanos) -> u64 {
        let groups = (0..self.groups.len()).filter(|group| *group != ROOT);
        if self.compares_types() {
            let loads = groups.map(|group| self.group_load(group, core, now));
            return self.groups[ROOT].on[core].sums.all_load(now) + loads.sum::<u64>();
        }
        let has_threads = |group: &usize| self.groups[*group].on[core].queue.len() > 0;
        let loads = groups.filter(has_threads).map(|group| self.group_load(group, core, now));
        self.groups[ROOT].on[core].sums.load + loads.sum::<u64>()
    }

    /// For how much of the past fair threads were runnable on a core, all of them together (`cpu_runnable`).
    pub(super) fn core_runnable(&self, core: usize, now: Nanos) -> u64 {
        let queue = &self.cores[core];
        let mut runnable = queue.fair_runnable;
        runnable.pass_all(now, queue.fair.len());
        runnable.sum()
    }

    /// What a queued thread counts for in the load of its core (`task_h_load`).
    pub(super) fn thread_load(&self, thread: usize, now: Nanos) -> u64 {
        let state = &self.threads[thread];
        if state.group == ROOT {
            return state.counted.load;
        }
        let sums = &self.groups[state.group].on[state.core].sums;
        if self.compares_types() {
            // `update_cfs_rq_h_load` rounds down at each level.
            let root = self.core_load(state.core, now);
            let of_group = root * self.group_load(state.group, state.core, now) / (root + 1);
            return state.counted.load * of_group / (sums.all_load(now) + 1);
        }
        let here = sums.load;
        state.counted.load * self.group_load(state.group, state.core, now) / (here + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_load_decays_and_is_taken_out_as_it_is_then() {
        let thread = Sums::of(1_000, 1_024);
        let mut sums = Sums::default();
        sums.add(&thread);
        sums.add(&thread);
        sums.subtract(&thread);
        sums.block(&thread, Nanos::ZERO);
        let half = Nanos(32 << 20);
        assert_eq!(sums.all_load(half), 1_500);
        sums.unblock(&thread, Nanos::ZERO, half);
        assert_eq!(sums.all_load(half), 1_000);
    }
}
