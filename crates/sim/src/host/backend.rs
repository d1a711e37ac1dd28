//! Plans into rights, slowly and not always.
//!
//! As on the real host a Plan is a desired state: the back end compares it with what it last set out to do,
//! starts one action per difference, and reports per core how far it is. A newer Plan replaces an action under way.

use quell_model::{CoreSet, Nanos, Outcome, Role, Rung, TaskId, ThreadPlan};

use crate::engine::{Engine, Timer};
use crate::kernel::TaskState;
use crate::scenario::Faults;

/// What an action under way will come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Done,
    Refused,
    Raced,
    /// It had no effect, or was refused: it is started again.
    Again,
}

#[derive(Clone, Copy, Debug)]
struct CoreTarget {
    owner: Option<TaskId>,
    outcome: Outcome,
    fate: Fate,
    /// The request that was told to yield last, by its begin.
    yielded: Option<Nanos>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TaskTarget {
    rung: Rung,
    shared_cores: CoreSet,
    ways: Option<u16>,
}

pub(crate) struct Backend {
    cores: Vec<CoreTarget>,
    tasks: Vec<TaskTarget>,
    /// Threads whose role is not [`Role::Event`], ordered.
    pub roles: Vec<ThreadPlan>,
}

impl Backend {
    /// Nothing is under way; tasks have what they began with.
    pub fn new(cores: usize, tasks: &[TaskState]) -> Backend {
        let core =
            CoreTarget { owner: None, outcome: Outcome::Done, fate: Fate::Done, yielded: None };
        let begins = |task: &TaskState| TaskTarget {
            rung: task.rung,
            shared_cores: task.shared_cores,
            ways: None,
        };
        let tasks = tasks.iter().map(begins).collect();
        Backend { cores: vec![core; cores], tasks, roles: Vec::new() }
    }

    pub fn outcome(&self, at: usize) -> Outcome {
        self.cores[at].outcome
    }
}

impl Engine<'_> {
    /// Starts what the Plan asks for and is not under way.
    pub(crate) fn carry_out(&mut self) {
        for at in 0..self.plan.cores.len().min(self.cores.len()) {
            let planned = self.plan.cores[at];
            let target = &mut self.backend.cores[at];
            let raced = target.outcome == Outcome::Raced;
            if target.owner != planned.owner || raced {
                target.owner = planned.owner;
                self.start_action(at);
            }
            if let Some(began) = planned.yields
                && self.backend.cores[at].yielded != Some(began)
            {
                self.backend.cores[at].yielded = Some(began);
                self.yield_request(at, began);
            }
        }
        for task in 0..self.plan.tasks.len().min(self.tasks.len()) {
            let planned = &self.plan.tasks[task];
            let wanted = TaskTarget {
                rung: planned.rung,
                shared_cores: planned.shared_cores,
                ways: planned.llc_ways,
            };
            if self.backend.tasks[task] != wanted {
                self.backend.tasks[task] = wanted;
                self.start_task_action(task);
            }
        }
        if self.backend.roles != self.plan.roles {
            self.take_roles();
        }
    }

    /// Starts an action for each task of which a thread has another role than before.
    fn take_roles(&mut self) {
        let before = std::mem::replace(&mut self.backend.roles, self.plan.roles.clone());
        for task in 0..self.tasks.len() {
            let of_task = |planned: &&ThreadPlan| planned.task.at() == task;
            let wanted = self.plan.roles.iter().filter(of_task);
            if !before.iter().filter(of_task).eq(wanted) {
                self.start_task_action(task);
            }
        }
    }

    /// What is under way for a task ends with what is wanted then: a Plan that changes faster than that is not put off
    /// for ever. No Outcome tells of tasks, so the back end itself tries again what had no effect, for whatever reason.
    fn start_task_action(&mut self, task: usize) {
        let timer = self.layout.timer(Timer::TaskAction(task));
        if self.timers.time(timer) < Nanos::MAX {
            return;
        }
        let takes = self.takes(self.scenario.costs.rights);
        self.timers.arm(timer, self.now + takes);
    }

    fn start_action(&mut self, at: usize) {
        let faults = &self.scenario.faults;
        let chance = &mut self.mishaps;
        let grants = self.backend.cores[at].owner.is_some();
        let (lost, raced) = (chance.happens(faults.lost), chance.happens(faults.raced));
        let refused = grants && chance.happens(faults.refused);
        let costs = &self.scenario.costs;
        let cost = match (grants, self.cores[at].running.is_some()) {
            (true, true) => costs.preempt,
            (true, false) => costs.grant,
            (false, _) => costs.idle,
        };
        let (fate, takes) = match (lost, raced, refused) {
            (true, _, _) => (Fate::Again, Faults::RETRY),
            (_, true, _) => (Fate::Raced, self.takes(cost)),
            (_, _, true) => (Fate::Refused, self.takes(cost)),
            _ => (Fate::Done, self.takes(cost)),
        };
        let target = &mut self.backend.cores[at];
        (target.outcome, target.fate) = (Outcome::Pending, fate);
        self.timers.arm(self.layout.timer(Timer::CoreAction(at)), self.now + takes);
    }

    /// Half to one and a half times a cost, or far more.
    fn takes(&mut self, cost: Nanos) -> Nanos {
        let takes = cost.0 / 2 + self.mishaps.below(cost.0 + 1);
        let late = self.mishaps.happens(self.scenario.faults.late);
        Nanos(if late { takes.saturating_mul(Faults::LATE) } else { takes })
    }

    pub(crate) fn core_action(&mut self, at: usize) {
        let target = &mut self.backend.cores[at];
        debug_assert_ne!(target.outcome, Outcome::Done, "an action ends that was not begun");
        match target.fate {
            Fate::Done => {
                target.outcome = Outcome::Done;
                let owner = target.owner.filter(|id| self.lives(*id)).map(TaskId::at);
                self.set_owner(at, owner);
            }
            Fate::Refused => {
                (target.outcome, target.fate) = (Outcome::Refused { errno: 1 }, Fate::Again);
                let again = self.now + Faults::RETRY;
                self.timers.arm(self.layout.timer(Timer::CoreAction(at)), again);
            }
            Fate::Raced => target.outcome = Outcome::Raced,
            Fate::Again => self.start_action(at),
        }
        self.ring();
    }

    fn lives(&self, id: TaskId) -> bool {
        let task = self.tasks.get(id.at());
        task.is_some_and(|task| task.alive && task.generation == id.generation)
    }

    pub(crate) fn task_action(&mut self, task: usize) {
        let Faults { refused, lost, raced, .. } = self.scenario.faults;
        if [refused, lost, raced].into_iter().any(|fault| self.mishaps.happens(fault)) {
            let again = self.now + Faults::RETRY;
            return self.timers.arm(self.layout.timer(Timer::TaskAction(task)), again);
        }
        let TaskTarget { rung, shared_cores, ways } = self.backend.tasks[task];
        self.hardware.partition(task, ways, self.scenario.host.caps.llc_ways);
        self.set_rights(task, rung, shared_cores);
        self.set_roles(task);
    }

    /// Gives the threads of a task the roles that are wanted for them now.
    fn set_roles(&mut self, task: usize) {
        if !self.tasks[task].has_roles {
            return;
        }
        for thread in self.threads_of(task) {
            let id = self.thread_id(thread);
            let roles = &self.backend.roles;
            let (role, needs) = match roles.binary_search_by_key(&id, |known| known.thread) {
                Ok(at) => (roles[at].role, roles[at].needs),
                Err(_) => (Role::Event, 0),
            };
            self.set_role(thread, role, needs);
        }
    }
}
