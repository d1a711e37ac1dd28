//! The simulator against the host: memcached at half of its peak beside batch work on one core, as `quell bench services`
//! measures it.
//!
//! Every parameter of the simulated host is measured on the real one by another benchmark, or is the workload model's; none is
//! fitted to what is compared. The report tells each with where it is from.

mod stops;

use anyhow::{Context as _, Result};
use quell_sim::file::Simulation;
use quell_sim::{Report, Scenario};

use crate::simulate;
use quell_report::{BenchReport, LOAD_CASE, Row};
use quell_terminal::{Progress, Stop};

/// The scenario, with its parameters left open.
const SCENARIO: &str = include_str!("simhost.toml");
/// Batch work, and how many threads it has. One managed core leaves memory and caches nothing to do.
const CASES: [(&str, u32); 2] = [("hog", 4), ("gc", 1)];
/// Systems of the host with the policies that simulate them: FIFO by the roles of threads is what `static` gives once.
const SYSTEMS: [(&str, &str); 4] = [
    ("quell", "quell"),
    ("fifo", "static"),
    ("sched-idle", "sched-idle"),
    ("linux-default", "linux-default"),
];
const METRICS: [&str; 5] =
    ["p50_us_raw", "p99_us_raw", "p999_us_raw", "service_cpu", "batch_of_alone"];
const SERVICE: &str = "memcached";
const BASE: &str = "alone-idle-poll";
/// The names of both sides in the report.
const HOST: &str = "host";
const SIMULATOR: &str = "simulator";
/// The experiment: one constant changed, which explains what differs.
const COSTLY: &str = "simulator, costly wake-ups";

/// What the simulated host takes from the real one.
struct Parameters {
    rate: f64,
    service_ns: f64,
    wake_ns: f64,
    switch_ns: f64,
    rights_ns: f64,
    path_us: f64,
}

/// Reports of the host.
pub struct Measured {
    /// `quell bench services`, with memcached at half of its peak beside `hog` and `gc`.
    pub services: BenchReport,
    /// `quell bench mechanism`.
    pub mechanism: BenchReport,
    /// `quell bench overhead`.
    pub overhead: BenchReport,
}

impl Measured {
    /// The row of a system beside a kind of batch work.
    fn row(&self, batch: &str, system: &str, metric: &str) -> Option<&Row> {
        self.services.row(&format!("{SERVICE}-50-{batch}"), system, metric)
    }

    fn base(&self, batch: &str, metric: &str) -> Result<f64> {
        let row = self.row(batch, BASE, metric).map(|row| row.median);
        row.with_context(|| format!("`services` has no {metric} of {SERVICE}-50-{batch}, {BASE}"))
    }
}

impl Parameters {
    fn new(measured: &Measured) -> Result<Parameters> {
        let median = |report: &BenchReport, case: &str, system: &str, metric: &str| {
            let row = report.row(case, system, metric);
            row.map(|row| row.median).with_context(|| {
                format!("the report of `{}` has no {case}, {system}, {metric}", report.bench)
            })
        };
        let Measured { services, mechanism, overhead } = measured;
        let service_ns = 1e9 / median(services, LOAD_CASE, SERVICE, "peak_rps")?;
        let switch_ns = median(overhead, "switch", "no programs", "switch_us")? * 1e3 / 2.0;
        let woken = median(mechanism, "wake over SCHED_IDLE", "futex", "delay_ns_p50")?;
        Ok(Parameters {
            rate: measured.base(CASES[0].0, "offered_rps")?,
            service_ns,
            switch_ns,
            wake_ns: (woken - switch_ns).max(0.0),
            rights_ns: median(mechanism, "preempt", "setscheduler", "delay_ns_p50")?,
            path_us: (measured.base(CASES[0].0, "min_us_raw")? - service_ns / 1e3).max(0.0),
        })
    }

    fn notes(&self) -> Vec<String> {
        let Parameters { rate, service_ns, wake_ns, switch_ns, rights_ns, path_us } = self;
        vec![
            format!("{rate:.0} requests a second: offered in `services`"),
            format!(
                "service time {service_ns:.0} ns: one by the peak rate that `services` found; lognormal with sigma 0.25 as the model `memcached` (assumed)"
            ),
            format!(
                "switch {switch_ns:.0} ns: half of what `overhead` measured for one to a thread and back"
            ),
            format!(
                "wake-up {wake_ns:.0} ns: `mechanism`, wake over SCHED_IDLE with a futex (median), less the switch"
            ),
            format!("actions {rights_ns:.0} ns: `mechanism`, preempt with setscheduler (median)"),
            format!(
                "{path_us:.1} us on top of each simulated latency, for the client and the loopback: the fastest answer of alone-idle-poll less the service time"
            ),
        ]
    }

