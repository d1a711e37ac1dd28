//! The metrics endpoint, scraped by a real Prometheus; the alert rules and the dashboard that use it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::feign::{self, Feigned};
use crate::common::lanes::Lanes;
use crate::common::{Ground, OTHER, PATIENCE, Program, eventually, start_bound, thread_scheduling};

use serde_json::Value;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// An address of this host that nobody listens on.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn with_metrics(address: SocketAddr) -> String {
    format!(
        "[host]\nmetrics = \"{address}\"\n\
         [[task]]\nname = \"web\"\nclass = \"lc\"\nguaranteed = 1\ncommand = [\"sleep\", \"600\"]\n\
         [[task]]\nname = \"batch\"\nclass = \"be\"\ncommand = [\"sleep\", \"600\"]\n"
    )
}

/// The body of a successful answer. HTTP/1.0, so that it comes in one piece.
fn try_get(from: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(from)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {from}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    match head.split_whitespace().nth(1) {
        Some("200") => Ok(body.to_owned()),
        _ => Err(std::io::Error::other(answer)),
    }
}

fn get(from: SocketAddr, path: &str) -> String {
    try_get(from, path).unwrap()
}

/// Policy, priority and cores of the threads of a process that have this name.
fn threads_named(pid: u32, name: &str) -> Vec<(i32, u32, String)> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let named = threads.filter(|thread| {
        fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
    });
    named.filter_map(|thread| thread_scheduling(&thread.path())).collect()
}

/// The metrics that `/schema` lists.
fn listed(daemon: SocketAddr) -> BTreeSet<String> {
    let schema: Value = serde_json::from_str(&get(daemon, "/schema")).unwrap();
    let metrics = schema["metrics"].as_array().unwrap();
    metrics.iter().map(|metric| metric["name"].as_str().unwrap().to_owned()).collect()
}

/// The metrics that an expression names.
fn named(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("quell_")).map(str::to_owned).collect()
}

/// The expressions of all panels, as Grafana would send them for this host and all tasks.
fn dashboard(host: SocketAddr) -> Vec<String> {
    let text = fs::read_to_string(format!("{ROOT}/dashboards/quell.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let filled = |target: &Value| {
        let expression = target["expr"].as_str().unwrap().replace("$instance", &host.to_string());
        expression.replace("$task", ".*").replace("$__rate_interval", "1m")
    };
    targets.map(filled).collect()
}

/// A Prometheus that scrapes the daemon each second and has our rules.
struct Prometheus {
    address: SocketAddr,
    _program: Program,
}

impl Prometheus {
    fn start(dir: &Path, daemon: SocketAddr) -> Prometheus {
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
             rule_files: ['{ROOT}/alerts/quell.yml']\n\
             scrape_configs: [{{job_name: quell, static_configs: [{{targets: ['{daemon}']}}]}}]\n"
        );
        let file = dir.join("prometheus.yml");
        fs::write(&file, config).unwrap();
        let address = free_address();
        let program = Program::start(
            "prometheus",
            &[
                &format!("--config.file={}", file.display()),
                &format!("--storage.tsdb.path={}", dir.join("tsdb").display()),
                &format!("--web.listen-address={address}"),
            ],
        );
        eventually("prometheus is ready", || try_get(address, "/api/v1/status/flags").is_ok());
        Prometheus { address, _program: program }
    }

    fn api(&self, path: &str) -> Value {
        let answer: Value =
            serde_json::from_str(&get(self.address, &format!("/api/v1/{path}"))).unwrap();
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].clone()
    }

    /// The series that an expression yields now.
    fn query(&self, expression: &str) -> Vec<Value> {
        let escaped: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        self.api(&format!("query?query={escaped}"))["result"].as_array().unwrap().clone()
    }

    /// The one value that an expression yields.
    fn value(&self, expression: &str) -> f64 {
        let series = self.query(expression);
        assert_eq!(series.len(), 1, "{expression}: {series:?}");
        series[0]["value"][1].as_str().unwrap().parse().unwrap()
    }

    fn alerts(&self) -> Vec<Value> {
        self.api("rules")["groups"][0]["rules"].as_array().unwrap().clone()
    }
}

