//! What was planted is found: why requests of a real memcached were slow.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Ground, eventually, start_bound};
use quell_model::CoreId;
use quell_testkit::Quiet;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

struct Memcached {
    child: Child,
    addr: String,
}

impl Memcached {
    fn start() -> Memcached {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let child = Command::new("memcached")
            .args(["-u", "root", "-t", "1", "-U", "0", "-l", "127.0.0.1", "-p"])
            .arg(free.port().to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("memcached is installed by scripts/setup.sh");
        eventually("memcached listens", || std::net::TcpStream::connect(free).is_ok());
        Memcached { child, addr: free.to_string() }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The report of `quell load --why` beside a memcached that is stopped for 60 ms, five times a second.
fn stopped(ground: &Ground, more: &[&str]) -> Value {
    let service = Memcached::start();
    let (pid, over) = (service.pid(), Arc::new(AtomicBool::new(false)));
    let planter = {
        let over = Arc::clone(&over);
        std::thread::spawn(move || {
            // Relaxed: a flag alone.
            while !over.load(Ordering::Relaxed) {
                kill_process(pid, Signal::STOP).unwrap();
                std::thread::sleep(Duration::from_millis(60));
                kill_process(pid, Signal::CONT).unwrap();
                std::thread::sleep(Duration::from_millis(140));
            }
        })
    };
    let file = ground.path().join("why.json");
    let number = pid.as_raw_nonzero().to_string();
    let out = ground.quell(
        &[
            &["load", "memcached", &service.addr, "--rate", "500", "--duration", "2"][..],
            &["--why", &number, "--why-json", file.to_str().unwrap()],
            more,
        ]
        .concat(),
    );
    over.store(true, Ordering::Relaxed);
    planter.join().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(said.contains("their main causes"), "{said}{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

#[test]
fn slow_requests_are_reported_and_some_are_charged_to_the_stop() {
    let ground = Ground::new();
    let report = stopped(&ground, &["--why-threshold", "30ms", "--slowest", "1"]);
    assert_eq!(report["of"], "requests");
    assert_eq!(report["slowest"].as_array().unwrap().len(), 1);
    // A request that was sent during one of the stops of 60 ms waits for its end at least, on any host.
    assert!(report["slow"].as_u64().unwrap() > 0, "{report:#}");
    let shares = report["shares"].as_array().unwrap();
    assert!(shares.iter().any(|share| share["kind"] == "stopped"), "{report:#}");
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn requests_to_a_stopped_service_are_charged_to_the_stop() {
    let ground = Ground::new();
    let mut last = Value::Null;
    // Again where this host's hypervisor stopped a core for as long: then it has its part of the slow ones.
    let charged = (0..4).any(|_| {
        last = stopped(&ground, &["--why-threshold", "30ms"]);
        assert!(last["slow"].as_u64().unwrap() > 50, "{last}");
        let shares = last["shares"].as_array().unwrap();
        let of = shares.iter().filter(|share| share["kind"] == "stopped");
        of.map(|share| share["share"].as_f64().unwrap()).sum::<f64>() >= 0.95
    });
    assert!(charged, "{last:#}");
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn without_a_bound_the_slowest_tenth_of_a_percent_is_listed() {
    let ground = Ground::new();
    let report = stopped(&ground, &["--slowest", "1"]);
    assert_eq!(report["of"], "requests");
    assert_eq!(report["slowest"].as_array().unwrap().len(), 1);
    assert!(report["bound_us"].as_f64().unwrap() > 30_000.0, "{report:#}");
}

#[test]
fn wake_ups_of_a_process_are_counted() {
    let ground = Ground::new();
    let napper = start_bound(&["sh", "-c", "while :; do sleep 0.005; done"]);
    let pid = napper.pid().to_string();
    // Each counts as slow.
    let out = ground.quell(&["why", "--pid", &pid, "-d", "1", "--threshold", "0.001us", "--json"]);
    let report: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}", String::from_utf8_lossy(&out.stderr));
    });
    assert_eq!(report["of"], "wake-ups");
    assert!(report["slow"].as_u64().unwrap() > 0, "{report:#}");
    assert!(!report["shares"].as_array().unwrap().is_empty(), "{report:#}");
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn slow_wake_ups_of_a_process_are_charged_to_who_had_its_core() {
    let ground = Ground::new();
    // Others on that core would be to blame as well.
    let _quiet = Quiet::on(CoreId(1), &ground.lock).unwrap();
    // Two threads of one rank on one core wait for each other's slices.
    let mut pair = Command::new("taskset")
        .args(["-c", "1", "stress-ng", "--quiet", "--cpu", "2", "--timeout", "20"])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let pid = pair.id().to_string();
    let out = ground.quell(&["why", "--pid", &pid, "-d", "1", "--threshold", "500us", "--json"]);
    let _ = pair.kill();
    let _ = pair.wait();
    let report: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}", String::from_utf8_lossy(&out.stderr));
    });
    assert_eq!(report["of"], "wake-ups");
    assert!(report["slow"].as_u64().unwrap() > 5, "{report:#}");
    let first = report["shares"][0]["cause"].as_str().unwrap();
    assert!(first.starts_with("waiting behind stress-ng"), "{report:#}");
}

#[test]
fn whom_it_cannot_find_it_names() {
    let ground = Ground::new();
    let out = ground.quell(&["why", "--pid", "999999999"]);
    assert!(String::from_utf8_lossy(&out.stderr).contains("there is no process 999999999"));
    let out = ground.quell(&["why", "web"]);
    assert!(String::from_utf8_lossy(&out.stderr).contains("no Quell daemon listens"));
}
