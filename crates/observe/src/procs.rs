//! Which processes and threads there are, from /proc and the cgroup file systems.
//!
//! Processes come and go while they are read: what vanished meanwhile is left out, never an error.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use quell_os::ThreadStat;
use quell_os::{ThreadRef, Tid};

/// `PF_KTHREAD` of include/linux/sched.h, in the flags of a `stat` file.
const PF_KTHREAD: u64 = 0x0020_0000;

/// How the kernel cuts a name (`TASK_COMM_LEN` without the end mark).
const NAME_MAX: usize = 15;

/// Deeper trees than this are followed no further; cgroups are limited by the kernel, processes are not.
const DEPTH_MAX: usize = 64;

/// The threads that a process has now.
///
/// # Errors
/// `NotFound` when there is no such process.
pub fn threads(pid: i32) -> io::Result<Vec<ThreadRef>> {
    ThreadRef::all_of(Tid(pid))
}

/// The thread with this number, whichever process it belongs to.
///
/// # Errors
/// `NotFound` when there is no such thread; `InvalidData` for another format than proc(5) documents.
pub fn thread(tid: i32) -> io::Result<ThreadRef> {
    let status = fs::read_to_string(format!("/proc/{tid}/status"))?;
    let tgid = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    let tgid = tgid.and_then(|tgid| tgid.trim().parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    ThreadRef::of(Tid(tgid), Tid(tid))
}

/// The name of a thread, as it gave it to itself (`comm`); empty once it is gone.
pub fn thread_name(tid: i32) -> String {
    let name = fs::read(format!("/proc/{tid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().to_owned()
}

/// Whether there is such a process and it has not ended. One that ended and was not waited for has.
pub fn exists(pid: i32) -> bool {
    match ThreadStat::of(Tid(pid), Tid(pid)) {
        // A leader that exited before its other threads shows as a zombie, too.
        Ok(stat) if stat.state == b'Z' => threads(pid).is_ok_and(|all| all.len() > 1),
        Ok(stat) => stat.state != b'X',
        Err(_) => false,
    }
}

/// Whether it is a thread of the kernel. `false` of what does not exist.
pub fn is_kernel_thread(pid: i32) -> bool {
    ThreadStat::of(Tid(pid), Tid(pid)).is_ok_and(|stat| stat.flags & PF_KTHREAD != 0)
}

/// The effective user of a process.
///
/// # Errors
/// When it is gone.
pub fn user(pid: i32) -> io::Result<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let effective = uids.and_then(|uids| uids.split_whitespace().nth(1)?.parse().ok());
    effective.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The numbers of all processes.
///
/// # Errors
/// When /proc is not mounted.
pub fn all() -> io::Result<Vec<i32>> {
    let entries = fs::read_dir("/proc")?.flatten();
    Ok(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// The processes with this name: that of the kernel (`comm`, cut after 15 bytes), or the file name
/// of the program that they run.
///
/// # Errors
/// When /proc is not mounted.
pub fn by_name(name: &str) -> io::Result<Vec<i32>> {
    let mut found = all()?;
    found.retain(|&pid| !name.is_empty() && has_name(pid, name));
    Ok(found)
}

fn has_name(pid: i32, name: &str) -> bool {
    let cut = &name.as_bytes()[..name.len().min(NAME_MAX)];
    let comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    if comm.strip_suffix(b"\n").unwrap_or(&comm) != cut {
        return program(pid).is_some_and(|path| path.file_name().is_some_and(|file| file == name));
    }
    // The kernel's name is a prefix of a long one: the program tells those apart where it can.
    name.len() <= NAME_MAX
        || program(pid).is_none_or(|path| path.file_name().is_some_and(|file| file == name))
}

fn program(pid: i32) -> Option<PathBuf> {
    let path = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    // A program that was replaced on disk, as by an upgrade, still runs under its name.
    match path.to_str().and_then(|text| text.strip_suffix(" (deleted)")) {
        Some(text) => Some(PathBuf::from(text)),
        None => Some(path),
    }
}

/// This process, its parent, and so on up to pid 1.
pub fn self_and_ancestors() -> Vec<i32> {
    let mut line = vec![rustix::process::getpid().as_raw_nonzero().get()];
    while let Some(&last) = line.last() {
        let Ok(stat) = ThreadStat::of(Tid(last), Tid(last)) else { break };
        if stat.parent.0 <= 0 || line.contains(&stat.parent.0) {
            break;
        }
        line.push(stat.parent.0);
    }
    line
}

/// The processes that a process created, those that they created, and so on. A child whose creator
/// ended belongs to another parent by then: what must not be missed is followed by the fork hook.
pub fn descendants(pid: i32) -> Vec<i32> {
    let mut found = BTreeSet::new();
    let mut generation = vec![pid];
    for _ in 0..DEPTH_MAX {
        let next: Vec<i32> = generation.iter().flat_map(|&pid| children(pid)).collect();
        generation =
            next.into_iter().filter(|&child| child != pid && found.insert(child)).collect();
        if generation.is_empty() {
            break;
        }
    }
    found.into_iter().collect()
}

fn children(pid: i32) -> Vec<i32> {
    // The file needs CONFIG_PROC_CHILDREN.
    if !Path::new("/proc/thread-self/children").exists() {
        return children_by_parent(pid);
    }
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists =
        entries.flatten().flat_map(|thread| fs::read_to_string(thread.path().join("children")));
    lists
        .flat_map(|list| list.split_ascii_whitespace().flat_map(str::parse).collect::<Vec<i32>>())
        .collect()
}

fn children_by_parent(pid: i32) -> Vec<i32> {
    let is_child = |&child: &i32| {
        ThreadStat::of(Tid(child), Tid(child)).is_ok_and(|stat| stat.parent == Tid(pid))
    };
    all().unwrap_or_default().into_iter().filter(is_child).collect()
}

/// The processes of a cgroup and of those beneath it. The path is either one in the file system, or
/// one as `/proc/PID/cgroup` shows it; the latter is looked for in cgroup v2 first, then under the v1
/// controllers that matter here.
///
/// # Errors
/// `NotFound` when no hierarchy has such a cgroup.
pub fn of_cgroup(path: &str) -> io::Result<Vec<i32>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let directory = resolve(path, &cgroup_mounts(&mounts)).ok_or(io::ErrorKind::NotFound)?;
    let mut found = BTreeSet::new();
    collect(&directory, DEPTH_MAX, &mut found)?;
    Ok(found.into_iter().collect())
}

fn collect(directory: &Path, depth: usize, found: &mut BTreeSet<i32>) -> io::Result<()> {
    // A threaded v2 cgroup refuses to list processes; its threads name them.
    let (list, by_thread) = match fs::read_to_string(directory.join("cgroup.procs")) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            (fs::read_to_string(directory.join("cgroup.threads"))?, true)
        }
        list => (list?, false),
    };
    for number in list.lines().flat_map(str::parse::<i32>).filter(|&number| number > 0) {
        match by_thread {
            true => found.extend(thread(number).map(|thread| thread.tgid.0)),
            false => _ = found.insert(number),
        }
    }
    for entry in fs::read_dir(directory)?.flatten() {
        if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            match collect(&entry.path(), depth - 1, found) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                // It was removed meanwhile.
                _ => {}
            }
        }
    }
    Ok(())
}

