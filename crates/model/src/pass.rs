//! What a pass of the load balancer saw and did.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{CoreId, CoreSet};

/// One pass: a core compares the groups of a level of its domains, and takes threads from the busiest one
/// (`sched_balance_rq`, `load_balance` before Linux 6.10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// For which core.
    pub core: CoreId,
    /// The level of its domains, 0 is the lowest.
    pub level: u8,
    /// Why the core balanced.
    pub entry: PassEntry,
    /// The groups of the level, as the pass saw them; the core's own group first. At most [`Pass::GROUPS_MAX`]. Empty where the pass
    /// ended before it looked at them, or where the source does not say.
    pub groups: Vec<PassGroup>,
    /// How it ended.
    pub outcome: PassOutcome,
    /// Threads that it moved.
    pub moved: u32,
    /// Threads of the busiest queues that it looked at and left there.
    pub skipped: Skipped,
}

impl Pass {
    /// Groups that are named.
    pub const GROUPS_MAX: usize = 64;
}

impl PassEntry {
    /// All of them.
    pub const ALL: [PassEntry; 4] =
        [PassEntry::Periodic, PassEntry::Nohz, PassEntry::NewIdle, PassEntry::Active];

    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            PassEntry::Periodic => "periodic",
            PassEntry::Nohz => "nohz",
            PassEntry::NewIdle => "new-idle",
            PassEntry::Active => "active",
        }
    }
}

impl GroupKind {
    /// All of them, in order.
    pub const ALL: [GroupKind; 5] = [
        GroupKind::HasSpare,
        GroupKind::FullyBusy,
        GroupKind::Siblings,
        GroupKind::Imbalanced,
        GroupKind::Overloaded,
    ];

    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            GroupKind::HasSpare => "has-spare",
            GroupKind::FullyBusy => "fully-busy",
            GroupKind::Siblings => "siblings",
            GroupKind::Imbalanced => "imbalanced",
            GroupKind::Overloaded => "overloaded",
        }
    }
}

impl PassOutcome {
    /// All of them.
    pub const ALL: [PassOutcome; 12] = [
        PassOutcome::Moved,
        PassOutcome::NotDesignated,
        PassOutcome::NoBusiest,
        PassOutcome::LocalIsBusier,
        PassOutcome::LocalIsAboveAverage,
        PassOutcome::AsManyIdle,
        PassOutcome::WithinMargin,
        PassOutcome::NotIdle,
        PassOutcome::NothingToMove,
        PassOutcome::NoQueue,
        PassOutcome::Pinned,
        PassOutcome::Kept,
    ];

    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            PassOutcome::Moved => "moved",
            PassOutcome::NotDesignated => "not-designated",
            PassOutcome::NoBusiest => "no-busiest",
            PassOutcome::LocalIsBusier => "local-is-busier",
            PassOutcome::LocalIsAboveAverage => "local-is-above-average",
            PassOutcome::AsManyIdle => "as-many-idle",
            PassOutcome::WithinMargin => "within-margin",
            PassOutcome::NotIdle => "not-idle",
            PassOutcome::NothingToMove => "nothing-to-move",
            PassOutcome::NoQueue => "no-queue",
            PassOutcome::Pinned => "pinned",
            PassOutcome::Kept => "kept",
        }
    }
}

/// In one line, without the groups: `core 5, level 2, nohz: local-is-busier`.
impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pass { core, level, entry, outcome, moved, skipped, .. } = self;
        write!(f, "core {core}, level {level}, {}: {}", entry.name(), outcome.name())?;
        if *moved > 0 {
            write!(f, " {moved}")?;
        }
        if *skipped != Skipped::default() {
            write!(f, " (skipped {skipped})")?;
        }
        Ok(())
    }
}

/// As `{0-7}: sum 1024, mean 128, minimum 0, 1 queued, 7 idle, has-spare`.
impl fmt::Display for PassGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PassGroup { cores, sum, mean, minimum, queued, idle, kind } = self;
        let kind = kind.name();
        write!(
            f,
            "{{{cores}}}: sum {sum}, mean {mean}, minimum {minimum}, {queued} queued, {idle} idle, {kind}"
        )
    }
}

