//! What a pass of the balancer says about the threads that it left in a queue.

use quell_model::{CoreId, Pass, PassEntry, PassOutcome};

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
    use PassOutcome::{
        AsManyIdle, Kept, LocalIsAboveAverage, LocalIsBusier, Moved, NoBusiest, NoQueue,
        NotDesignated, NotIdle, NothingToMove, Pinned, WithinMargin,
    };
    let compares_loads = match pass.outcome {
        Moved | NotDesignated | NotIdle => return None,
        AsManyIdle | Pinned => false,
        NoBusiest | LocalIsBusier | LocalIsAboveAverage | WithinMargin | NothingToMove
        | NoQueue | Kept => true,
    };
    let left = Some(Cause::Left(pass.outcome));
    let Some(local) = pass.groups.iter().find(|group| group.cores.contains(pass.core)) else {
        return left.filter(|_| domains.spans(pass.core, pass.level, busy) == Some(true));
    };
    let mut others = pass.groups.iter().filter(|group| !group.cores.contains(pass.core));
    let other = others.find(|group| group.cores.contains(busy))?;
    // The remedy of the paper (section 3.1) compares the minima.
    let is_hidden = local.mean >= other.mean && local.minimum < other.minimum;
    if compares_loads && is_hidden { Some(Cause::GroupImbalance) } else { left }
}

#[cfg(test)]
mod tests {
    use quell_model::{CoreSet, GroupKind, PassGroup, Skipped};

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
    fn a_pass_says_nothing_of_its_own_group_or_when_it_compared_nothing() {
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
