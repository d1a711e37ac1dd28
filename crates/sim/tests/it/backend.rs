//! What policies see and what becomes of their Plans, in whole simulations.

#![allow(clippy::unwrap_used, reason = "a test that cannot build its scene fails")]

use quell_model::{CoreId, Event, Nanos, Plan, Snapshot, What};
use quell_policy::{BadState, Config, Host, Policy, Wake, by_name};
use quell_sim::file::Simulation;
use quell_sim::{Report, run, run_traced};
use quell_trace::check::{Checker, Options, Verdict};

fn simulation(text: &str) -> Simulation {
    let text = format!("version = 1\n{text}");
    Simulation::parse(&text, "test.toml", "test", &|_| unreachable!("it names no file")).unwrap()
}

fn outcome(text: &str, policy: &str) -> Report {
    let Simulation { scenario, config, .. } = simulation(text);
    let mut policy = by_name(policy, scenario.host.clone(), config).unwrap();
    let report = run(&scenario, policy.as_mut());
    assert_eq!(report.broken, []);
    report
}

/// A service with as many threads as cores, one of whose requests in a hundred takes a thousand times as long.
fn bimodal(quantum_us: u64) -> String {
    format!(
        "length_ms = 200\n[machine]\nphysical = 5\n[host]\npolicy = \"caladan\"\n[[task]]\nname = \"service\"\n\
         model = \"service\"\nrate = 165000\nguaranteed = 4\nquantum_us = {quantum_us}\n\
         service = {{ distribution = \"bimodal\", mean_ns = 2000, long_ns = 2000000, long_permille = 10 }}\n"
    )
}

#[test]
fn quantum_lets_short_requests_pass_long_ones() {
    let p99 = |quantum| outcome(&bimodal(quantum), "caladan").tasks[0].latency.quantile(0.99);
    let (without, with) = (p99(0), p99(100));
    assert!(with.0 * 3 < without.0, "{with} with a quantum, {without} without");
}

const SHARED: &str = "[machine]\nphysical = 5\n[host]\ncores = \"shared\"\n[[task]]\nname = \"web\"\nmodel = \"service\"\n\
    guaranteed = 2\nrate = 5000\nthreads = 4\nservice = { distribution = \"constant\", mean_ns = 100000 }\n\
    [[task]]\nname = \"batch\"\nmodel = \"hog\"\nthreads = 12\n";

#[test]
fn first_plan_that_takes_initial_cores_is_carried_out() {
    let text = format!("length_ms = 200\n{SHARED}");
    let batch = |policy| outcome(&text, policy).tasks[1].ran;
    let (kept_off, everywhere) = (batch("perfiso"), batch("linux-default"));
    assert!(kept_off.0 * 10 < everywhere.0 * 9, "{kept_off} against {everywhere}");
}

#[test]
fn a_trace_of_a_task_that_left_has_none_of_its_threads_waiting() {
    let text = format!("length_ms = 900\n{SHARED}[[change]]\nat_ms = 100\nleave = \"batch\"\n");
    let Simulation { scenario, config, .. } = simulation(&text);
    let mut policy = by_name("quell", scenario.host.clone(), config).unwrap();
    let mut checker = Checker::new(&scenario.meta("quell"), Options::default());
    let mut sink = |event: Event| checker.event(&event);
    run_traced(&scenario, policy.as_mut(), &mut sink);
    let report = checker.finish(scenario.length);
    assert_eq!(report.verdict, Verdict::Clean, "{}", report.verdict_reason);
}

/// Lets the batch task use the first core and another one, which is not the same twice in a row.
struct Fickle(bool);

impl Policy for Fickle {
    fn name(&self) -> &'static str {
        "fickle"
    }

    fn decide(&mut self, now: Nanos, seen: &Snapshot, plan: &mut Plan) -> Wake {
        self.0 = !self.0;
        let mut inner = by_name("linux-default", self::host(), Config::default()).unwrap();
        inner.decide(now, seen, plan);
        plan.tasks[1].shared_cores = [0, 1 + u16::from(self.0)].into_iter().map(CoreId).collect();
        Wake::At(now)
    }

    fn save(&self, _: &mut Vec<u8>) {}

    fn restore(&mut self, _: &mut &[u8]) -> Result<(), BadState> {
        Ok(())
    }
}

fn host() -> Host {
    simulation(&format!("length_ms = 200\n{SHARED}")).scenario.host
}

#[test]
fn rights_that_change_fast_do_take_effect() {
    let mut scenario = simulation(&format!("length_ms = 200\n{SHARED}")).scenario;
    scenario.costs.rights = Nanos(scenario.tick.0 * 4);
    let report = run(&scenario, &mut Fickle(false));
    let most = 2 * scenario.length.0 + scenario.length.0 / 10;
    assert!((1..most).contains(&report.tasks[1].ran.0), "{}", report.tasks[1].ran);
}

#[test]
fn trace_with_helpers_has_no_wait_beside_idle_cores() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/sim/threads.toml");
    let Simulation { mut scenario, config, .. } = Simulation::load(path.as_ref()).unwrap();
    scenario.length = Nanos::from_millis(1_200);
    let mut policy = by_name("quell", scenario.host.clone(), config).unwrap();
    let mut checker = Checker::new(&scenario.meta("quell"), Options::default());
    let mut names = std::collections::BTreeSet::new();
    let mut sink = |event: Event| {
        if let What::Switch { next, .. } = &event.what {
            names.insert(next.name.to_string());
        }
        checker.event(&event);
    };
    let traced = run_traced(&scenario, policy.as_mut(), &mut sink);
    let report = checker.finish(scenario.length);
    assert_eq!(report.verdict, Verdict::Clean, "{}", report.verdict_reason);
    for name in ["web", "collector", "compiler", "crawler", "kworker"] {
        assert!(names.contains(name), "{name} is not among {names:?}");
    }
    let mut policy = by_name("quell", scenario.host.clone(), config).unwrap();
    assert_eq!(run(&scenario, policy.as_mut()), traced, "a trace changes nothing");
}
