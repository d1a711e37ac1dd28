//! Three services beside five kinds of batch work.

use anyhow::Result;

use super::super::case::{Case, MEMCACHED_STREAM, Ran, Runner, SILO_STREAM, STORAGE_STREAM};
use super::super::{Figure, Outcome, line, scale};
use super::{largest, percent};

pub const FIGURE: Figure = Figure {
    name: "colocations",
    title: "Fifteen colocations under Caladan: three services beside five kinds of batch work",
    about: "Loads are 20, 50 and 80 % of the service's published peak. Phases of swaptions-GC, x264 and streamcluster are a \
            hundredth as long as in their models, so that dozens of them fall into each run.",
    run,
};

struct Service {
    scenario: (&'static str, &'static str),
    name: &'static str,
    peak: f64,
    /// Milliseconds in the full and in the short form.
    length: (u64, u64),
}

const SERVICES: [Service; 3] = [
    Service { scenario: MEMCACHED_STREAM, name: "memcached", peak: 12e6, length: (30, 6) },
    Service { scenario: STORAGE_STREAM, name: "storage", peak: 0.52e6, length: (300, 60) },
    Service { scenario: SILO_STREAM, name: "silo", peak: 0.65e6, length: (400, 150) },
];
const BATCH: [&str; 5] = ["x264", "streamcluster", "stream-l2", "stream-dram", "swaptions-gc"];
const COMPUTE_BOUND: [&str; 3] = ["x264", "stream-l2", "swaptions-gc"];
const LOADS: [f64; 3] = [0.2, 0.5, 0.8];
const HASTENED: u64 = 100;

/// One service beside one kind of batch work at each load: tails and throughput against alone, batch work against alone.
struct Pair {
    batch: &'static str,
    times: [f64; 3],
    client_times: [f64; 3],
    served_percent: [f64; 3],
    work_percent: [f64; 3],
}

fn run(runner: &Runner) -> Result<Outcome> {
    let mut out = Outcome::default();
    let (mut throughput, mut least_work) = (0.0, f64::INFINITY);
    let (mut tails, mut works) = (Vec::new(), Vec::new());
    for service in &SERVICES {
        let pairs = pairs(runner, service)?;
        let over = |loads: std::ops::Range<usize>| {
            largest(pairs.iter().flat_map(|pair| pair.times[loads.clone()].to_vec()))
        };
        match service.name {
            "memcached" => {
                out.value("memcached_tail_times", over(0..3));
                let times = pairs.iter().flat_map(|pair| pair.client_times);
                out.value("memcached_client_tail_times", largest(times));
            }
            "storage" => out.value("storage_tail_times", over(0..3)),
            _ => {
                out.value("silo_low_tail_times", over(0..1));
                out.value("silo_tail_times", over(1..3));
            }
        }
        for pair in &pairs {
            let change = pair.served_percent[2];
            throughput = if f64::abs(change) > f64::abs(throughput) { change } else { throughput };
            if COMPUTE_BOUND.contains(&pair.batch) {
                least_work = f64::min(least_work, pair.work_percent[0]);
            }
            for (at, load) in LOADS.iter().enumerate() {
                let case =
                    format!("{} at {:.0} % beside {}", service.name, load * 100.0, pair.batch);
                out.point(&case, "caladan", "p999_times_alone", pair.times[at]);
                out.point(&case, "caladan", "batch_percent_of_alone", pair.work_percent[at]);
            }
        }
        for (at, load) in LOADS.iter().enumerate() {
            let name = format!("{} at {:.0} %", service.name, load * 100.0);
            let place = |(place, _): (usize, &Pair)| place as f64;
            let of = |pick: fn(&Pair, usize) -> f64| {
                let points = pairs.iter().enumerate();
                line(&name, points.map(|it| (place(it), pick(it.1, at))).collect::<Vec<_>>())
            };
            tails.push(of(|pair, at| pair.times[at]));
            works.push(of(|pair, at| pair.work_percent[at]));
        }
    }
    out.value("throughput_percent", throughput);
    out.value("batch_least_percent", least_work);
    let names = || BATCH.map(str::to_owned);
    out.panels = vec![
        scale("beside", "99.9 % against alone, ×", tails).named(names()),
        scale("beside", "batch work, % of alone", works).named(names()),
    ];
    Ok(out)
}

fn pairs(runner: &Runner, service: &Service) -> Result<Vec<Pair>> {
    let base = Case::new(service.scenario)?
        .with("length_ms", runner.choose(service.length.0, service.length.1))?
        .hastened(HASTENED);
    let at = |case: &Case, load: f64| {
        case.clone().with(&format!("task.{}.rate", service.name), (load * service.peak) as u64)
    };
    let alone = base.clone().without("stream");
    let mut cases: Vec<Case> = LOADS.iter().map(|load| at(&alone, *load)).collect::<Result<_>>()?;
    for batch in BATCH {
        let beside = base.clone().set("task.stream.model", batch)?;
        cases.push(beside.clone().without(service.name));
        for load in LOADS {
            cases.push(at(&beside, load)?);
        }
    }
    let ran = runner.run(&cases)?;
    let (alone, rest) = ran.split_at(LOADS.len());
    let compare = |(batch, ran): (&'static str, &[Ran])| {
        let mut pair = Pair {
            batch,
            times: [0.0; 3],
            client_times: [0.0; 3],
            served_percent: [0.0; 3],
            work_percent: [0.0; 3],
        };
        let most = ran[0].work_cores("stream");
        for (at, (beside, alone)) in ran[1..].iter().zip(alone).enumerate() {
            pair.times[at] = beside.tail_us(service.name)? / alone.tail_us(service.name)?;
            let seen = (beside.client_tail_us(service.name)?, alone.client_tail_us(service.name)?);
            pair.client_times[at] = seen.0 / seen.1;
            let served = (beside.served_mrps(service.name)?, alone.served_mrps(service.name)?);
            pair.served_percent[at] = percent(served.0, served.1);
            pair.work_percent[at] = 100.0 * beside.work_cores("stream") / most;
        }
        Ok(pair)
    };
    BATCH.into_iter().zip(rest.chunks(1 + LOADS.len())).map(compare).collect()
}
