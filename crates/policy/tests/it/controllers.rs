//! Caladan's controllers, rule by rule. Names of rules are those of the published modules (`ias_bw`,
//! `ias_ht`, `ias_ts`).

#![allow(clippy::unwrap_used, reason = "a test that cannot build its scene fails")]

use crate::common::Scene;
use quell_model::*;
use quell_policy::advisors::STEP;
use quell_policy::{Config, Policy, Quell, by_name};

const US: Nanos = Nanos::from_micros(1);
/// Bytes in a step of 10 us at twice the limit of 25 GB/s.
const TWICE: u64 = 500_000;

fn caladan(scene: &Scene) -> Quell {
    Quell::caladan(scene.host.clone(), Config::default())
}

/// A host of exclusive cores whose counters stand at zero, with a service that sleeps.
fn counted(cores: u16) -> Scene {
    let mut scene = Scene::new(cores, 1, false);
    scene.host.caps.actuation_delay = Nanos::from_micros(5);
    scene.lc(0, 1);
    scene.seen.memory = Signal::Measured(Bytes(0));
    for view in &mut scene.seen.cores {
        view.memory = Signal::Measured(Bytes(0));
    }
    scene
}

/// Moves memory's counter and those of cores on, and decides a step later.
fn fetch(scene: &mut Scene, policy: &mut dyn Policy, total: u64, by_core: &[(u16, u64)]) {
    let add = |signal: &mut Signal<Bytes>, bytes: u64| {
        *signal = Signal::Measured(Bytes(signal.value().unwrap_or_default().0 + bytes));
    };
    add(&mut scene.seen.memory, total);
    for &(core, bytes) in by_core {
        add(&mut scene.seen.cores[core as usize].memory, bytes);
    }
    scene.tick(policy, STEP);
}

/// The task runs on exactly these cores, and `waiting` of its threads wait.
fn occupies(scene: &mut Scene, task: TaskId, cores: &[u16], waiting: u32) {
    for core in 0..scene.seen.cores.len() as u16 {
        if scene.seen.cores[core as usize].running == Some(task) && !cores.contains(&core) {
            scene.runs(core, None);
        }
    }
    cores.iter().for_each(|core| scene.runs(*core, Some(task)));
    scene.demand(task, cores.len() as u32, waiting);
}

/// The numbers of the cores that the task owns.
fn numbers(scene: &Scene, task: TaskId) -> Vec<u16> {
    scene.plan.owned(task).iter().map(|core| core.0).collect()
}

fn set(cores: &str) -> CoreSet {
    cores.parse().unwrap()
}

#[test]
fn over_the_limit_the_worst_task_loses_its_worst_core_one_a_step() {
    let mut scene = counted(6);
    let (mild, wild) = (scene.be(6), scene.be(6));
    let mut policy = caladan(&scene);
    scene.demand(mild, 0, 3);
    scene.demand(wild, 0, 3);
    scene.tick(&mut policy, STEP);
    let before = scene.plan.owned(wild);
    assert_eq!((scene.plan.owned(mild).len(), before.len()), (3, 3));
    let worst = before.iter().nth(1).unwrap();
    for task in [mild, wild] {
        let cores = numbers(&scene, task);
        occupies(&mut scene, task, &cores, 0);
    }
    let bytes = |core: u16| match CoreId(core) {
        core if core == worst => 150_000,
        core if before.contains(core) => 90_000,
        _ => 40_000,
    };
    let used: Vec<(u16, u64)> = (0..6).map(|core| (core, bytes(core))).collect();
    fetch(&mut scene, &mut policy, TWICE, &used);
    assert_eq!(scene.plan.owned(wild), before, "seen over the limit once: watch");
    fetch(&mut scene, &mut policy, TWICE, &used);
    assert_eq!(scene.plan.owned(wild), before.difference(&CoreSet::of(worst)));
    assert_eq!(scene.plan.owned(mild).len(), 3);
    assert_eq!(scene.planned(wild).cap, 2);
    scene.runs(worst.0, None);
    let left = numbers(&scene, wild);
    occupies(&mut scene, wild, &left, 1);
    fetch(&mut scene, &mut policy, TWICE, &used);
    assert_eq!(scene.plan.owned(wild).len(), 1, "and one more a step later");
    let capped = scene.plan.cores.iter().filter(|core| core.reason == Reason::Capped).count();
    assert_eq!(capped, 2, "the plan says why they idle");
}

