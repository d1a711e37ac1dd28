//! What the default policy does on a stock kernel, where priority shares a core.

use crate::common::Scene;
use quell_model::*;
use quell_policy::allocator_constants::{HOLD_MAX, HOLD_MIN};
use quell_policy::{Advice, Advisor, BadState, BanScope, Config, Policy, Quell, Wake};

const MS: Nanos = Nanos::from_millis(1);

fn quell(scene: &Scene) -> Quell {
    Quell::new(scene.host.clone(), Config::default())
}

/// Keeps batch work off these cores.
struct NoBatchOn(CoreSet);

impl Advisor for NoBatchOn {
    fn name(&self) -> &'static str {
        "no_batch_on"
    }

    fn advise(&mut self, _: Nanos, _: &Snapshot, advice: &mut Advice) {
        for core in self.0.iter() {
            advice.ban(BanScope::BestEffort, core, core, TaskReason::Banned);
        }
    }

    fn save(&self, _: &mut Vec<u8>) {}

    fn restore(&mut self, _: &mut &[u8]) -> Result<(), BadState> {
        Ok(())
    }
}

fn without_batch_on(scene: &Scene, cores: CoreSet) -> Quell {
    let advisor = NoBatchOn(cores);
    Quell::with_advisors(scene.host.clone(), vec![Box::new(advisor)])
}

#[test]
fn lc_owns_its_guarantee_asleep_and_be_is_let_in_beneath() {
    let mut scene = Scene::new(4, 1, true);
    let (lc, be, other) = (scene.lc(2, 4), scene.be(4), scene.be(4));
    scene.demand(be, 4, 0);
    let mut policy = quell(&scene);
    let wake = scene.tick(&mut policy, MS);
    assert_eq!(scene.owned(lc), "0-1");
    assert_eq!((scene.planned(lc).rung, scene.planned(lc).reason), (Rung::Lc, TaskReason::Owner));
    assert_eq!(scene.plan.cores[0].reason, Reason::Guaranteed);
    // What LC leaves is spread over the BE tasks; each may use every core.
    assert_eq!((scene.plan.owned(be).len(), scene.plan.owned(other).len()), (1, 1));
    for task in [be, other] {
        assert_eq!(scene.plan.usable(task).to_string(), "0-3");
        assert_eq!(scene.planned(task).rung, Rung::SchedIdle);
    }
    assert_eq!(wake, Wake::OnChange);
}

#[test]
fn siblings_are_reserved_together() {
    let mut scene = Scene::new(4, 2, true);
    let (first, second) = (scene.lc(2, 2), scene.lc(4, 4));
    let mut policy = quell(&scene);
    scene.tick(&mut policy, MS);
    assert_eq!(scene.owned(first), "0,4");
    assert_eq!(scene.owned(second), "1-2,5-6");
}

#[test]
fn burst_cores_come_with_congestion_and_go_after_the_hold() {
    let mut scene = Scene::new(4, 1, true);
    let (lc, be) = (scene.lc(1, 3), scene.be(4));
    scene.demand(be, 4, 0);
    let mut policy = quell(&scene);
    scene.tick(&mut policy, MS);
    scene.demand(lc, 1, 4);
    scene.tick(&mut policy, MS);
    assert_eq!(scene.plan.owned(lc).len(), 3, "up to its maximum");
    assert!(scene.plan.cores.iter().any(|core| matches!(core.reason, Reason::Congested(_))));
    scene.demand(lc, 1, 0);
    let wake = scene.tick(&mut policy, MS);
    assert_eq!(scene.plan.owned(lc).len(), 3, "held");
    assert!(matches!(wake, Wake::At(at) if at <= scene.seen.now + HOLD_MIN));
    scene.tick(&mut policy, HOLD_MIN);
    scene.tick(&mut policy, HOLD_MIN);
    assert_eq!(scene.owned(lc), "0");
    assert_eq!(scene.plan.owned(be).len(), 3);
}

