//! Where a woken thread goes (`select_task_rq_fair`): near the core of the waker or the one where it ran last, within one
//! last-level cache.

use quell_model::{CoreSet, MoveCause, Nanos, Search};

use super::fair::Arrival;
use super::model::WakeSearch;
use super::{Linux, Migration, ROOT, SchedClass};

/// Wake-ups of ever other threads are forgotten by half in this time (`record_wakee`).
const FLIPS_HALVE: Nanos = Nanos::from_secs(1);

impl Linux {
    /// Wakes a sleeping thread; `waker` runs on its core. The core in whose queue it is from now on.
    pub fn wake(&mut self, thread: usize, waker: Option<usize>, now: Nanos) -> usize {
        self.fall_back(thread);
        let from = self.threads[thread].core;
        if let Some(waker) = waker {
            self.record_wakee(waker, thread, now);
        }
        if self.wake_delayed(thread, now) {
            return from;
        }
        let core = match self.threads[thread].class {
            SchedClass::RealTime(_) => self.select_realtime(thread),
            SchedClass::Fair { .. } | SchedClass::Idle => self.select_fair(thread, waker, now),
        };
        self.unblock(thread, now);
        self.note_idle_time(core, now);
        if core != from {
            self.carry_used(thread, from, core, now);
            self.threads[thread].ran_at = Nanos::ZERO;
            self.migrations.push(Migration { thread, from, to: core, cause: MoveCause::Wakeup });
        }
        self.enqueue(thread, core, Arrival::Woken, now);
        self.preempt_if_due(thread);
        if !self.threads[thread].class.is_fair() {
            self.push_realtime(core, now);
        }
        self.threads[thread].core
    }

    /// A sleeper that is still in its queue only has to be counted again.
    fn wake_delayed(&mut self, thread: usize, now: Nanos) -> bool {
        let super::SchedThread { group, core, .. } = self.threads[thread];
        let entity = super::fair::Entity::Thread(thread as u32);
        let is_fair = self.threads[thread].class.is_fair();
        if !is_fair || !self.may_use(thread, core) {
            self.finish_delayed(thread);
            return false;
        }
        self.charge(core, now);
        if !self.wake_delayed_in(group, core, entity) {
            return false;
        }
        self.unblock(thread, now);
        self.threads[thread].runnable.pass(now, false);
        self.threads[thread].is_queued = true;
        self.waste.add_queued(core, self.threads[thread].mask, true, 1);
        self.cores[core].fair.push(thread);
        let counts = self.threads[thread].counted;
        for sums in self.groups[group].sums_of(core) {
            sums.add(&counts);
        }
        self.preempt_if_due(thread);
        true
    }

    fn wake_delayed_in(&mut self, group: usize, core: usize, entity: super::fair::Entity) -> bool {
        match group {
            ROOT => self.cores[core].root.wake_delayed(entity),
            _ => self.groups[group].on[core].queue.wake_delayed(entity),
        }
    }

    /// The thread is no longer blocked, and the time that it slept counts.
    fn unblock(&mut self, thread: usize, now: Nanos) {
        let super::SchedThread { group, core, counted, share, has_run, .. } = self.threads[thread];
        if self.threads[thread].class.is_fair() && has_run {
            let slept = share.updated();
            for sums in self.groups[group].sums_of(core) {
                sums.unblock(&counted, slept, now);
            }
            self.stale.insert(Linux::id(core));
        }
        self.refresh(thread, now, false);
    }

    fn record_wakee(&mut self, waker: usize, wakee: usize, now: Nanos) {
        let state = &mut self.threads[waker];
        if now.since(state.flips_at) > FLIPS_HALVE {
            state.flips /= 2;
            state.flips_at = now;
        }
        if state.last_wakee != wakee {
            state.last_wakee = wakee;
            state.flips += 1;
        }
    }

