//! What a policy is told once, at construction.

use std::fmt;

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

impl Host {
    /// Whether two managed cores share a physical one.
    pub fn has_siblings(&self) -> bool {
        let shares = |core| !self.topology.siblings(core).intersection(&self.managed).is_empty();
        self.managed.iter().any(shares)
    }
}

/// A part of a policy that does without, because the host does not give what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The part, e.g. the advisor's name.
    pub part: &'static str,
    /// What it would need.
    pub needs: &'static str,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "without {}: this host has not {}", self.part, self.needs)
    }
}
