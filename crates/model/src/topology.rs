//! The shape of a host: which cores share a physical core, a last-level cache, a node, and how far nodes are apart.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{CORES_MAX, CoreId, CoreSet, NodeDistances};

/// One core and what it shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Core {
    /// The kernel's number.
    pub id: CoreId,
    /// The physical core, unique over the host: cores that share it are siblings.
    pub physical: u16,
    /// The last-level-cache domain, unique over the host.
    pub llc: u16,
    /// The NUMA node.
    pub node: u16,
}

/// Why a list of cores is not a topology.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// No core was given.
    #[error("the host shows no core")]
    Empty,
    /// The same core number was given twice.
    #[error("core {0} is listed twice")]
    Duplicate(CoreId),
    /// A core number is past what Quell can hold.
    #[error("core {0} is past the highest core number that Quell can manage ({max})", max = CORES_MAX - 1)]
    TooHigh(CoreId),
    /// The distances lack a node that has cores.
    #[error("core {core} is on node {node}, and there are distances of {nodes} nodes")]
    NoDistances {
        /// A core of it.
        core: CoreId,
        /// The node.
        node: u16,
        /// Nodes that have distances.
        nodes: usize,
    },
    /// A list with one entry for each core has another length.
    #[error(
        "there are {entries} {what} for {cores} cores; give one for each core, in the order of their numbers"
    )]
    NotOneEach {
        /// What is listed.
        what: &'static str,
        /// Entries of the list.
        entries: usize,
        /// Cores of the host.
        cores: usize,
    },
    /// A capacity is out of range.
    #[error("core {core} has capacity {capacity}; capacities are between 1 and {max}", max = Topology::FULL_CAPACITY)]
    Capacity {
        /// The core.
        core: CoreId,
        /// Its capacity.
        capacity: u16,
    },
}

/// The cores of a host in ascending order. Core numbers may have holes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    cores: Vec<Core>,
    siblings: Vec<CoreSet>,
    /// Position in `cores` by core number; `u16::MAX` for a hole.
    position: Vec<u16>,
    distances: Option<NodeDistances>,
    /// By position; empty: every physical core is a cluster of its own.
    clusters: Vec<u16>,
    /// By position; empty: all are [`Topology::FULL_CAPACITY`].
    capacities: Vec<u16>,
}

/// As it is written in binary formats, which lack clusters and capacities: no policy goes by them.
#[derive(Serialize, Deserialize)]
struct Parts {
    cores: Vec<Core>,
    distances: Option<NodeDistances>,
}

/// As it is written in formats for people. A topology of cores alone is the list of them, as it always was.
#[derive(Serialize, Deserialize)]
struct NamedParts {
    cores: Vec<Core>,
    distances: Option<NodeDistances>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    clusters: Vec<u16>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    capacities: Vec<u16>,
}

/// See [`NamedParts`].
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Cores(Vec<Core>),
    Parts(NamedParts),
}

impl Topology {
    /// The capacity of the fastest cores (`SCHED_CAPACITY_SCALE`).
    pub const FULL_CAPACITY: u16 = 1_024;

    /// Builds the topology from its cores, in any order.
    ///
    /// # Errors
    /// When the list is empty, repeats a core or has one at or above [`CORES_MAX`].
    pub fn new(mut cores: Vec<Core>) -> Result<Topology, TopologyError> {
        cores.sort_by_key(|core| core.id);
        let last = cores.last().ok_or(TopologyError::Empty)?.id;
        if last.index() >= CORES_MAX {
            return Err(TopologyError::TooHigh(last));
        }
        let mut position = vec![u16::MAX; last.index() + 1];
        for (at, core) in cores.iter().enumerate() {
            if position[core.id.index()] != u16::MAX {
                return Err(TopologyError::Duplicate(core.id));
            }
            position[core.id.index()] = at as u16;
        }
        let siblings = cores
            .iter()
            .map(|core| {
                let shares = |other: &&Core| other.physical == core.physical && other.id != core.id;
                cores.iter().filter(shares).map(|other| other.id).collect()
            })
            .collect();
        Ok(Topology {
            cores,
            siblings,
            position,
            distances: None,
            clusters: Vec::new(),
            capacities: Vec::new(),
        })
    }

    /// The same with the distances between its nodes.
    ///
    /// # Errors
    /// When a core's node has none.
    pub fn with_distances(self, distances: NodeDistances) -> Result<Topology, TopologyError> {
        let nodes = distances.nodes();
        match self.cores.iter().find(|core| usize::from(core.node) >= nodes) {
            Some(core) => Err(TopologyError::NoDistances { core: core.id, node: core.node, nodes }),
            None => Ok(Topology { distances: Some(distances), ..self }),
        }
    }

