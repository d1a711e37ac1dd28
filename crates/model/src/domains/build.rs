//! Builds scheduling domains as kernels do (kernel/sched/topology.c): what balances with what, without a kernel.
//!
//! Each core has a domain for each level: its siblings (`SMT`), its cluster (`CLS`), its last-level cache (`MC`), its node (`PKG`), then one for each
//! distance between nodes (`NUMA`). A level that spans no more than the one below it is left out. The groups of a domain
//! are spans of the level below. Between nodes these overlap, and there kernels differ: [`DomainRules`].
//!
//! Not modelled: packages of several nodes, the NUMA levels of one group that
//! kernels before 5.10 keep, and that in kernels before 4.13 all cores share the masks of the one that was built first, which
//! differ where nodes are more than two hops apart.

use crate::{CoreDomains, CoreId, CoreSet, Domain, DomainGroup, DomainTrees, Topology};

/// What kernels do differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainRules {
    /// Where the walk over the cores of a domain between nodes begins that makes its groups.
    pub walk: GroupWalk,
    /// A group stays within its domain, also where nodes are more than two hops apart (`find_descended_sibling`, Linux 5.13).
    pub stays_within: bool,
    /// Levels between nodes are those of node 0's distances alone (before Linux 5.12).
    pub hops_of_node_0: bool,
    /// There are levels between nodes. Kernels of 3.19 to 4.8 lost them once a core had been offline ("Missing Scheduling
    /// Domains", section 3.4 of "A Decade of Wasted Cores").
    pub between_nodes: bool,
    /// Cores that share a cache below the last-level one are a level of their own (`CONFIG_SCHED_CLUSTER`, Linux 5.16).
    pub clusters: bool,
    /// The name of the level of nodes: `DIE` before Linux 6.7.
    pub node_level: &'static str,
}

/// See [`DomainRules::walk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupWalk {
    /// At the core whose domain it is (Linux 4.13).
    FromOwnCore,
    /// At the lowest core of the domain, so that cores of different nodes get the groups of one ("Scheduling Group
    /// Construction", section 3.2 of the paper).
    FromLowestCore,
}

impl DomainRules {
    /// Linux 3.19 to 4.12, while all cores that it began with are online.
    pub const LINUX_4_1: DomainRules = DomainRules {
        walk: GroupWalk::FromLowestCore,
        stays_within: false,
        hops_of_node_0: true,
        between_nodes: true,
        clusters: false,
        node_level: "DIE",
    };
    /// Linux 4.13 to 5.11.
    pub const LINUX_4_13: DomainRules =
        DomainRules { walk: GroupWalk::FromOwnCore, ..DomainRules::LINUX_4_1 };
    /// Linux 5.13 to 6.6, but for clusters, which are from 5.16. What lies between, 5.12, has node 0's distances no longer.
    pub const LINUX_5_13: DomainRules = DomainRules {
        stays_within: true,
        hops_of_node_0: false,
        clusters: true,
        ..DomainRules::LINUX_4_13
    };
    /// Linux 6.7 and later.
    pub const LINUX_6_7: DomainRules = DomainRules { node_level: "PKG", ..DomainRules::LINUX_5_13 };
}

impl DomainTrees {
    /// The trees of the cores of a machine that are online. None is isolated. Nodes of unknown distances are all as far from
    /// each other.
    pub fn build(topology: &Topology, online: &CoreSet, rules: &DomainRules) -> DomainTrees {
        let builder = Builder::new(topology, online, rules);
        let cores = (0..builder.cores.len()).map(|at| builder.tree(at)).collect();
        DomainTrees { cores, isolated: CoreSet::EMPTY }
    }
}

/// A level of all cores.
struct Level {
    name: &'static str,
    /// Its groups may overlap.
    between_nodes: bool,
    /// The span of each core's domain; `None` above the level at which the core reaches all others.
    spans: Vec<Option<CoreSet>>,
}

struct Builder {
    rules: DomainRules,
    /// Those online, in ascending order: `spans` are in this order.
    cores: Vec<CoreId>,
    online: CoreSet,
    /// From the lowest to the highest, those that add nothing too.
    levels: Vec<Level>,
}

