//! Where Quell's own files and threads are.
//!
//! These calls concern Quell alone and end with it, so they do not go through the executor.

use std::io;
use std::path::{Path, PathBuf};

use quell_model::CoreSet;
use rustix::mm::{MlockAllFlags, mlockall};

use crate::act::SchedAttr;
use crate::observe::topology;
use crate::{Tid, sys};

/// The calling thread, to the scheduler's system calls.
const SELF: Tid = Tid(0);

/// The run directory: `$QUELL_RUN_DIR`, else `/run/quell` where /run is a tmpfs, else `/dev/shm/quell`. It has
/// to be in memory: the journal is written within microseconds, and means nothing after a reboot.
pub fn default_run_dir() -> PathBuf {
    match std::env::var_os("QUELL_RUN_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => dir.into(),
        None if is_tmpfs(Path::new("/run")) => "/run/quell".into(),
        None => "/dev/shm/quell".into(),
    }
}

fn is_tmpfs(path: &Path) -> bool {
    // TMPFS_MAGIC of include/uapi/linux/magic.h.
    rustix::fs::statfs(path).is_ok_and(|stat| stat.f_type == 0x0102_1994)
}

/// Puts the calling thread on a rung, with all cores open to it.
///
/// # Errors
/// Those of `sched_setattr(2)`: a cgroup may forbid real-time priority.
pub fn rise_to(rung: SchedAttr) -> io::Result<()> {
    // A parent's affinity is inherited; no single core may keep this thread from running.
    if let Ok(possible) = topology::possible() {
        let _ = keep_to(&possible);
    }
    sys::sched::set_attr(SELF, &rung)
}

/// Keeps the calling thread, and the threads it makes from now on, to these cores.
///
/// # Errors
/// When none of them is online or allowed.
pub fn keep_to(cores: &CoreSet) -> io::Result<()> {
    sys::sched::set_affinity(SELF, cores)
}

/// Gives the calling thread the scheduler's place: these cores and this rung.
///
/// # Errors
/// When the host refuses real-time priority.
pub fn place_scheduler(cores: &CoreSet, rung: &SchedAttr) -> io::Result<()> {
    keep_to(cores)?;
    sys::sched::set_attr(SELF, rung)
}

/// Locks the memory of this process as far as it is in use, now and later: a scheduler that waits for a page
/// cannot do anything about it. Only asked for; refused without CAP_IPC_LOCK.
pub fn lock_memory() {
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    if let Err(err) = mlockall(all) {
        tracing::warn!("memory is not locked ({err}): a page fault can delay a tick");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_file_systems_are_told_apart() {
        assert!(is_tmpfs(Path::new("/dev/shm")));
        assert!(!is_tmpfs(Path::new("/proc")));
    }
}