/// As `3 running, 1 pinned`; those that are 0 are left out.
impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Skipped { running, pinned, warm, heavy } = self;
        let counts = [(running, "running"), (pinned, "pinned"), (warm, "warm"), (heavy, "heavy")];
        let mut separator = "";
        for (count, why) in counts.into_iter().filter(|(count, _)| **count > 0) {
            write!(f, "{separator}{count} {why}")?;
            separator = ", ";
        }
        Ok(())
    }
}

/// Why a core balanced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PassEntry {
    /// At its tick, while it ran something.
    Periodic,
    /// While it idled: at its own tick, or on its behalf by another idle core (NOHZ).
    Nohz,
    /// It was about to idle.
    NewIdle,
    /// A pass had failed so often that the stopper of the busiest core pushed what ran there.
    Active,
}

/// A group of a level, as a pass saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassGroup {
    /// Its cores.
    pub cores: CoreSet,
    /// Load of all of its cores together; a thread of nice 0 that never sleeps has 1,024.
    pub sum: u64,
    /// Load for each core's worth of capacity: what the balancer of Linux 5.4 and before compares.
    pub mean: u64,
    /// Load of its least loaded core.
    pub minimum: u64,
    /// Threads in its queues.
    pub queued: u32,
    /// Cores that idled.
    pub idle: u16,
    /// What the balancer took it for.
    pub kind: GroupKind,
}

/// How much a group could take or give, the least first (`enum group_type`). Linux 4.1 has three of them: the first two are
/// one there.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum GroupKind {
    /// It has cores or capacity left.
    #[default]
    HasSpare,
    /// All capacity is used, and no more is wanted.
    FullyBusy,
    /// Several threads share a physical core, and the core that balances idles (`group_smt_balance`, Linux 6.6).
    Siblings,
    /// A level below failed because threads may not run everywhere.
    Imbalanced,
    /// More is wanted than there is.
    Overloaded,
}

/// The rule that ended a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PassOutcome {
    /// It moved threads.
    Moved,
    /// Another core of the group balances this level (`should_we_balance`).
    NotDesignated,
    /// No other group had anything to give.
    NoBusiest,
    /// The own group had at least the load of the busiest one.
    LocalIsBusier,
    /// The own group was above the average of the level.
    LocalIsAboveAverage,
    /// The own group had hardly more idle cores than the busiest one.
    AsManyIdle,
    /// The difference was within the margin of the level (`imbalance_pct`).
    WithinMargin,
    /// The core was busy, and the groups had capacity left.
    NotIdle,
    /// The difference was worth no thread.
    NothingToMove,
    /// No queue of the busiest group had a thread to give.
    NoQueue,
    /// No thread of the busiest queue may run here.
    Pinned,
    /// The threads of the busiest queue were running, too heavy, or had warm caches.
    Kept,
}

/// Why threads of the busiest queues were left there, as counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// They ran.
    pub running: u32,
    /// They may not run on the core.
    pub pinned: u32,
    /// They had run too short a time ago (`sysctl_sched_migration_cost`).
    pub warm: u32,
    /// Their load was more than was to be moved.
    pub heavy: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_json_and_each_is_listed_once() {
        fn check<T: Serialize + Copy>(all: &[T], name: fn(T) -> &'static str) {
            let mut seen = std::collections::BTreeSet::new();
            for one in all {
                assert_eq!(serde_json::to_string(one).unwrap(), format!("{:?}", name(*one)));
                assert!(seen.insert(name(*one)));
            }
        }
        check(&PassEntry::ALL, PassEntry::name);
        check(&GroupKind::ALL, GroupKind::name);
        check(&PassOutcome::ALL, PassOutcome::name);
        assert!(GroupKind::ALL.is_sorted());
    }

    #[test]
    fn pass_in_words_has_what_moved_and_what_was_skipped() {
        let mut pass = Pass {
            core: CoreId(5),
            level: 2,
            entry: PassEntry::NewIdle,
            groups: Vec::new(),
            outcome: PassOutcome::Kept,
            moved: 0,
            skipped: Skipped { running: 2, heavy: 1, ..Skipped::default() },
        };
        assert_eq!(
            pass.to_string(),
            "core 5, level 2, new-idle: kept (skipped 2 running, 1 heavy)"
        );
        (pass.outcome, pass.moved, pass.skipped) = (PassOutcome::Moved, 3, Skipped::default());
        assert_eq!(pass.to_string(), "core 5, level 2, new-idle: moved 3");
    }
}
