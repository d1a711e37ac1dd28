//! The simulator against the host: the one-core co-location of `quell bench colocate` in both.
//!
//! Every parameter of the simulated host is measured on the real one by another benchmark, or is the workload model's; none is
//! fitted to what is compared. The report tells each with where it is from.

use anyhow::{Context as _, Result};
use quell_sim::file::Simulation;
use quell_sim::{Report, Scenario};

use crate::simulate;
use quell_report::BenchReport;
use quell_terminal::{Progress, Stop};

/// The scenario, with its parameters left open.
const SCENARIO: &str = include_str!("simhost.toml");
/// Batch work, and how many threads it has. One managed core leaves memory and caches nothing to do.
const CASES: [(&str, u32); 3] = [("stream", 1), ("hog", 4), ("gc", 1)];
const SYSTEMS: [&str; 4] = ["quell", "static", "sched-idle", "linux-default"];
const METRICS: [&str; 5] =
    ["lc_p50_us", "lc_p99_us", "lc_p999_us", "lc_cpu_share", "be_share_of_alone"];
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

impl Parameters {
    fn new(colocate: &BenchReport, mechanism: &BenchReport) -> Result<Parameters> {
        let median = |report: &BenchReport, case: &str, system: &str, metric: &str| {
            let row = report.row(case, system, metric);
            row.map(|row| row.median).with_context(|| {
                format!("the report of `{}` has no {case}, {system}, {metric}", report.bench)
            })
        };
        let load = |metric| median(colocate, "load", "memcached", metric);
        let service_ns = 1e9 / load("peak_rps")?;
        let switch_ns = load("switch_us")? * 1e3 / 2.0;
        let woken = median(mechanism, "wake over SCHED_IDLE", "futex", "delay_ns_p50")?;
        let curve = colocate.curves.iter().find(|curve| curve.system == "alone-idle-poll");
        let fastest = curve.and_then(|curve| curve.points.first()).map(|(_, us)| *us);
        let fastest =
            fastest.context("the report of `colocate` has no curve of alone-idle-poll")?;
        Ok(Parameters {
            rate: load("offered_rps")?,
            service_ns,
            switch_ns,
            wake_ns: (woken - switch_ns).max(0.0),
            rights_ns: median(mechanism, "preempt", "setscheduler", "delay_ns_p50")?,
            path_us: (fastest - service_ns / 1e3).max(0.0),
        })
    }

    fn notes(&self) -> Vec<String> {
        let Parameters { rate, service_ns, wake_ns, switch_ns, rights_ns, path_us } = self;
        vec![
            format!("{rate:.0} requests a second: offered in `colocate`"),
            format!(
                "service time {service_ns:.0} ns: one by the peak rate that `colocate` found; lognormal with sigma 0.25 as the model `memcached` (assumed)"
            ),
            format!(
                "switch {switch_ns:.0} ns: half of what `colocate` measured for one to the service and back"
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
    fn with_costly_wakes(&self, colocate: &BenchReport, case: &str) -> Result<Parameters> {
        let alone = |metric: &str| {
            let row = colocate.row(case, "alone-idle-poll", metric);
            row.map(|row| row.median)
                .with_context(|| format!("no {metric} of {case}, alone-idle-poll"))
        };
        let beyond = alone("lc_cpu_share")? - self.rate * self.service_ns / 1e9;
        let cost_ns = 1e9 * beyond / alone("wakes_per_s")?.max(1.0);
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
        Ok(Simulation::parse(&text, "simhost.toml", "colocate", &none)?)
    }
}

/// Simulates what `colocate` measured, as many seeds as it has rounds, and puts both beside each other.
///
/// # Errors
/// When a report lacks a figure, or a stop was asked for.
pub fn run(
    command: &str,
    colocate: &BenchReport,
    mechanism: &BenchReport,
    progress: &mut dyn Progress,
    stop: &Stop,
) -> Result<BenchReport> {
    let mut report = BenchReport::new("sim-host", command);
    let parameters = Parameters::new(colocate, mechanism)?;
    report.notes = parameters.notes();
    for (at, (case, threads)) in CASES.iter().enumerate() {
        let costly = parameters.with_costly_wakes(colocate, case)?;
        report.notes.push(format!(
            "{COSTLY}, {case}: a switch of {:.0} ns, so that a wake-up costs the core what it does where the service is alone (alone-idle-poll)",
            costly.switch_ns
        ));
        for (nth, system) in SYSTEMS.iter().enumerate() {
            progress.step(at * SYSTEMS.len() + nth, CASES.len() * SYSTEMS.len(), case);
            let rows = METRICS.map(|metric| colocate.row(case, system, metric));
            let rounds = rows.iter().flatten().map(|row| row.raw.len()).max().unwrap_or(0);
            let name = format!("{case}, {system}");
            for (metric, row) in METRICS.iter().zip(&rows) {
                let Some(row) = row else { continue };
                report.push(&name, HOST, metric, row.raw.clone());
            }
            for (side, parameters) in [(SIMULATOR, &parameters), (COSTLY, &costly)] {
                let simulated = simulate_rounds(parameters, (*threads, system), rounds, stop)?;
                for (metric, row) in rows.iter().enumerate() {
                    let Some(row) = row else { continue };
                    let of: Vec<f64> = simulated.iter().map(|figures| figures[metric]).collect();
                    report.compare(&name, (side, &of), (HOST, &row.raw), METRICS[metric]);
                    report.push(&name, side, METRICS[metric], of);
                }
            }
        }
    }
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

    fn committed(name: &str) -> BenchReport {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/results");
        BenchReport::read(&std::path::Path::new(folder).join(name)).unwrap()
    }

    #[test]
    fn the_parameters_come_from_the_reports_and_the_scenario_runs() {
        let (colocate, mechanism) = (committed("colocate.json"), committed("mechanism.json"));
        let parameters = Parameters::new(&colocate, &mechanism).unwrap();
        assert!(parameters.wake_ns > 1_000.0 && parameters.service_ns > 1_000.0);
        let costly = parameters.with_costly_wakes(&colocate, "stream").unwrap();
        assert!(costly.switch_ns > parameters.switch_ns && costly.rate == parameters.rate);
        for system in SYSTEMS {
            let Simulation { scenario, .. } = parameters.scenario(4, system, 1).unwrap();
            assert_eq!((scenario.tasks.len(), scenario.host.managed.len()), (2, 1));
        }
        assert!(Parameters::new(&mechanism, &colocate).is_err());
    }
}
