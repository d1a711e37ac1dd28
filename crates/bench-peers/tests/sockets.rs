//! Both ends of `quell bench net` on this host: each case carries every byte, whatever the system.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_quell-bench-peers");
const CASES: [&str; 9] = [
    "pingpong-alone",
    "writes-4k",
    "messages-64b",
    "stream-copying",
    "stream-zero-copy",
    "eight-streams",
    "bulk-beside-latency",
    "connect-request",
    "stalled-reader",
];

fn start(words: &[&str]) -> Child {
    let mut command = Command::new(PROGRAM);
    command.arg("sockets").args(words).stdout(Stdio::piped());
    command.spawn().expect("the program starts")
}

fn run(system: &str, case: &str) -> serde_json::Value {
    let mut server = start(&["server", system, "127.0.0.1:0"]);
    let mut lines = BufReader::new(server.stdout.take().expect("piped")).lines();
    let line = lines.next().expect("a line").expect("text");
    let address = line.strip_prefix("port ").expect("the port").to_owned();
    let client = start(&["client", system, &address, case, "20"]);
    let output = client.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{system}, {case}: the client failed");
    assert!(server.wait().expect("it ends").success(), "{system}, {case}: the server failed");
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(answer["ops"].as_u64() > Some(0), "{system}, {case}: {answer}");
    assert!(answer["bytes"].as_u64() > Some(0), "{system}, {case}: {answer}");
    answer
}

#[test]
fn each_case_carries_its_bytes_over_tcp() {
    CASES.iter().for_each(|case| drop(run("tcp", case)));
}

#[test]
fn careful_users_of_tcp_carry_their_bytes() {
    ["writes-4k", "messages-64b"].iter().for_each(|case| drop(run("tcp-buffered", case)));
    run("tcp-fast-open", "connect-request");
    run("mptcp", "stream-copying");
    for case in ["pingpong-alone", "writes-4k", "messages-64b", "stream-copying"] {
        run("tcp-uring", case);
        run("quell-uring", case);
    }
    // It takes the right to lower a nice value.
    if rustix::process::geteuid().is_root() {
        run("tcp-nice", "bulk-beside-latency");
    }
}

#[test]
fn uthreads_echo_over_tcp_and_through_shared_memory() {
    run("uthreads-tcp", "uthread-echo");
    run("uthreads-shm", "uthread-echo");
}

#[test]
fn each_case_carries_its_bytes_over_channels() {
    CASES.iter().for_each(|case| drop(run("quell", case)));
    run("quell-2", "stream-zero-copy");
    run("quell-2", "two-channels");
}

#[test]
fn each_case_carries_its_bytes_through_shared_memory() {
    CASES.iter().for_each(|case| drop(run("quell-shm", case)));
    ["pingpong-alone", "writes-4k", "messages-64b"].iter().for_each(|case| drop(run("unix", case)));
}

/// Refused here, where containers forbid io_uring: nothing to show then.
fn has_uring() -> bool {
    let setting = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    setting.is_ok_and(|setting| setting.trim() == "0")
}

#[test]
fn other_ways_of_kernel_io_carry_their_bytes() {
    let systems = ["tcp-zerocopy", "tcp-uring-inline", "tcp-uring-workers"];
    for system in systems.iter().filter(|system| !system.contains("uring") || has_uring()) {
        ["pingpong-alone", "writes-4k", "stream-copying"].iter().for_each(|case| {
            run(system, case);
        });
    }
}

#[test]
fn copies_of_writes_without_copies_are_counted() {
    let answer = run("tcp-zerocopy", "stream-copying");
    // Over loopback the kernel copies all of them.
    assert_eq!(answer["copied_share"].as_f64(), Some(1.0), "{answer}");
    assert!(run("tcp", "stream-copying")["copied_share"].is_null());
}

#[test]
fn slowest_requests_are_answered_with_their_waits() {
    let answer = run("tcp", "watched-beside-8");
    let slowest = answer["slowest"].as_array().expect("a list");
    assert!(!slowest.is_empty(), "{answer}");
    for request in slowest {
        assert!(request["ns"].as_u64() > Some(0), "{request}");
        assert!(request["client_wait_ns"].is_u64(), "{request}");
    }
}

#[test]
fn more_channels_and_long_writes_carry_their_bytes() {
    ["quell-3", "quell-4"].iter().for_each(|system| {
        run(system, "writes-4k");
    });
    run("quell", "writes-10m");
}

#[test]
fn placed_channels_and_copy_workers_carry_every_byte() {
    for case in ["stream-copying", "stream-zero-copy", "two-channels"] {
        run("quell-placed", case);
        run("quell-workers", case);
    }
}
