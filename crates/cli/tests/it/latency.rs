//! Tail latency and load of a service reach a real daemon, from each source, and hostile ones do no harm.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{Daemon, Ground, Program, QUELL, copy_program, eventually};
use serde_json::{Value, json};

fn lc(pid: i32, rest: &str) -> String {
    format!("[[task]]\nname = \"web\"\nclass = \"lc\"\npid = {pid}\n{rest}\n")
}

fn latency(daemon: &Daemon) -> Value {
    daemon.task("web")["latency"].clone()
}

fn said(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `quell load serve`, ended at the end.
struct Server {
    child: Child,
    addr: String,
}

impl Server {
    fn start() -> Server {
        let mut child = Command::new(QUELL)
            .args(["load", "serve", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let addr = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        Server { child, addr }
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Load on the server for some seconds, fed to the daemon.
fn load(ground: &Ground, server: &Server, task: &str, seconds: &str) -> Child {
    Command::new(QUELL)
        .args(["load", "synthetic", &server.addr, "--rate", "500", "--duration", seconds])
        .args(["--report-to", task])
        .env("QUELL_RUN_DIR", ground.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn finish(mut load: Child) -> Output {
    eventually("the load ends", || load.try_wait().unwrap().is_some());
    load.wait_with_output().unwrap()
}

#[test]
fn what_the_load_generator_sees_reaches_the_daemon_and_grows_too_old() {
    let (ground, server) = (Ground::new(), Server::start());
    let slo = "slo = { percentile = 99.9, latency_us = 60000000 }";
    let daemon = ground.run(&lc(server.pid(), slo));
    let before = latency(&daemon);
    assert_eq!(before["provenance"], "absent: nothing supplies it");
    assert_eq!((&before["latency_us"], &before["slo"]["state"]), (&Value::Null, &json!("unknown")));
    let load = load(&ground, &server, "web", "4");
    eventually("a report is there", || latency(&daemon)["provenance"] == "measured");
    let seen = latency(&daemon);
    for measured in ["latency_us", "load_rps"] {
        assert!(seen[measured].as_f64().unwrap() > 0.0, "{seen}");
    }
    assert_eq!(seen["source"], format!("reports of process {}", load.id()));
    assert_eq!((&seen["percentile"], &seen["slo"]["state"]), (&json!(99.9), &json!("met")));
    let table = said(&ground.quell(&["status"]).stdout);
    assert!(table.contains("p99.9") && table.contains("missed 0.0 % of the time"), "{table}");
    let out = finish(load);
    assert!(!said(&out.stderr).contains("feed:"), "{}", said(&out.stderr));
    eventually("the last report is too old", || {
        latency(&daemon)["provenance"] == "absent: the last reading is too old"
    });
    let after = latency(&daemon);
    assert_eq!((&after["latency_us"], &after["load_rps"]), (&Value::Null, &Value::Null));
    assert_eq!(after["slo"]["state"], "unknown");
    assert_eq!(after["slo"]["missed_percent"], 0.0);
    daemon.stop();
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn fed_rate_and_latency_are_near_those_offered() {
    let (ground, server) = (Ground::new(), Server::start());
    let daemon = ground.run(&lc(server.pid(), ""));
    let load = load(&ground, &server, "web", "4");
    eventually("a report is there", || latency(&daemon)["provenance"] == "measured");
    let seen = latency(&daemon);
    assert!(seen["latency_us"].as_f64().unwrap() > 10.0, "the work alone takes 10 us: {seen}");
    let rate = seen["load_rps"].as_f64().unwrap();
    assert!((50.0..2_000.0).contains(&rate), "{rate}");
    finish(load);
    daemon.stop();
}

#[test]
fn a_feed_for_nobody_says_so_once_and_the_load_goes_on() {
    let (ground, server) = (Ground::new(), Server::start());
    let without = finish(load(&ground, &server, "web", "1"));
    assert_eq!(without.status.code(), Some(2));
    assert!(said(&without.stderr).contains("no Quell daemon listens"), "{}", said(&without.stderr));
    let daemon = ground.run(&lc(server.pid(), ""));
    let out = finish(load(&ground, &server, "wep", "4"));
    assert_ne!(out.status.code(), Some(2), "{}", said(&out.stderr));
    let complaints = said(&out.stderr)
        .matches("report to daemon: there is no task `wep`; tasks are: web")
        .count();
    assert_eq!(complaints, 1, "{}", said(&out.stderr));
    assert_eq!(latency(&daemon)["age_ms"], Value::Null);
    daemon.stop();
}

#[test]
fn a_command_is_read_and_its_nonsense_is_told() {
    let ground = Ground::new();
    let server = Program::start("sleep", &["600"]);
    let script = ground.path().join("latency.sh");
    let write = |body: &str| {
        let new = ground.path().join("new.sh");
        fs::write(&new, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
        // At once: the daemon may be about to run it.
        fs::rename(&new, &script).unwrap();
    };
    write("echo 1500.5");
    let rest = format!(
        "slo = {{ latency_us = 1000 }}\n[task.latency]\ncommand = [\"{}\"]\ninterval_ms = 100",
        script.display()
    );
    let daemon = ground.run(&lc(server.pid(), &rest));
    eventually("it is read", || latency(&daemon)["latency_us"] == 1500.5);
    let seen = latency(&daemon);
    assert_eq!((&seen["slo"]["state"], &seen["load_rps"]), (&json!("missed"), &Value::Null));
    eventually("missed time adds up", || latency(&daemon)["slo"]["missed_percent"] == 100.0);
    write("echo '{\"latency_us\": 700, \"load_rps\": 40000}'");
    eventually("an object is read", || latency(&daemon)["load_rps"] == 40_000.0);
    assert_eq!(latency(&daemon)["slo"]["state"], "met");
    for (body, wanted) in [
        ("echo NaN", "it printed `NaN`"),
        ("echo -5", "-5 is no latency"),
        ("echo 1e300", "is no latency"),
        ("exit 3", "program exited with status 3"),
        ("yes", "more than 65536 bytes"),
        ("sleep 600", "took longer than 100ms and was killed"),
        ("printf '\\033[31m[['", "\\u{1b}[31m[["),
    ] {
        write(body);
        eventually(wanted, || {
            latency(&daemon)["problem"].to_string().contains(wanted) || {
                // JSON doubles the backslash.
                latency(&daemon)["problem"].as_str().is_some_and(|problem| problem.contains(wanted))
            }
        });
    }
    eventually("nothing is made up", || latency(&daemon)["latency_us"] == Value::Null);
    assert_eq!(latency(&daemon)["provenance"], "absent: the last reading is too old");
    assert_eq!(daemon.status()["guardians"], 2);
    let reports = report(&ground, &json!({"task": "web", "interval_ms": 1000, "latency": []}));
    assert!(reports.contains("the latency of `web` comes from command"), "{reports}");
    // The source changes while the task goes on.
    let path = ground.config(&lc(server.pid(), ""));
    assert!(ground.quell(&["apply", path.to_str().unwrap()]).status.success());
    assert_eq!(latency(&daemon)["source"], "reports");
    assert_eq!(daemon.task("web")["threads"], 1);
    daemon.stop();
}

/// A page of metrics that counts how often it was served; also ends after the test at the latest.
struct Page {
    addr: String,
    text: Arc<Mutex<String>>,
    over: Arc<AtomicBool>,
}

impl Page {
    fn serve(text: &str) -> Page {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let (text, over) =
            (Arc::new(Mutex::new(text.to_owned())), Arc::new(AtomicBool::new(false)));
        let (shown, ends) = (Arc::clone(&text), Arc::clone(&over));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let answer = shown.lock().unwrap().clone();
                answer_one(stream, &answer);
            }
        });
        Page { addr, text, over }
    }

    fn show(&self, text: &str) {
        text.clone_into(&mut self.text.lock().unwrap());
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(&self.addr);
    }
}

fn answer_one(mut stream: TcpStream, answer: &str) {
    let mut asked = [0; 4096];
    let read = stream.read(&mut asked).unwrap_or(0);
    let head = match asked[..read].starts_with(b"GET /metrics HTTP/1.1\r\n") {
        true => "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
        false => "HTTP/1.1 404 Not Found\r\n\r\n",
    };
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(answer.as_bytes());
}

const SUMMARY: &str = "# TYPE rpc_seconds summary\n\
    rpc_seconds{quantile=\"0.5\",code=\"200\"} 0.0001\n\
    rpc_seconds{quantile=\"0.999\",code=\"200\"} 0.00042\n\
    # TYPE rpcs_total counter\nrpcs_total{code=\"200\"} 100\nrpcs_total{code=\"500\"} 1\n";

#[test]
fn a_page_of_metrics_is_read_and_its_nonsense_is_told() {
    let (ground, page) = (Ground::new(), Page::serve(SUMMARY));
    let server = Program::start("sleep", &["600"]);
    let rest = format!(
        "slo = {{ latency_us = 500 }}\n[task.latency]\nurl = \"http://{}/metrics\"\n\
         metric = 'rpc_seconds{{quantile=\"0.999\"}}'\nload = \"rpcs_total\"\ninterval_ms = 100",
        page.addr
    );
    let daemon = ground.run(&lc(server.pid(), &rest));
    eventually("both are read", || latency(&daemon)["load_rps"] == 0.0);
    let seen = latency(&daemon);
    assert_eq!((&seen["latency_us"], &seen["provenance"]), (&json!(420.0), &json!("measured")));
    assert_eq!(seen["slo"]["state"], "met");
    for (text, wanted) in [
        ("rpcs_total 1\n", "the page has no `rpc_seconds"),
        ("rpc_seconds{quantile=\"0.999\"} NaN\nrpcs_total 1\n", "NaN is no latency"),
        ("rpcs_total 1\nrpc_seconds{quantile=\"0.999\n", "a value has no end"),
        (&"x 1\n".repeat(3 << 20), "more than 8388608 bytes"),
    ] {
        page.show(text);
        eventually(wanted, || {
            latency(&daemon)["problem"].as_str().is_some_and(|problem| problem.contains(wanted))
        });
    }
    page.show(SUMMARY);
    eventually("it is read again", || {
        let seen = latency(&daemon);
        seen["latency_us"] == 420.0 && seen["problem"] == Value::Null
    });
    drop(page);
    eventually("nobody serves it any more", || latency(&daemon)["problem"].is_string());
    daemon.stop();
}

#[test]
fn a_histogram_gives_an_estimate() {
    let pages = |calls: u32| {
        format!(
            "# TYPE h_seconds histogram\nh_seconds_bucket{{le=\"0.001\"}} {calls}\n\
             h_seconds_bucket{{le=\"+Inf\"}} {calls}\nh_seconds_count {calls}\n"
        )
    };
    let (ground, page) = (Ground::new(), Page::serve(&pages(10)));
    let server = Program::start("sleep", &["600"]);
    let rest = format!(
        "[task.latency]\npercentile = 99\nurl = \"http://{}/metrics\"\nmetric = \"h_seconds\"\ninterval_ms = 100",
        page.addr
    );
    let daemon = ground.run(&lc(server.pid(), &rest));
    let mut calls = 10;
    eventually("requests are seen", || {
        calls += 1_000;
        page.show(&pages(calls));
        let seen = latency(&daemon);
        seen["provenance"] == "estimated: from a histogram"
            && seen["latency_us"] == 990.0
            && seen["load_rps"].as_f64().unwrap() > 0.0
    });
    eventually("without requests there is nothing to measure", || {
        latency(&daemon)["provenance"] == "absent: there is nothing to measure now"
    });
    daemon.stop();
}

/// Reports over one connection, in one write, and the replies.
fn reports(ground: &Ground, reports: &[Value]) -> Vec<String> {
    let socket = ground.path().join("control.sock");
    let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
    let request = |report: &Value| format!("{}\n", json!({"v": 2, "call": {"report": report}}));
    stream.write_all(reports.iter().map(request).collect::<String>().as_bytes()).unwrap();
    let replies = BufReader::new(stream).lines().take(reports.len());
    replies.map(Result::unwrap).collect()
}

/// One report over the socket, and the reply.
fn report(ground: &Ground, report: &Value) -> String {
    reports(ground, std::slice::from_ref(report)).remove(0)
}

#[test]
fn only_root_and_the_user_of_the_processes_report_and_not_too_often() {
    let ground = Ground::new();
    let own = |uid: &str| {
        Program::start(
            "setpriv",
            &[&format!("--reuid={uid}"), "--regid=games", "--clear-groups", "sleep", "600"],
        )
    };
    let (served, of_root) = (own("65534"), Program::start("sleep", &["600"]));
    let daemon = ground.run(&format!(
        "[host]\ncontrol_group = \"games\"\n{}[[task]]\nname = \"root\"\nclass = \"lc\"\npid = {}\n\
         [[task]]\nname = \"batch\"\nclass = \"be\"\nmatch = \"quell-nobody\"\n",
        lc(served.pid(), ""),
        of_root.pid()
    ));
    eventually("setpriv became sleep", || {
        fs::read_to_string(format!("/proc/{}/comm", served.pid())).unwrap() == "sleep\n"
    });
    let valid = |task: &str| {
        json!({"task": task, "interval_ms": 1000, "load_rps": 5.0,
            "latency": [{"percentile": 99.9, "latency_us": 70.0}]})
    };
    let as_nobody = |task: &str| {
        // The shell of the system speaks no Unix sockets; the load generator does, and reports.
        let copy = Path::new("/tmp").join(format!("quell-feed-{}", std::process::id()));
        copy_program(Path::new(QUELL).with_file_name("quell-lab"), &copy);
        let server = Server::start();
        let out = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=games", "--clear-groups"])
            .arg(&copy)
            .args(["load", "synthetic", &server.addr, "--rate", "100", "--duration", "2"])
            .args(["--report-to", task])
            .env("QUELL_RUN_DIR", ground.path())
            .output()
            .unwrap();
        fs::remove_file(&copy).unwrap();
        said(&out.stderr)
    };
    let theirs = as_nobody("web");
    assert!(!theirs.contains("feed:"), "{theirs}");
    // On a busy host the last report may be too old by now.
    assert!(latency(&daemon)["age_ms"].is_number(), "{}", latency(&daemon));
    let not_theirs = as_nobody("root");
    assert!(not_theirs.contains("user 65534 may not report on `root`"), "{not_theirs}");
    assert_eq!(daemon.task("root")["latency"]["age_ms"], Value::Null);
    assert!(report(&ground, &valid("web")).contains("done"));
    assert!(report(&ground, &valid("batch")).contains("best-effort"));
    let other = json!({"task": "web", "interval_ms": 1000, "latency": [{"percentile": 50, "latency_us": 7}]});
    assert!(
        report(&ground, &other).contains("percentile 99.9 is wanted of `web`, the report has 50")
    );
    // In one write: they come within a second on any host.
    let answers = reports(&ground, &vec![valid("root"); 30]);
    let refused =
        answers.iter().filter(|line| line.contains("more than 10 times a second")).count();
    assert!(answers.len() > refused, "{answers:?}");
    assert!(refused > 0, "{answers:?}");
    assert_eq!(daemon.task("root")["latency"]["latency_us"], 70.0);
    daemon.stop();
}
