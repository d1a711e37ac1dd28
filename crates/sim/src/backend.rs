//! Plans into rights, slowly and not always.
//!
//! As on the real host a Plan is a desired state: the back end compares it with what it last set out to do,
//! starts one action per difference, and reports per core how far it is. A newer Plan overtakes an
//! older action by the generation of its core or task.

use quell_model::{CoreSet, Nanos, Outcome, Plan, Rung, TaskId};

use crate::chance::Chance;
use crate::scenario::Faults;

/// Something to be done after a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Action {
    /// The core changes hands.
    Core { at: usize, generation: u64, refused: bool },
    /// The task changes rung or shared cores.
    Task { place: usize, generation: u64 },
    /// An action that had no effect is started again.
    Again { at: usize, generation: u64 },
}

#[derive(Clone, Copy, Debug)]
struct CoreTarget {
    owner: Option<TaskId>,
    generation: u64,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug)]
struct TaskTarget {
    rung: Rung,
    beneath: CoreSet,
    generation: u64,
}

pub(crate) struct Backend {
    faults: Faults,
    cores: Vec<CoreTarget>,
    tasks: Vec<TaskTarget>,
}

impl Backend {
    pub fn new(faults: Faults, cores: usize, tasks: usize) -> Backend {
        let core = CoreTarget { owner: None, generation: 0, outcome: Outcome::Done };
        let task = TaskTarget { rung: Rung::Own, beneath: CoreSet::EMPTY, generation: 0 };
        Backend { faults, cores: vec![core; cores], tasks: vec![task; tasks] }
    }

    /// Starts what the Plan asks for and is not under way; returns actions and when they are due.
    pub fn carry_out(
        &mut self,
        plan: &Plan,
        now: Nanos,
        chance: &mut Chance,
    ) -> Vec<(Nanos, Action)> {
        let mut started = Vec::new();
        for (at, planned) in plan.cores.iter().enumerate() {
            if self.cores[at].owner != planned.owner {
                self.cores[at].owner = planned.owner;
                self.cores[at].generation += 1;
                started.push(self.start(at, now, chance));
            }
        }
        for (place, planned) in plan.tasks.iter().enumerate() {
            let target = &mut self.tasks[place];
            if (target.rung, target.beneath) != (planned.rung, planned.beneath) {
                (target.rung, target.beneath) = (planned.rung, planned.beneath);
                target.generation += 1;
                let generation = target.generation;
                started.push((now + self.delay(chance), Action::Task { place, generation }));
            }
        }
        started
    }

    fn start(&mut self, at: usize, now: Nanos, chance: &mut Chance) -> (Nanos, Action) {
        let target = &mut self.cores[at];
        target.outcome = Outcome::Pending;
        let generation = target.generation;
        let grants = target.owner.is_some();
        if chance.happens(self.faults.lost) {
            return (now + Faults::RETRY, Action::Again { at, generation });
        }
        let refused = grants && chance.happens(self.faults.refused);
        (now + self.delay(chance), Action::Core { at, generation, refused })
    }

    fn delay(&self, chance: &mut Chance) -> Nanos {
        Nanos(self.faults.delay.0 / 2 + chance.below(self.faults.delay.0 + 1))
    }

    /// The owner that the core has from now on, if the action is not overtaken and not refused.
    pub fn core_done(
        &mut self,
        at: usize,
        generation: u64,
        refused: bool,
    ) -> Option<Option<TaskId>> {
        let target = &mut self.cores[at];
        if target.generation != generation {
            return None;
        }
        target.outcome = if refused { Outcome::Refused { errno: 1 } } else { Outcome::Done };
        (!refused).then_some(target.owner)
    }

    /// The rights that the task has from now on, if the action is not overtaken.
    pub fn task_done(&self, place: usize, generation: u64) -> Option<(Rung, CoreSet)> {
        let target = &self.tasks[place];
        (target.generation == generation).then_some((target.rung, target.beneath))
    }

    /// Starts an action again that had no effect.
    pub fn again(
        &mut self,
        at: usize,
        generation: u64,
        now: Nanos,
        chance: &mut Chance,
    ) -> Option<(Nanos, Action)> {
        (self.cores[at].generation == generation).then(|| self.start(at, now, chance))
    }

    pub fn outcome(&self, at: usize) -> Outcome {
        self.cores[at].outcome
    }
}
