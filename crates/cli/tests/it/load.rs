//! `quell load` against Debian's memcached: what it prints, writes and refuses.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

struct Memcached {
    child: Child,
    addr: SocketAddr,
}

impl Memcached {
    /// On a free port. Another program may take it first, even this one: a connection from a port to itself is one.
    fn start() -> Memcached {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let child = Command::new("memcached")
                .args(["-u", "nobody", "-l", "127.0.0.1", "-t", "1"])
                .args(["-p", &addr.port().to_string()])
                .spawn()
                .expect("memcached runs; scripts/setup.sh installs it");
            let mut server = Memcached { child, addr };
            while server.child.try_wait().unwrap().is_none() {
                let answers = TcpStream::connect(addr)
                    .is_ok_and(|stream| stream.local_addr().is_ok_and(|own| own != addr));
                // It binds before it answers: one that lives and answers has the port.
                if answers && server.child.try_wait().unwrap().is_none() {
                    return server;
                }
                assert!(Instant::now() < deadline, "memcached does not listen on {addr}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn quell_load(folder: &Path, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command.current_dir(folder).arg("load").args(arguments.split_whitespace());
    command.stdin(Stdio::null()).output().unwrap()
}

#[test]
fn every_protocol_of_memcached_is_offered_reported_and_plotted() {
    let (server, folder) = (Memcached::start(), tempfile::tempdir().unwrap());
    for protocol in ["memcached", "memcached-binary"] {
        let flags = "-r 2000 -d 0.2 --warmup 0 --keys 1000 --json - --plot over-time";
        let output = quell_load(folder.path(), &format!("{protocol} {} {flags}", server.addr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["spec"]["protocol"]["protocol"], protocol);
        let totals = &report["overall"]["totals"];
        assert!(totals["scheduled"].as_u64().unwrap() > 200);
        assert_eq!(totals["answered"], totals["scheduled"]);
        assert_eq!(report["timeline"].as_array().unwrap().len(), 20);
        for (extension, magic) in [("svg", "<svg"), ("png", "\u{89}PNG")] {
            let file = folder.path().join("over-time").with_extension(extension);
            let bytes = fs::read(&file).unwrap();
            let head: String = bytes.iter().take(4).map(|&byte| char::from(byte)).collect();
            assert_eq!(head, magic);
            fs::remove_file(file).unwrap();
        }
    }
}

#[test]
fn a_trace_gives_rate_and_length() {
    let (server, folder) = (Memcached::start(), tempfile::tempdir().unwrap());
    fs::write(folder.path().join("times.txt"), "times ms\n0\n10\n20\n199\n").unwrap();
    let flags = "--arrivals trace:times.txt --warmup 0 --keys 10 --json -";
    let output = quell_load(folder.path(), &format!("memcached {} {flags}", server.addr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["overall"]["totals"]["answered"], 4);
    assert_eq!(report["spec"]["steps"][0]["duration_ns"], 199_000_001);
}

#[test]
fn loads_that_make_no_sense_are_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("bad.txt"), "times us\n4\n3\n").unwrap();
    fs::write(folder.path().join("good.txt"), "times us\n4\n").unwrap();
    for (arguments, wanted) in [
        ("redis --arrivals trace:bad.txt", "bad.txt:3: `3` is before"),
        ("redis --arrivals trace:none.txt", "none.txt: No such file"),
        ("redis --arrivals trace:good.txt --rate 5", "leave out --rate and --steps"),
        ("redis --arrivals bursts:1:2", "bursts are RATE:SECONDS:SECONDS"),
        ("redis --arrivals bursts:1:1:2", "a burst no longer than it"),
        ("http --path nowhere", "`nowhere` is no path"),
        ("synthetic", "HOST:PORT"),
        ("peak redis 127.0.0.1:1 --arrivals bursts:1:1:0.1", "poisson or uniform"),
    ] {
        let output = quell_load(folder.path(), arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments}: {said}");
        let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
        assert!(errors.len() == 1 && errors[0].contains(wanted), "{arguments}: {said}");
    }
}
