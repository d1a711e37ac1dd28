//! The examples of lanes in `examples/lanes` do what they say, as they stand there.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::{CORE, compile, eventually, folder, ground, succeed};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// 20 ms: whatever stops this machine for a while, it is preempted.
const LONG_NS: &str = "20000000";

struct Programs {
    dir: TempDir,
    server: PathBuf,
    client: PathBuf,
}

impl Programs {
    fn compile() -> Programs {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let build = |name: &str| {
            compile(dir.path(), "cc", "c11", &folder("examples/lanes").join(format!("{name}.c")))
        };
        let (server, client) = (build("request-server"), build("request-client"));
        Programs { dir, server, client }
    }

    fn client(&self, args: &[&str]) -> String {
        let core = CORE.to_string();
        let out = succeed(
            Command::new(&self.client)
                .arg("--server")
                .arg(&self.server)
                .args(["--core", &core])
                .args(args),
        );
        String::from_utf8(out.stdout).unwrap()
    }

    /// What came of a burst: id and preemptions of each request, in the order of their end.
    fn burst(&self, budget: &str, services: &[&str], workers: &str) -> Vec<(usize, u32)> {
        let services = services.join(",");
        let args = ["--budgets", budget, "--burst", &services, "--workers", workers];
        let said = self.client(&args);
        let line = |line: &str| {
            let (id, preempted) = line.split_once(' ').unwrap();
            (id.parse().unwrap(), preempted.parse().unwrap())
        };
        said.lines().skip(1).map(line).collect()
    }

    /// A server on a ring that this test made.
    fn serve(&self, ring: &Path, args: &[&str]) -> Child {
        Command::new(&self.server)
            .arg("--ring")
            .arg(ring)
            .args(["--core", &CORE.to_string(), "--workers", "4"])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Standard error of a server that has to refuse a ring.
    fn refused(&self, ring: &[u8]) -> String {
        let path = self.dir.path().join("refused");
        fs::write(&path, ring).unwrap();
        let out = self.serve(&path, &[]).wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(1));
        String::from_utf8(out.stderr).unwrap()
    }
}

/// A ring without requests, as `request_ring.h` has it.
fn ring(version: u32, capacity: u32, entries: usize) -> Vec<u8> {
    let mut ring = vec![0; 4096 + 64 * entries];
    ring[..8].copy_from_slice(b"QUELLREQ");
    ring[8..12].copy_from_slice(&version.to_ne_bytes());
    ring[12..16].copy_from_slice(&capacity.to_ne_bytes());
    ring
}

/// The state that a server writes into its ring.
fn state(path: &Path) -> u32 {
    let ring = fs::read(path).unwrap();
    u32::from_ne_bytes(ring[384..388].try_into().unwrap())
}

fn each_once(ended: &[(usize, u32)], count: usize) {
    let mut ids: Vec<usize> = ended.iter().map(|(id, _)| *id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..count).collect::<Vec<_>>());
}

#[test]
fn short_requests_overtake_a_long_one_if_it_has_a_budget() {
    let Some(_lock) = ground() else { return };
    let programs = Programs::compile();
    let services = [&[LONG_NS][..], &["500"; 40]].concat();

    let ended = programs.burst("5", &services, "128");
    each_once(&ended, 41);
    let (last, preempted) = ended[40];
    assert_eq!(last, 0, "the long one ends last, and does: {ended:?}");
    assert!(preempted > 1);

    let ended = programs.burst("0", &services, "128");
    assert_eq!(ended, (0..41).map(|id| (id, 0)).collect::<Vec<_>>(), "first come, first served");
}

#[test]
fn more_long_requests_than_workers_are_all_answered() {
    let Some(_lock) = ground() else { return };
    let programs = Programs::compile();
    // Two workers: short requests wait until one of four long ones is done, and nobody is lost.
    let services = [&[LONG_NS; 4][..], &["500"; 20]].concat();
    let ended = programs.burst("50", &services, "2");
    each_once(&ended, 24);
    for (id, preempted) in &ended {
        assert!(*id >= 4 || *preempted > 1, "{ended:?}");
    }
    assert!(ended[0].0 < 2, "with all workers in long ones nobody overtakes them: {ended:?}");
}

