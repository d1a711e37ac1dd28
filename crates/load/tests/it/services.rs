//! Every other protocol against Debian's servers, unmodified.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::common::{Server, books_balance};
use quell_load::protocol::http::HttpSpec;
use quell_load::protocol::keyvalue::KeyValueSpec;
use quell_load::{LoadReport, LoadSpec, Progress, ProtocolSpec, Silent, Totals, run};
use quell_model::Nanos;

fn keys() -> KeyValueSpec {
    KeyValueSpec { keys: 1_000, get_permille: 900, ..KeyValueSpec::default() }
}

/// Starts a server and says how to talk to it.
type KeyValueServer = (fn() -> Server, fn(KeyValueSpec) -> ProtocolSpec);

const KEY_VALUE_SERVERS: [KeyValueServer; 2] =
    [(Server::memcached, ProtocolSpec::MemcachedBinary), (Server::redis, ProtocolSpec::Redis)];

fn spec(addr: SocketAddr, protocol: ProtocolSpec) -> LoadSpec {
    let mut spec = LoadSpec::new(addr, protocol, 5_000.0, Nanos::from_millis(200));
    spec.warmup = Nanos::from_millis(50);
    spec.grace = Nanos::from_secs(5);
    spec
}

fn offer(spec: &LoadSpec) -> (LoadReport, Totals) {
    let report = run(spec, &mut Silent).unwrap();
    books_balance(&report);
    let totals = report.overall.totals;
    assert!(totals.scheduled > 500, "{totals:?}");
    (report, totals)
}

fn all_answered(spec: &LoadSpec) -> Totals {
    let (report, totals) = offer(spec);
    assert_eq!((totals.answered, totals.errors), (totals.scheduled, 0), "{totals:?}");
    assert_eq!((report.connections_lost, report.ended_early), (0, None));
    totals
}

fn pages(paths: &[&str]) -> ProtocolSpec {
    let paths = paths.iter().map(|&path| path.to_owned()).collect();
    ProtocolSpec::Http(HttpSpec { host: "localhost".into(), paths })
}

/// The reply of an HTTP server, whole.
fn ask(addr: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

#[test]
fn every_request_is_answered_and_every_key_is_found() {
    for (start, protocol) in KEY_VALUE_SERVERS {
        let server = start();
        let totals = all_answered(&spec(server.addr, protocol(keys())));
        assert_eq!(totals.misses, 0);
    }
}

#[test]
fn keys_that_were_never_stored_count_as_misses_and_not_as_errors() {
    for (start, protocol) in KEY_VALUE_SERVERS {
        let server = start();
        let mut spec = spec(server.addr, protocol(keys()));
        spec.preload = false;
        assert!(all_answered(&spec).misses > 0);
    }
}

#[test]
fn large_values_come_back_whole() {
    for (start, protocol) in KEY_VALUE_SERVERS {
        let server = start();
        let large = KeyValueSpec { keys: 50, value_bytes: 200_000, get_permille: 500, ..keys() };
        let mut spec = spec(server.addr, protocol(large));
        spec.steps[0].rate_rps = 500.0;
        spec.steps[0].duration = Nanos::from_secs(2);
        assert_eq!(all_answered(&spec).misses, 0);
    }
}

#[test]
fn a_server_that_is_full_refuses_the_preload_by_name() {
    let large = KeyValueSpec { value_bytes: 200_000, ..keys() };
    let memcached = Server::memcached_with(&["-m", "8", "-M"]);
    let redis = Server::redis_with(&["--maxmemory", "8mb"]);
    for (server, protocol) in [
        (memcached, ProtocolSpec::MemcachedBinary(large.clone())),
        (redis, ProtocolSpec::Redis(large)),
    ] {
        let error = run(&spec(server.addr, protocol), &mut Silent).unwrap_err().to_string();
        assert!(error.contains("preload") && error.contains("refused"), "{error}");
    }
}

#[test]
fn a_redis_that_takes_no_writes_answers_each_with_an_error() {
    let server = Server::redis_with(&["--maxmemory", "1"]);
    let mut spec =
        spec(server.addr, ProtocolSpec::Redis(KeyValueSpec { get_permille: 0, ..keys() }));
    spec.preload = false;
    let (report, totals) = offer(&spec);
    assert_eq!((totals.errors, totals.answered), (totals.scheduled, 0), "{totals:?}");
    assert_eq!((report.connections_lost, report.ended_early), (0, None));
}

#[test]
fn pages_are_answered_with_content_length_and_in_chunks() {
    // What nginx inserts itself has no length beforehand, so it goes out in chunks.
    let server = Server::nginx(
        "location /chunked { ssi on; ssi_types *; rewrite ^ /page break; }
         location /empty { return 204; }",
    );
    let reply = ask(server.addr, "/chunked").to_ascii_lowercase();
    assert!(reply.contains("transfer-encoding: chunked"), "{reply}");
    assert!(ask(server.addr, "/page").contains("Content-Length: 1024"));
    let totals = all_answered(&spec(server.addr, pages(&["/page", "/chunked", "/empty"])));
    assert_eq!(totals.misses, 0);
}

#[test]
fn statuses_tell_pages_that_are_absent_from_a_server_that_fails() {
    let server = Server::nginx("location /fails { return 503; } location /moved { return 301 /; }");
    let totals = all_answered(&spec(server.addr, pages(&["/absent"])));
    assert_eq!(totals.misses, totals.scheduled);
    assert_eq!(all_answered(&spec(server.addr, pages(&["/moved"]))).misses, 0);
    let (_, totals) = offer(&spec(server.addr, pages(&["/fails"])));
    assert_eq!((totals.errors, totals.answered), (totals.scheduled, 0));
}

#[test]
fn connections_that_the_server_ends_are_opened_again_and_nothing_is_lost() {
    for requests in [1, 7] {
        let server = Server::nginx(&format!("keepalive_requests {requests};"));
        let mut spec = spec(server.addr, pages(&["/page", "/absent"]));
        spec.connections = 3;
        let (report, totals) = offer(&spec);
        // A busy host may not come to all of them in time; what was asked on a connection that ended is asked again.
        assert!(totals.errors == 0 && totals.answered > 0, "{totals:?}");
        assert_eq!((report.connections_lost, report.ended_early), (0, None));
        assert!(report.connections_reopened >= totals.answered / requests / 2, "{totals:?}");
    }
}

#[test]
fn a_server_that_dies_ends_the_run_of_a_protocol_that_opens_connections_again() {
    struct KillServer(Option<Server>);
    impl Progress for KillServer {
        fn begin(&mut self, _at: Nanos) {
            self.0 = None;
        }
    }
    let server = Server::nginx("");
    let mut spec = spec(server.addr, pages(&["/page"]));
    spec.steps[0].duration = Nanos::from_secs(60);
    let report = run(&spec, &mut KillServer(Some(server))).unwrap();
    books_balance(&report);
    assert_eq!(report.connections_lost, spec.connections);
    assert!(report.ended_early.unwrap().contains("connection"));
}

#[test]
fn a_server_of_another_protocol_costs_the_connections_and_ends_the_run() {
    let server = Server::nginx("");
    let mut spec = spec(server.addr, ProtocolSpec::Redis(keys()));
    (spec.preload, spec.warmup) = (false, Nanos::ZERO);
    let report = run(&spec, &mut Silent).unwrap();
    books_balance(&report);
    let lost = report.connections_lost;
    assert_eq!((report.overall.totals.answered, lost), (0, spec.connections));
    assert!(report.ended_early.unwrap().contains("malformed"));
}
