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
}

/// The cores of a host in ascending order. Core numbers may have holes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    cores: Vec<Core>,
    siblings: Vec<CoreSet>,
    /// Position in `cores` by core number; `u16::MAX` for a hole.
    position: Vec<u16>,
    distances: Option<NodeDistances>,
}

/// As it is written. In formats for people a topology without distances is the list of its cores, as it always was.
#[derive(Serialize, Deserialize)]
struct Parts {
    cores: Vec<Core>,
    distances: Option<NodeDistances>,
}

/// See [`Parts`].
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Cores(Vec<Core>),
    Parts(Parts),
}

impl Topology {
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
        Ok(Topology { cores, siblings, position, distances: None })
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
        if serializer.is_human_readable() && self.distances.is_none() {
            return self.cores.serialize(serializer);
        }
        let parts = Parts { cores: self.cores.clone(), distances: self.distances.clone() };
        parts.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Topology {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Topology, D::Error> {
        let parts = match deserializer.is_human_readable() {
            true => match Written::deserialize(deserializer)? {
                Written::Cores(cores) => Parts { cores, distances: None },
                Written::Parts(parts) => parts,
            },
            false => Parts::deserialize(deserializer)?,
        };
        let topology = Topology::new(parts.cores).map_err(D::Error::custom)?;
        match parts.distances {
            Some(distances) => topology.with_distances(distances).map_err(D::Error::custom),
            None => Ok(topology),
        }
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
}
