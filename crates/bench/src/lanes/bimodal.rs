//! Section 3.4 of the article: short requests behind long ones, with and without preemption, on plain pthreads.
//!
//! The server is the example `request-server.c`, built here; it takes its requests from the same rings.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use quell_model::Nanos;

use super::client::{self, Client, Figure, Load, Seen};
use super::requests::poll;
use super::sharing::{PATIENCE, Place};
use crate::host::{self, Program};
use crate::progress::{Progress, Stop};
use crate::report::BenchReport;

/// The sources of the server, as files of a folder.
const SOURCES: [(&str, &str); 3] = [
    ("request-server.c", include_str!("../../../../examples/lanes/request-server.c")),
    ("request_ring.h", include_str!("../../../../examples/lanes/request_ring.h")),
    ("quell_lane.h", include_str!("../../../lane/include/quell_lane.h")),
];
/// How long a request runs before it makes way, in us: the article's, and one that is some times what a preemption takes on
/// a virtual machine (two switches of threads and a timer: 10 us).
const PUBLISHED_BUDGET_US: u64 = 5;
const BUDGET_US: u64 = 50;
/// Threads that serve: the article's.
const WORKERS: u64 = 128;
/// Requests a second; the article's README has 20,000.
pub const RATES_KRPS: [u64; 4] = [5, 20, 50, 100];
/// The rate whose cases carry no number in their names.
const NAMED_KRPS: u64 = 20;
const SHORT: Nanos = Nanos(500);
const LONG: Nanos = Nanos::from_micros(500);
const WARM_UP: Nanos = Nanos::from_millis(100);

/// The article's README, at 20 krps over 32 connections: p50 and p99 in us.
const PUBLISHED: [(&str, f64, f64); 2] =
    [("paper, preemptive", 34.0, 107.0), ("paper, without-preemption", 34.0, 539.0)];

/// The systems, and their budgets in us.
pub const SYSTEMS: [(&str, u64); 3] = [
    ("preemptive", BUDGET_US),
    ("preemptive, 5 us", PUBLISHED_BUDGET_US),
    ("without-preemption", 0),
];
/// Their places in `SYSTEMS`; the last is what the others are compared with.
const PREEMPTIVE: usize = 0;
const PREEMPTIVE_PUBLISHED: usize = 1;
const WITHOUT: usize = 2;

/// Measures all loads, and adds their rows.
///
/// # Errors
/// When the server cannot be built or fails, or a stop was asked for.
pub fn measure(
    place: &Place,
    rounds: usize,
    time: Duration,
    report: &mut BenchReport,
    progress: &mut dyn Progress,
    stop: &Stop,
) -> Result<()> {
    let folder = host::folder()?;
    let server = match build(folder.path()) {
        Ok(server) => server,
        Err(why) => {
            report.notes.push(format!("bimodal, fixed: n/a: {why:#}"));
            return Ok(());
        }
    };
    let loads: Vec<(String, f64, u64)> = [("bimodal", 5.0), ("fixed", 0.0)]
        .into_iter()
        .flat_map(|(name, long)| RATES_KRPS.map(|krps| (case(name, krps), long, krps)))
        .collect();
    let mut seen: Vec<[Vec<Seen>; SYSTEMS.len()]> =
        loads.iter().map(|_| Default::default()).collect();
    let total = rounds * loads.len() * SYSTEMS.len();
    for round in 0..rounds {
        for (at, (name, long_per_mille, krps)) in loads.iter().enumerate() {
            for (nth, (system, budget_us)) in SYSTEMS.into_iter().enumerate() {
                let done = (round * loads.len() + at) * SYSTEMS.len() + nth;
                progress.step(done, total, &format!("{name}: {system}"));
                let load = Load {
                    ring: PathBuf::new(),
                    rings_at: 0,
                    rate_rps: Some(*krps as f64 * 1e3),
                    service: SHORT,
                    long: LONG,
                    long_per_mille: *long_per_mille,
                    warm_up: WARM_UP,
                    duration: Nanos(time.as_nanos() as u64),
                    seed: round as u64,
                };
                let one = run(place, &server, load, budget_us, stop)
                    .with_context(|| format!("{name}: {system}"))?;
                seen[at][nth].push(one);
            }
        }
    }
    for ((name, ..), seen) in loads.iter().zip(&seen) {
        tell(report, name, seen);
    }
    for (system, p50, p99) in PUBLISHED {
        report.push("bimodal", system, "p50_us", vec![p50]);
        report.push("bimodal", system, "p99_us", vec![p99]);
    }
    Ok(())
}

