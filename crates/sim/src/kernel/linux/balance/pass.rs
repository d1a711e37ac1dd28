//! One pass: from the busiest queue of the busiest group to one core of the own group (`load_balance`).

use quell_model::{CoreId, CoreSet, MoveCause, Nanos, PassEntry, PassOutcome, Search, Skipped};

use super::super::domains::LevelKind;
use super::super::model::Comparison;
use super::super::record::PassNotes;
use super::super::{Linux, SchedClass};
use super::stats::{GroupStats, LevelStats, capacity, is_greater};
use super::{Entry, MIGRATION_COST, averages, types};

/// Threads that a pass looks at in one queue (`sysctl_sched_nr_migrate`).
const LOOKS_AT: usize = 32;

/// The longest interval of a level on which nothing may be moved (`MAX_PINNED_INTERVAL`).
const PINNED_MAX: Nanos = Nanos::from_millis(512);

/// How much a pass is to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Amount {
    Load(u64),
    /// Time that threads run, in 1/1,024ths of a core.
    Used(u64),
    Threads(u64),
}

impl Amount {
    pub fn is_nothing(self) -> bool {
        matches!(self, Amount::Load(0) | Amount::Used(0) | Amount::Threads(0))
    }
}

/// What a pass came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PassEnd {
    pub moved: usize,
    /// Higher levels may be balanced as well.
    pub goes_on: bool,
}

/// What a pass met in a queue.
#[derive(Clone, Copy, Debug, Default)]
struct DetachResult {
    moved: usize,
    some_pinned: bool,
    all_pinned: bool,
    /// A core of the own group on which a pinned thread may run.
    other: Option<usize>,
    skipped: Skipped,
}

/// What a pass moves from, to, and on behalf of.
#[derive(Clone, Copy, Debug)]
struct Route {
    from: usize,
    to: usize,
    core: usize,
    level: usize,
    entry: Entry,
}

impl Linux {
    /// Balances a level of a core.
    pub(super) fn pass(&mut self, core: usize, level: usize, entry: Entry, now: Nanos) -> PassEnd {
        if !self.is_designated(core, level, entry) {
            // Not noted: it saw nothing, nearly every idle core has one at each tick, and the designated core's is in the trace.
            return PassEnd { moved: 0, goes_on: false };
        }
        let mut notes = self.pass_notes();
        let result = self.find_and_move(core, level, entry, now, &mut notes);
        self.note_pass((core, level), entry.into(), result, notes);
        let balance = self.domains.balance_mut(core, level);
        match result {
            Ok(moved) => {
                balance.failed = 0;
                balance.interval = balance.interval_min;
                PassEnd { moved, goes_on: true }
            }
            Err(PassOutcome::Kept) => {
                let interval = std::mem::replace(&mut balance.interval, balance.interval_min);
                if entry != Entry::NewIdle {
                    balance.failed += 1;
                }
                self.push_if_failing(core, level, entry, interval, now);
                PassEnd { moved: 0, goes_on: true }
            }
            Err(_) if entry == Entry::NewIdle => PassEnd { moved: 0, goes_on: true },
            Err(outcome) => {
                balance.failed = 0;
                let most =
                    if outcome == PassOutcome::Pinned { PINNED_MAX } else { balance.interval_max };
                if balance.interval < most {
                    balance.interval = Nanos(balance.interval.0 * 2);
                }
                if outcome != PassOutcome::Pinned {
                    self.domains.set_imbalanced(core, level, false);
                }
                PassEnd { moved: 0, goes_on: true }
            }
        }
    }

