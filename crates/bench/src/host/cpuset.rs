//! A part of the cores for some threads alone, with a root domain of its own: what SCHED_DEADLINE needs for admission
//! to fewer than all cores (Documentation/scheduler/sched-deadline.rst, 5.1).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use quell_act::Setting;
use quell_model::CoreSet;

use super::Quiet;

/// Where the first version of cgroups has its cpusets.
const ROOT: &str = "/sys/fs/cgroup/cpuset";

/// A cpuset, until dropped: its threads go back to the one above.
pub struct Cpuset {
    directory: PathBuf,
}

impl Cpuset {
    /// Makes one whose cores no other balances; `quiet` gives the root's own setting back.
    ///
    /// # Errors
    /// Where the first version of cgroups has no cpusets, or the kernel refuses.
    pub fn exclusive(name: &str, cores: &CoreSet, quiet: &mut Quiet) -> Result<Cpuset> {
        let root = Path::new(ROOT);
        let memory = fs::read_to_string(root.join("cpuset.mems")).context(
            "no cpuset hierarchy of the first version of cgroups: SCHED_DEADLINE on part of the cores cannot be had",
        )?;
        let directory = root.join(format!("quell-bench-{name}"));
        let _ = fs::remove_dir(&directory);
        fs::create_dir(&directory).with_context(|| format!("make {}", directory.display()))?;
        let made = Cpuset { directory };
        made.write("cpuset.cpus", &cores.to_string())?;
        made.write("cpuset.mems", memory.trim())?;
        made.write("cpuset.cpu_exclusive", "1")?;
        quiet.write(&Setting::CgroupFile(root.join("cpuset.sched_load_balance")), "0")?;
        Ok(made)
    }

    /// Moves a thread into it. One that is gone needs nothing.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn add(&self, tid: i32) -> Result<()> {
        match fs::write(self.directory.join("tasks"), tid.to_string()) {
            Err(gone) if gone.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            other => {
                other.with_context(|| format!("move thread {tid} to {}", self.directory.display()))
            }
        }
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.directory.join(file);
        fs::write(&path, value).with_context(|| format!("write {value} to {}", path.display()))
    }
}

impl Drop for Cpuset {
    fn drop(&mut self) {
        // A thread that is born meanwhile shows in the next pass.
        for _ in 0..100 {
            let threads = fs::read_to_string(self.directory.join("tasks")).unwrap_or_default();
            for tid in threads.lines() {
                let _ = fs::write(Path::new(ROOT).join("tasks"), tid);
            }
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            // What ended a moment ago may still hold it.
            std::thread::sleep(Duration::from_millis(2));
        }
        eprintln!("{} could not be removed", self.directory.display());
    }
}
