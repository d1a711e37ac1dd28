//! Builds scheduling domains as kernels do (kernel/sched/topology.c), rightly and with the paper's bugs.

use quell_model::{CoreDomains, CoreId, CoreSet, Domain, DomainGroup, DomainTrees};

/// How groups and levels are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// From each core's view (Linux 4.13, and 5.13 for distant nodes).
    Rightly,
    /// Groups between nodes from the view of the lowest core (section 3.2 of the paper).
    FromCoreZero,
    /// Without the levels between nodes (section 3.4).
    WithoutNodes,
}

/// A machine: its nodes' distances, and what is in each of them.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Symmetric, with the smallest on the diagonal.
    pub distances: Vec<Vec<u32>>,
    /// Physical cores of a node.
    pub physical: usize,
    /// Siblings of a physical core, numbered one after the other.
    pub siblings: usize,
}

/// Figure 4 of the paper: nodes one hop apart.
const ADJACENT: [&[usize]; 8] = [
    &[1, 2, 4, 6],
    &[0, 3, 5, 7],
    &[0, 3, 4, 5, 6],
    &[1, 2, 4, 5, 7],
    &[0, 2, 3, 5, 6],
    &[1, 2, 3, 4, 7],
    &[0, 2, 4, 7],
    &[1, 3, 5, 6],
];

impl Machine {
    /// The eight nodes of the paper's machine.
    pub fn of_the_paper(physical: usize, siblings: usize) -> Machine {
        let distance = |a: usize, b: usize| match () {
            () if a == b => 10,
            () if ADJACENT[a].contains(&b) => 16,
            () => 22,
        };
        let distances = (0..8).map(|a| (0..8).map(|b| distance(a, b)).collect()).collect();
        Machine { distances, physical, siblings }
    }

    fn cores(&self) -> usize {
        self.distances.len() * self.physical * self.siblings
    }

    /// The cores of some nodes.
    pub fn of_nodes(&self, nodes: impl IntoIterator<Item = usize>) -> CoreSet {
        let size = self.physical * self.siblings;
        let cores = nodes.into_iter().flat_map(|node| node * size..(node + 1) * size);
        cores.map(|core| CoreId(core as u16)).collect()
    }

    fn node(&self, core: usize) -> usize {
        core / (self.physical * self.siblings)
    }

    /// The spans of a core from the lowest level to the highest, all that the kernel begins with.
    fn spans(&self, core: usize, how: How) -> Vec<(&'static str, CoreSet)> {
        let (node, first) = (self.node(core), core / self.siblings * self.siblings);
        let siblings = (first..first + self.siblings).map(|core| CoreId(core as u16)).collect();
        let mut spans = vec![("SMT", siblings), ("MC", self.of_nodes([node]))];
        if how == How::WithoutNodes {
            return spans;
        }
        let mut hops: Vec<u32> = self.distances.iter().flatten().copied().collect();
        hops.sort_unstable();
        hops.dedup();
        for hop in hops {
            let near = |other: &usize| self.distances[node][*other] <= hop;
            spans.push(("NUMA", self.of_nodes((0..self.distances.len()).filter(near))));
        }
        spans
    }

    /// The domains of all cores.
    pub fn trees(&self, how: How) -> DomainTrees {
        let spans: Vec<_> = (0..self.cores()).map(|core| self.spans(core, how)).collect();
        let root = Some(self.of_nodes(0..self.distances.len()));
        let cores = (0..self.cores()).map(|core| {
            let mut below = CoreSet::of(CoreId(core as u16));
            let mut domains = Vec::new();
            for (level, &(name, span)) in spans[core].iter().enumerate() {
                // A level that adds nothing is left out.
                if span != below {
                    let from = match how {
                        How::FromCoreZero if name == "NUMA" => 0,
                        _ => core,
                    };
                    let groups = self.groups(&spans, core, from, level);
                    domains.push(Domain {
                        name: name.into(),
                        span,
                        groups,
                        flags: None,
                        balance: None,
                    });
                }
                below = span;
            }
            CoreDomains { core: CoreId(core as u16), root, domains }
        });
        DomainTrees::new(cores.collect(), CoreSet::EMPTY).unwrap()
    }

    /// The groups of a core's domain: a walk over its span that begins at some core, and takes for each core
    /// that no group has yet the highest lower span of that core's which is within the domain.
    fn groups(
        &self,
        spans: &[Vec<(&str, CoreSet)>],
        core: usize,
        from: usize,
        level: usize,
    ) -> Vec<DomainGroup> {
        let span = spans[core][level].1;
        let mut covered = CoreSet::EMPTY;
        let mut groups = Vec::new();
        for other in (from..self.cores()).chain(0..from) {
            let id = CoreId(other as u16);
            if !span.contains(id) || covered.contains(id) {
                continue;
            }
            let lower = spans[other][..level].iter().rev().map(|(_, span)| *span);
            let within = lower.into_iter().find(|lower| lower.is_subset(&span));
            let cores = within.unwrap_or(CoreSet::of(id));
            covered = covered.union(&cores);
            groups.push(DomainGroup { cores, balance: cores });
        }
        let own = groups.iter().position(|group| group.cores.contains(CoreId(core as u16)));
        groups.rotate_left(own.unwrap_or(0));
        groups
    }
}