#[test]
fn cores_come_back_one_a_step_to_the_congested_task_capped_least() {
    let mut scene = counted(2);
    let be = scene.be(2);
    let mut policy = caladan(&scene);
    scene.demand(be, 0, 2);
    scene.tick(&mut policy, STEP);
    occupies(&mut scene, be, &[0, 1], 0);
    let used = [(0, 250_000), (1, 250_000)];
    for _ in 0..2 {
        fetch(&mut scene, &mut policy, TWICE, &used);
    }
    assert_eq!(scene.planned(be).cap, 1);
    let kept = scene.plan.owned(be).first().unwrap().0;
    occupies(&mut scene, be, &[kept], 1);
    fetch(&mut scene, &mut policy, 0, &[]);
    assert_eq!(scene.planned(be).cap, 1, "no longer over: only the watch ends");
    fetch(&mut scene, &mut policy, 0, &[]);
    assert_eq!(scene.planned(be).cap, 2, "given back");
    assert_eq!(scene.owned(be), "0-1");
}

#[test]
fn a_lone_hog_alternates_between_no_core_and_one() {
    let mut scene = counted(1);
    let be = scene.be(1);
    let mut policy = caladan(&scene);
    scene.demand(be, 0, 1);
    scene.tick(&mut policy, STEP);
    let (mut ran, mut turns, mut had) = (0, 0, true);
    for _ in 0..1_000 {
        let has = !scene.plan.owned(be).is_empty();
        turns += u32::from(has != had);
        had = has;
        ran += u32::from(has);
        match has {
            true => occupies(&mut scene, be, &[0], 0),
            false => occupies(&mut scene, be, &[], 1),
        }
        let used = if has { TWICE } else { 0 };
        fetch(&mut scene, &mut policy, used, &[(0, used)]);
    }
    assert!((200..=800).contains(&ran), "it runs part of the time: {ran} of 1,000 steps");
    assert!(turns > 200, "time-multiplexed: {turns} turns");
}

#[test]
fn nobody_is_blamed_for_less_than_a_cores_share_nor_below_its_guarantee() {
    let mut scene = counted(4);
    let (small, safe) = (scene.be(4), scene.add(Class::BestEffort, 2, 4));
    let mut policy = caladan(&scene);
    scene.demand(small, 0, 2);
    scene.demand(safe, 0, 2);
    scene.tick(&mut policy, STEP);
    for task in [small, safe] {
        let cores = numbers(&scene, task);
        occupies(&mut scene, task, &cores, 0);
    }
    // 25 GB/s over 4 cores: 62,500 bytes a step are one core's share. The traffic is somebody else's.
    let used = |task, bytes| numbers(&scene, task).into_iter().map(move |core| (core, bytes));
    let used: Vec<_> = used(small, 31_000).chain(used(safe, 200_000)).collect();
    for _ in 0..5 {
        fetch(&mut scene, &mut policy, TWICE, &used);
    }
    assert_eq!((scene.planned(small).cap, scene.planned(safe).cap), (4, 2));
    assert_eq!(scene.plan.owned(safe).len(), 2);
}

#[test]
fn a_sample_counts_only_if_the_core_ran_the_same_task_at_both_ends() {
    let mut scene = counted(2);
    let (first, second) = (scene.be(2), scene.be(2));
    let mut policy = caladan(&scene);
    scene.demand(first, 0, 1);
    scene.demand(second, 0, 1);
    scene.tick(&mut policy, STEP);
    let (at, other) = (scene.plan.owned(first).first().unwrap(), scene.plan.owned(second));
    let other = other.first().unwrap();
    occupies(&mut scene, first, &[at.0], 0);
    occupies(&mut scene, second, &[other.0], 0);
    fetch(&mut scene, &mut policy, TWICE, &[(at.0, TWICE)]);
    occupies(&mut scene, first, &[], 1);
    scene.runs(at.0, None);
    occupies(&mut scene, first, &[], 1);
    scene.runs(at.0, Some(second));
    fetch(&mut scene, &mut policy, TWICE, &[(at.0, TWICE)]);
    assert_eq!((scene.planned(first).cap, scene.planned(second).cap), (2, 2));
}

