//! What happens when Caladan's parameters are others than the published ones.

use anyhow::{Context as _, Result};

use super::super::case::{Case, MEMCACHED_STREAM, PULSES, Ran, Runner, STORAGE_STREAM};
use super::super::{Figure, Outcome, line, scale};
use super::percent;
use quell_report::plot::Line;
use quell_report::table::number;

pub const QUEUEING_DELAY: Figure = Figure {
    name: "queueing-delay",
    title: "Sensitivity: the queueing delay at which a task is congested",
    about: "memcached at 4 million requests a second beside x264, whose phases are a hundredth as long as in its model, with all \
            22 cores guaranteed and with 2. Published: 10 us.",
    run: queueing_delay,
};

pub const SIBLING_THRESHOLD: Figure = Figure {
    name: "sibling-threshold",
    title: "Sensitivity: the time after which siblings are idled",
    about: "storage at half its peak beside stream-L2. Its median service time is 26 us; published: 40 us.",
    run: sibling_threshold,
};

pub const BANDWIDTH_LIMIT: Figure = Figure {
    name: "bandwidth-limit",
    title: "Sensitivity: the limit of memory traffic",
    about: "memcached at 4 million requests a second beside stream-DRAM. Published: 25 GB/s.",
    run: bandwidth_limit,
};

pub const INTERVAL: Figure = Figure {
    name: "interval",
    title: "Sensitivity: the interval between decisions",
    about: "memcached at 4 million requests a second beside a program that computes and fills the memory in turns, some 50 times \
            a second. All decisions are that far apart, those on cores as well. Published: 10 us.",
    run: interval,
};

/// One parameter over its values.
struct Sweep {
    task: &'static str,
    batch: &'static str,
    along: &'static str,
    tails: Vec<f64>,
    /// As a client sees them.
    client_tails: Vec<f64>,
    works: Vec<f64>,
}

