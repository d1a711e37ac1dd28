//! Why a thread waits beside an idle core: how it came to wait there, or the pass of the balancer that left it.

use std::collections::BTreeMap;
use std::fmt;

use quell_model::{MoveCause, Nanos, PassOutcome};
use serde::{Deserialize, Serialize};

/// The cause of a wait beside idle cores, charged to the time of each waiting thread. Of each instant there is one.
///
/// 1. Where no balancing could bring the thread to any of the idle cores, that is the cause.
/// 2. A thread that was placed or moved here a short time ago waits because of that, until it has run a full turn
///    here or has waited for a window.
/// 3. Later, and where the arrival was right, it waits because of the last pass of an idle core that left it here.
/// 4. Where no such pass is known, the cause says how the wait began, and explains nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// No scheduling domain of an idle core has this core.
    NoCommonDomain,
    /// At every level of an idle core's domains this core is in its own group.
    Groups,
    /// Woken onto this core while usable cores idled, all of them outside its last-level cache.
    WokenOutsideLlc,
    /// Woken onto this core while a usable core of its last-level cache idled.
    WokenInsideLlc,
    /// Placed here when it was created, while a usable core idled.
    Forked,
    /// Brought here by a migration.
    Migrated(MoveCause),
    /// Left by a pass of an idle core: its own group had the higher mean load, and the lower minimum.
    GroupImbalance,
    /// Left by a pass of an idle core that ended so.
    Left(PassOutcome),
    /// Woken or created here while no usable core idled; no pass is known since.
    Placed,
    /// It ran a turn here and was preempted; no pass is known since it came here.
    Preempted,
    /// It waited here for longer than a window; no pass is known meanwhile.
    Waited,
    /// A keyframe showed it waiting; how it came here is not known, and no pass is known since.
    Seen,
}

impl Cause {
    /// Whether the cause is how the thread came to this core, which was wrong when it happened.
    pub(super) fn is_arrival(self) -> bool {
        use Cause::{Forked, Migrated, WokenInsideLlc, WokenOutsideLlc};
        matches!(self, WokenOutsideLlc | WokenInsideLlc | Forked | Migrated(_))
    }

    /// Whether the cause is a wake-up.
    pub fn is_wakeup(self) -> bool {
        matches!(self, Cause::WokenOutsideLlc | Cause::WokenInsideLlc)
    }

    /// Whether it says how a wait began and not why it lasts.
    pub(super) fn is_unexplained(self) -> bool {
        matches!(self, Cause::Placed | Cause::Preempted | Cause::Waited | Cause::Seen)
    }
}

/// The part of a finding's wasted time that has one cause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CauseShare {
    /// The cause.
    pub cause: Cause,
    /// Time of threads that waited for it beside idle cores, in milliseconds.
    pub wasted_ms: f64,
    /// Its share of the time of all threads of the finding, in percent.
    pub share_percent: f64,
}

/// Wasted time of threads by its cause.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Charges(BTreeMap<Cause, Nanos>);

impl Charges {
    /// So many threads waited for so long.
    pub(super) fn add(&mut self, cause: Cause, time: Nanos, threads: u64) {
        if threads > 0 && time > Nanos::ZERO {
            let charged = self.0.entry(cause).or_default();
            charged.0 = charged.0.saturating_add(time.0.saturating_mul(threads));
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Time of all causes.
    pub(super) fn total(&self) -> Nanos {
        Nanos(self.0.values().fold(0, |sum, time| sum.saturating_add(time.0)))
    }

    /// The cause with the most time; of equal ones the first in the order of [`Cause`].
    pub(super) fn most(&self) -> Option<Cause> {
        self.0.iter().rev().max_by_key(|(_, time)| **time).map(|(cause, _)| *cause)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Cause, Nanos)> {
        self.0.iter().map(|(cause, time)| (*cause, *time))
    }

    /// All causes, the most time first.
    pub(super) fn shares(&self) -> Vec<CauseShare> {
        let total = self.total().0.max(1) as f64;
        let share = |(cause, time): (Cause, Nanos)| CauseShare {
            cause,
            wasted_ms: time.0 as f64 / 1e6,
            share_percent: (time.0 as f64 / total * 1e3).round() / 10.0,
        };
        let mut shares: Vec<CauseShare> = self.iter().map(share).collect();
        // A stable sort: equal ones stay in the order of `Cause`.
        shares.sort_by(|a, b| b.wasted_ms.total_cmp(&a.wasted_ms));
        shares
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::NoCommonDomain => "here without a domain that joins an idle core",
            Cause::Groups => "here in the own group of every idle core, at every level",
            Cause::WokenOutsideLlc => "woken here with idle cores outside the cache",
            Cause::WokenInsideLlc => "woken here with idle cores in the cache",
            Cause::Forked => "created here with idle cores elsewhere",
            Cause::Migrated(cause) => {
                return write!(f, "migrated here ({})", moved_by(*cause));
            }
            Cause::GroupImbalance => {
                "left by passes: local group busier on average, with an idle core"
            }
            Cause::Left(outcome) => return write!(f, "left by passes: {}", ended(*outcome)),
            Cause::Placed => "placed here with no idle core elsewhere",
            Cause::Preempted => "preempted here after a turn",
            Cause::Waited => "here for longer than a window",
            Cause::Seen => "here when first seen",
        })
    }
}