#[test]
fn a_core_given_back_too_early_is_held_longer_next_time() {
    let mut scene = Scene::new(2, 1, true);
    let lc = scene.lc(1, 2);
    scene.be(2);
    let mut policy = quell(&scene);
    let (mut changes, mut owned) = (0, 1);
    for tick in 0..2_000u64 {
        // A burst of 1 ms every 12 ms: shorter than the first hold, so that the core comes and goes.
        scene.demand(lc, 1, u32::from(tick % 12 == 0));
        scene.tick(&mut policy, MS);
        let now = scene.plan.owned(lc).len();
        changes += u32::from(now != owned);
        owned = now;
    }
    let without_back_off = 2 * 2_000 / 12;
    assert!(changes < without_back_off / 8, "{changes} moves in 2 s");
    assert!(HOLD_MAX > Nanos::from_millis(12));
}

#[test]
fn a_task_without_guarantee_is_left_alone_until_it_asks() {
    let mut scene = Scene::new(2, 1, true);
    let (lc, be) = (scene.lc(0, 2), scene.be(2));
    scene.demand(be, 2, 0);
    let mut policy = quell(&scene);
    scene.tick(&mut policy, MS);
    assert_eq!((scene.planned(lc).rung, scene.owned(lc).as_str()), (Rung::Original, ""));
    assert_eq!(scene.planned(lc).shared_cores.to_string(), "0-1");
    scene.demand(lc, 0, 1);
    scene.tick(&mut policy, MS);
    assert_eq!((scene.planned(lc).rung, scene.plan.owned(lc).len()), (Rung::Lc, 1));
}

#[test]
fn without_a_free_core_it_becomes_a_guest_and_leaves_after_the_hold() {
    let mut scene = Scene::new(1, 1, true);
    let (owner, guest) = (scene.lc(1, 1), scene.lc(0, 1));
    let mut policy = quell(&scene);
    scene.demand(guest, 0, 1);
    scene.tick(&mut policy, MS);
    assert_eq!(scene.owned(owner), "0");
    let plan = scene.planned(guest);
    assert_eq!((plan.rung, plan.reason), (Rung::LcOverflow, TaskReason::Guest));
    assert_eq!(plan.shared_cores.to_string(), "0");
    scene.demand(guest, 0, 0);
    scene.tick(&mut policy, HOLD_MIN + MS);
    assert_eq!(scene.planned(guest).rung, Rung::Original);
}

#[test]
fn an_overloaded_owner_is_a_guest_where_another_has_cores_to_spare() {
    let mut scene = Scene::new(4, 1, true);
    let (busy, calm) = (scene.lc(2, 4), scene.lc(2, 4));
    let mut policy = quell(&scene);
    scene.demand(busy, 2, 2);
    scene.demand(calm, 1, 0);
    scene.tick(&mut policy, MS);
    assert_eq!((scene.owned(busy).as_str(), scene.owned(calm).as_str()), ("0-1", "2-3"));
    assert_eq!(scene.planned(busy).rung, Rung::LcOverflow);
    assert_eq!(scene.planned(busy).shared_cores.to_string(), "2-3");
    assert_eq!(scene.planned(calm).rung, Rung::Lc);
    // Where both need all they have, neither shares.
    scene.demand(calm, 2, 2);
    scene.demand(busy, 2, 0);
    scene.tick(&mut policy, HOLD_MIN + MS);
    scene.demand(busy, 2, 2);
    scene.tick(&mut policy, MS);
    assert_eq!((scene.planned(busy).rung, scene.planned(calm).rung), (Rung::Lc, Rung::Lc));
}

