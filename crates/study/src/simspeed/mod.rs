//! How fast the simulator is: events a second on one core, simulated seconds a second, memory, against others.
//!
//! The toy model is a queue with several servers: Poisson arrivals, exponential service, no policy to speak of. All simulators
//! count the same two events a request, its arrival and its end, whatever else they do inside. Each simulation is a process
//! of its own, so that its memory is its own as well.

mod guest;
mod measure;
mod peers;

use std::path::PathBuf;

use anyhow::{Context as _, Result};

pub use measure::{Cost, measure};
use quell_report::BenchReport;
use quell_terminal::{Progress, Stop};

/// How `quell bench sim` runs.
pub struct SimSpeedSpec {
    /// The command as typed.
    pub command: String,
    /// The program `quell`, which simulates.
    pub quell: PathBuf,
    /// Rounds of all cases.
    pub rounds: usize,
    /// Hosts by number of cores.
    pub cores: Vec<usize>,
    /// How much of the toy model and of each host is simulated, in milliseconds.
    pub toy_ms: u64,
    /// As `toy_ms`.
    pub host_ms: u64,
    /// As `toy_ms`, of the paper's database.
    pub database_ms: u64,
    /// The Python that has the other simulators.
    pub python: PathBuf,
    /// `scripts/vm/recipe.sh`, which runs a recipe in a virtual machine; `None`: not measured.
    pub guest: Option<PathBuf>,
}

/// The toy model: servers, mean time between requests and mean service time in microseconds.
const TOY: (usize, f64, f64) = (10, 1.25, 10.0);

/// The workload whose speed is a target: 64 cores of Linux 4.1, and workers that wait for each other.
const TPCH: &str = include_str!("../../../../examples/sim/wasted-cores-tpch.toml");

/// The rows of the simulator with one queue for all cores, with Linux's queues, and with a trace that the checker reads.
const GLOBAL: &str = "quell";
const LINUX: &str = "quell, linux-6.12";
const CHECKED: &str = "quell, traced and checked";

/// A scenario to measure.
struct Case {
    name: String,
    /// The name of its rows.
    system: &'static str,
    scenario: String,
    /// Two events a request, as others count them, instead of the simulator's own.
    counts_requests: bool,
}

impl Case {
    fn events(&self, cost: &Cost) -> f64 {
        match self.counts_requests {
            true => 2.0 * cost.answered as f64,
            false => cost.events as f64,
        }
    }
}

/// Measures.
///
/// # Errors
/// When a scenario cannot be simulated, or a stop was asked for.
pub fn run(spec: &SimSpeedSpec, progress: &mut dyn Progress, stop: &Stop) -> Result<BenchReport> {
    let mut report = BenchReport::new("sim", &spec.command);
    let hosts =
        Load::ALL.iter().flat_map(|load| spec.cores.iter().map(|cores| host(spec, *cores, *load)));
    let cases: Vec<Case> = [toy(spec)].into_iter().chain(database(spec)).chain(hosts).collect();
    let steps = spec.rounds * cases.len();
    let mut costs: Vec<Vec<Cost>> = vec![Vec::new(); cases.len()];
    for round in 0..spec.rounds {
        for (at, case) in cases.iter().enumerate() {
            stop.check()?;
            progress.step(round * cases.len() + at, steps, &case.name);
            let cost = measure::apart(&spec.quell, &case.scenario, case.system == CHECKED);
            costs[at].push(cost.with_context(|| case.name.clone())?);
        }
    }
    progress.step(steps, steps, "done");
    let costs_of = &costs;
    for (case, costs) in cases.iter().zip(costs_of) {
        put(&mut report, case, costs);
        // The same requests take so many times as long as with one queue.
        let global = cases.iter().position(|it| it.name == case.name && it.system == GLOBAL);
        if let Some(global) = global.filter(|_| case.system != GLOBAL) {
            let took = |costs: &[Cost]| costs.iter().map(|cost| cost.took_s).collect::<Vec<f64>>();
            let (ours, theirs) = (took(costs), took(&costs_of[global]));
            report.compare(&case.name, (case.system, &ours), (GLOBAL, &theirs), "took_s");
        }
    }
    if let (Some(case), Some(costs)) = (cases.first(), costs.first()) {
        peers::compare(spec, &mut report, case, costs, stop)?;
    }
    guest::compare(spec, &mut report, progress, stop)?;
    Ok(report)
}

fn put(report: &mut BenchReport, case: &Case, costs: &[Cost]) {
    let mut push = |metric: &str, value: &dyn Fn(&Cost) -> f64| {
        report.push(&case.name, case.system, metric, costs.iter().map(value).collect());
    };
    push("events_per_s", &|cost| case.events(cost) / cost.took_s);
    push("simulated_s_per_s", &|cost| cost.simulated_s / cost.took_s);
    push("took_s", &|cost| cost.took_s);
    push("decisions_per_s", &|cost| cost.decisions as f64 / cost.took_s);
    push("peak_memory_mb", &|cost| cost.peak_mb);
    push("simulation_memory_mb", &|cost| cost.peak_mb - cost.before_mb);
}

fn toy(spec: &SimSpeedSpec) -> Case {
    let (servers, gap, service) = TOY;
    let scenario = format!(
        "version = 1\nlength_ms = {}\nwarm_up_ms = 0\nsample_us = 60000000\n[machine]\nphysical = {}\n\
         [host]\npolicy = \"static\"\ntick_us = 1000\nmemory_counters = false\n\
         costs = {{ switch_ns = 0, migrate_ns = 0 }}\n\
         [[task]]\nname = \"toy\"\nmodel = \"service\"\nguaranteed = {servers}\nrate = {}\n\
         service = {{ distribution = \"exponential\", mean_ns = {} }}\n",
        spec.toy_ms,
        servers + 1,
        (1e6 / gap) as u64,
        (service * 1e3) as u64,
    );
    let name = "toy queue, 10 servers".to_owned();
    Case { name, system: GLOBAL, scenario, counts_requests: true }
}

