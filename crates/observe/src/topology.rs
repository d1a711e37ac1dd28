//! The topology of this host, from sysfs.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use quell_model::{CoreSet, Topology};
use quell_os::topology::SYSFS;

use super::ObserveError;

/// The topology of this host: all cores that are present, offline ones too.
///
/// # Errors
/// When sysfs is not mounted, or shows a core past [`quell_model::CORES_MAX`].
pub fn read() -> Result<Topology, ObserveError> {
    read_at(Path::new(SYSFS))
}

/// The cores that the kernel has online now.
///
/// # Errors
/// When sysfs is not mounted or its list cannot be read.
pub fn online() -> Result<CoreSet, ObserveError> {
    list(&Path::new(SYSFS).join("online"))
}

/// The cores that the kernel could ever have online: per-core tables need this many places.
///
/// # Errors
/// As [`online`].
pub fn possible() -> Result<CoreSet, ObserveError> {
    list(&Path::new(SYSFS).join("possible"))
}

/// Reads the topology under another directory than `/sys/devices/system/cpu`.
///
/// # Errors
/// As [`read`].
pub fn read_at(root: &Path) -> Result<Topology, ObserveError> {
    quell_os::topology::read_at(root).map_err(unreadable)
}

pub(super) fn list(path: &Path) -> Result<CoreSet, ObserveError> {
    quell_os::topology::list(path).map_err(unreadable)
}

fn unreadable(source: io::Error) -> ObserveError {
    ObserveError::Kernel { what: "reading the host's cores".to_owned(), source }
}

/// Notices cores that go offline or come online: one `pread` a look.
#[derive(Debug)]
pub struct Hotplug {
    file: File,
    path: PathBuf,
    online: CoreSet,
}

impl Hotplug {
    /// Begins with the cores that are online now.
    ///
    /// # Errors
    /// As [`online`].
    pub fn new() -> Result<Hotplug, ObserveError> {
        Hotplug::at(Path::new(SYSFS))
    }

    fn at(root: &Path) -> Result<Hotplug, ObserveError> {
        let path = root.join("online");
        let file = File::open(&path).map_err(unreadable)?;
        let mut hotplug = Hotplug { file, path, online: CoreSet::EMPTY };
        hotplug.online = hotplug.look()?;
        Ok(hotplug)
    }

    /// The cores online at the last look.
    pub fn online(&self) -> &CoreSet {
        &self.online
    }

    /// The cores online now, if they changed since the last look.
    ///
    /// # Errors
    /// When the list cannot be read; the next look tries again.
    pub fn changed(&mut self) -> Result<Option<CoreSet>, ObserveError> {
        let online = self.look()?;
        if online == self.online {
            return Ok(None);
        }
        self.online = online;
        Ok(Some(online))
    }

    fn look(&self) -> Result<CoreSet, ObserveError> {
        // CORES_MAX cores, every other one, are under 5,000 bytes.
        let mut text = [0; 8192];
        let length = self.file.read_at(&mut text, 0).map_err(unreadable)?;
        let text = String::from_utf8_lossy(&text[..length]);
        quell_os::topology::parse(&self.path, &text).map_err(unreadable)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use quell_model::{CoreId, NodeDistances};

    use super::*;

    /// A sysfs tree in a temporary directory.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new(present: &str, online: &str) -> Tree {
            let tree = Tree(tempfile::tempdir().unwrap());
            tree.write("present", present).write("online", online);
            tree
        }

        fn write(&self, path: &str, text: &str) -> &Tree {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
            self
        }

        fn core(&self, id: u16, siblings: &str, cache: &str, node: u16) -> &Tree {
            self.write(&format!("cpu{id}/topology/core_cpus_list"), siblings);
            for (index, level, cores) in [(0, 1, siblings), (2, 2, siblings), (3, 3, cache)] {
                self.write(&format!("cpu{id}/cache/index{index}/level"), &level.to_string());
                self.write(&format!("cpu{id}/cache/index{index}/shared_cpu_list"), cores);
            }
            self.write(&format!("cpu{id}/node{node}/cpulist"), cache)
        }

