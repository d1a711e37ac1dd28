//! What a policy is told once, at construction.

use quell_model::{CoreSet, HostCaps, Topology};

/// The host that a policy decides for. What changes while it runs is in the Snapshot instead.
#[derive(Clone, Debug)]
pub struct Host {
    /// Which cores share what.
    pub topology: Topology,
    /// Cores that the policy may plan. A Snapshot can narrow this (offline, taken away), never widen it.
    pub managed: CoreSet,
    /// What the back end can do.
    pub caps: HostCaps,
}
