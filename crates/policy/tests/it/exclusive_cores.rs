//! What the default policy does where a core serves its owner alone: Caladan's allocator.

use crate::common::Scene;
use quell_model::*;
use quell_policy::allocator_constants::{BE_QUANTUM, REFUSAL_MIN};
use quell_policy::{Config, Quell, Wake};

const TICK: Nanos = Nanos::from_micros(10);

fn quell(scene: &Scene) -> Quell {
    Quell::new(scene.host.clone(), Config::default())
}

#[test]
fn guaranteed_cores_come_on_demand_and_are_lent_meanwhile() {
    let mut scene = Scene::new(2, 1, false);
    let (lc, be) = (scene.lc(2, 2), scene.be(2));
    scene.demand(be, 0, 2);
    let mut policy = quell(&scene);
    scene.tick(&mut policy, TICK);
    assert_eq!((scene.owned(lc).as_str(), scene.owned(be).as_str()), ("", "0-1"));
    for core in [0, 1] {
        scene.runs(core, Some(be));
    }
    scene.demand(be, 2, 0);
    scene.demand(lc, 0, 1);
    scene.tick(&mut policy, TICK);
    assert_eq!((scene.owned(lc).as_str(), scene.owned(be).as_str()), ("0", "1"));
    assert_eq!(scene.plan.cores[0].reason, Reason::Guaranteed);
}

#[test]
fn a_core_is_handed_over_in_the_tick_in_which_it_falls_idle() {
    let mut scene = Scene::new(1, 1, false);
    let (lc, be) = (scene.lc(1, 1), scene.be(1));
    let mut policy = quell(&scene);
    scene.demand(lc, 1, 0);
    scene.runs(0, Some(lc));
    scene.demand(be, 0, 1);
    scene.tick(&mut policy, TICK);
    assert_eq!(scene.owned(lc), "0");
    scene.demand(lc, 0, 0);
    scene.runs(0, None);
    scene.seen.went_idle = CoreSet::of(CoreId(0));
    scene.tick(&mut policy, TICK);
    assert_eq!(scene.owned(be), "0");
    assert_eq!(scene.plan.cores[0].reason, Reason::HandedOver);
}

#[test]
fn a_wait_below_the_target_takes_nothing_from_be() {
    let mut scene = Scene::new(2, 1, false);
    let (lc, be) = (scene.lc(1, 2), scene.be(1));
    let mut policy = quell(&scene);
    scene.demand(lc, 1, 0);
    scene.runs(0, Some(lc));
    scene.demand(be, 1, 0);
    scene.runs(1, Some(be));
    scene.demand(be, 0, 1);
    scene.tick(&mut policy, TICK);
    assert_eq!((scene.owned(lc).as_str(), scene.owned(be).as_str()), ("0", "1"));
    scene.demand(lc, 1, 1);
    scene.task(lc).queueing_delay = Signal::Measured(Nanos::from_micros(4));
    let wake = scene.tick(&mut policy, TICK);
    assert_eq!(scene.owned(be), "1");
    assert_eq!(
        wake,
        Wake::At(scene.seen.now + Nanos::from_micros(6)),
        "when it reaches the target"
    );
    scene.task(lc).queueing_delay = Signal::Measured(Nanos::from_micros(10));
    scene.tick(&mut policy, Nanos::from_micros(6));
    assert_eq!(scene.plan.owned(lc).len(), 2);
}

#[test]
fn lc_tasks_without_a_core_are_served_first_come_first_served() {
    let mut scene = Scene::new(1, 1, false);
    let (late, early, be) = (scene.lc(0, 1), scene.lc(0, 1), scene.be(1));
    let mut policy = quell(&scene);
    let first = scene.lc(1, 1);
    scene.demand(first, 1, 0);
    scene.runs(0, Some(first));
    scene.demand(early, 0, 1);
    scene.demand(be, 0, 1);
    scene.tick(&mut policy, TICK);
    scene.demand(late, 0, 1);
    scene.tick(&mut policy, TICK);
    assert_eq!(scene.owned(first), "0");
    scene.demand(first, 0, 0);
    scene.runs(0, None);
    scene.tick(&mut policy, TICK);
    assert_eq!(scene.owned(early), "0");
}

