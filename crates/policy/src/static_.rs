//! The rival without a loop: a plan from the limits alone, changed only when tasks or cores come or go.
//!
//! It is what a careful administrator sets by hand once: each LC task on its guaranteed cores at the
//! LC rung, LC tasks without a guarantee below the owners on all cores that they may use, and BE at
//! the bottom everywhere. Where cores cannot be shared, cores beyond the guarantees are dealt out
//! evenly.

use quell_model::{
    Class, CoreMode, CorePlan, CoreSet, Limits, Nanos, Plan, Reason, Rung, Snapshot, TaskId,
    TaskPlan, TaskReason, TaskView,
};

use crate::state::{put, take};
use crate::{BadState, Host, Policy, Wake};

/// See the module.
pub struct Static {
    host: Host,
    usable: CoreSet,
    known: Vec<(TaskId, bool, Limits)>,
    plan: Plan,
    free: CoreSet,
}

impl Static {
    /// The policy for a host.
    pub fn new(host: Host) -> Static {
        let (known, plan) = (Vec::new(), Plan::default());
        Static { host, usable: CoreSet::EMPTY, known, plan, free: CoreSet::EMPTY }
    }

    /// Managed cores that the Snapshot shows online.
    fn usable(&self, seen: &Snapshot) -> CoreSet {
        let cores = self.host.topology.cores().iter().zip(&seen.cores);
        let open = cores.filter(|(core, view)| core.id == view.id && view.managed && view.online);
        open.map(|(core, _)| core.id).collect::<CoreSet>().intersection(&self.host.managed)
    }

    fn is_current(&self, seen: &Snapshot, usable: &CoreSet) -> bool {
        *usable == self.usable
            && self.known.len() == seen.tasks.len()
            && self.known.iter().zip(&seen.tasks).all(|(known, task)| *known == key(task))
            && self.plan.cores.len() == self.host.topology.len()
    }

    fn rebuild(&mut self, seen: &Snapshot) {
        self.known.clear();
        self.known.extend(seen.tasks.iter().map(key));
        self.clear_cores(seen);
        for class in [Class::LatencyCritical, Class::BestEffort] {
            for task in live(seen).filter(|task| task.limits.class == class) {
                for _ in 0..task.limits.guaranteed.min(task.limits.max) {
                    self.deal(task, Reason::Guaranteed);
                }
            }
        }
        let shares = self.host.caps.shares_cores;
        let takes = |task: &&TaskView| !shares || task.limits.class == Class::BestEffort;
        let mut dealt = true;
        while dealt && !self.free.is_empty() {
            dealt = false;
            for task in live(seen).filter(takes) {
                let room = self.plan.owned(task.id).len() < task.limits.max as usize;
                dealt |= room && self.deal(task, Reason::Leftover);
            }
        }
        self.plan.tasks.clear();
        for (place, task) in seen.tasks.iter().enumerate() {
            let planned = self.plan_task(task, is_live(place, task));
            self.plan.tasks.push(planned);
        }
    }

    fn clear_cores(&mut self, seen: &Snapshot) {
        self.free = self.usable;
        self.plan.cores.clear();
        for (at, core) in self.host.topology.cores().iter().enumerate() {
            let usable = self.usable.contains(core.id);
            let mode = if usable { CoreMode::Kernel } else { CoreMode::Unmanaged };
            let offline = seen.cores.get(at).is_some_and(|view| view.managed && !view.online);
            let reason = match (usable, offline) {
                (true, _) => Reason::Unwanted,
                (false, true) => Reason::Offline,
                (false, false) => Reason::Unmanaged,
            };
            self.plan.cores.push(CorePlan { id: core.id, owner: None, mode, reason });
        }
    }

    /// Gives the task the lowest free core that it may use.
    fn deal(&mut self, task: &TaskView, reason: Reason) -> bool {
        let Some(core) = self.free.intersection(&task.limits.allowed).first() else { return false };
        let Some(at) = self.host.topology.position(core) else { return false };
        self.free.remove(core);
        self.plan.cores[at].owner = Some(task.id);
        self.plan.cores[at].reason = reason;
        true
    }

    fn plan_task(&self, task: &TaskView, live: bool) -> TaskPlan {
        let limits = &task.limits;
        let mut plan = TaskPlan {
            id: task.id,
            class: limits.class,
            cap: limits.max,
            rung: Rung::Own,
            beneath: CoreSet::EMPTY,
            reason: TaskReason::Configured,
        };
        if !live {
            return TaskPlan { cap: 0, ..plan };
        }
        let owned = self.plan.owned(task.id);
        let shares = self.host.caps.shares_cores;
        let others = self.usable.intersection(&limits.allowed).difference(&owned);
        let room = (limits.max as usize).saturating_sub(owned.len());
        let others: CoreSet = others.iter().take(room).collect();
        match limits.class {
            Class::LatencyCritical if !shares || !owned.is_empty() => plan.rung = Rung::Lc,
            Class::LatencyCritical => (plan.rung, plan.beneath) = (Rung::LcGuest, others),
            Class::BestEffort => {
                plan.rung = Rung::Idle;
                plan.beneath = if shares { others } else { CoreSet::EMPTY };
            }
        }
        plan.reason = match (owned.is_empty(), plan.beneath.is_empty()) {
            (false, _) => TaskReason::Owner,
            (true, false) => TaskReason::Guest,
            (true, true) => TaskReason::NoCore,
        };
        plan
    }
}

fn live(seen: &Snapshot) -> impl Iterator<Item = &TaskView> {
    seen.tasks
        .iter()
        .enumerate()
        .filter(|(place, task)| is_live(*place, task))
        .map(|(_, task)| task)
}

/// A task that claims another's place counts as gone.
fn is_live(place: usize, task: &TaskView) -> bool {
    task.alive && task.id.at() == place
}

fn key(task: &TaskView) -> (TaskId, bool, Limits) {
    (task.id, task.alive, task.limits)
}

impl Policy for Static {
    fn name(&self) -> &'static str {
        "static"
    }

    fn decide(&mut self, _now: Nanos, seen: &Snapshot, plan: &mut Plan) -> Wake {
        let usable = self.usable(seen);
        if !self.is_current(seen, &usable) {
            self.usable = usable;
            self.rebuild(seen);
        }
        plan.cores.clone_from(&self.plan.cores);
        plan.tasks.clone_from(&self.plan.tasks);
        Wake::OnChange
    }

    fn save(&self, state: &mut Vec<u8>) {
        put(&(&self.usable, &self.known, &self.plan), state);
    }

    fn restore(&mut self, state: &mut &[u8]) -> Result<(), BadState> {
        (self.usable, self.known, self.plan) = take(state)?;
        Ok(())
    }
}
