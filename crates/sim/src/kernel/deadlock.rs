//! Programs that cannot go on: each of their threads waits for another one.

use std::fmt;

use super::programs::{ProgramState, recording_of};
use crate::engine::Engine;
use crate::workload::{Program, SyncKind};

/// Waits that are named.
const NAMED_MAX: usize = 8;

/// A program of which every thread waits for a sync, at the end of the simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// The name of its task.
    pub task: String,
    /// Threads that wait.
    pub threads: usize,
    /// What the first ones wait for, and which thread they wait for: at most eight.
    pub waits: Vec<String>,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Deadlock { task, threads, waits } = self;
        write!(f, "deadlock of `{task}`: all of its {threads} threads wait: {}", waits.join("; "))?;
        match threads - waits.len() {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl Engine<'_> {
    /// Programs that cannot go on.
    pub(crate) fn deadlocks(&self) -> Vec<Deadlock> {
        let programs = self.programs.iter().enumerate();
        let found = programs.filter_map(|(at, state)| {
            let (task, first) = (&self.scenario.tasks[at], self.tasks[at].first);
            // A replay has a wake-up for each wait.
            let program = task.load.program().filter(|_| recording_of(task).is_none())?;
            let waits = state.blocked(first)?;
            let named = waits.iter().take(NAMED_MAX);
            let named = named.map(|wait| state.wait_text(program, *wait));
            let waits_named = named.collect();
            Some(Deadlock { task: task.name.clone(), threads: waits.len(), waits: waits_named })
        });
        found.collect()
    }
}

impl ProgramState {
    /// `worker 2 waits for lock, which worker 1 has`: of a lock that a thread took and has not released. Tokens that are counted
    /// have no holder.
    fn wait_text(&self, program: &Program, (thread, sync): (usize, usize)) -> String {
        let thread = self.name_of(program, thread);
        let name = program.sync_name(sync);
        let why = match program.syncs[sync].kind {
            SyncKind::Barrier { parties } => {
                format!("where {} of {parties} have come", self.arrived(sync))
            }
            SyncKind::Tokens { initial: 1 } => match self.holder_name(program, sync) {
                Some(holder) => format!("which {holder} has"),
                None => "which no thread has".to_owned(),
            },
            SyncKind::Tokens { .. } => "which has no tokens".to_owned(),
        };
        format!("{thread} waits for {name}, {why}")
    }
}