#[test]
fn a_host_that_acts_slowly_is_given_time_and_one_without_a_service_is_left_alone() {
    let decisions = |actuation_delay, is_alive| {
        let mut scene = counted(2);
        scene.host.caps.actuation_delay = actuation_delay;
        scene.seen.tasks[0].alive = is_alive;
        let be = scene.be(2);
        let mut policy = caladan(&scene);
        scene.demand(be, 0, 2);
        scene.tick(&mut policy, STEP);
        occupies(&mut scene, be, &[0, 1], 0);
        let caps = (0..10).map(|_| {
            fetch(&mut scene, &mut policy, TWICE, &[(0, 250_000), (1, 250_000)]);
            scene.planned(be).cap
        });
        caps.filter(|cap| *cap < 2).count()
    };
    assert_eq!(decisions(Nanos::from_micros(5), true), 9, "from the second step on");
    assert_eq!(decisions(Nanos::from_micros(20), true), 3, "from the second step of 40 us on");
    assert_eq!(decisions(Nanos::from_micros(5), false), 0);
}

#[test]
fn a_host_whose_counters_show_late_is_given_longer_steps() {
    let mut scene = counted(4);
    let be = scene.be(4);
    let config = Config { bandwidth_step: Nanos::from_millis(3), ..Config::default() };
    let mut policy = Quell::caladan(scene.host.clone(), config);
    scene.demand(be, 0, 4);
    scene.tick(&mut policy, STEP);
    occupies(&mut scene, be, &[0, 1, 2, 3], 0);
    let mut caps = Vec::new();
    for _ in 0..1_000 {
        fetch(&mut scene, &mut policy, TWICE, &[(0, TWICE / 4), (1, TWICE / 4), (2, TWICE / 4)]);
        caps.push(scene.planned(be).cap);
    }
    caps.dedup();
    // 10 ms, 4 steps: the first has nothing to compare with, the second watches, each after that takes a core.
    assert_eq!(caps, [4, 3, 2]);
    assert!(Quell::caladan(scene.host.clone(), config).reads().memory);
    assert_eq!(Quell::new(scene.host.clone(), config).reads(), quell_policy::Reads::default());
}

#[test]
fn a_total_that_is_lost_gives_cores_back_no_faster_than_one_a_step() {
    let mut scene = counted(4);
    let be = scene.be(4);
    let mut policy = caladan(&scene);
    scene.demand(be, 0, 4);
    scene.tick(&mut policy, STEP);
    occupies(&mut scene, be, &[0, 1, 2, 3], 0);
    let mut used = [(0, TWICE / 4), (1, TWICE / 4), (2, TWICE / 4)];
    for _ in 0..4 {
        fetch(&mut scene, &mut policy, TWICE, &used);
    }
    used.iter_mut().for_each(|(_, bytes)| *bytes = 0);
    let capped = scene.planned(be).cap;
    assert!(capped <= 2, "{capped}");
    scene.seen.memory = Signal::Absent(Absence::Stale);
    scene.demand(be, 1, 3);
    let mut caps = Vec::new();
    for _ in 0..100 {
        scene.tick(&mut policy, Nanos(STEP.0 / 10));
        caps.push(scene.planned(be).cap);
    }
    let changes: Vec<usize> = (1..100).filter(|&at| caps[at] != caps[at - 1]).collect();
    assert!(changes.windows(2).all(|pair| pair[1] - pair[0] >= 10), "{caps:?}");
    assert_eq!(caps[99], 4);
}

