//! A whole co-location with tiny measurements: its structure, and that the host is as before. Never
//! its timings.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use quell_bench::colocate;
use quell_bench::colocate::{ColocateSpec, Lc, Mix, System};
use quell_bench::host::HostSnapshot;
use quell_model::{CoreId, CoreSet};
use quell_report::BenchReport;
use quell_terminal::{Silent, Stop};

fn spec(systems: &[System]) -> ColocateSpec {
    let (quell, antagonist) = crate::common::programs();
    ColocateSpec {
        name: "colocate".into(),
        lc: Lc::Memcached,
        command: "test".into(),
        mixes: vec![Mix::Hog],
        systems: systems.to_vec(),
        rounds: 1,
        warmup: Duration::from_millis(50),
        duration: Duration::from_millis(150),
        be_alone: Duration::from_millis(100),
        peak_rps: Some(10_000.0),
        load: 0.5,
        seed: 1,
        managed: CoreSet::of(CoreId(1)),
        client: CoreId(0),
        loop_cases: false,
        quell,
        antagonist,
    }
}

fn check(report: &BenchReport, systems: &[System]) {
    for system in systems {
        let has = |metric: &str| report.row("hog", system.name(), metric).is_some();
        for metric in
            ["lc_p50_us", "lc_p90_us", "lc_p99_us", "lc_p999_us", "lc_p9999_us", "lc_max_us"]
        {
            assert!(has(metric) && has(&format!("{metric}_raw")), "{metric} of {}", system.name());
        }
        for metric in [
            "lc_rps",
            "cpu_utilisation",
            "wakes_per_s",
            "stalled_time_share",
            "removed_requests_share",
        ] {
            assert!(has(metric), "{metric} of {}", system.name());
        }
        assert_eq!(has("be_share_of_leftover"), system.has_be(), "{}", system.name());
        assert_eq!(has("be_share_of_alone"), system.has_be(), "{}", system.name());
        let ratio = report.ratio("hog", system.name(), "lc_p999_us");
        assert_eq!(ratio.is_some(), *system != System::AloneWarm, "{}", system.name());
        assert!(report.curves.iter().any(|curve| curve.system == system.name()));
    }
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn every_system_is_measured_and_the_host_is_as_before() {
    let _one = crate::common::one();
    let before = HostSnapshot::take();
    let spec = spec(&System::ALL);
    let report = colocate::run(&spec, &mut Silent, &Stop::default()).unwrap();
    check(&report, &System::ALL);
    let own = [std::process::id().cast_signed()];
    let left = before.differences(&HostSnapshot::take(), &own);
    // Other tests may change settings meanwhile; they hold the same lock while they do, so what is
    // left changed now has to be taken back before somebody else's lock can be had.
    let _quiet = quell_testkit::host_lock().unwrap();
    let settled = before.differences(&HostSnapshot::take(), &own);
    assert!(settled.is_empty(), "{left:?}, then {settled:?}");
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn other_services_are_measured_the_same_way() {
    let _one = crate::common::one();
    for lc in [Lc::Redis, Lc::Nginx] {
        let systems = [System::AloneWarm, System::SchedRr, System::Quell];
        let name = lc.report_name("colocate");
        let spec = ColocateSpec { lc, name: name.clone(), ..spec(&systems) };
        let report = colocate::run(&spec, &mut Silent, &Stop::default()).unwrap();
        check(&report, &systems);
        assert_eq!((report.bench.as_str(), report.service()), (name.as_str(), Some(lc.name())));
    }
}

#[test]
fn a_stop_ends_everything_that_was_started() {
    let _one = crate::common::one();
    let stop = Stop::default();
    let asked = stop.clone();
    let mut spec = spec(&[System::AloneWarm, System::SchedRr]);
    spec.duration = Duration::from_secs(1);
    spec.rounds = 100;
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
    let thread = std::thread::spawn(move || colocate::run(&spec, &mut Silent, &stop));
    while children() < 2 && !thread.is_finished() {
        std::thread::sleep(Duration::from_millis(20));
    }
    asked.now();
    let ended = thread.join().unwrap();
    assert!(ended.unwrap_err().to_string().contains("interrupted"));
    assert_eq!(children(), 0);
}
