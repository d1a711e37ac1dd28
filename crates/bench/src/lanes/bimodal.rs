//! Section 3.4 of the article: short requests behind long ones, with and without preemption, on plain pthreads.
//!
//! The server is the example `request-server.c`, built here; it takes its requests from the same rings.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use quell_model::Nanos;

use super::client::{Load, Seen};
use super::request_server::{RequestServer, Said};
use super::requests::poll;
use super::sharing::{PATIENCE, Place};
use super::undisturbed::{self, Latencies, StallWatch};
use crate::host::Canary;
use quell_report::BenchReport;
use quell_terminal::{Progress, Stop};

/// How long a request runs before it makes way, in us: the article's, and one that is some times what a preemption takes on
/// a virtual machine (two switches of threads and a timer: 10 us).
const PUBLISHED_BUDGET_US: u64 = 5;
const BUDGET_US: u64 = 50;
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
    let mut server = match RequestServer::build(place.core) {
        Ok(server) => server,
        Err(why) => {
            report.notes.push(format!("bimodal, fixed: n/a: {why:#}"));
            return Ok(());
        }
    };
    let offered = |krps: u64, long_per_mille: f64, seed: u64| Load {
        ring: PathBuf::new(),
        rings_at: 0,
        rate_rps: Some(krps as f64 * 1e3),
        service: SHORT,
        long: LONG,
        long_per_mille,
        warm_up: WARM_UP,
        duration: Nanos(time.as_nanos() as u64),
        seed,
    };
    server.find_speed(&offered(NAMED_KRPS, 0.0, 0), stop)?;
    let loads: Vec<(String, f64, u64)> = [("bimodal", 5.0), ("fixed", 0.0)]
        .into_iter()
        .flat_map(|(name, long)| RATES_KRPS.map(|krps| (case(name, krps), long, krps)))
        .collect();
    let mut ran: Vec<[Vec<Ran>; SYSTEMS.len()]> =
        loads.iter().map(|_| Default::default()).collect();
    let mut stalls = StallWatch::new(place.core, Canary::OFTEN, &mut report.notes);
    let total = rounds * loads.len() * SYSTEMS.len();
    for round in 0..rounds {
        for (at, (name, long_per_mille, krps)) in loads.iter().enumerate() {
            for (nth, (system, budget_us)) in SYSTEMS.into_iter().enumerate() {
                let done = (round * loads.len() + at) * SYSTEMS.len() + nth;
                progress.step(done, total, &format!("{name}: {system}"));
                let load = offered(*krps, *long_per_mille, round as u64);
                let one = stalls
                    .run(|stalls| run(place, &server, &load, budget_us, stalls, stop))
                    .with_context(|| format!("{name}: {system}"))?;
                ran[at][nth].push(one);
            }
        }
    }
    for ((name, ..), ran) in loads.iter().zip(&ran) {
        tell(report, name, ran);
    }
    let latencies = ran.iter().flatten().flatten().map(|(_, latencies)| latencies);
    report.notes.extend(undisturbed::note_of("bimodal, fixed", latencies));
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

