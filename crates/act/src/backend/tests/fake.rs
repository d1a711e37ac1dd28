//! A host that records what a back end asks of it.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use quell_model::{
    Class, CoreId, CoreMode, CorePlan, CoreSet, Nanos, Plan, Reason, Rung, TaskId, TaskPlan,
    TaskReason, ThreadId,
};

use crate::backend::{Host, Inspection, TaskGroups, TaskInfo, ThreadSettings};
use crate::{ActError, RestoreReport, SchedAttr, Subject};
use quell_observe::{ThreadState, ThreadView};
use quell_os::{ThreadRef, Tid};

/// A change that was asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    Sched(i32, SchedAttr),
    Cores(i32, CoreSet),
    Freeze(PathBuf, bool),
    Group(PathBuf, String),
}

/// The first value found and the last one written.
#[derive(Clone, Copy, Default)]
struct Wrote {
    sched: Option<(SchedAttr, SchedAttr)>,
    cores: Option<(CoreSet, CoreSet)>,
}

/// Threads with their settings, and a log.
pub struct FakeHost {
    pub now: Nanos,
    pub online: CoreSet,
    pub threads: HashMap<Tid, (SchedAttr, CoreSet)>,
    /// Of those that show what Quell gave their parents.
    pub originals: HashMap<Tid, (SchedAttr, CoreSet)>,
    pub log: Vec<Call>,
    pub groups: HashMap<PathBuf, String>,
    pub given_back: Vec<i32>,
    wrote: HashMap<Tid, Wrote>,
    pub reads: u32,
    pub refuses_realtime: HashSet<Tid>,
    pub refuses_freezing: bool,
    pub halted: bool,
    /// Writes that are still taken before it halts; `None`: any number.
    pub writes_left: Option<u32>,
    /// Changed by somebody else since the executor last looked.
    pub raced: HashSet<Tid>,
}

impl FakeHost {
    pub fn new(cores: &str) -> FakeHost {
        FakeHost {
            now: Nanos::from_secs(1),
            online: set(cores),
            threads: HashMap::new(),
            originals: HashMap::new(),
            log: Vec::new(),
            groups: HashMap::new(),
            given_back: Vec::new(),
            wrote: HashMap::new(),
            reads: 0,
            refuses_realtime: HashSet::new(),
            refuses_freezing: false,
            halted: false,
            writes_left: None,
            raced: HashSet::new(),
        }
    }

    pub fn thread(&mut self, tid: i32, cores: &str) {
        self.threads.insert(Tid(tid), (SchedAttr::OTHER, set(cores)));
    }

    pub fn cores_of(&self, tid: i32) -> String {
        self.threads[&Tid(tid)].1.to_string()
    }

    pub fn sched_of(&self, tid: i32) -> SchedAttr {
        self.threads[&Tid(tid)].0
    }

    fn write(&mut self, thread: &ThreadRef) -> Result<&mut (SchedAttr, CoreSet), ActError> {
        if self.halted || self.writes_left == Some(0) {
            return Err(ActError::Unguarded);
        }
        self.writes_left = self.writes_left.map(|left| left - 1);
        if self.raced.remove(&thread.tid) {
            return Err(ActError::Raced { what: Subject::Sched(*thread), seen: String::new() });
        }
        self.threads.get_mut(&thread.tid).ok_or(ActError::Gone(*thread))
    }
}

fn refused(errno: i32) -> ActError {
    ActError::Refused { errno, what: String::new(), remedy: String::new() }
}

impl Host for FakeHost {
    fn now(&self) -> Nanos {
        self.now
    }

    fn online(&mut self) -> CoreSet {
        self.online
    }

    fn sched(&mut self, thread: &ThreadRef) -> Result<SchedAttr, ActError> {
        self.reads += 1;
        self.threads.get(&thread.tid).map(|t| t.0).ok_or(ActError::Gone(*thread))
    }

    fn affinity(&mut self, thread: &ThreadRef) -> Result<CoreSet, ActError> {
        self.reads += 1;
        self.threads.get(&thread.tid).map(|t| t.1).ok_or(ActError::Gone(*thread))
    }

    fn set_sched(&mut self, thread: &ThreadRef, attr: SchedAttr) -> Result<(), ActError> {
        if attr.policy.is_realtime() && self.refuses_realtime.contains(&thread.tid) {
            self.log.push(Call::Sched(thread.tid.0, attr));
            return Err(refused(libc::EPERM));
        }
        let before = std::mem::replace(&mut self.write(thread)?.0, attr);
        let wrote = self.wrote.entry(thread.tid).or_default();
        wrote.sched = Some((wrote.sched.map_or(before, |(old, _)| old), attr));
        self.log.push(Call::Sched(thread.tid.0, attr));
        Ok(())
    }

