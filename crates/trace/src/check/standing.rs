//! How a waiting thread stands to the cores that are idle meanwhile.

use std::fmt;

use quell_model::{CoreId, CoreSet, Rank};
use serde::{Deserialize, Serialize};

use super::host::{Host, Queues};
use super::waiters::Likeness;

/// Who could have put a waiting thread onto an idle core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Grade {
    /// The balancer: the cores share a scheduling domain.
    #[serde(rename = "same-domain")]
    A,
    /// Nobody: the thread's affinity allows the core, and no scheduling domain joins it with the thread's.
    #[serde(rename = "no-common-domain")]
    B,
    /// A policy keeps the thread off the core: see [`Policy`].
    #[serde(rename = "policy")]
    C,
}

impl Grade {
    /// As in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Grade::A => "same-domain",
            Grade::B => "no-common-domain",
            Grade::C => "policy",
        }
    }
}

/// By what policy a thread may wait beside an idle core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// A cap or a ban of Quell's plan keeps it off.
    Plan,
    /// It is SCHED_IDLE: what is left, when it is left.
    SchedIdle,
    /// It is a real-time or deadline thread: those are pushed and pulled, not balanced.
    Realtime,
    /// It waits behind a real-time or deadline thread, whose time the balancer takes for lost capacity.
    BehindRealtime,
    /// No core is idle, but one runs nothing except SCHED_IDLE threads.
    BesideSchedIdle,
}

/// How a waiter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It should have one of these cores.
    Wasted { grade: Grade, cores: CoreSet, quell: bool },
    /// It might have one of these cores, and a policy says no.
    Explained { policy: Policy, cores: CoreSet },
    /// It waits beside these cores and nobody said whether it may use them.
    Unknown { cores: CoreSet },
}

impl Standing {
    pub(super) fn cores(&self) -> CoreSet {
        match self {
            Standing::Wasted { cores, .. }
            | Standing::Explained { cores, .. }
            | Standing::Unknown { cores } => *cores,
        }
    }
}

/// How threads like this that wait in the queue of `on` stand; `None` when no idle core concerns them.
pub(super) fn judge(host: &Host, like: &Likeness, on: CoreId) -> Option<Standing> {
    if host.queues == Queues::SizesAlone {
        return some(host.idle).map(|cores| Standing::Unknown { cores });
    }
    if like.stays {
        return None;
    }
    if let Some((planned, original)) = &like.plan {
        let barred = || some(host.idle.intersection(original));
        return some(host.idle.intersection(planned))
            .map(|cores| Standing::Wasted { grade: grade(host, on, &cores), cores, quell: true })
            .or_else(|| barred().map(|cores| Standing::Explained { policy: Policy::Plan, cores }));
    }
    let Some(allowed) = like.allowed else {
        return some(host.idle).map(|cores| Standing::Unknown { cores });
    };
    let rank = like.rank.unwrap_or(Rank::FAIR);
    let Some(cores) = some(host.idle.intersection(&allowed)) else {
        let lowly = some(host.lowly.intersection(&allowed)).filter(|_| rank < Rank::BENEATH)?;
        return Some(Standing::Explained { policy: Policy::BesideSchedIdle, cores: lowly });
    };
    let behind = host.runner_of(on).map_or(Rank::FAIR, |runner| runner.runner.rank);
    let policy = if rank >= Rank::BENEATH {
        Policy::SchedIdle
    } else if rank < Rank::FAIR {
        Policy::Realtime
    } else if behind < Rank::FAIR {
        Policy::BehindRealtime
    } else {
        return Some(Standing::Wasted { grade: grade(host, on, &cores), cores, quell: false });
    };
    Some(Standing::Explained { policy, cores })
}

/// Whether a balancer joins one of the idle cores with the waiter's. A host of which no domains are known is
/// taken for whole, as nearly all are.
fn grade(host: &Host, on: CoreId, idle: &CoreSet) -> Grade {
    let joined = |core: CoreId| {
        host.core(core).and_then(|core| core.domain).is_none_or(|domain| domain.contains(on))
    };
    if idle.iter().any(joined) { Grade::A } else { Grade::B }
}

fn some(cores: CoreSet) -> Option<CoreSet> {
    (!cores.is_empty()).then_some(cores)
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Policy::Plan => "Quell's plan keeps it off",
            Policy::SchedIdle => "it is SCHED_IDLE",
            Policy::Realtime => "it is real-time: pushed and pulled, not balanced",
            Policy::BehindRealtime => "it waits behind a real-time thread",
            Policy::BesideSchedIdle => "the core is not idle, but runs SCHED_IDLE threads only",
        })
    }
}
