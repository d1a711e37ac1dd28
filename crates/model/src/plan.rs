//! What a policy wants: the whole desired state, never commands.

use serde::{Deserialize, Serialize};

use crate::{Class, CoreId, CoreSet, Nanos, Relief, Role, Rung, TaskId, ThreadId, ThreadPlan};

/// The whole desired state of a host. Names no priority, affinity or system call: each back end
/// computes the difference from what it observes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// One entry per core of the topology, in its order.
    pub cores: Vec<CorePlan>,
    /// One entry per task place, as in the Snapshot.
    pub tasks: Vec<TaskPlan>,
    /// Threads whose role is not [`Role::Event`], ordered by thread.
    pub roles: Vec<ThreadPlan>,
    /// Threads that go first for a moment, ordered by thread.
    pub reliefs: Vec<Relief>,
}

/// What a core is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CorePlan {
    /// The core.
    pub id: CoreId,
    /// The task whose core it is now.
    pub owner: Option<TaskId>,
    /// Who schedules threads on it.
    pub mode: CoreMode,
    /// Why.
    pub reason: Reason,
    /// The request that began then, if it still runs here, has had its quantum: others of its task go first.
    pub yields: Option<Nanos>,
}

/// Who schedules threads on a core. A core is in exactly one mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CoreMode {
    /// The kernel, by rung and affinity.
    Kernel,
    /// A lane: Quell's run queue in user space.
    Lane,
    /// A runtime's own scheduler.
    Runtime,
    /// Kept idle on purpose; the reason names the ban or cap.
    Idled,
    /// Not ours.
    Unmanaged,
}

/// What a task gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TaskPlan {
    /// The task.
    pub id: TaskId,
    /// The class it is treated as; a runaway LC task is treated as BE.
    pub class: Class,
    /// Cores that it may own at most now.
    pub cap: u32,
    /// The step of the ladder for its threads.
    pub rung: Rung,
    /// Cores that it may use at lower priority than their owner, besides those that it owns.
    pub shared_cores: CoreSet,
    /// Ways of the last-level cache that are its own; `None`: it shares those that nobody has.
    pub llc_ways: Option<u16>,
    /// Why it is treated so.
    pub reason: TaskReason,
}

/// Why a core is as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Not in the managed set.
    Unmanaged,
    /// The kernel has it offline.
    Offline,
    /// Within the owner's guarantee.
    Guaranteed,
    /// The owner waited this long, so it got the core.
    Congested(Nanos),
    /// The owner keeps it: it used it lately and nobody with more right wants it.
    Kept,
    /// Handed over when it fell idle.
    HandedOver,
    /// What LC left; BE fills it.
    Leftover,
    /// Nobody may or wants to use it.
    Unwanted,
    /// Kept idle to protect this core.
    BannedFor(CoreId),
    /// Kept idle because every task that wants it is at its cap.
    Capped,
    /// The back end refused it with this errno; not tried again for a while.
    Refused(i32),
    /// The owner got it instead of this core, which is kept idle to protect another.
    InsteadOf(CoreId),
}

/// Why a task is treated as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskReason {
    /// As configured.
    Configured,
    /// It owns a core.
    Owner,
    /// It owns none and shares those of others.
    Guest,
    /// It ran without sleeping past its bound, so it is treated as BE until it sleeps again. Only where the host does not
    /// report bursts ([`crate::HostCaps::bursts`]): elsewhere threads have roles.
    RanAway(Nanos),
    /// Kept off LC cores: its sections in the kernel delayed LC threads this much.
    DelaysLc(Nanos),
    /// Kept off siblings of cores on which an LC request takes long.
    Hyperthread,
    /// Held down by an advisor's cap.
    Capped,
    /// Kept off cores that it could use otherwise, for none of the reasons above.
    Banned,
    /// No core is left for it.
    NoCore,
}

impl Plan {
    /// The role of a thread.
    pub fn role(&self, thread: ThreadId) -> Role {
        let index = self.roles.binary_search_by_key(&thread, |planned| planned.thread);
        index.map_or(Role::Event, |index| self.roles[index].role)
    }

    /// The rung that a thread has for a moment, whatever its task and role.
    pub fn relief(&self, thread: ThreadId) -> Option<Rung> {
        let index = self.reliefs.binary_search_by_key(&thread, |relief| relief.thread).ok()?;
        Some(self.reliefs[index].rung)
    }

    /// The cores that a task owns.
    pub fn owned(&self, task: TaskId) -> CoreSet {
        self.cores.iter().filter(|core| core.owner == Some(task)).map(|core| core.id).collect()
    }

    /// The cores that a task may run on: owned and beneath.
    pub fn usable(&self, task: TaskId) -> CoreSet {
        let shared_cores = self.tasks.get(task.at()).filter(|plan| plan.id == task);
        let shared_cores = shared_cores.map_or(CoreSet::EMPTY, |plan| plan.shared_cores);
        self.owned(task).union(&shared_cores)
    }
}
