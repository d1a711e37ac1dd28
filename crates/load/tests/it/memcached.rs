//! The generator against Debian's memcached, unmodified.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::{Server, books_balance};
use quell_load::protocol::keyvalue::KeyValueSpec;
use quell_load::{
    Arrivals, Bursts, Idle, Interval, LimitedBy, LoadReport, LoadSpec, Progress, ProtocolSpec,
    SearchSpec, Silent, Step, run, search_peak,
};
use quell_model::Nanos;

fn spec(server: &Server, rate_rps: f64, ms: u64) -> LoadSpec {
    let workload = KeyValueSpec { keys: 1_000, ..KeyValueSpec::default() };
    let protocol = ProtocolSpec::Memcached(workload);
    let mut spec = LoadSpec::new(server.addr, protocol, rate_rps, Nanos::from_millis(ms));
    spec.warmup = Nanos::from_millis(50);
    spec
}

#[test]
fn every_request_is_answered_and_every_key_is_found() {
    let server = Server::memcached();
    let report = run(&spec(&server, 5_000.0, 400), &mut Silent).unwrap();
    books_balance(&report);
    let totals = report.overall.totals;
    assert!(totals.scheduled > 1_500, "{totals:?}");
    assert_eq!((totals.answered, totals.misses, totals.errors), (totals.scheduled, 0, 0));
    assert_eq!((report.connections_lost, report.ended_early), (0, None));
}

#[test]
fn keys_that_were_never_stored_count_as_misses_and_not_as_errors() {
    let server = Server::memcached();
    let mut spec = spec(&server, 2_000.0, 200);
    spec.preload = false;
    let report = run(&spec, &mut Silent).unwrap();
    books_balance(&report);
    assert!(report.overall.totals.misses > 0);
    assert_eq!(report.overall.totals.errors, 0);
}

#[test]
fn steps_are_reported_one_by_one_and_samples_fall_into_them() {
    let server = Server::memcached();
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
fn a_trace_is_offered_as_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("arrivals");
    // 100 together, then 100 a millisecond apart; the last ten come after the window.
    let gaps = "0\n".repeat(100) + &"1\n".repeat(100);
    std::fs::write(&file, format!("gaps ms\n{gaps}")).unwrap();
    let server = Server::memcached();
    let mut spec = spec(&server, 1_000.0, 91);
    spec.arrivals = Arrivals::Trace { file: file.clone() };
    let report = run(&spec, &mut Silent).unwrap();
    books_balance(&report);
    assert_eq!(report.overall.totals.scheduled, 190);
    assert!((report.overall.target_rps - 190.0 / 0.091).abs() < 1.0);
    let counts: Vec<u64> = report.timeline.iter().map(|point| point.latency.count).collect();
    assert_eq!(counts[..2], [109, 10]);
    assert_eq!(counts.iter().sum::<u64>(), 190);
    std::fs::remove_file(&file).unwrap();
    assert!(run(&spec, &mut Silent).unwrap_err().to_string().contains("arrivals: "));
}

#[test]
fn bursts_are_offered_and_seen_over_time() {
    let server = Server::memcached();
    let mut spec = spec(&server, 1_000.0, 400);
    let (period, length) = (Nanos::from_millis(200), Nanos::from_millis(50));
    spec.arrivals = Arrivals::Bursts(Bursts { rate_rps: 20_000.0, period, length });
    let report = run(&spec, &mut Silent).unwrap();
    books_balance(&report);
    assert!((report.overall.target_rps - 5_750.0).abs() < 1e-6);
    let start = report.timeline[0].start_ns;
    for point in &report.timeline {
        let in_burst = point.start_ns.since(start).0 % period.0 < length.0;
        assert_eq!(point.offered_rps > 5_000.0, in_burst, "{point:?}");
    }
    let error = search_peak(&SearchSpec::new(spec), &mut |_| true).unwrap_err().to_string();
    assert!(error.contains("rates of their own"), "{error}");
}

#[test]
fn large_values_come_back_whole() {
    let server = Server::memcached();
    let mut spec = spec(&server, 500.0, 200);
    spec.protocol = ProtocolSpec::Memcached(KeyValueSpec {
        keys: 50,
        value_bytes: 200_000,
        get_permille: 500,
        ..KeyValueSpec::default()
    });
    let report = run(&spec, &mut Silent).unwrap();
    books_balance(&report);
    let totals = report.overall.totals;
    assert_eq!((totals.answered, totals.misses), (totals.scheduled, 0));
}

