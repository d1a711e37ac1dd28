//! Caladan and Elfen.

use anyhow::Result;

use super::super::case::{Case, MEMCACHED_STREAM, Runner};
use super::super::{Figure, Outcome, line, scale};
use super::largest;

pub const FIGURE: Figure = Figure {
    name: "elfen",
    title: "memcached beside x264 under Caladan and under Elfen",
    about: "Elfen gives the service the first lane of each physical core, and lets batch work have the second while the first is \
            idle. Phases of x264 are a hundredth as long as in its model.",
    run,
};

const TASK: &str = "memcached";
const SYSTEMS: [&str; 2] = ["caladan", "elfen"];

fn run(runner: &Runner) -> Result<Outcome> {
    let mut out = Outcome::default();
    let rates = runner.choose(&[0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0][..], &[1.0, 14.0]);
    let base = Case::new(MEMCACHED_STREAM)?
        .with("length_ms", runner.choose(30, 6))?
        .with("host.tick_us", 5)?
        .set("task.stream.model", "x264")?
        .hastened(100);
    let mut cases = Vec::new();
    for system in SYSTEMS {
        for rate in rates {
            let case = base.clone().policy(system)?;
            cases.push(case.with("task.memcached.rate", (rate * 1e6) as u64)?);
        }
    }
    let ran = runner.run(&cases)?;
    let [mut peaks, mut low] = [[0.0; 2]; 2];
    let (mut tails, mut works, mut serves) = (Vec::new(), Vec::new(), Vec::new());
    for (at, (system, ran)) in SYSTEMS.into_iter().zip(ran.chunks(rates.len())).enumerate() {
        let [mut tail, mut work, mut serve] = [const { Vec::new() }; 3];
        for (rate, ran) in rates.iter().zip(ran) {
            let case = format!("{rate} M/s");
            let values = (ran.tail_us(TASK)?, ran.work_cores("stream"), ran.served_mrps(TASK)?);
            out.point(&case, system, "p999_us", values.0);
            out.point(&case, system, "batch_work_cores", values.1);
            out.point(&case, system, "served_mrps", values.2);
            tail.push((*rate, values.0));
            work.push((*rate, values.1));
            serve.push((*rate, values.2));
            if *rate == 1.0 {
                low[at] = values.1;
            }
        }
        peaks[at] = largest(serve.iter().map(|(_, served)| *served));
        tails.push(line(system, tail));
        works.push(line(system, work));
        serves.push(line(system, serve));
    }
    out.value("throughput_times", peaks[0] / peaks[1]);
    out.value("low_batch_times", low[0] / low[1]);
    let along = "offered, million requests a second";
    out.panels = vec![
        scale(along, "99.9 %, µs", tails).logarithmic(),
        scale(along, "served, million/s", serves),
        scale(along, "batch work, cores", works),
    ];
    Ok(out)
}
