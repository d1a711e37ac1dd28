//! What the machine does to tasks, seen from outside: siblings, memory, caches, phases, in whole simulations.

#![allow(clippy::unwrap_used, reason = "a test that cannot build its scene fails")]

use quell_model::*;
use quell_policy::{BadState, Policy, Wake, by_name};
use quell_sim::file::Simulation;
use quell_sim::{Faults, Report, Scenario, TaskReport, run, run_traced};

fn simulation(tasks: &str, length_ms: u64) -> Simulation {
    let text = format!(
        "version = 1\nlength_ms = {length_ms}\nwarm_up_ms = 1\n[machine]\npreset = \"caladan\"\n{tasks}"
    );
    Simulation::parse(&text, "test.toml", "test", &|_| unreachable!("it names no file")).unwrap()
}

fn outcome(tasks: &str, length_ms: u64) -> Report {
    let Simulation { scenario, policy, config, .. } = simulation(tasks, length_ms);
    let mut policy = by_name(&policy, scenario.host.clone(), config).unwrap();
    let report = run(&scenario, policy.as_mut());
    assert_eq!((&report.broken[..], &report.violations[..]), (&[][..], &[][..]));
    report
}

fn service(name: &str, rate: u64) -> String {
    format!("[[task]]\nname = \"{name}\"\nmodel = \"{name}\"\nrate = {rate}\nguaranteed = 22\n")
}

fn batch(name: &str, threads: u32, more: &str) -> String {
    format!("[[task]]\nname = \"{name}\"\nmodel = \"{name}\"\nthreads = {threads}\n{more}\n")
}

/// How fast each core of batch work is, against an idle host.
fn speed(report: &Report, task: usize, counted_ms: u64) -> f64 {
    let cores = report.tasks[task].ran.0 as f64 / ((counted_ms + 1) * 1_000_000) as f64;
    report.tasks[task].work.0 as f64 / (counted_ms * 1_000_000) as f64 / cores
}

#[test]
fn siblings_slow_each_other_down_as_the_table_says() {
    let alone = outcome(&batch("hog", 1, ""), 10);
    assert!(speed(&alone, 0, 9) > 0.99);
    let pair = outcome(&batch("hog", 2, "cores = \"1,13\""), 10);
    let each = speed(&pair, 0, 9);
    assert!((0.56..0.59).contains(&each), "1 / 1.75 = 0.571, not {each}");
}

#[test]
fn work_on_a_core_of_half_the_capacity_takes_twice_as_long() {
    for kernel in ["", "[kernel]\nmodel = \"linux-6.12\"\n"] {
        let text = format!(
            "version = 1\nlength_ms = 20\nwarm_up_ms = 0\n[machine]\nphysical = 2\nmanaged = \"0-1\"\n\
             capacities = [512, 1024]\n[host]\npolicy = \"linux-default\"\ncores = \"shared\"\n\
             costs = {{ switch_ns = 0 }}\n{kernel}{}{}",
            batch("hog", 1, "cores = \"0\""),
            batch("hog", 1, "cores = \"1\"").replace("\"hog\"\nmodel", "\"fast\"\nmodel"),
        );
        let none = |_: &str| unreachable!("it names no file");
        let simulation = Simulation::parse(&text, "test.toml", "test", &none).unwrap();
        let report = run(&simulation.scenario, simulation.driver().unwrap().as_mut());
        assert_eq!(report.broken, []);
        let work: Vec<u64> = report.tasks.iter().map(|task| task.work.0 / 100_000).collect();
        assert_eq!(work, [100, 200], "tenths of a millisecond under {kernel:?}");
    }
}

#[test]
fn streams_share_what_the_memory_has() {
    let one = outcome(&batch("stream-dram", 1, ""), 10);
    let all = outcome(&batch("stream-dram", 22, ""), 10);
    let rate = |report: &Report| report.memory_bytes.0 as f64 / 1e6 / 10.0;
    assert!((10.0..11.5).contains(&rate(&one)), "one moves {} GB/s", rate(&one));
    assert!((50.0..60.0).contains(&rate(&all)), "all move {} GB/s", rate(&all));
}

#[test]
fn a_saturated_memory_lengthens_the_requests_of_a_service() {
    let alone = outcome(&service("memcached", 200_000), 20);
    let beside = outcome(&(service("memcached", 200_000) + &batch("stream-dram", 20, "")), 20);
    let (alone, beside) = (alone.tasks[0].percentile(500), beside.tasks[0].percentile(500));
    assert!(beside.0 > alone.0 * 3 / 2, "median {beside} beside streams, {alone} alone");
}

#[test]
fn batch_work_goes_through_its_phases() {
    let phases = "[[task.phase]]\ncore_ms = 2\ntraffic_mb = 0\nkind = \"compute\"\n\
                  [[task.phase]]\ncore_ms = 2\ntraffic_mb = 5000\nkind = \"compute\"\n";
    let report = outcome(&batch("hog", 1, phases), 40);
    let moved: Vec<bool> =
        report.timeline.iter().map(|sample| sample.traffic.0 > 2_000_000_000).collect();
    let turns = moved.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!((17..=20).contains(&turns), "{turns} turns in 40 ms of 2 ms phases");
}

