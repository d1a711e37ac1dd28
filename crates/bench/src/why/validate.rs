//! `quell bench why`: whether planted causes of delay are found.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Seek as _};

use anyhow::{Context as _, Result};
use quell_load::protocol::keyvalue::KeyValueSpec;
use quell_load::{LoadReport, LoadSpec, ProtocolSpec, Sample, Silent};
use quell_model::{CoreSet, Nanos};
use quell_observe::procs;
use quell_trace::perfetto::{Reader, Writer};
use quell_trace::stream::Source as _;
use quell_trace::why::{Collector, Evidence, Follow, Inquiry, Window};

use super::plants::{Plant, Planted};
use super::{CAUSES, WhySpec, record};
use crate::host::{self, Canary, Policy, Quiet, lc_priority};
use crate::services::{Definition, Service};
use quell_report::BenchReport;
use quell_terminal::{Progress, Stop};

/// Requests a second: the service sleeps most of the time, so that what is planted stands out.
const RATE_RPS: f64 = 5_000.0;
/// Requests that count as planted in a round, and those of them whose main cause was the planted one.
const PLANTED: &str = "injected_requests";
const FOUND: &str = "found_requests";
const FOUND_IN_FILE: &str = "found_in_file_requests";
/// Requests that a stop of the hypervisor met as well, as a watch on the host sees them: they are left out.
const STALLED: &str = "stalled_requests";
/// A gap of the spinning load generator that counts as a planted stall.
const STALL_MIN: Nanos = Nanos::from_micros(200);

/// Plants each cause beside a memcached under load, and asks of each request that was in flight meanwhile and
/// slow what its main cause was: of what was recorded live, and of a file with the same.
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
        for (metric, value) in measure(Plant::ALL[at], spec, stop)? {
            values.entry((at, metric)).or_default().push(value);
        }
        Ok(())
    });
    host::pin(0, &own).context("take back the own affinity")?;
    measured?;
    for (at, plant) in Plant::ALL.iter().enumerate() {
        let rounds = |metric| values.get(&(at, metric)).map_or(0.0, |rounds| rounds.iter().sum());
        let planted: f64 = rounds(PLANTED);
        if planted > 0.0 {
            let mut push = |metric, found: f64| {
                report.push(plant.name(), "quell", metric, vec![found / planted]);
            };
            push("found_share", rounds(FOUND));
            push("found_in_file_share", rounds(FOUND_IN_FILE));
        }
    }
    for ((at, metric), rounds) in values {
        report.push(Plant::ALL[at].name(), "quell", metric, rounds);
    }
    Ok(report)
}

/// How many requests were planted on, and which share of them was found to have which cause.
fn measure(plant: Plant, spec: &WhySpec, stop: &Stop) -> Result<Vec<(&'static str, f64)>> {
    let service = Service::start(&Definition::named("memcached")?, &spec.managed, stop)?;
    let mut quiet = Quiet::keep()?;
    quiet.allow_real_time()?;
    service.group.set_policy(Policy::Fifo(lc_priority()), 0)?;
    let protocol = ProtocolSpec::Memcached(KeyValueSpec { keys: 1_000, ..KeyValueSpec::default() });
    let mut load = LoadSpec::new(service.addr, protocol, RATE_RPS, spec.duration);
    load.core = Some(spec.client);
    let cores = std::iter::once(spec.client).chain(spec.managed.iter());
    let canaries: std::io::Result<Vec<Canary>> =
        cores.map(|core| Canary::start(core, Canary::OFTEN)).collect();
    let mut canaries = canaries.context("watch for stops of the hypervisor")?;
    let recording = record(service.pid())?;
    canaries.iter_mut().try_for_each(Canary::begin).context("start timers")?;
    let planted = Planted::begin(plant, spec, service.pid())?;
    let done = quell_load::run(&load, &mut Silent).context("offer load");
    let windows = planted.end()?.unwrap_or_default();
    let done = done?;
    // Shorter ones are no main cause of a request that counts.
    let shortest = Nanos(plant.bound().0 / 2);
    let stills: std::io::Result<Vec<_>> =
        canaries.iter_mut().map(|canary| canary.end(shortest)).collect();
    let stills = stills.context("stop timers")?.into_iter().flatten();
    let mut file = tempfile::tempfile().context("a file for the recording")?;
    let mut trace = Writer::new(BufWriter::new(&file));
    let live = recording.end_into(&mut trace).context("write the recording")?;
    drop(trace);
    let filed = read(&mut file, service.pid())?;
    let stalled: Vec<_> = stills.map(|still| (still.from, still.to)).collect();
    let stalled = meets_any(&stalled);
    let planted = match plant {
        Plant::Stall => stalls(&done),
        _ => windows,
    };
    let planted = meets_any(&planted);
    let slow = done.samples.iter().filter(|one| one.latency_ns >= plant.bound() && planted(one));
    // What is planted takes long when the hypervisor stops the core, too, and then either is its cause. While the service
    // is stopped its core is halted: late interrupts of that say nothing.
    let is_alone = |one: &&Sample| matches!(plant, Plant::Stall | Plant::Stopped) || !stalled(one);
    let (counted, left_out): (Vec<&Sample>, Vec<&Sample>) = slow.partition(is_alone);
    let kinds = kinds_of(&counted, &super::inquire(&done, live));
    let in_file = kinds_of(&counted, &super::inquire(&done, filed));
    let share = |kind: &str| {
        kinds.iter().filter(|found| **found == kind).count() as f64 / kinds.len().max(1) as f64
    };
    let found = |kinds: &[&str]| kinds.iter().filter(|kind| **kind == plant.kind()).count() as f64;
    let mut values = vec![
        (PLANTED, counted.len() as f64),
        (STALLED, left_out.len() as f64),
        (FOUND, found(&kinds)),
        (FOUND_IN_FILE, found(&in_file)),
    ];
    let others = CAUSES.iter().filter(|(kind, _)| *kind != plant.kind());
    values.extend(others.map(|(kind, metric)| (*metric, share(kind))).filter(|one| one.1 > 0.0));
    Ok(values)
}

/// The kinds of the main causes of requests.
fn kinds_of(requests: &[&Sample], inquiry: &Inquiry) -> Vec<&'static str> {
    let main = |one: &&Sample| inquiry.request(one.sent_ns, one.sent_ns + one.latency_ns).main();
    requests.iter().map(|one| main(one).kind()).collect()
}

/// What a recording says of a service, as `quell why FILE` reads it.
fn read(file: &mut File, service: i32) -> Result<Evidence> {
    file.rewind().context("read the recording")?;
    let reader = Reader::new(BufReader::new(file)).context("read the recording")?;
    let follow = Follow::processes(std::iter::once(service).chain(procs::descendants(service)));
    let mut collector = Collector::new(reader.meta(), follow, Window::ALL);
    for event in reader {
        collector.push(&event.context("read the recording")?);
    }
    Ok(collector.finish())
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
