//! Programs of steps: threads that compute, sleep, wait for each other, and start new threads.

use quell_model::Nanos;

use super::Service;

/// What the threads of a task do, and what they share.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// What a thread does, by kind.
    pub kinds: Vec<ThreadKind>,
    /// What threads wait for.
    pub syncs: Vec<Sync>,
    /// The names of the syncs, as far as they have one.
    pub sync_names: Vec<String>,
}

/// Threads that do the same.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadKind {
    /// In traces.
    pub name: String,
    /// So many are there from the start; others are forked.
    pub count: u32,
    /// Where the first of them starts, and forks the others; `None`: the lowest core that the task may use.
    pub start_core: Option<quell_model::CoreId>,
    /// The session of its threads, counted within their task (`setsid`); `None`: that of the task.
    pub session: Option<u32>,
    /// What each does, one after the other; it ends after the last one.
    pub steps: Vec<ProgramStep>,
}

/// What a thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramStep {
    /// Computes for this long on an idle host.
    Compute(Service),
    /// Sleeps.
    Sleep(Service),
    /// Takes one of a [`Sync`], and waits until there is one: a lock, or what [`ProgramStep::Post`] left. Of a barrier: waits
    /// until all have come.
    Take(u32),
    /// Adds one to a [`Sync`].
    Post(u32),
    /// As [`ProgramStep::Take`], of the sync with the number of the thread in its task added: a pipeline's stage.
    TakeOwn(u32),
    /// As [`ProgramStep::TakeOwn`], of the next thread.
    TakeNext(u32),
    /// As [`ProgramStep::Post`], of the thread's own sync.
    PostOwn(u32),
    /// As [`ProgramStep::Post`], of the next thread's sync.
    PostNext(u32),
    /// Starts a thread of this kind, if the task has room for it.
    Fork(u32),
    /// Becomes another program, for which the kernel may choose another core.
    Exec,
    /// Offers its core to others.
    Yield,
    /// May use these cores from now on (`sched_setaffinity`): an index into [`Recording::cores`](super::Recording::cores).
    Allow(u32),
    /// Goes back to this step so many times in all.
    Repeat {
        /// The index of the step.
        from: u32,
        /// How often the steps in between are done.
        times: u32,
    },
}

/// Something that threads wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sync {
    /// Which.
    pub kind: SyncKind,
    /// What a thread does that waits for it.
    pub waits: Waiting,
}

/// See [`Sync::kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncKind {
    /// A number of tokens; one for a lock.
    Tokens {
        /// How many there are at the start.
        initial: u32,
    },
    /// Threads that wait until so many have come.
    Barrier {
        /// How many.
        parties: u32,
    },
}

/// What a thread does that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Waiting {
    /// Polls, and keeps its core.
    Spin,
    /// Polls, and offers its core to others after some time and again and again (`sched_yield`).
    SpinThenYield,
    /// Polls for a while, then sleeps: barriers of libgomp.
    SpinThenSleep,
    /// Sleeps at once.
    Sleep,
}

impl Waiting {
    /// For how long a thread polls that has the core, before it does something else.
    pub(crate) fn spins(self) -> Nanos {
        match self {
            Waiting::Spin => Nanos::MAX,
            Waiting::SpinThenYield => Nanos::from_micros(50),
            // GOMP_SPINCOUNT: 300,000 rounds while there are no more threads than cores, some 8 cycles of 2.1 GHz each.
            Waiting::SpinThenSleep => Nanos::from_millis(1),
            Waiting::Sleep => Nanos::ZERO,
        }
    }
}

impl Program {
    /// Threads from the start.
    pub fn threads(&self) -> u32 {
        self.kinds.iter().fold(0, |sum, kind| sum.saturating_add(kind.count))
    }

    /// The name of a sync, or its number.
    pub(crate) fn sync_name(&self, sync: usize) -> String {
        self.sync_names.get(sync).map_or_else(|| format!("sync {sync}"), |name| format!("`{name}`"))
    }

    /// What is wrong with it, if anything: steps that are not there, or that loop without time passing.
    pub fn check(&self) -> Result<(), String> {
        for kind in &self.kinds {
            for (at, step) in kind.steps.iter().enumerate() {
                self.check_step(step, at)
                    .map_err(|what| format!("step {} of {}: {what}", at + 1, kind.name))?;
            }
        }
        Ok(())
    }

    fn check_step(&self, step: &ProgramStep, at: usize) -> Result<(), String> {
        match *step {
            ProgramStep::Take(sync)
            | ProgramStep::Post(sync)
            | ProgramStep::TakeOwn(sync)
            | ProgramStep::TakeNext(sync)
            | ProgramStep::PostOwn(sync)
            | ProgramStep::PostNext(sync)
                if sync as usize >= self.syncs.len() =>
            {
                Err(format!("there is no sync {sync}"))
            }
            ProgramStep::Fork(kind) if kind as usize >= self.kinds.len() => {
                Err(format!("there is no kind {kind}"))
            }
            ProgramStep::Repeat { from, .. } if from as usize >= at => {
                Err("it repeats what comes after it".to_owned())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(steps: Vec<ProgramStep>) -> Program {
        let kind = ThreadKind {
            name: "worker".to_owned(),
            count: 1,
            start_core: None,
            session: None,
            steps,
        };
        Program { kinds: vec![kind], syncs: Vec::new(), sync_names: Vec::new() }
    }

    #[test]
    fn steps_that_are_not_there_are_refused() {
        let compute = ProgramStep::Compute(Service::Fixed(Nanos(1)));
        assert_eq!(
            program(vec![compute, ProgramStep::Repeat { from: 0, times: 9 }]).check(),
            Ok(())
        );
        for step in [
            ProgramStep::Take(0),
            ProgramStep::Post(7),
            ProgramStep::Fork(1),
            ProgramStep::Repeat { from: 1, times: 2 },
        ] {
            assert!(program(vec![compute, step]).check().is_err(), "{step:?}");
        }
    }
}
