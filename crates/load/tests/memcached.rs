//! The generator against Debian's memcached, unmodified.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::Memcached;
use quell_load::protocol::memcached::MemcachedSpec;
use quell_load::{
    Arrivals, Interval, LoadReport, LoadSpec, Progress, ProtocolSpec, Silent, Step, run,
};
use quell_model::Nanos;

fn spec(server: &Memcached, rate_rps: f64, ms: u64) -> LoadSpec {
    let workload = MemcachedSpec { keys: 1_000, ..MemcachedSpec::default() };
    let protocol = ProtocolSpec::Memcached(workload);
    let mut spec = LoadSpec::new(server.addr, protocol, rate_rps, Nanos::from_millis(ms));
    spec.warmup = Nanos::from_millis(50);
    spec
}

fn books_balance(report: &LoadReport) {
    for part in report.steps.iter().chain([&report.overall]) {
        let totals = part.totals;
        assert_eq!(totals.scheduled, totals.sent + totals.unsent);
        assert_eq!(totals.sent, totals.answered + totals.errors + totals.unanswered);
        assert_eq!(part.latency.count, totals.scheduled);
    }
    let kept = report.samples.len() as u64 + report.samples_missing;
    assert_eq!(kept, report.overall.totals.scheduled);
}

#[test]
fn every_request_is_answered_and_every_key_is_found() {
    let server = Memcached::start();
    let report = run(&spec(&server, 5_000.0, 400), &mut Silent).unwrap();
    books_balance(&report);
    let totals = report.overall.totals;
    assert!(totals.scheduled > 1_500, "{totals:?}");
    assert_eq!((totals.answered, totals.misses, totals.errors), (totals.scheduled, 0, 0));
    assert_eq!((report.connections_lost, report.ended_early), (0, None));
}

#[test]
fn keys_that_were_never_stored_count_as_misses_and_not_as_errors() {
    let server = Memcached::start();
    let mut spec = spec(&server, 2_000.0, 200);
    spec.preload = false;
    let report = run(&spec, &mut Silent).unwrap();
    books_balance(&report);
    assert!(report.overall.totals.misses > 0);
    assert_eq!(report.overall.totals.errors, 0);
}

#[test]
fn steps_are_reported_one_by_one_and_samples_fall_into_them() {
    let server = Memcached::start();
    let mut spec = spec(&server, 0.0, 1);
    spec.arrivals = Arrivals::Uniform;
    let step = |rate_rps| Step { rate_rps, duration: Nanos::from_millis(100) };
    spec.steps = vec![step(1_000.0), step(4_000.0), step(1_000.0)];
    let report = run(&spec, &mut Silent).unwrap();
    books_balance(&report);
    let scheduled: Vec<u64> = report.steps.iter().map(|s| s.totals.scheduled).collect();
    assert_eq!(scheduled, [100, 400, 100]);
    for step in &report.steps {
        let inside =
            |s: &&quell_load::Sample| s.sent_ns >= step.start_ns && s.sent_ns < step.end_ns;
        let samples = report.samples.iter().filter(inside).count();
        assert_eq!(samples as u64, step.totals.scheduled);
    }
}

#[test]
fn large_values_come_back_whole() {
    let server = Memcached::start();
    let mut spec = spec(&server, 500.0, 200);
    spec.protocol = ProtocolSpec::Memcached(MemcachedSpec {
        keys: 50,
        value_bytes: 200_000,
        get_permille: 500,
        ..MemcachedSpec::default()
    });
    let report = run(&spec, &mut Silent).unwrap();
    books_balance(&report);
    let totals = report.overall.totals;
    assert_eq!((totals.answered, totals.misses), (totals.scheduled, 0));
}

#[test]
fn a_server_that_dies_ends_the_run_with_its_reason_and_balanced_books() {
    struct KillServer(Option<Memcached>);
    impl Progress for KillServer {
        fn begin(&mut self, _at: Nanos) {
            self.0 = None;
        }
    }
    let server = Memcached::start();
    let spec = spec(&server, 5_000.0, 60_000);
    let report = run(&spec, &mut KillServer(Some(server))).unwrap();
    books_balance(&report);
    assert_eq!(report.connections_lost, spec.connections);
    assert!(report.ended_early.unwrap().contains("connection"));
}

#[test]
fn progress_is_shown_and_can_stop_the_run() {
    #[derive(Default)]
    struct StopAfterOne(Vec<Interval>);
    impl Progress for StopAfterOne {
        fn interval(&mut self, interval: &Interval) {
            self.0.push(*interval);
        }
        fn stop(&mut self) -> bool {
            !self.0.is_empty()
        }
    }
    let server = Memcached::start();
    let mut progress = StopAfterOne::default();
    let report = run(&spec(&server, 1_000.0, 600_000), &mut progress).unwrap();
    books_balance(&report);
    assert!(report.ended_early.unwrap().contains("request"));
    assert!(progress.0[0].offered_rps > 0.0 && progress.0[0].p99_us > 0.0);
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let addr = common::free_addr();
    let protocol = ProtocolSpec::Memcached(MemcachedSpec::default());
    let spec = LoadSpec::new(addr, protocol, 100.0, Nanos::from_millis(10));
    let error = run(&spec, &mut Silent).unwrap_err().to_string();
    assert!(error.contains(&addr.to_string()), "{error}");
}
