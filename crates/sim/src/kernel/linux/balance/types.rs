//! The balancer since Linux 5.5: types of groups, and counts of threads and idle cores while there is capacity left.

use quell_model::{GroupKind, PassOutcome};

use super::super::domains::{Level, LevelKind};
use super::super::model::{Fix, KernelModel};
use super::Entry;
use super::pass::Amount;
use super::stats::{GroupStats, LevelStats, ONE};

/// What a pass goes by beside its groups.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub entry: Entry,
    /// [`super::super::KernelModel::balances_siblings`].
    pub balances_siblings: bool,
    /// See [`super::super::Fixes::even_idle`] and [`super::super::Fixes::imbalanced_group`].
    pub fixes_even_idle: bool,
    pub fixes_imbalanced_group: bool,
}

impl Rules {
    pub fn of(model: &KernelModel, entry: Entry) -> Rules {
        Rules {
            entry,
            balances_siblings: model.balances_siblings,
            fixes_even_idle: model.fixes.even_idle != Fix::None,
            fixes_imbalanced_group: model.fixes.imbalanced_group != Fix::None,
        }
    }

    /// By how many idle cores the own group is ahead.
    fn idle_ahead(self, local: &GroupStats, busiest: &GroupStats) -> u64 {
        let ahead = local.idle.saturating_sub(busiest.idle);
        let has_waiting = busiest.kind > GroupKind::FullyBusy;
        if ahead == 1 && has_waiting && self.fixes_even_idle { 2 } else { ahead }
    }

    /// By how many threads the busiest group is ahead. Since Linux 6.6 for each physical core, and for idle cores alone
    /// (`sibling_imbalance`).
    fn ahead(self, local: &GroupStats, busiest: &GroupStats) -> u64 {
        if !self.balances_siblings || local.physical == busiest.physical {
            let counts = !self.balances_siblings || self.entry != Entry::Busy;
            return if counts { busiest.queued.saturating_sub(local.queued) } else { 0 };
        }
        if self.entry == Entry::Busy || busiest.queued == 0 {
            return 0;
        }
        let both = local.physical + busiest.physical;
        let ahead =
            (local.physical * busiest.queued).saturating_sub(busiest.physical * local.queued);
        let ahead = (2 * ahead + both) / both;
        let fills_empty = ahead <= 1 && local.queued == 0 && busiest.queued > 1;
        if fills_empty { 2 } else { ahead }
    }
}

/// How much is to be moved from the busiest group (`find_busiest_group`, `calculate_imbalance`, Linux 6.1).
pub(super) fn imbalance(
    stats: &LevelStats,
    level: &Level,
    rules: Rules,
) -> Result<Amount, PassOutcome> {
    let local = stats.local;
    let busiest = stats.busiest.ok_or(PassOutcome::NoBusiest)?;
    if busiest.kind != GroupKind::Imbalanced {
        is_balanced(&local, &busiest, stats, level, rules)?;
    }
    let amount = amount(&local, &busiest, stats, level, rules);
    if amount.is_nothing() { Err(PassOutcome::NothingToMove) } else { Ok(amount) }
}

fn is_balanced(
    local: &GroupStats,
    busiest: &GroupStats,
    stats: &LevelStats,
    level: &Level,
    rules: Rules,
) -> Result<(), PassOutcome> {
    if local.kind > busiest.kind {
        return Err(PassOutcome::LocalIsBusier);
    }
    if local.kind == GroupKind::Overloaded {
        if local.average() >= busiest.average() {
            return Err(PassOutcome::LocalIsBusier);
        }
        if local.average() >= stats.average() {
            return Err(PassOutcome::LocalIsAboveAverage);
        }
        if 100 * busiest.average() <= level.imbalance_pct * local.average() {
            return Err(PassOutcome::WithinMargin);
        }
    }
    if level.prefers_siblings
        && local.kind == GroupKind::HasSpare
        && rules.ahead(local, busiest) > 1
    {
        return Ok(());
    }
    if busiest.kind != GroupKind::Overloaded {
        if rules.entry == Entry::Busy {
            return Err(PassOutcome::NotIdle);
        }
        if busiest.weight > 1 && local.idle <= busiest.idle + 1 {
            return Err(PassOutcome::AsManyIdle);
        }
        if busiest.queued == 1 {
            return Err(PassOutcome::NothingToMove);
        }
    }
    Ok(())
}

