//! The label of a violation: the cause of most of its wasted time.

use std::fmt;

use quell_model::Nanos;
use serde::{Deserialize, Serialize};

use super::Evidence;
use super::cause::{Cause, Charges};
use crate::host::PolicyReason;

/// Why threads wait beside an idle core, as far as the evidence says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Label {
    /// Quell manages the thread, and its affinity keeps it off an idle core that the plan allows.
    Quell,
    /// No scheduling domain joins the cores.
    #[serde(rename = "no-common-domain")]
    Domains,
    /// At every level of the idle cores' domains the waiters' core is in their own group: Scheduling Group Construction.
    Groups,
    /// Threads are woken onto busy cores although one in the same last-level cache is idle: the search for an
    /// idle core gave up.
    WakeupInsideLlc,
    /// Threads are woken onto busy cores, and the idle cores lie outside their last-level cache, where no wake-up
    /// looks: Overload-on-Wakeup.
    WakeupOutsideLlc,
    /// Threads are placed onto busy cores when they are created, although others idle.
    Fork,
    /// Migrations bring threads onto busy cores although others idle.
    Migration,
    /// A heavy thread makes the idle core's group look loaded on average: Group Imbalance.
    GroupImbalance,
    /// The hypervisor took more than half of the time: cores that look busy were not running.
    Hypervisor,
    /// No idle core ran a pass of the balancer.
    #[serde(rename = "no-balance-pass")]
    NeverBalanced,
    /// Idle cores ran the balancer, and it left the waiter where it was.
    #[serde(rename = "balance-failed")]
    BalancedInVain,
    /// A policy: no violation.
    Policy(PolicyReason),
    /// Nobody said which cores the thread may use.
    AffinityUnknown,
    /// Sizes of queues are all that was told.
    ThreadsUnknown,
    /// The evidence says nothing.
    Unknown,
}

/// Labels waste that no policy explains: by the cause of most of its time, of equal ones by the first in the order of
/// [`Cause`]. A cause that explains nothing stands for what the evidence says.
///
/// Before that come threads that Quell keeps off cores which the plan allows, where they waited for most of the time.
/// A hypervisor that took more than half of the time comes before passes that failed for another reason than loads. Loads of
/// groups count where the kernel compares their means.
pub(super) fn of_waste(
    quell: bool,
    evidence: (&Evidence, bool),
    wasted: Nanos,
    charges: &Charges,
) -> Label {
    if quell {
        return Label::Quell;
    }
    let unexplained = of_evidence(evidence, wasted);
    match charges.most().and_then(of_cause) {
        Some(Label::BalancedInVain) if unexplained == Label::Hypervisor => unexplained,
        Some(label) => label,
        None => unexplained,
    }
}

/// The label of a cause; `None` where it explains nothing.
fn of_cause(cause: Cause) -> Option<Label> {
    match cause {
        Cause::NoCommonDomain => Some(Label::Domains),
        Cause::Groups => Some(Label::Groups),
        Cause::WokenOutsideLlc => Some(Label::WakeupOutsideLlc),
        Cause::WokenInsideLlc => Some(Label::WakeupInsideLlc),
        Cause::Forked => Some(Label::Fork),
        Cause::Migrated(_) => Some(Label::Migration),
        Cause::GroupImbalance => Some(Label::GroupImbalance),
        Cause::Left(_) => Some(Label::BalancedInVain),
        cause => {
            debug_assert!(cause.is_unexplained(), "{cause:?} has a label");
            None
        }
    }
}

/// What the loads of groups, the hypervisor and counts of passes say.
fn of_evidence((evidence, compares_means): (&Evidence, bool), wasted: Nanos) -> Label {
    let hidden = |evidence: &Evidence| {
        let (idle, busy) = (evidence.idle_group.as_ref()?, evidence.busy_group.as_ref()?);
        Some(idle.mean >= busy.mean && idle.minimum < busy.minimum)
    };
    if compares_means && hidden(evidence).unwrap_or(false) {
        Label::GroupImbalance
    } else if evidence.stolen_ms * 2e6 > wasted.0 as f64 {
        Label::Hypervisor
    } else {
        match evidence.balance_passes_on_idle {
            Some(0) => Label::NeverBalanced,
            Some(_) => Label::BalancedInVain,
            None => Label::Unknown,
        }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self {
            Label::Quell => "quell: the plan allows the core, and the thread did not get it",
            Label::Domains => "no-common-domain: no scheduling domain joins the cores",
            Label::WakeupInsideLlc => {
                "wakeup-inside-llc: woken onto busy cores beside idle ones of the same cache"
            }
            Label::WakeupOutsideLlc => {
                "wakeup-outside-llc: woken onto busy cores, idle ones lie outside the cache (Overload-on-Wakeup)"
            }
            Label::Groups => {
                "groups: idle cores count this core's load as their own group's (Scheduling Group Construction)"
            }
            Label::Fork => {
                "fork: placed onto busy cores when they were created, while others idled"
            }
            Label::Migration => "migration: brought onto busy cores while others idled",
            Label::GroupImbalance => {
                "group-imbalance: a heavy thread hides idle cores in its group's average"
            }
            Label::Hypervisor => "hypervisor: it took more than half of the time",
            Label::NeverBalanced => "no-balance-pass: no idle core ran the balancer",
            Label::BalancedInVain => {
                "balance-failed: idle cores ran the balancer, and it migrated no thread here"
            }
            Label::Policy(reason) => return write!(f, "policy: {reason}"),
            Label::AffinityUnknown => "affinity-unknown: nobody said where the threads may run",
            Label::ThreadsUnknown => "threads-unknown: sizes of queues are all that was told",
            Label::Unknown => "unknown: the recording does not tell what the balancer did",
        };
        f.write_str(words)
    }
}
