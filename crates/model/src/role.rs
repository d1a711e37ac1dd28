//! Roles: the place of single threads in the order of their task, earned by the length of their bursts.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{CoreId, Nanos, TaskId};

/// A thread in [`crate::Snapshot::bursts`] and [`crate::Plan::roles`], by its index in the observer's table. A reused
/// index gets a new generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ThreadId {
    /// The index.
    pub index: u32,
    /// How many threads had this index before.
    pub generation: u32,
}

impl fmt::Display for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// What a thread of an LC task is by its bursts, highest first. A thread begins as [`Role::Event`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A background thread above the event threads of its task for one budget: one of them may spin until this thread
    /// releases a lock, or sleep until this thread wakes it. In a guest task with them, not above them.
    Boosted,
    /// Bursts of tens of microseconds, such as requests.
    #[default]
    Event,
    /// Bursts of up to a few milliseconds. One rung lower, so that no short burst queues behind one ten times as long.
    LongEvent,
    /// Longer bursts (collectors, compilers, save children, crawlers): the fair class, where the kernel shares the core
    /// among them, below all event threads.
    Background,
    /// In the fair class for some time, because LC threads held its core almost without a pause: kernel threads and
    /// foreign threads of that core run meanwhile.
    Fair,
}

impl Role {
    /// All roles, in the order of `enum quell_role` in `bpf/quell.h`.
    pub const ALL: [Role; 5] =
        [Role::Event, Role::LongEvent, Role::Background, Role::Fair, Role::Boosted];

    /// The index in [`Role::ALL`].
    pub const fn code(self) -> u32 {
        match self {
            Role::Event => 0,
            Role::LongEvent => 1,
            Role::Background => 2,
            Role::Fair => 3,
            Role::Boosted => 4,
        }
    }

    /// Budget of a burst in this role while another LC thread waits for the core; `None`: no budget.
    ///
    /// 400 us: ten times the burst of a short request (memcached, Redis), and four times the mean of a Go HTTP server, of
    /// which less than a fiftieth is longer; at 200 us its workers lost the rung so often that its `sysmon` thread, which
    /// wakes each 60 us, preempted them at each wake-up and doubled the CPU time of a request.
    /// 2 ms: below the shortest bursts of collectors (G1, Go) and above nearly all requests.
    pub const fn budget(self) -> Option<Nanos> {
        match self {
            Role::Boosted | Role::Event => Some(Nanos::from_micros(400)),
            Role::LongEvent => Some(Nanos::from_millis(2)),
            Role::Background | Role::Fair => None,
        }
    }

    /// The next higher role for shorter bursts.
    pub const fn above(self) -> Role {
        match self {
            Role::Event | Role::LongEvent => Role::Event,
            Role::Boosted | Role::Background | Role::Fair => Role::LongEvent,
        }
    }
}

/// State changes (woken, switched in, preempted, asleep) of a thread that has a record: about 20 bursts.
pub const RECORD_TRANSITIONS: u64 = 64;

/// The whole of a burst with inputs counts for a part in so many ([`Burst::weigh`]).
///
/// At 32 a backlog of short requests costs an event thread its role after 13 ms, and a long event thread after 64 ms: a
/// collector's pause or a stop of the hypervisor (2 to 20 ms) leaves one of 20 to 40 ms, most often for several threads.
pub const INPUT_WEIGHT: u64 = 32;

/// What was observed of the bursts of one LC thread since the last Snapshot. A burst is the CPU time of a thread
/// between two sleeps (`se.sum_exec_runtime`); preemption and `sched_yield` do not end it. Of a burst with inputs a stretch
/// counts ([`Burst::weigh`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Burst {
    /// The thread.
    pub thread: ThreadId,
    /// Its task.
    pub task: TaskId,
    /// The core on which it runs or ran.
    pub core: CoreId,
    /// The length of the burst so far, as [`Burst::weigh`] says: what counts for threads of the same task.
    pub length: Nanos,
    /// All of the burst: what counts for threads of other tasks, to which a backlog is no excuse.
    pub whole: Nanos,
    /// Whether the thread has slept often enough that its role says something of it. A new thread has no record.
    pub has_record: bool,
    /// What happened.
    pub state: BurstState,
}

impl Burst {
    /// The length of a burst that has taken `whole` since the last sleep, and `stretch` since the thread last received from a
    /// socket, which is the same where it never did.
    ///
    /// A thread with a backlog does not sleep between two requests: it is as short as before to the threads that wait, but for the
    /// length of the queue. A collector receives nothing. The whole still counts for a part in [`INPUT_WEIGHT`], so that
    /// a thread that receives without end (a replica, an upload) does not hold up the others for ever.
    pub fn weigh(whole: Nanos, stretch: Nanos) -> Nanos {
        stretch.max(Nanos(whole.0 / INPUT_WEIGHT))
    }

    /// Whether one stretch without an input is as long as the burst counts: the thread may do one thing, or spin.
    pub fn is_one_stretch(&self) -> bool {
        self.length.0 > self.whole.0 / INPUT_WEIGHT
    }
}

/// What happened to the bursts of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BurstState {
    /// The burst goes on beyond the budget of the thread's role, while this LC thread waits for the same core; `None`: a
    /// kernel thread of the fair class.
    Overran(Option<Waiter>),
    /// The thread sleeps after as many short bursts in a row as [`ThreadPlan::needs`] asks for.
    Proved,
    /// The thread is in the background and waits for its core while a thread of its process sleeps whose sleeps it has
    /// ended: that one may need what this one does next (a lock to be released, the end of a collector's pause).
    EndsSleep,
    /// The thread exited.
    Exited,
    /// The operator gave the thread this role, whatever its bursts are; `None`: no longer.
    Assigned(Option<Role>),
}

/// An LC thread that waits behind a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// The waiting thread.
    pub thread: ThreadId,
    /// Its task.
    pub task: TaskId,
    /// Whether both are threads of one process.
    pub same_process: bool,
    /// As [`Burst::has_record`].
    pub has_record: bool,
}

/// The role of one thread. Threads that the Plan does not list are [`Role::Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ThreadPlan {
    /// The thread.
    pub thread: ThreadId,
    /// Its task.
    pub task: TaskId,
    /// Its role.
    pub role: Role,
    /// When it got this role.
    pub since: Nanos,
    /// The burst for which it lost the role before.
    pub burst: Nanos,
    /// Short bursts in a row after which it gets a higher role. 0: at the end of the present burst, whatever its length.
    /// [`ThreadPlan::ASSIGNED`]: the operator gave it this role.
    pub needs: u32,
}

impl ThreadPlan {
    /// No number of short bursts changes the role.
    pub const ASSIGNED: u32 = u32::MAX;
}