#[test]
fn a_runaway_task_is_batch_work_until_it_sleeps_again() {
    let mut scene = Scene::new(2, 1, true);
    // Else single threads have roles.
    scene.host.caps.bursts = false;
    let (lc, victim) = (scene.lc(1, 1), scene.lc(0, 1));
    scene.be(2);
    let mut policy = quell(&scene);
    scene.demand(lc, 1, 0);
    scene.task(lc).longest_run = Signal::Measured(Nanos::from_millis(51));
    scene.demand(victim, 0, 1);
    scene.tick(&mut policy, MS);
    let plan = scene.planned(lc);
    assert_eq!((plan.class, plan.rung), (Class::BestEffort, Rung::SchedIdle));
    assert_eq!(plan.reason, TaskReason::RanAway(Nanos::from_millis(51)));
    assert_eq!(scene.planned(victim).rung, Rung::Lc);
    // It does not flap: back only after its bound, and only if it sleeps.
    scene.task(lc).longest_run = Signal::Measured(MS);
    scene.tick(&mut policy, MS);
    assert_eq!(scene.planned(lc).class, Class::BestEffort);
    scene.tick(&mut policy, Nanos::from_millis(50));
    assert_eq!(
        (scene.planned(lc).class, scene.planned(lc).rung),
        (Class::LatencyCritical, Rung::Lc)
    );
}

#[test]
fn be_leaves_banned_cores_and_has_none_where_all_are() {
    let mut scene = Scene::new(2, 1, true);
    let (lc, be) = (scene.lc(1, 1), scene.be(2));
    scene.demand(be, 2, 0);
    scene.tick(&mut without_batch_on(&scene, CoreSet::of(CoreId(0))), MS);
    assert_eq!(scene.plan.usable(be).to_string(), "1");
    assert_eq!(scene.planned(be).reason, TaskReason::Banned);
    scene.task(lc).limits.guaranteed = 2;
    scene.task(lc).limits.max = 2;
    scene.tick(&mut without_batch_on(&scene, scene.host.managed), MS);
    assert!(scene.plan.usable(be).is_empty());
    assert_eq!(scene.planned(be).reason, TaskReason::Banned);
}

#[test]
fn be_stays_beneath_lc_that_leaves_no_idle_time() {
    let mut scene = Scene::new(1, 1, true);
    let (_, be) = (scene.lc(1, 1), scene.be(1));
    scene.demand(be, 1, 0);
    let mut policy = quell(&scene);
    scene.seen.cores[0].lc_busy = Signal::Measured(Permille(1_000));
    for _ in 0..20 {
        scene.tick(&mut policy, Nanos::from_millis(100));
        assert_eq!(scene.plan.usable(be).to_string(), "0", "roles of LC threads leave it a tenth");
    }
}

#[test]
fn without_a_freezer_be_keeps_a_core_and_the_veto_is_explained() {
    let mut scene = Scene::new(1, 1, true);
    scene.host.caps.freezes_tasks = false;
    scene.lc(1, 1);
    let be = scene.be(1);
    let mut policy = without_batch_on(&scene, CoreSet::of(CoreId(0)));
    scene.tick(&mut policy, MS);
    assert_eq!(scene.plan.usable(be).to_string(), "0");
    let explained = policy.explain();
    assert_eq!((explained.vetoes[0].task, explained.vetoes[0].by), (be, None));
    assert!(explained.to_string().contains("this host cannot carry it out"));
}

#[test]
fn be_that_delays_lc_is_kept_off_its_cores() {
    let mut scene = Scene::new(2, 1, true);
    scene.lc(1, 1);
    let (rude, polite) = (scene.be(2), scene.be(2));
    scene.task(rude).delay_caused = Signal::Measured(Nanos::from_micros(900));
    scene.task(polite).delay_caused = Signal::Measured(Nanos::from_micros(30));
    let mut policy = quell(&scene);
    let wake = scene.tick(&mut policy, MS);
    assert_eq!(scene.plan.usable(rude).to_string(), "1");
    assert_eq!(scene.planned(rude).reason, TaskReason::DelaysLc(Nanos::from_micros(900)));
    assert_eq!(scene.plan.usable(polite).to_string(), "0-1");
    assert!(matches!(wake, Wake::At(_)), "re-tried later");
}

