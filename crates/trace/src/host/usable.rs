//! Which idle cores a waiting thread could use, and which policy keeps it off them: the one rule of all readers.

use std::fmt;

use quell_model::{CoreSet, Rank};
use serde::{Deserialize, Serialize};

use super::apply::is_realtime;
use super::{ClassIndex, HostState, WaiterKey};

/// By what policy a thread may wait beside an idle core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyReason {
    /// A cap or a ban of Quell's plan keeps it off.
    Plan,
    /// It is SCHED_IDLE: what is left, when it is left.
    SchedIdle,
    /// It is a real-time or deadline thread: those are pushed and pulled, not balanced.
    Realtime,
    /// It waits behind a real-time or deadline thread, whose time the balancer takes for lost capacity.
    BehindRealtime,
    /// No core is idle, but one runs nothing except SCHED_IDLE threads. No time of an idle core is at stake, so
    /// [`WastedTime`](super::WastedTime) does not count it.
    BesideSchedIdle,
}

impl fmt::Display for PolicyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PolicyReason::Plan => "Quell's plan keeps it off",
            PolicyReason::SchedIdle => "it is SCHED_IDLE",
            PolicyReason::Realtime => "it is real-time: pushed and pulled, not balanced",
            PolicyReason::BehindRealtime => "it waits behind a real-time thread",
            PolicyReason::BesideSchedIdle => {
                "the core is not idle, but runs SCHED_IDLE threads only"
            }
        })
    }
}

/// The idle cores that a thread which waits behind another could use, by what is to be said of them. The sets do
/// not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsableCores {
    /// They are wasted.
    pub wasted: CoreSet,
    /// A policy keeps the thread off them.
    pub allowed_by_policy: Option<(PolicyReason, CoreSet)>,
    /// Its affinity is not reported, so that it may or may not use them.
    pub affinity_unknown: CoreSet,
}

impl UsableCores {
    const NONE: UsableCores = UsableCores {
        wasted: CoreSet::EMPTY,
        allowed_by_policy: None,
        affinity_unknown: CoreSet::EMPTY,
    };

    /// The wasted cores; those and the ones that a policy keeps it off; those and the unknown ones.
    #[inline]
    pub(super) fn layers(&self) -> [CoreSet; 3] {
        let allowed = match &self.allowed_by_policy {
            Some((_, cores)) => self.wasted.union(cores),
            None => self.wasted,
        };
        [self.wasted, allowed, allowed.union(&self.affinity_unknown)]
    }
}

impl HostState {
    /// Whether threads that wait on a core, by its index, wait for a real-time or deadline thread.
    pub(super) fn is_behind_realtime(&self, on: usize) -> bool {
        self.occupant(on).thread().is_some_and(|thread| is_realtime(thread.prio()))
    }

    /// The idle cores that threads of a class could use which wait on a core, by its index.
    ///
    /// A thread whose affinity no event or keyframe reported proves nothing: it may be pinned.
    #[inline]
    pub fn usable_cores(&self, class: ClassIndex, on: usize) -> UsableCores {
        let WaiterKey { allowed, prio, is_pinned, plan } = self.class(class);
        let (idle, none) = (self.idle(), UsableCores::NONE);
        if *is_pinned || idle.is_empty() {
            return none;
        }
        if let Some(plan) = plan {
            let wasted = idle.intersection(&plan.planned);
            let barred = idle.intersection(&plan.original).difference(&wasted);
            let allowed = (!barred.is_empty()).then_some((PolicyReason::Plan, barred));
            return UsableCores { wasted, allowed_by_policy: allowed, ..none };
        }
        let Some(allowed) = allowed else {
            return UsableCores { affinity_unknown: *idle, ..none };
        };
        let cores = idle.intersection(allowed);
        if cores.is_empty() {
            return none;
        }
        let reason = if *prio >= Rank::BENEATH {
            PolicyReason::SchedIdle
        } else if is_realtime(*prio) {
            PolicyReason::Realtime
        } else if self.is_behind_realtime(on) {
            PolicyReason::BehindRealtime
        } else {
            return UsableCores { wasted: cores, ..none };
        };
        UsableCores { allowed_by_policy: Some((reason, cores)), ..none }
    }
}
