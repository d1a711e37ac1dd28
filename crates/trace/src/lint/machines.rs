//! Machines for tests, and the domains that kernels build on them.

use quell_model::{Core, CoreId, CoreSet, DomainRules, DomainTrees, NodeDistances, Topology};

/// A machine: its nodes' distances, and what is in each of them.
#[derive(Clone, Debug)]
pub struct Machine {
    pub distances: NodeDistances,
    /// Physical cores of a node.
    pub physical: usize,
    /// Siblings of a physical core, numbered one after the other.
    pub siblings: usize,
}

/// A kernel that lost the levels between nodes when a core went off line (section 3.4 of the paper).
pub const LOST: DomainRules = DomainRules { between_nodes: false, ..DomainRules::LINUX_4_1 };

impl Machine {
    /// One node.
    pub fn flat(physical: usize, siblings: usize) -> Machine {
        Machine { distances: NodeDistances::uniform(1, 20).unwrap(), physical, siblings }
    }

    /// Nodes whose distances are in a file: a row each, as /sys/devices/system/node/node*/distance shows them.
    pub fn of_file(text: &str, physical: usize, siblings: usize) -> Machine {
        let row = |line: &str| line.split(' ').map(|number| number.parse().unwrap()).collect();
        let rows: Vec<Vec<u32>> = text.lines().map(row).collect();
        Machine { distances: NodeDistances::new(&rows).unwrap(), physical, siblings }
    }

    /// The eight nodes of the paper's machine (figure 4).
    pub fn of_the_paper(physical: usize, siblings: usize) -> Machine {
        let text = include_str!("../../../../tests/vm/paper.distances");
        Machine::of_file(text, physical, siblings)
    }

    /// The cores of some nodes.
    pub fn of_nodes(&self, nodes: impl IntoIterator<Item = usize>) -> CoreSet {
        let size = self.physical * self.siblings;
        let cores = nodes.into_iter().flat_map(|node| node * size..(node + 1) * size);
        cores.map(|core| CoreId(core as u16)).collect()
    }

    pub fn topology(&self) -> Topology {
        let size = self.physical * self.siblings;
        let cores = (0..self.distances.nodes() * size).map(|core| {
            let node = (core / size) as u16;
            let physical = (core / self.siblings) as u16;
            Core { id: CoreId(core as u16), physical, llc: node, node }
        });
        let topology = Topology::new(cores.collect()).unwrap();
        topology.with_distances(self.distances.clone()).unwrap()
    }

    /// The domains of all cores.
    pub fn trees(&self, rules: &DomainRules) -> DomainTrees {
        self.trees_without(rules, &CoreSet::EMPTY)
    }

    /// The same while some cores are off line.
    pub fn trees_without(&self, rules: &DomainRules, offline: &CoreSet) -> DomainTrees {
        let topology = self.topology();
        let online = topology.all().difference(offline);
        DomainTrees::build(&topology, &online, rules)
    }
}
