//! `quell bench services`: real services with their own defaults beside real batch work on one core, under plain Linux,
//! the settings that an administrator may give by hand, and Quell.
//!
//! Services and batch work are started as a service manager starts them, each in a session and a cgroup of its own. The
//! open-loop client has the other core. In each round of a cell (a service at a load beside a kind of batch work) batch
//! work is measured alone, and then every system in an order drawn anew, all with the same arrivals. Each measurement is
//! a line of a log, from which a run that was stopped goes on; [`analysis`] makes the report of it. Latencies count from
//! the intended send time; [`crate::stops`] has the rule that detects stops of the hypervisor.

pub mod analysis;
mod batch;
mod bursts;
mod definition;
mod during;
mod external;
pub mod log;
mod loop_case;
mod measure;
mod pause;
mod peak;
pub mod plan;
pub(crate) mod second;
mod service;
mod system;
mod tables;
mod wakeups;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use quell_load::go::build_gc;
use quell_model::{CoreId, CoreSet};
use quell_report::BenchReport;
use quell_terminal::{Progress, Stop};
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use self::batch::Rates;
pub use self::batch::{BatchWork, Kind, Programs};
use self::bursts::Bursts;
pub use self::definition::{Definition, DefinitionError, FILE_BYTES_MAX};
pub(crate) use self::during::Meanwhile;
use self::log::{Cell, Header, Line, Log, Phase, Run};
pub use self::loop_case::LoopCase;
use self::loop_case::start_second;
pub use self::measure::Canaries;
use self::measure::{Instruments, measure};
pub(crate) use self::measure::{Offer, answered_share, load, requests};
pub use self::pause::PauseProgram;
use self::plan::Planned;
pub use self::plan::Wanted;
pub use self::service::Service;
pub use self::system::System;
pub(crate) use self::system::set_roles;
pub(crate) use self::system::{Entered, Scene, enter};
pub use self::tables::{BENCH, five_lines, headline, losses, sections};
use self::wakeups::Wakeups;
pub(crate) use self::wakeups::{SERVICE, passive_observer};
use crate::host::{self, PauseLoop};

/// What batch work needs after its start until it works as it will.
const SETTLE: Duration = Duration::from_millis(300);
/// Batch work alone is measured for so long at either end of a round: the clock rate drifts meanwhile.
const BATCH_ALONE: Duration = Duration::from_secs(1);
/// Load before a measurement begins.
const WARMUP: Duration = Duration::from_millis(300);
/// What the planted fault makes of a tail.
const PLANTED: f64 = 1.2;

/// A run.
#[derive(Clone, Debug)]
pub struct ServicesSpec {
    /// The command that makes the report again.
    pub command: String,
    /// The services.
    pub services: Vec<Definition>,
    /// Which of their cells and systems.
    pub wanted: Wanted,
    /// Rounds of each cell; absent: as many as a pilot says.
    pub rounds: Option<usize>,
    /// Rounds of the pilot, which are in no figure.
    pub pilot: usize,
    /// No measurement is longer; absent: as long as its quantile needs.
    pub longest: Option<Duration>,
    /// Seed of arrivals and orders.
    pub seed: u64,
    /// Cores that service and batch work share.
    pub managed: CoreSet,
    /// The client's core.
    pub client: CoreId,
    /// The `quell` program.
    pub quell: PathBuf,
    /// The `quell-antagonist` program.
    pub antagonist: PathBuf,
    /// No round begins after this time; absent: all are measured.
    pub time_max: Option<Duration>,
    /// Every measurement; a run that was stopped goes on from there. Absent: a file that ends with the run.
    pub log: Option<PathBuf>,
}

