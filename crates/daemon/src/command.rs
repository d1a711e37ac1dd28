//! What the scheduler thread can be asked.

use std::path::PathBuf;

use quell_act::Joining;
use quell_act::backend::{TaskGroups, TaskInfo};
use quell_control::protocol::{CongestionReport, Status};
use quell_model::{Children, Limits, Role, TaskId, ThreadId};
use quell_observe::bpf::{LaneReader, SlotPlace};
use quell_os::ThreadRef;
use quell_shm::Reader;

use crate::contract::Contract;
use crate::engine::Link;
use crate::feed::FeedState;
use crate::latency::Reading;
use crate::mailbox::Reply;

/// Everything the scheduler thread has to know of a new task.
#[derive(Clone, Debug)]
pub struct Newcomer {
    /// The operator's name for it.
    pub name: String,
    /// What it asks for.
    pub limits: Limits,
    /// What its new processes become.
    pub children: Children,
}

/// A command with its way back.
pub enum Command {
    /// Makes room for a task. Its threads follow with [`Command::Watch`].
    Join(Newcomer, Reply<TaskId>),
    /// Tells how the task's threads may be handled; they are left alone before that.
    Admit(TaskInfo, Reply<()>),
    /// Changes what a task asks for.
    SetLimits(TaskId, Limits, Reply<()>),
    /// Begins to follow threads as members of a task; answers with what went wrong.
    Watch(TaskId, Vec<ThreadRef>, Reply<Vec<String>>),
    /// Opens the ring of a task that is a lane.
    OpenLane(TaskId, Reply<Result<LaneReader, String>>),
    /// The lane's scheduler runs.
    Lane(Box<Link>, Reply<()>),
    /// As [`Command::Watch`], for a member of a lane.
    WatchMember(TaskId, u8, Vec<ThreadRef>, Reply<Vec<String>>),
    /// Watches a thread of Quell's own as one of a lane that has no members yet; answers where BPF tells of it.
    Probe(TaskId, ThreadRef, Reply<Option<SlotPlace>>),
    /// Stops watching it.
    EndProbe(ThreadRef),
    /// Gives a task's threads back as they were found and forgets it; answers in sentences.
    Leave(TaskId, Reply<Vec<String>>),
    /// Makes groups for a launched process, or finds the one in which a consenting one can be frozen. Answers with the
    /// moves that the caller carries out: they take too long for the scheduler thread.
    Groups(GroupCall, Reply<Result<(TaskGroups, Vec<Joining>), String>>),
    /// A process was moved, or could not be.
    Joined(Joining, bool),
    /// Removes the groups of a launched task; they are dismantled.
    Ungroup(TaskGroups, Reply<()>),
    /// A lane joins, which may fill its core with FIFO threads: RT throttling goes off unless it is to be left.
    Unthrottle(Reply<Result<(), String>>),
    /// Makes the cgroup with this weight file count for least among its siblings, or as it did before.
    Weigh(PathBuf, bool, Reply<Result<(), String>>),
    /// Gives background threads of LC tasks a real-time rung, or the fair class.
    ElevateBackground(bool),
    /// The threads of a task.
    Threads(TaskId, Reply<Vec<(ThreadRef, ThreadId)>>),
    /// Roles that the operator gives threads of a task; `None`: no longer. False where threads have no roles.
    AssignRoles(TaskId, Vec<(ThreadId, Option<Role>)>, Reply<bool>),
    /// Where a task's threads hint what they serve from now on.
    Hints(TaskId, Option<Reader>, Reply<()>),
    /// The task is a runtime under this contract from now on, or none any more; answers with the contract before.
    Runtime(TaskId, Option<Box<Contract>>, Reply<Option<Box<Contract>>>),
    /// What was measured of a task's latency and load; nobody waits for an answer.
    Reading(TaskId, Reading),
    /// What runs where. Fields that only the manager knows are left empty.
    Status(Reply<Box<Status>>),
    /// The current state, for subscribers.
    FeedState(Reply<Box<FeedState>>),
    /// Congestion that the plan cannot relieve.
    Congestion(Reply<CongestionReport>),
    /// Explains the last decision about a core or a task.
    Why(String, Reply<Result<Vec<String>, String>>),
    /// Gives everything back and ends the thread; answers in sentences.
    Shutdown(Reply<Vec<String>>),
}

/// Which groups are wanted.
pub enum GroupCall {
    /// Make them, and say how this process gets there.
    Make {
        /// The task.
        task: TaskId,
        /// Its name.
        name: String,
        /// Its process, stopped before its first instruction.
        pid: i32,
    },
    /// The group in which this adopted process can be frozen, with its operator's consent.
    Find {
        /// The process.
        pid: i32,
    },
}
