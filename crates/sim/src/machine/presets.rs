//! The machines of the papers, as far as they are published.

use quell_model::{Bytes, BytesPerSec, Topology, TopologyError};

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
}

/// Broadwell E5-2699 v4: 2.2 GHz nominal, 3.6 with one core, 2.8 with all.
const BROADWELL: [Turbo; 4] = [
    Turbo { active: 2, permille: 1_636 },
    Turbo { active: 8, permille: 1_454 },
    Turbo { active: 16, permille: 1_318 },
    Turbo { active: 22, permille: 1_272 },
];

/// The machines that there are.
pub const PRESETS: [Preset; 3] = [
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
    },
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
        Topology::regular(self.nodes, self.physical_per_node, self.smt)
    }

    /// What they share.
    pub fn machine(&self) -> Machine {
        Machine {
            smt: self.smt > 1,
            memory: Some(Memory { capacity: BytesPerSec(self.memory_mb * 1_000_000) }),
            cache: Some(Bytes(self.cache_kb << 10)),
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
