//! `quell bench colocate`: a real service and real batch work share cores; who keeps the tail, who
//! gets the rest?
//!
//! An unmodified service (memcached, Redis or nginx) and one batch program share the managed core; the open-loop client has an
//! unmanaged core to itself. In each round and for each mix, batch work is measured alone, and then
//! every system in an order drawn anew, all with the same arrivals. The load is a fixed part of the
//! peak, which is searched for once. Latencies count from the intended send time; hypervisor stalls
//! are removed by the rule of [`crate::stall`]; [`analysis`] makes the figures.

pub mod analysis;
mod cast;
mod companion;
mod lc;
mod loop_cases;
mod measure;
mod spec;
mod system;
mod watch;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use quell_act::Ladder;
use quell_load::go::build_gc;
use quell_load::{LoadSpec, SearchSpec, Silent, search_peak};
use quell_model::{CoreSet, Nanos, Rung};
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use self::analysis::{MANY, Round, Run};
pub(crate) use self::cast::BatchWork;
use self::cast::Rates;
pub use self::lc::Lc;
pub(crate) use self::lc::Server;
use self::loop_cases::LoopCase;
use self::measure::{Scene, measure};
pub use self::spec::{ColocateSpec, Mix, System};
use self::system::{Entered, Service};
use self::watch::CoreWatch;
pub(crate) use self::watch::StallWatch;
use crate::host::{self, PauseLoop, Policy};
use crate::switch_cost;
use quell_report::{BenchReport, LOAD_CASE};
use quell_terminal::{Progress, Stop};

/// The priority of an LC thread on its Quell rung, on this host.
pub(crate) fn lc_priority() -> i32 {
    let ladder = Ladder::for_this_host().unwrap_or_default();
    ladder.priority(Rung::Lc).map_or(1, i32::from)
}

/// Times that a measurement is made before stalls void its round: where one in three is stalled, one
/// in 30 rounds of eight systems is void.
const TRIES: usize = 5;
/// What batch work needs after its start until it works as it will.
const SETTLE: Duration = Duration::from_millis(200);
/// Room for the requests of one measurement.
const SAMPLES_MAX: usize = 4_000_000;

/// Runs the benchmark.
///
/// # Errors
/// When a program cannot be started, the client is the limit, the daemon does not restore the host,
/// or a stop was asked for. All that was started is ended in each case.
pub fn run(spec: &ColocateSpec, progress: &mut dyn Progress, stop: &Stop) -> Result<BenchReport> {
    let _alone = host::alone(progress, stop)?;
    let _quiet = host::Quiet::keep()?;
    let own = host::affinity(0).context("read the own affinity")?;
    host::pin(0, &CoreSet::of(spec.client)).context("leave the managed cores")?;
    let report = run_pinned(spec, progress, stop);
    host::pin(0, &own).context("take back the own affinity")?;
    report
}

fn run_pinned(
    spec: &ColocateSpec,
    progress: &mut dyn Progress,
    stop: &Stop,
) -> Result<BenchReport> {
    let mut report = BenchReport::new(&spec.name, &spec.command);
    let lc = Server::start(spec.lc, &spec.managed)?;
    let watch = core_watch(spec, &lc, &mut report.notes);
    let mut stalls = stall_watch(spec, &mut report.notes);
    progress.note("searching for the peak load");
    let peak_rps = match spec.peak_rps {
        Some(peak) => peak,
        None => search(spec, &lc, stalls.as_mut(), stop)?,
    };
    let offered_rps = offer(spec, &lc, peak_rps * spec.load, stop)?;
    let load = base_load(spec, &lc, offered_rps);
    let part = offered_rps / peak_rps * 100.0;
    progress.note(&format!("peak {peak_rps:.0} requests/s; offering {part:.0} % of it"));
    let core = spec.managed.first().context("no core is managed")?;
    let switch_us = switch_cost::measure(core)?;
    report.push(LOAD_CASE, spec.lc.name(), "peak_rps", vec![peak_rps]);
    report.push(LOAD_CASE, spec.lc.name(), "offered_rps", vec![offered_rps]);
    report.push(LOAD_CASE, spec.lc.name(), "switch_us", vec![switch_us]);
    let mut total = spec.mixes.len() * (spec.systems.len() + 1) * spec.rounds;
    if spec.loop_cases {
        total += LoopCase::ALL.len() * loop_cases::SYSTEMS.len() * loop_cases::rounds(spec);
    }
    let steps = Steps { done: 0, total };
    let programs = tempfile::tempdir().context("make a directory for built programs")?;
    let mut session = Session {
        spec,
        lc: &lc,
        watch,
        stalls,
        repeated: 0,
        go_gc: go_program(spec, programs.path(), &mut report.notes),
        load,
        stop,
        progress,
        steps,
    };
    let mut rounds = Vec::new();
    for &mix in &spec.mixes {
        if mix == Mix::GoGc && session.go_gc.is_none() {
            continue;
        }
        let round = |session: &mut Session, attempt| session.round(mix, attempt);
        rounds.extend(session.rounds(mix.name(), spec.rounds, &mut report.notes, round)?);
    }
    analysis::fill(&mut report, &rounds, &spec.systems, switch_us);
    if spec.loop_cases {
        for case in LoopCase::ALL {
            session.loop_case(case, &mut report)?;
        }
    }
    session.steps.show(session.progress, "done");
    if session.repeated > 0 {
        report
            .notes
            .push(format!("{} measurements were repeated because of stalls", session.repeated));
    }
    Ok(report)
}

