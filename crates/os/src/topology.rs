//! The cores of this host, from sysfs.
//!
//! A core that is offline has no topology files: it stands alone, on its node, until it comes online and
//! the topology is read again. Files that a kernel or a virtual machine leaves out have a stand-in: without
//! sibling lists each core is a physical core, without cache files a package is one last-level cache, without tables of
//! distances none is known.

use std::fs;
use std::io;
use std::path::Path;

use quell_model::{Core, CoreId, CoreSet, NodeDistances, Topology};

/// Where the kernel shows its cores.
pub const SYSFS: &str = "/sys/devices/system/cpu";

/// Reads the topology under a directory, [`SYSFS`] of this host: all cores that are present, offline ones too.
///
/// # Errors
/// When it cannot be read, or shows a core past [`quell_model::CORES_MAX`].
pub fn read_at(root: &Path) -> io::Result<Topology> {
    let present = list(&root.join("present")).or_else(|_| list(&root.join("online")))?;
    let mut physical = Groups::default();
    let mut llc = Groups::default();
    let cores = present.iter().map(|id| {
        let directory = root.join(format!("cpu{id}"));
        Core {
            id,
            physical: physical.number(id, &siblings(&directory)),
            llc: llc.number(id, &cache_domain(&directory)),
            node: node(&directory).unwrap_or(0),
        }
    });
    let topology =
        Topology::new(cores.collect()).map_err(|error| invalid(root, &error.to_string()))?;
    let without = topology.clone();
    Ok(match distances(root, &topology) {
        Some(distances) => topology.with_distances(distances).unwrap_or(without),
        None => topology,
    })
}

/// The distances of nodes with cores, where those are numbered without holes. Others, of memory alone, come behind them.
fn distances(root: &Path, topology: &Topology) -> Option<NodeDistances> {
    let last = topology.cores().iter().map(|core| core.node).max()?;
    let row = |node: u16| -> Option<Vec<u32>> {
        let core = topology.cores().iter().find(|core| core.node == node)?;
        let path = root.join(format!("cpu{}/node{node}/distance", core.id));
        let text = fs::read_to_string(path).ok()?;
        let numbers = text.split_whitespace().take(usize::from(last) + 1);
        numbers.map(|number| number.parse().ok()).collect()
    };
    let rows: Vec<Vec<u32>> = (0..=last).map(row).collect::<Option<_>>()?;
    NodeDistances::new(&rows).ok()
}

/// Numbers groups of cores in the order of their first members.
#[derive(Default)]
struct Groups {
    members: Vec<CoreSet>,
}

impl Groups {
    /// The number of the core's group; a core that no list names is a group of its own.
    fn number(&mut self, core: CoreId, listed: &CoreSet) -> u16 {
        let known = self.members.iter().position(|group| group.contains(core));
        let at = known.unwrap_or_else(|| {
            self.members.push(listed.union(&CoreSet::of(core)));
            self.members.len() - 1
        });
        at as u16
    }
}

fn siblings(directory: &Path) -> CoreSet {
    // The first name is that of kernels since 5.3, the second the older one.
    ["topology/core_cpus_list", "topology/thread_siblings_list"]
        .iter()
        .find_map(|name| list(&directory.join(name)).ok())
        .unwrap_or_default()
}

/// The cores that share the last level of cache.
fn cache_domain(directory: &Path) -> CoreSet {
    let shared =
        (0..8).map(|index| directory.join(format!("cache/index{index}"))).filter_map(|index| {
            let level: u32 = fs::read_to_string(index.join("level")).ok()?.trim().parse().ok()?;
            Some((level, list(&index.join("shared_cpu_list")).ok()?))
        });
    shared
        // A first level alone is no domain: caches were not enumerated.
        .filter(|&(level, _)| level > 1)
        .max_by_key(|&(level, _)| level)
        .map(|(_, cores)| cores)
        .or_else(|| list(&directory.join("topology/package_cpus_list")).ok())
        .or_else(|| list(&directory.join("topology/core_siblings_list")).ok())
        .unwrap_or_default()
}

fn node(directory: &Path) -> Option<u16> {
    fs::read_dir(directory).ok()?.flatten().find_map(|entry| {
        let name = entry.file_name();
        name.to_str()?.strip_prefix("node")?.parse().ok()
    })
}

/// Reads a list of cores.
///
/// # Errors
/// When the file cannot be read, or holds something else.
pub fn list(path: &Path) -> io::Result<CoreSet> {
    let text = fs::read_to_string(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    parse(path, &text)
}

/// A list of cores that was read from a file.
///
/// # Errors
/// When it is something else: says the file.
pub fn parse(path: &Path, text: &str) -> io::Result<CoreSet> {
    text.parse().map_err(|error: quell_model::CoreListError| invalid(path, &error.to_string()))
}

fn invalid(path: &Path, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display()))
}