#[test]
fn where_cores_are_shared_a_preempted_thread_counts_as_running() {
    let mut scene = Scene::new(6, 1, true);
    scene.host.caps.actuation_delay = Nanos::from_micros(5);
    scene.lc(0, 1);
    scene.seen.memory = Signal::Measured(Bytes(0));
    for view in &mut scene.seen.cores {
        view.memory = Signal::Measured(Bytes(0));
    }
    let be = scene.be(6);
    let mut policy = caladan(&scene);
    scene.demand(be, 0, 9);
    scene.tick(&mut policy, STEP);
    // Somebody else has core 5 at every look.
    occupies(&mut scene, be, &[0, 1, 2, 3, 4], 4);
    let used: Vec<(u16, u64)> = (0..5).map(|core| (core, TWICE / 5)).collect();
    let mut caps = Vec::new();
    for _ in 0..4 {
        fetch(&mut scene, &mut policy, TWICE, &used);
        caps.push(scene.planned(be).cap);
    }
    caps.dedup();
    assert!(caps.windows(2).all(|pair| pair[0] - pair[1] == 1), "{caps:?}");
    assert!(caps.len() >= 3, "{caps:?}");
}

#[test]
fn a_host_without_counters_and_a_switch_that_is_off_mean_no_controller() {
    let mut scene = Scene::new(2, 2, false);
    scene.host.caps.memory_counters = false;
    scene.host.caps.request_start_times = false;
    let policy = by_name("caladan", scene.host.clone(), Config::default()).unwrap();
    let said: Vec<String> = policy.missing().iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "without bandwidth: this host has not counters of memory traffic",
            "without hyperthread: this host has not the start times of requests",
            "without quantum: this host has not the start times of requests",
        ]
    );
    let off = Config {
        bandwidth_limit: BytesPerSec(0),
        hyperthread: false,
        quantum: false,
        ..Config::default()
    };
    let policy = Quell::caladan(Scene::new(2, 2, false).host, off);
    assert_eq!((policy.advisors().count(), policy.missing().len()), (0, 0));
}

/// Two physical cores with two siblings each (0 and 2, 1 and 3), and an LC task with this guarantee whose
/// requests are late after 20 us.
fn hyperthreads(guaranteed: u32, shares: bool) -> (Scene, TaskId) {
    let mut scene = Scene::new(2, 2, shares);
    let lc = scene.lc(guaranteed, 4);
    scene.task(lc).limits.times.sibling_idle_after = Nanos::from_micros(20);
    (scene, lc)
}

/// The task serves a request on the core that began `age` ago.
fn serves(scene: &mut Scene, task: TaskId, core: u16, age: Nanos) {
    scene.runs(core, Some(task));
    let start = Signal::Measured(scene.seen.now - age);
    let view = &mut scene.seen.cores[core as usize];
    (view.request_start, view.serving) = (start, Some(task));
}

fn parked(scene: &Scene) -> Vec<(u16, Reason)> {
    let parked = scene.plan.cores.iter().filter(|core| core.mode == CoreMode::Idled);
    parked.map(|core| (core.id.0, core.reason)).collect()
}

#[test]
fn the_sibling_is_idled_when_a_request_crosses_the_threshold_and_until_it_ends() {
    let (mut scene, lc) = hyperthreads(2, false);
    let be = scene.be(4);
    let mut policy = caladan(&scene);
    scene.demand(lc, 1, 0);
    scene.demand(be, 0, 3);
    serves(&mut scene, lc, 0, Nanos(0));
    scene.tick(&mut policy, US);
    assert_eq!(scene.owned(lc), "0");
    assert_eq!(scene.plan.owned(be), set("1-3"));
    for core in [1, 2, 3] {
        scene.runs(core, Some(be));
    }
    scene.demand(be, 3, 0);
    let wake = scene.tick(&mut policy, Nanos::from_micros(10));
    assert_eq!(parked(&scene), []);
    let start = scene.seen.cores[0].request_start.value().unwrap();
    assert!(matches!(wake, quell_policy::Wake::At(at) if at <= start + Nanos::from_micros(20)));
    scene.tick(&mut policy, Nanos::from_micros(10));
    assert_eq!(parked(&scene), [(2, Reason::BannedFor(CoreId(0)))]);
    assert_eq!(scene.plan.owned(be), set("1,3"));
    scene.seen.cores[0].running = None;
    scene.tick(&mut policy, Nanos::from_micros(10));
    assert_eq!(
        parked(&scene),
        [(2, Reason::BannedFor(CoreId(0)))],
        "a kernel thread interrupts it"
    );
    scene.seen.cores[0].running = Some(lc);
    scene.runs(2, None);
    scene.demand(be, 2, 1);
    scene.seen.cores[0].request_start = Signal::Measured(scene.seen.now);
    scene.tick(&mut policy, US);
    assert_eq!(scene.plan.owned(be), set("1-3"), "the next request is young");
}

