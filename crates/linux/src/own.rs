//! Where Quell's own files and threads are.
//!
//! These calls concern Quell alone and end with it, so they do not go through the executor.

use std::io;
use std::path::{Path, PathBuf};

use quell_model::{CoreSet, Rung};

use crate::act::Ladder;
use crate::{Tid, sys};

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

/// Keeps the calling thread, and the threads it makes from now on, to these cores.
///
/// # Errors
/// When none of them is online or allowed.
pub fn keep_to(cores: &CoreSet) -> io::Result<()> {
    sys::sched::set_affinity(Tid(0), cores)
}

/// Gives the calling thread the scheduler's place: these cores, rung Scheduler, memory locked. A scheduler that
/// waits for a page or for a core cannot do anything about either.
///
/// # Errors
/// When the host refuses real-time priority; locked memory is only asked for.
pub fn place_scheduler(cores: &CoreSet, ladder: &Ladder) -> io::Result<()> {
    keep_to(cores)?;
    if let Some(attr) = ladder.attr(Rung::Scheduler) {
        sys::sched::set_attr(Tid(0), &attr)?;
    }
    let locked = rustix::mm::mlockall(
        rustix::mm::MlockAllFlags::CURRENT
            | rustix::mm::MlockAllFlags::FUTURE
            | rustix::mm::MlockAllFlags::ONFAULT,
    );
    if let Err(err) = locked {
        tracing::warn!("memory is not locked ({err}): a page fault can delay a tick");
    }
    Ok(())
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
