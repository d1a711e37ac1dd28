//! Caladan's figures in their short form. What holds of each figure is in `validation::TARGETS`; a target that is not met has
//! to have its reason in `validation::misses`, and one that is met none.

#![allow(clippy::unwrap_used, reason = "a test that cannot run its figure fails")]

use quell_study::validation::{self, Verdict, why};
use quell_terminal::{Silent, Stop};

/// Runs a figure, holds its misses to the list, and returns the verdicts.
fn judged(figure: &str) -> Vec<Verdict> {
    let spec = validation::ValidationSpec {
        command: String::new(),
        figures: vec![figure.to_owned()],
        short: true,
        seeds: 1,
        threads: 2,
    };
    let report = validation::run(&spec, &mut Silent, &Stop::default()).unwrap();
    let verdicts = validation::verdicts(&report);
    assert!(!verdicts.is_empty(), "{figure} judges nothing");
    for verdict in &verdicts {
        let reason = why(figure, verdict.target.name);
        assert_eq!(verdict.within, reason.is_none(), "{verdict:?}: {reason:?}");
    }
    verdicts
}

/// The value of a target, which has to be met.
fn met(verdicts: &[Verdict], target: &str) -> f64 {
    let verdict = verdicts.iter().find(|verdict| verdict.target.name == target).unwrap();
    assert!(verdict.within, "{verdict:?}");
    verdict.here.0
}

#[test]
fn services_serve_alone_what_their_models_were_made_for() {
    let verdicts = judged("peaks");
    met(&verdicts, "memcached_peak_mrps");
    met(&verdicts, "storage_peak_mrps");
}

#[test]
fn shenango_harms_the_tail_that_caladan_keeps() {
    let verdicts = judged("memcached-stream");
    met(&verdicts, "caladan_throughput_percent");
    met(&verdicts, "shenango_tail_times");
}

#[test]
fn collection_takes_as_long_as_published() {
    met(&judged("gc"), "pause_ms");
}

#[test]
fn queueing_grows_by_half_once_half_of_the_capacity_is_gone() {
    met(&judged("halved-capacity"), "growth_us_in_10_us");
}

#[test]
fn storage_answers_as_alone_and_silo_later_at_low_load() {
    let verdicts = judged("colocations");
    met(&verdicts, "storage_tail_times");
    met(&verdicts, "silo_low_tail_times");
    met(&verdicts, "throughput_percent");
}

#[test]
fn services_keep_tails_in_load_steps_and_burst_beyond_guarantee() {
    let verdicts = judged("five-tasks");
    met(&verdicts, "burst_cores");
    met(&verdicts, "batch_gives_way_percent");
}

#[test]
fn eleven_services_leave_cores_for_microseconds_of_tail() {
    let verdicts = judged("many-services");
    met(&verdicts, "tail_extra_us");
    met(&verdicts, "batch_cores");
}

#[test]
fn a_single_hog_alternates_between_no_core_and_one() {
    let verdicts = judged("single-hog");
    met(&verdicts, "changes_per_s");
    met(&verdicts, "traffic_percent_of_limit");
}

#[test]
fn bandwidth_control_alone_suffices_at_low_load_only() {
    let verdicts = judged("ablation");
    met(&verdicts, "low_bandwidth_alone_times");
    met(&verdicts, "high_bandwidth_alone_times");
    // The other controller alone is not enough either, though by less than its target asks.
    let named = |verdict: &&Verdict| verdict.target.name == "high_hyperthread_alone_times";
    assert!(verdicts.iter().find(named).unwrap().here.0 > 1.0);
}

#[test]
fn caladan_serves_and_leaves_more_than_elfen_at_low_load() {
    let verdicts = judged("elfen");
    met(&verdicts, "throughput_times");
    met(&verdicts, "low_batch_times");
}

#[test]
fn delay_below_10_us_costs_batch_without_guarantees() {
    let verdicts = judged("queueing-delay");
    met(&verdicts, "burst_batch_below_10_us_percent");
    met(&verdicts, "tail_below_10_us_percent");
}

#[test]
fn idling_siblings_early_costs_batch_and_never_the_tail() {
    let verdicts = judged("sibling-threshold");
    met(&verdicts, "batch_below_median_percent");
    met(&verdicts, "never_batch_percent");
    met(&verdicts, "never_tail_percent");
}

#[test]
fn published_bandwidth_limit_keeps_the_tail() {
    let verdicts = judged("bandwidth-limit");
    met(&verdicts, "tail_at_limit_times");
    met(&verdicts, "tail_without_limit_times");
}

#[test]
fn deciding_a_hundred_times_as_rarely_costs_the_tail() {
    met(&judged("interval"), "tail_at_1_ms_times");
}

#[test]
fn every_reason_belongs_to_a_target() {
    for miss in &validation::misses::MISSES {
        let known = |target: &&validation::Target| {
            (target.figure, target.name) == (miss.figure, miss.target)
        };
        assert!(validation::TARGETS.iter().any(|target| known(&target)), "{}", miss.target);
    }
}
