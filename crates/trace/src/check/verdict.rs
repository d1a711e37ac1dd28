//! The verdict on a waiting thread, given the cores that are idle meanwhile.

use quell_model::{CoreId, CoreSet, Rank};
use serde::{Deserialize, Serialize};

use super::cause::Cause;
use super::domains::Domains;
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
    /// It should have one of these cores. `barred`: why no balancing could bring it to any of them.
    Wasted { grade: Grade, cores: CoreSet, quell: bool, barred: Option<Cause> },
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
pub(super) fn judge(
    host: &HostState,
    domains: &Domains,
    class: ClassIndex,
    on: &HostCore,
) -> Option<WaiterVerdict> {
    if host.queues() == Queues::SizesOnly {
        return some(*host.idle()).map(|cores| WaiterVerdict::Unknown { cores });
    }
    let usable = host.usable_cores(class, on.index);
    let key = host.class(class);
    if let Some(cores) = some(usable.wasted) {
        let (grade, barred) = grade(host, domains, on.id, &cores);
        // What the kernel would allow is not up to the plan.
        let is_held = key.allowed.is_some_and(|allowed| allowed.is_disjoint(&cores));
        let quell = key.plan.is_some() && is_held;
        return Some(WaiterVerdict::Wasted { grade, cores, quell, barred });
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

/// Whether a balancer joins one of the idle cores with the waiter's, and why none can take from it. A host of which no
/// domains are known is taken for whole, as nearly all are.
fn grade(
    host: &HostState,
    domains: &Domains,
    on: CoreId,
    idle: &CoreSet,
) -> (Grade, Option<Cause>) {
    let is_joined = |core: &CoreId| {
        let shown = || host.core(*core).and_then(|core| core.domain.as_ref());
        let reach = domains.reach(*core).or_else(shown);
        reach.is_none_or(|reach| reach.contains(on))
    };
    let mut joined = idle.iter().filter(is_joined).peekable();
    if joined.peek().is_none() {
        return (Grade::B, Some(Cause::NoCommonDomain));
    }
    let is_stuck = joined.all(|core| domains.are_inseparable(core, on));
    (Grade::A, is_stuck.then_some(Cause::Groups))
}

fn some(cores: CoreSet) -> Option<CoreSet> {
    (!cores.is_empty()).then_some(cores)
}
