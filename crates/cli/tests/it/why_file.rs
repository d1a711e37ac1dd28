//! `quell why FILE`: causes in recordings, in older ones, in such with losses and in texts.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Ground, QUELL, eventually, start_bound};
use flate2::read::GzDecoder;
use quell_model::{CoreId, CoreSet, Event, Nanos};
use quell_os::{clock, own};
use quell_trace::perfetto::Reader;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The report of a `quell why` that has to succeed.
fn why(args: &[&str]) -> Value {
    let out = Command::new(QUELL).arg("why").args(args).arg("--json").output().unwrap();
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{args:?}: {told}");
    serde_json::from_slice(&out.stdout).unwrap_or_else(|err| panic!("{args:?}: {err}: {told}"))
}

/// What `quell why` says against its arguments; status 2.
fn refused(args: &[&str]) -> String {
    let out = Command::new(QUELL).arg("why").args(args).output().unwrap();
    assert_eq!(out.status.code(), Some(2), "{args:?}: {}", String::from_utf8_lossy(&out.stdout));
    String::from_utf8(out.stderr).unwrap()
}

/// Slow ones whose main cause begins so.
fn slow_of(report: &Value, cause: &str) -> u64 {
    let shares = report["shares"].as_array().unwrap().iter();
    let of = shares.filter(|share| share["cause"].as_str().unwrap().starts_with(cause));
    of.map(|share| share["slow"].as_u64().unwrap()).sum()
}

/// The part of a cause of this kind in the time of all slow ones.
fn time_share(report: &Value, kind: &str) -> f64 {
    let shares = report["shares"].as_array().unwrap().iter();
    let of = shares.filter(|share| share["kind"] == kind);
    of.map(|share| share["time_share"].as_f64().unwrap()).sum()
}

/// A recording of the version before softirqs were recorded, unpacked into a directory.
fn old(directory: &Path, name: &str) -> PathBuf {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/recordings");
    let file = directory.join(name);
    let mut bytes = Vec::new();
    let packed = File::open(data.join(format!("{name}.gz"))).unwrap();
    GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    fs::write(&file, bytes).unwrap();
    file
}

/// How long a cause delays a request: much longer than a busy host delays the client, much shorter than the
/// 950 ms after which the kernel's fair server interrupts a FIFO thread.
const DELAY: Duration = Duration::from_millis(200);

/// A FIFO thread on core 1 that sleeps until it is woken, and then spins.
struct SleepingHog {
    _program: crate::common::Program,
    pipe: PathBuf,
}

impl SleepingHog {
    fn start(directory: &Path) -> SleepingHog {
        let (pipe, ready) = (directory.join("hog.pipe"), directory.join("hog.ready"));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let script = format!(
            "exec 3<>{}; : >{}; read -r _ <&3; while :; do :; done",
            pipe.display(),
            ready.display()
        );
        let fifo = ["taskset", "-c", "1", "chrt", "-f", "60", "sh", "-c", &script];
        let program = start_bound(&fifo);
        eventually("the hog is ready", || ready.exists());
        SleepingHog { _program: program, pipe }
    }

    fn wake(&self) {
        fs::write(&self.pipe, "go\n").unwrap();
    }
}

/// A memcached on core 1 and a client that asks for its version, one request after the other.
struct Service {
    program: crate::common::Program,
    client: TcpStream,
    /// About when its clock ticked, as it does each second from then on.
    began: Instant,
    requests: Vec<(Nanos, Nanos)>,
}

impl Service {
    fn start() -> Service {
        let addr = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let port = addr.port().to_string();
        // No threads that wake by themselves, but for its clock.
        let alone = ["-t", "1", "-o", "no_lru_maintainer,no_lru_crawler"];
        let memcached = ["memcached", "-u", "root", "-U", "0", "-l", "127.0.0.1", "-p"];
        let command = [&["taskset", "-c", "1"][..], &memcached, &[&port], &alone].concat();
        let program = start_bound(&command);
        let mut client = None;
        eventually("memcached listens", || {
            client = TcpStream::connect(addr).ok();
            client.is_some()
        });
        let client = client.unwrap();
        client.set_nodelay(true).unwrap();
        Service { program, client, began: Instant::now(), requests: Vec::new() }
    }

