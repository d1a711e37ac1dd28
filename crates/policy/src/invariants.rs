//! An independent judge of Plans.
//!
//! [`Checker::check`] sees one Snapshot and the Plan that was made of it, nothing of the policy. It shares no code with the
//! allocator, so that one mistake cannot hide in both. The daemon runs it live; property tests and
//! simulations run it on every tick.
//!
//! It judges what one tick can show. A task *claims* a core when its oldest wait reached its target, or it
//! waits without any core, and it has more runnable threads than cores. A claim is excused by what
//! the Plan states (a ban, a cap, a refusal) and while a granted core is still `Pending`.

mod claims;
mod facts;
mod shape;

use std::fmt;

use quell_model::{CoreId, Plan, Snapshot, TaskId};
use serde::Serialize;

use crate::{Host, Invariant};
use facts::{Facts, Scene};

/// What a Plan breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// The Plan contradicts itself, the Snapshot or the host.
    Shape,
    /// One of the four invariants.
    Invariant(Invariant),
}

/// One breach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// What is broken.
    pub rule: Rule,
    /// The task that suffers or causes it.
    pub task: Option<TaskId>,
    /// The core that it is about.
    pub core: Option<CoreId>,
    /// In words.
    pub what: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rule {
            Rule::Shape => f.write_str("malformed plan: ")?,
            Rule::Invariant(invariant) => write!(f, "{invariant:?} broken: ")?,
        }
        f.write_str(self.what)?;
        if let Some(task) = self.task {
            write!(f, ", task {task}")?;
        }
        match self.core {
            Some(core) => write!(f, ", core {core}"),
            None => Ok(()),
        }
    }
}

/// Checks without context; see [`Checker`] for a check that keeps its tables.
pub fn check(host: &Host, seen: &Snapshot, plan: &Plan, found: &mut Vec<Violation>) {
    Checker::default().check(host, seen, plan, found);
}

/// The judge. Keeps its tables between calls, so that a steady state allocates nothing.
#[derive(Default)]
pub struct Checker {
    facts: Vec<Facts>,
}

impl Checker {
    /// Adds every breach to `found`. A malformed Plan is not judged further.
    pub fn check(&mut self, host: &Host, seen: &Snapshot, plan: &Plan, found: &mut Vec<Violation>) {
        let before = found.len();
        shape::check_tables(host, seen, plan, found);
        if found.len() > before {
            return;
        }
        facts::collect(host, seen, plan, &mut self.facts);
        let scene = Scene::new(host, seen, plan, &self.facts);
        shape::check_cores(&scene, found);
        shape::check_tasks(&scene, found);
        if found.len() > before {
            return;
        }
        claims::check_guarantees(&scene, found);
        claims::check_claims(&scene, found);
    }
}
