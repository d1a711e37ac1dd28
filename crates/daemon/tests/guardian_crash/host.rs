//! Processes, signals and cgroups, by hand.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

pub fn processes() -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Live processes that were started with this assignment in their environment.
pub fn processes_with(assignment: &str) -> Vec<i32> {
    let has = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == assignment.as_bytes())
    };
    processes().into_iter().filter(has).filter(|pid| state(*pid) != Some('Z')).collect()
}

/// The first letter of a process's state.
pub fn state(pid: i32) -> Option<char> {
    stat_field(pid, 3)?.chars().next()
}

pub fn session(pid: i32) -> Option<i32> {
    stat_field(pid, 6)?.parse().ok()
}

/// A field of `/proc/PID/stat`, by its number in proc(5).
fn stat_field(pid: i32, number: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(number - 3).map(str::to_owned)
}

pub fn signal(pid: i32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid).unwrap(), signal);
}

/// Waits for something that has to happen; panics with `what` if it does not within a time that no load explains.
pub fn wait_for<T>(what: &str, mut happened: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(40);
    loop {
        if let Some(result) = happened() {
            return result;
        }
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A cgroup of the test's own, removed when dropped.
pub struct Group(pub PathBuf);

impl Group {
    /// `None` where this host has no such hierarchy or lacks one of the files that are needed.
    pub fn make(hierarchies: &[&str], name: &str, needed: &str) -> Option<Group> {
        hierarchies.iter().find_map(|root| {
            let dir = Path::new(root).join(name);
            fs::create_dir(&dir).ok()?;
            let group = Group(dir);
            group.0.join(needed).exists().then_some(group)
        })
    }

    pub fn write(&self, file: &str, value: &str) {
        fs::write(self.0.join(file), value)
            .unwrap_or_else(|error| panic!("{}/{file}: {error}", self.0.display()));
    }

    pub fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.join(file)).unwrap_or_default().trim().to_owned()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..200 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