fn amount(
    local: &GroupStats,
    busiest: &GroupStats,
    stats: &LevelStats,
    level: &Level,
    rules: Rules,
) -> Amount {
    if matches!(busiest.kind, GroupKind::Imbalanced | GroupKind::Siblings) {
        return Amount::Threads(1);
    }
    let is_idle = rules.entry != Entry::Busy;
    if local.kind == GroupKind::Imbalanced && is_idle && rules.fixes_imbalanced_group {
        return Amount::Threads(1);
    }
    if local.kind == GroupKind::HasSpare {
        if busiest.kind > GroupKind::FullyBusy && level.kind > LevelKind::Cache {
            let room = local.capacity.saturating_sub(local.used);
            // What is used decays slowly, so that an idle core may seem full.
            return match (room, rules.entry) {
                (0, Entry::Idle | Entry::NewIdle) => Amount::Threads(1),
                (room, _) => Amount::Used(room),
            };
        }
        let difference = match busiest.weight == 1 || level.prefers_siblings {
            true => rules.ahead(local, busiest),
            false => rules.idle_ahead(local, busiest),
        };
        let is_tolerated =
            level.kind == LevelKind::BetweenNodes && local.queued < level.slack && difference <= 2;
        return Amount::Threads(if is_tolerated { 0 } else { difference / 2 });
    }
    let average = stats.average();
    if local.kind < GroupKind::Overloaded
        && (local.average() >= busiest.average() || local.average() >= average)
    {
        return Amount::Load(0);
    }
    // A third group may raise the average above the busiest group's. The kernel's unsigned difference is huge then, and no bound.
    let pull = match busiest.average().checked_sub(average) {
        Some(above) => above * busiest.capacity,
        None => u64::MAX,
    };
    let fits = average.saturating_sub(local.average()) * local.capacity;
    Amount::Load(pull.min(fits) / ONE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::linux::{KernelModel, Linux};

    const IDLE: Rules = Rules {
        entry: Entry::Idle,
        balances_siblings: false,
        fixes_even_idle: false,
        fixes_imbalanced_group: false,
    };
    const BUSY: Rules = Rules { entry: Entry::Busy, ..IDLE };

    fn level(nodes: u16) -> Level {
        let topology = quell_model::Topology::regular(nodes, 4, 1).unwrap();
        let linux = Linux::new(KernelModel::LINUX_6_1, &topology);
        linux.domains.levels(0).last().unwrap().clone()
    }

    fn group(queued: u64, weight: u64, kind: GroupKind) -> GroupStats {
        let busy = queued.min(weight);
        GroupStats {
            weight,
            load: queued * ONE,
            capacity: weight * ONE,
            used: busy * ONE,
            queued,
            idle: weight - busy,
            kind,
            ..GroupStats::default()
        }
    }

    fn stats(local: GroupStats, busiest: GroupStats) -> LevelStats {
        LevelStats {
            local,
            busiest: Some(busiest),
            load: local.load + busiest.load,
            capacity: local.capacity + busiest.capacity,
        }
    }

    #[test]
    fn an_idle_core_takes_a_thread_whatever_the_loads() {
        let heavy = GroupStats { load: 90_000, ..group(1, 4, GroupKind::HasSpare) };
        let stats = stats(heavy, group(8, 4, GroupKind::Overloaded));
        assert!(matches!(imbalance(&stats, &level(2), IDLE), Ok(Amount::Used(_))));
    }

    #[test]
    fn one_idle_core_more_is_no_imbalance() {
        // kSTEP's "even idle CPU": the difference is halved to nothing.
        let stats = stats(group(1, 2, GroupKind::HasSpare), group(3, 2, GroupKind::HasSpare));
        let level = Level { prefers_siblings: false, ..level(2) };
        assert!(imbalance(&stats, &level, IDLE).is_err());
    }

    #[test]
    fn a_busy_core_takes_nothing_from_a_group_with_room() {
        let level = Level { prefers_siblings: false, ..level(2) };
        let stats = stats(group(3, 4, GroupKind::HasSpare), group(4, 4, GroupKind::FullyBusy));
        assert_eq!(imbalance(&stats, &level, BUSY), Err(PassOutcome::NotIdle));
    }

    #[test]
    fn a_third_group_above_the_average_is_no_bound() {
        // The busiest group is below the average, which a third one raises: only what fits bounds the amount.
        let local = group(2, 2, GroupKind::FullyBusy);
        let busiest = group(6, 2, GroupKind::Overloaded);
        let stats = LevelStats { load: 20 * ONE, capacity: 6 * ONE, ..stats(local, busiest) };
        assert!(busiest.average() < stats.average());
        let fits = (stats.average() - local.average()) * local.capacity / ONE;
        assert_eq!(imbalance(&stats, &level(2), BUSY), Ok(Amount::Load(fits)));
    }

    #[test]
    fn since_6_6_busy_cores_take_nothing_and_siblings_give_one() {
        let level = Level { prefers_siblings: true, ..level(2) };
        let uneven = stats(group(1, 4, GroupKind::HasSpare), group(4, 4, GroupKind::FullyBusy));
        assert_eq!(imbalance(&uneven, &level, BUSY), Ok(Amount::Threads(1)));
        let new = Rules { balances_siblings: true, ..BUSY };
        assert_eq!(imbalance(&uneven, &level, new), Err(PassOutcome::NotIdle));
        let siblings = stats(group(0, 2, GroupKind::HasSpare), group(2, 2, GroupKind::Siblings));
        let new = Rules { balances_siblings: true, ..IDLE };
        assert_eq!(imbalance(&siblings, &level, new), Ok(Amount::Threads(1)));
    }

    #[test]
    fn since_6_6_groups_of_fewer_physical_cores_take_fewer_threads() {
        let ahead = |local: (u64, u64), busiest: (u64, u64)| {
            let of = |(queued, physical)| GroupStats { queued, physical, ..GroupStats::default() };
            Rules { balances_siblings: true, ..IDLE }.ahead(&of(local), &of(busiest))
        };
        assert_eq!(ahead((2, 4), (6, 4)), 4);
        assert_eq!(ahead((2, 2), (4, 4)), 1, "as many for each core, rounded");
        assert_eq!(ahead((0, 1), (2, 8)), 2, "an empty group takes one");
        assert_eq!(ahead((4, 4), (2, 2)), 1);
    }
}