    fn select_fair(&mut self, thread: usize, waker: Option<usize>, now: Nanos) -> usize {
        let previous = self.threads[thread].core;
        let waking_core = waker.map_or(previous, |waker| self.threads[waker].core);
        if self.model.takes_longest_idle()
            && let Some(core) = self.longest_idle(thread, previous)
        {
            self.note_search(waking_core, Search::IdleSibling, self.idle);
            return core;
        }
        let mut target = previous;
        let may_pull = waker.is_some_and(|waker| !self.is_wide(waker, thread));
        if waking_core != previous && self.may_use(thread, waking_core) && may_pull {
            let levels = self.domains.levels(waking_core).iter();
            let mut near = levels.filter(|level| level.places);
            let has_previous = near.any(|level| level.span.contains(Linux::id(previous)));
            if has_previous && self.is_lighter(thread, waking_core, previous, now) {
                target = waking_core;
            }
        }
        if !self.may_use(thread, target) {
            let usable = self.threads[thread].allowed.intersection(&self.online);
            target = usable.first().map_or(target, |core| core.index());
        }
        let mut looked = CoreSet::of(Linux::id(target));
        let found = match self.model.searches() {
            WakeSearch::IdleGroups => self.idle_sibling(thread, target, previous, &mut looked),
            WakeSearch::IdleTime | WakeSearch::Utilisation => {
                self.idle_in_cache(thread, target, previous, &mut looked, now)
            }
        };
        self.note_search(waking_core, Search::IdleSibling, looked);
        found
    }

    /// The paper's third fix: the previous core if it idles, else the one that idles for longest.
    fn longest_idle(&self, thread: usize, previous: usize) -> Option<usize> {
        let idle = self.threads[thread].allowed.intersection(&self.idle);
        if idle.contains(Linux::id(previous)) {
            return Some(previous);
        }
        idle.iter()
            .map(|core| core.index())
            .min_by_key(|core| (self.cores[*core].idle_since, *core))
    }

    /// Whether the waker wakes so many others that pulling them all would crowd its cache (`wake_wide`).
    fn is_wide(&self, waker: usize, wakee: usize) -> bool {
        let factor = self.domains.cache(self.threads[waker].core).len() as u32;
        let [more, less] = {
            let flips = [self.threads[waker].flips, self.threads[wakee].flips];
            [flips[0].max(flips[1]), flips[0].min(flips[1])]
        };
        less >= factor && more >= less * factor
    }

    /// Whether the waker's core would be no busier with the thread than its previous one (`wake_affine`).
    fn is_lighter(&self, thread: usize, here: usize, there: usize, now: Nanos) -> bool {
        if self.is_idle(here) {
            return true;
        }
        let adds = self.added_load(thread, now);
        let load = |core, added| 100 * (self.core_load(core, now) + added);
        // Half of the usual imbalance is in favour of the previous core.
        load(here, adds) <= load(there, 0) * 112 / 100
    }

    /// By how much the thread would raise the load of a core: its part of what its group may have.
    fn added_load(&self, thread: usize, now: Nanos) -> u64 {
        let state = &self.threads[thread];
        let own = state.share.at(now, false).of(state.class.weight());
        match state.group {
            ROOT => own,
            group => {
                let group = &self.groups[group];
                (group.shares * own / (group.total.all_load(now) + own + 1)).min(own)
            }
        }
    }

    fn may_use_idle(&self, thread: usize, core: usize) -> bool {
        self.may_use(thread, core) && self.counts_as_idle(core, thread)
    }

    /// It idles, or runs only SCHED_IDLE threads where these do not count.
    fn counts_as_idle(&self, core: usize, thread: usize) -> bool {
        if self.is_idle(core) {
            return true;
        }
        self.model.sched_idle_counts_as_idle
            && self.threads[thread].class != SchedClass::Idle
            && self.runs_only_idle_class(core)
    }

    /// All that a core has is SCHED_IDLE (`sched_idle_cpu`).
    pub(super) fn runs_only_idle_class(&self, core: usize) -> bool {
        let queue = &self.cores[core];
        let is_idle_class = |thread: &usize| self.threads[*thread].class == SchedClass::Idle;
        !queue.fair.is_empty() && queue.realtime.is_empty() && queue.fair.iter().all(is_idle_class)
    }