    /// How far its nodes are from each other, where that is known.
    pub fn distances(&self) -> Option<&NodeDistances> {
        self.distances.as_ref()
    }

    /// The same with cores in clusters, by position: those of a cluster share a cache below the last-level one
    /// (`cpu_clustergroup_mask`). Clusters are numbered over the host.
    ///
    /// # Errors
    /// When there is not one for each core.
    pub fn with_clusters(self, clusters: Vec<u16>) -> Result<Topology, TopologyError> {
        self.one_each("clusters", clusters.len())?;
        Ok(Topology { clusters, ..self })
    }

    /// The same with cores of these capacities, by position (`arch_scale_cpu_capacity`).
    ///
    /// # Errors
    /// When there is not one for each core, or one is 0 or above [`Topology::FULL_CAPACITY`].
    pub fn with_capacities(self, capacities: Vec<u16>) -> Result<Topology, TopologyError> {
        self.one_each("capacities", capacities.len())?;
        let is_wrong = |capacity: u16| !(1..=Topology::FULL_CAPACITY).contains(&capacity);
        let both = || self.cores.iter().zip(&capacities);
        match both().find(|(_, capacity)| is_wrong(**capacity)) {
            Some((core, capacity)) => {
                Err(TopologyError::Capacity { core: core.id, capacity: *capacity })
            }
            None => Ok(Topology { capacities, ..self }),
        }
    }

    fn one_each(&self, what: &'static str, entries: usize) -> Result<(), TopologyError> {
        let cores = self.cores.len();
        if entries == cores {
            return Ok(());
        }
        Err(TopologyError::NotOneEach { what, entries, cores })
    }

    /// The cluster of each core, by position, where that is known.
    pub fn clusters(&self) -> Option<&[u16]> {
        Some(self.clusters.as_slice()).filter(|clusters| !clusters.is_empty())
    }

    /// The capacity of a core; the full one where nothing else is known.
    pub fn capacity(&self, core: CoreId) -> u16 {
        let known = self.position(core).and_then(|at| self.capacities.get(at));
        known.copied().unwrap_or(Topology::FULL_CAPACITY)
    }

    /// A regular host: `nodes` × `physical_per_node` physical cores with `smt` siblings each, one
    /// last-level cache a node. Siblings are numbered apart, as Linux does on Intel servers: the first
    /// siblings of all physical cores come before the second ones.
    ///
    /// # Errors
    /// As [`Topology::new`].
    pub fn regular(
        nodes: u16,
        physical_per_node: u16,
        smt: u16,
    ) -> Result<Topology, TopologyError> {
        let physical = nodes * physical_per_node;
        let cores = (0..smt).flat_map(|lane| {
            (0..physical).map(move |at| Core {
                id: CoreId(lane * physical + at),
                physical: at,
                llc: at / physical_per_node,
                node: at / physical_per_node,
            })
        });
        Topology::new(cores.collect())
    }

    /// The cores, ascending by number.
    pub fn cores(&self) -> &[Core] {
        &self.cores
    }

    /// The number of cores.
    pub fn len(&self) -> usize {
        self.cores.len()
    }

    /// Never true: a topology has at least one core.
    pub fn is_empty(&self) -> bool {
        self.cores.is_empty()
    }

    /// All cores as a set.
    pub fn all(&self) -> CoreSet {
        self.cores.iter().map(|core| core.id).collect()
    }

    /// Where a core stands in [`Topology::cores`] and in every per-core table of a Snapshot or Plan.
    #[inline]
    pub fn position(&self, core: CoreId) -> Option<usize> {
        match self.position.get(core.index()) {
            Some(&at) if at != u16::MAX => Some(at as usize),
            _ => None,
        }
    }

    /// The other cores on the same physical core.
    pub fn siblings(&self, core: CoreId) -> CoreSet {
        self.position(core).map_or(CoreSet::EMPTY, |at| self.siblings[at])
    }

    /// The cores that Quell manages unless it is told which: all but the lowest-numbered physical core.
    /// Its siblings stay with the rest of the host too, since that would disturb them.
    pub fn default_managed(&self) -> CoreSet {
        let Some(first) = self.cores.first() else { return CoreSet::EMPTY };
        self.all().difference(&self.siblings(first.id).union(&CoreSet::of(first.id)))
    }

    /// Whether any physical core has more than one core.
    pub fn has_siblings(&self) -> bool {
        self.siblings.iter().any(|set| !set.is_empty())
    }
}

