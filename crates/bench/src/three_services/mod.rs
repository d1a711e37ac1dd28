//! `quell bench three-services`: memcached, Redis and a Go server on one core, each with a load that steps at random, beside
//! busy loops.
//!
//! All three run with their defaults; Redis saves a snapshot every few seconds. Each has loads that take it between nearly
//! none and a quarter of the core, for one to four seconds each, independently of the others. The first has the core
//! guaranteed. Each round has three arms in an order drawn anew, with the same arrivals:
//!
//! * `alone-idle-poll`: all three as started, no batch work; a PAUSE loop in an idle group of its own keeps the core awake.
//! * `quell-without-batch`: Quell, the busy loops stopped, the same PAUSE loop.
//! * `quell`: beside busy loops.
//!
//! Goal: no service's tail is longer than twice what it is without batch work, in either arm. `make soak` runs it for twenty minutes.

mod report;
mod script;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use quell_load::{LoadSpec, Step};
use quell_model::{CoreSet, Nanos};
use quell_report::BenchReport;
use quell_terminal::{Progress, Stop};
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use self::report::Round;
pub use self::report::goals_missed;
use crate::host;
use crate::services::{
    Canaries, Definition, Offer, Service, System, answered_share, load, requests,
};
use crate::stage::{Place, Stage, nanos, share_between, tail};
use crate::stops::Windows;

/// The name of these reports.
pub const BENCH: &str = "three-services";
/// The services; the first has the core guaranteed, and its client spins.
const SERVICES: [&str; 3] = ["memcached", "redis", "go"];
/// Load before a measurement begins.
const WARMUP: Duration = Duration::from_millis(500);
/// How long the cost of a request is measured.
const CALIBRATION: Duration = Duration::from_secs(10);
/// While the keys are stored.
const PRELOAD: Duration = Duration::from_millis(100);

/// An arm of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arm {
    AloneIdlePoll,
    QuellWithoutBatch,
    Quell,
}

impl Arm {
    const ALL: [Arm; 3] = [Arm::AloneIdlePoll, Arm::QuellWithoutBatch, Arm::Quell];

    fn name(self) -> &'static str {
        match self {
            Arm::AloneIdlePoll => "alone-idle-poll",
            Arm::QuellWithoutBatch => "quell-without-batch",
            Arm::Quell => "quell",
        }
    }
}

/// A measured value, by its metric.
type Values = BTreeMap<String, f64>;

/// What a service showed in an arm of a round.
struct Measured {
    values: Values,
    /// Latencies, without what stops of the hypervisor met and all.
    counted: Vec<Nanos>,
    raw: Vec<Nanos>,
}

/// A run.
#[derive(Clone, Debug)]
pub struct ThreeServicesSpec {
    /// The command that makes the report again.
    pub command: String,
    /// Interleaved rounds.
    pub rounds: usize,
    /// Length of a measurement.
    pub length: Duration,
    /// Seed of loads, arrivals and orders.
    pub seed: u64,
    /// Cores and programs.
    pub place: Place,
}

/// Runs the benchmark.
///
/// # Errors
/// When a program cannot be started, the daemon does not restore the host, or a stop was asked for: after the measurement
/// under way. All that was started is ended in each case.
pub fn run(
    spec: &ThreeServicesSpec,
    progress: &mut dyn Progress,
    stop: &Stop,
) -> Result<BenchReport> {
    let _alone = host::alone(progress, stop)?;
    let mut quiet = host::Quiet::keep()?;
    // As in `quell bench overload`; for all arms, and for clients in a group without a real-time budget.
    quiet.allow_real_time()?;
    quiet.favour_softirqs(spec.place.client);
    let own = host::affinity(0).context("read the own affinity")?;
    host::pin(0, &CoreSet::of(spec.place.client)).context("leave the managed cores")?;
    let measured = measure_all(spec, progress, stop);
    host::pin(0, &own).context("take back the own affinity")?;
    let (costs, rounds) = measured?;
    let mut report = BenchReport::new(BENCH, &spec.command);
    report::fill(&mut report, &costs, &rounds);
    Ok(report)
}

fn measure_all(
    spec: &ThreeServicesSpec,
    progress: &mut dyn Progress,
    stop: &Stop,
) -> Result<(Vec<Nanos>, Vec<Round>)> {
    let place = &spec.place;
    let mut canaries = Canaries::start(&place.managed.union(&CoreSet::of(place.client)))?;
    let definition = |name| Definition::named(name).context("no such service");
    let definitions = SERVICES.into_iter().map(definition).collect::<Result<Vec<_>>>()?;
    progress.note(&format!("starting {}", SERVICES.join(", ")));
    let mut stage = Stage::start(place, &definitions, &mut canaries, stop)?;
    let silence = |_| vec![Step { rate_rps: 0.0, duration: nanos(PRELOAD) }];
    let stored = loads(&stage, spec.seed, true, silence)?;
    stage.under(System::AloneIdlePoll, stored, 0, |_| Ok(()))?;
    let mut costs = Vec::new();
    for (at, service) in SERVICES.into_iter().enumerate() {
        let cost = cost(&mut stage, at, spec.seed)?;
        progress.note(&format!("{service}: {cost} of CPU time a request"));
        costs.push(cost);
    }
    let mut rounds = Vec::new();
    for number in 0..spec.rounds {
        let what = format!("round {}", number + 1);
        progress.step(number, spec.rounds, &what);
        let round = one_round(spec, &mut stage, &costs, number);
        rounds.push(round.with_context(|| what)?);
    }
    progress.step(spec.rounds, spec.rounds, "done");
    Ok((costs, rounds))
}

