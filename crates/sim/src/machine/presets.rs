//! The machines of the papers, as far as they are published.

use quell_model::{Bytes, BytesPerSec, Core, CoreId, NodeDistances, Topology, TopologyError};

use super::{Machine, Memory, Turbo};

/// A machine by name.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The name in scenario files.
    pub name: &'static str,
    /// What it is, and where its figures are from.
    pub about: &'static str,
    nodes: u16,
    physical_per_node: u16,
    smt: u16,
    cache_kb: u64,
    memory_mb: u64,
    turbo: &'static [Turbo],
    /// Which nodes are one hop apart, by node; `None`: siblings are numbered apart, and no distances are known.
    near: Option<&'static [&'static [u16]]>,
}

/// Broadwell E5-2699 v4: 2.2 GHz nominal, 3.6 with one core, 2.8 with all.
const BROADWELL: [Turbo; 4] = [
    Turbo { active: 2, permille: 1_636 },
    Turbo { active: 8, permille: 1_454 },
    Turbo { active: 16, permille: 1_318 },
    Turbo { active: 22, permille: 1_272 },
];

/// The machines that there are.
pub const PRESETS: [Preset; 4] = [
    Preset {
        name: "caladan",
        about: "Caladan (OSDI'20): one socket of 12 Broadwell cores with 24 threads, 30 MB of cache, turbo off; \
                60 GB/s of sequential reads is an estimate",
        nodes: 1,
        physical_per_node: 12,
        smt: 2,
        cache_kb: 30_720,
        memory_mb: 60_000,
        turbo: &[],
        near: None,
    },
    Preset {
        name: "parties",
        about: "PARTIES (ASPLOS'19): one socket of 22 Broadwell cores with 44 threads, 55 MB of cache, about 50 GB/s, \
                turbo on",
        nodes: 1,
        physical_per_node: 22,
        smt: 2,
        cache_kb: 56_320,
        memory_mb: 50_000,
        turbo: &BROADWELL,
        near: None,
    },
    Preset {
        name: "heracles",
        about: "Heracles (ISCA'15): two Haswell sockets, 2.5 MB of cache a core; 18 cores and 68 GB/s a socket are \
                assumed",
        nodes: 2,
        physical_per_node: 18,
        smt: 2,
        cache_kb: 46_080,
        memory_mb: 68_000,
        turbo: &[],
        near: None,
    },
    Preset {
        name: "wasted-cores",
        about: "A Decade of Wasted Cores (EuroSys'16): eight nodes of eight Opteron 6272 cores, in pairs that share units; \
                links of the nodes as far as figure 4 and the text say; memory is not modelled",
        nodes: 8,
        physical_per_node: 4,
        smt: 2,
        cache_kb: 0,
        memory_mb: 0,
        turbo: &[],
        near: Some(&WASTED_CORES),
    },
];

/// Nodes one hop apart on the machine of "A Decade of Wasted Cores". Nodes 0 and 3 are in its text; the others follow from
/// the packages of two nodes and the symmetry of figure 4.
const WASTED_CORES: [&[u16]; 8] = [
    &[1, 2, 4, 6],
    &[0, 3, 5, 7],
    &[0, 3, 4, 5, 6],
    &[1, 2, 4, 5, 7],
    &[0, 2, 3, 5, 6],
    &[1, 2, 3, 4, 7],
    &[0, 2, 4, 7],
    &[1, 3, 5, 6],
];

/// The machine of this name.
pub fn preset(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name)
}

impl Preset {
    /// Nodes, physical cores of each, and cores of each of those.
    pub fn shape(&self) -> (u16, u16, u16) {
        (self.nodes, self.physical_per_node, self.smt)
    }

    /// Its cores.
    ///
    /// # Errors
    /// Never for the presets that there are; the type is that of [`Topology::regular`].
    pub fn topology(&self) -> Result<Topology, TopologyError> {
        let Some(near) = self.near else {
            return Topology::regular(self.nodes, self.physical_per_node, self.smt);
        };
        let per_node = self.physical_per_node * self.smt;
        let core = |id: u16| Core {
            id: CoreId(id),
            physical: id / self.smt,
            llc: id / per_node,
            node: id / per_node,
        };
        let topology = Topology::new((0..self.nodes * per_node).map(core).collect())?;
        let distance = |from: u16, to: u16| match from == to {
            true => 10,
            false if near[usize::from(from)].contains(&to) => 16,
            false => 22,
        };
        let row = |from| (0..self.nodes).map(|to| distance(from, to)).collect();
        let rows: Vec<Vec<u32>> = (0..self.nodes).map(row).collect();
        match NodeDistances::new(&rows) {
            Ok(distances) => topology.with_distances(distances),
            Err(_) => Ok(topology),
        }
    }

    /// What they share.
    pub fn machine(&self) -> Machine {
        Machine {
            smt: self.smt > 1,
            memory: (self.memory_mb > 0)
                .then(|| Memory { capacity: BytesPerSec(self.memory_mb * 1_000_000) }),
            cache: (self.cache_kb > 0).then_some(Bytes(self.cache_kb << 10)),
            turbo: self.turbo.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_can_be_built() {
        for preset in &PRESETS {
            let topology = preset.topology().unwrap();
            assert!(topology.has_siblings(), "{}", preset.name);
            assert!(preset.machine().turbo.is_sorted_by_key(|step| step.active));
        }
    }
}
