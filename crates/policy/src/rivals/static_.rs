//! The rival without a loop: a plan from the limits alone, changed only when tasks or cores come or go.
//!
//! It is what a careful administrator sets by hand once: each LC task on its guaranteed cores at the
//! LC rung, LC tasks without a guarantee below the owners on all cores that they may use, and BE at
//! the bottom everywhere. Where cores cannot be shared, cores beyond the guarantees are dealt out
//! evenly.

use quell_model::{
    Class, CoreSet, Nanos, Plan, Reason, Rung, Snapshot, TaskPlan, TaskReason, TaskView,
};

use super::{Known, blank, give, is_live, live, set_modes};
use crate::state::{ensure, put, take};
use crate::{BadState, Host, Policy, Wake};

/// See the module.
pub struct Static {
    host: Host,
    known: Known,
    plan: Plan,
    free: CoreSet,
}

impl Static {
    /// The policy for a host.
    pub fn new(host: Host) -> Static {
        Static { host, known: Known::default(), plan: Plan::default(), free: CoreSet::EMPTY }
    }

    fn rebuild(&mut self, seen: &Snapshot) {
        blank(&self.host, seen, &mut self.plan);
        self.free = self.known.usable;
        for class in [Class::LatencyCritical, Class::BestEffort] {
            for task in live(seen).filter(|task| task.limits.class == class) {
                for _ in 0..task.limits.guaranteed.min(task.limits.core_limit()) {
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
                let room = self.plan.owned(task.id).len() < task.limits.core_limit() as usize;
                dealt |= room && self.deal(task, Reason::Leftover);
            }
        }
        for (place, task) in seen.tasks.iter().enumerate() {
            if is_live(place, task) {
                self.plan.tasks[place] = self.plan_task(task);
            }
        }
        set_modes(seen, &mut self.plan);
    }

    /// Gives the task the lowest free core that it may use.
    fn deal(&mut self, task: &TaskView, reason: Reason) -> bool {
        let Some(core) = self.free.intersection(&task.limits.allowed).first() else { return false };
        self.free.remove(core);
        give(&self.host, &mut self.plan, core, task.id, reason);
        true
    }

    fn plan_task(&self, task: &TaskView) -> TaskPlan {
        let limits = &task.limits;
        let mut plan = TaskPlan {
            id: task.id,
            class: limits.class,
            cap: limits.core_limit(),
            rung: Rung::Original,
            shared_cores: CoreSet::EMPTY,
            llc_ways: None,
            reason: TaskReason::Configured,
        };
        let owned = self.plan.owned(task.id);
        let shares = self.host.caps.shares_cores;
        let others = self.known.usable.intersection(&limits.allowed).difference(&owned);
        let room = (limits.core_limit() as usize).saturating_sub(owned.len());
        let others: CoreSet = others.iter().take(room).collect();
        match limits.class {
            Class::LatencyCritical if !shares || !owned.is_empty() => plan.rung = Rung::Lc,
            Class::LatencyCritical => (plan.rung, plan.shared_cores) = (Rung::LcOverflow, others),
            Class::BestEffort => {
                plan.rung = Rung::SchedIdle;
                plan.shared_cores = if shares { others } else { CoreSet::EMPTY };
            }
        }
        plan.reason = match (owned.is_empty(), plan.shared_cores.is_empty()) {
            (false, _) => TaskReason::Owner,
            (true, false) => TaskReason::Guest,
            (true, true) => TaskReason::NoCore,
        };
        plan
    }
}

impl Policy for Static {
    fn name(&self) -> &'static str {
        "static"
    }

    fn decide(&mut self, _now: Nanos, seen: &Snapshot, plan: &mut Plan) -> Wake {
        if self.known.changed(&self.host, seen) {
            self.rebuild(seen);
        }
        plan.cores.clone_from(&self.plan.cores);
        plan.tasks.clone_from(&self.plan.tasks);
        Wake::OnChange
    }

    fn save(&self, state: &mut Vec<u8>) {
        put(&(&self.known, &self.plan), state);
    }

    fn restore(&mut self, state: &mut &[u8]) -> Result<(), BadState> {
        let (known, plan): (Known, Plan) = take(state)?;
        let fits = plan.cores.len() == self.host.topology.len() || !known.started;
        ensure(fits, "a plan for other cores")?;
        (self.known, self.plan) = (known, plan);
        Ok(())
    }
}
