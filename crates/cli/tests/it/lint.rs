//! `quell check --lint`, on this host and on dumps.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use crate::common::QUELL;
use quell_model::{
    CoreDomains, CoreId, CoreSet, Domain, DomainGroup, DomainRules, DomainTrees, Event, Meta,
    Nanos, Source, Topology, What,
};
use quell_testkit::{Unbalanced, host_lock, skipped};
use quell_trace::perfetto::Writer;
use quell_trace::stream::Sink as _;
use serde_json::Value;

fn lint(args: &[&str]) -> Output {
    Command::new(QUELL).args(["check", "--lint"]).args(args).output().unwrap()
}

fn text(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

fn path(directory: &tempfile::TempDir, name: &str) -> String {
    directory.path().join(name).to_str().unwrap().to_owned()
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn this_host_is_clean_and_without_load_balancing_l1_and_l5_fail() {
    let directory = tempfile::tempdir().unwrap();
    let (before, during, after) =
        (path(&directory, "before"), path(&directory, "during"), path(&directory, "after"));
    let lock = host_lock().unwrap();
    let clean = lint(&["--save", &before]);
    assert_eq!(clean.status.code(), Some(0), "{}", text(&clean));
    assert!(text(&clean).starts_with("this host: clean: "), "{}", text(&clean));

    let Some(unbalanced) = Unbalanced::begin(&lock).unwrap() else {
        return skipped("this host has no cpuset hierarchy of cgroup v1");
    };
    let violated = lint(&["--json", "--save", &during]);
    drop(unbalanced);
    assert_eq!(violated.status.code(), Some(1), "{}", text(&violated));
    let report: Value = serde_json::from_slice(&violated.stdout).unwrap();
    assert_eq!(report["verdict"], "violated");
    let findings = report["dumps"][0]["findings"].as_array().unwrap();
    assert_eq!((findings.len(), &findings[0]["rule"]), (1, &Value::from("L1")));
    assert!(findings[0]["remedy"].as_str().unwrap().contains("sched_load_balance"));

    let again = lint(&["--save", &after]);
    assert_eq!(again.status.code(), Some(0), "{}", text(&again));
    let unchanged = lint(&[&before, &after]);
    assert_eq!(unchanged.status.code(), Some(0), "{}", text(&unchanged));
    let changed = lint(&[&before, &during]);
    assert_eq!(changed.status.code(), Some(1), "{}", text(&changed));
    assert!(text(&changed).contains("L5 on cores"), "{}", text(&changed));
}

/// A dump of two cores, as `--save` writes it: with one domain of both, or without any.
fn dump(directory: &tempfile::TempDir, name: &str, has_domains: bool) -> String {
    let both: CoreSet = "0-1".parse().unwrap();
    let of = |core: u16| {
        let group = |core| {
            let cores = CoreSet::of(CoreId(core));
            DomainGroup { cores, balance: cores }
        };
        let groups = vec![group(core), group(1 - core)];
        let domain = Domain { name: "MC".into(), span: both, groups, flags: None, balance: None };
        let domains = if has_domains { vec![domain] } else { Vec::new() };
        CoreDomains { core: CoreId(core), root: Some(both), domains }
    };
    let trees = DomainTrees::new(vec![of(0), of(1)], CoreSet::EMPTY).unwrap();
    let path = path(directory, name);
    fs::write(&path, serde_json::to_string(&trees).unwrap()).unwrap();
    path
}

#[test]
fn dumps_without_domains_violate_l1_and_a_loss_of_them_l5() {
    let directory = tempfile::tempdir().unwrap();
    let [before, after] = ["before", "after"].map(|name| dump(&directory, name, true));
    let during = dump(&directory, "during", false);
    let clean = lint(&[&before]);
    assert_eq!(clean.status.code(), Some(0), "{}", text(&clean));
    assert!(text(&clean).starts_with(&format!("{before}: clean: ")), "{}", text(&clean));
    let violated = lint(&["--json", &during]);
    assert_eq!(violated.status.code(), Some(1), "{}", text(&violated));
    let report: Value = serde_json::from_slice(&violated.stdout).unwrap();
    assert_eq!(report["verdict"], "violated");
    let findings = report["dumps"][0]["findings"].as_array().unwrap();
    assert_eq!((findings.len(), &findings[0]["rule"]), (1, &Value::from("L1")));
    assert!(findings[0]["remedy"].as_str().unwrap().contains("sched_load_balance"));
    let unchanged = lint(&[&before, &after]);
    assert_eq!(unchanged.status.code(), Some(0), "{}", text(&unchanged));
    let changed = lint(&[&before, &during]);
    assert_eq!(changed.status.code(), Some(1), "{}", text(&changed));
    assert!(text(&changed).contains("L5 on cores"), "{}", text(&changed));
}

/// A trace of four cores on two nodes: core 3 goes offline and comes back, with or without the level between nodes.
fn trace(directory: &tempfile::TempDir, name: &str, has_nodes: bool) -> String {
    let topology = Topology::regular(2, 2, 1).unwrap();
    let trees = |online: &CoreSet, between_nodes| {
        let rules = DomainRules { between_nodes, ..DomainRules::LINUX_4_1 };
        What::Domains(Arc::new(DomainTrees::build(&topology, online, &rules)))
    };
    let all = topology.all();
    let events = [trees(&all, true), trees(&"0-2".parse().unwrap(), true), trees(&all, has_nodes)];
    let mut writer = Writer::new(Vec::new());
    let meta = Meta {
        source: Source::Simulator,
        topology: topology.clone(),
        kernel: "linux-4.1".to_owned(),
        host: "hotplug".to_owned(),
        hooks: vec![],
        absent: vec![],
        wall_offset_ns: 0,
    };
    writer.meta(&meta).unwrap();
    for (sequence, what) in (0..).zip(events) {
        let at = Nanos::from_millis(sequence);
        writer.event(&Event { at, core: CoreId(0), sequence, what }).unwrap();
    }
    writer.finish().unwrap();
    let path = path(directory, name);
    fs::write(&path, writer.into_inner()).unwrap();
    path
}

#[test]
fn trace_is_judged_at_its_start_and_after_each_rebuild() {
    let directory = tempfile::tempdir().unwrap();
    let fixed = trace(&directory, "fixed", true);
    let clean = lint(&[&fixed]);
    assert_eq!(clean.status.code(), Some(0), "{}", text(&clean));
    for time in ["0.000000", "0.001000", "0.002000"] {
        let verdict = format!("{fixed} at {time} s: clean: ");
        assert!(text(&clean).contains(&verdict), "{}", text(&clean));
    }
    let lost = trace(&directory, "lost", false);
    let violated = lint(&["--json", &lost]);
    assert_eq!(violated.status.code(), Some(1), "{}", text(&violated));
    let report: Value = serde_json::from_slice(&violated.stdout).unwrap();
    let rules = |report: &Value| {
        let findings = report["findings"].as_array().unwrap().iter();
        findings.map(|one| one["rule"].as_str().unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    let dumps = report["dumps"].as_array().unwrap().iter().map(rules);
    let l1 = BTreeSet::from(["L1".to_owned()]);
    assert_eq!(dumps.collect::<Vec<_>>(), [BTreeSet::new(), BTreeSet::new(), l1]);
    assert_eq!(report["changes"].as_array().unwrap().len(), 1);
    let change = &report["changes"][0];
    assert_eq!(rules(change), BTreeSet::from(["L5".to_owned()]));
    assert_eq!(change["name"], format!("{lost} at 0.002000 s"));
    assert_eq!(change["against"], format!("{lost} at 0.000000 s"));
}

#[test]
fn live_lint_saves_what_it_judged() {
    let directory = tempfile::tempdir().unwrap();
    let saved = path(&directory, "saved");
    let _lock = host_lock().unwrap();
    let live = lint(&["--json", "--save", &saved]);
    let again = lint(&["--json", &saved]);
    assert_eq!(live.status.code(), again.status.code(), "{}{}", text(&live), text(&again));
    let findings = |out: &Output| {
        let report: Value = serde_json::from_slice(&out.stdout).unwrap();
        (report["verdict"].clone(), report["dumps"][0]["findings"].clone())
    };
    assert_eq!(findings(&live), findings(&again));
}

#[test]
fn a_broken_dump_is_violated_and_an_unfinished_one_cannot_be_told() {
    let directory = tempfile::tempdir().unwrap();
    let log = path(&directory, "dmesg");
    let domains = |root: &str| {
        format!(
            "[    0.1] CPU0 attaching sched-domain(s):\n\
             [    0.1]  domain-0: span=0-1 level=MC\n\
             [    0.1]   groups: 0:{{ span=0-1 }}\n{root}"
        )
    };
    fs::write(&log, domains("[    0.1] root domain span: 0-1\n")).unwrap();
    let out = lint(&[&log]);
    assert_eq!(out.status.code(), Some(1), "{}", text(&out));
    assert!(text(&out).contains("L3 on cores 0") && text(&out).contains("L4 on cores 0"));
    fs::write(&log, domains("").replace("0:{ span=0-1 }", "0:{ span=0 }, 1:{ span=1 }")).unwrap();
    let out = lint(&[&log]);
    assert_eq!(out.status.code(), Some(2), "{}", text(&out));
    assert!(text(&out).contains("could not tell"), "{}", text(&out));
}

#[test]
fn what_is_no_dump_is_an_error_with_its_name_and_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let file = path(&directory, "notes");
    fs::write(&file, "nothing of the kind\n").unwrap();
    let out = lint(&[&file]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out).contains("notes") && text(&out).contains("sched_verbose"), "{}", text(&out));
    assert!(!Path::new(&path(&directory, "absent")).exists());
    assert!(text(&lint(&[&path(&directory, "absent")])).contains("absent"));
}
