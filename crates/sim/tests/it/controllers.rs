//! Caladan's controllers in a closed loop: no oscillation, no starvation, no broken guarantee.
//!
//! The toy host has no memory and no requests to see, so a policy around the policy derives those signals
//! from who runs where.

#![allow(clippy::unwrap_used, reason = "a test that cannot build its scene fails")]

use crate::common::*;
use quell_model::*;
use quell_policy::{BadState, Config, Host, Policy, Wake, by_name};
use quell_sim::{Faults, Scenario, Task, run};

/// Bytes that a BE core fetches in a second: four of them are at the limit of 25 GB/s.
const FETCHED: u64 = 6_250_000_000;

/// A policy that sees memory traffic and the starts of requests, and what came of it.
struct Sensed {
    policy: Box<dyn Policy>,
    seen: Snapshot,
    /// By core: what it fetched, and who has run there since when.
    cores: Vec<(u64, Option<TaskId>, Nanos)>,
    total: u64,
    /// By task: since when it has waited without a core, and the longest such time.
    starved: Vec<(Option<Nanos>, Nanos)>,
    parked: u64,
    ticks: u64,
}

impl Sensed {
    fn new(host: &Host, config: Config) -> Sensed {
        Sensed {
            policy: by_name("caladan", host.clone(), config).unwrap(),
            seen: Snapshot::default(),
            cores: vec![(0, None, Nanos::ZERO); host.topology.len()],
            total: 0,
            starved: Vec::new(),
            parked: 0,
            ticks: 0,
        }
    }

    fn sense(&mut self, now: Nanos, seen: &Snapshot) {
        let passed = now.since(self.seen.now).0;
        self.seen = seen.clone();
        let is_be = |id: TaskId| seen.tasks[id.at()].limits.class == Class::BestEffort;
        for (view, core) in self.seen.cores.iter_mut().zip(&mut self.cores) {
            let (fetched, before, since) = core;
            if before.is_some_and(is_be) {
                let bytes = u128::from(FETCHED) * u128::from(passed) / 1_000_000_000;
                *fetched += bytes as u64;
                self.total += bytes as u64;
            }
            if *before != view.running {
                (*before, *since) = (view.running, now);
            }
            view.memory = Signal::Measured(Bytes(*fetched));
            view.request_start = match view.running {
                Some(task) if !is_be(task) => Signal::Measured(*since),
                _ => Signal::Absent(Absence::NotApplicable),
            };
            view.serving = view.running.filter(|task| !is_be(*task));
        }
        self.seen.memory = Signal::Measured(Bytes(self.total));
    }

    fn watch(&mut self, now: Nanos, plan: &Plan) {
        self.ticks += 1;
        self.parked += plan.cores.iter().filter(|core| core.mode == CoreMode::Idled).count() as u64;
        self.starved.resize(self.seen.tasks.len(), (None, Nanos::ZERO));
        for (task, (since, longest)) in self.seen.tasks.iter().zip(&mut self.starved) {
            let starves = task.alive && task.waiting > 0 && task.running == 0;
            *since = if starves { since.or(Some(now)) } else { None };
            *longest = (*longest).max(now.since(since.unwrap_or(now)));
        }
    }
}

impl Policy for Sensed {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn decide(&mut self, now: Nanos, seen: &Snapshot, plan: &mut Plan) -> Wake {
        self.sense(now, seen);
        let wake = self.policy.decide(now, &self.seen, plan);
        self.watch(now, plan);
        wake
    }

    fn save(&self, state: &mut Vec<u8>) {
        self.policy.save(state);
    }

    fn restore(&mut self, state: &mut &[u8]) -> Result<(), BadState> {
        self.policy.restore(state)
    }
}

/// A host with siblings whose memory and requests are seen.
fn seeing(physical: u16, shares: bool) -> Host {
    let mut host = host(physical, 2, shares);
    host.caps.memory_counters = true;
    host.caps.request_start_times = true;
    host
}

/// A service whose requests take 50 us on average and count as late after 60.
fn late_after_60_us(mut task: Task) -> Task {
    task.limits.times.sibling_idle_after = Nanos(60 * US);
    task
}

fn crowded(host: &Host, seed: u64) -> Scenario {
    let mut scenario = scenario(host.clone());
    scenario.length = Nanos(200 * MS);
    scenario.seed = seed;
    scenario.tasks = vec![
        late_after_60_us(service(host, 4, 8, &[(0, 1_000), (60 * MS, 3_500), (120 * MS, 500)])),
        late_after_60_us(service(host, 2, 4, &[(0, 800)])),
        hog(host, 8),
        hog(host, 3),
    ];
    scenario
}

#[test]
fn controllers_keep_invariants_on_a_faulty_back_end() {
    for shares in [true, false] {
        let host = seeing(4, shares);
        for seed in 0..6 {
            let mut scenario = crowded(&host, seed);
            scenario.faults = Faults {
                refused: 30 * (seed % 3) as u16,
                lost: 40 * (seed % 2) as u16,
                ..scenario.faults
            };
            let mut policy = Sensed::new(&host, Config::default());
            let report = run(&scenario, &mut policy);
            let first: Vec<String> = report
                .violations
                .iter()
                .take(3)
                .map(|(at, what)| format!("{at}: {what}"))
                .collect();
            assert!(first.is_empty(), "shared {shares}, seed {seed}: {first:?}");
            assert!(policy.parked > 0 || shares, "the controllers had something to do");
        }
    }
}

#[test]
fn memory_stays_near_its_limit_and_batch_work_starves_nowhere() {
    let host = seeing(4, false);
    let scenario = crowded(&host, 1);
    let mut policy = Sensed::new(&host, Config::default());
    let report = run(&scenario, &mut policy);
    let off = Config { bandwidth_limit: BytesPerSec(0), ..Config::default() };
    let mut unchecked = Sensed::new(&host, off);
    run(&scenario, &mut unchecked);
    let limit = 25_000_000_000 / 5; // in 200 ms
    assert!(unchecked.total > limit + limit / 6, "{} of {limit}", unchecked.total);
    assert!(policy.total < limit + limit / 10, "{} of {limit}", policy.total);
    assert!(policy.total > limit / 2, "{} of {limit}: it gives cores back", policy.total);
    for place in [2, 3] {
        let (ran, starved) = (report.tasks[place].ran, policy.starved[place].1);
        assert!(ran > Nanos(20 * MS), "task {place} ran {ran}");
        assert!(starved < Nanos(20 * MS), "task {place} had no core for {starved}");
    }
}

#[test]
fn services_answer_all_the_same_and_their_cores_do_not_flap() {
    for shares in [true, false] {
        let host = seeing(4, shares);
        let scenario = crowded(&host, 3);
        let off =
            Config { hyperthread: false, bandwidth_limit: BytesPerSec(0), ..Config::default() };
        let (mut with, mut without) =
            (Sensed::new(&host, Config::default()), Sensed::new(&host, off));
        let (watched, plain) = (run(&scenario, &mut with), run(&scenario, &mut without));
        for place in [0, 1] {
            let (ours, theirs) = (&watched.tasks[place], &plain.tasks[place]);
            let (late, before) = (ours.percentile(999), theirs.percentile(999));
            assert!(ratio(late, before) < 1.6, "shared {shares}: p99.9 {late} against {before}");
            assert!(ours.unanswered <= theirs.unanswered + 4, "{} unanswered", ours.unanswered);
        }
        // What the controllers add is less than one move a decision.
        assert!(
            watched.owner_changes < plain.owner_changes + with.ticks,
            "{} moves",
            watched.owner_changes
        );
    }
}
