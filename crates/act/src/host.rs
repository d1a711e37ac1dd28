//! What the host shows of the attributes that the executor changes, beyond what one system call tells.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use quell_model::CoreSet;

use super::SchedAttr;
use super::journal::value::Cores;
use quell_os::exists;
use quell_os::{ThreadRef, Tid};

/// Facts of the host that do not change, and cpusets as far as they were asked for.
pub(crate) struct Host {
    possible: CoreSet,
    default_slice: quell_model::Nanos,
    cpusets: Option<CpusetTree>,
    known: HashMap<PathBuf, CoreSet>,
}

/// Where cpusets are.
struct CpusetTree {
    root: PathBuf,
    file: &'static str,
}

impl Host {
    /// Reads the facts.
    ///
    /// # Errors
    /// When /proc or /sys is not mounted.
    pub(crate) fn read() -> io::Result<Host> {
        let possible = read_cores(Path::new("/sys/devices/system/cpu/possible"))?;
        let me = ThreadRef::current()?.tid;
        let slice = quell_os::sched::attr(me).map(|attr| attr.slice).unwrap_or_default();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        Ok(Host {
            possible,
            default_slice: slice,
            cpusets: CpusetTree::find(&mounts),
            known: HashMap::new(),
        })
    }

    /// All cores that this host can ever have.
    pub(crate) fn possible(&self) -> CoreSet {
        self.possible
    }

    /// Policy and priority of a thread as they have to be given back: with the nice value that FIFO and RR
    /// hide, and a slice only where one was asked for.
    pub(crate) fn sched_original(&self, tid: Tid) -> io::Result<SchedAttr> {
        let mut attr = quell_os::sched::attr(tid)?;
        if attr.policy.is_realtime() {
            attr.nice = quell_os::sched::nice(tid)?;
        }
        if attr.slice == self.default_slice {
            attr.slice = quell_model::Nanos::ZERO;
        }
        Ok(attr)
    }

    /// The affinity of a thread as it has to be given back: with cores that are offline now, which
    /// `sched_getaffinity(2)` leaves out.
    pub(crate) fn affinity_original(&mut self, thread: &ThreadRef) -> io::Result<Cores> {
        let set = allowed(thread)?;
        let cpuset = self.cpuset(thread);
        Ok(Cores { set, whole_cpuset: cpuset.is_subset(&set) })
    }

    /// Whether an affinity that is shown is the one that was written, as the cpuset leaves it.
    pub(crate) fn shows(&mut self, thread: &ThreadRef, written: &CoreSet, seen: &CoreSet) -> bool {
        if written == seen {
            return true;
        }
        let within = written.intersection(&self.cpuset(thread));
        !within.is_empty() && within == *seen
    }

    /// The cores of a thread's cpuset that are online; all possible ones where there are no cpusets.
    fn cpuset(&mut self, thread: &ThreadRef) -> CoreSet {
        let Some(tree) = &self.cpusets else { return self.possible };
        let Ok(path) =
            std::fs::read_to_string(format!("/proc/{}/task/{}/cpuset", thread.tgid, thread.tid))
        else {
            return self.possible;
        };
        let path = PathBuf::from(path.trim());
        if let Some(known) = self.known.get(&path) {
            return *known;
        }
        let cores = tree.cores(&path).unwrap_or(self.possible);
        self.known.insert(path, cores);
        cores
    }

    /// Forgets what was read of cpusets: they change.
    pub(crate) fn refresh(&mut self) {
        self.known.clear();
    }
}

impl CpusetTree {
    fn find(mountinfo: &str) -> Option<CpusetTree> {
        let mut unified = None;
        for line in mountinfo.lines() {
            let (Some((_, fs)), Some(root)) = (line.split_once(" - "), line.split(' ').nth(4))
            else {
                continue;
            };
            let options = fs.rsplit(' ').next().unwrap_or_default();
            if fs.starts_with("cgroup ") && options.split(',').any(|option| option == "cpuset") {
                let file = "cpuset.effective_cpus";
                return Some(CpusetTree { root: root.into(), file });
            }
            if fs.starts_with("cgroup2 ") {
                let file = "cpuset.cpus.effective";
                unified = Some(CpusetTree { root: root.into(), file });
            }
        }
        unified
    }

    /// The cores of the nearest group that has the file: v2 groups have it only where the controller is on.
    fn cores(&self, path: &Path) -> Option<CoreSet> {
        let relative = path.strip_prefix("/").ok()?;
        relative
            .ancestors()
            .find_map(|group| read_cores(&self.root.join(group).join(self.file)).ok())
    }
}

/// The cores that a thread may use, online or not: `Cpus_allowed_list` of its status file.
pub(crate) fn allowed(thread: &ThreadRef) -> io::Result<CoreSet> {
    if !exists(thread.tgid, thread.tid) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let status =
        std::fs::read_to_string(format!("/proc/{}/task/{}/status", thread.tgid, thread.tid))?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .and_then(|list| list.parse().ok())
        .filter(|set: &CoreSet| !set.is_empty())
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn read_cores(path: &Path) -> io::Result<CoreSet> {
    let list = std::fs::read_to_string(path)?;
    let cores: CoreSet =
        list.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    match cores.is_empty() {
        true => Err(io::ErrorKind::InvalidData.into()),
        false => Ok(cores),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpuset_of_either_version_is_found() {
        let v1 = "30 25 0:27 / /sys/fs/cgroup/cpuset rw shared:9 - cgroup cgroup rw,cpuset\n";
        let v2 = "29 25 0:26 / /sys/fs/cgroup rw shared:8 - cgroup2 cgroup2 rw,nsdelegate\n";
        let both = CpusetTree::find(&format!("{v2}{v1}")).unwrap();
        assert_eq!(
            (both.root.to_str(), both.file),
            (Some("/sys/fs/cgroup/cpuset"), "cpuset.effective_cpus")
        );
        assert_eq!(CpusetTree::find(v2).unwrap().file, "cpuset.cpus.effective");
        assert!(CpusetTree::find("").is_none());
    }

    #[test]
    fn an_affinity_as_wide_as_the_cpuset_is_no_choice_of_its_own() {
        let mut host = Host::read().unwrap();
        let me = ThreadRef::current().unwrap();
        let own = host.affinity_original(&me).unwrap();
        assert_eq!(own.set, allowed(&me).unwrap());
        assert_eq!(own.whole_cpuset, host.cpuset(&me).is_subset(&own.set));
    }
}
