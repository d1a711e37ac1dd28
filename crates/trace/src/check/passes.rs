//! What a pass of the balancer says about the threads that it left in a queue.

use quell_model::{CoreId, Pass, PassEntry, PassGroup, PassOutcome};

use super::cause::Cause;
use super::domains::Domains;

/// Whether the core for which a pass was made idled or was about to.
pub(super) fn is_of_idle_core(pass: &Pass) -> bool {
    matches!(pass.entry, PassEntry::Nohz | PassEntry::NewIdle)
}

/// Why a pass of an idle core left threads in the queue of `busy`; `None` where it does not say.
///
/// A pass says nothing of a queue in its core's own group, which a lower level balances, nor of one outside its level.
/// One that moved threads has done what it is for, and the core idles no more. One on behalf of a group that another
/// core balances compared nothing.
pub(super) fn left_by(pass: &Pass, busy: CoreId, domains: &Domains) -> Option<Cause> {
    use PassOutcome::{Moved, NotDesignated, NotIdle};
    if matches!(pass.outcome, Moved | NotDesignated | NotIdle) {
        return None;
    }
    let left = Cause::Left(pass.outcome);
    let Some(local) = pass.groups.iter().find(|group| group.cores.contains(pass.core)) else {
        return (domains.spans(pass.core, pass.level, busy) == Some(true)).then_some(left);
    };
    // Groups between nodes may overlap.
    let others = || {
        let others = pass.groups.iter().filter(|group| !group.cores.contains(pass.core));
        others.filter(|group| group.cores.contains(busy))
    };
    others().next()?;
    let is_hidden = compares_loads(pass) && others().any(|other| hides_idle_core(local, other));
    Some(if is_hidden { Cause::GroupImbalance } else { left })
}

/// Whether a pass ended because of the mean loads of groups.
fn compares_loads(pass: &Pass) -> bool {
    use PassOutcome::{
        Kept, LocalIsAboveAverage, LocalIsBusier, NoBusiest, NoQueue, NothingToMove, WithinMargin,
    };
    match pass.outcome {
        NoBusiest | LocalIsBusier | LocalIsAboveAverage | WithinMargin | NothingToMove
        | NoQueue => true,
        // It looked into a queue that has one heavy thread, or for less load than a thread has.
        Kept => pass.skipped.warm == 0 && pass.skipped.pinned == 0,
        _ => false,
    }
}

/// Whether heavy threads hide idle cores of a group (section 3.1 of the paper): by the minimum or by threads a core it
/// has less load than the other one, and by the mean it has not, or only because its few threads are heavier.
fn hides_idle_core(local: &PassGroup, other: &PassGroup) -> bool {
    /// A thread is heavy that has so many times the load of others.
    const HEAVY: u64 = 2;
    let threads =
        |group: &PassGroup, cores: &PassGroup| u64::from(group.queued) * cores.cores.len() as u64;
    let per_thread = |group: &PassGroup| group.sum / u64::from(group.queued.max(1));
    let is_less = local.minimum < other.minimum || threads(local, other) < threads(other, local);
    let is_heavier =
        local.queued > 0 && per_thread(local) >= per_thread(other).saturating_mul(HEAVY);
    is_less && (local.mean >= other.mean || is_heavier)
}

#[cfg(test)]
mod tests {
    use quell_model::{CoreSet, GroupKind, Skipped};

    use super::*;

    fn group(cores: &str, mean: u64, minimum: u64) -> PassGroup {
        let cores: CoreSet = cores.parse().unwrap();
        let (kind, sum) = (GroupKind::HasSpare, mean);
        PassGroup { cores, sum, mean, minimum, queued: 0, idle: 0, kind }
    }

    fn pass(outcome: PassOutcome, groups: Vec<PassGroup>) -> Pass {
        Pass {
            core: CoreId(0),
            level: 1,
            entry: PassEntry::Nohz,
            groups,
            outcome,
            moved: 0,
            skipped: Skipped::default(),
        }
    }

    fn left(outcome: PassOutcome, groups: Vec<PassGroup>) -> Option<Cause> {
        left_by(&pass(outcome, groups), CoreId(2), &Domains::new(4))
    }

    #[test]
    fn means_that_hide_an_idle_core_are_group_imbalance() {
        use PassOutcome::{AsManyIdle, LocalIsBusier};
        let hidden = || vec![group("0-1", 500, 0), group("2-3", 400, 300)];
        assert_eq!(left(LocalIsBusier, hidden()), Some(Cause::GroupImbalance));
        // Counts of idle cores decided, not loads.
        assert_eq!(left(AsManyIdle, hidden()), Some(Cause::Left(AsManyIdle)));
        let lighter = vec![group("0-1", 300, 0), group("2-3", 400, 300)];
        assert_eq!(left(LocalIsBusier, lighter), Some(Cause::Left(LocalIsBusier)));
        let no_lower = vec![group("0-1", 500, 0), group("2-3", 400, 0)];
        assert_eq!(left(LocalIsBusier, no_lower), Some(Cause::Left(LocalIsBusier)));
    }

    #[test]
    fn pass_says_nothing_of_its_own_group_or_without_comparison() {
        use PassOutcome::{Kept, Moved, NotDesignated};
        assert_eq!(left(Kept, vec![group("0-3", 1, 0)]), None);
        assert_eq!(
            left(Kept, vec![group("0-1", 0, 0), group("2-3", 1, 1)]),
            Some(Cause::Left(Kept))
        );
        assert_eq!(left(Kept, vec![group("0-1", 1, 0), group("3", 1, 1)]), None);
        assert_eq!(left(Kept, Vec::new()), None);
        for outcome in [Moved, NotDesignated] {
            assert_eq!(left(outcome, vec![group("0-1", 1, 0), group("2", 9, 9)]), None);
        }
    }
}
