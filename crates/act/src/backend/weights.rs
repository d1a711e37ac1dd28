//! Whether the fair class puts batch work behind services.
//!
//! SCHED_IDLE orders threads of one scheduling group alone: next to another cgroup, or another session where the kernel
//! makes a group of each (autogroup), a SCHED_IDLE thread has the share of its group, by default as much as the other's.
//! Background threads of services would share the core evenly with batch work there. A group that holds SCHED_IDLE threads
//! only can be made to count for least (`cpu.idle`: 1 to 99).

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::layout::{Hierarchy, Layout, Version};
use crate::Policy;
use quell_observe::procs;
use quell_os::Tid;

/// Groups in the hierarchy of the `cpu` controller.
#[derive(Clone, Debug)]
pub struct Weights {
    hierarchy: Hierarchy,
    root: PathBuf,
}

/// The scheduling group of a process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SchedGroup {
    /// The cgroup that has a weight; the mount point where none has.
    cgroup: PathBuf,
    /// The autogroup, for processes of the top cgroup.
    autogroup: Option<String>,
}

/// How a BE process stands to services in the fair class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Behind them already.
    Behind,
    /// It will be, once this cgroup counts for least.
    Beside(PathBuf),
    /// In another session than a service, with no cgroup that could count for least.
    OtherSession,
}

impl Weights {
    /// Those of this host; `None` without a `cpu` controller.
    pub fn new(layout: &Layout) -> Option<Weights> {
        Weights::at(Path::new("/"), layout)
    }

    fn at(root: &Path, layout: &Layout) -> Option<Weights> {
        Some(Weights { hierarchy: layout.cpu.clone()?, root: root.to_owned() })
    }

    /// The group of a process.
    ///
    /// # Errors
    /// `NotFound` when it is gone.
    pub fn group_of(&self, pid: i32) -> io::Result<SchedGroup> {
        let mount = &self.hierarchy.mount;
        let own = Layout::group_of(&self.root, &self.hierarchy, "cpu", pid)?;
        // Version 2: below a group that hands `cpu` down no further, threads belong to that group.
        let weighted = |dir: &&Path| *dir == mount || self.has_weight(dir);
        let cgroup = own.ancestors().find(weighted).unwrap_or(mount).to_owned();
        let autogroup = match cgroup == *mount && self.has_autogroups() {
            true => self.autogroup(pid),
            false => None,
        };
        Ok(SchedGroup { cgroup, autogroup })
    }

    fn has_weight(&self, cgroup: &Path) -> bool {
        ["cpu.shares", "cpu.weight"].iter().any(|name| cgroup.join(name).exists())
    }

    fn has_autogroups(&self) -> bool {
        let switch = self.root.join("proc/sys/kernel/sched_autogroup_enabled");
        fs::read_to_string(switch).is_ok_and(|value| value.trim() == "1")
    }

    /// `/autogroup-12 nice 0` is number 12.
    fn autogroup(&self, pid: i32) -> Option<String> {
        let text = fs::read_to_string(self.root.join(format!("proc/{pid}/autogroup"))).ok()?;
        text.split_ascii_whitespace().next().map(str::to_owned)
    }

    /// How a process in group `be` stands to processes in groups `lc`.
    pub fn standing(&self, be: &SchedGroup, lc: &BTreeSet<SchedGroup>) -> Standing {
        let mount = &self.hierarchy.mount;
        if be.cgroup == *mount {
            let same = |group: &SchedGroup| group.autogroup == be.autogroup;
            return match be.autogroup.is_none() || lc.iter().all(same) {
                true => Standing::Behind,
                false => Standing::OtherSession,
            };
        }
        // A thread counts as one beside the groups in its own, and SCHED_IDLE holds there.
        let holds_lc = |dir: &Path| lc.iter().any(|group| group.cgroup.starts_with(dir));
        if lc.is_empty() || holds_lc(&be.cgroup) {
            return Standing::Behind;
        }
        let apart = be.cgroup.ancestors().take_while(|dir| *dir != mount && !holds_lc(dir));
        Standing::Beside(apart.last().unwrap_or(&be.cgroup).to_owned())
    }

