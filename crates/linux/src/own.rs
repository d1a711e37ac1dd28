//! Where Quell's own files and threads are.
//!
//! These calls concern Quell alone and end with it, so they do not go through the executor.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use quell_model::CoreSet;
use rustix::mm::{MlockAllFlags, mlockall};

use crate::act::{Policy, SchedAttr};
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

/// Whether others than this user could put files of their own in its place or into it.
///
/// # Errors
/// When it cannot be looked at.
pub fn is_open_to_others(dir: &Path) -> io::Result<bool> {
    let meta = fs::metadata(dir)?;
    let ours = meta.uid() == rustix::process::geteuid().as_raw();
    Ok(!ours || meta.mode() & 0o022 != 0)
}

/// The number of a group of this host; `None` where there is no such group.
///
/// # Errors
/// When the host's databases cannot be read.
pub fn group_id(name: &str) -> io::Result<Option<u32>> {
    sys::group::id(name)
}

/// Effective user and process of who connected a Unix socket, as of then; the process is 0 where it has no
/// number here (another pid namespace).
///
/// # Errors
/// When the kernel does not tell.
pub fn peer(socket: &UnixStream) -> io::Result<(u32, i32)> {
    sys::peer::credentials(socket.as_fd())
}

/// Lets the members of a group pass through a directory of Quell's, though not list it. Answers with the
/// directory above it that stays closed to them, if there is one.
///
/// # Errors
/// When the directory cannot be changed.
pub fn open_to_group(dir: &Path, group: u32) -> io::Result<Option<PathBuf>> {
    let meta = fs::metadata(dir)?;
    if !lets_pass(&meta, group) {
        chown(dir, None, Some(group))?;
        fs::set_permissions(dir, Permissions::from_mode(meta.mode() & 0o7707 | 0o010))?;
    }
    let whole = dir.canonicalize()?;
    let closed = |at: &&Path| fs::metadata(at).is_ok_and(|meta| !lets_pass(&meta, group));
    Ok(whole.ancestors().find(closed).map(Path::to_owned))
}

/// Whether the members of a group may pass: a directory of their own group judges them by its group's
/// mode alone, as path_resolution(7) says.
fn lets_pass(dir: &Metadata, group: u32) -> bool {
    let bit = if dir.gid() == group { 0o010 } else { 0o001 };
    dir.mode() & bit != 0
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

/// Has a child killed by the kernel when the thread that spawns it ends: it never outlives us.
pub fn end_with_this_thread(child: &mut Command) {
    sys::child::end_with_this_thread(child);
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

/// Has the calling thread go before other ordinary threads: whoever records what they do must keep up with them all.
/// Programs that it starts begin at nice 0, as it did; where the caller chose a policy or a nice value, that stays.
///
/// # Errors
/// Without the right to it (CAP_SYS_NICE).
pub fn go_before_others() -> io::Result<()> {
    let chosen = sys::sched::attr(SELF)?;
    if chosen.policy != Policy::Other || chosen.nice != 0 {
        return Ok(());
    }
    sys::sched::set_attr(SELF, &SchedAttr { nice: -20, reset_on_fork: true, ..SchedAttr::OTHER })
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
    #[test]
    fn who_goes_before_others_starts_programs_that_do_not() {
        std::thread::spawn(|| {
            super::go_before_others().unwrap();
            let own = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let nice =
                own.rsplit_once(')').unwrap().1.split_whitespace().nth(16).unwrap().to_owned();
            assert_eq!(nice, "-20");
            let child = std::process::Command::new("nice").output().unwrap();
            assert_eq!(String::from_utf8(child.stdout).unwrap(), "0\n");
        })
        .join()
        .unwrap();
    }

    use super::*;

    #[test]
    fn memory_file_systems_are_told_apart() {
        assert!(is_tmpfs(Path::new("/dev/shm")));
        assert!(!is_tmpfs(Path::new("/proc")));
    }

    #[test]
    fn a_group_gets_through_our_directory_and_is_told_what_is_closed_above() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let above = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::set_permissions(above.path(), Permissions::from_mode(0o700)).unwrap();
        let dir = above.path().join("run");
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(0o750)).unwrap();
        let group = group_id("games").unwrap().unwrap_or(60);
        assert_eq!(open_to_group(&dir, group).unwrap().as_deref(), Some(above.path()));
        let meta = fs::metadata(&dir).unwrap();
        assert_eq!((meta.gid(), meta.mode() & 0o777), (group, 0o710), "through, but no list");
        fs::set_permissions(above.path(), Permissions::from_mode(0o711)).unwrap();
        assert_eq!(open_to_group(&dir, group).unwrap(), None);
        assert!(!is_open_to_others(&dir).unwrap());
        fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
        assert!(is_open_to_others(&dir).unwrap());
    }
}