#[test]
fn a_runtime_answers_everything_and_keeps_its_books() {
    let report = outcome(
        &(service("silo", 100_000)
            + &service("storage", 50_000).replace("= 22", "= 0")
            + &batch("swaptions-gc", 22, "")),
        30,
    );
    for task in &report.tasks[..2] {
        assert!(task.answered > 1_000 && task.unanswered < 40, "{task:?}");
    }
    assert!(report.tasks[2].work > Nanos::ZERO);
}

/// Hands each managed core to the next task every 50 us. It is simple so that it need never change.
struct Turns {
    managed: CoreSet,
    tasks: u32,
}

impl Policy for Turns {
    fn name(&self) -> &'static str {
        "turns"
    }

    fn decide(&mut self, now: Nanos, seen: &Snapshot, plan: &mut Plan) -> Wake {
        let turn = now.0 / 50_000;
        plan.cores.clear();
        plan.cores.extend(seen.cores.iter().map(|core| {
            let task = (u64::from(core.id.0) + turn) % u64::from(self.tasks);
            let owner = self.managed.contains(core.id).then(|| seen.tasks[task as usize].id);
            let (id, mode, reason) = (core.id, CoreMode::Kernel, Reason::Leftover);
            CorePlan { id, owner, mode, reason, yields: None }
        }));
        plan.tasks.clear();
        plan.tasks.extend(seen.tasks.iter().map(|task| TaskPlan {
            id: task.id,
            class: task.limits.class,
            cap: task.limits.max,
            rung: Rung::Original,
            shared_cores: CoreSet::EMPTY,
            llc_ways: None,
            reason: TaskReason::Configured,
        }));
        Wake::At(now + Nanos::from_micros(10))
    }

    fn save(&self, _: &mut Vec<u8>) {}

    fn restore(&mut self, _: &mut &[u8]) -> Result<(), BadState> {
        Ok(())
    }
}

/// Golden: these figures are the same on every machine. Whoever changes the model changes them, and is to mean it.
#[test]
fn the_same_seed_gives_the_same_figures_on_every_machine() {
    let tasks = service("memcached", 300_000)
        + &service("silo", 20_000).replace("= 22", "= 0")
        + &batch("swaptions-gc", 22, "");
    let Simulation { mut scenario, .. } = simulation(&tasks, 20);
    scenario.faults = Faults { late: 20, refused: 20, lost: 20, raced: 20 };
    let managed = scenario.host.managed;
    let outcome = |seed| {
        let report = run(&Scenario { seed, ..scenario.clone() }, &mut Turns { managed, tasks: 3 });
        assert_eq!(report.broken, []);
        let figures = |task: &TaskReport| {
            (task.answered, task.percentile(500), task.percentile(999), task.ran, task.work)
        };
        let tasks: Vec<_> = report.tasks.iter().map(figures).collect();
        format!("{tasks:?} {} {:?}", report.events, report.memory_bytes)
    };
    assert_ne!(outcome(2), outcome(1));
    let golden = "[(6089, Nanos(1679), Nanos(4699), Nanos(17533929), Nanos(7216033)), \
                  (377, Nanos(17567), Nanos(158719), Nanos(8906615), Nanos(7571760)), \
                  (0, Nanos(0), Nanos(0), Nanos(151212662), Nanos(88430339))] 31577 Bytes(149177030)";
    assert_eq!(outcome(1), golden);
}

/// Replays a trace: what it says of each core and thread has to fit together.
#[test]
fn a_trace_shows_one_thread_a_core_and_one_core_a_thread() {
    let tasks = service("memcached", 100_000) + &batch("stream-dram", 22, "");
    let Simulation { scenario, policy, config, .. } = simulation(&tasks, 10);
    let mut policy = by_name(&policy, scenario.host.clone(), config).unwrap();
    let mut events: Vec<Event> = Vec::new();
    let mut sink = |event: Event| events.push(event);
    let report = run_traced(&scenario, policy.as_mut(), &mut sink);
    let mut untraced = by_name("quell", scenario.host.clone(), config).unwrap();
    assert_eq!(run(&scenario, untraced.as_mut()).tasks, report.tasks, "telling changes nothing");

    let mut running = [0; 24];
    let mut next = [0; 24];
    assert!(events.is_sorted_by_key(|event| event.at));
    let mut switches = 0;
    for event in &events {
        let at = event.core.index();
        assert_eq!(event.sequence, next[at], "no gap on core {at}");
        next[at] += 1;
        if let What::Switch { next, left, .. } = event.what {
            switches += 1;
            assert_eq!(running[at], left, "at {}: core {at}", event.at);
            running[at] = next.thread;
            let elsewhere =
                running.iter().filter(|thread| **thread == next.thread && next.thread != 0);
            assert_eq!(elsewhere.count(), usize::from(next.thread != 0), "at {}", event.at);
        }
    }
    assert!(switches > 1_000, "{switches} switches");
    let has = |wanted: fn(&What) -> bool| events.iter().any(|event| wanted(&event.what));
    assert!(has(|what| matches!(what, What::Keyframe(_))));
    assert!(has(|what| matches!(what, What::Waking { .. })));
    assert!(has(|what| matches!(what, What::Decision(_))));
}