#[test]
fn a_server_that_dies_ends_the_run_with_its_reason_and_balanced_books() {
    struct KillServer(Option<Server>);
    impl Progress for KillServer {
        fn begin(&mut self, _at: Nanos) {
            self.0 = None;
        }
    }
    let server = Server::memcached();
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
    let server = Server::memcached();
    let mut progress = StopAfterOne::default();
    let report = run(&spec(&server, 1_000.0, 600_000), &mut progress).unwrap();
    books_balance(&report);
    assert!(report.ended_early.unwrap().contains("request"));
    assert!(progress.0[0].offered_rps > 0.0 && progress.0[0].p99_us > 0.0);
}

/// A run at 20 million requests a second, which no generator reaches.
fn beyond_the_generator() -> LoadReport {
    let server = Server::memcached();
    let mut spec = spec(&server, 20_000_000.0, 10);
    spec.warmup = Nanos::ZERO;
    spec.arrivals = Arrivals::Uniform;
    spec.grace = Nanos::from_millis(200);
    let report = run(&spec, &mut Silent).unwrap();
    books_balance(&report);
    assert_eq!(report.overall.totals.scheduled, 200_000, "the schedule does not give way");
    report
}

#[test]
fn the_schedule_does_not_follow_the_generator() {
    assert!(beyond_the_generator().overall.totals.late > 0);
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn a_rate_beyond_the_generators_own_shows_as_late_sends() {
    let report = beyond_the_generator();
    let totals = report.overall.totals;
    assert!(totals.late > 0 && report.overall.lateness.max_us > 5.0, "{totals:?}");
    // Which of the two the machine's other work leaves shorter of time is open.
    assert_ne!(report.limited_by, LimitedBy::None, "{}", report.limited_because);
}

#[test]
fn the_peak_is_the_highest_rate_that_was_sustained() {
    let server = Server::memcached();
    let mut search = SearchSpec::new(spec(&server, 0.0, 1));
    (search.start_rps, search.max_rps) = (1_000.0, 4_000.0);
    (search.run, search.attempts) = (Nanos::from_millis(100), 1);
    let mut seen = Vec::new();
    let found = search_peak(&search, &mut |probe| {
        seen.push(probe.clone());
        seen.len() < 6
    })
    .unwrap();
    let sustained = seen.iter().filter(|probe| probe.sustained).map(|probe| probe.rate_rps);
    assert_eq!(found.peak_rps, sustained.fold(0.0, f64::max));
    assert_eq!(found.probes, seen);
}

#[test]
fn a_server_that_refuses_the_preload_is_named() {
    let server = Server::memcached_with(&["-m", "8", "-M"]);
    let mut spec = spec(&server, 100.0, 10);
    let workload = KeyValueSpec { keys: 1_000, value_bytes: 200_000, ..KeyValueSpec::default() };
    spec.protocol = ProtocolSpec::Memcached(workload);
    let error = run(&spec, &mut Silent).unwrap_err().to_string();
    assert!(error.contains("preload") && error.contains("refused"), "{error}");
}

#[test]
fn a_report_survives_json() {
    let server = Server::memcached();
    let report = run(&spec(&server, 1_000.0, 50), &mut Silent).unwrap();
    let json = serde_json::to_string(&report).unwrap();
    let back: LoadReport = serde_json::from_str(&json).unwrap();
    assert_eq!(back.spec, report.spec);
    assert_eq!(back.overall.totals, report.overall.totals);
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let addr = crate::common::free_addr();
    let protocol = ProtocolSpec::Memcached(KeyValueSpec::default());
    let spec = LoadSpec::new(addr, protocol, 100.0, Nanos::from_millis(10));
    let error = run(&spec, &mut Silent).unwrap_err().to_string();
    assert!(error.contains(&addr.to_string()), "{error}");
}

#[test]
fn a_generator_that_sleeps_asks_all_the_same_and_the_kernel_stamps_no_later_than_it_reads() {
    let server = Server::memcached();
    let mut spec = spec(&server, 500.0, 400);
    (spec.idle, spec.stamps) = (Idle::Sleep, true);
    let report = run(&spec, &mut Silent).unwrap();
    books_balance(&report);
    let totals = report.overall.totals;
    assert_eq!((totals.answered, totals.errors), (totals.scheduled, 0));
    assert!(report.generator.wake_up_p99_ns > Nanos::ZERO);
    let received = report.overall.received.unwrap();
    assert_eq!(received.count, totals.answered);
    // Each stamp is older than the reading of the reply that it belongs to.
    assert!(received.p50_us <= report.overall.latency.p50_us);
}