    /// Moves threads to the core; how many, or why none.
    fn find_and_move(
        &mut self,
        core: usize,
        level: usize,
        entry: Entry,
        now: Nanos,
        notes: &mut PassNotes,
    ) -> Result<usize, PassOutcome> {
        // Queues of which all threads are pinned are left out, one after the other.
        let mut among = self.online;
        let mut were_pinned = false;
        loop {
            let found = self.find_busiest((core, level), entry, &among, now, notes);
            // All that could be moved was pinned: that the others are balanced is no news for the level above.
            let or_pinned = |outcome| if were_pinned { PassOutcome::Pinned } else { outcome };
            let (busiest, amount) = found.map_err(or_pinned)?;
            let queue = self.busiest_queue((core, level), &busiest, amount, now);
            let queue = queue.filter(|found| *found != core);
            self.note_search(core, Search::BusiestQueue, busiest.cores);
            let queue = queue.ok_or(or_pinned(PassOutcome::NoQueue))?;
            // Since Linux 5.5 only what is counted in threads is pushed (`imbalanced_active_balance`).
            let pushes = !self.compares_types() || matches!(amount, Amount::Threads(_));
            self.cores[core].pushes_from = Some(queue).filter(|_| pushes);
            if self.cores[queue].queued < 2 {
                notes.skipped.running += u32::from(self.cores[queue].running.is_some());
                return Err(PassOutcome::Kept);
            }
            let mut left = amount;
            let route = Route { from: queue, to: core, core, level, entry };
            let met = self.move_threads(route, &mut left, &mut among, now);
            notes.skip(met.skipped);
            if met.some_pinned && !left.is_nothing() {
                self.domains.set_imbalanced(core, level, true);
            }
            if met.moved > 0 {
                return Ok(met.moved);
            }
            if !met.all_pinned {
                return Err(PassOutcome::Kept);
            }
            were_pinned = true;
            among.remove(Linux::id(queue));
            let of = &self.domains.levels(core)[level];
            if among.intersection(&of.span).is_subset(&of.groups[0].cores) {
                return Err(PassOutcome::Pinned);
            }
        }
    }

    fn find_busiest(
        &mut self,
        (core, level): (usize, usize),
        entry: Entry,
        among: &CoreSet,
        now: Nanos,
        notes: &mut PassNotes,
    ) -> Result<(GroupStats, Amount), PassOutcome> {
        let stats: LevelStats = self.level_stats((core, level), entry, among, now, notes);
        let span = self.domains.levels(core)[level].span;
        self.note_search(core, Search::GroupStatistics, span.intersection(among));
        let of = &self.domains.levels(core)[level];
        let amount = match self.model.compares() {
            Comparison::Averages => averages::imbalance(&stats, of, entry)?,
            Comparison::LeastLoads => averages::least_imbalance(&stats)?,
            Comparison::Types => {
                types::imbalance(&stats, of, types::Rules::of(&self.model, entry))?
            }
        };
        stats.busiest.map(|busiest| (busiest, amount)).ok_or(PassOutcome::NoBusiest)
    }

    /// The queue with the highest load for its capacity, or with most threads (`find_busiest_queue`).
    fn busiest_queue(
        &self,
        (own, level): (usize, usize),
        group: &GroupStats,
        amount: Amount,
        now: Nanos,
    ) -> Option<usize> {
        let is_asymmetric = self.domains.levels(own)[level].is_asymmetric;
        let own_capacity = capacity(&self.cores[own], now);
        let mut best: Option<(u64, usize)> = None;
        for core in group.cores.iter().map(CoreId::index) {
            let queue = &self.cores[core];
            // A thread alone on its core is not pushed to one that is no faster.
            if is_asymmetric && queue.queued == 1 && !is_greater(own_capacity, capacity(queue, now))
            {
                continue;
            }
            let value = match amount {
                Amount::Load(most) => {
                    let load = self.core_load(core, now);
                    if queue.queued == 1 && load > most {
                        continue;
                    }
                    load * 1_024 / capacity(queue, now)
                }
                Amount::Used(_) if queue.queued <= 1 => continue,
                Amount::Used(_) => queue.fair_share.at(now, self.runs_fair(core)).of(1_024),
                Amount::Threads(_) => u64::from(queue.queued),
            };
            if value > best.map_or(0, |(best, _)| best) {
                best = Some((value, core));
            }
        }
        best.map(|(_, core)| core)
    }