#[test]
fn equals_share_burst_cores() {
    let mut scene = Scene::new(6, 1, false);
    let (greedy, second) = (scene.lc(0, 6), scene.lc(0, 6));
    let mut policy = quell(&scene);
    scene.demand(greedy, 0, 6);
    scene.tick(&mut policy, TICK);
    assert_eq!(scene.plan.owned(greedy).len(), 6);
    scene.demand(second, 0, 6);
    scene.tick(&mut policy, TICK);
    let shares = (scene.plan.owned(greedy).len(), scene.plan.owned(second).len());
    assert_eq!(shares, (3, 3));
    let before = scene.plan.clone();
    scene.tick(&mut policy, TICK);
    assert_eq!(scene.plan.owned(greedy), before.owned(greedy), "and then no core moves");
}

#[test]
fn a_grant_that_has_not_started_delays_the_next() {
    let mut scene = Scene::new(3, 1, false);
    let lc = scene.lc(0, 3);
    let be = scene.be(3);
    let mut policy = quell(&scene);
    scene.demand(be, 0, 3);
    scene.tick(&mut policy, TICK);
    for core in 0..3 {
        scene.runs(core, Some(be));
    }
    scene.demand(be, 3, 0);
    scene.demand(lc, 0, 1);
    scene.tick(&mut policy, TICK);
    assert_eq!(scene.plan.owned(lc).len(), 1);
    let granted = scene.plan.owned(lc).first().unwrap();
    scene.seen.cores[granted.index()].outcome = Outcome::Pending;
    scene.demand(lc, 0, 2);
    scene.tick(&mut policy, TICK);
    assert_eq!(scene.plan.owned(lc).len(), 1, "the first grant has to show first");
    // A grant that got lost must not hold up the task for ever.
    scene.tick(&mut policy, Nanos::from_millis(2));
    assert_eq!(scene.plan.owned(lc).len(), 2);
}

#[test]
fn be_tasks_rotate_where_there_are_too_few_cores() {
    let mut scene = Scene::new(1, 1, false);
    let (first, second) = (scene.be(1), scene.be(1));
    let mut policy = quell(&scene);
    for task in [first, second] {
        scene.demand(task, 0, 1);
    }
    let wake = scene.tick(&mut policy, TICK);
    assert_eq!(scene.owned(first), "0");
    assert_eq!(wake, Wake::At(scene.seen.now + BE_QUANTUM));
    scene.tick(&mut policy, TICK);
    assert_eq!(scene.owned(first), "0");
    scene.tick(&mut policy, BE_QUANTUM);
    assert_eq!(scene.owned(second), "0");
}

#[test]
fn the_core_with_the_warm_cache_is_preferred() {
    let mut scene = Scene::new(4, 1, false);
    let lc = scene.lc(0, 4);
    let mut policy = quell(&scene);
    scene.demand(lc, 1, 0);
    scene.runs(2, Some(lc));
    scene.tick(&mut policy, TICK);
    scene.demand(lc, 0, 0);
    scene.runs(2, None);
    scene.tick(&mut policy, TICK);
    assert_eq!(scene.owned(lc), "");
    scene.demand(lc, 0, 1);
    scene.tick(&mut policy, TICK);
    assert_eq!(scene.owned(lc), "2");
}

#[test]
fn two_tasks_get_physical_cores_of_their_own() {
    let mut scene = Scene::new(2, 2, false);
    let (first, second) = (scene.lc(0, 2), scene.lc(0, 2));
    let mut policy = quell(&scene);
    scene.demand(first, 0, 1);
    scene.tick(&mut policy, TICK);
    assert_eq!(scene.owned(first), "0");
    scene.runs(0, Some(first));
    scene.demand(first, 1, 0);
    scene.demand(second, 0, 1);
    scene.tick(&mut policy, TICK);
    assert_eq!(scene.owned(second), "1", "not the sibling of core 0");
}

