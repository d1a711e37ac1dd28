//! How fast the simulator is: events a second on one core, simulated seconds a second, memory, against others.
//!
//! The toy model is a queue with several servers: Poisson arrivals, exponential service, no policy to speak of. All simulators
//! count the same two events a request, its arrival and its end, whatever else they do inside.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result};
use quell_model::Nanos;
use quell_sim::file::Simulation;
use quell_sim::{Report, Scenario};

use crate::simulate;
use crate::{BenchReport, Progress, Stop};

/// How `quell bench sim` runs.
pub struct SimSpeedSpec {
    /// The command as typed.
    pub command: String,
    /// Rounds of all cases.
    pub rounds: usize,
    /// Hosts by number of cores.
    pub cores: Vec<usize>,
    /// How much of the toy model and of each host is simulated, in milliseconds.
    pub toy_ms: u64,
    /// As `toy_ms`.
    pub host_ms: u64,
    /// The Python that has the other simulators.
    pub python: String,
}

/// The toy model: servers, mean time between requests and mean service time in microseconds.
const TOY: (usize, f64, f64) = (10, 1.25, 10.0);
const PEERS: [(&str, &str); 2] =
    [("simpy", include_str!("simpy.py")), ("salabim", include_str!("salabim.py"))];

/// Measures.
///
/// # Errors
/// When a scenario cannot be simulated, or a stop was asked for.
pub fn run(spec: &SimSpeedSpec, progress: &mut dyn Progress, stop: &Stop) -> Result<BenchReport> {
    let mut report = BenchReport::new("sim", &spec.command);
    let hosts: Vec<(usize, Load)> =
        Load::ALL.iter().flat_map(|load| spec.cores.iter().map(|cores| (*cores, *load))).collect();
    let steps = spec.rounds * (1 + hosts.len());
    let mut rounds = Vec::new();
    for round in 0..spec.rounds {
        stop.check()?;
        progress.step(round * (1 + hosts.len()), steps, "toy model");
        let mut measured = vec![toy(spec)?];
        for (at, (cores, load)) in hosts.iter().enumerate() {
            stop.check()?;
            progress.step(round * (1 + hosts.len()) + 1 + at, steps, &load.case(*cores));
            measured.push(host(spec, *cores, *load)?);
        }
        rounds.push(measured);
    }
    progress.step(steps, steps, "done");
    put(&mut report, &rounds);
    if let Err(why) = peers(spec, &mut report, &rounds) {
        report.notes.push(format!("{why:#}"));
    }
    Ok(report)
}

/// What one simulation cost.
#[derive(Clone)]
struct Measured {
    case: String,
    events: f64,
    simulated_s: f64,
    took_s: f64,
    memory_mb: f64,
    decisions: f64,
    mean_us: f64,
}

fn put(report: &mut BenchReport, rounds: &[Vec<Measured>]) {
    let cases = rounds.first().map_or(0, Vec::len);
    for at in 0..cases {
        let mut push = |metric: &str, value: fn(&Measured) -> f64| {
            let values = rounds.iter().map(|round| value(&round[at])).collect();
            report.push(&rounds[0][at].case, "quell", metric, values);
        };
        push("events_per_s", |it| it.events / it.took_s);
        push("simulated_s_per_s", |it| it.simulated_s / it.took_s);
        push("decisions_per_s", |it| it.decisions / it.took_s);
        push("peak_memory_mb", |it| it.memory_mb);
    }
}

fn toy(spec: &SimSpeedSpec) -> Result<Measured> {
    let (servers, gap, service) = TOY;
    let text = format!(
        "version = 1\nlength_ms = {}\nwarm_up_ms = 0\nsample_us = 60000000\n[machine]\nphysical = {}\n\
         [host]\npolicy = \"static\"\ntick_us = 1000\ncounts_memory = false\n\
         costs = {{ switch_ns = 0, migrate_ns = 0 }}\n\
         [[task]]\nname = \"toy\"\nmodel = \"service\"\nguaranteed = {servers}\nrate = {}\n\
         service = {{ distribution = \"exponential\", mean_ns = {} }}\n",
        spec.toy_ms,
        servers + 1,
        (1e6 / gap) as u64,
        (service * 1e3) as u64,
    );
    simulated("toy queue, 10 servers", &text, |report, _| 2.0 * report.tasks[0].answered as f64)
}

/// What the simulated hosts serve, beside streams on all cores that are left, with decisions every 10 us.
#[derive(Clone, Copy)]
enum Load {
    /// memcached and Silo: 60,000 requests of 1.25 us and 6,000 of 20 us a second and core. Requests are what costs.
    Short,
    /// Silo alone: 10,000 requests of 20 us a second and core, which keeps a fifth of the cores busy. Decisions are
    /// what costs.
    Long,
}

impl Load {
    const ALL: [Load; 2] = [Load::Short, Load::Long];