#[test]
fn a_threshold_of_zero_a_be_task_and_a_burst_core_idle_nobody() {
    for (threshold, class, guaranteed) in [
        (Nanos::ZERO, Class::LatencyCritical, 2),
        (Nanos::from_micros(20), Class::BestEffort, 2),
        (Nanos::from_micros(20), Class::LatencyCritical, 0),
    ] {
        let mut scene = Scene::new(2, 2, false);
        let task = scene.add(class, guaranteed, 4);
        scene.task(task).limits.times.sibling_idle_after = threshold;
        let mut policy = caladan(&scene);
        scene.demand(task, 1, 0);
        serves(&mut scene, task, 0, Nanos::from_micros(90));
        scene.tick(&mut policy, US);
        assert_eq!(parked(&scene), [], "{threshold} {class} {guaranteed}");
    }
}

#[test]
fn two_late_requests_of_one_task_beside_each_other_both_go_on() {
    let (mut scene, lc) = hyperthreads(2, false);
    let mut policy = caladan(&scene);
    scene.demand(lc, 2, 0);
    serves(&mut scene, lc, 0, Nanos::from_micros(90));
    serves(&mut scene, lc, 2, Nanos::from_micros(50));
    scene.tick(&mut policy, US);
    assert_eq!((scene.owned(lc).as_str(), parked(&scene)), ("0,2", vec![]));
}

#[test]
fn an_own_thread_on_the_sibling_moves_if_it_finds_a_place_and_stays_if_not() {
    let (mut scene, lc) = hyperthreads(2, false);
    let mut policy = caladan(&scene);
    scene.demand(lc, 2, 0);
    serves(&mut scene, lc, 0, Nanos::from_micros(5));
    serves(&mut scene, lc, 2, Nanos::from_micros(1));
    scene.tick(&mut policy, US);
    assert_eq!(scene.owned(lc), "0,2");
    scene.tick(&mut policy, Nanos::from_micros(15));
    assert_eq!(parked(&scene), [(2, Reason::BannedFor(CoreId(0)))]);
    assert_eq!(scene.owned(lc), "0-1", "core 1 instead of core 2");
    // No other core: the thread stays, and it is said why.
    let (mut scene, lc) = hyperthreads(2, false);
    scene.task(lc).limits.allowed = set("0,2");
    let mut policy = caladan(&scene);
    scene.demand(lc, 2, 0);
    serves(&mut scene, lc, 0, Nanos::from_micros(30));
    serves(&mut scene, lc, 2, Nanos::from_micros(1));
    scene.tick(&mut policy, US);
    assert_eq!((scene.owned(lc).as_str(), parked(&scene)), ("0,2", vec![]));
    assert!(policy.explain().to_string().contains("declined to keep core 2 idle beside"));
}

#[test]
fn another_tasks_guarantee_is_not_idled_away() {
    let (mut scene, lc) = hyperthreads(1, false);
    scene.host.topology = Topology::regular(1, 1, 2).unwrap();
    scene.host.managed = scene.host.topology.all();
    scene.seen.cores.truncate(2);
    let other = scene.lc(1, 1);
    for task in [lc, other] {
        scene.task(task).limits.allowed = set("0-1");
        scene.demand(task, 1, 0);
    }
    let mut policy = caladan(&scene);
    serves(&mut scene, lc, 0, Nanos::from_micros(50));
    scene.runs(1, Some(other));
    scene.tick(&mut policy, US);
    assert_eq!((scene.owned(lc).as_str(), scene.owned(other).as_str()), ("0", "1"));
}