    /// Threads of a queue that a pass looks at, and how many: those that came last; since Linux 4.15 those that ran longest ago.
    fn first_to_move(&self, from: usize) -> ([usize; LOOKS_AT], usize) {
        let fair = &self.cores[from].fair;
        let mut found = [0; LOOKS_AT];
        let count = fair.len().min(LOOKS_AT);
        let places = found.iter_mut();
        match self.model.moves_least_recent {
            true => places.zip(fair).for_each(|(place, thread)| *place = *thread),
            false => places.zip(fair.iter().rev()).for_each(|(place, thread)| *place = *thread),
        }
        (found, count)
    }

    /// Moves threads to the core that balances, then to others of its group on which those may run that are pinned.
    fn move_threads(
        &mut self,
        mut route: Route,
        left: &mut Amount,
        among: &mut CoreSet,
        now: Nanos,
    ) -> DetachResult {
        let mut met = DetachResult { all_pinned: true, ..DetachResult::default() };
        loop {
            self.detach(route, left, &mut met, among, now);
            match met.other.take() {
                Some(other) if !left.is_nothing() => {
                    among.remove(Linux::id(route.to));
                    route.to = other;
                }
                _ => return met,
            }
        }
    }

    /// Moves waiting threads of a queue up to the amount (`detach_tasks`).
    fn detach(
        &mut self,
        route: Route,
        left: &mut Amount,
        met: &mut DetachResult,
        among: &CoreSet,
        now: Nanos,
    ) {
        let Route { from, to, entry, .. } = route;
        let (threads, count) = self.first_to_move(from);
        for thread in threads.into_iter().take(count) {
            if entry != Entry::Busy && self.compares_types() && self.cores[from].queued <= 1 {
                break;
            }
            let rest = match self.can_migrate(thread, route, met, among, now) {
                true => {
                    let rest = self.rest_after(thread, *left, route, now);
                    met.skipped.heavy += u32::from(rest.is_none());
                    rest
                }
                false => None,
            };
            let Some(rest) = rest else {
                self.look_at_later(thread, from);
                continue;
            };
            let cause = match entry {
                Entry::NewIdle => MoveCause::NewIdle,
                Entry::Busy | Entry::Idle => MoveCause::Periodic,
            };
            self.migrate(thread, to, cause, now);
            met.moved += 1;
            *left = rest;
            if left.is_nothing() || entry == Entry::NewIdle {
                break;
            }
        }
    }

    /// A thread that stays is the last one that the next pass looks at.
    fn look_at_later(&mut self, thread: usize, from: usize) {
        if self.compares_types() {
            let threads = &mut self.cores[from].fair;
            threads.retain(|other| *other != thread);
            threads.push(thread);
        }
    }

    /// What is left to move after a thread; `None`: it is too much. Each failure halves what a thread counts for.
    fn rest_after(&self, thread: usize, left: Amount, route: Route, now: Nanos) -> Option<Amount> {
        let failed = self.domains.levels(route.core)[route.level].balance.failed.min(20);
        match left {
            Amount::Load(most) => {
                let load = self.thread_load(thread, now).max(1);
                let shift = if self.compares_types() { failed } else { 1 };
                (load >> shift <= most).then(|| Amount::Load(most.saturating_sub(load)))
            }
            Amount::Used(most) => {
                let runs = self.cores[route.from].running == Some(thread);
                let used = self.threads[thread].used.at(now, runs).of(1_024);
                (used >> failed <= most).then(|| Amount::Used(most.saturating_sub(used)))
            }
            Amount::Threads(most) => Some(Amount::Threads(most - 1)),
        }
    }

