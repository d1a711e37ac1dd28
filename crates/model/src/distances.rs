//! How far the nodes of a host are from each other.

use serde::{Deserialize, Serialize};

/// The distance of a node to itself in all tables of firmware (ACPI 6.5, section 5.2.17).
const LOCAL: u32 = 10;

/// Distances between nodes, as firmware lists them (ACPI's SLIT): 10 within a node, more to others, the same both ways.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Vec<u32>>", into = "Vec<Vec<u32>>")]
pub struct NodeDistances {
    nodes: usize,
    /// Row by row.
    between: Vec<u32>,
}

/// Why numbers are no distances between nodes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DistancesError {
    /// There is no node.
    #[error("there are no distances")]
    Empty,
    /// A row has too many numbers or too few.
    #[error("row {row} has {found} distances, and there are {nodes} nodes")]
    NotSquare {
        /// Which, from 0 on.
        row: usize,
        /// Its numbers.
        found: usize,
        /// The rows.
        nodes: usize,
    },
    /// A node is not at 10 from itself, or another one is not further away.
    #[error(
        "node {to} is at {distance} from node {from}: a node is at 10 from itself and at more from others"
    )]
    Local {
        /// One node.
        from: usize,
        /// The other one, or the same.
        to: usize,
        /// The number.
        distance: u32,
    },
    /// It is further there than back.
    #[error(
        "node {to} is at {there} from node {from}, which is at {back} from it: distances are the same both ways"
    )]
    Asymmetric {
        /// One node.
        from: usize,
        /// The other one.
        to: usize,
        /// There.
        there: u32,
        /// And back.
        back: u32,
    },
}

impl NodeDistances {
    /// From a row for each node.
    ///
    /// # Errors
    /// When they are no distances.
    pub fn new(rows: &[Vec<u32>]) -> Result<NodeDistances, DistancesError> {
        let nodes = rows.len();
        if nodes == 0 {
            return Err(DistancesError::Empty);
        }
        let odd = rows.iter().position(|row| row.len() != nodes);
        if let Some(row) = odd {
            return Err(DistancesError::NotSquare { row, found: rows[row].len(), nodes });
        }
        for (from, row) in rows.iter().enumerate() {
            for (to, &there) in row.iter().enumerate() {
                let back = rows[to][from];
                if (from == to) != (there == LOCAL) || there < LOCAL {
                    return Err(DistancesError::Local { from, to, distance: there });
                }
                if there != back {
                    return Err(DistancesError::Asymmetric { from, to, there, back });
                }
            }
        }
        Ok(NodeDistances { nodes, between: rows.concat() })
    }

    /// Nodes that are all as far from each other.
    pub fn uniform(nodes: usize, distance: u32) -> Result<NodeDistances, DistancesError> {
        let row = |from| (0..nodes).map(|to| if from == to { LOCAL } else { distance }).collect();
        NodeDistances::new(&(0..nodes).map(row).collect::<Vec<_>>())
    }

    /// How many nodes there are: they are numbered from 0 on.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// How far one node is from another; `u32::MAX` where there is no such node.
    pub fn between(&self, from: u16, to: u16) -> u32 {
        let (from, to) = (usize::from(from), usize::from(to));
        let known = from < self.nodes && to < self.nodes;
        if known { self.between[from * self.nodes + to] } else { u32::MAX }
    }

    /// The distances to other nodes that there are, each once, the shortest first.
    pub fn hops(&self) -> Vec<u32> {
        hops(&self.between)
    }

    /// The same of one node.
    pub fn hops_of(&self, node: usize) -> Vec<u32> {
        self.between.chunks(self.nodes).nth(node).map_or(Vec::new(), hops)
    }
}

fn hops(distances: &[u32]) -> Vec<u32> {
    let mut hops: Vec<u32> =
        distances.iter().copied().filter(|distance| *distance > LOCAL).collect();
    hops.sort_unstable();
    hops.dedup();
    hops
}

impl TryFrom<Vec<Vec<u32>>> for NodeDistances {
    type Error = DistancesError;
    fn try_from(rows: Vec<Vec<u32>>) -> Result<NodeDistances, DistancesError> {
        NodeDistances::new(&rows)
    }
}

impl From<NodeDistances> for Vec<Vec<u32>> {
    fn from(distances: NodeDistances) -> Vec<Vec<u32>> {
        distances.between.chunks(distances.nodes).map(<[u32]>::to_vec).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_distance_is_refused_with_its_place() {
        let of = |rows: &[&[u32]]| {
            NodeDistances::new(&rows.iter().map(|row| row.to_vec()).collect::<Vec<_>>())
        };
        assert_eq!(of(&[]), Err(DistancesError::Empty));
        let odd = Err(DistancesError::NotSquare { row: 1, found: 1, nodes: 2 });
        assert_eq!(of(&[&[10, 20], &[20]]), odd);
        let near = Err(DistancesError::Local { from: 0, to: 1, distance: 10 });
        assert_eq!(of(&[&[10, 10], &[10, 10]]), near);
        let apart = Err(DistancesError::Local { from: 0, to: 0, distance: 20 });
        assert_eq!(of(&[&[20]]), apart);
        let back = Err(DistancesError::Asymmetric { from: 0, to: 1, there: 20, back: 21 });
        assert_eq!(of(&[&[10, 20], &[21, 10]]), back);
    }

    #[test]
    fn hops_are_there_once_and_ascend() {
        let ring = [[10, 16, 22, 16], [16, 10, 16, 22], [22, 16, 10, 16], [16, 22, 16, 10]];
        let ring = NodeDistances::new(&ring.map(|row| row.to_vec())).unwrap();
        assert_eq!(ring.hops(), [16, 22]);
        assert_eq!((ring.between(0, 2), ring.between(0, 4)), (22, u32::MAX));
        assert!(NodeDistances::uniform(1, 20).unwrap().hops().is_empty());
    }

    #[test]
    fn what_is_written_is_read() {
        let two = NodeDistances::uniform(2, 21).unwrap();
        let text = serde_json::to_string(&two).unwrap();
        assert_eq!(text, "[[10,21],[21,10]]");
        assert_eq!(serde_json::from_str::<NodeDistances>(&text).unwrap(), two);
        assert!(serde_json::from_str::<NodeDistances>("[[10,21],[20,10]]").is_err());
    }
}
