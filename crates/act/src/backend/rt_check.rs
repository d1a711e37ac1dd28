//! Is real-time priority allowed in a task's cgroup? Asked of the kernel by trying, before a Plan relies
//! on it.

use std::io;
use std::path::{Path, PathBuf};

use super::layout::{Hierarchy, Layout, Version};
use crate::{RtTry, try_fifo};
use quell_os::Tid;

/// Why threads of a cgroup cannot be elevated.
#[derive(Debug, thiserror::Error)]
pub enum RtRefusal {
    /// The group has no real-time budget (version 1, RT_GROUP_SCHED).
    #[error(
        "cgroup {} has no real-time budget ({}: {source}): write e.g. 500000 to that file, or set \
         `rt_throttling = \"off\"`, or use `backend = \"cpuset\"`", .group.display(), .file.display()
    )]
    NoBudget {
        /// The group.
        group: PathBuf,
        /// The file that holds 0.
        file: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The kernel refuses real-time priority there for another reason.
    #[error(
        "cgroup {} forbids real-time priority ({source}): run as root with CAP_SYS_NICE, or use \
         `backend = \"cpuset\"`", .group.display()
    )]
    Forbidden {
        /// The group.
        group: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// It could not be tried.
    #[error(
        "whether cgroup {} allows real-time priority cannot be tried: {why}", .group.display()
    )]
    Untried {
        /// The group.
        group: PathBuf,
        /// What stood in the way, and the remedy.
        why: String,
    },
}

/// Tries real-time priority in a cgroup: a child process enters it, asks for SCHED_FIFO and ends. Nothing
/// stays. While `kernel.sched_rt_runtime_us` is -1 budgets are not enforced, so call it after
/// [`super::Prep::apply`] to learn what a run can do, before to learn what the host does by itself.
///
/// # Errors
/// [`RtRefusal`] names the group and the remedy.
pub fn check_rt(group: &Path) -> Result<(), RtRefusal> {
    let named = group.to_owned();
    let untried = |why: String| RtRefusal::Untried { group: group.to_owned(), why };
    match try_fifo(Some(&group.join("cgroup.procs"))) {
        RtTry::Granted => Ok(()),
        RtTry::Refused(source) => {
            let file = group.join("cpu.rt_runtime_us");
            let budget = std::fs::read_to_string(&file);
            match budget.is_ok_and(|budget| budget.trim() == "0") {
                true => Err(RtRefusal::NoBudget { group: named, file, source }),
                false => Err(RtRefusal::Forbidden { group: named, source }),
            }
        }
        RtTry::Shut(error) => {
            Err(untried(format!("no process can enter it ({error}); run as root, name a leaf")))
        }
        RtTry::Stuck => Err(untried("what enters it does not run; thaw it".into())),
        RtTry::Untried(error) => Err(untried(format!("no process can be started: {error}"))),
    }
}

/// As [`check_rt`], for the cgroup that decides about a process.
///
/// # Errors
/// [`RtRefusal`]; for a process that is gone [`RtRefusal::Untried`].
pub fn check_rt_of(layout: &Layout, process: Tid) -> Result<(), RtRefusal> {
    let Some(hierarchy) = deciding(layout) else { return Ok(()) };
    let root = Path::new("/");
    let group = Layout::group_of(root, hierarchy, "cpu", process.0).map_err(|error| {
        RtRefusal::Untried {
            group: hierarchy.mount.clone(),
            why: format!("the group of process {process} cannot be read: {error}"),
        }
    })?;
    check_rt(&group)
}

/// The hierarchy whose groups may forbid real-time priority: that of `cpu`. Version 2 groups do so as
/// well where the kernel has RT_GROUP_SCHED, but have no file to grant it.
fn deciding(layout: &Layout) -> Option<&Hierarchy> {
    layout.cpu.as_ref().or(layout.freezer.as_ref().filter(|one| one.version == Version::V2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Setting;
    use crate::testing::executor;
    use quell_testkit::host_lock;

    #[test]
    fn a_group_without_a_budget_is_named_and_one_with_a_budget_passes() {
        let layout = Layout::detect(Path::new("/")).unwrap();
        let Some(cpu) =
            layout.cpu.clone().filter(|cpu| cpu.mount.join("cpu.rt_runtime_us").exists())
        else {
            return;
        };
        let _quiet = host_lock().unwrap();
        let limit = std::fs::read_to_string("/proc/sys/kernel/sched_rt_runtime_us").unwrap();
        assert_ne!(limit.trim(), "-1", "the host's limit has to be finite for this test");
        check_rt_of(&layout, Tid(std::process::id() as i32)).unwrap();

        let mut exec = executor();
        let dir = cpu.mount.join(format!("quell-test-budget-{}", std::process::id()));
        exec.create_cgroup(&dir).unwrap();
        let refused = check_rt(&dir).unwrap_err();
        assert!(
            matches!(&refused, RtRefusal::NoBudget { group, .. } if *group == dir),
            "{refused}"
        );
        assert!(refused.to_string().contains("cpu.rt_runtime_us"), "{refused}");

        let budget = Setting::CgroupFile(dir.join("cpu.rt_runtime_us"));
        exec.write_setting(&budget, "10000").unwrap();
        check_rt(&dir).unwrap();
        assert!(exec.undo_all().is_complete());
        assert!(!dir.exists());
        let procs = std::fs::read_to_string(dir.join("cgroup.procs"));
        assert!(procs.is_err(), "nobody stayed behind");
    }

    #[test]
    fn a_group_that_is_not_there_is_said_so() {
        let gone = check_rt(Path::new("/sys/fs/cgroup/no/such/group")).unwrap_err();
        assert!(matches!(gone, RtRefusal::Untried { .. }), "{gone}");
        assert!(gone.to_string().contains("/sys/fs/cgroup/no/such/group"));
    }
}
