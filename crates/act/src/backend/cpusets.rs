//! The cpuset back end: cores by cpuset, LC over BE by weight; no real-time priority at all.
//!
//! For hosts where real-time priority is refused or unwanted. Tasks in cpusets of Quell's own are placed
//! by these, all others thread by thread; BE is at SCHED_IDLE, and its cpu group weighs as good as
//! nothing. Fair scheduling takes milliseconds where priority takes microseconds (at HZ=250 up to a tick
//! of 4 ms), which [`HostCaps::actuation_delay`] says.

use std::path::{Path, PathBuf};

use quell_model::{BeRung, CoreSet, HostCaps, Nanos, Plan, Rung, TaskId};

use super::engine::{Engine, Failure, TaskState};
use super::intent::{Change, Intended, Style};
use super::target::{Targets, Want};
use super::weights::weight;
use super::{ApplyReport, BackEnd, CoreOutcome, Host, Notice, Pin, TaskInfo, TaskStatus, freezer};
use crate::{ActError, RestoreReport};
use quell_observe::ThreadView;
use quell_os::ThreadRef;

/// Cpusets and weights.
#[derive(Debug)]
pub struct Cpusets {
    engine: Engine,
    per_thread_state: bool,
    freezes: bool,
}

impl Cpusets {
    /// A back end without elevation. `per_thread_state` is what the observer can, `freezes` whether there is
    /// a freezer.
    pub fn new(per_thread_state: bool, freezes: bool) -> Cpusets {
        let style = Style {
            ladder: None,
            places_by_group: true,
            be: Rung::SchedIdle,
            background: Rung::LcFair,
        };
        Cpusets { engine: Engine::new(style, BeRung::SchedIdle), per_thread_state, freezes }
    }

    fn serve_groups(&mut self, phase: Phase, host: &mut dyn Host, report: &mut ApplyReport) {
        let now = host.now();
        for at in 0..self.engine.tasks.len() {
            let Some(state) = self.engine.tasks[at].as_mut() else { continue };
            let paused = state.group_refused.is_some_and(|refused| now < refused.until);
            let Some((want, _)) = self.engine.targets.of(state.info.id).filter(|_| !paused) else {
                continue;
            };
            let want = *want;
            for (file, done) in
                [set_cores(state, &want, phase, host), set_weight(state, &want, phase, host)]
                    .into_iter()
                    .flatten()
            {
                match done {
                    Ok(()) => report.moved += 1,
                    Err(error) => {
                        let failure = Failure::of(&error);
                        freezer::refuse(
                            &mut self.engine,
                            at,
                            "cgroup",
                            &file,
                            failure,
                            host,
                            report,
                        );
                    }
                }
            }
        }
    }
}

/// Cores are given before they are taken: a core without a group that may use it would idle, and a group
/// can only have what the one above it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Widen,
    Narrow,
}

/// What to write in a phase, if anything.
fn step(present: &CoreSet, wanted: &CoreSet, phase: Phase) -> Option<CoreSet> {
    let next = match phase {
        Phase::Widen => present.union(wanted),
        Phase::Narrow => *wanted,
    };
    (next != *present).then_some(next)
}

/// The cores of a task's cpuset. A cpuset cannot be empty: a task for which none is left retreats, or
/// keeps its last and is frozen, or stays at SCHED_IDLE.
fn cores_of_group(want: &Want) -> Option<CoreSet> {
    [want.usable, want.away].into_iter().find(|cores| !cores.is_empty())
}

/// An attempt on a file: which, and what became of it.
type Attempt = (PathBuf, Result<(), ActError>);

fn set_cores(
    state: &mut TaskState,
    want: &Want,
    phase: Phase,
    host: &mut dyn Host,
) -> Option<Attempt> {
    let wanted = cores_of_group(want)?;
    if state.group_cores == Some(wanted) {
        return None;
    }
    let file = state.info.groups.cpuset.as_ref()?.join(CORES);
    let present = match state.group_cores {
        Some(known) => known,
        None => match read_cores(&file, host) {
            Ok(found) => found,
            Err(error) => return Some((file, Err(error))),
        },
    };
    let Some(next) = step(&present, &wanted, phase) else {
        state.group_cores = Some(present);
        return None;
    };
    let above = if phase == Phase::Widen { widen_above(&file, &next, host) } else { Ok(()) };
    let done = above.and_then(|()| host.write_group(&file, &next.to_string()));
    if done.is_ok() {
        state.group_cores = Some(next);
        state.group_refused = None;
    }
    Some((file, done))
}

const CORES: &str = "cpuset.cpus";

fn read_cores(file: &Path, host: &mut dyn Host) -> Result<CoreSet, ActError> {
    Ok(host.read_group(file)?.parse().unwrap_or_default())
}