    /// Whether a pass may move a thread (`can_migrate_task`).
    fn can_migrate(
        &self,
        thread: usize,
        route: Route,
        met: &mut DetachResult,
        among: &CoreSet,
        now: Nanos,
    ) -> bool {
        let state = &self.threads[thread];
        let of = &self.domains.levels(route.core)[route.level];
        if !self.may_use(thread, route.to) {
            met.some_pinned = true;
            met.skipped.pinned += 1;
            if route.entry != Entry::NewIdle {
                let mut usable = of.groups[0].balance.intersection(among);
                usable.remove(Linux::id(route.to));
                usable.remove(Linux::id(state.core));
                let usable = usable.intersection(&state.allowed).intersection(&self.online);
                met.other = met.other.or(usable.first().map(|core| core.index()));
            }
            return false;
        }
        met.all_pinned = false;
        if self.cores[state.core].running == Some(thread) {
            met.skipped.running += 1;
            return false;
        }
        // Siblings share their caches (Linux 5.10).
        let is_hot = now.since(state.ran_at) < MIGRATION_COST
            && state.class != SchedClass::Idle
            && !(self.compares_types() && of.kind == LevelKind::Siblings);
        let may_leave = !is_hot || of.balance.failed > of.cache_nice_tries;
        met.skipped.warm += u32::from(!may_leave);
        may_leave
    }

    /// After some failures the stopper of the busiest queue pushes what runs there (`need_active_balance`,
    /// `active_load_balance_cpu_stop`).
    fn push_if_failing(
        &mut self,
        core: usize,
        level: usize,
        entry: Entry,
        interval: Nanos,
        now: Nanos,
    ) {
        let Some(from) = self.cores[core].pushes_from.take() else { return };
        let of = &self.domains.levels(core)[level];
        let tries = of.cache_nice_tries;
        if entry == Entry::NewIdle || of.balance.failed <= tries + 2 {
            return;
        }
        let mut notes = self.pass_notes();
        let result = match self.compares_types() {
            true => self.push_first(core, level, from, interval, now),
            false => {
                self.domains.balance_mut(core, level).failed = tries + 1;
                self.push_running(core, from, now)
            }
        };
        notes.skipped.pinned = u32::from(result == Err(PassOutcome::Pinned));
        self.note_pass((core, level), PassEntry::Active, result, notes);
    }

    /// The stopper pushes what runs.
    fn push_running(&mut self, core: usize, from: usize, now: Nanos) -> Result<usize, PassOutcome> {
        let running = self.cores[from].running.filter(|it| self.threads[*it].class.is_fair());
        let thread = running.ok_or(PassOutcome::NoQueue)?;
        if !self.may_use(thread, core) {
            return Err(PassOutcome::Pinned);
        }
        self.migrate(thread, core, MoveCause::Active, now);
        Ok(1)
    }

    /// The stopper pushes what a pass would look at first; what it preempted goes last.
    fn push_first(
        &mut self,
        core: usize,
        level: usize,
        from: usize,
        interval: Nanos,
        now: Nanos,
    ) -> Result<usize, PassOutcome> {
        if self.cores[from].running.is_some_and(|thread| !self.may_use(thread, core)) {
            // What runs is pinned: as if there was nothing to move.
            let balance = self.domains.balance_mut(core, level);
            let is_short = interval < balance.interval_max;
            balance.interval = if is_short { Nanos(2 * interval.0) } else { interval };
            return Err(PassOutcome::Pinned);
        }
        let mut threads = self.cores[from].fair.iter().copied();
        let thread = threads.find(|thread| self.may_use(*thread, core));
        let thread = thread.ok_or(PassOutcome::NoQueue)?;
        let id = Linux::id(from);
        let common = self.domains.levels(core).iter().position(|it| it.span.contains(id));
        self.domains.balance_mut(core, common.unwrap_or(level)).failed = 0;
        self.migrate(thread, core, MoveCause::Active, now);
        Ok(1)
    }

    pub(in super::super) fn compares_types(&self) -> bool {
        self.model.compares() == Comparison::Types
    }
}