    /// With wake-ups that cost the core what they cost the host: as a switch to the service and back, which is all that
    /// the simulator knows. What it is follows from the service alone on its core, which is none of the compared cases:
    /// its processor time beyond its requests' at the peak rate, by how often it was woken.
    fn with_costly_wakes(&self, measured: &Measured, batch: &str) -> Result<Parameters> {
        let busy = measured.base(batch, "service_cpu")?;
        let beyond = busy - self.rate * self.service_ns / 1e9;
        let cost_ns = 1e9 * beyond / measured.base(batch, "wakes_per_s")?.max(1.0);
        Ok(Parameters { switch_ns: self.switch_ns.max(cost_ns / 2.0), ..*self })
    }

    fn scenario(&self, threads: u32, system: &str, seed: usize) -> Result<Simulation> {
        let values = [
            ("POLICY", system.to_owned()),
            ("SEED", seed.to_string()),
            ("RATE", (self.rate as u64).to_string()),
            ("SERVICE_NS", (self.service_ns as u64).to_string()),
            ("WAKE_NS", (self.wake_ns as u64).to_string()),
            ("SWITCH_NS", (self.switch_ns as u64).to_string()),
            ("RIGHTS_NS", (self.rights_ns as u64).to_string()),
            ("THREADS", threads.to_string()),
        ];
        let text = values.iter().fold(SCENARIO.to_owned(), |text, (name, value)| {
            text.replace(&format!("${name}"), value)
        });
        let none = |name: &str| unreachable!("{name}: the scenario names no file");
        Ok(Simulation::parse(&text, "simhost.toml", "services", &none)?)
    }
}

/// Simulates what `services` measured, as many seeds as it has rounds, and puts both beside each other.
///
/// # Errors
/// When a report lacks a figure, or a stop was asked for.
pub fn run(
    command: &str,
    measured: &Measured,
    progress: &mut dyn Progress,
    stop: &Stop,
) -> Result<BenchReport> {
    let mut report = BenchReport::new("sim-host", command);
    let parameters = Parameters::new(measured)?;
    report.notes = parameters.notes();
    let absent = CASES.iter().filter(|(case, _)| measured.row(case, BASE, "service_cpu").is_none());
    let absent =
        absent.map(|(case, _)| format!("{case}: not simulated, `services` did not measure it"));
    report.notes.extend(absent);
    let was_measured = |(case, _): &&(&str, u32)| measured.row(case, BASE, "service_cpu").is_some();
    for (at, (case, threads)) in CASES.iter().filter(was_measured).enumerate() {
        let costly = parameters.with_costly_wakes(measured, case)?;
        report.notes.push(format!(
            "{COSTLY}, {case}: a switch of {:.0} ns, so that a wake-up costs the core what it does where the service is alone (alone-idle-poll)",
            costly.switch_ns
        ));
        for (nth, (system, policy)) in SYSTEMS.iter().enumerate() {
            progress.step(at * SYSTEMS.len() + nth, CASES.len() * SYSTEMS.len(), case);
            let rows = METRICS.map(|metric| measured.row(case, system, metric));
            let rounds = rows.iter().flatten().map(|row| row.raw.len()).max().unwrap_or(0);
            let name = format!("{case}, {system}");
            for (metric, row) in METRICS.iter().zip(&rows) {
                let Some(row) = row else { continue };
                report.push(&name, HOST, metric, row.raw.clone());
            }
            for (side, parameters) in [(SIMULATOR, &parameters), (COSTLY, &costly)] {
                let simulated = simulate_rounds(parameters, (*threads, policy), rounds, stop)?;
                for (metric, row) in rows.iter().enumerate() {
                    let Some(row) = row else { continue };
                    let of: Vec<f64> = simulated.iter().map(|figures| figures[metric]).collect();
                    report.compare(&name, (side, &of), (HOST, &row.raw), METRICS[metric]);
                    report.push(&name, side, METRICS[metric], of);
                }
            }
        }
    }
    stops::measure(&mut report, stop)?;
    Ok(report)
}