impl fmt::Display for CauseShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} % {}", self.share_percent, self.cause)
    }
}

fn moved_by(cause: MoveCause) -> &'static str {
    match cause {
        MoveCause::Wakeup => "wake-up",
        MoveCause::Fork => "fork",
        MoveCause::Exec => "exec",
        MoveCause::NewIdle => "new-idle balancing",
        MoveCause::Periodic => "periodic balancing",
        MoveCause::Active => "active balancing",
        MoveCause::Affinity => "affinity",
        MoveCause::Numa => "NUMA balancing",
        MoveCause::Realtime => "real-time push or pull",
        MoveCause::Hotplug => "hotplug",
        MoveCause::Unknown => "unknown",
    }
}

fn ended(outcome: PassOutcome) -> &'static str {
    match outcome {
        PassOutcome::Moved => "took another thread",
        PassOutcome::NotDesignated => "another core balances the level",
        PassOutcome::NoBusiest => "no busiest group",
        PassOutcome::LocalIsBusier => "local group busier",
        PassOutcome::LocalIsAboveAverage => "local group above the average",
        PassOutcome::AsManyIdle => "as many idle cores in the busiest group",
        PassOutcome::WithinMargin => "difference within the margin",
        PassOutcome::NotIdle => "the core was busy",
        PassOutcome::NothingToMove => "difference worth no thread",
        PassOutcome::NoQueue => "no queue with a thread to give",
        PassOutcome::Pinned => "threads pinned elsewhere",
        PassOutcome::Kept => "threads running, too heavy or cache-hot",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_add_up_and_ties_go_to_the_first_cause() {
        let mut charges = Charges::default();
        assert_eq!((charges.most(), charges.shares().len()), (None, 0));
        charges.add(Cause::Preempted, Nanos(30), 2);
        charges.add(Cause::WokenOutsideLlc, Nanos(20), 3);
        charges.add(Cause::Seen, Nanos(40), 1);
        charges.add(Cause::Forked, Nanos(40), 0);
        assert_eq!(charges.most(), Some(Cause::WokenOutsideLlc));
        let shares: Vec<(Cause, f64)> =
            charges.shares().iter().map(|share| (share.cause, share.share_percent)).collect();
        let expected =
            [(Cause::WokenOutsideLlc, 37.5), (Cause::Preempted, 37.5), (Cause::Seen, 25.0)];
        assert_eq!(shares, expected);
        charges.add(Cause::Seen, Nanos(u64::MAX), 2);
        assert_eq!(charges.total(), Nanos(u64::MAX));
    }

    #[test]
    fn causes_are_kebab_case_in_json() {
        let json = |cause: Cause| serde_json::to_string(&cause).unwrap();
        assert_eq!(json(Cause::WokenOutsideLlc), r#""woken-outside-llc""#);
        assert_eq!(json(Cause::Migrated(MoveCause::NewIdle)), r#"{"migrated":"new-idle"}"#);
        assert_eq!(json(Cause::Left(PassOutcome::WithinMargin)), r#"{"left":"within-margin"}"#);
    }
}
