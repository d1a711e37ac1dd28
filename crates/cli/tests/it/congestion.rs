//! Congestion that the plan cannot relieve is reported with its cause.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use crate::common::{Daemon, Ground, eventually};
use serde_json::Value;

/// Two LC services with more work than the one managed core can do; only the first is guaranteed it.
const TWO_SERVICES: &str = "[host]\nmanaged = \"1\"\ncongestion_after_ms = 50\n\
    [[task]]\nname = \"web\"\nclass = \"lc\"\nguaranteed = 1\nrunaway_ms = 0\n\
    command = [\"stress-ng\", \"--cpu\", \"2\", \"--quiet\"]\n\
    [[task]]\nname = \"cache\"\nclass = \"lc\"\nrunaway_ms = 0\n\
    command = [\"stress-ng\", \"--cpu\", \"1\", \"--quiet\"]\n";

fn report(daemon: &Daemon) -> Value {
    let out = daemon.ground.quell(&["status", "--congestion", "--json"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn congested(report: &Value, name: &str) -> Value {
    let tasks = report["tasks"].as_array().unwrap();
    tasks.iter().find(|task| task["task"] == name).unwrap_or(&Value::Null).clone()
}

#[test]
fn two_services_on_too_few_cores_are_reported_with_their_causes_until_relieved() {
    let ground = Ground::new();
    let daemon = ground.run(TWO_SERVICES);
    eventually("both are reported with their causes", || {
        let report = report(&daemon);
        let (web, cache) = (congested(&report, "web"), congested(&report, "cache"));
        web["cause"] == "at_maximum" && web["owned"] == "1" && cache["cause"] == "lc_owned"
    });
    let report_now = report(&daemon);
    assert_eq!(report_now["threshold_ms"], 50.0);
    let cache = congested(&report_now, "cache");
    assert_eq!((&cache["cores"], &cache["owners"][0]), (&"1".into(), &"web".into()), "{cache}");
    let now = report_now["now_ns"].as_u64().unwrap();
    let congested_for = (now - cache["since_ns"].as_u64().unwrap()) as f64 / 1e9;
    assert!((congested_for - cache["duration_s"].as_f64().unwrap()).abs() < 1e-6, "{cache}");

    let words = ground.quell(&["status", "--congestion"]);
    let words = String::from_utf8(words.stdout).unwrap();
    assert!(words.contains("(1) is owned by web; remedy: guarantee it a core"), "{words}");
    let words = String::from_utf8(ground.quell(&["status"]).stdout).unwrap();
    assert!(
        words.contains("task cache: congested, and the plan cannot help (lc_owned)"),
        "{words}"
    );
    let status = daemon.status();
    let event = "task cache: congestion that the plan cannot relieve: lc_owned";
    assert!(status["events"].to_string().contains(event), "{}", status["events"]);
    eventually("the time is counted by cause", || {
        daemon.task("cache")["unresolved_congestion_s"]["lc_owned"]
            .as_f64()
            .is_some_and(|s| s > 0.0)
    });

    assert!(ground.quell(&["remove", "web"]).status.success());
    eventually("the core is the other's, and that relieves it", || {
        report(&daemon)["tasks"].as_array().unwrap().is_empty()
    });
    let events = daemon.status()["events"].to_string();
    assert!(events.contains("task cache: no longer congested, after"), "{events}");
    assert_eq!(daemon.task("cache")["unresolved_congestion"], Value::Null);
    daemon.stop();
}