/// The CPU time of a request at a rate at which the service is mostly asleep when it comes: what it answers at most says
/// less, since a server with a backlog answers many at once.
fn cost(stage: &mut Stage, at: usize, seed: u64) -> Result<Nanos> {
    let rate_rps = stage.services[at].definition.load.start_rps;
    let steps = |index| {
        let rate_rps = if index == at { rate_rps } else { 0.0 };
        vec![Step { rate_rps, duration: nanos(CALIBRATION) }]
    };
    let loads = loads(stage, seed, false, steps)?;
    // Snapshots come on top of it.
    let during = std::mem::take(&mut stage.services[at].definition.during);
    let before = stage.services[at].group.cpu_time()?;
    let seen = stage.under(System::AloneIdlePoll, loads, at, |_| Ok(()));
    let used = stage.services[at].group.cpu_time()? - before;
    stage.services[at].definition.during = during;
    let (seen, ()) = seen?;
    // The CPU time contains the warm-up, which has the same rate.
    let measured = (CALIBRATION + WARMUP).as_secs_f64() / CALIBRATION.as_secs_f64();
    let requests = seen.reports[at].overall.totals.answered as f64 * measured;
    ensure!(
        requests > 0.0 && used > Nanos::ZERO,
        "{} answered nothing in {CALIBRATION:?}; is its core free?",
        stage.services[at].definition.name
    );
    Ok(Nanos((used.0 as f64 / requests) as u64))
}

fn loads(
    stage: &Stage,
    seed: u64,
    preload: bool,
    steps: impl Fn(usize) -> Vec<Step>,
) -> Result<Vec<LoadSpec>> {
    let client = stage.client();
    let one = |(at, service): (usize, &Service)| {
        let offer = Offer {
            rate_rps: 0.0,
            duration: Duration::ZERO,
            warmup: WARMUP,
            seed: seed ^ at as u64,
            client,
            preload,
            shape: [1.0; 3],
            rests: None,
        };
        let load = load(service, &offer).context("a service without a protocol")?;
        Ok(LoadSpec { steps: steps(at), ..load })
    };
    stage.services.iter().enumerate().map(one).collect()
}

fn one_round(
    spec: &ThreeServicesSpec,
    stage: &mut Stage,
    costs: &[Nanos],
    number: usize,
) -> Result<Round> {
    let mut rng = ChaCha8Rng::seed_from_u64(spec.seed ^ ((number as u64) << 8));
    let seed = rng.random();
    let steps: Vec<Vec<Step>> =
        costs.iter().map(|cost| script::steps(*cost, spec.length, &mut rng)).collect();
    let mut order = Arm::ALL;
    order.shuffle(&mut rng);
    let mut round = Round::new();
    for arm in order {
        let loads = loads(stage, seed, false, |at| steps[at].clone())?;
        let values = measure(stage, arm, loads).with_context(|| arm.name())?;
        round.insert(arm.name(), values);
    }
    Ok(round)
}

/// What each service shows in an arm; batch work's share of the core is among the values of the first.
fn measure(stage: &mut Stage, arm: Arm, loads: Vec<LoadSpec>) -> Result<Vec<Measured>> {
    let cpu = |stage: &Stage| -> Result<Vec<Nanos>> {
        stage.services.iter().map(|service| service.group.cpu_time()).collect()
    };
    let before = cpu(stage)?;
    let (seen, ()) = match arm {
        Arm::AloneIdlePoll => stage.under(System::AloneIdlePoll, loads, 0, |_| Ok(()))?,
        Arm::QuellWithoutBatch => stage.without_batch(System::Quell, loads, 0, |_| Ok(()))?,
        Arm::Quell => stage.under(System::Quell, loads, 0, |_| Ok(()))?,
    };
    let used: Vec<Nanos> =
        cpu(stage)?.iter().zip(&before).map(|(after, before)| *after - *before).collect();
    let stops = seen.confirmed();
    let mut all = Vec::new();
    for (report, used) in seen.reports.iter().zip(used) {
        let mut values = Values::new();
        let mut put = |name: &str, value: f64| _ = values.insert(name.to_owned(), value);
        let asked = requests(report);
        tail(&asked, &stops, 0.99, "p99_us", &mut put);
        tail(&asked, &stops, 0.999, "p999_us", &mut put);
        put("served_share", answered_share(report));
        let totals = report.overall.totals;
        put("late_share", totals.late as f64 / (totals.scheduled as f64).max(1.0));
        let whole = report.spec.warmup + report.spec.measured();
        put("cpu_percent", used.0 as f64 / whole.0 as f64 * 100.0);
        put("client_cpu_percent", report.generator.cpu_ns.0 as f64 / whole.0 as f64 * 100.0);
        let latencies = Windows::of(&stops, &asked).sort(&asked);
        all.push(Measured { values, counted: latencies.counted().to_vec(), raw: latencies.raw });
    }
    let window = &seen.reports[0].overall;
    let share = share_between(&seen.readings, window.start_ns, window.end_ns);
    let share = share.context("batch work's CPU time was not read during the load")?;
    all[0].values.insert("batch_percent".to_owned(), share * 100.0);
    Ok(all)
}
