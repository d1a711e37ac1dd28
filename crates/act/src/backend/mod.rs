//! Back ends: a Plan in, an Outcome per core out.
//!
//! A back end brings the host to what a Plan wants, and keeps it there. Its contract, which each
//! implementation ([`Elevation`], [`Cpusets`]; a kernel module later) fills in its own way:
//!
//! * It is handed the whole desired state each tick and computes the difference from what it wrote
//!   and observed. Where nothing moved it makes no system call and allocates nothing.
//! * Changes of one tick are one batch: first everything that raises, then everything that lowers, so
//!   that no third thread slips in between.
//! * Nothing blocks and nothing fails as a whole. What the host refused or did not get to is part of
//!   the [`CoreOutcome`]s and is tried again, with growing pauses where the host said no.
//! * What a task changed on its own threads meanwhile stays as the task wants it.
//! * All writes go through a [`Host`], which on a real machine is the executor.

mod cpusets;
mod elevation;
mod ends;
mod engine;
mod freezer;
mod groups;
mod host;
mod intent;
mod layout;
mod outcome;
mod prep;
mod record;
mod rt_check;
mod target;
#[cfg(test)]
mod tests;
mod throttling;
mod turns;
mod verify;
mod weights;

use std::path::PathBuf;

use quell_model::{CoreId, CoreSet, HostCaps, Outcome, Plan, TaskId};

pub use cpusets::Cpusets;
pub use elevation::{Elevation, ElevationHost};
pub use groups::{GroupUse, Groups};
pub use host::{Host, Inspection, ThreadSettings};
pub use intent::{Change, Intended};
pub use layout::{Hierarchy, Layout, Version};
pub use prep::{Bystander, Note, Prep, PrepConfig, PrepPlan, PrepReport, RtThrottling, Step, Why};
pub use rt_check::{RtRefusal, check_rt, check_rt_of};
pub use throttling::{has_rt_groups, throttles};
pub use weights::{SchedGroup, Standing, Weights, is_least, weight};

use crate::{RestoreReport, SchedAttr};
use quell_observe::ThreadView;
use quell_os::ThreadRef;

/// Brings the host to what a Plan wants. One owner, the daemon's tick loop.
pub trait BackEnd {
    /// What a policy may rely on with this back end.
    fn caps(&self) -> HostCaps;

    /// Tells what a Plan does not: how a task's threads may be handled. Before that the task's
    /// threads are left alone.
    fn admit(&mut self, info: TaskInfo);

    /// A watched thread created this one, which is `watched` too, or is to be left alone. Lets the
    /// child be judged by, and given back as, what its parent was before Quell came, rather than
    /// what it inherited from Quell; one that is to be left alone is given back at once.
    fn forked(&mut self, parent: &ThreadRef, child: &ThreadRef, watched: bool, host: &mut dyn Host);

    /// Tells that a thread is a kernel thread of a runtime, and which core it keeps to; `None`: it is a thread like any
    /// other again. A runtime schedules its own threads, each on the core that it was granted. It holds even while the
    /// Plan gives that core to somebody else, whose rung then decides, so that the thread can leave in order. False for
    /// a thread that is not known yet; to be told again then.
    fn pin(&mut self, thread: &ThreadRef, pin: Option<Pin>) -> bool;

    /// Where the threads of a task go that [`BackEnd::pin`] was not told of, on their own rung: beside kernel threads
    /// that never sleep they would never run. Empty: they are placed as those of any task.
    fn place_helpers(&mut self, task: TaskId, cores: CoreSet);

    /// Whether background threads of LC tasks get a real-time rung, because the fair class does not put batch work behind
    /// them. Back ends that elevate nobody ignore it.
    fn elevate_background(&mut self, on: bool) {
        let _ = on;
    }

    /// Does what is missing between the Plan and the host. `threads` are those of the observation
    /// that the Plan was decided on.
    fn apply(&mut self, plan: &Plan, threads: &[ThreadView], host: &mut dyn Host) -> ApplyReport;

    /// What became of the last Plan, one entry per core of it, in its order.
    fn outcomes(&self) -> &[CoreOutcome];

    /// How a task fares; `None` for a task that was not admitted.
    fn status(&self, task: TaskId) -> Option<&TaskStatus>;

    /// Hands over what an operator should hear of, oldest first.
    fn drain_notices(&mut self, sink: &mut dyn FnMut(Notice));

    /// What [`BackEnd::apply`] would change, in its order. Reads from the host and changes nothing.
    fn preview(&self, plan: &Plan, threads: &[ThreadView], host: &mut dyn Host) -> Vec<Intended>;

