//! `quell bench reaction`: how long from the moment in which a thread starts to wait until Quell has
//! seen it, decided, acted, and the thread runs.
//!
//! A thread of an LC task without a core of its own wakes below batch work on the lowest FIFO rung: it
//! cannot run until the loop sees it, grants its task the core and raises it. Its own policy is
//! SCHED_FIFO at priority 1: a thread of the fair class would be let in by the kernel's fair server.
//! Measured from just before the wake-up:
//!
//! * `boost_us_*`: until the thread has a higher priority (seen, decided and acted), as the driver
//!   sees it by asking for it without a pause;
//! * `wakeup_latency_us_*`: until its first instruction.
//!
//! Systems, interleaved in one run: `futex-wake` (the thread is on its rung for good, so that the
//! wake-up alone does it), `quell`, and `slow-loop`: Quell with a tick of 500 ms and no events, the
//! pace of control loops such as PARTIES and Heracles.

mod page;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use quell_load::now;
use quell_model::{Class, CoreId, CoreSet, Nanos};
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;
use tempfile::TempDir;

pub use self::page::Page;
use crate::daemon::{Adopted, Adoptee, Daemon, DaemonSpec};
use crate::host::{self, Policy, Program};
use quell_report::BenchReport;
use quell_report::stats;
use quell_terminal::{Progress, Stop};

/// Longest wait for one answer: three ticks of the slow loop.
const ANSWER_MAX: Nanos = Nanos::from_millis(1_600);
/// Longest wait until Quell has taken the core back.
const REST_MAX: Duration = Duration::from_secs(5);
/// How long batch work is watched to see that it has the core.
const LOOK: Duration = Duration::from_millis(2);
/// Samples that may fail before a system counts as not measurable.
const FAILURES_MAX: usize = 5;
/// Batch work ends by itself, should nobody end it: it runs above every fair thread of its core.
const BATCH_SECONDS: u32 = 600;
/// Nice value of the driver, so that a foreign thread is not measured as delay.
const DRIVER_NICE: i32 = -10;
/// Priorities by hand, for the plain wake-up.
const BATCH_PRIORITY: i32 = 2;
/// The sleeper's own priority: below the lowest rung that Quell uses.
const SLEEPER_PRIORITY: i32 = 1;

/// A run of the reaction benchmark.
#[derive(Clone, Debug)]
pub struct ReactionSpec {
    /// The command that makes the report again.
    pub command: String,
    /// Interleaved rounds.
    pub rounds: usize,
    /// Samples of `futex-wake` and `quell` in each round.
    pub samples: usize,
    /// Samples of `slow-loop` in each round; each takes up to a second.
    pub slow_samples: usize,
    /// The managed core.
    pub managed: CoreSet,
    /// The driver's core.
    pub driver: CoreId,
    /// The `quell` program.
    pub quell: PathBuf,
    /// The `quell-antagonist` program.
    pub antagonist: PathBuf,
    /// The `quell-sleeper` program.
    pub sleeper: PathBuf,
}

/// Who makes the thread run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    FutexWake,
    Quell,
    SlowLoop,
}

impl System {
    const ALL: [System; 3] = [System::FutexWake, System::Quell, System::SlowLoop];

    fn name(self) -> &'static str {
        match self {
            System::FutexWake => "futex-wake",
            System::Quell => "quell",
            System::SlowLoop => "slow-loop",
        }
    }

    fn host_lines(self) -> Vec<String> {
        let mut lines = vec!["be_rung = \"fifo-low\"".to_owned()];
        if self == System::SlowLoop {
            lines.extend(["tick_us = 500000".to_owned(), "tick_on_events = false".to_owned()]);
        }
        lines
    }
}

/// One wake-up.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Until a higher priority was seen; absent where the thread always has it.
    raised: Option<Nanos>,
    /// Until the thread ran.
    runs: Nanos,
}

/// Runs the benchmark.
///
/// # Errors
/// When a program cannot be started, the daemon does not restore the host, or a stop was asked for.
/// A system that cannot be measured becomes a note.
pub fn run(spec: &ReactionSpec, progress: &mut dyn Progress, stop: &Stop) -> Result<BenchReport> {
    let _alone = host::alone(progress, stop)?;
    let own = host::affinity(0).context("read the own affinity")?;
    host::pin(0, &CoreSet::of(spec.driver)).context("leave the managed cores")?;
    let report = rounds(spec, progress, stop);
    host::set_nice(0, 0).context("favour the driver no longer")?;
    host::pin(0, &own).context("take back the own affinity")?;
    report
}

