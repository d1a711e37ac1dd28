//! One pass: from the busiest queue of the busiest group to one core of the own group (`load_balance`).

use quell_model::{CoreId, CoreSet, MoveCause, Nanos, PassEntry, PassOutcome, Search, Skipped};

use super::super::model::Comparison;
use super::super::record::PassNotes;
use super::super::{Linux, SchedClass};
use super::stats::{GroupStats, LevelStats, capacity};
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
    /// Such a core may be the destination.
    takes_others: bool,
    skipped: Skipped,
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
                balance.interval = balance.interval_min;
                if entry != Entry::NewIdle {
                    balance.failed += 1;
                }
                self.push_if_failing(core, level, entry, now);
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
        loop {
            let (busiest, amount) = self.find_busiest((core, level), entry, &among, now, notes)?;
            let queue = self.busiest_queue(&busiest, amount, now).filter(|found| *found != core);
            self.note_search(core, Search::BusiestQueue, busiest.cores);
            let queue = queue.ok_or(PassOutcome::NoQueue)?;
            self.cores[core].pushes_from = Some(queue);
            if self.cores[queue].queued < 2 {
                notes.skipped.running += u32::from(self.cores[queue].running.is_some());
                return Err(PassOutcome::Kept);
            }
            let mut met = self.detach((queue, core), (core, level), amount, entry, now);
            if let Some(other) = met.other.filter(|_| met.moved == 0) {
                met = self.detach((queue, other), (core, level), amount, entry, now);
            }
            notes.skip(met.skipped);
            if met.some_pinned && met.moved == 0 {
                self.domains.set_imbalanced(core, level, true);
            }
            if met.moved > 0 {
                return Ok(met.moved);
            }
            if !met.all_pinned {
                return Err(PassOutcome::Kept);
            }
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
        let stats: LevelStats = self.level_stats(core, level, among, now, notes);
        let span = self.domains.levels(core)[level].span;
        self.note_search(core, Search::GroupStatistics, span.intersection(among));
        let of = &self.domains.levels(core)[level];
        let amount = match self.model.compares() {
            Comparison::Averages => averages::imbalance(&stats, of, entry)?,
            Comparison::LeastLoads => averages::least_imbalance(&stats)?,
            Comparison::Types => types::imbalance(&stats, of, entry)?,
        };
        stats.busiest.map(|busiest| (busiest, amount)).ok_or(PassOutcome::NoBusiest)
    }

    /// The queue with the highest load for its capacity, or with most threads (`find_busiest_queue`).
    fn busiest_queue(&self, group: &GroupStats, amount: Amount, now: Nanos) -> Option<usize> {
        let mut best: Option<(u64, usize)> = None;
        for core in group.cores.iter().map(CoreId::index) {
            let queue = &self.cores[core];
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

    /// Moves waiting threads of a queue up to the amount (`detach_tasks`). The level is that of the core that balances.
    fn detach(
        &mut self,
        (from, to): (usize, usize),
        (core, level): (usize, usize),
        amount: Amount,
        entry: Entry,
        now: Nanos,
    ) -> DetachResult {
        let takes_others = entry != Entry::NewIdle;
        let mut met = DetachResult { all_pinned: true, takes_others, ..DetachResult::default() };
        let mut left = amount;
        let (threads, count) = self.first_to_move(from);
        for thread in threads.into_iter().take(count) {
            if entry != Entry::Busy && self.compares_types() && self.cores[from].queued <= 1 {
                break;
            }
            if !self.can_migrate(thread, to, (core, level), &mut met, now) {
                continue;
            }
            let failed = self.domains.levels(core)[level].balance.failed.min(20);
            let took = match left {
                Amount::Load(most) => {
                    let load = self.thread_load(thread, now).max(1);
                    let shift = if self.compares_types() { failed } else { 1 };
                    if load >> shift > most {
                        met.skipped.heavy += 1;
                        continue;
                    }
                    Amount::Load(most.saturating_sub(load))
                }
                Amount::Used(most) => {
                    let used = self.threads[thread].share.of(1_024);
                    if used >> failed > most {
                        met.skipped.heavy += 1;
                        continue;
                    }
                    Amount::Used(most.saturating_sub(used))
                }
                Amount::Threads(most) => Amount::Threads(most - 1),
            };
            let cause = match entry {
                Entry::NewIdle => MoveCause::NewIdle,
                Entry::Busy | Entry::Idle => MoveCause::Periodic,
            };
            self.migrate(thread, to, cause, now);
            met.moved += 1;
            left = took;
            if left.is_nothing() || entry == Entry::NewIdle {
                break;
            }
        }
        met
    }

    /// Whether a pass may move a thread (`can_migrate_task`).
    fn can_migrate(
        &self,
        thread: usize,
        to: usize,
        (core, level): (usize, usize),
        met: &mut DetachResult,
        now: Nanos,
    ) -> bool {
        let state = &self.threads[thread];
        if !self.may_use(thread, to) {
            met.some_pinned = true;
            met.skipped.pinned += 1;
            let own = &self.domains.levels(core)[level].groups[0];
            let mut usable = own.cores.intersection(&state.allowed).intersection(&self.online);
            usable.remove(Linux::id(state.core));
            if met.takes_others {
                met.other = met.other.or(usable.first().map(|core| core.index()));
            }
            return false;
        }
        met.all_pinned = false;
        if self.cores[state.core].running == Some(thread) {
            met.skipped.running += 1;
            return false;
        }
        let is_hot = now.since(state.ran_at) < MIGRATION_COST && state.class != SchedClass::Idle;
        let of = &self.domains.levels(core)[level];
        let may_leave = !is_hot || of.balance.failed > of.cache_nice_tries;
        met.skipped.warm += u32::from(!may_leave);
        may_leave
    }

    /// After some failures the stopper of the busiest queue pushes what runs there (`need_active_balance`,
    /// `active_load_balance_cpu_stop`).
    fn push_if_failing(&mut self, core: usize, level: usize, entry: Entry, now: Nanos) {
        let Some(from) = self.cores[core].pushes_from.take() else { return };
        let of = &self.domains.levels(core)[level];
        let tries = of.cache_nice_tries;
        if entry == Entry::NewIdle || of.balance.failed <= tries + 2 {
            return;
        }
        self.domains.balance_mut(core, level).failed = tries + 1;
        let mut notes = self.pass_notes();
        let running = self.cores[from].running.filter(|at| self.threads[*at].class.is_fair());
        let result = match running {
            None => Err(PassOutcome::NoQueue),
            Some(thread) if !self.may_use(thread, core) => {
                notes.skipped.pinned = 1;
                Err(PassOutcome::Pinned)
            }
            Some(thread) => {
                self.migrate(thread, core, MoveCause::Active, now);
                Ok(1)
            }
        };
        self.note_pass((core, level), PassEntry::Active, result, notes);
    }

    pub(in super::super) fn compares_types(&self) -> bool {
        self.model.compares() == Comparison::Types
    }
}
