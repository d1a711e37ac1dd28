//! `quell bench why`: whether planted causes of delay are found.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use quell_load::protocol::keyvalue::KeyValueSpec;
use quell_load::{LoadReport, LoadSpec, ProtocolSpec, Sample, Silent};
use quell_model::{CoreSet, Nanos};
use quell_trace::why::Inquiry;

use super::plants::{Plant, Planted};
use super::{CAUSES, WhySpec, record};
use crate::colocate::{Lc, Server, StallWatch, lc_priority};
use crate::host::{self, Policy};
use quell_report::BenchReport;
use quell_terminal::{Progress, Stop};

/// Requests a second: the service sleeps most of the time, so that what is planted stands out.
const RATE_RPS: f64 = 5_000.0;
/// Requests that count as planted in a round, and those of them whose main cause was the planted one.
const PLANTED: &str = "injected_requests";
const FOUND: &str = "found_requests";
/// A gap of the spinning load generator that counts as a planted stall.
const STALL_MIN: Nanos = Nanos::from_micros(200);

/// Plants each cause beside a memcached under load, and asks of each request that was in flight meanwhile and
/// slow what its main cause was.
///
/// # Errors
/// When a program cannot be started, recording is not allowed, or a stop was asked for.
pub fn run(spec: &WhySpec, progress: &mut dyn Progress, stop: &Stop) -> Result<BenchReport> {
    let _alone = host::alone(progress, stop)?;
    let own = host::affinity(0).context("read the own affinity")?;
    host::pin(0, &CoreSet::of(spec.client)).context("leave the managed cores")?;
    let mut report = BenchReport::new("why", &spec.command);
    let steps = Plant::ALL.len() * spec.rounds;
    let mut values: BTreeMap<(usize, &str), Vec<f64>> = BTreeMap::new();
    let measured = (0..steps).try_for_each(|step| -> Result<()> {
        let at = step % Plant::ALL.len();
        stop.check()?;
        progress.step(step, steps, Plant::ALL[at].name());
        for (metric, value) in measure(Plant::ALL[at], spec)? {
            values.entry((at, metric)).or_default().push(value);
        }
        Ok(())
    });
    host::pin(0, &own).context("take back the own affinity")?;
    measured?;
    for (at, plant) in Plant::ALL.iter().enumerate() {
        let rounds = |metric| values.get(&(at, metric)).map_or(0.0, |rounds| rounds.iter().sum());
        let (found, planted): (f64, f64) = (rounds(FOUND), rounds(PLANTED));
        if planted > 0.0 {
            report.push(plant.name(), "quell", "found_share", vec![found / planted]);
        }
    }
    for ((at, metric), rounds) in values {
        report.push(Plant::ALL[at].name(), "quell", metric, rounds);
    }
    Ok(report)
}

/// How many requests were planted on, and which share of them was found to have which cause.
fn measure(plant: Plant, spec: &WhySpec) -> Result<Vec<(&'static str, f64)>> {
    let service = Server::start(Lc::Memcached, &spec.managed)?;
    service.program.set_policy(Policy::Fifo(lc_priority()), 0)?;
    let protocol = ProtocolSpec::Memcached(KeyValueSpec { keys: 1_000, ..KeyValueSpec::default() });
    let mut load = LoadSpec::new(service.addr, protocol, RATE_RPS, spec.duration);
    load.core = Some(spec.client);
    let mut stall_watch = StallWatch::start(spec.client, &spec.managed)?;
    let recording = record(service.program.pid())?;
    stall_watch.begin()?;
    let planted = Planted::begin(plant, spec, service.program.pid())?;
    let done = quell_load::run(&load, &mut Silent).context("offer load");
    let windows = planted.end()?.unwrap_or_default();
    let done = done?;
    let gaps = stall_watch.end(&done.stalls.windows, &[], false)?;
    let inquiry = super::inquire(&done, recording.end());
    let kinds = match plant {
        Plant::Stall => kinds(&done, &inquiry, plant, meets_any(&stalls(&done))),
        // A fault takes long when the hypervisor stalls it, too.
        Plant::Faults => {
            let stalled: Vec<_> = gaps.iter().map(|gap| (gap.start, gap.end)).collect();
            let (stalled, faulted) = (meets_any(&stalled), meets_any(&windows));
            kinds(&done, &inquiry, plant, |sample| faulted(sample) && !stalled(sample))
        }
        _ => kinds(&done, &inquiry, plant, meets_any(&windows)),
    };
    let share = |kind: &str| {
        kinds.iter().filter(|found| **found == kind).count() as f64 / kinds.len().max(1) as f64
    };
    let found = kinds.iter().filter(|found| **found == plant.kind()).count();
    let mut values = vec![(PLANTED, kinds.len() as f64), (FOUND, found as f64)];
    let others = CAUSES.iter().filter(|(kind, ..)| *kind != plant.kind());
    values.extend(others.map(|(kind, metric, _)| (*metric, share(kind))).filter(|one| one.1 > 0.0));
    Ok(values)
}

/// The kinds of the main causes of slow requests that count as planted.
fn kinds(
    report: &LoadReport,
    inquiry: &Inquiry,
    plant: Plant,
    is_planted: impl Fn(&Sample) -> bool,
) -> Vec<&'static str> {
    let slow = report.samples.iter().filter(|sample| sample.latency_ns >= plant.bound());
    let planted = slow.filter(|sample| is_planted(sample));
    let main = planted.map(|sample| {
        inquiry.request(sample.sent_ns, sample.sent_ns + sample.latency_ns).main().kind()
    });
    main.collect()
}

/// Whether a request was in flight in one of the windows.
fn meets_any(windows: &[(Nanos, Nanos)]) -> impl Fn(&Sample) -> bool {
    |sample| {
        let done = sample.sent_ns + sample.latency_ns;
        windows.iter().any(|(from, to)| sample.sent_ns < *to && *from < done)
    }
}

fn stalls(report: &LoadReport) -> Vec<(Nanos, Nanos)> {
    let gaps = report.stalls.windows.iter().filter(|gap| !gap.switched);
    let long = gaps.filter(|gap| gap.end_ns.since(gap.start_ns) >= STALL_MIN);
    long.map(|gap| (gap.start_ns, gap.end_ns)).collect()
}
