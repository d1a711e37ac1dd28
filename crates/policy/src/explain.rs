//! Why a Plan is as it is.
//!
//! The tick fills fixed tables; what is here is formatted from them when somebody asks.

use std::fmt;

use quell_model::{
    Class, CoreId, CoreMode, CoreSet, Nanos, Reason, Rung, Signal, TaskId, TaskReason,
};
use serde::Serialize;

/// The invariants that the allocator keeps, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Invariant {
    /// A task's guaranteed cores are its own whenever it wants them.
    Guarantee,
    /// BE never preempts LC, and BE yields first.
    LcFirst,
    /// No core idles while a task that may use it has runnable work, without a stated reason.
    WorkConservation,
    /// Advice is followed in the order ban, cap, preference.
    Advice,
}

/// A piece of advice that was declined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Offer {
    /// To keep the task off this core.
    Ban(CoreId),
    /// To give the task at most this many cores.
    Cap(u32),
    /// To keep this core idle for the sake of the task's request on a sibling.
    Idle(CoreId),
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Invariant::Guarantee => "its guarantee comes first",
            Invariant::LcFirst => "LC goes before BE",
            Invariant::WorkConservation => "no core idles while there is work for it",
            Invariant::Advice => "bans go before caps, caps before preferences",
        })
    }
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Offer::Ban(core) => write!(f, "keep it off core {core}"),
            Offer::Cap(cores) => write!(f, "give it {cores} cores at most"),
            Offer::Idle(core) => write!(f, "keep core {core} idle beside its request"),
        }
    }
}

/// Advice that was declined, and what stood against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Veto {
    /// The task that it was about.
    pub task: TaskId,
    /// The advice.
    pub offer: Offer,
    /// The invariant that it would have broken; `None`: the host has no means to carry it out.
    pub by: Option<Invariant>,
}

impl fmt::Display for Veto {
    /// Why it was declined.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.by {
            Some(invariant) => write!(f, "{invariant}"),
            None => f.write_str("this host cannot carry it out"),
        }
    }
}

/// A core that changed hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// When it was decided.
    pub at: Nanos,
    /// The core.
    pub core: CoreId,
    /// Whose it was.
    pub from: Option<TaskId>,
    /// Whose it is.
    pub to: Option<TaskId>,
    /// Which scheduler it has from then on.
    pub mode: CoreMode,
    /// Why.
    pub reason: Reason,
}

/// What was seen of a task, what was advised, and what it got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TaskWhy {
    /// The task.
    pub id: TaskId,
    /// The class that it is treated as.
    pub class: Class,
    /// Threads that could use a core.
    pub runnable: u32,
    /// Threads that waited for one.
    pub waiting: u32,
    /// Age of its oldest wait.
    pub queueing_delay: Signal<Nanos>,
    /// Whether that counted as congestion.
    pub congested: bool,
    /// Cores that it may own at most, after advice.
    pub cap: u32,
    /// Cores that advice kept it off.
    pub banned: CoreSet,
    /// Cores that it owns.
    pub owned: CoreSet,
    /// Cores reserved for its guarantee.
    pub reserved: CoreSet,
    /// Its step of the ladder.
    pub rung: Rung,
    /// Why it is treated so.
    pub reason: TaskReason,
}

/// A core's owner and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CoreWhy {
    /// The core.
    pub id: CoreId,
    /// Whose it is.
    pub owner: Option<TaskId>,
    /// For whose guarantee it is reserved.
    pub reserved: Option<TaskId>,
    /// Since when the owner has it.
    pub since: Nanos,
    /// Why.
    pub reason: Reason,
}

/// The last decision, explained.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// When it was made.
    pub at: Nanos,
    /// Live tasks.
    pub tasks: Vec<TaskWhy>,
    /// Managed cores that are online.
    pub cores: Vec<CoreWhy>,
    /// Advice that was declined in that decision.
    pub vetoes: Vec<Veto>,
    /// Declined advice that the table had no room for.
    pub vetoes_left_out: u32,
    /// Cores that changed hands lately, oldest first.
    pub changes: Vec<Change>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for task in &self.tasks {
            write!(
                f,
                "task {} {}: {} runnable, {} waiting",
                task.id, task.class, task.runnable, task.waiting
            )?;
            if let Some(delay) = task.queueing_delay.value() {
                write!(f, " for {delay}")?;
            }
            if task.congested {
                f.write_str(" (congested)")?;
            }
            write!(f, "; owns {{{}}} of at most {}", task.owned, task.cap)?;
            if !task.banned.is_empty() {
                write!(f, ", banned from {{{}}}", task.banned)?;
            }
            writeln!(f, "; {:?}: {:?}", task.rung, task.reason)?;
        }
        for core in &self.cores {
            write!(f, "core {}: ", core.id)?;
            match core.owner {
                Some(owner) => write!(f, "task {owner} since {}", core.since)?,
                None => f.write_str("no owner")?,
            }
            writeln!(f, "; {:?}", core.reason)?;
        }
        for veto in &self.vetoes {
            writeln!(f, "task {}: declined to {}: {veto}", veto.task, veto.offer)?;
        }
        Ok(())
    }
}
