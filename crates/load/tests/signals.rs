//! The synthetic server ends on SIGTERM. Alone in its process, which the signal is sent to.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::TcpStream;

use quell_load::serve::{ServeSpec, send_runaway, serve};
use rustix::process::{Signal, getpid, kill_process};

#[test]
fn sigterm_ends_the_server_even_while_a_worker_runs_away() {
    let spec = ServeSpec::new("127.0.0.1:0".parse().unwrap());
    let mut addr = None;
    let report = serve(&ServeSpec { allow_runaway: true, ..spec }, |server| {
        addr = Some(server.addr());
        assert!(send_runaway(server.addr(), None).unwrap());
        kill_process(getpid(), Signal::TERM).unwrap();
    })
    .unwrap();
    assert_eq!(report.runaways, 1);
    assert!(TcpStream::connect(addr.unwrap()).is_err());
}