#[test]
fn a_maximum_bounds_the_cores_that_be_may_use() {
    let mut scene = Scene::new(4, 1, true);
    scene.lc(1, 1);
    let be = scene.be(2);
    let mut policy = quell(&scene);
    scene.tick(&mut policy, MS);
    assert_eq!(scene.plan.usable(be).len(), 2);
}

#[test]
fn a_core_that_goes_offline_is_replaced() {
    let mut scene = Scene::new(3, 1, true);
    let lc = scene.lc(1, 1);
    scene.be(3);
    let mut policy = quell(&scene);
    scene.tick(&mut policy, MS);
    assert_eq!(scene.owned(lc), "0");
    scene.seen.cores[0].online = false;
    scene.tick(&mut policy, MS);
    assert_eq!(scene.owned(lc), "1");
    assert_eq!(scene.plan.cores[0].reason, Reason::Offline);
    scene.seen.cores[0].online = true;
    scene.tick(&mut policy, MS);
    assert_eq!(scene.owned(lc), "1", "no move without need");
    let changes = policy.explain().changes;
    assert!(changes.iter().any(|change| change.core == CoreId(1) && change.to == Some(lc)));
}

#[test]
fn a_batch_lane_gets_a_core_before_other_batch_work() {
    let mut scene = Scene::new(2, 1, true);
    let hog = scene.be(2);
    scene.demand(hog, 2, 2);
    let mut policy = quell(&scene);
    scene.tick(&mut policy, MS);
    assert_eq!(scene.owned(hog), "0-1");
    let lane = scene.lane(Class::BestEffort, 0);
    scene.demand(lane, 0, 3);
    scene.tick(&mut policy, MS);
    assert_eq!((scene.owned(lane).as_str(), scene.planned(lane).rung), ("0", Rung::Dispatcher));
    assert_eq!(
        (scene.plan.cores[0].mode, scene.plan.cores[1].mode),
        (CoreMode::Lane, CoreMode::Kernel)
    );
    // Other batch work runs where all members of the lane are asleep.
    assert_eq!(scene.plan.usable(hog).to_string(), "0-1");
    assert_eq!(scene.planned(lane).shared_cores, CoreSet::EMPTY);
}

#[test]
fn lc_takes_a_lanes_core_and_the_lane_waits_there() {
    let mut scene = Scene::new(1, 1, true);
    let (lc, lane) = (scene.lc(0, 1), scene.lane(Class::BestEffort, 0));
    scene.demand(lane, 1, 2);
    let mut policy = quell(&scene);
    scene.tick(&mut policy, MS);
    assert_eq!((scene.owned(lane).as_str(), scene.plan.cores[0].mode), ("0", CoreMode::Lane));
    scene.demand(lc, 0, 1);
    scene.tick(&mut policy, MS);
    assert_eq!((scene.owned(lc).as_str(), scene.plan.cores[0].mode), ("0", CoreMode::Kernel));
    let plan = scene.planned(lane);
    assert_eq!((plan.rung, plan.shared_cores.to_string().as_str()), (Rung::FifoLow, "0"));
    assert_eq!(plan.reason, TaskReason::Guest);
    // The core comes back once LC has left it for a hold.
    scene.demand(lc, 0, 0);
    scene.tick(&mut policy, HOLD_MIN + MS);
    scene.tick(&mut policy, HOLD_MIN + MS);
    assert_eq!((scene.owned(lane).as_str(), scene.plan.cores[0].mode), ("0", CoreMode::Lane));
}

