//! What a Quell daemon does with the threads that it manages, so that the plan is judged and not its means.

use std::collections::BTreeMap;

use quell_model::CoreSet;

use crate::host::PlanCores;

/// A thread whose affinity is Quell's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedThread {
    /// The cores that it might use before Quell came.
    pub original: CoreSet,
    /// Those of them that the plan lets it use.
    pub planned: CoreSet,
    /// Why the plan keeps it off the others: the cap or the ban, in words.
    pub reason: String,
}

impl ManagedThread {
    pub(super) fn cores(&self) -> PlanCores {
        PlanCores { planned: self.planned.intersection(&self.original), original: self.original }
    }
}

/// The managed threads by number or process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Managed {
    /// One entry a thread.
    pub threads: BTreeMap<i32, ManagedThread>,
    /// One entry a process, for those of its threads that have none of their own.
    pub processes: BTreeMap<i32, ManagedThread>,
}

impl Managed {
    /// What is known of a thread.
    pub(super) fn of(&self, thread: i32, process: i32) -> Option<&ManagedThread> {
        self.threads.get(&thread).or_else(|| self.processes.get(&process))
    }
}