/// The name of a load's case.
pub fn case(name: &str, krps: u64) -> String {
    match krps {
        NAMED_KRPS => name.to_owned(),
        _ => format!("{name} {krps} krps"),
    }
}

fn tell(report: &mut BenchReport, case: &str, seen: &[Vec<Seen>; SYSTEMS.len()]) {
    let metrics: [(&str, Figure); 5] = [
        ("p50_us", |seen| seen.p50_us),
        ("p99_us", |seen| seen.p99_us),
        ("p99.9_us", |seen| seen.p999_us),
        ("answered_rps", |seen| seen.answered_rps),
        ("client_stopped_percent", |seen| seen.stopped_percent),
    ];
    for ((system, _), seen) in SYSTEMS.into_iter().zip(seen) {
        for (metric, of) in metrics {
            report.push(case, system, metric, seen.iter().map(of).collect());
        }
    }
    let p99 = |at: usize| -> Vec<f64> { seen[at].iter().map(|seen| seen.p99_us).collect() };
    for at in [PREEMPTIVE, PREEMPTIVE_PUBLISHED] {
        report.compare(
            case,
            (SYSTEMS[at].0, &p99(at)),
            (SYSTEMS[WITHOUT].0, &p99(WITHOUT)),
            "p99_us",
        );
    }
}

/// Builds the server.
fn build(folder: &Path) -> Result<PathBuf> {
    for (name, text) in SOURCES {
        std::fs::write(folder.join(name), text)?;
    }
    let program = folder.join("request-server");
    let mut command = Command::new("cc");
    command.current_dir(folder).args(["-O2", "-pthread", "-I.", "-o"]).arg(&program);
    let built = command.arg(SOURCES[0].0).output().context("no C compiler (cc)")?;
    let said = String::from_utf8_lossy(&built.stderr);
    ensure!(built.status.success(), "cc cannot build request-server.c: {}", said.trim());
    Ok(program)
}

/// One run.
fn run(place: &Place, server: &Path, mut load: Load, budget_us: u64, stop: &Stop) -> Result<Seen> {
    stop.check()?;
    let folder = host::folder()?;
    load.ring = folder.path().join("ring");
    client::make(&load)?;
    let mut client = Client::open(load.clone())?;
    let mut command = Command::new(server);
    command.arg("--ring").arg(&load.ring).args(["--core", &place.core.to_string()]);
    command.args(["--workers", &WORKERS.to_string(), "--budget", &budget_us.to_string()]);
    let mut program = Program::start("request-server", &mut command)?;
    let until = Instant::now() + PATIENCE;
    while !client.ring().is_ready() {
        program.check()?;
        ensure!(Instant::now() < until, "request-server does not serve");
        stop.sleep(Duration::from_millis(5))?;
    }
    let seen = poll(&mut client, place, PATIENCE);
    client.ring().stop();
    let until = Instant::now() + Duration::from_secs(2);
    // It ends by itself; dropped, it is killed.
    while program.check().is_ok() && Instant::now() < until {
        stop.sleep(Duration::from_millis(5))?;
    }
    drop(program);
    seen
}

#[cfg(test)]
mod tests {
    use quell_linux::testing::host_lock;
    use quell_model::CoreId;

    use super::*;
    use crate::progress::Silent;

    #[test]
    fn both_servers_answer_and_are_compared_by_their_tails() {
        let _lock = host_lock().unwrap();
        let cores = quell_linux::observe::topology::read().unwrap();
        let core = |at: usize| cores.cores().get(at).map_or(CoreId(0), |core| core.id);
        let place = Place { core: core(1), other: core(0), quell: PathBuf::new(), prototype: None };
        let mut report = BenchReport::new("lanes", "test");
        let stop = Stop::default();
        let time = Duration::from_millis(50);
        measure(&place, 1, time, &mut report, &mut Silent, &stop).unwrap();
        assert_eq!(report.notes, Vec::<String>::new());
        let ratio = report.ratio("bimodal", "preemptive", "p99_us").unwrap();
        assert_eq!(ratio.against, "without-preemption");
        assert!(report.row("fixed 5 krps", "preemptive", "answered_rps").unwrap().median > 0.0);
    }
}
