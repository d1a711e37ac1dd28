//! Quell's own cgroups for the tasks that it launched.
//!
//! One directory a task and hierarchy, below a directory `quell` at the top of the hierarchy. They are
//! made, joined and removed through the executor, so a guardian removes what a dead daemon left. Adopted
//! tasks stay in the groups in which they were found.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use super::TaskGroups;
use super::layout::{Hierarchy, Layout, Version};
use super::weights::weight;
use crate::{ActError, Executor, Joining, RestoreReport, Setting, Subject, groups as cgroups};
use quell_os::Tid;

/// The directory of all groups of Quell's own.
const TOP: &str = "quell";
/// Longest directory name that is made; the kernel takes 255 bytes.
const NAME_MAX: usize = 128;
/// How often a group is emptied before it is removed.
const EMPTY_PASSES: usize = 3;

/// Makes and removes groups.
#[derive(Clone, Debug)]
pub struct Groups {
    layout: Layout,
    top: String,
}

/// Which groups a task needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupUse {
    /// A freezer, for LC under the elevation back end. Under RT_GROUP_SCHED a cpu group of its own would cost
    /// the task its real-time priority, and a cpuset is not needed.
    Freeze,
    /// A freezer and a cpu group that counts for least, for BE under SCHED_IDLE.
    Yield,
    /// Freezer, cpuset and weight, for the cpuset back end.
    Confine,
}

impl Groups {
    /// Groups in these hierarchies.
    pub fn new(layout: Layout) -> Groups {
        Groups { layout, top: TOP.to_owned() }
    }

    /// As [`Groups::new`], below a directory of this name, so that tests do not meet a daemon.
    pub fn below(layout: Layout, top: &str) -> Groups {
        Groups { layout, top: top.to_owned() }
    }

    /// Whether tasks can be frozen on this host.
    pub fn can_freeze(&self) -> bool {
        self.layout.freezer.is_some()
    }

    /// Makes the groups of a task. What this host lacks is left out: the back ends do without.
    ///
    /// # Errors
    /// [`ActError`] where a group that could exist was refused; those made before stay until
    /// [`Groups::remove`] or the executor's end.
    pub fn make(
        &self,
        task: &str,
        wanted: GroupUse,
        exec: &mut Executor,
    ) -> Result<TaskGroups, ActError> {
        let mut groups = TaskGroups::default();
        if let Some(hierarchy) = &self.layout.freezer {
            groups.freezer = Some(self.make_in(hierarchy, task, exec)?);
        }
        if wanted == GroupUse::Freeze {
            return Ok(groups);
        }
        if let Some(hierarchy) = &self.layout.cpuset
            && wanted == GroupUse::Confine
            && self.can_delegate(hierarchy, "cpuset", exec)?
        {
            let dir = self.make_in(hierarchy, task, exec)?;
            fill_cpuset(hierarchy, &dir, exec)?;
            groups.cpuset = Some(dir);
        }
        if let Some(hierarchy) = &self.layout.cpu
            && self.can_delegate(hierarchy, "cpu", exec)?
        {
            let dir = self.make_in(hierarchy, task, exec)?;
            let shares = if hierarchy.version == Version::V1 { "cpu.shares" } else { "cpu.weight" };
            let files = ["cpu.idle", shares].map(|name| dir.join(name));
            groups.weight = files.into_iter().find(|file| file.exists());
        }
        if let Some(file) = groups.weight.as_ref().filter(|_| wanted == GroupUse::Yield) {
            exec.write_setting(&Setting::CgroupFile(file.clone()), weight(file, true))?;
        }
        Ok(groups)
    }

    /// Whether this is one of Quell's own groups, or a file in one.
    pub fn owns(&self, path: &Path) -> bool {
        let mounts = [&self.layout.freezer, &self.layout.cpuset, &self.layout.cpu];
        let mut own = mounts.into_iter().flatten().map(|hierarchy| hierarchy.mount.join(&self.top));
        own.any(|top| path.starts_with(top))
    }

