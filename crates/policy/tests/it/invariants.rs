//! The judge finds what is broken on purpose, and only that.

use crate::common::Scene;
use quell_model::*;
use quell_policy::invariants::{Rule, check};
use quell_policy::{Config, Invariant, Quell};

const MS: Nanos = Nanos::from_millis(1);

/// A host with shared cores, decided once: LC on cores 0 and 1, BE on 2 and 3.
fn shared() -> (Scene, TaskId, TaskId) {
    let mut scene = Scene::new(4, 1, true);
    let (lc, be) = (scene.lc(2, 4), scene.be(4));
    scene.demand(lc, 1, 0);
    scene.demand(be, 4, 0);
    let mut policy = Quell::new(scene.host.clone(), Config::default());
    scene.tick(&mut policy, MS);
    (scene, lc, be)
}

/// A host with exclusive cores, decided once: LC on core 0, BE on core 1.
fn exclusive() -> (Scene, TaskId, TaskId) {
    let mut scene = Scene::new(2, 1, false);
    let (lc, be) = (scene.lc(1, 2), scene.be(2));
    scene.demand(lc, 1, 0);
    scene.runs(0, Some(lc));
    scene.demand(be, 0, 1);
    let mut policy = Quell::new(scene.host.clone(), Config::default());
    scene.tick(&mut policy, MS);
    (scene, lc, be)
}

fn rules(scene: &Scene) -> Vec<Rule> {
    let mut found = Vec::new();
    check(&scene.host, &scene.seen, &scene.plan, &mut found);
    found.into_iter().map(|violation| violation.rule).collect()
}

fn broken(invariant: Invariant) -> Vec<Rule> {
    vec![Rule::Invariant(invariant)]
}

#[test]
fn sound_plans_pass() {
    assert_eq!(rules(&shared().0), vec![]);
    assert_eq!(rules(&exclusive().0), vec![]);
}

#[test]
fn an_owner_has_to_be_allowed_alive_and_within_its_cap() {
    let (mut scene, lc, _) = shared();
    scene.task(lc).limits.allowed = CoreSet::of(CoreId(0));
    assert_eq!(rules(&scene), vec![Rule::Shape]);
    let (mut scene, lc, _) = shared();
    scene.plan.tasks[lc.at()].cap = 1;
    assert!(rules(&scene).contains(&Rule::Shape));
    let (mut scene, lc, _) = shared();
    scene.task(lc).alive = false;
    assert!(rules(&scene).contains(&Rule::Shape));
    let (mut scene, _, _) = shared();
    scene.seen.cores[2].online = false;
    assert!(rules(&scene).contains(&Rule::Shape));
}

#[test]
fn a_plan_lists_every_core_and_task() {
    let (mut scene, _, _) = shared();
    scene.plan.cores.pop();
    assert_eq!(rules(&scene), vec![Rule::Shape]);
    let (mut scene, _, _) = shared();
    scene.plan.tasks[1].id.generation += 1;
    assert_eq!(rules(&scene), vec![Rule::Shape]);
}

#[test]
fn a_guaranteed_core_may_not_be_withheld() {
    let (mut scene, _, be) = shared();
    scene.plan.cores[1].owner = Some(be);
    scene.plan.tasks[be.at()].shared_cores = CoreSet::of(CoreId(0));
    assert_eq!(rules(&scene), broken(Invariant::Guarantee));
    let (mut scene, _, _) = exclusive();
    scene.plan.cores[0].owner = None;
    assert_eq!(rules(&scene), broken(Invariant::Guarantee));
}

#[test]
fn be_may_not_have_what_a_congested_lc_task_needs() {
    let (mut scene, lc, _) = shared();
    scene.demand(lc, 2, 1);
    assert_eq!(rules(&scene), broken(Invariant::LcFirst));
    // A grant under way excuses.
    scene.seen.cores[1].outcome = Outcome::Pending;
    assert_eq!(rules(&scene), vec![]);
    let (mut scene, lc, _) = exclusive();
    scene.demand(lc, 1, 1);
    assert_eq!(rules(&scene), broken(Invariant::LcFirst));
    // So does a refusal that the plan states.
    scene.plan.cores[1].reason = Reason::Refused(1);
    assert_eq!(rules(&scene), vec![]);
}

