//! What Quell does to its own threads. They end with it, so nothing of this is journalled.

use std::io;
use std::path::PathBuf;

use quell_model::{CoreSet, Rung};
use rustix::fs::statfs;

use super::host::Host;
use super::{Ladder, SchedAttr};
use crate::{ThreadRef, sys};

/// `TMPFS_MAGIC` of `include/uapi/linux/magic.h`.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Where journal and control socket are: `$QUELL_RUN_DIR`, else `/run/quell` where /run is a tmpfs, else
/// `/dev/shm/quell`. A tmpfs, because a journal must neither wait for a disk nor outlive the boot.
pub fn default_run_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("QUELL_RUN_DIR").filter(|dir| !dir.is_empty()) {
        return dir.into();
    }
    match statfs("/run") {
        Ok(run) if run.f_type == TMPFS_MAGIC => "/run/quell".into(),
        _ => "/dev/shm/quell".into(),
    }
}

/// Puts the calling thread on a rung, with all cores open to it.
///
/// # Errors
/// Those of `sched_setattr(2)`: a cgroup may forbid realtime.
pub fn rise_to(rung: SchedAttr) -> io::Result<()> {
    let me = ThreadRef::current()?.tid;
    // A parent's affinity is inherited; no single core may keep this thread from running.
    let _ = sys::sched::set_affinity(me, &Host::read()?.possible());
    sys::sched::set_attr(me, &rung)
}

/// Makes the calling thread the scheduler thread: its rung, on these cores.
///
/// # Errors
/// Those of the system calls; `InvalidInput` for no core.
pub fn place_scheduler(cores: &CoreSet) -> io::Result<()> {
    let me = ThreadRef::current()?.tid;
    sys::sched::set_affinity(me, cores)?;
    let ladder = Ladder::for_this_host()?;
    let rung = ladder.attr(Rung::Scheduler).ok_or(io::ErrorKind::InvalidInput)?;
    sys::sched::set_attr(me, &rung)
}

/// Keeps the threads that this process has now to these cores; new ones inherit it.
///
/// # Errors
/// Those of `sched_setaffinity(2)`.
pub fn keep_to(cores: &CoreSet) -> io::Result<()> {
    for thread in ThreadRef::all_of(ThreadRef::current()?.tgid)? {
        match sys::sched::set_affinity(thread.tid, cores) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            set => set?,
        }
    }
    Ok(())
}