impl Serialize for Topology {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Topology { cores, distances, clusters, capacities, .. } = self.clone();
        if !serializer.is_human_readable() {
            return Parts { cores, distances }.serialize(serializer);
        }
        if distances.is_none() && clusters.is_empty() && capacities.is_empty() {
            return cores.serialize(serializer);
        }
        NamedParts { cores, distances, clusters, capacities }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Topology {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Topology, D::Error> {
        let (clusters, capacities) = (Vec::new(), Vec::new());
        let parts = match deserializer.is_human_readable() {
            true => match Written::deserialize(deserializer)? {
                Written::Cores(cores) => {
                    NamedParts { cores, distances: None, clusters, capacities }
                }
                Written::Parts(parts) => parts,
            },
            false => {
                let Parts { cores, distances } = Parts::deserialize(deserializer)?;
                NamedParts { cores, distances, clusters, capacities }
            }
        };
        parts.topology().map_err(D::Error::custom)
    }
}

impl NamedParts {
    fn topology(self) -> Result<Topology, TopologyError> {
        let NamedParts { cores, distances, clusters, capacities } = self;
        let mut topology = Topology::new(cores)?;
        if let Some(distances) = distances {
            topology = topology.with_distances(distances)?;
        }
        if !clusters.is_empty() {
            topology = topology.with_clusters(clusters)?;
        }
        if !capacities.is_empty() {
            topology = topology.with_capacities(capacities)?;
        }
        Ok(topology)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_share_a_physical_core() {
        let host = Topology::regular(2, 2, 2).unwrap();
        assert_eq!(host.len(), 8);
        assert_eq!(host.siblings(CoreId(1)), CoreSet::of(CoreId(5)));
        assert_eq!(host.cores()[2].node, 1);
    }

    #[test]
    fn the_lowest_physical_core_is_not_managed() {
        let managed = |nodes, physical, smt| {
            Topology::regular(nodes, physical, smt).unwrap().default_managed().to_string()
        };
        assert_eq!(managed(1, 2, 1), "1");
        assert_eq!(managed(1, 4, 2), "1-3,5-7");
        assert_eq!(managed(1, 1, 2), "");
    }

    #[test]
    fn core_numbers_may_have_holes() {
        let core = |id| Core { id: CoreId(id), physical: id, llc: 0, node: 0 };
        let host = Topology::new(vec![core(7), core(2)]).unwrap();
        assert_eq!((host.position(CoreId(2)), host.position(CoreId(7))), (Some(0), Some(1)));
        assert_eq!(host.position(CoreId(3)), None);
        assert_eq!(Topology::new(vec![core(1), core(1)]), Err(TopologyError::Duplicate(CoreId(1))));
    }

    #[test]
    fn what_was_written_before_there_were_distances_is_read_and_written_as_it_was() {
        let old =
            r#"[{"id":0,"physical":0,"llc":0,"node":0},{"id":1,"physical":1,"llc":1,"node":1}]"#;
        let host: Topology = serde_json::from_str(old).unwrap();
        assert_eq!(host, Topology::regular(2, 1, 1).unwrap());
        assert_eq!(serde_json::to_string(&host).unwrap(), old);
        let distant = host.with_distances(NodeDistances::uniform(2, 21).unwrap()).unwrap();
        let text = serde_json::to_string(&distant).unwrap();
        assert!(text.contains("[[10,21],[21,10]]"), "{text}");
        assert_eq!(serde_json::from_str::<Topology>(&text).unwrap(), distant);
    }

    #[test]
    fn node_without_distances_is_named() {
        let host = Topology::regular(2, 1, 1).unwrap();
        let error = host.with_distances(NodeDistances::uniform(1, 20).unwrap());
        assert_eq!(error, Err(TopologyError::NoDistances { core: CoreId(1), node: 1, nodes: 1 }));
    }

    #[test]
    fn clusters_and_capacities_are_one_for_each_core() {
        let host = || Topology::regular(1, 2, 1).unwrap();
        assert_eq!((host().clusters(), host().capacity(CoreId(1))), (None, 1_024));
        let both = host().with_clusters(vec![3, 3]).unwrap().with_capacities(vec![1_024, 512]);
        let both = both.unwrap();
        assert_eq!((both.clusters(), both.capacity(CoreId(1))), (Some(&[3, 3][..]), 512));
        let text = serde_json::to_string(&both).unwrap();
        assert_eq!(serde_json::from_str::<Topology>(&text).unwrap(), both, "{text}");
        let short = host().with_clusters(vec![0]).unwrap_err();
        assert_eq!(short, TopologyError::NotOneEach { what: "clusters", entries: 1, cores: 2 });
        let core = CoreId(0);
        for capacity in [0, 1_025] {
            let refused = host().with_capacities(vec![capacity, 1]).unwrap_err();
            assert_eq!(refused, TopologyError::Capacity { core, capacity });
        }
        let hostile = text.replace("512", "4096");
        assert!(serde_json::from_str::<Topology>(&hostile).is_err());
    }
}