/// Runs what of the benchmark is not in the log yet, and makes the report of all of it.
///
/// # Errors
/// When a program cannot be started, the daemon does not restore the host, or a stop was asked for. All that was
/// started is ended in each case; the log keeps what was measured.
pub fn run(spec: &ServicesSpec, progress: &mut dyn Progress, stop: &Stop) -> Result<BenchReport> {
    let _alone = host::alone(progress, stop)?;
    let mut quiet = host::Quiet::keep()?;
    quiet.favour_softirqs(spec.client);
    let directory = tempfile::tempdir().context("make a temporary directory")?;
    let path = spec.log.clone().unwrap_or_else(|| directory.path().join("services.log"));
    let mut log = Log::open(&path, &Header::new(&spec.command, spec.seed))?;
    let own = host::affinity(0).context("read the own affinity")?;
    host::pin(0, &CoreSet::of(spec.client)).context("leave the managed cores")?;
    let measured = measure_all(spec, &mut log, progress, stop);
    host::pin(0, &own).context("take back the own affinity")?;
    measured?;
    let mut report = BenchReport::new(BENCH, &spec.command);
    analysis::fill(&mut report, &log.lines, analysis::RELABELLINGS);
    Ok(report)
}

fn measure_all(
    spec: &ServicesSpec,
    log: &mut Log,
    progress: &mut dyn Progress,
    stop: &Stop,
) -> Result<()> {
    let directory = tempfile::tempdir().context("make a directory for built programs")?;
    let programs = programs(spec, directory.path(), log)?;
    let every = spec.managed.union(&CoreSet::of(spec.client));
    let mut wakeups = match Wakeups::start(&spec.managed) {
        Ok(wakeups) => Some(wakeups),
        Err(err) => {
            note(log, format!("no wake-up latency: {err:#}"))?;
            None
        }
    };
    let mut canaries = Canaries::start(&every)?;
    let until = spec.time_max.map(|most| Instant::now() + most);
    let parts = [Part::Headline, Part::Rest].into_iter();
    let all = parts.flat_map(|part| spec.services.iter().map(move |service| (part, service)));
    for (part, definition) in all {
        if is_over(until) || !is_wanted(spec, part, definition) {
            continue;
        }
        progress.note(&format!("starting {}", definition.name));
        let service = Service::start(definition, &spec.managed, stop)?;
        let mut session = Session {
            spec,
            service,
            programs: &programs,
            log,
            canaries: &mut canaries,
            wakeups: wakeups.as_mut(),
            progress,
            stop,
            preloaded: false,
            bursts: HashMap::new(),
            until,
        };
        session.run(part)?;
    }
    Ok(())
}

/// What is measured of all services before the other is measured of any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The cells on which sentences are built, and the pilot that chooses rivals and numbers of rounds by these.
    Headline,
    /// Other batch work, other loads, two services at once.
    Rest,
}

impl Part {
    fn has(self, planned: &Planned) -> bool {
        planned.headline == (self == Part::Headline)
    }
}

fn is_wanted(spec: &ServicesSpec, part: Part, definition: &Definition) -> bool {
    let cells = plan::cells(&definition.name, &spec.wanted, &[]);
    cells.iter().any(|planned| part.has(planned))
}

fn note(log: &mut Log, text: String) -> Result<()> {
    let line = Line::Note { text };
    if log.lines.contains(&line) { Ok(()) } else { log.push(line) }
}

fn programs(spec: &ServicesSpec, directory: &Path, log: &mut Log) -> Result<Programs> {
    let go_gc = match build_gc(directory) {
        Ok(program) => Some(program),
        Err(err) => {
            note(log, format!("left out: {}: {err}", Kind::GoGc.name()))?;
            None
        }
    };
    Ok(Programs { antagonist: spec.antagonist.clone(), go_gc })
}

/// One service under way.
struct Session<'a> {
    spec: &'a ServicesSpec,
    service: Service,
    programs: &'a Programs,
    log: &'a mut Log,
    canaries: &'a mut Canaries,
    wakeups: Option<&'a mut Wakeups>,
    progress: &'a mut dyn Progress,
    stop: &'a Stop,
    /// Whether the service has its keys.
    preloaded: bool,
    /// The fault that is planted in a cell, once its pilot is known.
    bursts: HashMap<Cell, Bursts>,
    /// No round begins after this.
    until: Option<Instant>,
}

fn is_over(until: Option<Instant>) -> bool {
    until.is_some_and(|until| Instant::now() >= until)
}

