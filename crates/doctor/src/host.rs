//! Files of the host, below a root that tests replace by a tree of their own.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::PathBuf;

use quell_model::{CoreSet, Topology};

use quell_act::backend::Layout;
use quell_observe::kernel::Kernel;
use quell_observe::topology;

/// Files of the kernel are small; what is larger is not one of them.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Bounds each directory listing.
const ENTRIES_MAX: usize = 65_536;

/// A host, by its files.
pub(super) struct Host {
    root: PathBuf,
}

/// A line of the mount table.
pub(super) struct Mount {
    pub target: String,
    pub kind: String,
    pub options: String,
}

/// A kernel thread with its scheduling parameters, from its `stat` file.
pub(super) struct KernelThread {
    pub name: String,
    pub policy: u32,
    pub rt_priority: u32,
}

impl Host {
    /// The host whose files are below `root`; `/` for this one.
    pub fn at(root: impl Into<PathBuf>) -> Host {
        Host { root: root.into() }
    }

    /// Where a file of the host is, by its absolute path there.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Whether there is something at this path.
    pub fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// A file as trimmed text. Never fails on what is in it.
    pub fn read(&self, path: &str) -> io::Result<String> {
        let bytes = self.read_bytes(path)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    fn read_bytes(&self, path: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.path(path))?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// A file as text, empty where it cannot be read.
    pub fn text(&self, path: &str) -> String {
        self.read(path).unwrap_or_default()
    }

    /// A file as a number.
    pub fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.read(path).ok()?.parse().ok()
    }

    /// A file as a list of cores.
    pub fn cores(&self, path: &str) -> Option<CoreSet> {
        self.read(path).ok()?.parse().ok()
    }

    /// Tries to open for writing and writes nothing. Lockdown shows here, not in the file's mode.
    pub fn may_write(&self, path: &str) -> io::Result<()> {
        File::options().write(true).open(self.path(path)).map(drop)
    }

    /// The names in a directory, sorted; empty where it cannot be read.
    pub fn list(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(path)) else { return Vec::new() };
        let names = entries.flatten().take(ENTRIES_MAX);
        let mut names: Vec<_> =
            names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Its kernel.
    pub fn kernel(&self) -> Kernel {
        Kernel::at(&self.root)
    }

    /// Where its cgroup controllers are.
    pub fn layout(&self) -> Layout {
        Layout::detect(&self.root).unwrap_or_default()
    }

    /// The mount table as this process sees it.
    pub fn mounts(&self) -> Vec<Mount> {
        let table = self.text("/proc/self/mounts");
        let mount = |line: &str| {
            let mut words = line.split(' ').skip(1).map(str::to_owned);
            Some(Mount { target: words.next()?, kind: words.next()?, options: words.next()? })
        };
        table.lines().filter_map(mount).collect()
    }

    /// Where a file system of this kind is mounted.
    pub fn mount_of(&self, kind: &str) -> Option<String> {
        self.mounts().into_iter().find(|mount| mount.kind == kind).map(|mount| mount.target)
    }

    /// The kind of file system that holds a path, by its longest mounted prefix.
    pub fn filesystem_of(&self, path: &str) -> Option<String> {
        let holds = |mount: &Mount| {
            let target = mount.target.trim_end_matches('/');
            path.strip_prefix(target).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        // Of two mounts on one directory the later hides the earlier; `max_by_key` keeps the last.
        self.mounts()
            .into_iter()
            .filter(holds)
            .max_by_key(|mount| mount.target.len())
            .map(|mount| mount.kind)
    }

    /// A line of a `status` file of this process.
    pub fn own_status(&self, field: &str) -> Option<String> {
        let text = self.read("/proc/self/status").ok()?;
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        lines.next().map(|value| value.trim().to_owned())
    }

    /// The cores that the kernel has online.
    pub fn online(&self) -> CoreSet {
        self.cores("/sys/devices/system/cpu/online").unwrap_or_default()
    }

    /// What cores share; `None` where sysfs does not say.
    pub fn topology(&self) -> Option<Topology> {
        topology::read_at(&self.path("/sys/devices/system/cpu")).ok()
    }

    /// Whether a process of this name runs.
    pub fn runs(&self, name: &str) -> bool {
        let mut pids = self.list("/proc").into_iter().filter(|pid| pid.parse::<u32>().is_ok());
        pids.any(|pid| self.text(&format!("/proc/{pid}/comm")) == name)
    }

    /// The kernel threads whose name starts with `prefix`, sorted by name.
    pub fn kernel_threads(&self, prefix: &str) -> Vec<KernelThread> {
        let pids = self.list("/proc").into_iter().filter(|name| name.parse::<u32>().is_ok());
        let mut threads: Vec<_> = pids
            .filter_map(|pid| kernel_thread(&self.read(&format!("/proc/{pid}/stat")).ok()?))
            .filter(|thread| thread.name.starts_with(prefix))
            .collect();
        threads.sort_by(|a, b| a.name.cmp(&b.name));
        threads
    }
}

/// Reads a `stat` line (proc_pid_stat(5)); `None` if it is not that of a kernel thread.
fn kernel_thread(stat: &str) -> Option<KernelThread> {
    const PF_KTHREAD: u64 = 0x0020_0000; // include/linux/sched.h
    let (head, tail) = stat.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    // The first of these is field 3.
    let fields: Vec<&str> = tail.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied();
    if field(9)?.parse::<u64>().ok()? & PF_KTHREAD == 0 {
        return None;
    }
    Some(KernelThread {
        name: name.to_owned(),
        rt_priority: field(40)?.parse().ok()?,
        policy: field(41)?.parse().ok()?,
    })
}
