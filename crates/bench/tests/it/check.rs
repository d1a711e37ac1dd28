//! The benchmark of checker and recorder with a small crowd and tiny measurements: what it tells, and that it leaves
//! nothing behind. Never its timings.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use quell_bench::check::{CheckSpec, LOSS, NONE, Tool, run};
use quell_report::BenchReport;
use quell_terminal::{Silent, Stop};

fn assert_complete(report: &BenchReport, spec: &CheckSpec) {
    let rates = spec.rates.iter().map(|rate| format!("{rate}/s"));
    let cases: Vec<String> =
        ["idle".into()].into_iter().chain(rates).chain(["saturated".into()]).collect();
    for case in &cases {
        assert!(report.row(case, NONE, "wakes_per_s").is_some(), "{case}");
        let work = if case == "saturated" { "passes_per_s" } else { "leftover_ops_per_s" };
        for tool in Tool::ALL {
            let name = tool.name();
            if !tool.is_own()
                && report.notes.iter().any(|note| note.starts_with(&format!("{name}: n/a")))
            {
                assert!(report.capabilities.contains_key(name));
                continue;
            }
            let value = |metric| report.row(case, name, metric).map(|row| row.median);
            let cost = value("cost_percent").unwrap();
            let parts = value("own_percent").unwrap() + value("bpf_percent").unwrap();
            assert!((cost - parts).abs() < 1e-3 * cost.max(1.0), "{case} {name}: {cost} {parts}");
            assert!(report.ratio(case, name, work).is_some(), "{case} {name}");
            assert_eq!(value("lost_percent").is_some(), tool.follows_events(), "{case} {name}");
        }
    }
    let cost = |system: &str, metric| report.row("saturated", system, metric).unwrap().median;
    for tool in [Tool::CheckExact, Tool::Record] {
        assert!(cost(tool.name(), "bpf_percent") > 0.0);
        assert!(cost(tool.name(), "events_per_s") > 0.0);
        let told = ["wakes_per_s_without_loss", "lost_percent_a_step_above"];
        assert!(told.iter().any(|metric| report.row(LOSS, tool.name(), metric).is_some()));
    }
    for system in ["runnable", "with-sleepers"] {
        assert!(report.row("keyframe", system, "ns_per_thread").unwrap().median > 0.0);
    }
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn every_tool_has_its_rows_or_a_reason_and_nothing_stays() {
    let _one = crate::common::one();
    let (quell, antagonist) = crate::common::programs();
    let spec = CheckSpec {
        command: "test".into(),
        threads: 200,
        rates: vec![1_000.0],
        ladder: vec![2_000.0],
        rounds: 1,
        settle: Duration::from_secs(1),
        account: Duration::from_millis(300),
        work: Duration::from_millis(100),
        quell,
        antagonist,
    };
    let report = run(&spec, &mut Silent, &Stop::default()).unwrap();
    assert_complete(&report, &spec);
    assert!(!Path::new("/sys/kernel/tracing/instances/quell-bench").exists());
}

#[test]
fn a_stop_ends_it_at_once_and_nothing_stays() {
    let _one = crate::common::one();
    let (quell, antagonist) = crate::common::programs();
    let stop = Stop::default();
    stop.now();
    let spec = CheckSpec {
        command: "test".into(),
        threads: 50,
        rates: vec![],
        ladder: vec![],
        rounds: 1,
        settle: Duration::from_secs(1),
        account: Duration::from_secs(1),
        work: Duration::from_secs(1),
        quell,
        antagonist,
    };
    assert!(run(&spec, &mut Silent, &stop).is_err());
    assert!(!Path::new("/sys/kernel/tracing/instances/quell-bench").exists());
}
