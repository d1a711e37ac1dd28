//! What a host lets a policy rely on.

use serde::{Deserialize, Serialize};

use crate::Nanos;

/// Capabilities of a host with a given back end, told to the policy at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCaps {
    /// Priority alone arbitrates on a core: a BE task may be let in beneath the LC owner, which
    /// preempts it the moment it wakes. Without it a core serves its owner alone.
    pub shares_cores: bool,
    /// A core can be kept idle although work exists (a ban can be enforced).
    pub idles_cores: bool,
    /// One thread can be put on one core.
    pub places_threads: bool,
    /// A task without any core can be stopped (cgroup freezer).
    pub freezes_tasks: bool,
    /// States of single threads are seen, not only sums.
    pub sees_threads: bool,
    /// The kernel's fair server may stop elevated threads for some 50 ms a second to run starving
    /// fair-class work, SCHED_IDLE included (kernel 6.12 and later).
    pub fair_server: bool,
    /// Typical delay from a decision to its effect.
    pub acts_within: Nanos,
}