impl Session<'_> {
    fn run(&mut self, part: Part) -> Result<()> {
        let name = self.service.definition.name.clone();
        let peak_rps = self.peak()?;
        self.progress.note(&format!("{name}: peak {peak_rps:.0} requests/s"));
        let rivals: Vec<System> =
            System::ALL.into_iter().filter(|system| system.is_rival()).collect();
        let mut cells = self.cells(&name, &rivals);
        let pilot = if self.spec.rounds.is_some() { 0 } else { self.spec.pilot };
        // The length of the bursts is not known yet.
        let mut first = cells.clone();
        first.retain(|planned| planned.headline);
        first.iter_mut().for_each(|planned| planned.systems.retain(|one| *one != System::Bursts));
        self.rounds(Phase::Pilot, &first, peak_rps, |_| pilot)?;
        let piloted: Vec<Run> = self.log.runs(Phase::Pilot).cloned().collect();
        let piloted: Vec<&Run> = piloted.iter().collect();
        if is_over(self.until) {
            return Ok(());
        }
        if !piloted.is_empty() {
            let best = plan::best_rivals(&name, &piloted);
            cells = self.cells(&name, &best);
        }
        for planned in &mut cells {
            let bursts = plan::bursts(&planned.cell, &piloted, PLANTED);
            planned.systems.retain(|one| *one != System::Bursts || bursts.is_some());
            self.bursts.extend(bursts.map(|bursts| (planned.cell.clone(), bursts)));
        }
        cells.retain(|planned| part.has(planned));
        let fixed = self.spec.rounds;
        let rounds = |planned: &Planned| fixed.unwrap_or_else(|| plan::rounds(planned, &piloted));
        self.rounds(Phase::Measured, &cells, peak_rps, rounds)
    }

    fn cells(&self, name: &str, rivals: &[System]) -> Vec<Planned> {
        let mut cells = plan::cells(name, &self.spec.wanted, rivals);
        cells.retain(|planned| planned.kind != Kind::GoGc || self.programs.go_gc.is_some());
        // A client of the service's own offers one rate.
        let has_steps = self.service.protocol().is_some();
        cells.retain(|planned| planned.case.is_none() || has_steps);
        cells
    }

    /// All rounds of a phase that the log does not have, those of all cells by turns.
    fn rounds(
        &mut self,
        phase: Phase,
        cells: &[Planned],
        peak_rps: f64,
        rounds: impl Fn(&Planned) -> usize,
    ) -> Result<()> {
        let wanted: Vec<usize> = cells.iter().map(&rounds).collect();
        let total = wanted.iter().sum();
        let mut done: usize = 0;
        for turn in 0..wanted.iter().copied().max().unwrap_or_default() {
            for (planned, wanted) in cells.iter().zip(&wanted) {
                if is_over(self.until) {
                    return Ok(());
                }
                if turn >= *wanted {
                    continue;
                }
                done += 1;
                let (complete, next) = self.known(phase, planned);
                if complete > turn {
                    continue;
                }
                let name = self.service.definition.name.clone();
                let what = format!("{name} {}, round {}", planned.cell.batch, turn + 1);
                self.progress.step(done - 1, total, &what);
                self.round(phase, planned, next, peak_rps).with_context(|| what)?;
            }
        }
        Ok(())
    }

    /// How many rounds of a cell are complete, and the number of the next: one that was broken off is not gone on
    /// with, since its measurements would lie far apart.
    fn known(&self, phase: Phase, planned: &Planned) -> (usize, usize) {
        let mut counts = std::collections::BTreeMap::<usize, usize>::new();
        for run in self.log.runs(phase).filter(|run| run.cell == planned.cell) {
            *counts.entry(run.round).or_default() += 1;
        }
        let complete = counts.values().filter(|count| **count >= planned.systems.len()).count();
        (complete, counts.keys().next_back().map_or(0, |last| last + 1))
    }

    /// Batch work alone, then every system in an order of its own, all with the same arrivals.
    fn round(
        &mut self,
        phase: Phase,
        planned: &Planned,
        round: usize,
        peak_rps: f64,
    ) -> Result<()> {
        let mut rng =
            ChaCha8Rng::seed_from_u64(seed_of(self.spec.seed, phase, &planned.cell, round));
        let offer = self.offer(planned, peak_rps, rng.random());
        let mut order = planned.systems.clone();
        order.shuffle(&mut rng);
        let spec = self.spec;
        let (programs, managed) = (self.programs, &spec.managed);
        let rests = offer.rests;
        let mut batch = BatchWork::start(planned.kind, programs, rests, managed, self.stop)?;
        self.stop.sleep(SETTLE)?;
        let alone = self.batch_alone(&batch)?;
        let mut measured = Vec::new();
        for (place, system) in order.into_iter().enumerate() {
            let run =
                self.system(system, planned, &batch, &offer).with_context(|| system.name())?;
            measured.push((place, system, run));
            batch.check()?;
            self.service.check()?;
            self.stop.check()?;
        }
        let alone = alone.mean(&self.batch_alone(&batch)?);
        for (place, system, (mut values, rates)) in measured {
            if system.has_batch() {
                values.extend(
                    rates.share_of(&alone).map(|share| ("batch_of_alone".to_owned(), share)),
                );
                values.insert("batch_ops_per_s".to_owned(), rates.ops.iter().sum());
            }
            self.log.push(Line::Run(Box::new(Run {
                phase,
                cell: planned.cell.clone(),
                round,
                place,
                system: system.name().to_owned(),
                values,
            })))?;
        }
        Ok(())
    }

    fn offer(&self, planned: &Planned, peak_rps: f64, seed: u64) -> Offer {
        let rate_rps = peak_rps * f64::from(planned.cell.load) / 100.0;
        let needed = self.service.definition.load.duration(rate_rps);
        let duration = self.spec.longest.map_or(needed, |longest| needed.min(longest));
        Offer {
            rate_rps,
            duration: planned.case.map_or(duration, |case| case.duration(duration)),
            shape: planned.case.map_or([1.0; 3], LoopCase::shape),
            // The Go program takes 0 for none.
            rests: planned.rests.then_some(seed | 1),
            ..self.plain_offer(seed)
        }
    }

    fn plain_offer(&self, seed: u64) -> Offer {
        let load = &self.service.definition.load;
        Offer {
            rate_rps: load.start_rps,
            duration: load.least,
            warmup: WARMUP,
            seed,
            client: self.spec.client,
            preload: false,
            shape: [1.0; 3],
            rests: None,
        }
    }

    fn system(
        &mut self,
        system: System,
        planned: &Planned,
        batch: &BatchWork,
        offer: &Offer,
    ) -> Result<(measure::Values, Rates)> {
        let case = planned.case;
        let beside = case
            .map(|_| start_second(&self.spec.quell, &self.spec.managed, self.stop))
            .transpose()?;
        let bursts = self.bursts.get(&planned.cell).map(|bursts| (*bursts, offer.seed));
        let scene = Scene {
            managed: self.spec.managed,
            services: std::iter::once(&self.service).chain(&beside).collect(),
            batch,
            quell: &self.spec.quell,
            antagonist: &self.spec.antagonist,
            bursts,
            rests: offer.rests,
        };
        let mut entered = enter(system, &scene, self.stop)?;
        for text in std::mem::take(&mut entered.notes) {
            note(self.log, text)?;
        }
        let offer = Offer { preload: !self.preloaded, ..*offer };
        let second = case.zip(beside.as_ref());
        let second = second.map(|(case, service)| case.script(service, &offer)).transpose()?;
        let (canaries, wakeups) = (&mut *self.canaries, self.wakeups.as_deref_mut());
        let instruments = Instruments { canaries, wakeups, second };
        let quell = entered.quell_processes();
        let measured = measure(&self.service, batch, &offer, entered.pause(), &quell, instruments);
        let left = entered.leave(&scene);
        let measured = measured?;
        left?;
        self.preloaded = true;
        Ok(measured)
    }

    /// What batch work does while the service gets no load. The client's core is awake as in every other measurement:
    /// what the machine gives to one core depends on the others.
    fn batch_alone(&self, batch: &BatchWork) -> Result<Rates> {
        let _awake = PauseLoop::start(self.spec.client)?;
        let before = batch.work()?;
        self.stop.sleep(BATCH_ALONE)?;
        Ok(batch.work()?.rates_since(&before))
    }
}

/// The seed of one round: the same whenever the run is stopped and goes on.
fn seed_of(seed: u64, phase: Phase, cell: &Cell, round: usize) -> u64 {
    // FNV-1a.
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325 ^ seed;
    let text = format!("{phase:?} {} {round}", cell.name());
    for byte in text.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash
}
