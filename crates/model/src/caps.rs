//! What a host lets a policy rely on.

use serde::{Deserialize, Serialize};

use crate::Nanos;

/// Capabilities of a host with a given back end, told to the policy at start. The default is a host that can
/// do nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    pub per_thread_state: bool,
    /// Bursts of single LC threads are reported ([`crate::Snapshot::bursts`]) and threads can have roles
    /// ([`crate::Plan::roles`]).
    pub bursts: bool,
    /// It is seen on each core when the request that runs there began ([`crate::CoreView::request_start`]).
    pub request_start_times: bool,
    /// A request can be made to let others of its task go first ([`crate::CorePlan::yields`]).
    pub yields_requests: bool,
    /// Memory traffic is counted, in total and for each core ([`crate::Snapshot::memory`]).
    pub memory_counters: bool,
    /// Ways of the last-level cache that can be dealt out to tasks; 0: it cannot be partitioned.
    pub llc_ways: u16,
    /// Typical delay from a decision to its effect.
    pub actuation_delay: Nanos,
}
