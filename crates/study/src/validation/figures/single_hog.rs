//! A single thread that alone exceeds the limit.

use anyhow::{Context as _, Result};

use super::super::case::{Case, Runner, SINGLE_HOG};
use super::super::{Figure, Outcome, line, scale};

pub const FIGURE: Figure = Figure {
    name: "single-hog",
    title: "A single thread that alone uses twice the memory bandwidth that it may",
    about: "One thread of stream-DRAM (11 GB/s) under a limit of 5 GB/s, beside memcached at 100,000 requests a second.",
    run,
};

const TASK: &str = "hog";
/// What the picture shows, in milliseconds.
const SHOWN: f64 = 1.5;

fn run(runner: &Runner) -> Result<Outcome> {
    let mut out = Outcome::default();
    let case = Case::new(SINGLE_HOG)?.with("length_ms", runner.choose(100, 20))?;
    let ran = runner.run(&[case])?;
    let ran = ran.first().context("one case is one result")?;
    let place = ran.place(TASK)?;
    let step = ran.scenario.sample.0 as f64;
    let cores: Vec<f64> =
        ran.report.timeline.iter().map(|it| it.tasks[place].ran.0 as f64 / step).collect();
    let seconds = ran.scenario.length.0 as f64 / 1e9;
    out.value("mean_cores", ran.task(TASK)?.ran.0 as f64 / 1e9 / seconds);
    let changes = cores.windows(2).filter(|pair| (pair[0] > 0.5) != (pair[1] > 0.5)).count();
    out.value("changes_per_s", changes as f64 / seconds);
    let traffic = ran.report.memory_bytes.0 as f64 / seconds;
    out.value("traffic_percent_of_limit", 100.0 * traffic / 5e9);
    let shown =
        ran.report.timeline.iter().zip(&cores).map(|(sample, cores)| {
            (sample.at.0 as f64 / 1e6, *cores, sample.traffic.0 as f64 / 1e9)
        });
    let shown: Vec<_> =
        shown.skip_while(|(ms, ..)| *ms < 10.0).take_while(|(ms, ..)| *ms < 10.0 + SHOWN).collect();
    let at = |(ms, ..): &(f64, f64, f64)| (ms - 10.0) * 1e3;
    let limit = [(0.0, 5.0), (SHOWN * 1e3, 5.0)];
    out.panels = vec![
        scale("µs", "cores of the hog", vec![line("cores", shown.iter().map(|it| (at(it), it.1)))]),
        scale(
            "µs",
            "memory traffic, GB/s",
            vec![
                line("traffic", shown.iter().map(|it| (at(it), it.2))),
                line("limit", limit).into_reference(),
            ],
        ),
    ];
    Ok(out)
}