    fn set_affinity(&mut self, thread: &ThreadRef, cores: &CoreSet) -> Result<(), ActError> {
        assert!(!cores.is_empty(), "the kernel refuses an empty affinity");
        let online = self.online;
        let entry = self.write(thread)?;
        if cores.intersection(&online).is_empty() {
            return Err(refused(libc::EINVAL));
        }
        let before = std::mem::replace(&mut entry.1, *cores);
        let wrote = self.wrote.entry(thread.tid).or_default();
        wrote.cores = Some((wrote.cores.map_or(before, |(old, _)| old), *cores));
        self.log.push(Call::Cores(thread.tid.0, *cores));
        Ok(())
    }

    fn freeze(&mut self, group: &Path, frozen: bool) -> Result<(), ActError> {
        if self.refuses_freezing {
            return Err(refused(libc::EACCES));
        }
        self.log.push(Call::Freeze(group.to_owned(), frozen));
        Ok(())
    }

    fn affinity_online(&mut self, thread: &ThreadRef) -> Result<CoreSet, ActError> {
        let online = self.online;
        self.affinity(thread).map(|cores| cores.intersection(&online))
    }

    fn inspect(&mut self, thread: &ThreadRef) -> Result<Inspection, ActError> {
        let settings = |(sched, cores)| ThreadSettings { sched, cores };
        let present = (self.sched(thread)?, self.affinity(thread)?);
        let original = self.originals.get(&thread.tid).copied().unwrap_or(present);
        Ok(Inspection { present: settings(present), original: settings(original) })
    }

    fn adopt(&mut self, _child: &ThreadRef, _parent: &ThreadRef) -> Result<(), ActError> {
        Ok(())
    }

    fn give_back(&mut self, threads: &[ThreadRef]) -> RestoreReport {
        for thread in threads {
            self.given_back.push(thread.tid.0);
            let (Some(wrote), Some(present)) =
                (self.wrote.remove(&thread.tid), self.threads.get_mut(&thread.tid))
            else {
                continue;
            };
            if wrote.sched.is_some_and(|(_, new)| new == present.0) {
                present.0 = wrote.sched.map_or(present.0, |(old, _)| old);
            }
            if wrote.cores.is_some_and(|(_, new)| new == present.1) {
                present.1 = wrote.cores.map_or(present.1, |(old, _)| old);
            }
        }
        RestoreReport::default()
    }

    fn read_group(&mut self, file: &Path) -> Result<String, ActError> {
        self.groups.get(file).cloned().ok_or_else(|| refused(libc::ENOENT))
    }

    fn write_group(&mut self, file: &Path, value: &str) -> Result<(), ActError> {
        self.log.push(Call::Group(file.to_owned(), value.to_owned()));
        self.groups.insert(file.to_owned(), value.to_owned());
        Ok(())
    }
}

pub fn set(list: &str) -> CoreSet {
    list.parse().unwrap()
}

pub fn task(index: u32) -> TaskId {
    TaskId { index, generation: 0 }
}

pub fn thread(tid: i32) -> ThreadRef {
    ThreadRef { tid: Tid(tid), tgid: Tid(tid / 10 * 10), start_ticks: 7 }
}

pub fn view(tid: i32, of: u32) -> ThreadView {
    ThreadView {
        id: ThreadId { index: tid as u32, generation: 0 },
        thread: thread(tid),
        task: task(of),
        member: 0,
        lc: of == 0,
        state: ThreadState::Sleeping,
        since: Nanos::ZERO,
        awake_since: Nanos::ZERO,
        core: CoreId(0),
        ran: Nanos::ZERO,
        waited: Nanos::ZERO,
        burst: Nanos::ZERO,
        burst_whole: Nanos::ZERO,
        transitions: 0,
    }
}

pub fn info(index: u32, name: &str) -> TaskInfo {
    TaskInfo {
        switched: None,
        id: task(index),
        name: name.to_owned(),
        may_freeze: false,
        groups: TaskGroups::default(),
        away: CoreSet::EMPTY,
    }
}

/// A plan for `cores` managed cores numbered from 1 (core 0 is unmanaged).
pub fn plan(cores: u16) -> Plan {
    let core = |id| CorePlan {
        id: CoreId(id),
        owner: None,
        mode: if id == 0 { CoreMode::Unmanaged } else { CoreMode::Kernel },
        reason: if id == 0 { Reason::Unmanaged } else { Reason::Leftover },
        yields: None,
    };
    Plan { cores: (0..=cores).map(core).collect(), tasks: Vec::new(), ..Plan::default() }
}

/// Adds a task to a plan.
pub fn give(plan: &mut Plan, class: Class, rung: Rung, owns: &str, shared_cores: &str) {
    let id = task(plan.tasks.len() as u32);
    for core in set(owns).iter() {
        plan.cores[core.index()].owner = Some(id);
    }
    let (shared_cores, reason) = (set(shared_cores), TaskReason::Configured);
    plan.tasks.push(TaskPlan { id, class, cap: 9, rung, shared_cores, llc_ways: None, reason });
}
