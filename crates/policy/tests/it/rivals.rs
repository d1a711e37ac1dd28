//! The rivals, by what their papers say of them.

#![allow(clippy::unwrap_used, reason = "a test that cannot build its scene fails")]

use crate::common::Scene;
use quell_model::*;
use quell_policy::{Config, NAMES, Policy, PolicyError, Wake, by_name};

const US: Nanos = Nanos::from_micros(1);

fn rival(name: &str, scene: &Scene) -> Box<dyn Policy> {
    by_name(name, scene.host.clone(), Config::default()).unwrap()
}

fn set(cores: &str) -> CoreSet {
    cores.parse().unwrap()
}

#[test]
fn what_a_host_cannot_run_is_refused_and_named() {
    let refused = |name, scene: &Scene| -> String {
        let policy = by_name(name, scene.host.clone(), Config::default());
        policy.err().map_or(String::new(), |error| error.to_string())
    };
    let (shared, alone) = (Scene::new(2, 1, true), Scene::new(2, 1, false));
    assert!(refused("shenango", &shared).contains("a core to one task alone"));
    assert!(refused("elfen", &shared).contains("two siblings of one physical core"));
    assert!(refused("sched-idle", &alone).contains("a kernel that shares cores"));
    assert!(refused("perfiso", &alone).contains("it needs a kernel that shares cores"));
    let unknown = by_name("cfs", alone.host, Config::default());
    assert!(matches!(unknown, Err(PolicyError::Unknown(_))));
    // Elsewhere every name is a policy of that name.
    for name in NAMES {
        let hosts = [Scene::new(2, 2, true), Scene::new(2, 2, false)];
        let built = hosts
            .iter()
            .find_map(|scene| by_name(name, scene.host.clone(), Config::default()).ok());
        assert_eq!(built.unwrap().name(), name);
    }
}

#[test]
fn the_kernel_alone_owns_nothing_and_raises_nobody() {
    for (name, rung) in [("linux-default", Rung::Original), ("sched-idle", Rung::SchedIdle)] {
        let mut scene = Scene::new(4, 1, true);
        let (lc, be) = (scene.lc(2, 4), scene.be(3));
        scene.demand(lc, 1, 3);
        let wake = scene.tick(rival(name, &scene).as_mut(), US);
        assert!(scene.plan.cores.iter().all(|core| core.owner.is_none()));
        assert_eq!((scene.planned(lc).rung, scene.planned(be).rung), (Rung::Original, rung));
        assert_eq!(scene.plan.usable(lc), set("0-3"));
        assert_eq!(scene.plan.usable(be), set("0-2"), "its maximum holds");
        assert_eq!(wake, Wake::OnChange);
    }
}

#[test]
fn perfiso_keeps_its_buffer_of_idle_cores() {
    let mut scene = Scene::new(12, 1, true);
    let (lc, be) = (scene.lc(0, 12), scene.be(12));
    let mut policy = rival("perfiso", &scene);
    let period = Nanos::from_millis(1);
    scene.tick(policy.as_mut(), period);
    assert_eq!(scene.plan.usable(be), set("2-11"), "12 idle cores, 2 of them kept");
    assert_eq!(scene.plan.usable(lc), set("0-11"));
    for core in 2..12 {
        scene.runs(core, Some(be));
    }
    scene.tick(policy.as_mut(), period);
    assert_eq!(scene.plan.usable(be), set("2-11"), "the buffer is whole");
    scene.runs(0, Some(lc));
    scene.tick(policy.as_mut(), period);
    assert_eq!(scene.plan.usable(be), set("3-11"), "what a burst took is taken from batch");
    scene.runs(2, None);
    scene.runs(0, None);
    scene.tick(policy.as_mut(), period);
    assert_eq!(scene.plan.usable(be), set("2-11"), "and given back");
}

#[test]
fn elfen_borrows_a_lane_only_while_the_first_one_idles() {
    for shares in [true, false] {
        let mut scene = Scene::new(2, 2, shares);
        let (lc, be) = (scene.lc(0, 4), scene.be(4));
        let mut policy = rival("elfen", &scene);
        scene.tick(policy.as_mut(), US);
        assert_eq!(scene.plan.owned(lc), set("0-1"), "never a second lane");
        assert_eq!(scene.plan.owned(be), set("2-3"));
        scene.runs(1, Some(lc));
        scene.tick(policy.as_mut(), US);
        assert_eq!(scene.plan.owned(be), set("2"));
        assert_eq!(scene.plan.cores[3].reason, Reason::BannedFor(CoreId(1)));
        scene.runs(1, None);
        let wake = scene.tick(policy.as_mut(), US);
        assert_eq!(scene.plan.owned(be), set("2-3"));
        assert!(matches!(wake, Wake::At(_)), "it polls");
    }
}

#[test]
fn shenango_grants_one_core_for_a_queue_that_stands_and_waits_for_it_to_start() {
    let mut scene = Scene::new(4, 1, false);
    let lc = scene.lc(4, 4);
    let mut policy = rival("shenango", &scene);
    let step = Nanos::from_micros(5);
    scene.demand(lc, 0, 3);
    scene.tick(policy.as_mut(), step);
    assert_eq!(scene.plan.owned(lc).len(), 1, "without any core at once");
    scene.runs(0, Some(lc));
    scene.demand(lc, 1, 2);
    scene.tick(policy.as_mut(), step);
    assert_eq!(scene.plan.owned(lc).len(), 1, "the look after a grant counts for nothing");
    scene.tick(policy.as_mut(), step);
    assert_eq!(scene.plan.owned(lc).len(), 2, "the queue stood");
    scene.demand(lc, 1, 0);
    scene.tick(policy.as_mut(), step);
    assert_eq!(scene.owned(lc), "0", "a core without a thread is left");
}

