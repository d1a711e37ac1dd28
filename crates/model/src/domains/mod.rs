//! The scheduling domains of a host: between which cores its balancer moves threads, and in which groups.
//!
//! Each core has domains of its own, from the lowest (its siblings) to the highest (the host). The groups of a
//! domain are the shares between which that core balances; the first one is its own
//! (kernel/sched/topology.c, `struct sched_domain` and `struct sched_group`).

mod build;

use serde::{Deserialize, Serialize};

use crate::{CORES_MAX, CoreId, CoreSet};

pub use build::{DomainRules, GroupWalk};

/// The scheduling domains of every core on line, as one look saw them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct DomainTrees {
    cores: Vec<CoreDomains>,
    /// Cores that were taken out of balancing on purpose: `isolcpus=`, or an isolated cpuset partition.
    pub isolated: CoreSet,
}

/// The domains of one core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreDomains {
    /// Whose.
    pub core: CoreId,
    /// The cores on line of its root domain: those that a cpuset partition lets it balance with. `None` where
    /// the source does not say.
    pub root: Option<CoreSet>,
    /// From the lowest to the highest; none if the core does not balance at all.
    pub domains: Vec<Domain>,
}

/// A domain of one core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domain {
    /// The level's name: `SMT`, `MC`, `NUMA`, ...
    pub name: String,
    /// The cores between which it balances.
    pub span: CoreSet,
    /// Its groups in the kernel's order, the core's own first.
    pub groups: Vec<DomainGroup>,
    /// The `SD_*` bits (include/linux/sched/sd_flags.h), whose numbers differ between kernels.
    #[serde(default)]
    pub flags: Option<u32>,
    /// How its balancing went.
    #[serde(default)]
    pub balance: Option<BalanceState>,
}

/// A group of a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainGroup {
    /// The cores whose load it sums.
    pub cores: CoreSet,
    /// Those among them that may balance on its behalf (`group_balance_mask`).
    pub balance: CoreSet,
}

/// How the balancing of one domain went; the difference of two looks says how often it was tried and failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalanceState {
    /// When it was tried last, in the kernel's jiffies.
    pub last_jiffies: u64,
    /// Time between two tries, in milliseconds; longer where there was nothing to do.
    pub interval_ms: u32,
    /// Tries in a row that moved nothing although they should have.
    pub failed: u32,
}

/// Why a list of cores is no set of domain trees.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DomainTreesError {
    /// A core has two trees.
    #[error("core {0} has two domain trees")]
    Duplicate(CoreId),
    /// A core number is past what Quell can hold.
    #[error("core {0} is past the highest core number that Quell can manage ({max})", max = CORES_MAX - 1)]
    TooHigh(CoreId),
}

impl DomainTrees {
    /// The trees of some cores, in any order.
    ///
    /// # Errors
    /// When a core is there twice, or is at or above [`CORES_MAX`].
    pub fn new(
        mut cores: Vec<CoreDomains>,
        isolated: CoreSet,
    ) -> Result<DomainTrees, DomainTreesError> {
        cores.sort_by_key(|core| core.core);
        let last = cores.last().map_or(CoreId(0), |last| last.core);
        if last.index() >= CORES_MAX {
            return Err(DomainTreesError::TooHigh(last));
        }
        match cores.windows(2).find(|pair| pair[0].core == pair[1].core) {
            Some(pair) => Err(DomainTreesError::Duplicate(pair[0].core)),
            None => Ok(DomainTrees { cores, isolated }),
        }
    }

    /// The trees in ascending order of their cores.
    pub fn cores(&self) -> &[CoreDomains] {
        &self.cores
    }

    /// All cores that have a tree here.
    pub fn all(&self) -> CoreSet {
        self.cores.iter().map(|core| core.core).collect()
    }

    /// Whether both are the same but for the state of balancing, which always changes.
    pub fn same_shape(&self, other: &DomainTrees) -> bool {
        let pairs = || self.cores.iter().zip(&other.cores);
        self.isolated == other.isolated
            && self.cores.len() == other.cores.len()
            && pairs().all(|(a, b)| a.core == b.core && a.same_shape(b))
    }
}

impl CoreDomains {
    /// The cores that balance with this one: the span of its highest domain; itself alone where it has none.
    pub fn reach(&self) -> CoreSet {
        self.domains.last().map_or(CoreSet::of(self.core), |top| top.span)
    }

    /// Whether both are the same but for the state of balancing.
    pub fn same_shape(&self, other: &CoreDomains) -> bool {
        let pairs = || self.domains.iter().zip(&other.domains);
        self.root == other.root
            && self.domains.len() == other.domains.len()
            && pairs().all(|(a, b)| a.same_shape(b))
    }
}

impl Domain {
    /// Whether both are the same but for the state of balancing; flags count where both sources tell them.
    pub fn same_shape(&self, other: &Domain) -> bool {
        let known = self.flags.zip(other.flags);
        (&self.name, self.span, &self.groups) == (&other.name, other.span, &other.groups)
            && known.is_none_or(|(own, others)| own == others)
    }
}

/// What is read back, before it was looked at.
#[derive(Deserialize)]
struct Unchecked {
    cores: Vec<CoreDomains>,
    #[serde(default)]
    isolated: CoreSet,
}

impl TryFrom<Unchecked> for DomainTrees {
    type Error = DomainTreesError;
    fn try_from(from: Unchecked) -> Result<Self, DomainTreesError> {
        DomainTrees::new(from.cores, from.isolated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(core: u16) -> CoreDomains {
        CoreDomains { core: CoreId(core), root: None, domains: Vec::new() }
    }

    #[test]
    fn cores_are_in_order_and_there_once() {
        let trees = DomainTrees::new(vec![alone(3), alone(1)], CoreSet::EMPTY).unwrap();
        assert_eq!(trees.all().to_string(), "1,3");
        assert_eq!(trees.cores()[0].core, CoreId(1));
        let twice = DomainTrees::new(vec![alone(1), alone(1)], CoreSet::EMPTY);
        assert_eq!(twice, Err(DomainTreesError::Duplicate(CoreId(1))));
        let high = DomainTrees::new(vec![alone(1024)], CoreSet::EMPTY);
        assert_eq!(high, Err(DomainTreesError::TooHigh(CoreId(1024))));
    }

    #[test]
    fn a_core_without_domains_reaches_itself() {
        assert_eq!(alone(5).reach(), CoreSet::of(CoreId(5)));
    }

    #[test]
    fn the_shape_is_all_but_the_state_of_balancing() {
        let span: CoreSet = "0-1".parse().unwrap();
        let groups = vec![DomainGroup { cores: span, balance: span }];
        let domain = Domain { name: "MC".into(), span, groups, flags: Some(1), balance: None };
        let state = BalanceState { last_jiffies: 1, interval_ms: 2, failed: 0 };
        let later = Domain { balance: Some(state), ..domain.clone() };
        assert!(domain.same_shape(&later));
        assert!(domain.same_shape(&Domain { flags: None, ..domain.clone() }));
        assert!(!domain.same_shape(&Domain { flags: Some(2), ..domain.clone() }));
        assert!(!domain.same_shape(&Domain { name: "SMT".into(), ..later }));
    }
}