/// The figures of one case under one system, with a seed for each round.
fn simulate_rounds(
    parameters: &Parameters,
    (threads, system): (u32, &str),
    rounds: usize,
    stop: &Stop,
) -> Result<Vec<[f64; METRICS.len()]>> {
    let round = |seed: usize| {
        stop.check()?;
        let simulation = parameters.scenario(threads, system, seed + 1)?;
        let mut policy = simulate::policy(&simulation)?;
        let came = quell_sim::run(&simulation.scenario, policy.as_mut());
        Ok(figures(&simulation.scenario, &came, parameters.path_us))
    };
    (0..rounds).map(round).collect()
}

/// In the order of [`METRICS`].
fn figures(scenario: &Scenario, report: &Report, path_us: f64) -> [f64; METRICS.len()] {
    let (service, batch) = (&report.tasks[0], &report.tasks[1]);
    let tail = |per_mille| service.percentile(per_mille).0 as f64 / 1e3 + path_us;
    let counted = scenario.length - scenario.warm_up;
    [
        tail(500),
        tail(990),
        tail(999),
        service.ran.0 as f64 / scenario.length.0 as f64,
        batch.work.0 as f64 / counted.0 as f64,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the benchmarks would report of a host.
    fn measured() -> Measured {
        let mut services = BenchReport::new("services", "quell bench services");
        services.push(LOAD_CASE, SERVICE, "peak_rps", vec![80_000.0]);
        for (batch, _) in CASES {
            let cell = format!("{SERVICE}-50-{batch}");
            for (metric, value) in [
                ("offered_rps", 40_000.0),
                ("min_us_raw", 20.0),
                ("service_cpu", 0.75),
                ("wakes_per_s", 15_000.0),
            ] {
                services.push(&cell, BASE, metric, vec![value]);
            }
            for (system, _) in SYSTEMS {
                METRICS.iter().for_each(|metric| services.push(&cell, system, metric, vec![0.5]));
            }
        }
        let mut mechanism = BenchReport::new("mechanism", "quell bench mechanism");
        mechanism.push("wake over SCHED_IDLE", "futex", "delay_ns_p50", vec![11_000.0]);
        mechanism.push("preempt", "setscheduler", "delay_ns_p50", vec![15_000.0]);
        let mut overhead = BenchReport::new("overhead", "quell bench overhead");
        overhead.push("switch", "no programs", "switch_us", vec![4.0]);
        Measured { services, mechanism, overhead }
    }

    #[test]
    fn the_parameters_come_from_the_reports_and_the_scenario_runs() {
        let measured = measured();
        let parameters = Parameters::new(&measured).unwrap();
        assert_eq!((parameters.service_ns, parameters.switch_ns), (12_500.0, 2_000.0));
        assert_eq!((parameters.wake_ns, parameters.path_us), (9_000.0, 7.5));
        // (0.75 - 0.5) of a core by 15,000 wake-ups: 16.7 us each.
        let costly = parameters.with_costly_wakes(&measured, "gc").unwrap();
        assert!((costly.switch_ns - 8_333.3).abs() < 1.0 && costly.rate == parameters.rate);
        for (_, policy) in SYSTEMS {
            let Simulation { scenario, .. } = parameters.scenario(4, policy, 1).unwrap();
            assert_eq!((scenario.tasks.len(), scenario.host.managed.len()), (2, 1));
        }
    }

    #[test]
    fn both_sides_of_every_case_are_reported() {
        let stop = Stop::default();
        let silent = &mut quell_terminal::Silent;
        let report = run("quell bench sim-host", &measured(), silent, &stop).unwrap();
        let is_compared = |case: &&str| !case.starts_with("fair server");
        let cases: Vec<&str> = report.cases().into_iter().filter(is_compared).collect();
        assert_eq!(cases.len(), CASES.len() * SYSTEMS.len());
        for case in cases {
            for side in [HOST, SIMULATOR, COSTLY] {
                assert!(report.row(case, side, "batch_of_alone").is_some(), "{case}, {side}");
            }
        }
    }

    #[test]
    fn a_figure_that_is_missing_is_named() {
        let mut lacking = measured();
        lacking.overhead.rows.clear();
        let error = Parameters::new(&lacking).err().unwrap().to_string();
        assert!(error.contains("`overhead` has no switch"), "{error}");
    }
}