#[test]
fn a_congested_task_takes_back_the_sibling_of_its_youngest_late_request_and_keeps_it() {
    let (mut scene, lc) = hyperthreads(4, false);
    let mut policy = caladan(&scene);
    scene.demand(lc, 2, 0);
    serves(&mut scene, lc, 0, Nanos::from_micros(90));
    serves(&mut scene, lc, 1, Nanos::from_micros(40));
    scene.tick(&mut policy, US);
    assert_eq!(scene.owned(lc), "0-1");
    assert_eq!(parked(&scene).len(), 2);
    scene.demand(lc, 2, 1);
    scene.tick(&mut policy, US);
    assert_eq!(scene.owned(lc), "0-1,3", "core 3 is beside the younger request");
    serves(&mut scene, lc, 3, Nanos(0));
    scene.demand(lc, 3, 0);
    for _ in 0..20 {
        scene.tick(&mut policy, US);
        assert_eq!(scene.owned(lc), "0-1,3", "it does not flap");
    }
}

#[test]
fn where_cores_are_shared_be_alone_is_kept_off_the_sibling() {
    let (mut scene, lc) = hyperthreads(2, true);
    let be = scene.be(4);
    scene.demand(be, 4, 0);
    let mut policy = caladan(&scene);
    scene.demand(lc, 1, 0);
    serves(&mut scene, lc, 0, Nanos::from_micros(50));
    scene.tick(&mut policy, US);
    assert_eq!(scene.owned(lc), "0,2", "its own all the same");
    assert_eq!(scene.plan.usable(be), set("0-1,3"));
    assert_eq!(scene.planned(be).reason, TaskReason::Hyperthread);
    scene.seen.cores[0].request_start = Signal::Absent(Absence::NotApplicable);
    scene.tick(&mut policy, US);
    assert_eq!(scene.plan.usable(be), set("0-3"));
}

#[test]
fn a_request_past_its_quantum_yields_once_others_wait_and_no_later_one_does() {
    let mut scene = Scene::new(2, 1, false);
    let lc = scene.lc(1, 1);
    scene.task(lc).limits.times.quantum = Nanos::from_micros(100);
    let mut policy = caladan(&scene);
    scene.demand(lc, 1, 0);
    serves(&mut scene, lc, 0, Nanos::from_micros(300));
    scene.tick(&mut policy, US);
    assert_eq!(scene.plan.cores[0].yields, None, "nobody waits");
    scene.demand(lc, 1, 1);
    scene.tick(&mut policy, US);
    let start = scene.seen.cores[0].request_start.value();
    assert_eq!(scene.plan.cores[0].yields, start, "named by when it began");
    scene.seen.cores[0].request_start = Signal::Measured(scene.seen.now);
    let wake = scene.tick(&mut policy, US);
    assert_eq!(scene.plan.cores[0].yields, None);
    assert!(matches!(wake, quell_policy::Wake::At(_)), "looked at when its quantum ends");
}

#[test]
fn batch_work_that_lost_its_core_to_a_guarantee_gets_its_own_back_although_it_was_to_idle() {
    let mut scene = Scene::new(1, 2, true);
    let be = scene.add(Class::BestEffort, 1, 2);
    let mut policy = caladan(&scene);
    scene.tick(&mut policy, US);
    assert_eq!(scene.owned(be), "0-1");
    // A service joins whose guarantee only that core can serve, and has a late request there.
    let lc = scene.lc(1, 1);
    scene.task(lc).limits.allowed = set("0");
    scene.task(lc).limits.times.sibling_idle_after = Nanos::from_micros(20);
    scene.demand(lc, 1, 0);
    serves(&mut scene, lc, 0, Nanos::from_micros(50));
    scene.tick(&mut policy, US);
    assert_eq!((scene.owned(lc).as_str(), scene.owned(be).as_str()), ("0", "1"));
}