    fn ask(&mut self, times: usize) {
        for _ in 0..times {
            self.ask_while(|| {});
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Asks while something keeps the service from its core; `end` ends that once it has the request. When that was.
    fn ask_while(&mut self, end: impl FnOnce() + Send) -> (Nanos, Nanos) {
        let sent = clock::now();
        self.client.write_all(b"version\r\n").unwrap();
        let answered = std::thread::scope(|scope| {
            scope.spawn(end);
            let mut line = [0; 64];
            assert!(self.client.read(&mut line).unwrap() > 0);
            clock::now()
        });
        self.requests.push((sent, answered));
        (sent, answered)
    }

    /// Waits until its clock does not tick in the next half of a second: a thread that runs between an answer and its
    /// reading is taken for the one that answered.
    fn leave_its_clock_behind(&self) {
        let phase = self.began.elapsed().subsec_millis();
        if !(200..400).contains(&phase) {
            std::thread::sleep(Duration::from_millis(u64::from((1_200 - phase) % 1_000)));
        }
    }

    /// Stops all its threads: the signal reaches one of them, and the others may answer until that one runs.
    fn stop(&self) {
        kill_process(Pid::from_raw(self.program.pid()).unwrap(), Signal::STOP).unwrap();
        eventually("each thread of the service is stopped", || {
            let tasks = fs::read_dir(format!("/proc/{}/task", self.program.pid())).unwrap();
            tasks.map(Result::unwrap).all(|task| {
                let stat = fs::read_to_string(task.path().join("stat")).unwrap();
                stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
            })
        });
    }
}

#[test]
fn recorded_stop_and_hog_are_named_in_their_seconds() {
    // The client must not be the one that the hog delays: it has the other core, and its children with it.
    own::keep_to(&CoreSet::of(CoreId(0))).unwrap();
    let ground = Ground::new();
    let mut service = Service::start();
    let (trace, csv) = (ground.path().join("trace"), ground.path().join("requests.csv"));
    let recorder = Command::new(QUELL)
        .args(["record", "-q", "--json", "--events", "why", "-o", trace.to_str().unwrap()])
        .env("QUELL_RUN_DIR", ground.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("something is recorded", || {
        fs::metadata(&trace).is_ok_and(|meta| meta.len() > 10_000)
    });
    service.ask(20);
    let pid = Pid::from_raw(service.program.pid()).unwrap();
    service.leave_its_clock_behind();
    service.stop();
    let stopped = service.ask_while(|| {
        std::thread::sleep(DELAY);
        kill_process(pid, Signal::CONT).unwrap();
    });
    service.ask(20);
    let hog = SleepingHog::start(ground.path());
    service.leave_its_clock_behind();
    hog.wake();
    let preempted = service.ask_while(|| {
        std::thread::sleep(DELAY);
        drop(hog);
    });
    service.ask(20);
    kill_process(Pid::from_child(&recorder), Signal::INT).unwrap();
    let out = recorder.wait_with_output().unwrap();
    let summary: Value = serde_json::from_slice(&out.stdout).unwrap();

    let mut text = String::from("sent,answered\n");
    for (sent, answered) in &service.requests {
        text += &format!("{},{}\n", sent.0, answered.0);
    }
    fs::write(&csv, text).unwrap();
    let reader = Reader::new(std::io::BufReader::new(File::open(&trace).unwrap())).unwrap();
    let events: Vec<Event> = reader.map(Result::unwrap).collect();
    assert_eq!(summary["kept_events"], events.len() as u64);
    let first = events[0].at;
    let of_trace = |at: Nanos| {
        format!("{}.{:09}", at.since(first).0 / 1_000_000_000, at.since(first).0 % 1_000_000_000)
    };
    let (pid, trace) = (pid.as_raw_nonzero().to_string(), trace.to_str().unwrap());
    let asked = |(from, to): (Nanos, Nanos), more: &[&str]| {
        let (from, to) = (of_trace(from), of_trace(to));
        let window = ["--since", &from, "--until", &to, "--threshold", "20ms"];
        why(&[&[trace, "--pid", &pid][..], &window, more].concat())
    };
    let requests = ["--requests", csv.to_str().unwrap()];
    let report = asked(stopped, &requests);
    assert_eq!((&report["of"], &report["slow"]), (&"requests".into(), &1.into()), "{report:#}");
    assert_eq!(slow_of(&report, "stopped"), 1, "{report:#}");
    let report = asked(preempted, &requests);
    assert_eq!(slow_of(&report, "waiting behind sh"), 1, "{report:#}");
    let report = asked(preempted, &[]);
    assert_eq!(report["of"], "wake-ups");
    assert!(slow_of(&report, "waiting behind sh") > 0, "{report:#}");
    // By the name of its threads as well, and with the list cut short.
    let by_name = why(&[trace, "--comm", "mc-worker", "--slowest", "1", "--threshold", "0.001us"]);
    assert_eq!(by_name["slowest"].as_array().unwrap().len(), 1, "{by_name:#}");
    assert!(by_name["all"].as_u64().unwrap() >= 60, "{by_name:#}");
}

#[test]
fn older_recording_is_explained_but_for_the_time_of_softirqs() {
    let directory = tempfile::tempdir().unwrap();
    let file = old(directory.path(), "memcached-hog.perfetto");
    let file = file.to_str().unwrap();
    let report = why(&[file, "--comm", "mc-worker", "--threshold", "20us"]);
    assert_eq!(report["lost"], 0);
    assert!(report["slow"].as_u64().unwrap() > 0, "{report:#}");
    assert!(time_share(&report, "unknown") > 0.0, "{report:#}");
    let out = Command::new(QUELL).args(["why", file, "--comm", "mc-worker"]).output().unwrap();
    let remark = String::from_utf8(out.stderr).unwrap();
    assert!(remark.contains("record with `quell record --events why`"), "{remark}");
    for kind in ["service", "interrupt", "kernel section", "idle core"] {
        assert_eq!(time_share(&report, kind), 0.0, "{kind}: {report:#}");
    }
}

#[test]
fn recording_with_losses_leaves_their_time_unknown() {
    let directory = tempfile::tempdir().unwrap();
    let file = old(directory.path(), "overflow.perfetto");
    let comm = busiest_thread(&file);
    let report = why(&[file.to_str().unwrap(), "--comm", &comm, "--threshold", "0.001us"]);
    assert!(report["lost"].as_u64().unwrap() > 1_000, "{report:#}");
    assert!(slow_of(&report, "unknown") > 0, "{report:#}");
    assert_eq!(time_share(&report, "service"), 0.0, "{report:#}");
}

/// The name with the most wake-ups, as `quell stats` lists them.
fn busiest_thread(file: &Path) -> String {
    let out = Command::new(QUELL).args(["stats", "--json"]).arg(file).output().unwrap();
    let stats: Value = serde_json::from_slice(&out.stdout).unwrap();
    stats["wakeups"][0]["name"].as_str().unwrap_or_else(|| panic!("{stats:#}")).to_owned()
}

#[test]
fn text_of_ftrace_is_explained() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/data/ftrace.txt");
    let comm = busiest_thread(&file);
    let report = why(&[file.to_str().unwrap(), "--comm", &comm, "--threshold", "0.001us"]);
    assert!(report["all"].as_u64().unwrap() > 0, "{report:#}");
}

#[test]
fn bad_questions_about_a_trace_are_refused_with_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let file = old(directory.path(), "memcached-hog.perfetto");
    let (file, csv) = (file.to_str().unwrap(), directory.path().join("requests.csv"));
    assert!(refused(&[file]).contains("say which threads, with --task, --pid or --comm"));
    assert!(refused(&[file, "--comm", "no-such"]).contains("none of these threads ran"));
    assert!(refused(&[file, "--task", "web"]).contains("it has no tasks of Quell"));
    assert!(refused(&[file, "--pid", "1", "--since", "soon"]).contains("is not a time; write it"));
    let told = refused(&[file, "--pid", "1", "--since", "2s", "--until", "1s"]);
    assert!(told.contains("--until is not later than --since"), "{told}");
    assert!(refused(&[file, "--pid", "1", "-d", "3"]).contains("--duration is for recording live"));
    assert!(refused(&["web", "--pid", "1"]).contains("there is no trace web"));
    fs::write(&csv, "sent,answered\n5,4\n").unwrap();
    let told = refused(&[file, "--comm", "mc-worker", "--requests", csv.to_str().unwrap()]);
    assert!(
        told.contains("requests.csv") && told.contains("line 2: `5,4`: answered before"),
        "{told}"
    );
}
