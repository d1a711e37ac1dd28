//! The generator against the synthetic server, end to end.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use quell_load::protocol::synthetic::{
    FRAME_BYTES, Op, Reply, Request, ServiceTime, SyntheticSpec,
};
use quell_load::serve::{ServeSpec, Server, send_runaway};
use quell_load::{Idle, LimitedBy, LoadReport, LoadSpec, ProtocolSpec, Silent, run};
use quell_model::Nanos;

fn server(workers: usize, allow_runaway: bool) -> Server {
    let spec = ServeSpec::new("127.0.0.1:0".parse().unwrap());
    Server::start(&ServeSpec { workers, allow_runaway, ..spec }).unwrap()
}

fn load(server: &Server, service: ServiceTime, rate_rps: f64, ms: u64) -> LoadSpec {
    let protocol = ProtocolSpec::Synthetic(SyntheticSpec { service });
    let mut spec = LoadSpec::new(server.addr(), protocol, rate_rps, Nanos::from_millis(ms));
    spec.warmup = Nanos::from_millis(20);
    spec
}

fn ask(stream: &mut TcpStream, request: Request) -> Reply {
    stream.write_all(&request.to_bytes()).unwrap();
    let mut frame = [0; FRAME_BYTES];
    stream.read_exact(&mut frame).unwrap();
    Reply::from_bytes(&frame).unwrap()
}

#[test]
fn every_request_is_worked_on_and_answered_whatever_the_service_time() {
    let services = [
        ServiceTime::Fixed { work_ns: 2_000 },
        ServiceTime::Exponential { mean_ns: 5_000 },
        ServiceTime::Bimodal { short_ns: 500, long_ns: 200_000, long_permille: 5 },
    ];
    for service in services {
        let server = server(2, false);
        let report = run(&load(&server, service, 2_000.0, 200), &mut Silent).unwrap();
        let totals = report.overall.totals;
        assert!(totals.scheduled > 200);
        assert_eq!((totals.answered, totals.errors), (totals.scheduled, 0));
        let served = server.stop();
        assert!(served.served >= totals.answered && served.malformed == 0);
    }
}

#[test]
fn short_requests_have_latencies_of_their_own_where_some_are_long() {
    let server = server(2, false);
    let service = ServiceTime::Bimodal { short_ns: 500, long_ns: 3_000_000, long_permille: 200 };
    let report = run(&load(&server, service, 500.0, 400), &mut Silent).unwrap();
    let (all, short) = (report.overall.latency, report.overall.short.unwrap());
    let share = short.count as f64 / all.count as f64;
    assert!((0.6..0.95).contains(&share), "{share} of the requests are short");
    assert!(short.min_us <= all.min_us && short.max_us <= all.max_us, "{all:?} {short:?}");
    let plain = load(&server, ServiceTime::Fixed { work_ns: 500 }, 500.0, 100);
    assert_eq!(run(&plain, &mut Silent).unwrap().overall.short, None);
}

/// The reply to 3 ms of work.
fn worked() -> Reply {
    let server = server(1, false);
    let mut stream = TcpStream::connect(server.addr()).unwrap();
    ask(&mut stream, Request { id: 9, op: Op::Work { work_ns: 3_000_000 } })
}

