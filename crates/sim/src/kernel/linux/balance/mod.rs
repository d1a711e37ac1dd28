//! When the load balancer runs, for which core and level (`rebalance_domains`, `idle_balance`, `nohz_idle_balance`).

mod averages;
mod pass;
mod stats;
mod types;

use quell_model::{CoreId, Nanos, PassEntry};

pub(super) use stats::{CoreView, ONE};

use super::Linux;
pub(super) use stats::GroupStats;

/// A thread that ran within this time has warm caches, and a core that idles for less does not balance
/// (`sysctl_sched_migration_cost`).
pub(super) const MIGRATION_COST: Nanos = Nanos(500_000);

/// What a pass takes for each core that it looks at; assumed.
const LOOK_COST: Nanos = Nanos(150);

/// An interval ends at this many ticks, a tenth of a second for each core (`max_load_balance_interval`).
const INTERVAL_MAX: Nanos = Nanos::from_millis(100);

/// Why a core balances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// At a tick of a core that runs something.
    Busy,
    /// For a core that idles.
    Idle,
    /// For a core that is about to idle.
    NewIdle,
}

impl From<Entry> for PassEntry {
    fn from(entry: Entry) -> PassEntry {
        match entry {
            Entry::Busy => PassEntry::Periodic,
            Entry::Idle => PassEntry::Nohz,
            Entry::NewIdle => PassEntry::NewIdle,
        }
    }
}

impl Linux {
    /// A tick: the core's own balancing, and a kick of an idle core that balances for all (`trigger_load_balance`).
    pub(super) fn balance_at_tick(&mut self, core: usize, now: Nanos) {
        let is_idle = self.is_idle(core);
        if now >= self.cores[core].next_balance {
            self.balance_domains(core, if is_idle { Entry::Idle } else { Entry::Busy }, now);
        }
        if self.model.nohz && !is_idle {
            self.tickless.remove(Linux::id(core));
            if self.needs_kick(core, now) {
                self.balance_for_idle(now);
            }
        }
    }

    /// Whether an idle core could help this one (`nohz_kick_needed`): it has two threads, or another core of its cache is
    /// busy too.
    fn needs_kick(&self, core: usize, now: Nanos) -> bool {
        if now < self.nohz_next || self.tickless.is_empty() {
            return false;
        }
        let cache = self.domains.cache(core);
        let busy = cache.difference(&self.idle).intersection(&self.online).len();
        self.cores[core].queued >= 2 || busy > 1
    }

    /// The lowest idle core balances for all others that idle and are due, and for itself last (`nohz_idle_balance`). Until Linux
    /// 5.1 none does if the lowest core of those that idled since their last tick has become busy (`find_new_ilb`).
    fn balance_for_idle(&mut self, now: Nanos) {
        let idle = self.tickless.intersection(&self.idle);
        let Some(first) = idle.first() else { return };
        if self.model.kicks_lowest_tickless && self.tickless.first() != Some(first) {
            return;
        }
        let others = idle.iter().filter(|core| *core != first);
        for core in others.chain([first]).map(CoreId::index) {
            if self.is_idle(core) && now >= self.cores[core].next_balance {
                self.balance_domains(core, Entry::Idle, now);
            }
        }
        let next = self.idle.iter().map(|core| self.cores[core.index()].next_balance).min();
        self.nohz_next = next.unwrap_or_default().max(self.next_tick(now));
    }

    /// Balances the levels of a core that are due, from the lowest to the highest (`rebalance_domains`).
    fn balance_domains(&mut self, core: usize, entry: Entry, now: Nanos) {
        let mut entry = entry;
        let mut next = now + Nanos::from_secs(1);
        let levels = self.domains.levels(core).len();
        for level in 0..levels {
            let due =
                self.domains.levels(core)[level].balance.last + self.interval(core, level, entry);
            if now >= due {
                let pass = self.pass(core, level, entry, now);
                if pass.moved > 0 {
                    entry = if self.is_idle(core) { Entry::Idle } else { Entry::Busy };
                }
                self.domains.balance_mut(core, level).last = now;
                if !pass.goes_on {
                    next = next.min(now + self.interval(core, level, entry));
                    break;
                }
            }
            let last = self.domains.levels(core)[level].balance.last;
            next = next.min(last + self.interval(core, level, entry));
        }
        self.cores[core].next_balance = next.max(self.next_tick(now));
    }

    /// The time between two passes (`get_sd_balance_interval`).
    fn interval(&self, core: usize, level: usize, entry: Entry) -> Nanos {
        let interval = self.domains.levels(core)[level].balance.interval;
        let by_types = self.compares_types();
        let is_busy = entry == Entry::Busy && !(by_types && self.runs_only_idle_class(core));
        let factor = if is_busy { self.model.levels.busy_factor } else { 1 };
        // A tick less, so that levels of a busy core fall apart (Linux 5.10).
        let less = if is_busy && by_types { self.model.tick } else { Nanos::ZERO };
        let most = Nanos(INTERVAL_MAX.0 * self.online.len() as u64);
        Nanos(interval.0 * factor).since(less).clamp(self.model.tick, most.max(self.model.tick))
    }

    /// A core is about to idle: climbs the levels up to the first that gives it something (`idle_balance`). From now on its
    /// levels are due as those of an idle core.
    pub(super) fn balance_new_idle(&mut self, core: usize, now: Nanos) {
        let levels = self.domains.levels(core).len();
        let mut spent = 0;
        for level in 0..levels {
            let due = self.domains.levels(core)[level].balance.last
                + self.interval(core, level, Entry::NewIdle);
            self.cores[core].next_balance = self.cores[core].next_balance.min(due);
            spent += self.domains.levels(core)[level].span.len() as u64;
            if !self.is_overloaded || !self.pays(core, spent) {
                break;
            }
            let pass = self.pass(core, level, Entry::NewIdle, now);
            if pass.moved > 0 || self.cores[core].queued > 0 {
                break;
            }
        }
    }

    /// Whether the core is expected to idle for longer than it takes to look at so many cores.
    fn pays(&self, core: usize, cores: u64) -> bool {
        let idles = self.cores[core].mean_idle;
        match self.model.new_idle_needs_half_a_ms {
            true => idles >= MIGRATION_COST,
            false => idles > Nanos(cores * LOOK_COST.0),
        }
    }
}