    /// Processes in the cgroup, or beneath, that are neither under SCHED_IDLE, by their first threads, nor of `known`. A
    /// process of batch work may be one of them for a moment: new, or while lock relief raises it.
    ///
    /// # Errors
    /// When the cgroup is gone.
    pub fn others_in(&self, cgroup: &Path, known: &BTreeSet<i32>) -> io::Result<BTreeSet<i32>> {
        let is_other = |pid: &i32| {
            let is_other = match quell_os::sched::attr(Tid(*pid)) {
                Ok(attr) => attr.policy != Policy::Idle,
                // What ended meanwhile is in nobody's way. SCHED_DEADLINE and SCHED_EXT are refused, and are others.
                Err(error) => {
                    error.kind() != io::ErrorKind::NotFound
                        && error.raw_os_error() != Some(libc::ESRCH)
                }
            };
            !known.contains(pid) && is_other
        };
        Ok(procs::of_cgroup(&cgroup.to_string_lossy())?.into_iter().filter(is_other).collect())
    }

    /// The file by which a cgroup is to count for least: `cpu.idle` (since Linux 5.15), but that of its shares where those
    /// are not the default ones, to which giving `cpu.idle` back would set them.
    pub fn weight_file(&self, cgroup: &Path) -> Option<PathBuf> {
        let shares = cgroup.join(match self.hierarchy.version {
            Version::V1 => "cpu.shares",
            Version::V2 => "cpu.weight",
        });
        let idle = cgroup.join("cpu.idle");
        let is_default = || {
            fs::read_to_string(&shares).is_ok_and(|value| value.trim() == weight(&shares, false))
        };
        // An idle group has no other shares, and takes none.
        let takes_idle = || is_least(&idle) || is_default();
        if idle.exists() && takes_idle() {
            Some(idle)
        } else {
            Some(shares).filter(|file| file.exists())
        }
    }
}

/// Whether a weight file says that its cgroup counts for least.
pub fn is_least(file: &Path) -> bool {
    fs::read_to_string(file).is_ok_and(|value| value.trim() == weight(file, true))
}

