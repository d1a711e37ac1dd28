//! The balancer since Linux 5.5: types of groups, and counts of threads and idle cores while there is capacity left.

use quell_model::{GroupKind, PassOutcome};

use super::super::domains::{Level, LevelKind};
use super::Entry;
use super::pass::Amount;
use super::stats::{GroupStats, LevelStats, ONE};

/// How much is to be moved from the busiest group (`find_busiest_group`, `calculate_imbalance`, Linux 6.1).
pub(super) fn imbalance(
    stats: &LevelStats,
    level: &Level,
    entry: Entry,
) -> Result<Amount, PassOutcome> {
    let local = stats.local;
    let busiest = stats.busiest.ok_or(PassOutcome::NoBusiest)?;
    if busiest.kind != GroupKind::Imbalanced {
        is_balanced(&local, &busiest, stats, level, entry)?;
    }
    let amount = amount(&local, &busiest, stats, level, entry);
    if amount.is_nothing() { Err(PassOutcome::NothingToMove) } else { Ok(amount) }
}

fn is_balanced(
    local: &GroupStats,
    busiest: &GroupStats,
    stats: &LevelStats,
    level: &Level,
    entry: Entry,
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
        && busiest.queued > local.queued + 1
    {
        return Ok(());
    }
    if busiest.kind != GroupKind::Overloaded {
        if entry == Entry::Busy {
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
    entry: Entry,
) -> Amount {
    if busiest.kind == GroupKind::Imbalanced {
        return Amount::Threads(1);
    }
    if local.kind == GroupKind::HasSpare {
        if busiest.kind > GroupKind::FullyBusy && level.kind > LevelKind::Cache {
            let room = local.capacity.saturating_sub(local.used);
            // What is used decays slowly, so that an idle core may seem full.
            return match (room, entry) {
                (0, Entry::Idle | Entry::NewIdle) => Amount::Threads(1),
                (room, _) => Amount::Used(room),
            };
        }
        let difference = match busiest.weight == 1 || level.prefers_siblings {
            true => busiest.queued.saturating_sub(local.queued),
            false => local.idle.saturating_sub(busiest.idle),
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
    let pull = busiest.average().saturating_sub(average) * busiest.capacity;
    let fits = average.saturating_sub(local.average()) * local.capacity;
    Amount::Load(pull.min(fits) / ONE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::linux::{KernelModel, Linux};

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
        assert!(matches!(imbalance(&stats, &level(2), Entry::Idle), Ok(Amount::Used(_))));
    }

    #[test]
    fn one_idle_core_more_is_no_imbalance() {
        // kSTEP's "even idle CPU": the difference is halved to nothing.
        let stats = stats(group(1, 2, GroupKind::HasSpare), group(3, 2, GroupKind::HasSpare));
        let level = Level { prefers_siblings: false, ..level(2) };
        assert!(imbalance(&stats, &level, Entry::Idle).is_err());
    }

    #[test]
    fn a_busy_core_takes_nothing_from_a_group_with_room() {
        let level = Level { prefers_siblings: false, ..level(2) };
        let stats = stats(group(3, 4, GroupKind::HasSpare), group(4, 4, GroupKind::FullyBusy));
        assert_eq!(imbalance(&stats, &level, Entry::Busy), Err(PassOutcome::NotIdle));
    }
}
