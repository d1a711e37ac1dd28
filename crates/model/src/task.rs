//! Tasks: what the operator asks to be scheduled.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{CoreMode, CoreSet, Nanos, TimeLimits};

/// What a task is to its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Class {
    /// Answers users: its slowest answers have to be fast.
    #[serde(rename = "lc")]
    LatencyCritical,
    /// Batch work: gets what the others leave.
    #[default]
    #[serde(rename = "be")]
    BestEffort,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::LatencyCritical => "LC",
            Class::BestEffort => "BE",
        })
    }
}

/// What new processes of a task become. New threads always belong to the task.
///
/// The order is that of `enum quell_children` in `bpf/quell.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Children {
    /// They belong to the task.
    #[default]
    Adopt,
    /// They are treated as BE (e.g. Redis' save child).
    Be,
    /// They are left alone.
    Leave,
}

/// A task, by its place in every per-task table. A reused place gets a new generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskId {
    /// The place in [`crate::Snapshot::tasks`] and [`crate::Plan::tasks`].
    pub index: u32,
    /// How many tasks had this place before.
    pub generation: u32,
}

impl TaskId {
    /// The place as an index.
    pub const fn at(self) -> usize {
        self.index as usize
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// Which scheduler orders the threads of a task on the cores that the task owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskScheduler {
    /// The kernel, by rung and affinity.
    #[default]
    Kernel,
    /// A lane: members share one core by slices, in the order of a lane policy.
    Lane,
    /// The task's own runtime: one kthread per core.
    Runtime,
}

impl TaskScheduler {
    /// The mode of a core that a task with this scheduler owns.
    pub const fn core_mode(self) -> CoreMode {
        match self {
            TaskScheduler::Kernel => CoreMode::Kernel,
            TaskScheduler::Lane => CoreMode::Lane,
            TaskScheduler::Runtime => CoreMode::Runtime,
        }
    }
}

/// What a policy has to know of a task's wishes. Part of each Snapshot, so that a recorded run
/// holds all that a decision was made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// LC or BE.
    pub class: Class,
    /// The scheduler of its threads.
    pub scheduler: TaskScheduler,
    /// Cores that are the task's own whenever it wants them.
    pub guaranteed: u32,
    /// Cores that it may have at most; what exceeds `guaranteed` is burstable.
    pub max: u32,
    /// When it counts as congested, and how long its threads and requests may run.
    pub times: TimeLimits,
    /// LC: latency that its tail is to stay below (PARTIES' QoS target); zero: none is set.
    pub latency_target: Nanos,
    /// Managed cores that the task may use: its own affinity and cpuset, within the configuration.
    pub allowed: CoreSet,
}

impl Limits {
    /// Batch work that asks for nothing and may use no core.
    pub const NONE: Limits = Limits {
        class: Class::BestEffort,
        scheduler: TaskScheduler::Kernel,
        guaranteed: 0,
        max: 0,
        times: TimeLimits::ZERO,
        latency_target: Nanos::ZERO,
        allowed: CoreSet::EMPTY,
    };

    /// Cores that the task may own at most: one for a lane, whose members share it.
    pub fn core_limit(&self) -> u32 {
        match self.scheduler {
            TaskScheduler::Lane => self.max.min(1),
            TaskScheduler::Kernel | TaskScheduler::Runtime => self.max,
        }
    }
}