/// The database of the paper, alone, and with a trace that the checker reads.
fn database(spec: &SimSpeedSpec) -> [Case; 2] {
    let scenario = TPCH
        .replace("length_ms = 20000", &format!("length_ms = {}", spec.database_ms))
        .replace("length_permille = 50", "length_permille = 2000");
    [GLOBAL, CHECKED].map(|system| Case {
        name: "64 cores of Linux 4.1, TPC-H".to_owned(),
        system,
        scenario: scenario.clone(),
        counts_requests: false,
    })
}

/// What the simulated hosts serve, beside streams on all cores that are left, with decisions every 10 us.
#[derive(Clone, Copy)]
enum Load {
    /// memcached and Silo: 60,000 requests of 1.25 us and 6,000 of 20 us a second and core. Requests are what costs.
    Short,
    /// Silo alone: 10,000 requests of 20 us a second and core, which keeps a fifth of the cores busy. Decisions are
    /// what costs.
    Long,
    /// The same requests on a stock kernel that shares cores, under a policy that asks for no tick: it is asked when tasks or
    /// cores change.
    OnChange,
    /// The same on Linux 6.12 with a queue for each core.
    OnLinux,
}

impl Load {
    const ALL: [Load; 4] = [Load::Short, Load::Long, Load::OnChange, Load::OnLinux];

    fn case(self, cores: usize) -> String {
        match self {
            Load::Short => format!("{cores} cores, 66,000 requests/s a core"),
            Load::Long => format!("{cores} cores, 10,000 requests/s a core"),
            Load::OnChange | Load::OnLinux => {
                format!("{cores} cores, 10,000 requests/s a core, decisions on change")
            }
        }
    }

    fn services(self, cores: usize) -> String {
        let silo = |rate: usize, guaranteed: usize| {
            format!(
                "[[task]]\nname = \"silo\"\nmodel = \"silo\"\nrate = {}\nguaranteed = {guaranteed}\n\
                 sibling_idle_after_us = 25\nquantum_us = 0\n",
                cores * rate
            )
        };
        match self {
            Load::Short => format!(
                "[[task]]\nname = \"memcached\"\nmodel = \"memcached\"\nrate = {}\nguaranteed = {}\nquantum_us = 0\n{}",
                cores * 60_000,
                cores / 4,
                silo(6_000, cores / 4)
            ),
            Load::Long | Load::OnChange | Load::OnLinux => silo(10_000, cores / 2),
        }
    }

    /// Who decides, when, and whether the kernel shares cores.
    fn host(self) -> &'static str {
        match self {
            Load::Short | Load::Long => "policy = \"caladan\"\ntick_us = 10",
            Load::OnChange => "policy = \"static\"\ncores = \"shared\"\ntick_us = 10",
            Load::OnLinux => {
                "policy = \"static\"\ncores = \"shared\"\ntick_us = 10\n[kernel]\nmodel = \"linux-6.12\""
            }
        }
    }
}

fn host(spec: &SimSpeedSpec, cores: usize, load: Load) -> Case {
    let physical = (cores / 2).max(1);
    let nodes = (physical / 25).max(1);
    let scenario = format!(
        "version = 1\nlength_ms = {}\nwarm_up_ms = 0\n[machine]\nnodes = {nodes}\nphysical = {}\nsmt = 2\n\
         cache_mb = 60\nmemory_mb_s = 100000\n[host]\n{}\n{}\
         [[task]]\nname = \"streamcluster\"\nmodel = \"streamcluster\"\n",
        spec.host_ms,
        physical / nodes,
        load.host(),
        load.services(cores),
    );
    let system = if matches!(load, Load::OnLinux) { LINUX } else { GLOBAL };
    Case { name: load.case(cores), system, scenario, counts_requests: false }
}

#[cfg(test)]
mod tests {
    use quell_sim::file::Simulation;

    use super::*;

    #[test]
    fn every_host_can_be_simulated_and_one_decides_on_change_alone() {
        let spec = SimSpeedSpec {
            command: String::new(),
            quell: PathBuf::new(),
            rounds: 1,
            cores: Vec::new(),
            toy_ms: 1,
            host_ms: 2,
            database_ms: 2,
            python: PathBuf::new(),
            guest: None,
        };
        let mut decisions = Vec::new();
        for load in Load::ALL {
            let case = host(&spec, 24, load);
            let other = |_: &str| unreachable!("it names no file");
            let simulation = Simulation::parse(&case.scenario, "x.toml", "x", &other).unwrap();
            let mut policy = simulation.driver().unwrap();
            let report = quell_sim::run(&simulation.scenario, policy.as_mut());
            assert!(report.tasks.iter().all(|task| task.ran.0 > 0), "{}", case.name);
            assert_eq!(report.broken, [], "{}", case.name);
            decisions.push((load, report.ticks));
        }
        let ticks = spec.host_ms * 100;
        for (load, made) in decisions {
            match load {
                Load::Short | Load::Long => assert_eq!(made, ticks + 1),
                Load::OnChange | Load::OnLinux => assert!(made < ticks, "{made} of {ticks}"),
            }
        }
    }
}
