//! The scheduling domains of each core with the state of their balancing (`struct sched_domain`).

use std::collections::BTreeMap;

use quell_model::{
    CoreDomains, CoreId, CoreSet, Domain, DomainGroup, DomainTrees, Nanos, Topology,
};

use super::model::KernelModel;

/// Nodes further apart than this have no fork, exec and wake-affine flags (`RECLAIM_DISTANCE`).
const RECLAIM_DISTANCE: u32 = 30;

/// What the cores of a level share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LevelKind {
    Siblings,
    Cluster,
    Cache,
    Node,
    BetweenNodes,
}

/// A group of cores between which a level balances.
#[derive(Clone, Copy, Debug)]
pub(super) struct LevelGroup {
    pub cores: CoreSet,
    /// Those that may balance for it.
    pub balance: CoreSet,
    /// Equal groups of one level have one number: they share the flag of [`Domains::is_imbalanced`].
    pub number: usize,
}

/// A level of one core.
#[derive(Clone, Debug)]
pub(super) struct Level {
    pub kind: LevelKind,
    /// As the kernel names it.
    pub name: String,
    pub span: CoreSet,
    /// The core's own group is the first.
    pub groups: Vec<LevelGroup>,
    /// How much busier than the own group another one has to be, in percent.
    pub imbalance_pct: u64,
    /// Failures after which threads are moved although their caches are warm.
    pub cache_nice_tries: u32,
    /// Groups below shall not have more threads than cores (`SD_PREFER_SIBLING` of the child).
    pub prefers_siblings: bool,
    /// Its cores have different capacities (`SD_ASYM_CPUCAPACITY`).
    pub is_asymmetric: bool,
    /// Its groups are siblings of one physical core (`SD_SHARE_CPUCAPACITY` of the child).
    pub of_siblings: bool,
    /// Between nodes: with no more threads than this on the destination, two threads more elsewhere are no imbalance
    /// (`sd->imb_numa_nr`, Linux 5.18).
    pub slack: u64,
    /// Fork, exec and wake-up may go between its groups (`SD_BALANCE_FORK`, `SD_WAKE_AFFINE`).
    pub places: bool,
    pub balance: LevelBalance,
}

/// How the balancing of a level of one core goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct LevelBalance {
    /// Times between two passes of an idle core.
    pub interval: Nanos,
    pub interval_min: Nanos,
    pub interval_max: Nanos,
    pub last: Nanos,
    /// Passes in a row that moved nothing although they should have (`nr_balance_failed`).
    pub failed: u32,
}

/// The levels of all cores.
#[derive(Clone, Debug, Default)]
pub(super) struct Domains {
    /// By core index, from the lowest level to the highest.
    levels: Vec<Vec<Level>>,
    /// By group number: a level below failed because threads may not run everywhere (`sgc->imbalance`).
    imbalanced: Vec<bool>,
    /// By core index: the cores of its last-level cache, as the domains have it.
    caches: Vec<CoreSet>,
}

impl Domains {
    /// As the kernel builds them for the cores that are online.
    pub fn build(
        topology: &Topology,
        online: &CoreSet,
        model: &KernelModel,
        after_hotplug: bool,
    ) -> Domains {
        let trees = DomainTrees::build(topology, online, &model.domain_rules(after_hotplug));
        let cores = topology.cores().last().map_or(0, |core| core.id.index() + 1);
        let mut domains = Domains {
            levels: vec![Vec::new(); cores],
            imbalanced: Vec::new(),
            caches: (0..cores).map(|core| CoreSet::of(CoreId(core as u16))).collect(),
        };
        let mut numbers = BTreeMap::new();
        for tree in trees.cores() {
            let levels = levels(tree, topology, model, &mut numbers);
            let shares_cache = |level: &&Level| level.kind <= LevelKind::Cache;
            if let Some(level) = levels.iter().rfind(shares_cache) {
                domains.caches[tree.core.index()] = level.span;
            }
            domains.levels[tree.core.index()] = levels;
        }
        domains.imbalanced = vec![false; numbers.len()];
        domains
    }

    /// The levels of the cores that are online, as a dump of a host has them.
    pub fn trees(&self, online: &CoreSet) -> DomainTrees {
        let group = |group: &LevelGroup| DomainGroup { cores: group.cores, balance: group.balance };
        let domain = |level: &Level| Domain {
            name: level.name.clone(),
            span: level.span,
            groups: level.groups.iter().map(group).collect(),
            flags: None,
            balance: None,
        };
        let tree = |core: CoreId| CoreDomains {
            core,
            root: Some(*online),
            domains: self.levels(core.index()).iter().map(domain).collect(),
        };
        // Fails where a core is there twice, or too high: a set of cores has neither.
        DomainTrees::new(online.iter().map(tree).collect(), CoreSet::EMPTY).unwrap_or_default()
    }

    pub fn levels(&self, core: usize) -> &[Level] {
        &self.levels[core]
    }

    pub fn balance_mut(&mut self, core: usize, level: usize) -> &mut LevelBalance {
        &mut self.levels[core][level].balance
    }

    /// The cores that share the last-level cache of this one.
    pub fn cache(&self, core: usize) -> &CoreSet {
        &self.caches[core]
    }

    pub fn is_imbalanced(&self, group: &LevelGroup) -> bool {
        self.imbalanced[group.number]
    }