/// The load of every measurement but for its seed.
fn base_load(spec: &ColocateSpec, lc: &Server, rate_rps: f64) -> LoadSpec {
    let nanos = |time: Duration| Nanos(time.as_nanos() as u64);
    let mut load = LoadSpec::new(lc.addr, lc.lc.protocol(), rate_rps, nanos(spec.duration));
    load.warmup = nanos(spec.warmup);
    load.core = Some(spec.client);
    load.samples_max = SAMPLES_MAX;
    load
}

/// The highest load that the service sustains on its rung, alone, watched as in every measurement.
fn search(
    spec: &ColocateSpec,
    lc: &Server,
    mut stalls: Option<&mut StallWatch>,
    stop: &Stop,
) -> Result<f64> {
    let mut search = SearchSpec::new(base_load(spec, lc, 1.0));
    search.start_rps = spec.lc.search_from_rps();
    search.load.warmup = Nanos::from_millis(100);
    search.run = Nanos::from_millis(400);
    search.precision = 0.08;
    lc.program.set_policy(Policy::Fifo(lc_priority()), 0)?;
    if let Some(stalls) = &mut stalls {
        stalls.begin()?;
    }
    let found = search_peak(&search, &mut |_| !stop.is_asked());
    if let Some(stalls) = stalls {
        stalls.end(&[], &[], true)?;
    }
    lc.program.set_policy(Policy::Other, 0)?;
    let found = found.context("search for the peak load")?;
    stop.check()?;
    if found.peak_rps < search.start_rps / 16.0 {
        let last = found.probes.last();
        bail!("{} sustains no load worth measuring; the last attempt: {last:?}", spec.lc.name());
    }
    Ok(found.peak_rps)
}

/// The load to offer: `rate_rps`, or less where that keeps the service's cores too busy.
fn offer(spec: &ColocateSpec, lc: &Server, mut rate_rps: f64, stop: &Stop) -> Result<f64> {
    let Some(busy_max) = spec.lc.busy_max() else { return Ok(rate_rps) };
    lc.program.set_policy(Policy::Fifo(lc_priority()), 0)?;
    let least_rps = rate_rps / 16.0;
    // To fill the service is work of another kind: it is done before anything is counted.
    quell_load::run(&base_load(spec, lc, rate_rps), &mut Silent).context("fill the service")?;
    loop {
        stop.check()?;
        let load = LoadSpec { preload: false, ..base_load(spec, lc, rate_rps) };
        let (before, start) = (lc.program.usage()?.cpu, Instant::now());
        quell_load::run(&load, &mut Silent).context("look how busy the service is")?;
        let used = lc.program.usage()?.cpu - before;
        let passed = start.elapsed().as_nanos() as f64;
        if used.0 as f64 / passed / spec.managed.len() as f64 <= busy_max {
            break;
        }
        rate_rps *= 0.9;
        if rate_rps < least_rps {
            bail!("{} is busy at whatever load: nothing is left to measure", spec.lc.name());
        }
    }
    lc.program.set_policy(Policy::Other, 0)?;
    Ok(rate_rps)
}

/// The observer of the managed cores, where the host has BPF.
fn core_watch(spec: &ColocateSpec, lc: &Server, notes: &mut Vec<String>) -> Option<CoreWatch> {
    match CoreWatch::start(&spec.managed, &lc.program) {
        Ok(watch) => Some(watch),
        Err(error) => {
            notes.push(format!(
                "no BPF ({error:#}): stalls of the managed cores and idle time while LC waits are not seen"
            ));
            None
        }
    }
}

/// The recorder of stalls, where the host has perf events.
fn stall_watch(spec: &ColocateSpec, notes: &mut Vec<String>) -> Option<StallWatch> {
    match StallWatch::start(spec.client, &spec.managed) {
        Ok(watch) => Some(watch),
        Err(error) => {
            notes.push(format!(
                "no perf events ({error:#}): only stalls that the steal clock shows are removed"
            ));
            None
        }
    }
}

/// The batch program in Go, where the host has Go.
fn go_program(spec: &ColocateSpec, directory: &Path, notes: &mut Vec<String>) -> Option<PathBuf> {
    if !spec.mixes.contains(&Mix::GoGc) {
        return None;
    }
    match build_gc(directory) {
        Ok(program) => Some(program),
        Err(error) => {
            notes.push(format!("left out: {}: {error}", Mix::GoGc.name()));
            None
        }
    }
}

/// How far the run is.
struct Steps {
    done: usize,
    total: usize,
}

impl Steps {
    fn show(&self, progress: &mut dyn Progress, what: &str) {
        progress.step(self.done, self.total, what);
    }
}