    /// Moves a launched process into its task's groups. Its children follow by themselves. May take long: see
    /// [`Joining`].
    ///
    /// # Errors
    /// [`ActError`].
    pub fn admit(
        &self,
        groups: &TaskGroups,
        process: Tid,
        exec: &mut Executor,
    ) -> Result<(), ActError> {
        for joining in self.begin_admit(groups, process, exec)? {
            match joining.carry_out() {
                Ok(()) => exec.end_join(&joining),
                Err(error) => {
                    exec.cancel_join(&joining);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// The first step of [`Groups::admit`]: the moves that are still to be carried out.
    ///
    /// # Errors
    /// [`ActError`].
    pub fn begin_admit(
        &self,
        groups: &TaskGroups,
        process: Tid,
        exec: &mut Executor,
    ) -> Result<Vec<Joining>, ActError> {
        groups.dirs().filter_map(|dir| exec.begin_join(dir, process).transpose()).collect()
    }

    /// Removes a task's groups, thawed. What is still in them goes to the groups above. Does not take long after
    /// [`TaskGroups::dismantle`].
    pub fn remove(&self, groups: &TaskGroups, exec: &mut Executor) -> RestoreReport {
        let dirs: Vec<&Path> = groups.dirs().collect();
        exec.undo_texts(|subject, written| match subject {
            Subject::Group(dir) => dirs.contains(&dir.as_path()),
            Subject::Setting(file) => file.parent().is_some_and(|dir| dirs.contains(&dir)),
            Subject::Member { .. } => dirs.contains(&Path::new(written)),
            Subject::Sched(_) | Subject::Affinity(_) => false,
        })
    }

    /// The group in which an adopted process can be frozen: the one it is in, unless that is the top
    /// group, which holds everybody. All processes of the group freeze with it.
    ///
    /// # Errors
    /// `NotFound` when there is no such process.
    pub fn freezer_of(&self, root: &Path, pid: Tid) -> io::Result<Option<PathBuf>> {
        let Some(hierarchy) = &self.layout.freezer else { return Ok(None) };
        let dir = Layout::group_of(root, hierarchy, "freezer", pid.0)?;
        Ok((dir != hierarchy.mount && dir.join(freezer_file(hierarchy)).exists()).then_some(dir))
    }

    fn make_in(
        &self,
        hierarchy: &Hierarchy,
        task: &str,
        exec: &mut Executor,
    ) -> Result<PathBuf, ActError> {
        let dir = hierarchy.mount.join(&self.top).join(directory_name(task));
        exec.create_cgroup(&dir)?;
        Ok(dir)
    }

    /// Makes sure that groups below ours have a controller. In version 2 the top group has to hand it
    /// down; Quell does not change that for the whole host, and does without where it is off.
    fn can_delegate(
        &self,
        hierarchy: &Hierarchy,
        controller: &str,
        exec: &mut Executor,
    ) -> Result<bool, ActError> {
        if hierarchy.version == Version::V1 {
            return Ok(true);
        }
        let handed_down = |exec: &Executor, dir: &Path| -> Result<bool, ActError> {
            let file = Setting::CgroupFile(dir.join("cgroup.subtree_control"));
            let text = exec.read_setting(&file)?;
            Ok(text.split_ascii_whitespace().any(|name| name == controller))
        };
        if !handed_down(exec, &hierarchy.mount)? {
            return Ok(false);
        }
        let top = hierarchy.mount.join(&self.top);
        exec.create_cgroup(&top)?;
        if !top.exists() {
            // A dry run made nothing, and would not learn more.
            return Ok(true);
        }
        if !handed_down(exec, &top)? {
            let file = Setting::CgroupFile(top.join("cgroup.subtree_control"));
            exec.write_setting(&file, &format!("+{controller}"))?;
        }
        Ok(true)
    }
}

impl TaskGroups {
    /// Removes the directories, once thawed. What is still in them goes to the groups above, which may take as long as a
    /// [`Joining`]; [`Groups::remove`] comes next.
    ///
    /// # Errors
    /// The first that cannot be removed.
    pub fn dismantle(&self) -> io::Result<()> {
        self.dirs().filter(|dir| dir.exists()).try_for_each(cgroups::remove)
    }

    /// The same for programs that are left running: they go to the groups of this process, which has started them.
    ///
    /// # Errors
    /// The first that cannot be removed.
    pub fn give_back(&self) -> io::Result<()> {
        for dir in self.dirs().filter(|dir| dir.exists()) {
            let own = cgroups::hierarchy_of(dir).and_then(|hierarchy| {
                cgroups::group_of(Tid(std::process::id() as i32), &hierarchy)
            });
            // Those for which it fails go to the groups above.
            if let Ok(own) = own {
                // Again for what was born meanwhile.
                for _ in 0..EMPTY_PASSES {
                    cgroups::empty(dir, &[&own])?;
                }
            }
        }
        self.dismantle()
    }

    /// Without a group that does not hold the task.
    pub fn leave_out(&mut self, dir: &Path) {
        let is_there = |path: &mut PathBuf| path.starts_with(dir);
        self.freezer.take_if(is_there);
        self.cpuset.take_if(is_there);
        self.weight.take_if(is_there);
    }

    /// Their directories, each once.
    fn dirs(&self) -> impl Iterator<Item = &Path> {
        let weight = self.weight.as_deref().and_then(Path::parent);
        let cpuset = self.cpuset.as_deref().filter(|dir| Some(*dir) != self.freezer.as_deref());
        let weight = weight
            .filter(|dir| ![self.freezer.as_deref(), self.cpuset.as_deref()].contains(&Some(dir)));
        self.freezer.as_deref().into_iter().chain(cpuset).chain(weight)
    }
}

fn freezer_file(hierarchy: &Hierarchy) -> &'static str {
    match hierarchy.version {
        Version::V1 => "freezer.state",
        Version::V2 => "cgroup.freeze",
    }
}

/// A new cpuset of version 1 holds no core and no memory node, and takes no process before it does.
fn fill_cpuset(hierarchy: &Hierarchy, dir: &Path, exec: &mut Executor) -> Result<(), ActError> {
    if hierarchy.version == Version::V2 || !dir.exists() {
        return Ok(());
    }
    for group in [dir.parent(), Some(dir)].into_iter().flatten() {
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let own = Setting::CgroupFile(group.join(file));
            if exec.read_setting(&own)?.is_empty() {
                let all = exec.read_setting(&Setting::CgroupFile(hierarchy.mount.join(file)))?;
                exec.write_setting(&own, &all)?;
            }
        }
    }
    Ok(())
}

/// A directory name for a task's name. Names come from outside: whatever could leave the directory, hide,
/// or meet a file of the kernel's (`tasks`, anything with a dot) is escaped, and long names are cut
/// and told apart by a checksum. Different names give different directories.
fn directory_name(task: &str) -> String {
    let mut out = String::new();
    for byte in task.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => out.push(char::from(byte)),
            // Writing to a String does not fail.
            _ => drop(write!(out, "%{byte:02x}")),
        }
    }
    if out.is_empty() || ["tasks", "notify_on_release", "release_agent"].contains(&out.as_str()) {
        out.insert(0, '%');
    }
    if out.len() > NAME_MAX {
        // FNV-1a, 64 bits.
        let hash = task.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        out.truncate(NAME_MAX);
        let _ = write!(out, "%%{hash:016x}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn plain_names_stay_and_names_of_kernel_files_do_not() {
        assert_eq!(directory_name("memcached-1"), "memcached-1");
        assert_eq!(directory_name("tasks"), "%tasks");
        assert_eq!(directory_name(""), "%");
        assert_eq!(directory_name("../../etc"), "%2e%2e%2f%2e%2e%2fetc");
        assert_ne!(directory_name(&"a".repeat(500)), directory_name(&"a".repeat(501)));
    }

    proptest! {
        #[test]
        fn any_name_makes_one_plain_directory_of_its_own(a in any::<String>(), b in any::<String>()) {
            let made = directory_name(&a);
            prop_assert!(!made.is_empty() && made.len() < 255);
            prop_assert!(!made.contains(['/', '.', '\0', '\n']));
            prop_assert!(a == b || made != directory_name(&b));
        }
    }
}
