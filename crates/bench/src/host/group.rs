//! A cgroup and a session for one program and all that it starts, as a service manager gives it.
//!
//! Ranks of the fair class hold within one group only: a comparison of policies by hand has to start programs as
//! a host starts them, or the comparison is of something else (`autogroup` makes a group of a session too).
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use quell_model::{CoreSet, Nanos};
use rustix::process::{Pid, Signal, kill_process};

use super::process::{Usage, threads_of, usage_of};
use super::{Policy, pin, set_nice, set_policy};

/// The group above all of a benchmark's.
const PARENT: &str = "quell-bench";
/// How long killed programs may take to be gone.
const GONE_MAX: Duration = Duration::from_secs(10);
/// How often the threads are listed again until the list no longer changes.
const PASSES_MAX: usize = 20;

/// A group, until dropped: what is still in it is killed then.
pub struct Group {
    name: String,
    /// In each hierarchy that counts or weighs CPU time; that of the weights first.
    directories: Vec<PathBuf>,
    version: Version,
}

/// Of the cgroup interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// The weight of a group against its siblings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Weight {
    /// What each group has.
    Default,
    /// As many times the default.
    Times(f64),
    /// Runs only where no other group does (`cpu.idle`).
    Idle,
}

impl Group {
    /// Makes a group of this name.
    ///
    /// # Errors
    /// When this host mounts no cgroups with weights, or the group cannot be made.
    pub fn create(name: &str) -> Result<Group> {
        let (roots, version) =
            roots().context("no cgroup hierarchy with a cpu controller is mounted")?;
        let mut directories = Vec::new();
        for root in roots {
            let parent = root.join(PARENT);
            fs::create_dir_all(&parent).with_context(|| format!("make {}", parent.display()))?;
            if version == Version::V2 {
                let _ = fs::write(parent.join("cgroup.subtree_control"), "+cpu");
            }
            let directory = parent.join(name);
            fs::create_dir(&directory).with_context(|| format!("make {}", directory.display()))?;
            directories.push(directory);
        }
        Ok(Group { name: name.to_owned(), directories, version })
    }

    /// Its path as a configuration of Quell names it.
    pub fn path(&self) -> String {
        format!("/{PARENT}/{}", self.name)
    }

    /// Has a program start in this group and in a session of its own.
    ///
    /// # Errors
    /// Never, for a group that was made.
    pub fn enclose(&self, command: &mut Command) -> Result<()> {
        let files: Result<Vec<CString>, _> = self
            .directories
            .iter()
            .map(|directory| CString::new(directory.join("cgroup.procs").as_os_str().as_bytes()))
            .collect();
        let files = files.context("a path holds no zero")?;
        // SAFETY: between fork and exec only async-signal-safe system calls are made, on memory that was
        // allocated before.
        unsafe {
            command.pre_exec(move || {
                rustix::process::setsid()?;
                for file in &files {
                    let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
                    let file = rustix::fs::open(file.as_c_str(), flags, rustix::fs::Mode::empty())?;
                    // 0 is the writing process.
                    rustix::io::write(&file, b"0")?;
                }
                Ok(())
            });
        }
        Ok(())
    }

    /// Its processes now.
    ///
    /// # Errors
    /// When the group is gone.
    pub fn processes(&self) -> Result<Vec<i32>> {
        members(&self.directories[0])
            .with_context(|| format!("list the processes of {}", self.name))
    }

    /// Its threads now, each with its process.
    ///
    /// # Errors
    /// When the group is gone.
    pub fn threads(&self) -> Result<Vec<(i32, i32)>> {
        let of = |pid: i32| {
            let tids = threads_of(pid).unwrap_or_default();
            tids.into_iter().map(move |tid| (pid, tid))
        };
        Ok(self.processes()?.into_iter().flat_map(of).collect())
    }

    /// Does something to each thread until no new one shows up: one pass over /proc can miss a thread that is born
    /// meanwhile. One that ends meanwhile needs nothing.
    ///
    /// # Errors
    /// What `set` says of a thread that lives.
    pub fn each_thread(&self, mut set: impl FnMut(i32) -> io::Result<()>) -> Result<()> {
        let mut known: Vec<i32> = Vec::new();
        for _ in 0..PASSES_MAX {
            let threads = self.threads()?.into_iter().map(|(_, tid)| tid);
            let new: Vec<i32> = threads.filter(|tid| !known.contains(tid)).collect();
            if new.is_empty() {
                return Ok(());
            }
            for &tid in &new {
                match set(tid) {
                    Err(gone) if gone.raw_os_error() == Some(libc::ESRCH) => {}
                    other => other.with_context(|| format!("thread {tid} of {}", self.name))?,
                }
            }
            known.extend(new);
        }
        // A build makes new processes all the time: they inherit what their parents have by now.
        Ok(())
    }

