//! What each service serves alone.

use anyhow::Result;

use super::super::case::{Case, MEMCACHED_STREAM, Runner, SILO_STREAM, STORAGE_STREAM};
use super::super::{Figure, Outcome, line, scale};

pub const FIGURE: Figure = Figure {
    name: "peaks",
    title: "Throughput of each service alone",
    about: "Each service alone on 22 of the 24 threads, offered more and more. The service times of memcached and storage \
            were derived from their peaks, silo's was published.",
    run,
};

type Service = ((&'static str, &'static str), &'static str, &'static str, f64);

/// Scenario, its service, the target, and the published peak.
const SERVICES: [Service; 3] = [
    (MEMCACHED_STREAM, "memcached", "memcached_peak_mrps", 12.0),
    (STORAGE_STREAM, "storage", "storage_peak_mrps", 0.52),
    (SILO_STREAM, "silo", "silo_peak_mrps", 0.65),
];

fn run(runner: &Runner) -> Result<Outcome> {
    let shares = runner.choose(&[0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3][..], &[0.5, 1.3]);
    let mut out = Outcome::default();
    let mut lines = Vec::new();
    for (scenario, task, target, peak) in SERVICES {
        let alone = Case::new(scenario)?.without("stream");
        let length = if peak > 1.0 { runner.choose(20, 4) } else { runner.choose(200, 50) };
        let cases = shares.iter().map(|share| {
            let case = alone.clone().with("length_ms", length)?;
            case.with(&format!("task.{task}.rate"), (share * peak * 1e6) as u64)
        });
        let mut served = Vec::new();
        for (share, ran) in shares.iter().zip(runner.run(&cases.collect::<Result<Vec<_>>>()?)?) {
            let mrps = ran.served_mrps(task)?;
            let case = format!("{task} at {} M/s", quell_report::table::number(share * peak));
            out.point(&case, "alone", "served_mrps", mrps);
            out.point(&case, "alone", "p999_us", ran.tail_us(task)?);
            served.push((*share * 100.0, mrps / peak * 100.0, ran.tail_us(task)?));
        }
        out.value(
            target,
            super::largest(served.iter().map(|(_, served, _)| served * peak / 100.0)),
        );
        lines.push((task, served));
    }
    let of = |pick: fn(&(f64, f64, f64)) -> (f64, f64)| {
        lines.iter().map(|(task, points)| line(task, points.iter().map(pick))).collect()
    };
    out.panels = vec![
        scale("offered, % of the published peak", "served, %", of(|point| (point.0, point.1))),
        scale("offered, % of the published peak", "99.9 %, µs", of(|point| (point.0, point.2)))
            .logarithmic(),
    ];
    Ok(out)
}