/// A run under way.
struct Session<'a> {
    spec: &'a ColocateSpec,
    lc: &'a Server,
    watch: Option<CoreWatch>,
    stalls: Option<StallWatch>,
    /// Measurements made again because of stalls.
    repeated: usize,
    go_gc: Option<PathBuf>,
    load: LoadSpec,
    stop: &'a Stop,
    progress: &'a mut dyn Progress,
    steps: Steps,
}

impl Session<'_> {
    /// As many valid rounds of a case as are wanted; void ones are told in `notes`.
    fn rounds(
        &mut self,
        case: &str,
        wanted: usize,
        notes: &mut Vec<String>,
        mut round: impl FnMut(&mut Self, usize) -> Result<Round>,
    ) -> Result<Vec<Round>> {
        let (mut valid, mut void, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
        // Void rounds are made up for, but not for ever, nor in the few of a first look.
        let spare = if wanted < MANY { 0 } else { wanted };
        for attempt in 0..wanted + spare {
            if valid.len() == wanted {
                break;
            }
            let round = round(self, attempt)?;
            match round.void() {
                None => valid.push(round),
                Some(why) => {
                    self.progress.note(&format!("void round: {why}"));
                    reasons.push(why);
                    void.push(round);
                }
            }
        }
        if !void.is_empty() {
            notes.push(format!("{} void round(s): {}", void.len(), reasons.join("; ")));
        }
        if valid.is_empty() {
            notes.push(format!("INVALID: {case}: every round is void"));
            return Ok(void);
        }
        Ok(valid)
    }

    /// Work of the batch programs while the service gets no load. The client's core is awake as in
    /// every other measurement: what the machine gives to one core depends on the others.
    fn be_alone(&self, be: &BatchWork) -> Result<Rates> {
        let _awake = PauseLoop::start(self.spec.client)?;
        let before = be.work()?;
        self.stop.sleep(self.spec.be_alone / 2)?;
        Ok(be.work()?.rates_since(&before))
    }

    /// Turns a second of a loop while the service gets no load.
    fn pause_alone(&self, pause: &PauseLoop) -> Result<f64> {
        let (start, before) = (Instant::now(), pause.turns());
        self.stop.sleep(self.spec.be_alone / 8)?;
        Ok((pause.turns() - before) as f64 / start.elapsed().as_secs_f64())
    }

    /// Measures a system, again where stalls spoiled it.
    fn measure(
        &mut self,
        system: System,
        be: &BatchWork,
        load: &LoadSpec,
        entered: &Entered,
    ) -> Result<Run> {
        self.until_quiet(|session| {
            let scene = Scene {
                lc: session.lc,
                be,
                load,
                cores: session.spec.managed.len(),
                watch: session.watch.as_mut(),
                stalls: session.stalls.as_mut(),
                pause: entered.pause(),
                quell: entered.quell_processes(),
            };
            measure(system, scene)
        })
    }

    /// Makes a measurement again while stalls spoil it, a few times at most.
    fn until_quiet(&mut self, mut make: impl FnMut(&mut Self) -> Result<Run>) -> Result<Run> {
        let mut run = make(self)?;
        for _ in 1..TRIES {
            if !run.is_stalled() || self.stop.is_asked() {
                break;
            }
            self.repeated += 1;
            run = make(self)?;
        }
        Ok(run)
    }

    /// Batch work alone, then every system in an order of its own, all with the same arrivals.
    fn round(&mut self, mix: Mix, attempt: usize) -> Result<Round> {
        let spec = self.spec;
        let mut rng = ChaCha8Rng::seed_from_u64(spec.seed.wrapping_add(attempt as u64));
        self.load.seed = rng.random();
        let mut order = spec.systems.clone();
        order.shuffle(&mut rng);
        let case = mix.name();
        self.steps.show(self.progress, &format!("round {}, {case}: batch work alone", attempt + 1));
        let mut be = BatchWork::start(&spec.antagonist, &spec.managed, mix, self.go_gc.as_deref())?;
        self.stop.sleep(SETTLE)?;
        let alone_before = self.be_alone(&be)?;
        self.steps.done += 1;
        let services =
            [Service { name: "service", program: &self.lc.program, guaranteed: 1, runaway: None }];
        let (mut runs, mut pause_alone) = (Vec::new(), None);
        for system in order {
            let what = format!("round {}, {case}: {}", attempt + 1, system.name());
            self.steps.show(self.progress, &what);
            let entered = system::enter(system, spec, &services, &be, self.stop)
                .with_context(|| what.clone())?;
            if let Some(pause) = entered.pause() {
                pause_alone = Some(self.pause_alone(pause)?);
            }
            let load = self.load.clone();
            let run = self.measure(system, &be, &load, &entered);
            let left = entered.leave(&services, &be);
            runs.push(run.with_context(|| what.clone())?);
            left.with_context(|| what.clone())?;
            be.check()?;
            self.stop.check()?;
            self.load.preload = false;
            self.steps.done += 1;
        }
        // Half of it at either end of the round: the clock rate drifts meanwhile.
        let be_alone = alone_before.mean(&self.be_alone(&be)?);
        Ok(Round { case: case.to_owned(), be_alone, pause_alone, runs })
    }
}
