//! The total by resctrl's bandwidth monitors (MBM of Intel's RDT and AMD's QoS): for each last-level cache and
//! each control group a file with the bytes that its tasks moved.
//!
//! `mon_data` of a control group covers the monitoring groups in it, so the total is the sum over the root and
//! all control groups. A group that is removed takes its part of the sum with it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use quell_model::{Bytes, Nanos};

use super::read_bounded;
use quell_os::clock;

const FILE: &str = "mbm_total_bytes";
/// How often groups are looked for.
const LOOK: Nanos = Nanos::from_secs(1);
/// More groups and caches than any host has.
const FILES_MAX: usize = 4_096;

/// The monitors of a host.
#[derive(Debug)]
pub struct Monitors {
    root: PathBuf,
    files: Vec<PathBuf>,
    look_due: Nanos,
}

impl Monitors {
    /// The monitors where resctrl is mounted, below `host` (`/` for this one). It is not mounted for this: that
    /// would be a change of the host.
    ///
    /// # Errors
    /// When it is not mounted or does not monitor bandwidth.
    pub fn mounted(host: &Path) -> io::Result<Monitors> {
        let mounts = read_bounded(&host.join("proc/self/mounts"), 4 << 20)?;
        let target = mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let target = words.next()?;
            (words.next() == Some("resctrl")).then_some(target)
        });
        let Some(target) = target else { return Err(io::Error::other("not mounted")) };
        Monitors::at(&host.join(target.trim_start_matches('/')))
    }

    fn at(root: &Path) -> io::Result<Monitors> {
        let mut monitors =
            Monitors { root: root.to_owned(), files: Vec::new(), look_due: Nanos::ZERO };
        monitors.look();
        match monitors.files.is_empty() {
            true => Err(io::Error::other(format!("no {FILE}: it does not monitor bandwidth"))),
            false => monitors.read().map(|_| monitors),
        }
    }

    fn look(&mut self) {
        self.files.clear();
        let entries = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
        let groups = entries(&self.root).map(|entry| entry.path());
        for group in std::iter::once(self.root.clone()).chain(groups) {
            for cache in entries(&group.join("mon_data")) {
                let file = cache.path().join(FILE);
                let is_cache = cache.file_name().to_string_lossy().starts_with("mon_L3_");
                if is_cache && file.is_file() && self.files.len() < FILES_MAX {
                    self.files.push(file);
                }
            }
        }
    }

    /// The total so far.
    ///
    /// # Errors
    /// When no monitor has a count.
    pub fn read(&mut self) -> io::Result<Bytes> {
        let now = clock::now();
        if now >= self.look_due {
            self.look_due = now + LOOK;
            self.look();
        }
        // A group may go while it is read, and hardware may have no monitor left for one (`Unavailable`).
        let counts = self.files.iter().filter_map(|file| {
            let text = read_bounded(file, 64).ok()?;
            text.trim().parse::<u64>().ok()
        });
        let sum = counts
            .fold(None, |sum: Option<u64>, count| Some(sum.unwrap_or(0).saturating_add(count)));
        sum.map(Bytes).ok_or_else(|| io::Error::other(format!("no {FILE} has a count")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux' tree of a host with two sockets, one control group, and one monitoring group in it.
    fn tree() -> tempfile::TempDir {
        let host = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = host.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "proc/self/mounts",
            "proc /proc proc rw 0 0\nresctrl /sys/fs/resctrl resctrl rw 0 0\n",
        );
        for (dir, count) in [
            ("mon_data/mon_L3_00", "1000\n"),
            ("mon_data/mon_L3_01", "200\n"),
            ("batch/mon_data/mon_L3_00", "30\n"),
            ("batch/mon_data/mon_L3_01", "Unavailable\n"),
            ("batch/mon_groups/one/mon_data/mon_L3_00", "7\n"),
        ] {
            write(&format!("sys/fs/resctrl/{dir}/{FILE}"), count);
            write(&format!("sys/fs/resctrl/{dir}/llc_occupancy"), "5555\n");
        }
        write("sys/fs/resctrl/info/L3_MON/mon_features", "llc_occupancy\nmbm_total_bytes\n");
        host
    }

    #[test]
    fn the_total_is_that_of_all_caches_and_control_groups_each_once() {
        let host = tree();
        let mut monitors = Monitors::mounted(host.path()).unwrap();
        assert_eq!(monitors.read().unwrap(), Bytes(1_230));
        let file = host.path().join("sys/fs/resctrl/mon_data/mon_L3_00").join(FILE);
        fs::write(file, "1500\n").unwrap();
        assert_eq!(monitors.read().unwrap(), Bytes(1_730));
    }

    #[test]
    fn a_group_that_goes_or_says_nothing_leaves_the_others() {
        let host = tree();
        let mut monitors = Monitors::mounted(host.path()).unwrap();
        fs::remove_dir_all(host.path().join("sys/fs/resctrl/batch")).unwrap();
        assert_eq!(monitors.read().unwrap(), Bytes(1_200));
        for cache in ["mon_L3_00", "mon_L3_01"] {
            let file = host.path().join("sys/fs/resctrl/mon_data").join(cache).join(FILE);
            fs::write(file, "Unavailable\n").unwrap();
        }
        assert!(monitors.read().is_err(), "never a made-up zero");
    }

    #[test]
    fn a_host_without_monitors_says_what_is_missing() {
        let host = tree();
        let sys = host.path().join("sys/fs/resctrl");
        fs::remove_dir_all(&sys).unwrap();
        let none = Monitors::mounted(host.path()).unwrap_err();
        assert!(none.to_string().contains("does not monitor"), "{none}");
        fs::write(host.path().join("proc/self/mounts"), "proc /proc proc rw 0 0\n").unwrap();
        let none = Monitors::mounted(host.path()).unwrap_err();
        assert!(none.to_string().contains("not mounted"), "{none}");
    }
}
