//! Eleven services whose cores change hands all the time.

use anyhow::Result;

use super::super::case::{Case, MANY_SERVICES, Ran, Runner};
use super::super::{Figure, Outcome, line, scale};
use super::largest;

pub const FIGURE: Figure = Figure {
    name: "many-services",
    title: "Eleven services with two cores each beside two batch programs",
    about: "Requests take 2 us on average, exponential (assumed; the scripts say exponential and 0.4 million a second). Compared \
            with services that never give up their cores, so that nothing has to be granted and batch work gets \
            nothing.",
    run,
};

const SERVICES: usize = 11;

fn run(runner: &Runner) -> Result<Outcome> {
    let mut out = Outcome::default();
    let rates = runner.choose(&[0.05, 0.1, 0.2, 0.3, 0.4][..], &[0.2, 0.4]);
    let base = Case::new(MANY_SERVICES)?.with("length_ms", runner.choose(100, 10))?;
    let mut cases = Vec::new();
    for rate in rates {
        let each = (0..SERVICES).try_fold(base.clone(), |case, at| {
            case.with(&format!("task.{}.rate", name(at)), (rate * 1e6) as u64)
        })?;
        let own = (0..SERVICES).try_fold(each.clone(), |case, at| {
            case.with(&format!("task.{}.polls_us", name(at)), 60_000_000)
        })?;
        cases.extend([each, own.without("batch-1").without("batch-2")]);
    }
    let ran = runner.run(&cases)?;
    let (mut extra, mut half) = (0.0, 0.0);
    let (mut tails, mut works) = ([Vec::new(), Vec::new()], Vec::new());
    for (rate, pair) in rates.iter().zip(ran.chunks(2)) {
        let [shared, own] = [worst(&pair[0])?, worst(&pair[1])?];
        let work = pair[0].work_cores("batch-1") + pair[0].work_cores("batch-2");
        extra = f64::max(extra, shared - own);
        half = if *rate == 0.2 { work } else { half };
        let case = format!("{rate} M/s each");
        out.point(&case, "caladan", "worst_p999_us", shared);
        out.point(&case, "cores of their own", "worst_p999_us", own);
        out.point(&case, "caladan", "batch_work_cores", work);
        tails[0].push((*rate, shared));
        tails[1].push((*rate, own));
        works.push((*rate, work));
    }
    out.value("tail_extra_us", extra);
    out.value("batch_cores", half);
    let [shared, own] = tails;
    let along = "offered to each service, million requests a second";
    out.panels = vec![
        scale(
            along,
            "99.9 % of the worst service, µs",
            vec![line("cores of their own", own).into_reference(), line("caladan", shared)],
        ),
        scale(along, "batch work, cores", vec![line("caladan", works)]),
    ];
    Ok(out)
}

fn name(at: usize) -> String {
    format!("service-{}", at + 1)
}

fn worst(ran: &Ran) -> Result<f64> {
    let tails: Result<Vec<f64>> = (0..SERVICES).map(|at| ran.tail_us(&name(at))).collect();
    Ok(largest(tails?))
}
