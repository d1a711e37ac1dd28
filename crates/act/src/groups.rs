//! Cgroup directories of both versions.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::setting;
use quell_os::Tid;

/// Attempts to remove a group while processes in it come and go, a millisecond apart.
const REMOVE_PASSES: usize = 60;

/// The journalled value of a group that was not there.
pub(crate) const NONE: &str = "absent";
/// The journalled value of a group that Quell made.
pub(crate) const CREATED: &str = "created";

/// Where the hierarchy of a cgroup directory is mounted.
///
/// # Errors
/// `NotFound` where the directory is in none.
pub(crate) fn hierarchy_of(dir: &Path) -> io::Result<PathBuf> {
    mounts()?
        .into_iter()
        .map(|mount| mount.root)
        .filter(|root| dir.starts_with(root))
        .max_by_key(|root| root.components().count())
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The directory of a process's group in a hierarchy.
///
/// # Errors
/// `NotFound` where there is no such process or hierarchy.
pub(crate) fn group_of(tgid: Tid, hierarchy: &Path) -> io::Result<PathBuf> {
    let mount = mounts()?
        .into_iter()
        .find(|mount| mount.root == hierarchy)
        .ok_or(io::ErrorKind::NotFound)?;
    let groups = std::fs::read_to_string(format!("/proc/{tgid}/cgroup"))?;
    let path = groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        mount.is_named(controllers).then_some(path)
    });
    let path = path.ok_or(io::ErrorKind::NotFound)?.trim_start_matches('/');
    Ok(match path.is_empty() {
        true => mount.root,
        false => mount.root.join(path),
    })
}

/// Moves a process into a group.
///
/// # Errors
/// Those of the file.
pub(crate) fn join(dir: &Path, tgid: Tid) -> io::Result<()> {
    setting::write(&dir.join("cgroup.procs"), &tgid.to_string())
}

/// Removes a group that Quell made. What is in it goes to the group above: a child of a launched process may
/// have been born there. In version 2 a group that hands controllers down takes no process, but the top group does.
///
/// # Errors
/// Those of `rmdir(2)`.
pub(crate) fn remove(dir: &Path) -> io::Result<()> {
    let above: Vec<&Path> = dir.ancestors().skip(1).filter(|dir| is_group(dir)).collect();
    let mut removed = std::fs::remove_dir(dir);
    for _ in 0..REMOVE_PASSES {
        match &removed {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            _ => return removed,
        }
        empty(dir, &above)?;
        removed = std::fs::remove_dir(dir);
        if removed.is_err() {
            // A process on its way out keeps the group busy, and may need this very core to get out.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    removed
}

/// Moves what is in a group to the first of others that takes it. A process that ends meanwhile, or that none takes, stays.
///
/// # Errors
/// Where the group cannot be read.
pub(crate) fn empty(dir: &Path, into: &[&Path]) -> io::Result<()> {
    for process in std::fs::read_to_string(dir.join("cgroup.procs"))?.lines() {
        if let Ok(tgid) = process.parse() {
            let _ = into.iter().any(|group| join(group, Tid(tgid)).is_ok());
        }
    }
    Ok(())
}

fn is_group(dir: &Path) -> bool {
    dir.join("cgroup.procs").exists()
}

/// A mounted hierarchy.
struct Mount {
    root: PathBuf,
    /// `None` for version 2.
    options: Option<String>,
}

impl Mount {
    /// Whether a line of `/proc/PID/cgroup` with these controllers is about this hierarchy.
    fn is_named(&self, controllers: &str) -> bool {
        match &self.options {
            None => controllers.is_empty(),
            Some(options) => {
                !controllers.is_empty()
                    && controllers
                        .split(',')
                        .all(|name| options.split(',').any(|option| option == name))
            }
        }
    }
}

fn mounts() -> io::Result<Vec<Mount>> {
    Ok(parse_mounts(&std::fs::read_to_string("/proc/self/mountinfo")?))
}

fn parse_mounts(mountinfo: &str) -> Vec<Mount> {
    mountinfo
        .lines()
        .filter_map(|line| {
            let (mount, fs) = line.split_once(" - ")?;
            let root = PathBuf::from(mount.split(' ').nth(4)?);
            match fs.split(' ').next()? {
                "cgroup2" => Some(Mount { root, options: None }),
                "cgroup" => Some(Mount { root, options: Some(fs.rsplit(' ').next()?.to_owned()) }),
                _ => None,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_in_the_hierarchy_it_belongs_to() {
        let mounts = parse_mounts(
            "29 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
             30 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
             31 25 0:28 / /sys/fs/cgroup/systemd rw - cgroup systemd rw,name=systemd\n",
        );
        let named = |controllers: &str| {
            let found = mounts.iter().find(|mount| mount.is_named(controllers));
            found.map(|mount| mount.root.to_str().unwrap())
        };
        assert_eq!(named("cpu,cpuacct"), Some("/sys/fs/cgroup/cpu,cpuacct"));
        assert_eq!(named("name=systemd"), Some("/sys/fs/cgroup/systemd"));
        assert_eq!(named(""), Some("/sys/fs/cgroup/unified"));
        assert_eq!(named("memory"), None);
    }

    #[test]
    fn this_process_has_a_group_in_each_hierarchy() {
        let own = Tid(std::process::id() as i32);
        for mount in mounts().unwrap() {
            assert!(group_of(own, &mount.root).unwrap().starts_with(&mount.root));
        }
    }
}
