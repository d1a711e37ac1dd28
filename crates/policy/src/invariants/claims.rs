//! Whether every task has the cores to which it has a right.

use quell_model::{Class, CorePlan, CoreSet, CoreView, Reason};

use super::facts::{Actor, Scene, runnable};
use super::{Rule, Violation};
use crate::Invariant;

/// Invariant 1: no task is short of its guarantee while a core that it may use belongs to nobody, or to a task
/// beyond its own guarantee.
pub(super) fn check_guarantees(scene: &Scene<'_>, found: &mut Vec<Violation>) {
    let total: u64 = scene.facts.iter().map(|fact| u64::from(fact.guaranteed)).sum();
    let fits = total <= scene.usable.len() as u64
        && scene.actors().all(|actor| scene.usable.is_subset(&actor.view.limits.allowed))
        && !scene.plan.cores.iter().any(|core| matches!(core.reason, Reason::Refused(_)));
    for actor in scene.actors() {
        let wanted = match scene.shares() {
            true => actor.facts.guaranteed,
            false => actor.facts.guaranteed.min(runnable(actor.view)),
        };
        if actor.facts.owned >= wanted {
            continue;
        }
        for (core, _) in scene.cores() {
            let allowed = actor.view.limits.allowed.contains(core.id);
            if !allowed || matches!(core.reason, Reason::Refused(_)) {
                continue;
            }
            let wronged = match scene.owner(core) {
                None => true,
                Some(owner) if owner.plan.id == actor.plan.id => false,
                // A BE guarantee that cannot be met without another's is no right against LC.
                Some(owner) => owner.bursts() && (actor.is_lc() || !owner.is_lc() || fits),
            };
            if wronged {
                let rule = Rule::Invariant(Invariant::Guarantee);
                let what = "short of its guarantee while others have cores to spare";
                let (task, core) = (Some(actor.plan.id), Some(core.id));
                found.push(Violation { rule, task, core, what });
                break;
            }
        }
    }
}

/// Invariants 2 and 3: no claim is open while a core that could serve it is left to BE, or to nobody.
pub(super) fn check_claims(scene: &Scene<'_>, found: &mut Vec<Violation>) {
    for actor in scene.actors().filter(Actor::claims) {
        let blocked = scene.shares() && actor.is_lc() && hosts_the_homeless(scene, &actor);
        for (core, view) in scene.cores() {
            let excused =
                matches!(core.reason, Reason::BannedFor(_) | Reason::Refused(_) | Reason::Capped);
            let may = actor.view.limits.allowed.contains(core.id);
            let has =
                core.owner == Some(actor.plan.id) || actor.plan.shared_cores.contains(core.id);
            let has =
                has && (!actor.is_lc() || core.owner == Some(actor.plan.id) || actor.is_guest());
            if excused || !may || has {
                continue;
            }
            let judged = match actor.plan.class {
                Class::LatencyCritical => judge_lc(scene, &actor, core, view, blocked),
                Class::BestEffort => judge_be(scene, &actor, core, view),
            };
            if let Some((invariant, what)) = judged {
                let (rule, task) = (Rule::Invariant(invariant), Some(actor.plan.id));
                found.push(Violation { rule, task, core: Some(core.id), what });
                break;
            }
        }
    }
}

/// What is wrong if this core does not serve the claim of an LC task.
fn judge_lc(
    scene: &Scene<'_>,
    actor: &Actor<'_>,
    core: &CorePlan,
    view: &CoreView,
    blocked: bool,
) -> Option<(Invariant, &'static str)> {
    let be_runs = || scene.used_beneath(core, Class::BestEffort, actor);
    let Some(owner) = scene.owner(core) else {
        return Some(match be_runs() {
            true => (Invariant::LcFirst, "LC waits while BE has a core without owner"),
            false => (Invariant::WorkConservation, "LC waits while a core has no owner"),
        });
    };
    if !owner.is_lc() {
        let yields = owner.bursts();
        return yields.then_some((Invariant::LcFirst, "LC waits while BE has a core to yield"));
    }
    if !owner.has_spare() {
        return None;
    }
    if !scene.shares() {
        return left_idle(&owner, view);
    }
    // A lane is on one rung below guests: it is none, and has none on its core.
    if actor.is_lane() || owner.is_lane() {
        return None;
    }
    let guest_runs = scene.used_beneath(core, Class::LatencyCritical, actor);
    if blocked || guest_runs || owner.is_guest() {
        return None;
    }
    Some(match be_runs() {
        true => (Invariant::LcFirst, "LC waits while BE runs beneath an owner with cores to spare"),
        false => (Invariant::WorkConservation, "LC waits while an owner has cores to spare"),
    })
}

/// What is wrong if this core does not serve the claim of a BE task.
fn judge_be(
    scene: &Scene<'_>,
    actor: &Actor<'_>,
    core: &CorePlan,
    view: &CoreView,
) -> Option<(Invariant, &'static str)> {
    let what = "BE waits while a core is left to nobody";
    match scene.owner(core) {
        None if !scene.shares() => Some((Invariant::WorkConservation, what)),
        Some(owner) if !scene.shares() => left_idle(&owner, view),
        owner => {
            let unused = owner.is_none_or(|owner| owner.has_spare())
                && !scene.used_beneath(core, Class::BestEffort, actor)
                && !scene.used_beneath(core, Class::LatencyCritical, actor);
            unused.then_some((Invariant::WorkConservation, what))
        }
    }
}

/// Exclusive cores: an owner may not sit on an idle core for which it has no thread.
fn left_idle(owner: &Actor<'_>, view: &CoreView) -> Option<(Invariant, &'static str)> {
    let idle = view.idle_since.is_some() && view.running.is_none() && owner.has_spare();
    idle.then_some((
        Invariant::WorkConservation,
        "an owner keeps an idle core that it has no use for",
    ))
}

/// Whether some guest may be let in on this task's cores only, so that this task may not become a guest
/// itself: owner and guest would be on one rung.
fn hosts_the_homeless(scene: &Scene<'_>, actor: &Actor<'_>) -> bool {
    let own = actor.plan.id;
    let is_lost = |core: &CorePlan| {
        core.owner == Some(own) || scene.owner(core).is_some_and(|owner| owner.is_guest())
    };
    let lost: CoreSet =
        scene.plan.cores.iter().filter(|core| is_lost(core)).map(|core| core.id).collect();
    actor.facts.owned > 0
        && scene.actors().any(|other| {
            other.is_guest() && other.plan.id != own && other.plan.shared_cores.is_subset(&lost)
        })
}
