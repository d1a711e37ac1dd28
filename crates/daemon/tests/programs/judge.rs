//! The crash tests' judge: says whether a host is as it was.
//!
//! `quell-judge dump FILE ROOT...` writes down every thread in the sessions of the processes ROOT, and the
//! host's settings. `quell-judge compare FILE` reads everything again and prints what differs: a line each on
//! standard output, and status 1. Threads that ended meanwhile do not count; those born meanwhile have to be
//! as their nearest forebear was.
//!
//! It shares no code with what it judges.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["dump", file, roots @ ..] => dump(file, roots),
        ["compare", file] => compare(file),
        _ => Err("usage: quell-judge dump FILE ROOT... | compare FILE".into()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(what) => {
            eprintln!("quell-judge: {what}");
            ExitCode::from(2)
        }
    }
}

/// A thread: identity, descent, and what is judged.
#[derive(Clone)]
struct Thread {
    pid: i32,
    tid: i32,
    start: u64,
    parent: i32,
    session: i32,
    name: String,
    state: String,
}

impl Thread {
    fn key(&self) -> String {
        format!("{} {} {}", self.pid, self.tid, self.start)
    }
}

fn dump(file: &str, roots: &[&str]) -> Result<bool, String> {
    let threads = threads();
    let sessions: Vec<i32> = roots
        .iter()
        .map(|root| {
            let thread = threads.iter().find(|thread| thread.pid.to_string() == *root);
            thread.map(|thread| thread.session).ok_or(format!("there is no process {root}"))
        })
        .collect::<Result<_, _>>()?;
    let mut text = String::new();
    for session in &sessions {
        text += &format!("session\t{session}\n");
    }
    for thread in threads.iter().filter(|thread| sessions.contains(&thread.session)) {
        text += &format!("thread\t{}\t{}\t{}\n", thread.key(), thread.name, thread.state);
    }
    for (path, value) in settings() {
        text += &format!("setting\t{path}\t{value}\n");
    }
    fs::write(file, text).map_err(|error| format!("{file}: {error}"))?;
    Ok(true)
}

fn compare(file: &str) -> Result<bool, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let mut sessions = Vec::new();
    let mut before = BTreeMap::new();
    let mut set = BTreeMap::new();
    for line in text.lines() {
        match *line.split('\t').collect::<Vec<_>>().as_slice() {
            ["session", session] => sessions.push(session.parse::<i32>().unwrap_or(0)),
            ["thread", key, _, state] => drop(before.insert(key.to_owned(), state.to_owned())),
            ["setting", path, value] => drop(set.insert(path.to_owned(), value.to_owned())),
            _ => return Err(format!("{file}: not a dump: {line}")),
        }
    }
    let mut same = true;
    let mut differs = |what: String, was: &str, is: &str| {
        println!("{what}: was {was}, is {is}");
        same = false;
    };
    let threads = threads();
    for thread in threads.iter().filter(|thread| sessions.contains(&thread.session)) {
        let (was, how) = match before.get(&thread.key()) {
            Some(was) => (Some(was), "thread"),
            None => (forebear(thread, &threads, &before), "new thread"),
        };
        if let Some(was) = was.filter(|was| **was != thread.state) {
            differs(format!("{how} {} `{}`", thread.key(), thread.name), was, &thread.state);
        }
    }
    let now = settings();
    for (path, was) in &set {
        let is = now.get(path).map_or("gone", String::as_str);
        if is != was {
            differs(path.clone(), was, is);
        }
    }
    for path in now.keys().filter(|path| !set.contains_key(*path)) {
        differs(path.clone(), "not there", "there");
    }
    Ok(same)
}

/// What the nearest forebear of a new thread was: its process's first thread, or its parent's, and so on.
fn forebear<'b>(
    thread: &Thread,
    threads: &[Thread],
    before: &'b BTreeMap<String, String>,
) -> Option<&'b String> {
    let first = |pid: i32| threads.iter().find(|other| other.pid == pid && other.tid == pid);
    let mut at = first(thread.pid)?;
    for _ in 0..64 {
        if let Some(was) = before.get(&at.key()) {
            return Some(was);
        }
        at = first(at.parent)?;
    }
    None
}