#[test]
fn rungs_keep_the_classes_apart() {
    let (mut scene, _, be) = shared();
    scene.plan.tasks[be.at()].rung = Rung::Lc;
    assert_eq!(rules(&scene), broken(Invariant::LcFirst));
    let (mut scene, lc, _) = shared();
    scene.plan.tasks[lc.at()].rung = Rung::Original;
    assert_eq!(rules(&scene), broken(Invariant::LcFirst));
}

#[test]
fn a_guest_stays_below_the_owner() {
    let mut scene = Scene::new(1, 1, true);
    let (owner, guest) = (scene.lc(1, 1), scene.lc(0, 1));
    let mut policy = Quell::new(scene.host.clone(), Config::default());
    scene.demand(guest, 0, 1);
    scene.tick(&mut policy, MS);
    assert_eq!(rules(&scene), vec![]);
    scene.plan.cores[0].owner = None;
    scene.task(owner).limits.guaranteed = 0;
    scene.plan.tasks[owner.at()].rung = Rung::Original;
    assert_eq!(rules(&scene), broken(Invariant::Guarantee));
}

#[test]
fn no_core_is_left_to_nobody_while_be_waits_unless_the_plan_says_why() {
    let (mut scene, _, _) = exclusive();
    scene.plan.cores[1].owner = None;
    assert_eq!(rules(&scene), broken(Invariant::WorkConservation));
    scene.plan.cores[1].reason = Reason::BannedFor(CoreId(0));
    assert_eq!(rules(&scene), vec![]);
    let (mut scene, _, be) = shared();
    scene.demand(be, 1, 3);
    scene.plan.cores[3].owner = None;
    scene.plan.tasks[be.at()].shared_cores = CoreSet::EMPTY;
    assert_eq!(rules(&scene), broken(Invariant::WorkConservation));
    scene.plan.tasks[be.at()].reason = TaskReason::Banned;
    assert_eq!(rules(&scene), vec![]);
}

#[test]
fn a_lane_has_its_mode_its_rung_and_one_core() {
    let lane_of = || {
        let mut scene = Scene::new(2, 1, true);
        let (lc, lane) = (scene.lc(1, 1), scene.lane(Class::BestEffort, 0));
        scene.demand(lane, 1, 1);
        let mut policy = Quell::new(scene.host.clone(), Config::default());
        scene.tick(&mut policy, MS);
        assert_eq!(rules(&scene), vec![]);
        (scene, lc, lane)
    };
    let (mut scene, _, _) = lane_of();
    scene.plan.cores[1].mode = CoreMode::Kernel;
    assert_eq!(rules(&scene), vec![Rule::Shape]);
    let (mut scene, _, _) = lane_of();
    scene.plan.cores[0].mode = CoreMode::Lane;
    assert_eq!(rules(&scene), vec![Rule::Shape]);
    let (mut scene, lc, _) = lane_of();
    scene.task(lc).limits.guaranteed = 0;
    scene.plan.cores[1].owner = None;
    assert!(rules(&scene).contains(&Rule::Shape), "a mode without an owner");
    let (mut scene, _, lane) = lane_of();
    scene.plan.tasks[lane.at()].shared_cores = CoreSet::of(CoreId(0));
    assert_eq!(rules(&scene), vec![Rule::Shape], "two cores");
    for rung in [Rung::FifoLow, Rung::SchedIdle, Rung::Lc] {
        let (mut scene, _, lane) = lane_of();
        scene.plan.tasks[lane.at()].rung = rung;
        assert_eq!(rules(&scene), broken(Invariant::LcFirst), "{rung}");
    }
    let (mut scene, _, lane) = lane_of();
    scene.task(lane).limits.scheduler = TaskScheduler::Runtime;
    assert!(rules(&scene).contains(&Rule::Shape));
}