    /// Puts all of it on these cores; what it starts from now on is born there.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn pin(&self, cores: &CoreSet) -> Result<()> {
        self.each_thread(|tid| pin(tid, cores)).with_context(|| format!("pin to {cores}"))
    }

    /// Gives each thread a policy and a nice value.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_policy(&self, policy: Policy, nice: i32) -> Result<()> {
        self.each_thread(|tid| {
            set_policy(tid, policy)?;
            set_nice(tid, nice)
        })
        .with_context(|| format!("set {} to {policy:?}, nice {nice}", self.name))
    }

    /// Sets its weight against its siblings.
    ///
    /// # Errors
    /// When the kernel refuses: `cpu.idle` came with Linux 5.15.
    pub fn set_weight(&self, weight: Weight) -> Result<()> {
        let write = |file: &str, value: String| {
            let path = self.directories[0].join(file);
            fs::write(&path, &value).with_context(|| format!("write {value} to {}", path.display()))
        };
        // A weight cannot be written to a group that is idle.
        let idle = if weight == Weight::Idle { "1" } else { "0" };
        match write("cpu.idle", idle.to_owned()) {
            Err(_) if weight != Weight::Idle => {}
            other => other?,
        }
        let times = match weight {
            Weight::Idle => return Ok(()),
            Weight::Default => 1.0,
            Weight::Times(times) => times,
        };
        match self.version {
            Version::V1 => {
                let shares = (1_024.0 * times).clamp(2.0, 262_144.0);
                write("cpu.shares", format!("{shares:.0}"))
            }
            Version::V2 => {
                write("cpu.weight", format!("{:.0}", (100.0 * times).clamp(1.0, 10_000.0)))
            }
        }
    }

    /// CPU time of all that was ever in it, also of what has ended.
    ///
    /// # Errors
    /// When the kernel does not count it.
    pub fn cpu_time(&self) -> Result<Nanos> {
        for directory in &self.directories {
            if let Ok(text) = fs::read_to_string(directory.join("cpuacct.usage")) {
                return Ok(Nanos(text.trim().parse().context("cpuacct.usage is malformed")?));
            }
            let stat = fs::read_to_string(directory.join("cpu.stat")).unwrap_or_default();
            let usage = stat.lines().find_map(|line| line.strip_prefix("usage_usec "));
            if let Some(usage) = usage {
                let micros: u64 = usage.trim().parse().context("cpu.stat is malformed")?;
                return Ok(Nanos::from_micros(micros));
            }
        }
        bail!("the kernel does not count the CPU time of {}", self.name)
    }

    /// What its threads that live have used so far.
    ///
    /// # Errors
    /// When the group is gone.
    pub fn usage(&self) -> Result<Usage> {
        let mut sum = Usage::default();
        for pid in self.processes()? {
            // One that ends meanwhile counts no more.
            let Ok(usage) = usage_of(pid) else { continue };
            sum.cpu += usage.cpu;
            sum.sleeps += usage.sleeps;
        }
        Ok(sum)
    }

    /// Stops all of it where it is.
    ///
    /// # Errors
    /// When the group is gone.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets all of it go on.
    ///
    /// # Errors
    /// When the group is gone.
    pub fn go_on(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let mut known: Vec<i32> = Vec::new();
        for _ in 0..PASSES_MAX {
            let new: Vec<i32> =
                self.processes()?.into_iter().filter(|pid| !known.contains(pid)).collect();
            if new.is_empty() {
                return Ok(());
            }
            new.iter().for_each(|&pid| send(pid, signal));
            known.extend(new);
        }
        bail!("{} starts programs faster than they can be stopped", self.name)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for directory in &self.directories {
            remove(directory);
            // Only the last one's leaves it empty.
            directory.parent().map(fs::remove_dir);
        }
    }
}