impl Builder {
    fn new(topology: &Topology, online: &CoreSet, rules: &DomainRules) -> Builder {
        let cores: Vec<_> =
            topology.cores().iter().filter(|core| online.contains(core.id)).copied().collect();
        let mut builder = Builder {
            rules: *rules,
            cores: cores.iter().map(|core| core.id).collect(),
            online: cores.iter().map(|core| core.id).collect(),
            levels: Vec::new(),
        };
        let mut add = |name, between_nodes, near: &dyn Fn(usize, usize) -> bool| {
            let span = |at| {
                let others = (0..cores.len()).filter(|other| near(at, *other));
                others.map(|other| cores[other].id).collect()
            };
            let below = builder.levels.last();
            let goes_on = |at: usize| {
                below.is_none_or(|below: &Level| {
                    below.spans[at].is_some_and(|span| span != builder.online)
                })
            };
            let spans = (0..cores.len()).map(|at| goes_on(at).then(|| span(at))).collect();
            builder.levels.push(Level { name, between_nodes, spans });
        };
        add("SMT", false, &|a, b| cores[a].physical == cores[b].physical);
        let same_node = |a: usize, b: usize| cores[a].node == cores[b].node;
        // A cache that nodes share (sub-NUMA clusters) ends at the node.
        let same_cache = |a: usize, b: usize| cores[a].llc == cores[b].llc && same_node(a, b);
        if let Some(clusters) = topology.clusters().filter(|_| rules.clusters) {
            // Siblings are in one cluster, that of the first of them.
            let first = |at: usize| {
                let siblings = topology.siblings(cores[at].id).first();
                siblings.filter(|first| *first < cores[at].id).unwrap_or(cores[at].id)
            };
            let cluster = |at: usize| topology.position(first(at)).map(|at| clusters[at]);
            // A cluster ends at the last-level cache.
            let shares = |a, b| cluster(a) == cluster(b) && same_cache(a, b);
            add("CLS", false, &shares);
        }
        add("MC", false, &same_cache);
        add(rules.node_level, false, &same_node);
        let distance = |a: usize, b: usize| match topology.distances() {
            Some(distances) => distances.between(cores[a].node, cores[b].node),
            None => u32::from(cores[a].node != cores[b].node),
        };
        let hops = match topology.distances() {
            Some(distances) if rules.hops_of_node_0 => distances.hops_of(0),
            Some(distances) => distances.hops(),
            None => vec![1],
        };
        for hop in hops.into_iter().filter(|_| rules.between_nodes) {
            add("NUMA", true, &|a, b| distance(a, b) <= hop);
        }
        builder
    }

    fn tree(&self, at: usize) -> CoreDomains {
        let mut below = CoreSet::of(self.cores[at]);
        let mut domains = Vec::new();
        for (nth, level) in self.levels.iter().enumerate() {
            let Some(span) = level.spans[at] else { break };
            if span != below {
                let groups = match level.between_nodes {
                    true => self.overlapping_groups(nth, at, span),
                    false => self.groups(nth, at, span),
                };
                let name = level.name.to_owned();
                domains.push(Domain { name, span, groups, flags: None, balance: None });
            }
            below = span;
        }
        CoreDomains { core: self.cores[at], root: Some(self.online), domains }
    }

    /// The span of a core one level below; the core alone below the lowest.
    fn below(&self, nth: usize, at: usize) -> Option<CoreSet> {
        match nth {
            0 => Some(CoreSet::of(self.cores[at])),
            _ => self.levels[nth - 1].spans[at],
        }
    }

    /// Groups that do not overlap: the spans below, the core's own first (`build_sched_groups`).
    fn groups(&self, nth: usize, at: usize, span: CoreSet) -> Vec<DomainGroup> {
        let is_in = |other: &usize| span.contains(self.cores[*other]);
        let mut members = (0..self.cores.len()).filter(is_in);
        // All cores of the span share one ring: the first of them made it, since Linux 4.13 each makes it anew.
        let first = match self.rules.walk {
            GroupWalk::FromOwnCore => members.next_back(),
            GroupWalk::FromLowestCore => members.next(),
        };
        let first = first.unwrap_or(at);
        let mut covered = CoreSet::EMPTY;
        let mut groups = Vec::new();
        for other in (first..self.cores.len()).chain(0..first).filter(is_in) {
            let id = self.cores[other];
            if covered.contains(id) {
                continue;
            }
            let cores = self.below(nth, other).unwrap_or(CoreSet::of(id));
            covered = covered.union(&cores);
            groups.push(DomainGroup { cores, balance: cores });
        }
        let has_own = |group: &DomainGroup| group.cores.contains(self.cores[at]);
        let own = groups.iter().position(has_own).unwrap_or(0);
        groups.rotate_left(own);
        groups
    }

    /// Groups between nodes (`build_overlap_sched_groups`).
    fn overlapping_groups(&self, nth: usize, at: usize, span: CoreSet) -> Vec<DomainGroup> {
        let first = match self.rules.walk {
            GroupWalk::FromOwnCore => at,
            GroupWalk::FromLowestCore => 0,
        };
        let mut covered = CoreSet::EMPTY;
        let mut groups = Vec::new();
        for other in (first..self.cores.len()).chain(0..first) {
            let id = self.cores[other];
            // Where nodes see each other differently, a tree may end below this level: others have it in their groups.
            let is_there = self.levels[nth].spans[other].is_some();
            if !span.contains(id) || covered.contains(id) || !is_there {
                continue;
            }
            let level = match self.rules.stays_within {
                true => self.within(nth, other, span),
                false => nth,
            };
            let cores = self.below(level, other).unwrap_or(CoreSet::of(id));
            covered = covered.union(&cores);
            groups.push(DomainGroup { cores, balance: self.balance_mask(level, cores, span) });
        }
        let own = self.own_group(&groups, self.cores[at]);
        groups.rotate_left(own);
        groups
    }