    /// Gives a task's threads back as they were found, but for what they changed themselves, thaws it
    /// and forgets it. Its groups are the caller's to remove. A thread that is merely missing from the
    /// observation is given back too: what is not seen is not managed.
    fn release(&mut self, task: TaskId, host: &mut dyn Host) -> RestoreReport;
}

/// How a kernel thread of a runtime is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// On the core that it was granted.
    Core(CoreId),
    /// It has no core of its own now, and is placed as the threads of any task.
    Member,
}

/// How a task's threads may be handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskInfo {
    /// The task.
    pub id: TaskId,
    /// The operator's name for it.
    pub name: String,
    /// It may be stopped while no core is left for it: Quell launched it, or its operator consented.
    pub may_freeze: bool,
    /// Quell's own groups that hold it, for launched tasks. For an adopted task only `freezer` may be
    /// set, to the group in which it was found, and only with consent.
    pub groups: TaskGroups,
    /// Unmanaged cores that a BE task may retreat to while no managed core is left for it; empty if it
    /// must not leave the managed ones.
    pub away: CoreSet,
    /// A lane: its scheduler switches its threads between these rungs, and the back end leaves their policy alone.
    pub switched: Option<[SchedAttr; 2]>,
}

/// Cgroups that hold one task. Those that are `None` do not exist for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskGroups {
    /// Where it can be frozen.
    pub freezer: Option<PathBuf>,
    /// Where its cores can be set for all threads at once.
    pub cpuset: Option<PathBuf>,
    /// The file that sets its weight against other groups: `cpu.idle`, else `cpu.shares` (version 1) or
    /// `cpu.weight` (version 2).
    pub weight: Option<PathBuf>,
}

/// What one [`BackEnd::apply`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApplyReport {
    /// Threads whose policy or priority was raised.
    pub raised: u32,
    /// Threads whose policy or priority was lowered.
    pub lowered: u32,
    /// Threads whose affinity was written, or groups whose cpuset was.
    pub moved: u32,
    /// Tasks frozen.
    pub frozen: u32,
    /// Tasks thawed.
    pub thawed: u32,
    /// Writes that the host refused.
    pub refused: u32,
    /// Threads that were gone when their turn came.
    pub gone: u32,
    /// Threads whose number was somebody else's when their turn came; judged anew next tick.
    pub raced: u32,
    /// Threads found to have changed state between the decision and its effect.
    pub stale: u32,
    /// Threads brought back after something other than the task undid the Plan.
    pub repaired: u32,
    /// Threads found changed by their task, and left so.
    pub changed_by_task: u32,
    /// Threads left for the next tick because the batch was full.
    pub deferred: u32,
    /// Read-backs made by the slow verification.
    pub verified: u32,
    /// The host takes no changes at all now (e.g. no guardian); nothing was tried after that.
    pub halted: bool,
}

impl ApplyReport {
    /// Changes made to the host.
    pub fn writes(&self) -> u32 {
        self.raised + self.lowered + self.moved + self.frozen + self.thawed
    }
}

/// What became of the last Plan for one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreOutcome {
    /// The core.
    pub core: CoreId,
    /// Counts what was asked for this core: changes of owner, sharers, rung or mode.
    pub generation: u64,
    /// Whether it is so.
    pub outcome: Outcome,
}

/// How a task fares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskStatus {
    /// Its threads at the last [`BackEnd::apply`].
    pub threads: u32,
    /// Threads that are not yet as planned.
    pub unsettled: u32,
    /// Threads whose own affinity has no core that the Plan gives to their task.
    pub stranded: u32,
    /// Threads that changed their own policy or affinity while managed, and are left so.
    pub changed_by_task: u32,
    /// The host refuses it real-time priority, with this errno; it runs with its own policy.
    pub unelevated: Option<i32>,
    /// It is frozen, as nothing of the host is left for it.
    pub frozen: bool,
}

/// Something that an operator should hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A thread changed its own policy, priority or affinity; it is left so.
    ChangedByTask {
        /// Whose.
        task: TaskId,
        /// Which thread.
        thread: ThreadRef,
        /// What: `policy` or `affinity`.
        what: &'static str,
    },
    /// The host refuses a task real-time priority; tried again with growing pauses.
    Unelevated {
        /// Which task.
        task: TaskId,
        /// The kernel's reason.
        errno: i32,
    },
    /// A task that was refused real-time priority has it now.
    Elevated(TaskId),
    /// The host refused something else.
    Refused {
        /// Which task.
        task: TaskId,
        /// What: `policy`, `affinity`, `freezer` or a file.
        what: &'static str,
        /// The file or thread.
        target: PathBuf,
        /// The kernel's reason.
        errno: i32,
    },
}
