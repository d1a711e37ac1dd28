//! `quell bench check`: what `quell check` and `quell record` cost on a host with 10,000 threads, beside other tools
//! that record the scheduler.
//!
//! * `rest`, `N/s`, `saturated`: the threads sleep, are woken by timers so often a second, or wake each other as
//!   fast as they can. A tool's cost is accounted: (time in its BPF programs + its CPU time) / (cores x time), by the
//!   kernel's own statistics; a cost of less than a percent is below the noise of any ratio. The ratio is taken
//!   beside it, in the same rounds: what a thread at SCHED_IDLE on each core gets done with the tool, to what it
//!   gets done without; in `saturated`, how often the threads woke each other. It has the cost of tracing within the
//!   kernel as well, which no account shows for perf and ftrace. Statistics are off meanwhile.
//! * `loss`: the highest rate of a ladder at which a tool loses no event, and what it loses a step above.
//! * `keyframe`: how long it takes to read who runs and who waits.
//!
//! All tools get the same memory between kernel and file. Each has its own kinds of events: `wakes_per_s` is what they
//! have in common.

mod account;
mod crowd;
mod ftrace;
mod hogs;
mod perf_data;
mod tools;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use quell_observe::bpf::Measurement;
use quell_observe::keyframe::KeyframeReader;
use quell_observe::topology;
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;

pub use tools::Tool;

use self::account::{Account, ended_children};
use self::crowd::{Crowd, Doing};
use self::hogs::Hogs;
use self::tools::{Running, Tally};
use crate::host;
use quell_report::BenchReport;
use quell_terminal::{Progress, Stop};

/// The system without any tool.
pub const NONE: &str = "none";
/// The case of [`Tool`]s that lose events.
pub const LOSS: &str = "loss";
/// From a change of what the crowd does until it is measured.
const WARM: Duration = Duration::from_millis(250);
/// Keyframes that are read in each round.
const KEYFRAMES: usize = 20;

/// How `quell bench check` runs.
#[derive(Clone, Debug)]
pub struct CheckSpec {
    /// The command as typed.
    pub command: String,
    /// Threads of the crowd.
    pub threads: usize,
    /// Wake-ups a second.
    pub rates: Vec<f64>,
    /// Wake-ups a second of the search for losses, ascending; `saturated` follows.
    pub ladder: Vec<f64>,
    /// Interleaved rounds.
    pub rounds: usize,
    /// How long a tool gets to start.
    pub settle: Duration,
    /// How long its cost is accounted.
    pub account: Duration,
    /// How long work is measured beside it.
    pub work: Duration,
    /// The `quell` program.
    pub quell: PathBuf,
    /// The `quell-antagonist` program.
    pub antagonist: PathBuf,
}

/// Runs the benchmark.
///
/// # Errors
/// When the threads cannot be started, or a stop was asked for. A tool that fails is told in the report.
pub fn run(spec: &CheckSpec, progress: &mut dyn Progress, stop: &Stop) -> Result<BenchReport> {
    let _alone = host::alone(progress, stop)?;
    let cores = topology::online()?.len();
    let mut bench = Bench {
        spec,
        stop,
        cores,
        crowd: Crowd::start(spec.threads)?,
        hogs: Hogs::start(&spec.antagonist, cores)?,
        absent: BTreeMap::new(),
        report: BenchReport::new("check", &spec.command),
    };
    let cases = bench.cases();
    let total = spec.rounds * cases.len() + Tool::ALL.len();
    progress.step(0, total, "keyframes");
    bench.keyframes()?;
    bench.costs(&cases, &mut |done, case| progress.step(done, total, case))?;
    let done = spec.rounds * cases.len();
    for (at, tool) in Tool::ALL.into_iter().enumerate() {
        progress.step(done + at, total, &format!("losses of {}", tool.name()));
        bench.losses(tool)?;
    }
    progress.step(total, total, "done");
    Ok(bench.finish())
}

struct Bench<'a> {
    spec: &'a CheckSpec,
    stop: &'a Stop,
    cores: usize,
    crowd: Crowd,
    hogs: Hogs,
    /// Why a tool is not measured.
    absent: BTreeMap<Tool, String>,
    report: BenchReport,
}

/// What one system showed in one case of one round.
#[derive(Clone, Copy)]
struct Sample {
    wakes_per_s: f64,
    work_per_s: f64,
    /// Percent of the host.
    own: f64,
    bpf: f64,
    finish_ms: f64,
    tally: Tally,
    seconds: f64,
}

