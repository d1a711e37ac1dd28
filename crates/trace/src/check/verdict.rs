//! The verdict on a waiting thread, given the cores that are idle meanwhile.

use quell_model::{CoreId, CoreSet, Rank};
use serde::{Deserialize, Serialize};

use super::episode::Kind;
use crate::host::{ClassIndex, HostCore, HostState, PolicyReason, Queues};

/// Who could have put a waiting thread onto an idle core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Grade {
    /// The balancer: the cores share a scheduling domain.
    #[serde(rename = "same-domain")]
    A,
    /// Nobody: the thread's affinity allows the core, and no scheduling domain joins it with the thread's.
    #[serde(rename = "no-common-domain")]
    B,
    /// A policy keeps the thread off the core: see [`PolicyReason`].
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

/// What is to be said of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaiterVerdict {
    /// It should have one of these cores.
    Wasted { grade: Grade, cores: CoreSet, quell: bool },
    /// It might have one of these cores, and a policy says no.
    Allowed { reason: PolicyReason, cores: CoreSet },
    /// These cores are idle, and whether it may use them is not reported.
    Unknown { cores: CoreSet },
}

impl WaiterVerdict {
    pub(super) fn cores(&self) -> &CoreSet {
        match self {
            WaiterVerdict::Wasted { cores, .. }
            | WaiterVerdict::Allowed { cores, .. }
            | WaiterVerdict::Unknown { cores } => cores,
        }
    }

    pub(super) fn kind(&self) -> Kind {
        match self {
            WaiterVerdict::Wasted { .. } => Kind::Wasted,
            WaiterVerdict::Allowed { .. } => Kind::AllowedByPolicy,
            WaiterVerdict::Unknown { .. } => Kind::Unknown,
        }
    }
}

/// The verdict on threads of a class that wait on a core; `None` when no idle core concerns them.
pub(super) fn judge(host: &HostState, class: ClassIndex, on: &HostCore) -> Option<WaiterVerdict> {
    if host.queues() == Queues::SizesOnly {
        return some(*host.idle()).map(|cores| WaiterVerdict::Unknown { cores });
    }
    let usable = host.usable_cores(class, on.index);
    let key = host.class(class);
    if let Some(cores) = some(usable.wasted) {
        let (grade, quell) = (grade(host, on.id, &cores), key.plan.is_some());
        return Some(WaiterVerdict::Wasted { grade, cores, quell });
    }
    if let Some((reason, cores)) = usable.allowed_by_policy {
        return Some(WaiterVerdict::Allowed { reason, cores });
    }
    if let Some(cores) = some(usable.affinity_unknown) {
        return Some(WaiterVerdict::Unknown { cores });
    }
    if key.is_pinned || key.plan.is_some() || key.prio >= Rank::BENEATH {
        return None;
    }
    let cores = some(host.sched_idle_only().intersection(&key.allowed?))?;
    Some(WaiterVerdict::Allowed { reason: PolicyReason::BesideSchedIdle, cores })
}

/// Whether a balancer joins one of the idle cores with the waiter's. A host of which no domains are known is
/// taken for whole, as nearly all are.
fn grade(host: &HostState, on: CoreId, idle: &CoreSet) -> Grade {
    let joined = |core: CoreId| {
        let domain = host.core(core).and_then(|core| core.domain.as_ref());
        domain.is_none_or(|domain| domain.contains(on))
    };
    if idle.iter().any(joined) { Grade::A } else { Grade::B }
}

fn some(cores: CoreSet) -> Option<CoreSet> {
    (!cores.is_empty()).then_some(cores)
}
