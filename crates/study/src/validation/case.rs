//! One simulation of a figure: a scenario of `examples/sim` with some of its keys changed.

use anyhow::{Context as _, Result, anyhow};
use quell_model::Nanos;
use quell_sim::file::Simulation;
use quell_sim::fuzz::PROMISE;
use quell_sim::{Load, Report, Scenario, TaskReport};

use super::client;
use crate::simulate::{self, overlay, parallel};
use quell_terminal::Stop;

/// A ready scenario: its name and its text.
macro_rules! scenario {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../examples/sim/", $name, ".toml")))
    };
}

pub(super) const MEMCACHED_STREAM: (&str, &str) = scenario!("memcached-stream");
pub(super) const STORAGE_STREAM: (&str, &str) = scenario!("storage-stream");
pub(super) const SILO_STREAM: (&str, &str) = scenario!("silo-stream");
pub(super) const GC: (&str, &str) = scenario!("gc");
pub(super) const FIVE_TASKS: (&str, &str) = scenario!("five-tasks");
pub(super) const MANY_SERVICES: (&str, &str) = scenario!("many-services");
pub(super) const SINGLE_HOG: (&str, &str) = scenario!("single-hog");
pub(super) const HALVED_CAPACITY: (&str, &str) = scenario!("halved-capacity");
pub(super) const PULSES: (&str, &str) = scenario!("pulses");

/// A scenario that can still be changed.
#[derive(Clone)]
pub(super) struct Case {
    name: &'static str,
    table: toml::Table,
    /// How many times as fast phases follow each other.
    hastened: u64,
    /// How many times as short everything is.
    shortened: u64,
}

impl Case {
    pub fn new((name, text): (&'static str, &str)) -> Result<Case> {
        let table = text.parse().with_context(|| format!("examples/sim/{name}.toml"))?;
        Ok(Case { name, table, hastened: 1, shortened: 1 })
    }

    /// With another value of a key, written like `host.policy` or `task.NAME.rate`.
    pub fn set(mut self, key: &str, value: impl Into<toml::Value>) -> Result<Case> {
        overlay::set(&mut self.table, key, value.into())?;
        Ok(self)
    }

    /// A count or a rate.
    pub fn with(self, key: &str, value: u64) -> Result<Case> {
        self.set(key, i64::try_from(value)?)
    }

    pub fn policy(self, name: &str) -> Result<Case> {
        self.set("host.policy", name)
    }

    pub fn without(mut self, task: &str) -> Case {
        overlay::remove_task(&mut self.table, task);
        self
    }

    /// With phases that follow each other so many times as fast.
    pub fn hastened(self, times: u64) -> Case {
        Case { hastened: times, ..self }
    }

    /// With the run, its load steps and its timeline so many times as short.
    pub fn shortened(self, times: u64) -> Case {
        Case { shortened: times, ..self }
    }

    fn run(mut self, seed: u64) -> Result<Ran> {
        overlay::set(&mut self.table, "seed", toml::Value::Integer(i64::try_from(seed)?))?;
        let file = format!("{}.toml", self.name);
        let other = |name: &str| unreachable!("{file} names the file {name}");
        let text = toml::to_string(&self.table)?;
        let mut simulation = Simulation::parse(&text, &file, self.name, &other)?;
        compress(&mut simulation.scenario, self.hastened, self.shortened);
        let mut policy = simulate::policy(&simulation)?;
        let report = quell_sim::run(&simulation.scenario, policy.as_mut());
        if let Some(broken) = report.broken.first() {
            return Err(anyhow!("{file}, seed {seed}: {broken}"));
        }
        let promises = PROMISE.contains(&simulation.policy.as_str());
        if let Some((at, violation)) = report.violations.first().filter(|_| promises) {
            return Err(anyhow!("{file}, seed {seed}, at {at}: {violation}"));
        }
        Ok(Ran { scenario: simulation.scenario, report })
    }
}

fn compress(scenario: &mut Scenario, hastened: u64, shortened: u64) {
    let Scenario { tasks, length, warm_up, sample, .. } = scenario;
    [length, warm_up, sample].into_iter().for_each(|time| time.0 /= shortened);
    for task in tasks {
        task.phases.iter_mut().for_each(|phase| phase.work.0 /= hastened);
        if let Load::Open { steps, .. } = &mut task.load {
            steps.iter_mut().for_each(|step| step.from.0 /= shortened);
        }
    }
}

/// Runs cases for figures.
pub(super) struct Runner<'a> {
    /// Shorter simulations and fewer points: the form that tests run.
    pub short: bool,
    pub seed: u64,
    pub threads: usize,
    pub stop: &'a Stop,
}

impl Runner<'_> {
    /// One of two by the form.
    pub fn choose<T>(&self, full: T, short: T) -> T {
        if self.short { short } else { full }
    }

    /// Runs all, in parallel; results are in the order of the cases.
    pub fn run(&self, cases: &[Case]) -> Result<Vec<Ran>> {
        parallel::for_each(cases, self.threads, |case| {
            self.stop.check()?;
            case.clone().run(self.seed)
        })
    }
}

/// What a case came to.
pub(super) struct Ran {
    pub scenario: Scenario,
    pub report: Report,
}

impl Ran {
    /// The place of a task.
    pub fn place(&self, task: &str) -> Result<usize> {
        let mut tasks = self.scenario.tasks.iter();
        tasks.position(|it| it.name == task).with_context(|| format!("there is no task {task}"))
    }

    pub fn task(&self, task: &str) -> Result<&TaskReport> {
        Ok(&self.report.tasks[self.place(task)?])
    }

    /// The 99.9th percentile of a service, in microseconds.
    pub fn tail_us(&self, task: &str) -> Result<f64> {
        Ok(us(self.task(task)?.latency.quantile(0.999)))
    }

    /// The same as a client sees it.
    pub fn client_tail_us(&self, task: &str) -> Result<f64> {
        Ok(client::tail_us(&self.task(task)?.latency))
    }

    /// Million requests a second that were answered.
    pub fn served_mrps(&self, task: &str) -> Result<f64> {
        Ok(self.task(task)?.answered as f64 / self.scenario.length.0 as f64 * 1e3)
    }

    /// Batch work in cores of an idle host; 0 where the task is not there.
    pub fn work_cores(&self, task: &str) -> f64 {
        let counted = self.scenario.length - self.scenario.warm_up;
        self.task(task).map_or(0.0, |task| task.work.0 as f64 / counted.0.max(1) as f64)
    }
}

pub(super) fn us(time: Nanos) -> f64 {
    time.0 as f64 / 1e3
}
