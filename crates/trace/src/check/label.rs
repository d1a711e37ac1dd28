//! The label of a violation: the first cause that its evidence supports.

use std::fmt;

use quell_model::Nanos;
use serde::{Deserialize, Serialize};

use super::{Evidence, Grade};
use crate::host::PolicyReason;

/// Wake-ups onto busy cores that are no accident: so many in a second of waste.
const BUSY_WAKEUPS_PER_S: u64 = 20;

/// Why threads wait beside an idle core, as far as the evidence says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Label {
    /// Quell manages the thread, and its plan allows the core.
    Quell,
    /// No scheduling domain joins the cores.
    #[serde(rename = "no-common-domain")]
    Domains,
    /// Threads are woken onto busy cores although one in the same last-level cache is idle: the search for an
    /// idle core gave up.
    WakeupInsideLlc,
    /// Threads are woken onto busy cores, and the idle cores lie outside their last-level cache, where no wake-up
    /// looks: Overload-on-Wakeup.
    WakeupOutsideLlc,
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

/// Labels waste that no policy explains.
pub(super) fn of_waste(grade: Grade, quell: bool, evidence: &Evidence, wasted: Nanos) -> Label {
    let at_least = (wasted.0 / (1_000_000_000 / BUSY_WAKEUPS_PER_S)).max(2);
    let hidden = |evidence: &Evidence| {
        let (idle, busy) = (evidence.idle_group.as_ref()?, evidence.busy_group.as_ref()?);
        Some(idle.mean >= busy.mean && idle.minimum < busy.minimum)
    };
    if quell {
        Label::Quell
    } else if grade == Grade::B {
        Label::Domains
    } else if evidence.busy_wakeups_outside_llc >= at_least {
        Label::WakeupOutsideLlc
    } else if evidence.busy_wakeups_inside_llc >= at_least {
        Label::WakeupInsideLlc
    } else if hidden(evidence).unwrap_or(false) {
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