impl Bench<'_> {
    fn cases(&self) -> Vec<(String, Doing)> {
        let rest = ("idle".to_owned(), Doing::Rest);
        let rates = self.spec.rates.iter().map(|&per_s| wakes(per_s));
        std::iter::once(rest).chain(rates).chain([self.saturated()]).collect()
    }

    /// Two circles a core, so that each always has a thread to run.
    fn saturated(&self) -> (String, Doing) {
        ("saturated".to_owned(), Doing::Pass { circles: 2 * self.cores })
    }

    fn keyframes(&mut self) -> Result<()> {
        let mut reader = KeyframeReader::open()?;
        let threads = reader.read_all()?.1.threads.len() as f64;
        let mut times: [Vec<f64>; 2] = Default::default();
        for _ in 0..KEYFRAMES * self.spec.rounds {
            self.stop.check()?;
            let begun = Instant::now();
            reader.read()?;
            times[0].push(begun.elapsed().as_secs_f64() * 1e6);
            let begun = Instant::now();
            reader.read_all()?;
            times[1].push(begun.elapsed().as_secs_f64() * 1e6);
        }
        for (system, times) in ["runnable", "with-sleepers"].into_iter().zip(times) {
            let each = times.iter().map(|us| us * 1e3 / threads).collect();
            self.report.push("keyframe", system, "read_us", times);
            self.report.push("keyframe", system, "ns_per_thread", each);
        }
        let line = format!("keyframe: the host has {threads} threads, nearly all asleep");
        self.report.notes.push(line);
        Ok(())
    }

    fn costs(
        &mut self,
        cases: &[(String, Doing)],
        on_case: &mut dyn FnMut(usize, &str),
    ) -> Result<()> {
        let systems: Vec<Option<Tool>> = std::iter::once(None).chain(Tool::ALL.map(Some)).collect();
        let mut samples: BTreeMap<(usize, Option<Tool>), Vec<Sample>> = BTreeMap::new();
        for round in 0..self.spec.rounds {
            for (at, (case, doing)) in cases.iter().enumerate() {
                let done = round * cases.len() + at;
                on_case(done, &format!("round {}: {case}", round + 1));
                let mut order = systems.clone();
                order.shuffle(&mut ChaCha8Rng::seed_from_u64(done as u64));
                for system in order {
                    if let Some(sample) = self.try_measure(system, *doing)? {
                        samples.entry((at, system)).or_default().push(sample);
                    }
                }
            }
        }
        for (at, (case, doing)) in cases.iter().enumerate() {
            let Some(without) = samples.get(&(at, None)) else { continue };
            for &system in &systems {
                if let Some(with) = samples.get(&(at, system)) {
                    self.tell(case, *doing, system, with, without);
                }
            }
        }
        Ok(())
    }

    /// What one system shows in a case; nothing of a tool that does not run here.
    fn try_measure(&mut self, system: Option<Tool>, doing: Doing) -> Result<Option<Sample>> {
        self.stop.check()?;
        let Some(tool) = system else { return self.measure(None, doing).map(Some) };
        if self.absent.contains_key(&tool) {
            return Ok(None);
        }
        let measured = self.measure(Some(tool), doing);
        self.crowd.set(Doing::Rest);
        self.stop.check()?;
        match measured {
            Ok(sample) => Ok(Some(sample)),
            Err(error) => {
                self.absent.insert(tool, format!("{error:#}"));
                Ok(None)
            }
        }
    }

    fn measure(&mut self, system: Option<Tool>, doing: Doing) -> Result<Sample> {
        let (spec, stop) = (self.spec, self.stop);
        let children = ended_children()?;
        let mut running = system.map(|tool| Running::start(tool, &spec.quell)).transpose()?;
        if let Some(running) = &mut running {
            running.await_loaded(stop)?;
            stop.sleep(spec.settle)?;
        }
        self.crowd.set(doing);
        let loaded = Instant::now();
        stop.sleep(WARM)?;

        let measurement = Measurement::begin().context("have the kernel measure BPF programs")?;
        let (begun, turns, before) = (Instant::now(), self.crowd.turns(), account(&mut running)?);
        stop.sleep(spec.account)?;
        let taken = account(&mut running)?.since(&before);
        let accounted = begun.elapsed().as_secs_f64();
        let wakes_per_s = (self.crowd.turns() - turns) as f64 / accounted;
        drop(measurement);

        let work_per_s = match doing {
            Doing::Pass { .. } => {
                let (begun, turns) = (Instant::now(), self.crowd.turns());
                stop.sleep(spec.work)?;
                (self.crowd.turns() - turns) as f64 / begun.elapsed().as_secs_f64()
            }
            _ => self.hogs.work(spec.work, stop)?,
        };
        let seconds = loaded.elapsed().as_secs_f64();
        let last = account(&mut running)?;
        self.crowd.set(Doing::Rest);
        let tally = running.map(Running::finish).transpose()?.unwrap_or_default();
        let finish = ended_children()?.since(children).since(last.own);
        // A thread of this process copies for ftrace.
        let is_child = system != Some(Tool::Ftrace);
        let percent = |time: quell_model::Nanos| {
            time.0 as f64 / 1e9 / (self.cores as f64 * accounted) * 100.0
        };
        Ok(Sample {
            wakes_per_s,
            work_per_s,
            own: percent(taken.own),
            bpf: percent(taken.bpf),
            finish_ms: if is_child { finish.0 as f64 / 1e6 } else { f64::NAN },
            tally,
            seconds,
        })
    }

    fn tell(
        &mut self,
        case: &str,
        doing: Doing,
        system: Option<Tool>,
        with: &[Sample],
        without: &[Sample],
    ) {
        let name = system.map_or(NONE, Tool::name);
        let work = match doing {
            Doing::Pass { .. } => "passes_per_s",
            _ => "leftover_ops_per_s",
        };
        let mut push = |metric: &str, of: &dyn Fn(&Sample) -> f64| {
            self.report.push(case, name, metric, with.iter().map(of).collect());
        };
        let is_tool = |value: f64| if system.is_some() { value } else { f64::NAN };
        let follows = system.is_some_and(Tool::follows_events);
        let counted = |value: f64| if follows { value } else { f64::NAN };
        push("cost_percent", &|one| is_tool(one.own + one.bpf));
        push("own_percent", &|one| is_tool(one.own));
        push("bpf_percent", &|one| is_tool(one.bpf));
        push("finish_cpu_ms", &|one| is_tool(one.finish_ms));
        push("events_per_s", &|one| counted(one.tally.events as f64 / one.seconds));
        push("lost_percent", &|one| counted(lost_percent(&one.tally)));
        push("wakes_per_s", &|one| one.wakes_per_s);
        push(work, &|one| one.work_per_s);
        if system.is_some() {
            let values = |of: &[Sample]| of.iter().map(|one| one.work_per_s).collect::<Vec<f64>>();
            let (with, without) = (values(with), values(without));
            self.report.compare(case, (name, &with), (NONE, &without), work);
        }
    }

    /// The highest step without a loss, by bisection: who loses at a step loses at those above.
    fn losses(&mut self, tool: Tool) -> Result<()> {
        if !tool.follows_events() {
            return Ok(());
        }
        if self.absent.contains_key(&tool) {
            return Ok(());
        }
        let mut steps: Vec<(String, Doing)> = self.spec.ladder.iter().copied().map(wakes).collect();
        steps.push(self.saturated());
        let (mut good, mut bad) = (None, None);
        let (mut low, mut high) = (0, steps.len());
        while low < high {
            let middle = low + (high - low) / 2;
            let (step, doing) = &steps[middle];
            let measured = self.measure(Some(tool), *doing);
            self.crowd.set(Doing::Rest);
            self.stop.check()?;
            match measured {
                Ok(sample) if sample.tally.lost == 0 => (low, good) = (middle + 1, Some(sample)),
                Ok(sample) => (high, bad) = (middle, Some(sample)),
                Err(error) => {
                    let line = format!("{LOSS}: {} at {step}: {error:#}", tool.name());
                    self.report.notes.push(line);
                    high = middle;
                }
            }
        }
        let mut push = |metric: &str, value: Option<f64>| {
            self.report.push(LOSS, tool.name(), metric, value.into_iter().collect());
        };
        let events = |one: Sample| one.tally.events as f64 / one.seconds;
        push("events_per_s_without_loss", good.map(events));
        push("wakes_per_s_without_loss", good.map(|one| one.wakes_per_s));
        push("wakes_per_s_a_step_above", bad.map(|one| one.wakes_per_s));
        push("lost_percent_a_step_above", bad.map(|one| lost_percent(&one.tally)));
        Ok(())
    }

    fn finish(mut self) -> BenchReport {
        for (tool, why) in self.absent {
            let name = tool.name();
            self.report.notes.push(format!("{name}: n/a: {why}"));
            self.report.capabilities.insert(name.to_owned(), why);
        }
        let notes = [
            "cost_percent is of the whole host: the tool's processes (own_percent), and its BPF programs in the \
             time of others (bpf_percent); what perf and ftrace take within the kernel shows in the ratio alone",
            "finish_cpu_ms: CPU time of a tool after the measurement, until it has ended; perf stores what it buffered \
             only then, or when half of its buffer is full",
            "work beside a tool: a thread at SCHED_IDLE on each core (leftover_ops_per_s), or the threads themselves \
             (passes_per_s)",
            "ftrace does by hand what `trace-cmd record` does: tracepoints into the buffers of an instance, which \
             a thread copies to a file; trace-cmd itself wants files of the function tracer, which a kernel in \
             lockdown refuses (\"Can't enable ftrace\")",
        ];
        self.report.notes.extend(notes.map(str::to_owned));
        self.report
    }
}

fn wakes(per_s: f64) -> (String, Doing) {
    (format!("{per_s}/s"), Doing::Wake { per_s })
}

fn account(running: &mut Option<Running>) -> Result<Account> {
    running.as_mut().map(Running::account).transpose().map(Option::unwrap_or_default)
}

fn lost_percent(tally: &Tally) -> f64 {
    tally.lost as f64 / (tally.events + tally.lost).max(1) as f64 * 100.0
}