    /// The target if it idles, else the previous core if it shares the target's cache and idles.
    fn idle_known(
        &self,
        thread: usize,
        target: usize,
        previous: usize,
        looked: &mut CoreSet,
    ) -> Option<usize> {
        if self.may_use_idle(thread, target) {
            return Some(target);
        }
        let shares = self.domains.cache(target).contains(Linux::id(previous));
        if shares {
            looked.insert(Linux::id(previous));
        }
        (shares && self.may_use_idle(thread, previous)).then_some(previous)
    }

    /// Linux 4.1: the target, else the previous core, else the first group of the cache of which all cores idle
    /// (`select_idle_sibling`).
    fn idle_sibling(
        &self,
        thread: usize,
        target: usize,
        previous: usize,
        looked: &mut CoreSet,
    ) -> usize {
        if let Some(core) = self.idle_known(thread, target, previous, looked) {
            return core;
        }
        let cache = self.domains.cache(target);
        let within = |level: &&super::domains::Level| level.span.is_subset(cache);
        for level in self.domains.levels(target).iter().rev().filter(within) {
            for group in &level.groups {
                let usable = group.cores.intersection(&self.threads[thread].allowed);
                *looked = looked.union(&group.cores);
                let idles =
                    group.cores.is_subset(&self.idle) && !group.cores.contains(Linux::id(target));
                if let Some(core) = usable.first().filter(|_| idles) {
                    return core.index();
                }
            }
        }
        target
    }

    /// Since Linux 4.8: the target, the previous core, a physical core of the cache that idles, a core of it that idles.
    fn idle_in_cache(
        &self,
        thread: usize,
        target: usize,
        previous: usize,
        looked: &mut CoreSet,
        now: Nanos,
    ) -> usize {
        if let Some(core) = self.idle_known(thread, target, previous, looked) {
            return core;
        }
        let cache = self.domains.cache(target);
        let usable = cache.intersection(&self.threads[thread].allowed).intersection(&self.online);
        if self.topology.has_siblings() {
            *looked = looked.union(&usable);
        }
        if let Some(core) = self.idle_physical(&usable, target) {
            return core;
        }
        let most = self.scan_limit(target, cache, now);
        let after = usable.iter().filter(|core| core.index() > target);
        let before = usable.iter().filter(|core| core.index() < target);
        let mut scanned = after.chain(before).take(most);
        let found = scanned.find(|core| {
            looked.insert(*core);
            self.counts_as_idle(core.index(), thread)
        });
        found.map_or(target, |core| core.index())
    }

    /// A core of which all siblings idle (`select_idle_core`).
    fn idle_physical(&self, usable: &CoreSet, target: usize) -> Option<usize> {
        if !self.topology.has_siblings() {
            return None;
        }
        let idle = usable.intersection(&self.idle);
        let after = idle.iter().filter(|core| core.index() > target);
        let before = idle.iter().filter(|core| core.index() <= target);
        after.chain(before).find(|core| self.idles_whole(*core)).map(|core| core.index())
    }

    /// How many cores a scan looks at (`select_idle_cpu`).
    fn scan_limit(&self, target: usize, cache: &CoreSet, now: Nanos) -> usize {
        let cores = cache.len() as u64;
        let limit = match self.model.searches() {
            WakeSearch::IdleGroups => cores,
            // Cores that fit into a 512th of the mean idle time, an assumed 100 ns each, but four at least (`SIS_PROP`).
            WakeSearch::IdleTime => (self.cores[target].mean_idle.0 / 512 / 100).max(4),
            // `update_idle_cpu_scan`: cores * (1 - (117 / 100 * utilisation)^2), which four fifths of a busy cache end.
            WakeSearch::Utilisation => {
                let busy = cache.iter().map(|core| {
                    let queue = &self.cores[core.index()];
                    queue.fair_share.at(now, self.runs_fair(core.index())).of(1_024)
                });
                let used = busy.sum::<u64>() * 117 / 100 / cores.max(1);
                cores * (1_024u64 * 1_024).saturating_sub(used * used) / (1_024 * 1_024)
            }
        };
        limit.min(cores) as usize
    }
}
