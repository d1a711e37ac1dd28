//! A service at its capacity that loses half of it.

use anyhow::{Context as _, Result};

use super::super::case::{Case, HALVED_CAPACITY, Runner, us};
use super::super::{Figure, Outcome, line, scale};

pub const FIGURE: Figure = Figure {
    name: "halved-capacity",
    title: "Capacity halved: queueing delay grows by 5 µs in each 10 µs",
    about: "Eight cores serve requests of 10 us at 99 % of what they can, and four of them go offline. What the paper says of a \
            collection that halves the speed of memcached holds for any queue.",
    run,
};

fn run(runner: &Runner) -> Result<Outcome> {
    let mut out = Outcome::default();
    let ran = runner.run(&[Case::new(HALVED_CAPACITY)?])?;
    let ran = ran.first().context("one case is one result")?;
    let points: Vec<(f64, f64)> = ran
        .report
        .timeline
        .iter()
        .map(|sample| (sample.at.0 as f64 / 1e6, us(sample.tasks[0].p50) / 1e3))
        .collect();
    let at = |ms: f64| points.iter().find(|(at, _)| *at >= ms).map(|(_, delay)| *delay);
    let (from, to) = at(22.0).zip(at(40.0)).context("the timeline is too short")?;
    out.value("growth_us_in_10_us", (to - from) / 18.0 * 10.0);
    let published = [(20.0, 0.0), (40.0, 10.0)];
    let lines =
        vec![line("here", points), line("paper: 5 µs in 10 µs", published).into_reference()];
    out.panels = vec![scale("ms", "median latency, ms", lines)];
    Ok(out)
}