    /// The level whose domain of this core has a span below it that is within another domain (`find_descended_sibling`).
    fn within(&self, nth: usize, at: usize, span: CoreSet) -> usize {
        let leaves = |level: usize| self.below(level, at).is_some_and(|it| !it.is_subset(&span));
        if nth == 0 || !leaves(nth) {
            return nth;
        }
        let mut level = nth;
        while level > 0 && leaves(level) {
            level -= 1;
        }
        // Levels that add nothing have no groups.
        while level > 0 && self.below(level, at) == self.levels[level].spans[at] {
            level -= 1;
        }
        level
    }

    /// Those of a group's cores that balance for it: whose own group at that level it is (`build_balance_mask`). Before Linux
    /// 4.13 all that the domain has.
    fn balance_mask(&self, nth: usize, cores: CoreSet, span: CoreSet) -> CoreSet {
        if self.rules.walk == GroupWalk::FromLowestCore {
            return cores.intersection(&span);
        }
        let own = |at: &usize| {
            let is_there = nth > 0 && self.levels[nth].spans[*at].is_some();
            is_there && cores.contains(self.cores[*at]) && self.below(nth, *at) == Some(cores)
        };
        (0..self.cores.len()).filter(own).map(|at| self.cores[at]).collect()
    }

    /// Which group a core takes for its own: the first that has it, but one for which it is the first to balance goes before.
    /// In a walk from the core itself that is the first one.
    fn own_group(&self, groups: &[DomainGroup], core: CoreId) -> usize {
        let leads = |group: &DomainGroup| group.balance.first() == Some(core);
        let has = |group: &DomainGroup| group.cores.contains(core);
        match self.rules.walk {
            GroupWalk::FromOwnCore => 0,
            GroupWalk::FromLowestCore => {
                let led = groups.iter().rposition(leads);
                led.or_else(|| groups.iter().position(has)).unwrap_or(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Core, NodeDistances};

    const KERNELS: [DomainRules; 4] = [
        DomainRules::LINUX_4_1,
        DomainRules::LINUX_4_13,
        DomainRules::LINUX_5_13,
        DomainRules::LINUX_6_7,
    ];

    #[derive(Clone, Debug)]
    struct Machine {
        topology: Topology,
        online: CoreSet,
    }

    impl Machine {
        fn build(&self, rules: &DomainRules) -> DomainTrees {
            DomainTrees::build(&self.topology, &self.online, rules)
        }
    }

    fn cores(nodes: usize, caches: usize, physical: usize, siblings: usize) -> Vec<Core> {
        let count = nodes * caches * physical * siblings;
        let core = |id: usize| {
            let (physical, per_cache) = (id / siblings, physical * siblings);
            Core {
                id: CoreId(id as u16),
                physical: physical as u16,
                llc: (id / per_cache) as u16,
                node: (id / per_cache / caches) as u16,
            }
        };
        (0..count).map(core).collect()
    }

    /// Any symmetric distances and clusters, some cores off line.
    fn machines() -> impl Strategy<Value = Machine> {
        (1usize..7, 1usize..3, 1usize..3, 1usize..3).prop_flat_map(
            |(nodes, caches, physical, siblings)| {
                let distance = prop_oneof![Just(12), Just(16), Just(22), Just(32)];
                let count = nodes * caches * physical * siblings;
                let distances = proptest::collection::vec(distance, nodes * nodes);
                let online = proptest::collection::vec(prop::bool::weighted(0.9), count);
                let clusters = proptest::option::of(proptest::collection::vec(0u16..4, count));
                (distances, online, clusters).prop_map(move |(numbers, online, clusters)| {
                    let distance = |a: usize, b: usize| match a == b {
                        true => 10,
                        false => numbers[a.min(b) * nodes + a.max(b)],
                    };
                    let row = |a| (0..nodes).map(|b| distance(a, b)).collect();
                    let rows: Vec<Vec<u32>> = (0..nodes).map(row).collect();
                    let topology = Topology::new(cores(nodes, caches, physical, siblings)).unwrap();
                    let online =
                        topology.all().iter().filter(|core| online[core.index()]).collect();
                    let distances = NodeDistances::new(&rows).unwrap();
                    let mut topology = topology.with_distances(distances).unwrap();
                    if let Some(clusters) = clusters {
                        topology = topology.with_clusters(clusters).unwrap();
                    }
                    Machine { topology, online }
                })
            },
        )
    }

    proptest! {
        #[test]
        fn each_core_online_reaches_all_others_level_by_level(machine in machines(), at in 0usize..4) {
            let rules = KERNELS[at];
            let trees = machine.build(&rules);
            prop_assert_eq!(trees.all(), machine.online);
            for tree in trees.cores() {
                prop_assert!(rules.hops_of_node_0 || tree.reach() == machine.online);
                let mut below = CoreSet::of(tree.core);
                for domain in &tree.domains {
                    prop_assert!(below.is_subset(&domain.span) && below != domain.span);
                    below = domain.span;
                }
            }
        }

        #[test]
        fn groups_are_within_their_domain_and_cover_it_with_the_own_one_first(machine in machines()) {
            for tree in machine.build(&DomainRules::LINUX_6_7).cores() {
                let mut below = CoreSet::of(tree.core);
                for domain in &tree.domains {
                    prop_assert!(domain.groups.iter().all(|group| group.cores.is_subset(&domain.span)));
                    let balances = |group: &DomainGroup| !group.balance.is_empty() && group.balance.is_subset(&group.cores);
                    prop_assert!(domain.groups.iter().all(balances), "{:?}", domain);
                    let all = domain.groups.iter().fold(CoreSet::EMPTY, |sum, group| sum.union(&group.cores));
                    prop_assert_eq!(all, domain.span);
                    prop_assert_eq!(domain.groups[0].cores, below);
                    prop_assert!(domain.groups[0].balance.contains(tree.core));
                    below = domain.span;
                }
            }
        }
    }

    #[test]
    fn siblings_that_are_numbered_apart_share_one_ring_of_groups() {
        let topology = Topology::regular(1, 4, 2).unwrap();
        let online = topology.all().difference(&CoreSet::of(CoreId(4)));
        let groups = |rules, core: usize| {
            let trees = DomainTrees::build(&topology, &online, rules);
            let of_core = trees.cores().iter().find(|tree| tree.core.index() == core);
            let groups = &of_core.unwrap().domains.last().unwrap().groups;
            groups.iter().map(|group| group.cores.to_string()).collect::<Vec<String>>()
        };
        // The walk of core 7, the last one: 3,7, 0, 1,5, 2,6.
        assert_eq!(groups(&DomainRules::LINUX_6_7, 2), ["2,6", "3,7", "0", "1,5"]);
        assert_eq!(groups(&DomainRules::LINUX_6_7, 1), ["1,5", "2,6", "3,7", "0"]);
        assert_eq!(groups(&DomainRules::LINUX_4_1, 1), ["1,5", "2,6", "3,7", "0"]);
    }

    #[test]
    fn levels_that_add_nothing_are_left_out() {
        let machine = |cores| {
            let topology = Topology::new(cores).unwrap();
            let online = topology.all();
            Machine { topology, online }
        };
        let levels = |machine: &Machine, rules| {
            let trees = machine.build(rules);
            trees.cores()[0].domains.iter().map(|it| it.name.clone()).collect::<Vec<String>>()
        };
        let two_caches = machine(cores(2, 2, 1, 2));
        assert_eq!(levels(&two_caches, &DomainRules::LINUX_6_7), ["SMT", "PKG", "NUMA"]);
        assert_eq!(levels(&two_caches, &DomainRules::LINUX_4_1), ["SMT", "DIE", "NUMA"]);
        assert_eq!(levels(&machine(cores(2, 1, 2, 1)), &DomainRules::LINUX_6_7), ["MC", "NUMA"]);
        assert_eq!(levels(&machine(cores(1, 1, 2, 1)), &DomainRules::LINUX_6_7), ["MC"]);
        assert!(levels(&machine(cores(1, 1, 1, 1)), &DomainRules::LINUX_6_7).is_empty());
        let lost = DomainRules { between_nodes: false, ..DomainRules::LINUX_4_1 };
        assert_eq!(levels(&machine(cores(2, 1, 2, 1)), &lost), ["MC"]);
        let clustered = |clusters: [u16; 4]| {
            let topology = Topology::new(cores(1, 1, 4, 1)).unwrap();
            let topology = topology.with_clusters(clusters.to_vec()).unwrap();
            let online = topology.all();
            Machine { topology, online }
        };
        let pairs = clustered([0, 0, 1, 1]);
        assert_eq!(levels(&pairs, &DomainRules::LINUX_6_7), ["CLS", "MC"]);
        assert_eq!(levels(&pairs, &DomainRules::LINUX_4_13), ["MC"]);
        assert_eq!(levels(&clustered([0, 1, 2, 3]), &DomainRules::LINUX_6_7), ["MC"]);
        assert_eq!(levels(&clustered([0; 4]), &DomainRules::LINUX_6_7), ["CLS"]);
    }
}