fn rounds(spec: &ReactionSpec, progress: &mut dyn Progress, stop: &Stop) -> Result<BenchReport> {
    let mut report = BenchReport::new("reaction", &spec.command);
    let mut taken: Vec<Vec<Taken>> = System::ALL.map(|_| Vec::new()).into();
    for round in 0..spec.rounds {
        let mut order: Vec<usize> = (0..System::ALL.len()).collect();
        order.shuffle(&mut ChaCha8Rng::seed_from_u64(round as u64));
        for (done, at) in order.into_iter().enumerate() {
            let system = System::ALL[at];
            let what = format!("round {}: {}", round + 1, system.name());
            progress.step(round * System::ALL.len() + done, spec.rounds * System::ALL.len(), &what);
            let one = measure(spec, system, stop).with_context(|| what.clone())?;
            taken[at].push(one);
        }
    }
    progress.step(1, 1, "done");
    for (system, rounds) in System::ALL.into_iter().zip(&taken) {
        push(&mut report, system, rounds);
    }
    let series =
        |at: usize| -> Vec<f64> { taken[at].iter().map(|one| one.quantile_us(0.5)).collect() };
    for at in [1, 2] {
        let system = System::ALL[at].name();
        report.compare(
            "reaction",
            (system, &series(at)),
            ("futex-wake", &series(0)),
            "wakeup_latency_us_p50",
        );
    }
    report.compare(
        "reaction",
        ("slow-loop", &series(2)),
        ("quell", &series(1)),
        "wakeup_latency_us_p50",
    );
    Ok(report)
}

/// What one system showed in one round.
#[derive(Debug, Default)]
struct Taken {
    samples: Vec<Sample>,
    /// Samples without an answer or a rest in time, or that ran unraised.
    failed: usize,
    counters: Vec<(&'static str, f64)>,
}

impl Taken {
    fn quantile_us(&self, quantile: f64) -> f64 {
        quantile_us(self.samples.iter().map(|sample| sample.runs), quantile)
    }
}

fn quantile_us(times: impl Iterator<Item = Nanos>, quantile: f64) -> f64 {
    let mut times: Vec<Nanos> = times.collect();
    times.sort_unstable();
    stats::quantile(&times, quantile).map_or(f64::NAN, |at| at.0 as f64 / 1e3)
}

/// Quantiles over all samples of all rounds: the rare ones need them all.
fn push(report: &mut BenchReport, system: System, rounds: &[Taken]) {
    let all = || rounds.iter().flat_map(|one| &one.samples);
    for (name, quantile) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
        let runs = quantile_us(all().map(|one| one.runs), quantile);
        let raised = quantile_us(all().filter_map(|one| one.raised), quantile);
        report.push("reaction", system.name(), &format!("wakeup_latency_us_{name}"), vec![runs]);
        report.push("reaction", system.name(), &format!("boost_us_{name}"), vec![raised]);
    }
    let failed: usize = rounds.iter().map(|one| one.failed).sum();
    report.push("reaction", system.name(), "samples", vec![all().count() as f64]);
    report.push("reaction", system.name(), "failed_samples", vec![failed as f64]);
    let names: Vec<&'static str> = rounds
        .first()
        .map(|one| one.counters.iter().map(|(name, _)| *name).collect())
        .unwrap_or_default();
    for name in names {
        let of = |one: &Taken| {
            one.counters.iter().find(|(other, _)| *other == name).map(|(_, value)| *value)
        };
        report.push("reaction", system.name(), name, rounds.iter().filter_map(of).collect());
    }
}

/// The programs of one measurement.
struct Scene {
    page: Page,
    sleeper: Program,
    batch: Program,
    _folder: TempDir,
}

impl Scene {
    fn start(spec: &ReactionSpec) -> Result<Scene> {
        let directory = host::directory()?;
        let file = directory.path().join("page");
        let page = Page::create(&file).context("make the shared page")?;
        let start = |name: &str, command: &mut Command| -> Result<Program> {
            let program =
                Program::start(name, command.stdout(Stdio::null()).stderr(Stdio::null()))?;
            program.pin(&spec.managed)?;
            Ok(program)
        };
        let sleeper = start("quell-sleeper", Command::new(&spec.sleeper).arg(&file))?;
        let seconds = BATCH_SECONDS.to_string();
        let batch =
            start("hog", Command::new(&spec.antagonist).args(["hog", "--seconds", &seconds]))?;
        // Both have to be past their own start before anything is measured.
        std::thread::sleep(Duration::from_millis(300));
        batch.pin(&spec.managed)?;
        Ok(Scene { page, sleeper, batch, _folder: directory })
    }

