//! Reliefs: threads that go first for a moment, because LC threads wait for what they hold inside the kernel.

use serde::{Deserialize, Serialize};

use crate::{CoreId, Nanos, Rung, TaskId, ThreadId};

/// An LC thread and a lock of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockWait {
    /// The LC thread.
    pub waiter: ThreadId,
    /// Its task.
    pub task: TaskId,
    /// What happened.
    pub state: LockState,
}

/// What happened to an LC thread and a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockState {
    /// It goes to sleep for a mutex or semaphore that a thread below its rung owns.
    Owned {
        /// The owner, a thread that Quell watches.
        owner: ThreadId,
        /// The owner's task.
        task: TaskId,
    },
    /// It is woken to take the lock, or does not wait for it any more.
    Released,
}

/// A thread that is stopped inside the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InKernel {
    /// The thread.
    pub thread: ThreadId,
    /// Its task.
    pub task: TaskId,
    /// The core it waits on or ran on last.
    pub core: CoreId,
    /// Since when.
    pub since: Nanos,
    /// How.
    pub stop: KernelStop,
}

/// How a thread is stopped inside the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelStop {
    /// A BE thread that waits for a core where it was preempted inside the kernel or woken from an uninterruptible
    /// sleep: it may hold what others need.
    Waits,
    /// The same in the middle of a transaction of a file system (ext4, Btrfs; XFS before Linux 6.9): all others wait for its end before they
    /// are on the disk.
    InTransaction,
    /// An LC thread above the fair class in an uninterruptible sleep: another thread may hold what it needs.
    Sleeps,
}

/// A thread that runs on a higher rung than its own for a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Relief {
    /// The thread.
    pub thread: ThreadId,
    /// Its task.
    pub task: TaskId,
    /// The rung meanwhile.
    pub rung: Rung,
    /// Since when.
    pub since: Nanos,
    /// Why.
    pub cause: ReliefCause,
}

/// Why a thread gets relief.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReliefCause {
    /// It owns the lock that this LC thread waits for.
    Lock(ThreadId),
    /// It starved inside the kernel while an LC thread slept there uninterruptibly.
    Starved,
}