    fn case(self, cores: usize) -> String {
        match self {
            Load::Short => format!("{cores} cores, 66,000 requests/s a core"),
            Load::Long => format!("{cores} cores, 10,000 requests/s a core"),
        }
    }

    fn services(self, cores: usize) -> String {
        let silo = |rate: usize, guaranteed: usize| {
            format!(
                "[[task]]\nname = \"silo\"\nmodel = \"silo\"\nrate = {}\nguaranteed = {guaranteed}\n\
                 sibling_after_us = 25\n",
                cores * rate
            )
        };
        match self {
            Load::Short => format!(
                "[[task]]\nname = \"memcached\"\nmodel = \"memcached\"\nrate = {}\nguaranteed = {}\n{}",
                cores * 60_000,
                cores / 4,
                silo(6_000, cores / 4)
            ),
            Load::Long => silo(10_000, cores / 2),
        }
    }
}

fn host(spec: &SimSpeedSpec, cores: usize, load: Load) -> Result<Measured> {
    let physical = (cores / 2).max(1);
    let nodes = (physical / 25).max(1);
    let text = format!(
        "version = 1\nlength_ms = {}\nwarm_up_ms = 0\n[machine]\nnodes = {nodes}\nphysical = {}\nsmt = 2\n\
         cache_mb = 60\nmemory_mb_s = 100000\n[host]\npolicy = \"caladan\"\ntick_us = 10\n{}\
         [[task]]\nname = \"streamcluster\"\nmodel = \"streamcluster\"\n",
        spec.host_ms,
        physical / nodes,
        load.services(cores),
    );
    simulated(&load.case(cores), &text, |report, _| report.events as f64)
}

fn simulated(case: &str, text: &str, events: fn(&Report, &Scenario) -> f64) -> Result<Measured> {
    let none = |name: &str| unreachable!("{name}: the scenario names no file");
    let simulation = Simulation::parse(text, case, case, &none)?;
    let mut policy = simulate::policy(&simulation)?;
    let scenario = &simulation.scenario;
    reset_peak();
    let began = Instant::now();
    let report = quell_sim::run(scenario, policy.as_mut());
    let took_s = began.elapsed().as_secs_f64();
    let task = &report.tasks[0];
    Ok(Measured {
        case: case.to_owned(),
        events: events(&report, scenario),
        simulated_s: scenario.length.0 as f64 / 1e9,
        took_s,
        memory_mb: peak_mb(),
        decisions: report.ticks as f64,
        mean_us: mean_us(task.latency.mean()),
    })
}

fn mean_us(mean: Nanos) -> f64 {
    mean.0 as f64 / 1e3
}

/// Lets the kernel forget the largest memory of this process so far.
fn reset_peak() {
    // Without it the peak is that of the whole process: still an upper bound.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn peak_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kb = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kb.map_or(f64::NAN, |kb| kb / 1e3)
}

/// The same model in other simulators, in the same number of rounds.
fn peers(spec: &SimSpeedSpec, report: &mut BenchReport, rounds: &[Vec<Measured>]) -> Result<()> {
    let ours: Vec<f64> = rounds.iter().map(|round| round[0].events / round[0].took_s).collect();
    let case = &rounds[0][0].case;
    for (name, script) in PEERS {
        let mut rates = Vec::new();
        for _ in 0..spec.rounds {
            match peer(spec, script) {
                Ok((rate, mean)) => {
                    // Both means estimate that of the same queue.
                    let (one, other) = (mean, rounds[0][0].mean_us);
                    anyhow::ensure!(
                        (one / other - 1.0).abs() < 0.1,
                        "{name}: a mean latency of {one} us, not {other}: not the same model"
                    );
                    rates.push(rate);
                }
                Err(why) => {
                    report.notes.push(format!("{name} is not measured: {why:#}"));
                    break;
                }
            }
        }
        if rates.len() == spec.rounds {
            report.compare(case, ("quell", &ours), (name, &rates), "events_per_s");
            report.push(case, name, "events_per_s", rates);
        }
    }
    Ok(())
}

/// Events a second, and the mean latency in microseconds.
fn peer(spec: &SimSpeedSpec, script: &str) -> Result<(f64, f64)> {
    let (servers, gap, service) = TOY;
    // A tenth is enough: they are slower.
    let length = spec.toy_ms as f64 * 1e3 / 10.0;
    let arguments = [servers.to_string(), gap.to_string(), service.to_string(), length.to_string()];
    let mut command = Command::new(Path::new(&spec.python));
    let output = command.arg("-c").arg(script).args(arguments).output();
    let output = output.with_context(|| spec.python.clone())?;
    let error = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<f64> = text.split_whitespace().filter_map(|text| text.parse().ok()).collect();
    let [events, took, mean] = numbers[..] else {
        anyhow::bail!("{}", error.lines().last().unwrap_or("it printed nothing"));
    };
    Ok((events / took, mean))
}