/// What client and server say of a run, and its latencies.
type Ran = ((Seen, Said), Latencies);
/// One of its figures besides.
type Figure = (&'static str, fn(&Ran) -> f64);

fn tell(report: &mut BenchReport, case: &str, ran: &[Vec<Ran>; SYSTEMS.len()]) {
    let others: [Figure; 2] = [
        ("answered_rps", |((seen, _), _)| seen.answered_rps),
        ("client_stopped_percent", |((seen, _), _)| seen.stopped_percent),
    ];
    let own: [Figure; 2] = [
        ("slice_us", |((_, said), _)| said.turn_ns as f64 / 1e3),
        ("floor_us", |((_, said), _)| said.floor_ns as f64 / 1e3),
    ];
    for (at, (system, _)) in SYSTEMS.into_iter().enumerate() {
        for (metric, of) in undisturbed::FIGURES {
            let each = ran[at].iter().map(|(_, latencies)| of(latencies)).collect();
            report.push(case, system, metric, each);
        }
        let own = own.into_iter().filter(|_| at != WITHOUT);
        for (metric, of) in others.into_iter().chain(own) {
            report.push(case, system, metric, ran[at].iter().map(of).collect());
        }
    }
    let p99 = |at: usize| -> Vec<f64> {
        ran[at].iter().map(|(_, latencies)| latencies.p99_us()).collect()
    };
    for at in [PREEMPTIVE, PREEMPTIVE_PUBLISHED] {
        report.compare(
            case,
            (SYSTEMS[at].0, &p99(at)),
            (SYSTEMS[WITHOUT].0, &p99(WITHOUT)),
            "p99_us",
        );
    }
}

/// One run.
fn run(
    place: &Place,
    server: &RequestServer,
    load: &Load,
    budget_us: u64,
    stalls: &mut StallWatch,
    stop: &Stop,
) -> Result<Ran> {
    let mut serving = server.start(load.clone(), budget_us, stop)?;
    stalls.begin()?;
    let seen = poll(&mut serving.client, place, PATIENCE);
    let windows = stalls.end()?;
    let latencies = Latencies::of(&serving.client.kept(), &windows);
    Ok(((seen?, serving.finish(stop)?), latencies))
}

#[cfg(test)]
mod tests {
    use quell_model::CoreId;
    use quell_testkit::host_lock;

    use super::*;
    use quell_terminal::Silent;

    #[test]
    #[ignore = "test-all: needs a quiet host"]
    fn both_servers_answer_and_are_compared_by_their_tails() {
        let _lock = host_lock().unwrap();
        let cores = quell_observe::topology::read().unwrap();
        let core = |at: usize| cores.cores().get(at).map_or(CoreId(0), |core| core.id);
        let place = Place {
            core: core(1),
            other: core(0),
            quell: PathBuf::new(),
            lab: PathBuf::new(),
            prototype: None,
        };
        let mut report = BenchReport::new("lanes", "test");
        let stop = Stop::default();
        let time = Duration::from_millis(100);
        measure(&place, 1, time, &mut report, &mut Silent, &stop).unwrap();
        // How often the hypervisor stops this host's cores is no matter of the test's: a run may have too much of it, or
        // nothing else.
        let stalls = |note: &&String| note.contains("stalls of the hypervisor");
        assert_eq!(report.notes.iter().find(|note| !stalls(note)), None);
        assert!(!report.ratios.is_empty());
        assert!(report.ratios.iter().all(|ratio| ratio.against == "without-preemption"));
        assert!(report.row("fixed 5 krps", "preemptive", "answered_rps").unwrap().median > 0.0);
    }

    #[test]
    fn preemptive_servers_are_compared_with_the_other_by_p99() {
        let samples = |us: u64| {
            let done = Nanos::from_micros(us);
            let requests = vec![crate::stops::Request { due: Nanos::ZERO, done }; 4];
            let kept = super::super::client::Kept { requests, from: Nanos::ZERO, to: done };
            let latencies = Latencies::of(&kept, &[]);
            let seen = Seen {
                answered_rps: 5_000.0,
                count: 4,
                unanswered: 0,
                service_us: None,
                stopped_percent: 0.0,
            };
            vec![((seen, Said::of(1_000, 5_000)), latencies)]
        };
        let mut report = BenchReport::new("lanes", "test");
        tell(&mut report, "fixed 5 krps", &[samples(50), samples(80), samples(100)]);
        assert_eq!(report.ratios.len(), 2);
        assert!(report.ratios.iter().all(|ratio| ratio.against == "without-preemption"));
        assert_eq!(report.ratio("fixed 5 krps", "preemptive", "p99_us").unwrap().median, 0.5);
        let row = |system, metric| report.row("fixed 5 krps", system, metric);
        assert_eq!(row("preemptive", "answered_rps").unwrap().median, 5_000.0);
        assert_eq!(row("preemptive", "floor_us").unwrap().median, 1.0);
        assert!(row("without-preemption", "floor_us").is_none());
    }
}
