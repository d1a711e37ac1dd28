//! What a recorded host did, as plain data: a program in which each thread has steps of its own.

use std::collections::BTreeMap;

use quell_model::{CoreId, CoreSet, MoveCause, Nanos};

use super::{Program, ProgramStep};

/// Threads of a recorded host with what each did, and figures of the recording to compare with.
///
/// A burst is a [`ProgramStep::Compute`], a sleep that no thread ended is a [`ProgramStep::Sleep`] of the recorded length, and
/// a sleep that another thread ended is a [`ProgramStep::Take`] of the thread's own sync, which that other thread posts at the
/// same point of its own burst.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// The thread `n` is the only one of kind `n`. It waits for the sync `n`, if for any.
    pub program: Program,
    /// By thread.
    pub threads: Vec<RecordedThread>,
    /// What [`RecordedThread::allowed`] and [`ProgramStep::Allow`] name. One that lacks all cores of a host allows them all.
    pub cores: Vec<CoreSet>,
    /// Results on the recorded host.
    pub figures: RecordedFigures,
}

/// A thread of a [`Recording`], beside its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedThread {
    /// How it begins.
    pub start: RecordedStart,
    /// Its scheduling class.
    pub class: RecordedClass,
    /// The index of the cores that it may use at first; `None`: those of its task.
    pub allowed: Option<u32>,
    /// When it ended, after the begin; `None`: it outlived the recording, and is cut off where that ends.
    pub ended: Option<Nanos>,
}

/// How a thread of a [`Recording`] begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedStart {
    /// Another thread forks it.
    Forked,
    /// It runs on this core, or waits there.
    Runnable(CoreId),
    /// It is asleep, as its first step says, and ran on this core last.
    Asleep(CoreId),
}

/// The scheduling class of a thread of a [`Recording`]. Nice values are not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedClass {
    /// SCHED_FIFO, SCHED_RR or SCHED_DEADLINE, with this priority from 1 to 99.
    RealTime(u8),
    /// SCHED_OTHER or SCHED_BATCH.
    Fair,
    /// SCHED_IDLE.
    Idle,
}

/// What the recorded host made of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedFigures {
    /// The release of its kernel.
    pub kernel: String,
    /// Its cores.
    pub cores: u32,
    /// How long it was recorded.
    pub length: Nanos,
    /// From the begin until the last thread ended; where all outlived the recording, until they had done what is recorded.
    pub completed: Nanos,
    /// CPU time of all threads.
    pub ran: Nanos,
    /// Core time that idled while threads waited in other queues that might have used it.
    pub wasted: Nanos,
    /// Threads that were moved from queue to queue, by cause. A host does not report where it places new threads.
    pub migrations: BTreeMap<MoveCause, u64>,
}

/// The part of a trace that is replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// After the first event.
    pub from: Nanos,
    /// `None`: to the end of the trace.
    pub length: Option<Nanos>,
}

impl Recording {
    /// By thread: whether the task is completed only when it has ended. All do that ended in the recording, or all if none did.
    pub fn counting(&self) -> Vec<bool> {
        let none_ends = self.threads.iter().all(|thread| thread.ended.is_none());
        self.threads.iter().map(|thread| none_ends || thread.ended.is_some()).collect()
    }

    /// CPU time that a thread asks for.
    pub fn work_of(&self, thread: usize) -> Nanos {
        let steps = self.program.kinds[thread].steps.iter();
        steps.fold(Nanos::ZERO, |sum, step| match step {
            ProgramStep::Compute(service) => sum + service.mean(),
            _ => sum,
        })
    }

    /// What is wrong with it, if anything.
    pub fn check(&self) -> Result<(), String> {
        let kinds = &self.program.kinds;
        if kinds.len() != self.threads.len() {
            return Err(format!("{} programs for {} threads", kinds.len(), self.threads.len()));
        }
        let named = self.threads.iter().filter_map(|thread| thread.allowed);
        let steps = kinds.iter().flat_map(|kind| &kind.steps);
        let set = steps.filter_map(|step| match step {
            ProgramStep::Allow(cores) => Some(*cores),
            _ => None,
        });
        if let Some(cores) = named.chain(set).find(|cores| *cores as usize >= self.cores.len()) {
            return Err(format!("there is no set of cores {cores}"));
        }
        self.program.check()
    }
}