/// The value for a weight file, by its name: least, or the kernel's default.
pub fn weight(file: &Path, least: bool) -> &'static str {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match (name, least) {
        ("cpu.shares", true) => "2",
        ("cpu.shares", false) => "1024",
        ("cpu.weight", true) => "1",
        ("cpu.weight", false) => "100",
        (_, true) => "1",
        (_, false) => "0",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host of version 1 with these cgroups, and processes in them with an autogroup each.
    struct Tree {
        weights: Weights,
        root: tempfile::TempDir,
    }

    impl Tree {
        fn new(version: Version, groups: &[&str], processes: &[(i32, &str, u32)]) -> Tree {
            let root = tempfile::tempdir().unwrap();
            let write = |path: &str, text: &str| {
                let path = root.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            };
            write("proc/sys/kernel/sched_autogroup_enabled", "1\n");
            let (shares, default) = match version {
                Version::V1 => ("cpu.shares", "1024\n"),
                Version::V2 => ("cpu.weight", "100\n"),
            };
            for group in groups {
                write(&format!("cg/{group}/cpu.idle"), "0\n");
                write(&format!("cg/{group}/{shares}"), default);
            }
            for (pid, group, session) in processes {
                let line = match version {
                    Version::V1 => format!("3:cpu,cpuacct:/{group}\n0::/\n"),
                    Version::V2 => format!("0::/{group}\n"),
                };
                write(&format!("proc/{pid}/cgroup"), &line);
                write(&format!("proc/{pid}/autogroup"), &format!("/autogroup-{session} nice 0\n"));
            }
            let cpu = Some(Hierarchy { version, mount: root.path().join("cg") });
            let layout = Layout { cpu, ..Layout::default() };
            Tree { weights: Weights::at(root.path(), &layout).unwrap(), root }
        }

        fn standing(&self, be: i32, lc: &[i32]) -> Standing {
            let group = |pid: &i32| self.weights.group_of(*pid).unwrap();
            self.weights.standing(&group(&be), &lc.iter().map(group).collect())
        }

        fn beside(&self, group: &str) -> Standing {
            Standing::Beside(self.root.path().join("cg").join(group))
        }
    }

    #[test]
    fn what_counts_for_least_is_the_highest_group_without_a_service() {
        let groups = ["a", "a/web", "a/jobs", "a/jobs/night", "b", "b/c"];
        let processes = [(1, "a/web", 1), (2, "a/jobs/night", 1), (3, "b/c", 1), (4, "a", 1)];
        let tree = Tree::new(Version::V1, &groups, &processes);
        assert_eq!(tree.standing(2, &[1]), tree.beside("a/jobs"));
        assert_eq!(tree.standing(3, &[1]), tree.beside("b"));
        assert_eq!(tree.standing(2, &[1, 3]), tree.beside("a/jobs"));
        assert_eq!(tree.standing(2, &[3]), tree.beside("a"));
        assert_eq!(tree.standing(2, &[2]), Standing::Behind, "one group");
        assert_eq!(tree.standing(4, &[1]), Standing::Behind, "a thread beside the service's group");
        assert_eq!(tree.standing(2, &[]), Standing::Behind, "no service");
    }

    #[test]
    fn in_version_2_a_group_without_a_weight_counts_as_the_one_above() {
        let groups = ["system.slice", "user.slice"];
        let processes =
            [(1, "system.slice/web", 1), (2, "user.slice/s1", 2), (3, "system.slice/b", 3)];
        let tree = Tree::new(Version::V2, &groups, &processes);
        assert_eq!(tree.standing(2, &[1]), tree.beside("user.slice"));
        assert_eq!(tree.standing(3, &[1]), Standing::Behind);
    }

    #[test]
    fn sessions_are_groups_in_the_top_cgroup() {
        let processes = [(1, "", 7), (2, "", 7), (3, "", 8), (4, "a", 8)];
        let tree = Tree::new(Version::V1, &["a"], &processes);
        assert_eq!(tree.standing(2, &[1]), Standing::Behind);
        assert_eq!(tree.standing(3, &[1]), Standing::OtherSession);
        assert_eq!(tree.standing(2, &[1, 4]), Standing::OtherSession);
        assert_eq!(tree.standing(4, &[1]), tree.beside("a"));
        fs::write(tree.root.path().join("proc/sys/kernel/sched_autogroup_enabled"), "0\n").unwrap();
        assert_eq!(tree.standing(3, &[1]), Standing::Behind);
    }

    #[test]
    fn shares_that_cpu_idle_would_lose_are_written_themselves() {
        let tree = Tree::new(Version::V1, &["a"], &[]);
        let group = tree.root.path().join("cg/a");
        assert_eq!(tree.weights.weight_file(&group), Some(group.join("cpu.idle")));
        fs::write(group.join("cpu.shares"), "512\n").unwrap();
        assert_eq!(tree.weights.weight_file(&group), Some(group.join("cpu.shares")));
        fs::write(group.join("cpu.shares"), "3\n").unwrap();
        fs::write(group.join("cpu.idle"), "1\n").unwrap();
        assert_eq!(tree.weights.weight_file(&group), Some(group.join("cpu.idle")), "idle already");
        fs::remove_file(group.join("cpu.idle")).unwrap();
        assert_eq!(tree.weights.weight_file(&group), Some(group.join("cpu.shares")));
        assert_eq!(tree.weights.weight_file(&group.join("none")), None);
    }

    #[test]
    fn a_process_that_is_gone_has_no_group() {
        let tree = Tree::new(Version::V1, &[], &[]);
        assert!(tree.weights.group_of(9).is_err());
    }
}
