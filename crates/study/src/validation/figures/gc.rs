//! memcached beside a program that collects its garbage: what reacting in microseconds is for.

use anyhow::Result;
use quell_sim::Sample;

use super::super::case::{Case, GC, Ran, Runner, us};
use super::super::{Figure, MarkTarget as _, Outcome, client, line, scale};
use super::{largest, percent};

pub const FIGURE: Figure = Figure {
    name: "gc",
    title: "memcached at 800,000 requests a second beside a program that collects its garbage",
    about: "Caladan and PARTIES*, which is told a target of 20 us for the 99th percentile and has 10 s to converge. The first \
            collections fall into that time. PARTIES* deals out cores and cache ways, and for comparison cores alone.",
    run,
};

const TASK: &str = "memcached";
const BATCH: &str = "swaptions";
/// Memory traffic of a host on which a collection runs, GB/s: more than the program and the service have without.
const COLLECTS: f64 = 40.0;
/// When PARTIES* has converged, in seconds.
const CONVERGED: f64 = 10.0;

fn run(runner: &Runner) -> Result<Outcome> {
    let mut out = Outcome::default();
    let base = Case::new(GC)?
        .with("length_ms", runner.choose(20_000, 2_500))?
        .with("sample_us", 20_000)?
        .with("warm_up_ms", runner.choose(10_000, 0))?;
    let mut cases = vec![
        base.clone(),
        // The program alone: how long a collection takes.
        base.clone().with("length_ms", 5_000)?.with("warm_up_ms", 0)?.without(TASK),
    ];
    if !runner.short {
        let parties = base
            .with("report_interval_ms", 500)?
            .with("task.memcached.latency_target_us", 20)?
            .policy("parties-star")?;
        cases.push(parties.clone().with("host.llc_ways", 20)?);
        cases.push(parties);
    }
    let ran = runner.run(&cases)?;
    let (caladan, alone) = (&ran[0], &ran[1]);
    out.value("pause_ms", longest_pause_ms(alone));
    let tail = worst_window_us(caladan, if runner.short { 0.1 } else { CONVERGED })?;
    out.value("caladan_tail_us", tail);
    // One in a thousand at most is later than the one, and one than the other.
    out.value("caladan_client_tail_us", tail + client::alone_us());
    out.point("the worst window", "caladan", "p999_us", tail);
    out.point("after 10 s", "caladan", "batch_work_cores", caladan.work_cores(BATCH));
    if let Some(parties) = ran.get(2) {
        let theirs = worst_window_us(parties, CONVERGED)?;
        out.value("parties_tail_ms", theirs / 1e3);
        out.value("parties_against_caladan_times", theirs / tail);
        let work = percent(parties.work_cores(BATCH), caladan.work_cores(BATCH));
        out.value("parties_batch_percent", work);
        out.point("the worst window", "parties-star", "p999_us", theirs);
        out.point("after 10 s", "parties-star", "batch_work_cores", parties.work_cores(BATCH));
    }
    if let Some(cores_alone) = ran.get(3) {
        let theirs = worst_window_us(cores_alone, CONVERGED)?;
        out.value("parties_cores_tail_ms", theirs / 1e3);
        out.value("parties_cores_against_caladan_times", theirs / tail);
        out.point("the worst window", "parties-star, cores alone", "p999_us", theirs);
    }
    let names = ["caladan", "parties-star", "parties-star, cores alone"];
    let shown: Vec<(&str, &Ran)> =
        names.into_iter().zip(ran.iter().take(1).chain(ran.iter().skip(2))).collect();
    let of = |pick: &dyn Fn(&Ran, &Sample) -> f64| {
        let line = |(name, ran): &(&str, &Ran)| {
            let samples = ran.report.timeline.iter();
            line(name, samples.map(|sample| (seconds(sample), pick(ran, sample))))
        };
        shown.iter().map(line).collect()
    };
    let place = caladan.place(TASK)?;
    let batch = caladan.place(BATCH)?;
    let step = caladan.scenario.sample.0 as f64;
    out.panels = vec![
        scale("seconds", "memcached 99.9 %, µs", of(&|_, it| us(it.tasks[place].p999)))
            .logarithmic()
            .mark("caladan_tail_us", 1.0, None)
            .mark("parties_tail_ms", 1e3, None),
        scale("seconds", "batch work, cores", of(&|_, it| it.tasks[batch].work.0 as f64 / step)),
        scale("seconds", "memory traffic, GB/s", of(&|_, it| it.traffic.0 as f64 / 1e9)),
    ];
    Ok(out)
}

fn seconds(sample: &Sample) -> f64 {
    sample.at.0 as f64 / 1e9
}

fn worst_window_us(ran: &Ran, after: f64) -> Result<f64> {
    let place = ran.place(TASK)?;
    let windows = ran.report.timeline.iter().filter(|sample| seconds(sample) > after);
    Ok(largest(windows.map(|sample| us(sample.tasks[place].p999))))
}

/// The longest row of windows in which the memory is as busy as only collections make it.
fn longest_pause_ms(ran: &Ran) -> f64 {
    let busy = |sample: &Sample| sample.traffic.0 as f64 / 1e9 > COLLECTS;
    let windows = ran.report.timeline.split(|sample| !busy(sample)).map(<[Sample]>::len).max();
    windows.unwrap_or_default() as f64 * ran.scenario.sample.0 as f64 / 1e6
}