fn threads() -> Vec<Thread> {
    let mut found = Vec::new();
    for pid in numbers(Path::new("/proc")) {
        let tasks = PathBuf::from(format!("/proc/{pid}/task"));
        found.extend(numbers(&tasks).into_iter().filter_map(|tid| thread(pid, tid)));
    }
    found
}

fn numbers(dir: &Path) -> Vec<i32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn thread(pid: i32, tid: i32) -> Option<Thread> {
    let dir = PathBuf::from(format!("/proc/{pid}/task/{tid}"));
    let stat = Stat::read(&dir)?;
    let status = fs::read_to_string(dir.join("status")).ok()?;
    let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim();
    let groups = fs::read_to_string(dir.join("cgroup")).ok()?.trim().replace('\n', " ");
    let state = format!(
        "policy={:#x} priority={} nice={} slice={} cores={cores} groups={groups}",
        policy(tid)?,
        stat.field(40)?,
        stat.field(19)?,
        slice(tid),
    );
    // A thread that exits meanwhile has left its groups already.
    let ends = Stat::read(&dir).is_none_or(|stat| stat.is_exiting());
    (!ends).then_some(Thread {
        pid,
        tid,
        start: stat.number(22)? as u64,
        parent: stat.number(4)? as i32,
        session: stat.number(6)? as i32,
        name: stat.name,
        state,
    })
}

/// The `stat` file of proc(5).
struct Stat {
    name: String,
    /// From the third on.
    fields: Vec<String>,
}

impl Stat {
    fn read(dir: &Path) -> Option<Stat> {
        let text = fs::read_to_string(dir.join("stat")).ok()?;
        let (head, rest) = text.rsplit_once(") ")?;
        let name = head.split_once('(')?.1.to_owned();
        Some(Stat { name, fields: rest.split(' ').map(str::to_owned).collect() })
    }

    fn field(&self, number: usize) -> Option<&str> {
        self.fields.get(number - 3).map(String::as_str)
    }

    fn number(&self, number: usize) -> Option<i64> {
        self.field(number)?.parse().ok()
    }

    fn is_exiting(&self) -> bool {
        /// The thread is on its way out (`include/linux/sched.h`).
        const PF_EXITING: i64 = 4;
        matches!(self.field(3), Some("Z" | "X"))
            || self.number(9).is_some_and(|flags| flags & PF_EXITING != 0)
    }
}

/// The policy with its flags.
fn policy(tid: i32) -> Option<i32> {
    // SAFETY: takes and returns plain numbers.
    let policy = unsafe { libc::sched_getscheduler(tid) };
    (policy >= 0).then_some(policy)
}

/// The slice of a thread under a fair policy.
fn slice(tid: i32) -> u64 {
    let mut attr = [0_u64; 6];
    // SAFETY: the buffer has the size that is passed.
    let read = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, attr.as_mut_ptr(), 48, 0) };
    // The policy is the second half of the first word; the slice is the fourth word.
    if read == 0 && attr[0] >> 32 == 0 { attr[3] } else { 0 }
}

/// Every setting that Quell may change, and all cgroup directories.
fn settings() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc/sys/kernel").into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with("sched_") {
            note(&mut found, &entry.path());
        }
    }
    for irq in numbers(Path::new("/proc/irq")) {
        note(&mut found, Path::new(&format!("/proc/irq/{irq}/smp_affinity_list")));
    }
    note(&mut found, Path::new("/sys/devices/virtual/workqueue/cpumask"));
    for entry in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
        groups(&mut found, &entry.path(), 0);
    }
    found
}

fn groups(found: &mut BTreeMap<String, String>, dir: &Path, depth: usize) {
    if depth > 8 || !dir.join("cgroup.procs").exists() {
        return;
    }
    // Groups of other tests, which run at the same time, come and go.
    if depth > 0 && !dir.to_string_lossy().contains("quell-crash") {
        return;
    }
    found.insert(dir.to_string_lossy().into_owned(), "group".into());
    for file in ["cpu.rt_runtime_us", "cpu.shares", "cpuset.cpus", "freezer.state", "cgroup.freeze"]
    {
        note(found, &dir.join(file));
    }
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            groups(found, &entry.path(), depth + 1);
        }
    }
}

fn note(found: &mut BTreeMap<String, String>, path: &Path) {
    if let Ok(value) = fs::read_to_string(path) {
        let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
        found.insert(path.to_string_lossy().into_owned(), value);
    }
}