#[test]
fn a_parked_request_gets_on_while_new_ones_come() {
    let Some(_lock) = ground() else { return };
    let programs = Programs::compile();
    // Half a millisecond of work beside thousands of new requests: it does not wait for the last of them.
    let services = [&["500000"][..], &["500"; 6_000]].concat();
    let ended = programs.burst("20", &services, "128");
    each_once(&ended, 6_001);
    let at = ended.iter().position(|(id, _)| *id == 0).unwrap();
    assert!(0 < at && at < 6_000, "it was number {at}");
}

#[test]
fn a_load_is_answered_with_preemption_and_without() {
    let Some(_lock) = ground() else { return };
    let programs = Programs::compile();
    let said = programs.client(&[
        "--rate",
        "2000",
        "--seconds",
        "0.5",
        "--budgets",
        "20,0",
        "--workers",
        "64",
    ]);
    // That each request is answered once is checked by the client itself.
    let rows: Vec<Vec<f64>> = said.lines().skip(2).map(numbers).collect();
    assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), [20.0, 0.0]);
    for row in rows {
        assert!(row.len() == 8 && row[1..].is_sorted() && row[1] > 0.0, "{row:?}");
    }
}

fn numbers(line: &str) -> Vec<f64> {
    line.split_whitespace().map(|number| number.parse().unwrap()).collect()
}

#[test]
fn a_server_ends_in_order_by_signal_by_time_and_when_its_client_is_gone() {
    let Some(_lock) = ground() else { return };
    let programs = Programs::compile();
    let path = programs.dir.path().join("ring");
    let ended = |mut server: Child| {
        eventually("the server ends", || server.try_wait().unwrap().is_some());
        let mut said = String::new();
        server.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(server.wait().unwrap().success());
        assert!(said.starts_with("{\"served\": 0,"), "{said}");
        assert_eq!(state(&path), 2, "it says so in the ring");
    };
    for signal in [Signal::INT, Signal::TERM] {
        fs::write(&path, ring(1, 8, 8)).unwrap();
        let server = programs.serve(&path, &["--nap", "50"]);
        eventually("the server is ready", || state(&path) == 1);
        let levels = thread_priorities(server.id());
        let count = |priority| levels.get(&priority).copied().unwrap_or(0);
        assert_eq!([5, 6, 7].map(count), [1, 4, 1], "dispatcher, workers, switcher");
        kill_process(Pid::from_child(&server), signal).unwrap();
        ended(server);
    }
    fs::write(&path, ring(1, 8, 8)).unwrap();
    ended(programs.serve(&path, &["--for", "0.05"]));
    let mut closed = ring(1, 8, 8);
    closed[320] = 1;
    fs::write(&path, closed).unwrap();
    ended(programs.serve(&path, &[]));
}

/// How many threads of a process have which real-time priority.
fn thread_priorities(pid: u32) -> BTreeMap<u8, usize> {
    let mut counts = BTreeMap::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        *counts.entry(fields[37].parse().unwrap()).or_default() += 1;
    }
    counts
}

#[test]
fn what_is_no_ring_is_refused_with_the_reason() {
    let Some(_lock) = ground() else { return };
    let programs = Programs::compile();
    assert!(programs.refused(b"short").contains("shorter than a page"));
    assert!(programs.refused(&[7; 8192]).contains("no ring of requests"));
    assert!(programs.refused(&ring(2, 8, 8)).contains("version"));
    for capacity in [0, 1, 3, 1 << 21, u32::MAX] {
        assert!(programs.refused(&ring(1, capacity, 8)).contains("power of two"));
    }
    assert!(programs.refused(&ring(1, 8, 7)).contains("shorter than its rings"));
    // Counters that cannot be: found before anything is read through them.
    let mut broken = ring(1, 8, 8);
    broken[64..72].copy_from_slice(&9u64.to_ne_bytes());
    assert!(programs.refused(&broken).contains("the client broke the ring"));
}