    /// Notes that the level above this one may have to move what this one could not.
    pub fn set_imbalanced(&mut self, core: usize, level: usize, imbalanced: bool) {
        if let Some(above) = self.levels[core].get(level + 1) {
            self.imbalanced[above.groups[0].number] = imbalanced;
        }
    }
}

/// The levels of a core. `numbers` has the groups that are known, by level and cores.
fn levels(
    tree: &CoreDomains,
    topology: &Topology,
    model: &KernelModel,
    numbers: &mut BTreeMap<(usize, String), usize>,
) -> Vec<Level> {
    let mut levels: Vec<Level> = Vec::new();
    for domain in &tree.domains {
        let kind = kind(&domain.name);
        let mut number = |cores: &CoreSet| {
            let next = numbers.len();
            *numbers.entry((levels.len(), cores.to_string())).or_insert(next)
        };
        let group = |group: &DomainGroup| LevelGroup {
            cores: group.cores,
            balance: group.balance,
            number: number(&group.cores),
        };
        let groups = domain.groups.iter().map(group).collect();
        let below = levels.last();
        let is_asymmetric = model.levels.asymmetry && is_asymmetric(&domain.span, topology);
        let weight = domain.span.len() as u64;
        let min = Nanos::from_millis(weight);
        levels.push(Level {
            kind,
            name: domain.name.clone(),
            span: domain.span,
            groups,
            imbalance_pct: imbalance_pct(kind, model),
            cache_nice_tries: match kind {
                LevelKind::Siblings => 0,
                LevelKind::Cluster | LevelKind::Cache | LevelKind::Node => 1,
                LevelKind::BetweenNodes => 2,
            },
            // Threads are not spread over cores of different capacities (`sd_init`).
            prefers_siblings: !is_asymmetric
                && below.is_some_and(|below| prefers_siblings(below, topology, model)),
            is_asymmetric,
            of_siblings: below.is_some_and(|below| below.kind == LevelKind::Siblings),
            slack: slack(kind, weight, &levels),
            places: kind < LevelKind::BetweenNodes || is_near(tree.core, &domain.span, topology),
            balance: LevelBalance {
                interval: min,
                interval_min: min,
                interval_max: Nanos(2 * min.0),
                last: Nanos::ZERO,
                failed: 0,
            },
        });
    }
    levels
}

fn kind(name: &str) -> LevelKind {
    match name {
        "SMT" => LevelKind::Siblings,
        "CLS" => LevelKind::Cluster,
        "MC" => LevelKind::Cache,
        "NUMA" => LevelKind::BetweenNodes,
        _ => LevelKind::Node,
    }
}

/// An eighth of the cores of a node, as often as the level has the lowest one between nodes (`build_sched_domains`).
fn slack(kind: LevelKind, weight: u64, below: &[Level]) -> u64 {
    if kind != LevelKind::BetweenNodes {
        return 0;
    }
    let is_below = |level: &&Level| level.kind != LevelKind::BetweenNodes;
    let node = below.iter().rfind(is_below).map_or(1, |level| level.span.len() as u64);
    let lowest = below.iter().find(|level| level.kind == LevelKind::BetweenNodes);
    let times = lowest.map_or(1, |lowest| weight / lowest.span.len().max(1) as u64);
    (node / 8).max(1) * times.max(1)
}

/// `sd_init`.
fn imbalance_pct(kind: LevelKind, model: &KernelModel) -> u64 {
    match kind {
        LevelKind::Siblings => 110,
        LevelKind::Cluster | LevelKind::Cache => 117,
        LevelKind::Node | LevelKind::BetweenNodes => model.levels.imbalance_pct,
    }
}

/// Whether a level has `SD_PREFER_SIBLING`. Siblings, clusters and nodes have it, and a cache that spans its node: it inherits the flag of
/// the node's level, which is left out then.
fn prefers_siblings(level: &Level, topology: &Topology, model: &KernelModel) -> bool {
    let spans_node = || {
        let first = level.span.first().map(|core| node_of(core, topology));
        let of_node = topology.cores().iter().filter(|core| Some(core.node) == first);
        of_node.map(|core| core.id).collect::<CoreSet>().is_subset(&level.span)
    };
    match level.kind {
        LevelKind::Siblings | LevelKind::Cluster | LevelKind::Node => true,
        LevelKind::Cache => model.levels.caches_prefer_siblings || spans_node(),
        LevelKind::BetweenNodes => false,
    }
}

/// Whether the cores of a span differ in capacity (`asym_cpu_capacity_classify`).
fn is_asymmetric(span: &CoreSet, topology: &Topology) -> bool {
    let first = span.first().map(|core| topology.capacity(core));
    span.iter().any(|core| Some(topology.capacity(core)) != first)
}

/// Whether no node of the span is too far from the core's.
fn is_near(core: CoreId, span: &CoreSet, topology: &Topology) -> bool {
    let Some(distances) = topology.distances() else { return true };
    let own = node_of(core, topology);
    let is_far = |other| distances.between(own, node_of(other, topology)) > RECLAIM_DISTANCE;
    !span.iter().any(is_far)
}

fn node_of(core: CoreId, topology: &Topology) -> u16 {
    topology.position(core).map_or(0, |at| topology.cores()[at].node)
}