impl Sweep {
    /// Runs `base` with each value; `set` makes the case and names it.
    fn run<T: Copy>(
        runner: &Runner,
        base: &Case,
        (task, batch, along): (&'static str, &'static str, &'static str),
        values: &[T],
        set: impl Fn(Case, T) -> Result<Case>,
    ) -> Result<Sweep> {
        let cases: Result<Vec<Case>> =
            values.iter().map(|value| set(base.clone(), *value)).collect();
        let ran = runner.run(&cases?)?;
        let tails = ran.iter().map(|ran| ran.tail_us(task)).collect::<Result<_>>()?;
        let client_tails = ran.iter().map(|ran| ran.client_tail_us(task)).collect::<Result<_>>()?;
        let works = ran.iter().map(|ran| ran.work_cores(batch)).collect();
        Ok(Sweep { task, batch, along, tails, client_tails, works })
    }

    /// Points and picture.
    fn outcome(&self, names: Vec<String>) -> Outcome {
        let mut out = Outcome::default();
        for (at, name) in names.iter().enumerate() {
            let case = format!("{} {name}", self.along);
            out.point(&case, "caladan", "p999_us", self.tails[at]);
            out.point(&case, "caladan", "batch_work_cores", self.works[at]);
        }
        let tail = scale(self.along, "99.9 %, µs", vec![Sweep::curve(self.task, &self.tails)]);
        let work = Sweep::curve(self.batch, &self.works);
        let work = scale(self.along, "batch work, cores", vec![work]);
        out.panels = vec![tail.named(names.clone()), work.named(names)];
        out
    }

    fn curve(name: &str, values: &[f64]) -> Line {
        line(name, values.iter().enumerate().map(|(at, value)| (at as f64, *value)))
    }
}

/// The place of a value.
fn at<T: PartialEq>(values: &[T], value: T) -> Result<usize> {
    values.iter().position(|it| *it == value).context("every form has this value")
}

fn queueing_delay(runner: &Runner) -> Result<Outcome> {
    let values = runner.choose(&[1, 2, 5, 10, 20, 50, 100, 200][..], &[2, 10]);
    let base = Case::new(MEMCACHED_STREAM)?
        .with("length_ms", runner.choose(50, 10))?
        .with("task.memcached.rate", 4_000_000)?
        .set("task.stream.model", "x264")?
        .hastened(100);
    let run = |base: &Case| {
        let what = ("memcached", "stream", "congested after, µs");
        Sweep::run(runner, base, what, values, |case, us| {
            case.with("task.memcached.delay_target_us", us)
        })
    };
    let all = run(&base)?;
    let bursts = run(&base.with("task.memcached.guaranteed", 2)?)?;
    let mut out = all.outcome(values.iter().map(u64::to_string).collect());
    for (panel, values) in out.panels.iter_mut().zip([&bursts.tails, &bursts.works]) {
        panel.lines[0].name += ", 22 guaranteed";
        panel.lines.push(Sweep::curve("the same, 2 guaranteed", values));
    }
    let (low, published) = (at(values, 2)?, at(values, 10)?);
    let change = |values: &[f64]| percent(values[low], values[published]);
    out.value("batch_below_10_us_percent", change(&all.works));
    out.value("tail_below_10_us_percent", change(&all.tails));
    out.value("burst_batch_below_10_us_percent", change(&bursts.works));
    out.value("burst_tail_below_10_us_percent", change(&bursts.tails));
    out.value("burst_client_tail_below_10_us_percent", change(&bursts.client_tails));
    Ok(out)
}

/// The median service time is 26 us: half of it, and one and a half times.
const BELOW_MEDIAN: u64 = 13;
const ABOVE_MEDIAN: u64 = 39;

fn sibling_threshold(runner: &Runner) -> Result<Outcome> {
    let values = runner.choose(
        &[5, BELOW_MEDIAN, 20, 26, ABOVE_MEDIAN, 60, 100, 0][..],
        &[BELOW_MEDIAN, ABOVE_MEDIAN, 0],
    );
    let base = Case::new(STORAGE_STREAM)?
        .with("length_ms", runner.choose(400, 80))?
        .set("task.stream.model", "stream-l2")?;
    let what = ("storage", "stream", "siblings idled after, µs");
    let sweep = Sweep::run(runner, &base, what, values, |case, us| {
        case.with("task.storage.sibling_idle_after_us", us)
    })?;
    let name = |us: &u64| if *us == 0 { "never".to_owned() } else { us.to_string() };
    let mut out = sweep.outcome(values.iter().map(name).collect());
    let (below, above) = (at(values, BELOW_MEDIAN)?, at(values, ABOVE_MEDIAN)?);
    let never = at(values, 0)?;
    let against_above = |values: &[f64], place: usize| percent(values[place], values[above]);
    out.value("batch_below_median_percent", against_above(&sweep.works, below));
    out.value("never_batch_percent", against_above(&sweep.works, never));
    out.value("never_tail_percent", against_above(&sweep.tails, never));
    Ok(out)
}

fn bandwidth_limit(runner: &Runner) -> Result<Outcome> {
    let values = runner.choose(&[10, 15, 20, 25, 30, 40, 50, 0][..], &[25, 0]);
    let base = Case::new(MEMCACHED_STREAM)?
        .with("length_ms", runner.choose(50, 10))?
        .with("task.memcached.rate", 4_000_000)?;
    let alone = runner.run(&[base.clone().without("stream")])?;
    let alone: Result<Vec<f64>> = alone.iter().map(|ran: &Ran| ran.tail_us("memcached")).collect();
    let alone = *alone?.first().context("one case is one result")?;
    let what = ("memcached", "stream", "limit, GB/s");
    let sweep = Sweep::run(runner, &base, what, values, |case, gb| {
        case.with("policy.bandwidth_limit", gb * 1_000_000_000)
    })?;
    let name = |gb: &u64| if *gb == 0 { "none".to_owned() } else { gb.to_string() };
    let mut out = sweep.outcome(values.iter().map(name).collect());
    let last = values.len() as f64 - 1.0;
    out.panels[0].lines.push(line("alone", [(0.0, alone), (last, alone)]).into_reference());
    let (published, none) = (at(values, 25)?, at(values, 0)?);
    out.value("tail_at_limit_times", sweep.tails[published] / alone);
    out.value("tail_without_limit_times", sweep.tails[none] / sweep.tails[published]);
    Ok(out)
}

fn interval(runner: &Runner) -> Result<Outcome> {
    let values = runner.choose(&[10, 20, 50, 100, 300, 1_000][..], &[10, 1_000]);
    let base = Case::new(PULSES)?.with("length_ms", runner.choose(200, 60))?;
    let what = ("memcached", "pulses", "decisions each, µs");
    let sweep = Sweep::run(runner, &base, what, values, |case, us| case.with("host.tick_us", us))?;
    let mut out = sweep.outcome(values.iter().map(|us| number(*us as f64)).collect());
    let (published, slow) = (at(values, 10)?, at(values, 1_000)?);
    out.value("tail_at_1_ms_times", sweep.tails[slow] / sweep.tails[published]);
    Ok(out)
}