#[test]
fn a_shell_has_two_programs_take_turns() {
    let Some(_lock) = ground() else { return };
    let script = folder("examples/lanes/lanes.sh");
    let out = succeed(Command::new("sh").arg(script).args([&CORE.to_string(), "8"]));
    let said = String::from_utf8(out.stdout).unwrap();
    let ticks: Vec<(&str, u32)> = said
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(name, ticks)| (name, ticks.parse().unwrap()))
        .collect();
    assert_eq!(ticks.iter().map(|(name, _)| *name).collect::<String>(), "AB");
    assert!(ticks.iter().all(|(_, ticks)| *ticks > 0), "each had turns: {said}");
}

/// `lanes.py` with these arguments.
fn python(args: &[&str]) -> Command {
    let mut command = Command::new("python3");
    let script = folder("examples/lanes/lanes.py");
    command.arg(script).args(["--core", &CORE.to_string()]).args(args);
    command
}

/// What `lanes.py` prints: names and shares of CPU time.
fn shares(said: &str) -> Vec<(&str, f64)> {
    let lines = said.lines().map(|line| line.split_once(' ').unwrap());
    lines.map(|(name, share)| (name, share.parse().unwrap())).collect()
}

const TABLE: [&str; 6] = ["--table", "A,B,A,C,A,A", "--slice-ms", "10", "--seconds", "1.2"];

/// `lanes.py` with a clock and programs that exist only here: who is raised, in order, and slots of A, B and C.
const FAKE_CLOCK: &str = r#"
import sys
sys.path.insert(0, sys.argv[1])
import lanes
now, running, raised, slots = [0.0], [None], [], {}
class Program:
    def __init__(self, pid):
        self.pid = pid
    def poll(self):
        return None
def level(pid, priority):
    if priority == lanes.RUNNING:
        running[0] = pid
        raised.append(pid)
    else:
        assert priority == lanes.PARKED and pid != running[0], "the next is raised before the last is lowered"
def sleep(seconds):
    slots[running[0]] = slots.get(running[0], 0) + 1
    now[0] += seconds
lanes.level, lanes.time.monotonic, lanes.time.sleep = level, lambda: now[0], sleep
lanes.take_turns({name: Program(name) for name in "ABC"}, "A,B,A,C,A,A".split(","), 0.01, 0.1)
print("".join(raised), *(slots[name] for name in "ABC"))
"#;

#[test]
fn python_table_gives_slots_in_order_by_a_fake_clock() {
    let lanes = folder("examples/lanes");
    let out = succeed(Command::new("python3").args(["-B", "-c", FAKE_CLOCK]).arg(lanes));
    assert_eq!(String::from_utf8(out.stdout).unwrap(), "ABACABACA 8 2 2\n");
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn python_table_gives_shares_of_the_core() {
    let Some(_lock) = ground() else { return };
    let out = succeed(&mut python(&TABLE));
    let said = String::from_utf8(out.stdout).unwrap();
    let shares = shares(&said);
    // Four of six slots against one: half of it would do.
    assert!(shares[0].1 > 2.0 * shares[1].1 && shares[0].1 > 2.0 * shares[2].1, "{said}");
}

#[test]
fn python_has_three_programs_follow_a_table() {
    let Some(_lock) = ground() else { return };
    let out = succeed(&mut python(&TABLE));
    let said = String::from_utf8(out.stdout).unwrap();
    let shares = shares(&said);
    assert_eq!(shares.iter().map(|(name, _)| *name).collect::<String>(), "ABC");
    assert!(shares.iter().all(|(_, share)| *share > 0.0), "each had turns: {said}");

    let wrong = python(&["--table", "A,C"]).output().unwrap();
    assert!(!wrong.status.success());
    let nobody = ["--rtprio=0", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let text = fs::read_to_string(folder("examples/lanes/lanes.py")).unwrap();
    let refused = Command::new("prlimit")
        .args(nobody)
        .args(["/usr/bin/python3", "-c", &text])
        .output()
        .unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("CAP_SYS_NICE"), "{said}");
}