/// Ends what a benchmark that was killed left running in its groups, and removes these. Returns the names.
pub fn remove_all() -> Vec<String> {
    let mut names = Vec::new();
    for root in roots().map(|(roots, _)| roots).unwrap_or_default() {
        let parent = root.join(PARENT);
        for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove(&entry.path());
                let name = entry.file_name().to_string_lossy().into_owned();
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        let _ = fs::remove_dir(&parent);
    }
    names
}

/// Kills what is in a group and removes it.
fn remove(directory: &Path) {
    let until = Instant::now() + GONE_MAX;
    while fs::remove_dir(directory).is_err() && directory.exists() && Instant::now() < until {
        let every = CoreSet::from_words(&[u64::MAX; quell_model::CORES_MAX / 64]);
        for pid in members(directory).unwrap_or_default() {
            send(pid, Signal::KILL);
            // To die it needs a core, and on its own a real-time thread may be before it for ever.
            threads_of(pid).unwrap_or_default().into_iter().for_each(|tid| _ = pin(tid, &every));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

fn members(directory: &Path) -> io::Result<Vec<i32>> {
    let text = fs::read_to_string(directory.join("cgroup.procs"))?;
    Ok(text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect())
}

/// Where the hierarchies of the cpu and cpuacct controllers are mounted.
fn roots() -> Option<(Vec<PathBuf>, Version)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounted(&mounts)
}

fn mounted(mountinfo: &str) -> Option<(Vec<PathBuf>, Version)> {
    let mut v2 = None;
    let (mut weights, mut account) = (None, None);
    for line in mountinfo.lines() {
        let Some((mount, kind)) = line.split_once(" - ") else { continue };
        let Some(point) = mount.split(' ').nth(4).map(PathBuf::from) else { continue };
        let mut kind = kind.split(' ');
        match kind.next() {
            Some("cgroup2") => v2 = v2.or(Some(point)),
            Some("cgroup") => {
                let options = kind.nth(1).unwrap_or_default();
                let has = |name: &str| options.split(',').any(|option| option == name);
                if has("cpu") {
                    weights = weights.or(Some(point));
                } else if has("cpuacct") {
                    account = account.or(Some(point));
                }
            }
            _ => {}
        }
    }
    match (weights, v2) {
        (Some(weights), _) => {
            Some((std::iter::once(weights).chain(account).collect(), Version::V1))
        }
        (None, Some(unified)) => Some((vec![unified], Version::V2)),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Program;
    use quell_testkit::host_lock;

    #[test]
    fn hierarchies_are_found_in_both_versions() {
        let v1 = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                  33 31 0:30 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n\
                  41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let (roots, version) = mounted(v1).unwrap();
        assert_eq!(version, Version::V1);
        assert_eq!(roots, ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpuacct"].map(PathBuf::from));
        let v2 = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(mounted(v2), Some((vec![PathBuf::from("/sys/fs/cgroup")], Version::V2)));
        assert_eq!(mounted("1 2 0:1 / /proc rw - proc proc rw\n"), None);
    }

    #[test]
    fn a_group_holds_what_its_program_starts_and_ends_it() {
        let _lock = host_lock().unwrap();
        let group = Group::create("test-holds").unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & sleep 60 & wait"]);
        let program = Program::start_in("sh", &mut command, &group).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while group.processes().unwrap().len() < 3 {
            assert!(Instant::now() < until, "{:?}", group.processes());
            std::thread::sleep(Duration::from_millis(5));
        }
        let pids = group.processes().unwrap();
        let session = |pid: i32| rustix::process::getsid(Pid::from_raw(pid)).unwrap();
        assert!(pids.iter().all(|&pid| session(pid).as_raw_nonzero().get() == program.pid()));
        group.set_policy(Policy::Batch, 3).unwrap();
        assert!(pids.iter().all(|&pid| crate::host::nice(pid).unwrap() == 3));
        for weight in [Weight::Times(4.0), Weight::Idle, Weight::Default] {
            group.set_weight(weight).unwrap();
        }
        assert!(group.cpu_time().unwrap() > Nanos::ZERO);
        let directories = group.directories.clone();
        drop(group);
        assert!(directories.iter().all(|directory| !directory.exists()));
        // One that has ended and that its new parent did not wait for yet has no command line.
        let command_line = |pid: i32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        assert!(pids.iter().skip(1).all(|&pid| command_line(pid).is_empty()));
        drop(program);
    }
}