#[test]
fn a_real_prometheus_scrapes_and_its_rules_and_every_panel_have_data() {
    let ground = Ground::new();
    let address = free_address();
    let daemon = ground.run(&with_metrics(address));
    let by_bpf = daemon.status()["observer"] == "bpf";
    let prometheus = Prometheus::start(ground.path(), address);
    // One scrape may take too long on a busy host.
    eventually("the target is up", || {
        prometheus.api("targets")["activeTargets"][0]["health"] == "up"
    });
    eventually("what was scraped is there", || !prometheus.query("quell_guardians").is_empty());

    assert_eq!(prometheus.value("quell_guardians"), 2.0);
    assert_eq!(prometheus.value("quell_task_threads{task=\"batch\",class=\"be\"}"), 1.0);
    assert_eq!(prometheus.value("sum(quell_invariant_violations_total)"), 0.0);
    assert_eq!(prometheus.query("quell_core_info{owner=\"web\"}").len(), 1);
    if by_bpf {
        assert!(prometheus.value("quell_idle_while_lc_waits_us_total") >= 0.0);
    }

    let names = listed(address);
    let mut used = BTreeSet::new();
    for expression in dashboard(address) {
        used.append(&mut named(&expression));
        if by_bpf {
            eventually(&expression, || !prometheus.query(&expression).is_empty());
        }
    }
    for alert in prometheus.alerts() {
        used.append(&mut named(alert["query"].as_str().unwrap()));
    }
    let unknown: Vec<_> = used.difference(&names).collect();
    assert!(unknown.is_empty() && used.len() > 20, "not in /schema: {unknown:?} of {used:?}");

    eventually("every rule was evaluated", || {
        let alerts = prometheus.alerts();
        assert_eq!(alerts.len(), 6);
        alerts.iter().all(|alert| alert["health"] == "ok")
    });
    daemon.stop();
    eventually("the daemon's end is noticed", || {
        prometheus
            .alerts()
            .iter()
            .any(|alert| alert["name"] == "QuellDown" && alert["state"] == "pending")
    });
}

#[test]
fn what_is_served_is_what_the_schema_lists_and_promtool_finds_no_fault_but_the_microseconds() {
    let ground = Ground::new();
    let address = free_address();
    let daemon = ground.run(&with_metrics(address));
    // Those of runtimes and of lanes are there while one is.
    let _runtime = feign::start(&ground, &Feigned::new("green", "be", "gentle"));
    let member = start_bound(&["sleep", "1000"]);
    let _lane = Lanes::run(&ground, &["--core", "1", "--pid", &member.pid().to_string()]);
    let mut text = String::new();
    eventually("the runtime is told of", || {
        text = get(address, "/metrics");
        text.contains("quell_runtime_")
    });
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let served: BTreeSet<String> =
        samples.flat_map(|line| named(line).into_iter().next()).collect();
    let mut names = listed(address);
    if daemon.status()["observer"] != "bpf" {
        names.retain(|name| !name.contains("idle_while_lc_waits") && !name.contains("lc_busy"));
    }
    assert_eq!(served, names);
    assert_eq!(get(address, "/healthz"), "ok\n");
    let threads = threads_named(daemon.child.id(), "quell-metrics");
    assert!(!threads.is_empty());
    let unmanaged = daemon.status()["unmanaged"].as_str().unwrap().to_owned();
    assert!(threads.iter().all(|thread| *thread == (OTHER, 0, unmanaged.clone())), "{threads:?}");

    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let said = String::from_utf8(promtool.wait_with_output().unwrap().stderr).unwrap();
    let faults: Vec<&str> = said
        .lines()
        .filter(|line| !line.starts_with("quell_idle_while_lc_waits_us_total"))
        .collect();
    assert!(faults.is_empty(), "{said}");
    daemon.stop();
}

#[test]
fn times_of_a_task_never_run_backwards_while_its_threads_end() {
    let ground = Ground::new();
    let text = "[[task]]\nname = \"batch\"\nclass = \"be\"\n\
        command = [\"stress-ng\", \"--pthread\", \"1\", \"--pthread-max\", \"50\", \"--quiet\"]\n";
    let daemon = ground.run(text);
    let (mut ran, mut waited, mut shrank) = (0.0, 0.0, false);
    let mut threads = 0;
    eventually("threads came and went", || {
        let task = daemon.task("batch");
        let time = |field: &str| task[field].as_f64().unwrap();
        assert!(time("cpu_ms") >= ran && time("run_delay_ms") >= waited, "{ran} {waited}: {task}");
        (ran, waited) = (time("cpu_ms"), time("run_delay_ms"));
        let now = task["threads"].as_u64().unwrap();
        shrank |= now < threads;
        threads = now;
        shrank && ran > 100.0
    });
    daemon.stop();
}

#[test]
fn each_alert_fires_for_its_reason_and_at_no_other_time() {
    for (what, file) in [("check", "quell.yml"), ("test", "quell.test.yml")] {
        let out = Command::new("promtool")
            .args([what, "rules", file])
            .current_dir(format!("{ROOT}/alerts"))
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
}

#[test]
fn an_address_in_use_is_refused_before_anything_changes() {
    let ground = Ground::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let said = ground.refused(&with_metrics(taken.local_addr().unwrap()));
    assert!(said.contains("choose a free port") && said.contains("in use"), "{said}");
    assert!(!ground.path().join("control.sock").exists());
}