    fn daemon(&self, spec: &ReactionSpec, system: System, stop: &Stop) -> Result<Daemon> {
        let task = |name: &str, class, program: &Program| Adopted {
            name: name.to_owned(),
            class,
            what: Adoptee::Process(program.pid()),
            guaranteed: 0,
            max: 1,
            runaway: None,
        };
        let daemon = DaemonSpec {
            program: spec.quell.clone(),
            managed: spec.managed,
            host: system.host_lines(),
            tasks: vec![
                task("sleeper", Class::LatencyCritical, &self.sleeper),
                task("batch", Class::BestEffort, &self.batch),
            ],
        };
        Daemon::start(&daemon, stop)
    }
}

fn measure(spec: &ReactionSpec, system: System, stop: &Stop) -> Result<Taken> {
    let mut scene = Scene::start(spec)?;
    let daemon = match system {
        System::FutexWake => {
            scene.sleeper.set_policy(Policy::Fifo(host::lc_priority()), 0)?;
            scene.batch.set_policy(Policy::Fifo(BATCH_PRIORITY), 0)?;
            None
        }
        System::Quell | System::SlowLoop => {
            scene.sleeper.set_policy(Policy::Fifo(SLEEPER_PRIORITY), 0)?;
            Some(scene.daemon(spec, system, stop)?)
        }
    };
    let count = if system == System::SlowLoop { spec.slow_samples } else { spec.samples };
    host::set_nice(0, DRIVER_NICE).context("favour the driver")?;
    let taken = take(&mut scene, daemon.is_some(), count, stop);
    host::set_nice(0, 0).context("favour the driver no longer")?;
    let mut taken = taken?;
    scene.batch.check()?;
    if let Some(daemon) = daemon {
        let status = daemon.status()?;
        for name in ["stale_decisions", "ticks", "ticks_by_event", "tick_mean_us", "tick_max_us"] {
            taken.counters.extend(status.counter(name).map(|value| (name, value)));
        }
        daemon.stop()?;
    }
    scene.page.quit();
    Ok(taken)
}

fn take(scene: &mut Scene, has_loop: bool, count: usize, stop: &Stop) -> Result<Taken> {
    let mut taken = Taken::default();
    while taken.samples.len() < count {
        stop.check()?;
        scene.batch.check()?;
        if taken.failed > FAILURES_MAX + count / 10 {
            bail!(
                "{} of {} wake-ups were of no use",
                taken.failed,
                taken.failed + taken.samples.len()
            );
        }
        if has_loop && !wait_for_rest(scene, stop)? {
            taken.failed += 1;
            continue;
        }
        // Uneven, so that the samples meet the tick at any phase.
        let pause = 3_000 + 977 * (taken.samples.len() as u64 % 7);
        std::thread::sleep(Duration::from_micros(pause));
        match sample(scene, has_loop) {
            Some(sample) => taken.samples.push(sample),
            None => taken.failed += 1,
        }
    }
    Ok(taken)
}

/// Waits until the thread has its own priority again, asleep, below batch work that has the core: as
/// before Quell saw it, and again after Quell took the core back. Says whether that came in time.
fn wait_for_rest(scene: &Scene, stop: &Stop) -> Result<bool> {
    let until = Instant::now() + REST_MAX;
    while Instant::now() < until {
        let before = scene.batch.usage()?.cpu;
        stop.sleep(LOOK)?;
        let ran = scene.batch.usage()?.cpu - before;
        let has_core = ran.0 as f64 > LOOK.as_nanos() as f64 * 0.5;
        let batch_is_above = scene.batch.threads()?.iter().all(|&tid| is_raised(tid));
        if has_core && batch_is_above && !is_raised(scene.sleeper.pid()) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_raised(tid: i32) -> bool {
    host::policy(tid).is_ok_and(|(_, priority)| priority > SLEEPER_PRIORITY)
}

fn sample(scene: &Scene, has_loop: bool) -> Option<Sample> {
    let (number, start) = scene.page.call();
    let mut raised = None;
    loop {
        if has_loop && raised.is_none() && is_raised(scene.sleeper.pid()) {
            raised = Some(now() - start);
        }
        if let Some(at) = scene.page.answer(number) {
            if has_loop && raised.is_none() {
                // It may have been raised and have run between two looks.
                raised = is_raised(scene.sleeper.pid()).then(|| at - start);
            }
            let is_valid = !has_loop || raised.is_some();
            return is_valid.then_some(Sample { raised, runs: at - start });
        }
        if now() - start > ANSWER_MAX {
            return None;
        }
    }
}
