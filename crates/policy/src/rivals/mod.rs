//! Rivals: other ways to share a host, to run beside ours and compare. They promise no invariant; their Plans are
//! well-formed ([`crate::invariants::Rule::Shape`]), and what they break is what a comparison shows.
//!
//! The functions here write Plans; `docs/reference/policies.md` uses them for a policy of one's own.

mod elfen;
mod kernel;
mod oracle;
mod parties;
mod partition;
mod perfiso;
mod shenango;
mod static_;

pub use elfen::Elfen;
pub use kernel::Kernel;
pub use oracle::{Oracle, Search};
pub use parties::Parties;
pub use partition::Partition;
pub use perfiso::PerfIso;
pub use shenango::Shenango;
pub use static_::Static;

use quell_model::{
    Class, CoreId, CoreMode, CorePlan, CoreSet, Limits, Plan, Reason, Rung, Snapshot, TaskId,
    TaskPlan, TaskReason, TaskView,
};
use serde::{Deserialize, Serialize};

use crate::Host;

/// Managed cores that the Snapshot shows online.
pub fn usable(host: &Host, seen: &Snapshot) -> CoreSet {
    let cores = host.topology.cores().iter().zip(&seen.cores);
    let open = cores.filter(|(core, view)| core.id == view.id && view.managed && view.online);
    open.map(|(core, _)| core.id).collect::<CoreSet>().intersection(&host.managed)
}

/// Tasks that are there.
pub fn live(seen: &Snapshot) -> impl Iterator<Item = &TaskView> {
    let tasks = seen.tasks.iter().enumerate();
    tasks.filter(|(place, task)| is_live(*place, task)).map(|(_, task)| task)
}

/// A task that claims another's place counts as gone.
fn is_live(place: usize, task: &TaskView) -> bool {
    task.alive && task.id.at() == place
}

/// The place of the task that runs on the core, if it is there.
fn runs(seen: &Snapshot, at: usize) -> Option<TaskId> {
    seen.cores.get(at).and_then(|view| view.running)
}

/// Whether nothing runs on the core at this position.
fn is_idle(seen: &Snapshot, at: usize) -> bool {
    let view = seen.cores.get(at);
    view.is_some_and(|view| view.idle_since.is_some() && view.running.is_none())
}

/// Writes the Plan that changes nothing: no core has an owner, every task is as found and may run nowhere.
pub fn blank(host: &Host, seen: &Snapshot, plan: &mut Plan) {
    let usable = usable(host, seen);
    plan.cores.clear();
    for (at, core) in host.topology.cores().iter().enumerate() {
        let offline = seen.cores.get(at).is_some_and(|view| view.managed && !view.online);
        let (mode, reason) = match (usable.contains(core.id), offline) {
            (true, _) => (CoreMode::Kernel, Reason::Unwanted),
            (false, true) => (CoreMode::Unmanaged, Reason::Offline),
            (false, false) => (CoreMode::Unmanaged, Reason::Unmanaged),
        };
        plan.cores.push(CorePlan { id: core.id, owner: None, mode, reason, yields: None });
    }
    plan.tasks.clear();
    plan.tasks.extend(seen.tasks.iter().enumerate().map(|(place, task)| TaskPlan {
        id: task.id,
        class: task.limits.class,
        cap: if is_live(place, task) { task.limits.core_limit() } else { 0 },
        rung: Rung::Original,
        shared_cores: CoreSet::EMPTY,
        llc_ways: None,
        reason: TaskReason::NoCore,
    }));
}

/// Makes the core the task's own.
pub fn give(host: &Host, plan: &mut Plan, core: CoreId, task: TaskId, reason: Reason) {
    if let Some(at) = host.topology.position(core) {
        (plan.cores[at].owner, plan.cores[at].reason) = (Some(task), reason);
    }
}

/// Rungs and reasons of tasks that run on the cores that they own, and nowhere else.
pub fn rung_owners(host: &Host, seen: &Snapshot, plan: &mut Plan) {
    for task in live(seen) {
        let owns = !plan.owned(task.id).is_empty();
        let planned = &mut plan.tasks[task.id.at()];
        planned.rung = match task.limits.class {
            Class::LatencyCritical if owns || !host.caps.shares_cores => Rung::Lc,
            Class::LatencyCritical => Rung::Original,
            Class::BestEffort => Rung::SchedIdle,
        };
        planned.reason = if owns { TaskReason::Owner } else { TaskReason::NoCore };
    }
    set_modes(seen, plan);
}

/// The mode of each core with an owner: that of the owner's scheduler.
pub fn set_modes(seen: &Snapshot, plan: &mut Plan) {
    for core in &mut plan.cores {
        let owner = core.owner.and_then(|id| seen.tasks.get(id.at()).filter(|task| task.id == id));
        if let Some(owner) = owner {
            core.mode = owner.limits.scheduler.core_mode();
        }
    }
}

/// What a division of the cores was made for.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
struct Known {
    /// Whether anything was seen yet.
    started: bool,
    usable: CoreSet,
    tasks: Vec<(TaskId, bool, Limits)>,
}

impl Known {
    /// Takes in what the Snapshot shows; true if tasks, limits or usable cores changed.
    fn changed(&mut self, host: &Host, seen: &Snapshot) -> bool {
        let usable = usable(host, seen);
        let key = |task: &TaskView| (task.id, task.alive, task.limits);
        let same = self.started
            && usable == self.usable
            && self.tasks.len() == seen.tasks.len()
            && self.tasks.iter().zip(&seen.tasks).all(|(known, task)| *known == key(task));
        if !same {
            (self.started, self.usable) = (true, usable);
            self.tasks.clear();
            self.tasks.extend(seen.tasks.iter().map(key));
        }
        !same
    }
}