#[test]
fn a_lane_that_loses_its_core_moves_as_a_whole() {
    let mut scene = Scene::new(2, 1, true);
    let (lc, lane, hog) = (scene.lc(0, 1), scene.lane(Class::BestEffort, 0), scene.be(2));
    scene.task(lc).limits.allowed = CoreSet::of(CoreId(0));
    scene.demand(lane, 1, 1);
    scene.demand(hog, 2, 2);
    let mut policy = quell(&scene);
    scene.tick(&mut policy, MS);
    assert_eq!((scene.owned(lane).as_str(), scene.owned(hog).as_str()), ("0", "1"));
    scene.demand(lc, 0, 1);
    scene.tick(&mut policy, MS);
    assert_eq!((scene.owned(lc).as_str(), scene.owned(lane).as_str()), ("0", "1"));
    assert_eq!(scene.plan.cores[1].mode, CoreMode::Lane);
    // It stays there: a core that is free again is no reason to move.
    scene.demand(lc, 0, 0);
    for _ in 0..5 {
        scene.tick(&mut policy, HOLD_MIN + MS);
    }
    assert_eq!(scene.owned(lane), "1");
}

#[test]
fn lanes_do_not_share_a_core_while_there_are_others() {
    let mut scene = Scene::new(3, 1, true);
    let lc = scene.lc(1, 1);
    let lanes = [scene.lane(Class::BestEffort, 0), scene.lane(Class::BestEffort, 0)];
    let last = scene.lane(Class::BestEffort, 0);
    lanes.into_iter().chain([last]).for_each(|lane| scene.demand(lane, 1, 1));
    let mut policy = quell(&scene);
    scene.tick(&mut policy, MS);
    assert_eq!(
        (scene.owned(lc).as_str(), lanes.map(|lane| scene.owned(lane))),
        ("0", ["1", "2"].map(String::from))
    );
    assert_eq!(
        scene.planned(last).shared_cores.to_string(),
        "0",
        "on the service's core rather than a lane's"
    );
}

#[test]
fn a_waiting_lane_goes_to_an_idle_core_after_the_hold() {
    let mut scene = Scene::new(2, 1, true);
    let (busy, calm) = (scene.lc(1, 1), scene.lc(1, 1));
    let lane = scene.lane(Class::BestEffort, 0);
    scene.demand(busy, 1, 0);
    scene.runs(0, Some(busy));
    scene.demand(lane, 0, 2);
    let mut policy = quell(&scene);
    scene.tick(&mut policy, MS);
    assert_eq!((scene.owned(busy).as_str(), scene.owned(calm).as_str()), ("0", "1"));
    assert_eq!(scene.planned(lane).shared_cores.to_string(), "0");
    scene.task(lane).queueing_delay = Signal::Measured(HOLD_MIN);
    scene.tick(&mut policy, MS);
    assert_eq!(scene.planned(lane).shared_cores.to_string(), "1");
    scene.demand(lane, 1, 1);
    scene.tick(&mut policy, MS);
    assert_eq!(scene.planned(lane).shared_cores.to_string(), "1", "it stays where it runs");
}

#[test]
fn an_lc_lane_keeps_its_guarantee_and_admits_no_guest() {
    let mut scene = Scene::new(2, 1, true);
    let lane = scene.lane(Class::LatencyCritical, 1);
    let (owner, guest) = (scene.lc(1, 1), scene.lc(0, 1));
    scene.demand(guest, 0, 1);
    let mut policy = quell(&scene);
    scene.tick(&mut policy, MS);
    assert_eq!((scene.owned(lane).as_str(), scene.plan.cores[0].mode), ("0", CoreMode::Lane));
    assert_eq!(scene.owned(owner), "1");
    let plan = scene.planned(guest);
    assert_eq!((plan.rung, plan.shared_cores.to_string().as_str()), (Rung::LcOverflow, "1"));
    // A congested lane takes a core from batch work like any other service.
    let mut scene = Scene::new(1, 1, true);
    let (be, lane) = (scene.be(1), scene.lane(Class::LatencyCritical, 0));
    scene.demand(be, 1, 0);
    scene.demand(lane, 0, 2);
    let mut policy = quell(&scene);
    scene.tick(&mut policy, MS);
    assert_eq!((scene.owned(lane).as_str(), scene.planned(lane).rung), ("0", Rung::Dispatcher));
}
