//! Whether a Plan is one at all: complete, within limits, and with every rung in its place.

use quell_model::{CoreMode, Plan, Rung, Snapshot};

use super::facts::{Actor, Scene, is_live};
use super::{Rule, Violation};
use crate::{Host, Invariant};

/// One entry per core and per task place, in the order of topology and Snapshot.
pub(super) fn check_tables(host: &Host, seen: &Snapshot, plan: &Plan, found: &mut Vec<Violation>) {
    let mut bad = |what| found.push(Violation { rule: Rule::Shape, task: None, core: None, what });
    let cores = host.topology.cores();
    if seen.cores.len() != cores.len() || seen.cores.iter().zip(cores).any(|(a, b)| a.id != b.id) {
        bad("the Snapshot does not list the cores of the topology");
    }
    if plan.cores.len() != cores.len() || plan.cores.iter().zip(cores).any(|(a, b)| a.id != b.id) {
        bad("the Plan does not list the cores of the topology");
    }
    if plan.tasks.len() != seen.tasks.len() {
        bad("the Plan does not list the tasks of the Snapshot");
    } else if plan.tasks.iter().zip(&seen.tasks).any(|(a, b)| a.id != b.id) {
        bad("the Plan names other tasks than the Snapshot");
    }
}

/// Owners exist, may use their core, and stay within their cap.
pub(super) fn check_cores(scene: &Scene<'_>, found: &mut Vec<Violation>) {
    for core in &scene.plan.cores {
        let mut bad = |what| {
            let (task, core) = (core.owner, Some(core.id));
            found.push(Violation { rule: Rule::Shape, task, core, what });
        };
        let usable = scene.usable.contains(core.id);
        if usable == (core.mode == CoreMode::Unmanaged) {
            bad("mode and managed set disagree");
        }
        if core.owner.is_none() && matches!(core.mode, CoreMode::Lane | CoreMode::Runtime) {
            bad("a core without an owner has the mode of a task's scheduler");
        }
        let Some(owner) = core.owner else { continue };
        match scene.owner(core) {
            Some(actor) if actor.plan.id == owner && is_live(actor.view, owner.at()) => {
                if !actor.view.limits.allowed.contains(core.id) {
                    bad("the owner is not allowed on its core");
                }
                if actor.facts.owned > actor.plan.cap {
                    bad("the owner is above its cap");
                }
            }
            _ => bad("the owner does not live"),
        }
        if !usable {
            bad("a core that is not usable has an owner");
        }
        if core.mode == CoreMode::Idled {
            bad("a parked core has an owner");
        } else if let Some(actor) = scene.owner(core)
            && core.mode != actor.view.limits.scheduler.core_mode()
        {
            bad("the mode is not that of the owner's scheduler");
        }
    }
}

/// Tasks are let in only where they may be, and rungs keep the classes apart.
pub(super) fn check_tasks(scene: &Scene<'_>, found: &mut Vec<Violation>) {
    for (place, (view, plan)) in scene.seen.tasks.iter().zip(&scene.plan.tasks).enumerate() {
        if !is_live(view, place) && !plan.shared_cores.is_empty() {
            let (task, what) = (Some(plan.id), "a task that is gone may use cores");
            found.push(Violation { rule: Rule::Shape, task, core: None, what });
        }
    }
    for actor in scene.actors() {
        check_task(scene, &actor, found);
    }
}

fn check_task(scene: &Scene<'_>, actor: &Actor<'_>, found: &mut Vec<Violation>) {
    let (plan, limits) = (actor.plan, &actor.view.limits);
    let mut bad = |rule, what| {
        found.push(Violation { rule, task: Some(plan.id), core: None, what });
    };
    if plan.cap > limits.core_limit() {
        bad(Rule::Shape, "the cap is above the configured maximum");
    }
    if !plan.shared_cores.is_subset(&limits.allowed.intersection(&scene.usable)) {
        bad(Rule::Shape, "let in on a core that it may not use");
    }
    if !scene.shares() && !plan.shared_cores.is_empty() {
        bad(Rule::Shape, "let in beneath others where cores cannot be shared");
    }
    if actor.facts.owned as usize + plan.shared_cores.len() > plan.cap as usize {
        bad(Rule::Shape, "may use more cores than its cap");
    }
    let fits = match plan.rung {
        // Members of a lane have two rungs, the higher one only on a core of their own.
        Rung::Dispatcher => actor.is_lane() && actor.facts.owned > 0,
        Rung::FifoLow if actor.is_lane() => actor.facts.owned == 0,
        _ if actor.is_lane() => false,
        Rung::Lc => actor.is_lc() && plan.shared_cores.is_empty(),
        Rung::LcOverflow => actor.is_lc() && !plan.shared_cores.is_empty(),
        Rung::Original => actor.is_lc() && actor.facts.owned == 0,
        Rung::SchedIdle | Rung::FifoLow => !actor.is_lc(),
        _ => false,
    };
    if !fits {
        bad(Rule::Invariant(Invariant::LcFirst), "the rung does not fit the class");
    }
    if !actor.is_guest() {
        return;
    }
    for (core, _) in scene.cores().filter(|(core, _)| plan.shared_cores.contains(core.id)) {
        let owner = scene.owner(core);
        if !owner.is_some_and(|owner| owner.is_lc() && owner.plan.rung == Rung::Lc) {
            let rule = Rule::Invariant(Invariant::Guarantee);
            let what = "a guest is not below the owner of its core";
            found.push(Violation { rule, task: Some(plan.id), core: Some(core.id), what });
        }
    }
}
