//! What a managed core needs besides its threads.
//!
//! A core that real-time threads keep busy starves whatever else has to run there: softirq and interrupt
//! threads get a rung above LC; interrupts are moved to other cores; RT throttling is switched off
//! where FIFO threads fill a core by design; and foreign threads are listed, or moved. All of
//! it is planned first, done through the executor, and undone by it.

mod bystanders;
mod interrupts;
mod kernel;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};

use quell_model::{CoreSet, Rung};

pub use bystanders::Bystander;

use super::Layout;
use crate::{ActError, Executor, Ladder, RestoreReport, Setting, Subject};
use quell_os::{ThreadRef, Tid};

/// What to do with RT throttling (`kernel.sched_rt_runtime_us`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RtThrottling {
    /// Leave it.
    #[default]
    Leave,
    /// Switch it off where the kernel stops real-time threads by it ([`super::throttles`]).
    OffIfActive,
    /// Switch it off.
    Off,
}

/// What is to be prepared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrepConfig {
    /// The managed cores.
    pub managed: CoreSet,
    /// What to do with RT throttling.
    pub rt_throttling: RtThrottling,
    /// Elevated threads leave a tenth of each core, so that throttling at the kernel's default limit never acts.
    pub leaves_a_tenth: bool,
    /// Interrupt threads to raise, by the name of their interrupt (`eth0` for `irq/42-eth0`).
    pub irq_threads: Vec<String>,
    /// Move foreign threads that can run elsewhere off the managed cores.
    pub move_bystanders: bool,
    /// Processes that are no bystanders: those of tasks, and Quell's own besides this one.
    pub known: Vec<Tid>,
}

/// Plans and makes the preparations.
#[derive(Clone, Debug)]
pub struct Prep {
    config: PrepConfig,
    /// `None` for a back end that elevates nobody: then nothing has to be raised above it, and neither
    /// throttling matters.
    ladder: Option<Ladder>,
    layout: Layout,
    root: PathBuf,
}

/// What would be done, and what cannot be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrepPlan {
    /// In this order.
    pub steps: Vec<Step>,
    /// What stays less than good, with the consequence and the remedy.
    pub notes: Vec<Note>,
    /// Foreign fair-class user threads that may run on managed cores.
    pub bystanders: Vec<Bystander>,
    /// The kernel's preemption model, as far as it tells.
    pub preemption: String,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A thread of the kernel goes to the softirq rung.
    Raise {
        /// Which.
        thread: ThreadRef,
        /// Its name.
        name: String,
    },
    /// A setting gets a value.
    Set {
        /// Which.
        setting: Setting,
        /// The value.
        value: String,
        /// What for.
        why: Why,
    },
    /// A bystander leaves the managed cores.
    Move {
        /// Which.
        thread: ThreadRef,
        /// Its name.
        name: String,
        /// Where it may run then.
        to: CoreSet,
    },
}

/// What a setting is changed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The kernel would stop real-time threads for part of each second.
    Throttling,
    /// An interrupt would be served on a managed core.
    Interrupt,
}

/// Something that stays less than good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// What.
    pub what: String,
    /// What follows from it, and what can be done.
    pub advice: String,
}

/// What became of the steps.
#[derive(Debug, Default)]
pub struct PrepReport {
    /// Steps after which the host is as wanted.
    pub done: usize,
    /// Steps that the host refused, with its reason.
    pub refused: Vec<(Step, ActError)>,
}

impl Prep {
    /// Preparations for a back end that elevates threads on this ladder, or for one that does not.
    pub fn new(config: PrepConfig, ladder: Option<Ladder>, layout: &Layout) -> Prep {
        Prep { config, ladder, layout: layout.clone(), root: "/".into() }
    }

    /// Reads the host and lists what is to be done. Changes nothing.
    pub fn plan(&self) -> PrepPlan {
        let mut plan =
            PrepPlan { preemption: kernel::preemption(&self.root), ..Default::default() };
        if self.ladder.is_some() {
            kernel::plan_throttling(self, &mut plan);
            interrupts::plan_threads(self, &mut plan);
            kernel::note_preemption(&mut plan);
        }
        interrupts::plan_affinities(self, &mut plan);
        bystanders::plan(self, &mut plan);
        plan
    }

    /// Does what a plan lists. A step that the host refuses is reported and the others are done.
    pub fn apply(&self, plan: &PrepPlan, exec: &mut Executor) -> PrepReport {
        let mut report = PrepReport::default();
        for step in &plan.steps {
            match self.make(step, exec) {
                // A bystander that ended meanwhile is out of the way too.
                Ok(()) | Err(ActError::Gone(_)) => report.done += 1,
                Err(error) => report.refused.push((step.clone(), error)),
            }
        }
        report
    }

    fn make(&self, step: &Step, exec: &mut Executor) -> Result<(), ActError> {
        // Somebody else may have changed it between plan and step; the second attempt goes ahead.
        match self.try_once(step, exec) {
            Err(ActError::Raced { .. }) => self.try_once(step, exec),
            done => done,
        }
    }

    fn try_once(&self, step: &Step, exec: &mut Executor) -> Result<(), ActError> {
        let done = match step {
            Step::Raise { thread, .. } => {
                match self.ladder.and_then(|ladder| ladder.attr(Rung::Softirq)) {
                    Some(attr) => exec.set_sched(thread, attr),
                    None => return Ok(()),
                }
            }
            Step::Set { setting, value, .. } => exec.write_setting(setting, value),
            Step::Move { thread, to, .. } => exec.set_affinity(thread, to),
        };
        done.map(drop)
    }

    /// Undoes what a plan's steps did, and leaves the rest of the executor's changes.
    pub fn undo(&self, plan: &PrepPlan, exec: &mut Executor) -> RestoreReport {
        let thread_of = |step: &Step| match step {
            Step::Raise { thread, .. } | Step::Move { thread, .. } => Some(*thread),
            Step::Set { .. } => None,
        };
        let threads: Vec<ThreadRef> = plan.steps.iter().filter_map(thread_of).collect();
        let files: Vec<PathBuf> = plan.steps.iter().filter_map(Step::file).collect();
        let mut report = exec.undo_matching(|thread| threads.contains(thread));
        let settings = exec.undo_texts(
            |subject, _| matches!(subject, Subject::Setting(file) if files.contains(file)),
        );
        report.restored.extend(settings.restored);
        report.left.extend(settings.left);
        report.failed.extend(settings.failed);
        report.as_found += settings.as_found;
        report
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

impl Step {
    fn file(&self) -> Option<PathBuf> {
        match self {
            Step::Set { setting, .. } => Some(setting.path()),
            _ => None,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Raise { thread, name } => {
                write!(f, "raise {} (thread {}) above LC", name.escape_debug(), thread.tid)
            }
            Step::Set { setting, value, why } => {
                let why = match why {
                    Why::Throttling => {
                        "so that the kernel does not stop elevated threads each second"
                    }
                    Why::Interrupt => "so that it is served on other cores",
                };
                write!(f, "write {value} to {}, {why}", setting.path().display())
            }
            Step::Move { thread, name, to } => {
                write!(f, "move {} (thread {}) to cores {to}", name.escape_debug(), thread.tid)
            }
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.advice)
    }
}

/// The trimmed text of a small file, `None` where it cannot be read.
fn text(path: &Path) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}