#[test]
fn shenango_knows_guarantees_but_neither_class_nor_siblings_apart() {
    let mut scene = Scene::new(2, 2, false);
    let (lc, be) = (scene.lc(1, 4), scene.be(4));
    let mut policy = rival("shenango", &scene);
    let step = Nanos::from_micros(5);
    scene.demand(be, 0, 4);
    for _ in 0..12 {
        scene.tick(policy.as_mut(), step);
        for core in scene.plan.owned(be).iter() {
            scene.runs(core.0, Some(be));
        }
        let has = scene.plan.owned(be).len() as u32;
        scene.demand(be, has, 4 - has);
    }
    assert_eq!(scene.owned(be), "0-3");
    scene.demand(lc, 0, 2);
    for _ in 0..12 {
        scene.tick(policy.as_mut(), step);
    }
    assert_eq!(scene.plan.owned(lc).len(), 1, "preempts up to its guarantee, and no further");
    // A task that runs on one lane gets the other next.
    let mut scene = Scene::new(2, 2, false);
    let lc = scene.lc(0, 4);
    let mut policy = rival("shenango", &scene);
    scene.demand(lc, 0, 2);
    scene.tick(policy.as_mut(), step);
    let first = scene.plan.owned(lc).first().unwrap();
    scene.runs(first.0, Some(lc));
    scene.demand(lc, 1, 1);
    scene.tick(policy.as_mut(), step);
    scene.tick(policy.as_mut(), step);
    let second = scene.plan.owned(lc).difference(&CoreSet::of(first)).first().unwrap();
    assert!(scene.host.topology.siblings(first).contains(second));
}

/// Two services and a batch task on six cores and eleven ways.
struct Parties {
    scene: Scene,
    policy: Box<dyn Policy>,
    tasks: [TaskId; 3],
}

impl Parties {
    fn new() -> Parties {
        let mut scene = Scene::new(6, 1, false);
        let tasks = [scene.lc(0, 6), scene.lc(0, 6), scene.be(6)];
        for task in &tasks[..2] {
            scene.task(*task).limits.latency_target = Nanos::from_micros(1_000);
        }
        let mut policy = rival("parties-star", &scene);
        scene.tick(policy.as_mut(), US);
        Parties { scene, policy, tasks }
    }

    /// Half a second later the services report these tails, in microseconds.
    fn step(&mut self, latencies: [u64; 2]) -> [(usize, u16); 3] {
        for (task, latency) in self.tasks.into_iter().zip(latencies) {
            self.scene.task(task).latency = Signal::Measured(Nanos::from_micros(latency));
        }
        self.scene.tick(self.policy.as_mut(), Nanos::from_millis(500));
        self.has()
    }

    fn has(&self) -> [(usize, u16); 3] {
        self.tasks.map(|task| {
            let ways = self.scene.planned(task).llc_ways;
            (self.scene.plan.owned(task).len(), ways.unwrap_or_default())
        })
    }
}

#[test]
fn parties_starts_equal_and_leaves_alone_who_has_some_slack() {
    let mut parties = Parties::new();
    assert_eq!(parties.has(), [(2, 3), (2, 3), (2, 3)]);
    for _ in 0..10 {
        assert_eq!(parties.step([900, 850]), [(2, 3), (2, 3), (2, 3)], "10 % and 15 %");
    }
}

#[test]
fn parties_takes_from_batch_first_and_turns_to_the_other_resource_when_that_did_not_help() {
    let mut parties = Parties::new();
    assert_eq!(parties.step([990, 900]), [(3, 3), (2, 3), (1, 3)], "slack below 5 %: a core of BE");
    assert_eq!(parties.step([980, 900]), [(4, 3), (2, 3), (0, 3)], "it helped: one more");
    // It did not help: ways now, the two that nobody has first. What was taken stays.
    assert_eq!(parties.step([985, 900]), [(4, 4), (2, 3), (0, 3)]);
    assert_eq!(parties.step([980, 900]), [(4, 5), (2, 3), (0, 3)]);
    assert_eq!(parties.step([970, 900]), [(4, 6), (2, 3), (0, 2)]);
    // Back to cores: BE has none left, so the service with most slack gives one.
    assert_eq!(parties.step([990, 900]), [(5, 6), (1, 3), (0, 2)]);
}

#[test]
fn parties_gives_batch_what_a_service_does_not_need_and_takes_it_back_when_that_was_wrong() {
    let mut parties = Parties::new();
    assert_eq!(parties.step([500, 900]), [(1, 3), (2, 3), (3, 3)], "slack above 20 %");
    assert_eq!(parties.step([980, 900]), [(2, 3), (2, 3), (2, 3)], "undone");
    for _ in 0..59 {
        assert_eq!(parties.step([500, 900]), [(2, 3), (2, 3), (2, 3)], "not again for 30 s");
    }
    assert_eq!(parties.step([500, 900]), [(2, 2), (2, 3), (2, 4)], "and then by ways");
}

#[test]
fn parties_does_nothing_for_a_service_that_reports_nothing() {
    let mut parties = Parties::new();
    for _ in 0..5 {
        parties.scene.tick(parties.policy.as_mut(), Nanos::from_millis(500));
    }
    assert_eq!(parties.has(), [(2, 3), (2, 3), (2, 3)]);
    let mut scene = Scene::new(2, 1, false);
    scene.host.caps.llc_ways = 0;
    let said = rival("parties-star", &scene);
    assert!(said.missing()[0].to_string().contains("last-level cache that can be divided"));
}
