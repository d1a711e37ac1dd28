//! The balancer until Linux 5.4, which compares the average loads of groups, and the paper's fix of it.

use quell_model::{GroupKind, PassOutcome};

use super::super::domains::Level;
use super::Entry;
use super::pass::Amount;
use super::stats::{GroupStats, LevelStats, ONE};

/// How much is to be moved from the busiest group (`find_busiest_group`, `calculate_imbalance`, Linux 4.1).
pub(super) fn imbalance(
    stats: &LevelStats,
    level: &Level,
    entry: Entry,
) -> Result<Amount, PassOutcome> {
    let local = stats.local;
    let busiest = stats.busiest.ok_or(PassOutcome::NoBusiest)?;
    let average = stats.average();
    let new_idle_helps = entry == Entry::NewIdle
        && local.has_capacity(level.imbalance_pct)
        && busiest.kind == GroupKind::Overloaded;
    if busiest.kind != GroupKind::Imbalanced && !new_idle_helps {
        if local.average() >= busiest.average() {
            return Err(PassOutcome::LocalIsBusier);
        }
        if local.average() >= average {
            return Err(PassOutcome::LocalIsAboveAverage);
        }
        if entry == Entry::Idle {
            if busiest.kind != GroupKind::Overloaded && local.idle <= busiest.idle + 1 {
                return Err(PassOutcome::AsManyIdle);
            }
        } else if 100 * busiest.average() <= level.imbalance_pct * local.average() {
            return Err(PassOutcome::WithinMargin);
        }
    }
    match amount(&local, &busiest, average) {
        0 => Err(PassOutcome::NothingToMove),
        load => Ok(Amount::Load(load)),
    }
}

fn amount(local: &GroupStats, busiest: &GroupStats, average: u64) -> u64 {
    let mut per_thread = busiest.per_thread();
    if busiest.kind == GroupKind::Imbalanced {
        per_thread = per_thread.min(average);
    }
    if busiest.average() <= average || local.average() >= average {
        return small_imbalance(local, busiest, per_thread);
    }
    let above = busiest.average() - average;
    // As much as is above the capacity, if no group has any.
    let both = busiest.kind == GroupKind::Overloaded && local.kind == GroupKind::Overloaded;
    let beyond = (busiest.queued * ONE).saturating_sub(busiest.capacity);
    let pull = if both { above.min(beyond * ONE / busiest.capacity.max(1)) } else { above };
    let fits = (average - local.average()) * local.capacity;
    let load = (pull * busiest.capacity).min(fits) / ONE;
    if load < per_thread { small_imbalance(local, busiest, per_thread) } else { load }
}

/// The load of one thread, if it pays to move it (`fix_small_imbalance`).
fn small_imbalance(local: &GroupStats, busiest: &GroupStats, per_thread: u64) -> u64 {
    let own = local.per_thread();
    let times = if local.queued == 0 || per_thread <= own { 2 } else { 1 };
    let scaled = per_thread * ONE / busiest.capacity.max(1);
    if busiest.average() + scaled >= local.average() + scaled * times {
        return per_thread;
    }
    let done =
        |group: &GroupStats, of_thread: u64, average: u64| group.capacity * of_thread.min(average);
    let before = done(busiest, per_thread, busiest.average()) + done(local, own, local.average());
    let mut after = match busiest.average() > scaled {
        true => done(busiest, per_thread, busiest.average() - scaled),
        false => 0,
    };
    let moved = match busiest.load < per_thread {
        true => busiest.load * ONE / local.capacity.max(1),
        false => per_thread * ONE / local.capacity.max(1),
    };
    after += done(local, own, local.average() + moved);
    if after > before { per_thread } else { 0 }
}

/// The paper's fix (section 3.1): groups are compared by their least loaded core, so that a heavy thread no longer hides the idle
/// cores beside it. Half of the difference between the busiest group's most loaded core and the own least loaded one moves.
pub(super) fn least_imbalance(stats: &LevelStats) -> Result<Amount, PassOutcome> {
    let local = stats.local;
    let busiest = stats.busiest.ok_or(PassOutcome::NoBusiest)?;
    if busiest.kind != GroupKind::Imbalanced && local.least >= busiest.least {
        return Err(PassOutcome::LocalIsBusier);
    }
    match (busiest.most.saturating_sub(local.least)) / 2 {
        0 => Err(PassOutcome::NothingToMove),
        load => Ok(Amount::Load(load)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(loads: &[u64], queued: u64) -> GroupStats {
        GroupStats {
            weight: loads.len() as u64,
            load: loads.iter().sum(),
            capacity: ONE * loads.len() as u64,
            used: ONE * loads.iter().filter(|load| **load > 0).count() as u64,
            queued,
            idle: loads.iter().filter(|load| **load == 0).count() as u64,
            least: *loads.iter().min().unwrap(),
            most: *loads.iter().max().unwrap(),
            ..GroupStats::default()
        }
    }

    fn level() -> Level {
        use crate::kernel::linux::{KernelModel, Linux};
        let topology = quell_model::Topology::regular(2, 4, 1).unwrap();
        Linux::new(KernelModel::LINUX_4_1, &topology).domains.levels(0)[1].clone()
    }

    #[test]
    fn heavy_thread_hides_idle_cores_from_averages_alone() {
        // Section 3.1: a thread of R beside idle cores, and a group in which two light threads share each core.
        let local = group(&[1_024, 0, 0, 0], 1);
        let busiest = GroupStats { kind: GroupKind::Overloaded, ..group(&[32, 32, 32, 32], 8) };
        let stats = LevelStats {
            local,
            busiest: Some(busiest),
            load: local.load + busiest.load,
            capacity: local.capacity + busiest.capacity,
        };
        assert_eq!(imbalance(&stats, &level(), Entry::Idle), Err(PassOutcome::LocalIsBusier));
        assert_eq!(least_imbalance(&stats), Ok(Amount::Load(16)));
    }

    #[test]
    fn an_idle_group_takes_half_of_a_busy_one() {
        let local = group(&[0, 0], 0);
        let busiest = GroupStats { kind: GroupKind::Overloaded, ..group(&[2_048, 2_048], 4) };
        let stats = LevelStats { local, busiest: Some(busiest), load: 4_096, capacity: 4_096 };
        assert_eq!(imbalance(&stats, &level(), Entry::Idle), Ok(Amount::Load(2_048)));
    }

    #[test]
    fn equal_groups_are_left_alone() {
        let both = group(&[1_024, 1_024], 2);
        let stats = LevelStats { local: both, busiest: Some(both), load: 4_096, capacity: 4_096 };
        for entry in [Entry::Busy, Entry::Idle, Entry::NewIdle] {
            assert!(imbalance(&stats, &level(), entry).is_err(), "{entry:?}");
        }
        assert_eq!(least_imbalance(&stats), Err(PassOutcome::LocalIsBusier));
    }
}
