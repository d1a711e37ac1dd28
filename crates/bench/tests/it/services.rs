//! A service beside batch work with tiny measurements: its structure, and that the host is as before. Never its timings.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use quell_bench::host::HostSnapshot;
use quell_bench::services::{self, Definition, Kind, LoopCase, ServicesSpec, System, Wanted};
use quell_model::{CoreId, CoreSet};
use quell_terminal::{Silent, Stop};

fn spec(systems: &[System], rounds: usize, seconds: f64) -> ServicesSpec {
    let (quell, antagonist) = crate::common::programs();
    let mut memcached = Definition::named("memcached").unwrap();
    memcached.load.peak_rps = Some(5_000.0);
    ServicesSpec {
        command: "test".into(),
        services: vec![memcached],
        wanted: Wanted {
            batch: vec![Kind::Hog],
            systems: systems.to_vec(),
            loads: vec![50],
            cases: Vec::new(),
        },
        rounds: Some(rounds),
        pilot: 0,
        longest: Some(Duration::from_secs_f64(seconds)),
        time_max: None,
        seed: 1,
        managed: CoreSet::of(CoreId(1)),
        client: CoreId(0),
        quell,
        antagonist,
        log: None,
    }
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn every_system_is_measured_and_the_host_is_as_before() {
    let _one = crate::common::one();
    let before = HostSnapshot::take();
    // Bursts need a pilot.
    let systems: Vec<System> =
        System::ALL.into_iter().filter(|system| *system != System::Bursts).collect();
    let mut spec = spec(&systems, 1, 0.3);
    spec.wanted.cases = vec![LoopCase::TwoLcSteps];
    let report = services::run(&spec, &mut Silent, &Stop::default()).unwrap();
    for system in &systems {
        for cell in ["memcached-50-hog", "memcached-20-two-lc-steps"] {
            let has = |metric: &str| report.row(cell, system.name(), metric).is_some();
            assert!(has("tail_us_raw") && has("served_share"), "{cell}, {}", system.name());
            assert_eq!(has("batch_of_alone"), system.has_batch(), "{cell}, {}", system.name());
            assert_eq!(has("second_tail_us_raw"), cell.ends_with("steps"), "{}", system.name());
        }
    }
    let own = [std::process::id().cast_signed()];
    let left = before.differences(&HostSnapshot::take(), &own);
    // Other tests may change settings meanwhile; they hold the same lock while they do, so what is
    // left changed now has to be taken back before somebody else's lock can be had.
    let _quiet = quell_testkit::host_lock().unwrap();
    let settled = before.differences(&HostSnapshot::take(), &own);
    assert!(settled.is_empty(), "{left:?}, then {settled:?}");
}

/// What `make demo` does, in short: the service is in a cgroup of its own, which Quell adopts.
#[test]
fn a_service_in_its_own_cgroup_runs_under_quell_beside_batch_work() {
    let _one = crate::common::one();
    let report =
        services::run(&spec(&[System::Quell], 1, 0.3), &mut Silent, &Stop::default()).unwrap();
    let value = |metric: &str| {
        let row = report.row("memcached-50-hog", System::Quell.name(), metric);
        row.unwrap_or_else(|| panic!("no {metric}")).median
    };
    assert!(value("tail_us_raw") > 0.0 && value("batch_ops_per_s") > 0.0);
    assert!(value("served_share") > 0.5 && value("cpu_of_quell-sched") > 0.0);
}

#[test]
fn a_stop_ends_everything_that_was_started() {
    let _one = crate::common::one();
    let stop = Stop::default();
    let asked = stop.clone();
    let spec = spec(&[System::AloneIdlePoll, System::RoundRobin], 100, 1.0);
    let children = || {
        let own = std::process::id();
        let folders = std::fs::read_dir("/proc").unwrap().flatten();
        let stats = folders.filter_map(|one| std::fs::read_to_string(one.path().join("stat")).ok());
        let parents = stats.filter_map(|stat| {
            let (head, rest) = stat.rsplit_once(')')?;
            let is_service = head.contains("memcached") || head.contains("quell-antagon");
            (is_service && rest.split_whitespace().nth(1)? == own.to_string()).then_some(())
        });
        parents.count()
    };
    let thread = std::thread::spawn(move || services::run(&spec, &mut Silent, &stop));
    while children() < 2 && !thread.is_finished() {
        std::thread::sleep(Duration::from_millis(20));
    }
    asked.now();
    let ended = thread.join().unwrap();
    assert!(format!("{:#}", ended.unwrap_err()).contains("interrupted"));
    assert_eq!(children(), 0);
    assert!(!std::path::Path::new("/sys/fs/cgroup/cpu/quell-bench").exists());
}