#[test]
fn a_refused_core_is_tried_again_only_after_a_while() {
    let mut scene = Scene::new(1, 1, false);
    let (lc, be) = (scene.lc(0, 1), scene.be(1));
    let mut policy = quell(&scene);
    scene.demand(lc, 0, 1);
    scene.demand(be, 0, 1);
    scene.tick(&mut policy, TICK);
    assert_eq!(scene.owned(lc), "0");
    scene.seen.cores[0].outcome = Outcome::Refused { errno: 1 };
    scene.tick(&mut policy, TICK);
    assert_eq!(scene.owned(be), "0", "others may use it meanwhile");
    assert_eq!(scene.plan.cores[0].reason, Reason::Refused(1));
    scene.seen.cores[0].outcome = Outcome::Done;
    scene.tick(&mut policy, REFUSAL_MIN);
    assert_eq!(scene.owned(lc), "0");
}

#[test]
fn guarantees_move_where_that_makes_room_for_another() {
    let mut scene = Scene::new(2, 1, false);
    let (anywhere, pinned) = (scene.lc(1, 1), scene.lc(1, 1));
    let mut policy = quell(&scene);
    scene.demand(anywhere, 0, 1);
    scene.task(pinned).alive = false;
    scene.tick(&mut policy, TICK);
    assert_eq!(scene.owned(anywhere), "0");
    scene.task(pinned).alive = true;
    scene.task(pinned).limits.allowed = CoreSet::of(CoreId(0));
    scene.demand(pinned, 0, 1);
    scene.tick(&mut policy, TICK);
    assert_eq!((scene.owned(anywhere).as_str(), scene.owned(pinned).as_str()), ("1", "0"));
}

#[test]
fn a_refused_core_is_tried_again_though_nothing_else_happens_meanwhile() {
    let mut scene = Scene::new(1, 1, false);
    let be = scene.be(1);
    let mut policy = quell(&scene);
    scene.demand(be, 0, 1);
    scene.tick(&mut policy, TICK);
    assert_eq!(scene.owned(be), "0");
    scene.seen.cores[0].outcome = Outcome::Refused { errno: 1 };
    let wake = scene.tick(&mut policy, TICK);
    assert_eq!(scene.owned(be), "");
    let until = scene.seen.now + REFUSAL_MIN;
    assert_eq!(wake, Wake::At(until));
    // Whatever else has it look before, it does not forget.
    scene.seen.cores[0].outcome = Outcome::Done;
    assert_eq!(scene.tick(&mut policy, TICK), Wake::At(until));
    scene.tick(&mut policy, Nanos(REFUSAL_MIN.0 - TICK.0));
    assert_eq!(scene.owned(be), "0");
}

#[test]
fn be_tasks_take_turns_at_what_lc_leaves_though_one_always_has_threads_that_wait() {
    let mut scene = Scene::new(1, 1, false);
    let (lc, many, single) = (scene.lc(0, 1), scene.be(1), scene.be(1));
    let mut policy = quell(&scene);
    scene.demand(many, 0, 2);
    scene.demand(single, 0, 1);
    let mut turns = Vec::new();
    for _ in 0..4 {
        scene.tick(&mut policy, TICK);
        let (of_many, of_single) = (scene.owned(many) == "0", scene.owned(single) == "0");
        assert!(of_many != of_single);
        turns.push(of_many);
        scene.runs(0, Some(if of_many { many } else { single }));
        scene.demand(many, u32::from(of_many), 2 - u32::from(of_many));
        scene.demand(single, u32::from(of_single), 1 - u32::from(of_single));
        // A service comes for a while, far shorter than their quantum.
        scene.demand(lc, 0, 1);
        scene.tick(&mut policy, TICK);
        assert_eq!(scene.owned(lc), "0");
        scene.runs(0, Some(lc));
        scene.demand(lc, 1, 0);
        scene.demand(many, 0, 2);
        scene.demand(single, 0, 1);
        scene.tick(&mut policy, TICK);
        scene.runs(0, None);
        scene.demand(lc, 0, 0);
    }
    assert!(turns.windows(2).all(|pair| pair[0] != pair[1]), "{turns:?}");
}