        fn topology(&self) -> Topology {
            read_at(self.0.path()).unwrap()
        }
    }

    fn set(list: &str) -> CoreSet {
        list.parse().unwrap()
    }

    #[test]
    fn two_nodes_with_siblings_read_as_a_regular_host() {
        let tree = Tree::new("0-7", "0-7");
        for core in 0..4 {
            let (cache, node) = if core < 2 { ("0-1,4-5", 0) } else { ("2-3,6-7", 1) };
            let pair = format!("{core},{}", core + 4);
            tree.core(core, &pair, cache, node).core(core + 4, &pair, cache, node);
        }
        let regular = Topology::regular(2, 2, 2).unwrap();
        assert_eq!(tree.topology(), regular);

        // A third node has memory alone.
        tree.write("cpu0/node0/distance", "10 21 24").write("cpu2/node1/distance", "21 10 24");
        let distances = NodeDistances::uniform(2, 21).unwrap();
        assert_eq!(tree.topology(), regular.clone().with_distances(distances).unwrap());
        tree.write("cpu2/node1/distance", "22 10");
        assert_eq!(tree.topology(), regular, "firmware that contradicts itself tells nothing");
    }

    #[test]
    fn an_offline_core_stands_alone_on_its_node() {
        let tree = Tree::new("0-3", "0-2");
        for core in 0..3 {
            tree.core(core, &core.to_string(), "0-2", 0);
        }
        tree.write("cpu3/node1/cpulist", "");
        let topology = tree.topology();
        let last = topology.cores()[3];
        assert_eq!((last.id, last.node), (CoreId(3), 1));
        assert!(topology.cores()[..3].iter().all(|core| core.llc == 0 && core.llc != last.llc));
        assert!(!topology.has_siblings());
    }

    #[test]
    fn core_numbers_may_have_holes() {
        let tree = Tree::new("0,2,64", "0,2,64");
        for core in [0, 2, 64] {
            tree.core(core, &core.to_string(), "0,2,64", 0);
        }
        assert_eq!(tree.topology().all(), set("0,2,64"));
    }

    #[test]
    fn without_cache_files_a_package_is_one_domain() {
        let tree = Tree::new("0-3", "0-3");
        for core in 0..4 {
            let package = if core < 2 { "0-1" } else { "2-3" };
            tree.write(&format!("cpu{core}/topology/thread_siblings_list"), &core.to_string());
            tree.write(&format!("cpu{core}/topology/package_cpus_list"), package);
        }
        let llc: Vec<u16> = tree.topology().cores().iter().map(|core| core.llc).collect();
        assert_eq!(llc, [0, 0, 1, 1]);
    }

    #[test]
    fn without_any_topology_files_each_core_stands_alone() {
        let topology = Tree::new("0-1", "0-1").topology();
        assert_eq!(topology.len(), 2);
        assert!(!topology.has_siblings());
    }

    #[test]
    fn a_bad_list_names_its_file() {
        let error = read_at(Tree::new("0-x", "0").0.path()).map(|_| ());
        assert_eq!(error.map_err(|error| error.to_string().contains("online")), Ok(()));
        let error = read_at(Tree::new("0-x", "3-").0.path()).unwrap_err();
        assert!(error.to_string().contains("online"), "{error}");
        assert!(read_at(Path::new("/no/such/tree")).is_err());
    }

    #[test]
    fn hotplug_is_noticed_once() {
        let tree = Tree::new("0-3", "0-3");
        let mut hotplug = Hotplug::at(tree.0.path()).unwrap();
        assert_eq!(hotplug.changed().unwrap(), None);
        tree.write("online", "0-1,3");
        assert_eq!(hotplug.changed().unwrap(), Some(set("0-1,3")));
        assert_eq!(hotplug.changed().unwrap(), None);
        assert_eq!(*hotplug.online(), set("0-1,3"));
    }

    #[test]
    fn this_host_has_a_topology_and_all_online_cores_are_in_it() {
        let topology = read().unwrap();
        assert!(online().unwrap().is_subset(&topology.all()));
        assert!(topology.all().is_subset(&possible().unwrap()));
    }
}
