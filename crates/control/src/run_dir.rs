//! The run directory: where it is, and which users may reach it.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

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

#[cfg(test)]
mod tests {
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
        let group = quell_os::group_id("games").unwrap().unwrap_or(60);
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