/// Mount points of cgroup hierarchies, the preferred first.
fn cgroup_mounts(mountinfo: &str) -> Vec<PathBuf> {
    let mut mounts: Vec<(usize, PathBuf)> = mountinfo
        .lines()
        .filter_map(|line| {
            let (mount, kind) = line.split_once(" - ")?;
            let point = mount.split(' ').nth(4)?.replace("\\040", " ");
            let mut kind = kind.split(' ');
            let rank = match kind.next()? {
                "cgroup2" => 0,
                "cgroup" => {
                    let options = kind.nth(1)?;
                    let has = |name: &str| options.split(',').any(|option| option == name);
                    let order = ["cpu", "cpuset", "freezer"];
                    1 + order.iter().position(|name| has(name)).unwrap_or(order.len())
                }
                _ => return None,
            };
            Some((rank, PathBuf::from(point)))
        })
        .collect();
    mounts.sort_by_key(|&(rank, _)| rank);
    mounts.into_iter().map(|(_, point)| point).collect()
}

fn resolve(path: &str, mounts: &[PathBuf]) -> Option<PathBuf> {
    let is_cgroup = |path: &PathBuf| path.join("cgroup.procs").is_file();
    let given = PathBuf::from(path);
    if mounts.iter().any(|mount| given.starts_with(mount)) {
        return Some(given).filter(is_cgroup);
    }
    // The root cgroup holds the whole host: nobody means that by an empty path or by `..`.
    let inner = path.trim_start_matches('/');
    if inner.is_empty() || inner.split('/').any(|part| part == "..") {
        return None;
    }
    mounts.iter().map(|mount| mount.join(inner)).find(is_cgroup)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    /// A process that is ended and waited for, even if the test fails.
    struct Sleeper(Child);

    impl Sleeper {
        fn start() -> Sleeper {
            Sleeper(Command::new("sleep").arg("60").spawn().unwrap())
        }

        fn pid(&self) -> i32 {
            self.0.id() as i32
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn me() -> i32 {
        std::process::id() as i32
    }

    #[test]
    fn a_child_is_found_by_name_and_by_descent() {
        let child = Sleeper::start();
        assert!(descendants(me()).contains(&child.pid()));
        assert!(exists(child.pid()) && !is_kernel_thread(child.pid()));
        // Its name is that of its creator until it has replaced its program.
        let named = || by_name("sleep").unwrap().contains(&child.pid());
        assert!((0..1_000).any(|_| named() || {
            std::thread::yield_now();
            false
        }));
        let threads = threads(child.pid()).unwrap();
        assert_eq!(threads, vec![thread(child.pid()).unwrap()]);
    }

    #[test]
    fn what_ended_does_not_exist() {
        let mut child = Sleeper::start();
        let pid = child.pid();
        child.0.kill().unwrap();
        // Not waited for yet: a zombie is no process to adopt.
        assert!((0..1_000_000).any(|_| !exists(pid)));
        child.0.wait().unwrap();
        assert!(!exists(pid) && threads(pid).is_err() && thread(pid).is_err());
        assert!(descendants(pid).is_empty());
    }

    #[test]
    fn the_line_of_ancestors_starts_here_and_ends_at_the_first_process() {
        let line = self_and_ancestors();
        assert_eq!(line.first(), Some(&me()));
        assert_eq!(line.last(), Some(&1));
    }

    #[test]
    fn kernel_threads_are_told_apart() {
        assert!(is_kernel_thread(2), "pid 2 is kthreadd");
        assert!(!is_kernel_thread(me()) && !is_kernel_thread(i32::MAX));
    }

    #[test]
    fn hierarchies_are_found_and_ordered() {
        let mounts = "\
30 24 0:26 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n\
31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:10 - cgroup cgroup rw,cpu,cpuacct\n\
32 24 0:28 / /sys/fs/cgroup/uni\\040fied rw shared:11 - cgroup2 cgroup2 rw,nsdelegate\n\
33 24 0:29 / /proc rw - proc proc rw\n";
        let found = cgroup_mounts(mounts);
        let expected =
            ["/sys/fs/cgroup/uni fied", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory"];
        assert_eq!(found, expected.map(PathBuf::from));
    }

    #[test]
    fn a_cgroup_path_cannot_leave_its_hierarchy_or_name_the_whole_host() {
        let mounts = vec![PathBuf::from("/sys/fs/cgroup")];
        for path in ["", "/", "../../etc", "/a/../.."] {
            assert_eq!(resolve(path, &mounts), None, "{path}");
        }
        assert!(of_cgroup("/no/such/cgroup").is_err());
    }
}