#[test]
fn work_is_done_and_its_time_is_in_the_reply() {
    let reply = worked();
    assert_eq!((reply.id, reply.done), (9, true));
    assert!(reply.spent_ns > 0, "{reply:?}");
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn work_takes_at_least_as_long_as_asked_for() {
    let reply = worked();
    // The clock of the core may rise after calibration.
    assert!(reply.spent_ns > 1_000_000, "{reply:?}");
    let server = server(2, false);
    let service = ServiceTime::Fixed { work_ns: 3_000_000 };
    let report = run(&load(&server, service, 50.0, 400), &mut Silent).unwrap();
    assert!(report.overall.latency.max_us >= 1_000.0, "{:?}", report.overall.latency);
}

/// A run that offers ten times what its server can do. Each request ends in one count.
fn overloaded() -> LoadReport {
    let server = server(1, false);
    let mut spec = load(&server, ServiceTime::Fixed { work_ns: 5_000_000 }, 2_000.0, 300);
    spec.grace = Nanos::from_millis(100);
    let report = run(&spec, &mut Silent).unwrap();
    let totals = report.overall.totals;
    assert!(totals.unanswered > 0 && totals.answered < totals.scheduled, "{totals:?}");
    assert_eq!(
        totals.scheduled,
        totals.answered + totals.errors + totals.unanswered + totals.unsent
    );
    assert_eq!(report.overall.latency.count, totals.scheduled);
    report
}

#[test]
fn what_an_overloaded_server_leaves_unanswered_is_counted() {
    overloaded();
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn an_overloaded_server_shows_in_the_verdict() {
    let report = overloaded();
    // On a busy machine the generator may be short of time as well, and then it says so.
    assert_ne!(report.limited_by, LimitedBy::None, "{}", report.limited_because);
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn requests_queued_behind_a_stuck_server_count_from_when_they_were_due() {
    let server = server(1, true);
    assert!(send_runaway(server.addr(), Some(Nanos::from_millis(400))).unwrap());
    let mut spec = load(&server, ServiceTime::Fixed { work_ns: 100 }, 1_000.0, 200);
    spec.warmup = Nanos::ZERO;
    spec.grace = Nanos::from_secs(30);
    let report = run(&spec, &mut Silent).unwrap();
    let totals = report.overall.totals;
    // The schedule went on: a closed loop would have sent one request a connection.
    assert!(totals.scheduled > 5 * spec.connections as u64, "{totals:?}");
    assert_eq!(totals.answered, totals.scheduled);
    // All were answered after the spin, so the earlier a request was due, the longer it took.
    let mut by_due = report.samples.clone();
    by_due.sort_by_key(|sample| sample.sent_ns);
    let (first, last) = (by_due[0], by_due[by_due.len() - 1]);
    assert!(first.latency_ns > last.latency_ns);
    assert!(report.overall.latency.max_us > 100_000.0);
}

#[test]
fn runaways_are_refused_unless_allowed_and_end_with_the_server() {
    let forever = Request { id: 1, op: Op::Runaway { spin_ns: None } };
    let strict = server(1, false);
    let mut stream = TcpStream::connect(strict.addr()).unwrap();
    assert!(!ask(&mut stream, forever).done);
    assert!(ask(&mut stream, Request { id: 2, op: Op::Work { work_ns: 1 } }).done);
    let report = strict.stop();
    assert_eq!((report.refused, report.served, report.runaways), (1, 1, 0));

    let lenient = server(1, true);
    let mut stream = TcpStream::connect(lenient.addr()).unwrap();
    assert!(ask(&mut stream, forever).done);
    stream.write_all(&Request { id: 2, op: Op::Work { work_ns: 1 } }.to_bytes()).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert!(stream.read(&mut [0; FRAME_BYTES]).is_err(), "the worker spins and answers nobody");
    let report = lenient.stop();
    assert_eq!((report.runaways, report.served), (1, 0));
}

#[test]
fn garbage_costs_a_client_its_connection_and_nobody_else() {
    let server = server(1, false);
    let mut good = TcpStream::connect(server.addr()).unwrap();
    let mut bad = TcpStream::connect(server.addr()).unwrap();
    bad.write_all(&[0xa5; 500]).unwrap();
    let closed = bad.read(&mut [0; 1]);
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    assert!(ask(&mut good, Request { id: 1, op: Op::Work { work_ns: 1 } }).done);
    assert_eq!(server.stop().malformed, 1);
}

#[test]
fn a_client_that_does_not_read_neither_stops_others_nor_fills_memory() {
    let server = server(1, false);
    let mut greedy = TcpStream::connect(server.addr()).unwrap();
    greedy.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let frames = Request { id: 7, op: Op::Work { work_ns: 0 } }.to_bytes().repeat(4_096);
    // Ends once both sockets' buffers are full and the server reads no more.
    let mut blocks = 0;
    while greedy.write_all(&frames).is_ok() {
        blocks += 1;
        assert!(blocks < 2_000, "the server took {blocks} blocks unread");
    }
    let mut good = TcpStream::connect(server.addr()).unwrap();
    assert!(ask(&mut good, Request { id: 1, op: Op::Work { work_ns: 1 } }).done);
}

#[test]
fn an_address_that_is_taken_is_named() {
    let first = server(1, false);
    let error = Server::start(&ServeSpec::new(first.addr())).err().unwrap().to_string();
    assert!(error.contains(&first.addr().to_string()), "{error}");
}

#[test]
fn a_generator_that_waits_leaves_the_core_and_loses_nothing() {
    let server = server(1, false);
    let service = ServiceTime::Fixed { work_ns: 100_000 };
    // Few connections and no second request on any: what is due has to wait for an answer now and then.
    let spec = LoadSpec {
        idle: Idle::Wait,
        pipelining: false,
        connections: 2,
        ..load(&server, service, 1_000.0, 300)
    };
    let report = run(&spec, &mut Silent).unwrap();
    let totals = report.overall.totals;
    assert!(totals.scheduled > 100);
    assert_eq!((totals.answered, totals.errors), (totals.scheduled, 0));
    assert!(report.generator.slept_share > 0.0 && report.generator.slept_share <= 1.0);
}
