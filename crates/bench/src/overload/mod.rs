//! `quell bench overload`: a service that gets more than it can serve for five seconds, beside a guaranteed neighbour and
//! busy loops on one core.
//!
//! Both services are the synthetic server; the overloaded one has one worker, in another case four. Its peak is what it
//! answers a second at twice that load, beside the neighbour's steady load and no batch work. Each round has every system
//! in an order drawn anew, with the same arrivals:
//!
//! * `alone-idle-poll`: both services as started, no batch work. A PAUSE loop keeps the core awake, in an idle group
//!   (`cpu.idle`) of its own: in the group of one service it would take the core's half from the other.
//! * `fifo`: SCHED_FIFO by hand, the neighbour above the overloaded service, batch work as started.
//! * `quell`: the neighbour has the core guaranteed.
//!
//! The tail is normal again by the rule of [`recovery`]. Under `quell` each round ends with a load just below the peak,
//! during which the daemon's changes of roles are counted.

mod measure;
pub mod recovery;
mod report;
mod script;

use std::time::Duration;

use anyhow::{Context as _, Result};
use quell_model::CoreSet;
use quell_report::BenchReport;
use quell_terminal::{Progress, Stop};
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use self::measure::Stage;
use self::report::Case;
use self::script::Script;
use crate::host;
use crate::services::{Canaries, System};
use crate::stage::Place;

/// The name of these reports.
pub const BENCH: &str = "overload";
/// The systems; the first is the denominator of the ratios.
const SYSTEMS: [System; 3] = [System::AloneIdlePoll, System::Fifo, System::Quell];
/// Workers of the overloaded service in each case.
const WORKERS: [usize; 2] = [1, 4];

/// A run.
#[derive(Clone, Debug)]
pub struct OverloadSpec {
    /// The command that makes the report again.
    pub command: String,
    /// Interleaved rounds of each case.
    pub rounds: usize,
    /// Steady load before the overload.
    pub before: Duration,
    /// Steady load after it.
    pub after: Duration,
    /// Load just below the peak.
    pub sustained: Duration,
    /// Seed of arrivals and orders.
    pub seed: u64,
    /// Cores and programs.
    pub place: Place,
}

/// Runs the benchmark.
///
/// # Errors
/// When a program cannot be started, the daemon does not restore the host, or a stop was asked for: after the measurement
/// under way. All that was started is ended in each case.
pub fn run(spec: &OverloadSpec, progress: &mut dyn Progress, stop: &Stop) -> Result<BenchReport> {
    let _alone = host::alone(progress, stop)?;
    // For all systems: services are in new cgroups, which have no real-time budget where the kernel shares one out.
    let mut quiet = host::Quiet::keep()?;
    quiet.allow_real_time()?;
    quiet.favour_softirqs(spec.place.client);
    let own = host::affinity(0).context("read the own affinity")?;
    host::pin(0, &CoreSet::of(spec.place.client)).context("leave the managed cores")?;
    let cases = measure_all(spec, progress, stop);
    host::pin(0, &own).context("take back the own affinity")?;
    let mut report = BenchReport::new(BENCH, &spec.command);
    report::fill(&mut report, &cases?);
    Ok(report)
}

fn measure_all(spec: &OverloadSpec, progress: &mut dyn Progress, stop: &Stop) -> Result<Vec<Case>> {
    let place = &spec.place;
    let mut canaries = Canaries::start(&place.managed.union(&CoreSet::of(place.client)))?;
    let total = WORKERS.len() * spec.rounds;
    let mut cases = Vec::new();
    for (at, workers) in WORKERS.into_iter().enumerate() {
        let mut stage = Stage::start(spec, workers, &mut canaries, stop)?;
        let peak_rps = stage.peak_rps()?;
        progress.note(&format!("{workers} workers: peak {peak_rps:.0} requests/s"));
        let mut case = Case::new(workers, peak_rps);
        for round in 0..spec.rounds {
            let what = format!("{workers} workers, round {}", round + 1);
            progress.step(at * spec.rounds + round, total, &what);
            one_round(spec, &mut stage, &mut case, round).with_context(|| what)?;
        }
        cases.push(case);
    }
    progress.step(total, total, "done");
    Ok(cases)
}

fn one_round(spec: &OverloadSpec, stage: &mut Stage, case: &mut Case, round: usize) -> Result<()> {
    let mut rng =
        ChaCha8Rng::seed_from_u64(spec.seed ^ ((round as u64) << 8) ^ case.workers as u64);
    let seed = rng.random();
    let script = Script { before: spec.before, after: spec.after };
    let mut order = SYSTEMS;
    order.shuffle(&mut rng);
    for system in order {
        let values = stage.overload(system, script, case.peak_rps, seed);
        case.add(round, system, values.with_context(|| system.name())?);
    }
    let values = stage.sustained(spec.sustained, case.peak_rps, seed)?;
    case.add_sustained(values);
    Ok(())
}
