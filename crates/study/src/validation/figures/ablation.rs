//! What each controller contributes.

use anyhow::Result;

use super::super::case::{Case, Ran, Runner, STORAGE_STREAM};
use super::super::{Figure, Outcome, line, scale};
use super::percent;

pub const FIGURE: Figure = Figure {
    name: "ablation",
    title: "storage beside stream-DRAM with none, one and both controllers",
    about: "Loads are shares of storage's published peak of 0.52 million requests a second; siblings are idled after 40 us.",
    run,
};

const TASK: &str = "storage";
const PEAK: f64 = 0.52e6;

/// What it is called, the bandwidth limit, and whether there is hyperthread control.
const VARIANTS: [(&str, u64, bool); 4] = [
    ("neither", 0, false),
    ("bandwidth", 25_000_000_000, false),
    ("hyperthread", 0, true),
    ("both", 25_000_000_000, true),
];

fn run(runner: &Runner) -> Result<Outcome> {
    let mut out = Outcome::default();
    let loads = runner.choose(&[0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9][..], &[0.2, 0.5, 0.8]);
    let base = Case::new(STORAGE_STREAM)?.with("length_ms", runner.choose(400, 80))?;
    let mut cases = Vec::new();
    for load in loads {
        let case = base.clone().with("task.storage.rate", (load * PEAK) as u64)?;
        cases.push(case.clone().without("stream"));
        for (_, limit, hyperthread) in VARIANTS {
            let case = case.clone().with("policy.bandwidth_limit", limit)?;
            cases.push(case.set("policy.hyperthread", hyperthread)?);
        }
    }
    let ran = runner.run(&cases)?;
    let mut tails = vec![Vec::new(); 1 + VARIANTS.len()];
    let mut works = vec![Vec::new(); VARIANTS.len()];
    for (load, row) in loads.iter().zip(ran.chunks(1 + VARIANTS.len())) {
        for (at, ran) in row.iter().enumerate() {
            tails[at].push((load * 100.0, ran.tail_us(TASK)?));
            let system = if at == 0 { "alone" } else { VARIANTS[at - 1].0 };
            let case = format!("{:.0} %", load * 100.0);
            out.point(&case, system, "p999_us", ran.tail_us(TASK)?);
            if at > 0 {
                works[at - 1].push((load * 100.0, ran.work_cores("stream")));
                out.point(&case, system, "batch_work_cores", ran.work_cores("stream"));
            }
        }
        judge(*load, row, &mut out)?;
    }
    let names = VARIANTS.map(|(name, ..)| name);
    let mut lines: Vec<_> =
        ["alone"].into_iter().chain(names).zip(tails).map(|(name, it)| line(name, it)).collect();
    lines[0].reference = true;
    let works = names.into_iter().zip(works).map(|(name, it)| line(name, it)).collect();
    out.panels = vec![
        scale("offered, % of the peak", "99.9 %, µs", lines),
        scale("offered, % of the peak", "batch work, cores", works),
    ];
    Ok(out)
}

/// The targets at this load; `row` is alone, then the variants.
fn judge(load: f64, row: &[Ran], out: &mut Outcome) -> Result<()> {
    let [alone, _, bandwidth, hyperthread, both] = row else { return Ok(()) };
    let times = |one: &Ran, other: &Ran| {
        Ok::<f64, anyhow::Error>(one.tail_us(TASK)? / other.tail_us(TASK)?)
    };
    match load {
        0.2 => out.value("low_bandwidth_alone_times", times(bandwidth, alone)?),
        0.5 => {
            let work = percent(bandwidth.work_cores("stream"), both.work_cores("stream"));
            out.value("without_hyperthread_batch_percent", work);
            let tail = 100.0 * (times(bandwidth, both)? - 1.0);
            out.value("without_hyperthread_tail_percent", tail);
        }
        0.8 => {
            out.value("high_bandwidth_alone_times", times(bandwidth, both)?);
            out.value("high_hyperthread_alone_times", times(hyperthread, both)?);
        }
        _ => {}
    }
    Ok(())
}