/// Makes sure that the group above has these cores. In version 2 an empty file stands for all that its
/// own parent has.
fn widen_above(file: &Path, cores: &CoreSet, host: &mut dyn Host) -> Result<(), ActError> {
    let Some(above) = file.parent().and_then(Path::parent).map(|dir| dir.join(CORES)) else {
        return Ok(());
    };
    let text = host.read_group(&above)?;
    let has: CoreSet = text.parse().unwrap_or_default();
    if cores.is_subset(&has) || text.is_empty() {
        return Ok(());
    }
    host.write_group(&above, &has.union(cores).to_string())
}

/// Sets the weight of a task's cpu group. SCHED_IDLE alone would not do: it ranks threads inside of one
/// group, and against other groups the group's weight counts.
fn set_weight(
    state: &mut TaskState,
    want: &Want,
    phase: Phase,
    host: &mut dyn Host,
) -> Option<Attempt> {
    let idle = matches!(want.rung, Rung::SchedIdle | Rung::FifoLow);
    // Weights rise with the first phase and fall with the second.
    if state.group_idle == Some(idle) || idle != (phase == Phase::Narrow) {
        return None;
    }
    let file = state.info.groups.weight.clone()?;
    let done = host.write_group(&file, weight(&file, idle));
    if done.is_ok() {
        state.group_idle = Some(idle);
    }
    Some((file, done))
}

impl BackEnd for Cpusets {
    fn caps(&self) -> HostCaps {
        HostCaps {
            shares_cores: true,
            idles_cores: true,
            places_threads: true,
            freezes_tasks: self.freezes,
            per_thread_state: self.per_thread_state,
            // Nothing is elevated, so there is nothing that it could stop.
            actuation_delay: Nanos::from_millis(4),
            ..HostCaps::default()
        }
    }

    fn admit(&mut self, info: TaskInfo) {
        self.engine.admit(info);
    }

    fn forked(
        &mut self,
        parent: &ThreadRef,
        child: &ThreadRef,
        watched: bool,
        host: &mut dyn Host,
    ) {
        self.engine.forked(parent, child, watched, host);
    }

    fn pin(&mut self, thread: &ThreadRef, pin: Option<Pin>) -> bool {
        self.engine.records.pin(thread, pin)
    }

    fn place_helpers(&mut self, task: TaskId, cores: CoreSet) {
        self.engine.place_helpers(task, cores);
    }

    fn apply(&mut self, plan: &Plan, threads: &[ThreadView], host: &mut dyn Host) -> ApplyReport {
        let mut report = ApplyReport::default();
        self.engine.take_in(plan);
        self.serve_groups(Phase::Widen, host, &mut report);
        self.engine.serve_threads(threads, host, &mut report);
        self.serve_groups(Phase::Narrow, host, &mut report);
        freezer::serve(&mut self.engine, host, &mut report);
        self.engine.conclude(plan, threads, host, &mut report);
        report
    }

    fn outcomes(&self) -> &[CoreOutcome] {
        self.engine.outcomes()
    }

    fn status(&self, task: TaskId) -> Option<&TaskStatus> {
        self.engine.task(task).map(|state| &state.status)
    }

    fn drain_notices(&mut self, sink: &mut dyn FnMut(Notice)) {
        self.engine.drain_notices(sink);
    }

    fn preview(&self, plan: &Plan, threads: &[ThreadView], host: &mut dyn Host) -> Vec<Intended> {
        let mut targets = Targets::default();
        self.engine.aim(&mut targets, plan);
        let mut changes = Vec::new();
        for state in self.engine.tasks.iter().flatten() {
            let Some((want, _)) = targets.of(state.info.id) else { continue };
            let cores = state.info.groups.cpuset.as_ref().zip(cores_of_group(want));
            let cores = cores.map(|(group, to)| (group.join(CORES), to.to_string()));
            let idle = matches!(want.rung, Rung::SchedIdle | Rung::FifoLow);
            let weighed = state.info.groups.weight.clone();
            let weighed = weighed.map(|file| (file.clone(), weight(&file, idle).to_owned()));
            for (file, to) in cores.into_iter().chain(weighed) {
                if host.read_group(&file).is_ok_and(|found| found != to) {
                    let change = Change::Group { file, to };
                    let name = state.info.name.clone();
                    changes.push(Intended { task: state.info.id, name, change });
                }
            }
        }
        changes.extend(self.engine.preview(plan, threads, host));
        changes
    }

    fn release(&mut self, task: TaskId, host: &mut dyn Host) -> RestoreReport {
        self.engine.release(task, host)
    }
}
