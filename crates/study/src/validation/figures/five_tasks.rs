//! Three services and two batch programs under load steps.

use anyhow::{Context as _, Result, bail};
use quell_model::Nanos;
use quell_sim::{Load, Sample, Scenario};

use super::super::case::{Case, FIVE_TASKS, Ran, Runner, us};
use super::super::{Figure, Outcome, line, scale};
use super::{largest, percent};
use quell_report::stats::median;

pub const FIGURE: Figure = Figure {
    name: "five-tasks",
    title: "Three services and two batch programs under load steps, Caladan",
    about: "memcached, silo and storage have six guaranteed cores each and may burst to all. Batch work is swaptions-GC, whose \
            phases are a tenth as long as in its model so that collections fall into each step, and streamcluster.",
    run,
};

const SERVICES: [(&str, &str); 3] = [
    ("memcached", "memcached_tail_times"),
    ("silo", "silo_tail_times"),
    ("storage", "storage_tail_times"),
];
const BATCH: [&str; 2] = ["swaptions", "streamcluster"];
/// Shares of the run in which all services are at their highest load, and at their lowest.
const HIGHEST: (f64, f64) = (0.41, 0.49);
const LOWEST: (f64, f64) = (0.03, 0.19);

fn run(runner: &Runner) -> Result<Outcome> {
    let mut out = Outcome::default();
    let shorter = runner.choose(1, 10);
    let base = Case::new(FIVE_TASKS)?.with("sample_us", 20_000)?;
    let base = base.hastened(10 * shorter).shortened(shorter);
    let alone = BATCH.iter().fold(base.clone(), |case, batch| case.without(batch));
    let ran = runner.run(&[base, alone])?;
    let [beside, alone] = &ran[..] else { anyhow::bail!("two cases are two results") };
    for (task, target) in SERVICES {
        out.value(target, beside.tail_us(task)? / alone.tail_us(task)?);
        out.point(task, "caladan", "p999_us", beside.tail_us(task)?);
        out.point(task, "alone", "p999_us", alone.tail_us(task)?);
    }
    let mut worst: f64 = 0.0;
    for (task, _) in SERVICES {
        let times = step_tails(beside, task)?.into_iter().zip(step_tails(alone, task)?);
        for (at, (beside, alone)) in times.enumerate() {
            let case = format!("{task}, step {}", at + 1);
            out.point(&case, "caladan", "window_p999_us", beside);
            out.point(&case, "alone", "window_p999_us", alone);
            worst = worst.max(beside / alone);
        }
    }
    out.value("worst_step_tail_times", worst);
    let step = beside.scenario.sample.0 as f64;
    let cores = |sample: &Sample, place: usize| sample.tasks[place].ran.0 as f64 / step;
    let samples = &beside.report.timeline;
    let most = |task: &str| -> Result<f64> {
        let place = beside.place(task)?;
        Ok(largest(samples.iter().map(|sample| cores(sample, place))))
    };
    let most: Result<Vec<f64>> = SERVICES.iter().map(|(task, _)| most(task)).collect();
    out.value("burst_cores", largest(most?));
    let gives_way = percent(batch_work(beside, HIGHEST)?, batch_work(beside, LOWEST)?);
    out.value("batch_gives_way_percent", gives_way);
    let tasks = beside.scenario.tasks.iter().enumerate();
    let of = |places: Vec<usize>, pick: &dyn Fn(&Sample, usize) -> f64| {
        let line = |place: &usize| {
            let points = samples.iter().map(|it| (it.at.0 as f64 / 1e9, pick(it, *place)));
            line(&beside.scenario.tasks[*place].name, points)
        };
        places.iter().map(line).collect::<Vec<_>>()
    };
    let all: Vec<usize> = tasks.map(|(place, _)| place).collect();
    let services = || (0..SERVICES.len()).collect();
    let offered = |it: &Sample, place: usize| it.tasks[place].arrived as f64 / step * 1e3;
    out.panels = vec![
        scale("seconds", "offered, million requests/s", of(services(), &offered)).logarithmic(),
        scale("seconds", "cores", of(all, &cores)),
        scale("seconds", "99.9 % of 20 ms, µs", of(services(), &|it, at| us(it.tasks[at].p999)))
            .logarithmic(),
    ];
    Ok(out)
}

/// The tail of a service in each step of its load: the median over the windows that lie in it, in microseconds.
fn step_tails(ran: &Ran, task: &str) -> Result<Vec<f64>> {
    let place = ran.place(task)?;
    let Scenario { tasks, length, sample, .. } = &ran.scenario;
    let Load::Open { steps, .. } = &tasks[place].load else {
        bail!("{task} has no open load");
    };
    let starts = std::iter::once(Nanos::ZERO).chain(steps.iter().map(|step| step.from));
    let mut bounds: Vec<Nanos> = starts.chain([*length]).collect();
    bounds.dedup();
    let tails = bounds.windows(2).map(|step| {
        let inside = |it: &&Sample| it.at >= step[0] + *sample && it.at <= step[1];
        let windows = ran.report.timeline.iter().filter(inside);
        let tails: Vec<f64> = windows.map(|it| us(it.tasks[place].p999)).collect();
        median(&tails).context("a step of the load is shorter than a window")
    });
    tails.collect()
}

/// Batch work in a part of the run, in cores.
fn batch_work(ran: &Ran, (from, to): (f64, f64)) -> Result<f64> {
    let length = ran.scenario.length.0 as f64;
    let during = |sample: &&Sample| (from..to).contains(&(sample.at.0 as f64 / length));
    let windows: Vec<&Sample> = ran.report.timeline.iter().filter(during).collect();
    let mut work = 0.0;
    for task in BATCH {
        let place = ran.place(task)?;
        work += windows.iter().map(|sample| sample.tasks[place].work.0 as f64).sum::<f64>();
    }
    let time = windows.len() as f64 * ran.scenario.sample.0 as f64;
    (time > 0.0).then_some(work / time).context("no window falls into this part of the run")
}
