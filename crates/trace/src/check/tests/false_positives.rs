//! What looks like waste and is none, one test each.

use quell_model::{Activity, Left, MoveCause, Nanos, Rank, What};

use super::super::*;
use super::stream::{Stream, cores, fair, nobody, on, runner};

fn assert_clean(stream: &Stream) -> Report {
    let report = stream.check();
    assert_eq!(report.verdict, Verdict::Clean, "{report}");
    assert!(report.violations.is_empty() && report.unknown.is_empty(), "{report}");
    report
}

#[test]
fn what_is_repaired_within_the_window() {
    let mut stream = Stream::of(2);
    stream.hog_and_waiter(1, "0-1");
    stream.after(90).migrate(12, 1, 0, MoveCause::Periodic);
    stream.switch(0, fair(12, "waiter"), 0, Left::Sleeping);
    stream.idle(500);
    assert_clean(&stream);
}

#[test]
fn what_goes_to_sleep_within_the_window() {
    let mut stream = Stream::of(2);
    stream.hog_and_waiter(1, "0-1");
    stream.after(90).switch(1, fair(12, "waiter"), 11, Left::Sleeping);
    stream.idle(500);
    assert_clean(&stream);
}

#[test]
fn a_pinned_thread_that_is_preempted_while_it_exits() {
    let mut stream = Stream::of(2);
    stream.hog_and_waiter(1, "1");
    stream.after(1).exit(11);
    stream.after(1).switch(1, fair(12, "waiter"), 11, Left::Preempted);
    stream.idle(500);
    assert_clean(&stream);
}

#[test]
fn sleepers_whose_dequeueing_is_delayed() {
    let mut stream = Stream::of(2);
    stream.show(fair(11, "hog"), 1, Activity::Running, "0-1");
    for sleeper in 20..30 {
        stream.show(fair(sleeper, "sleeper"), 1, Activity::Delayed, "0-1");
    }
    assert_eq!((stream.shown.cores[1].queued, stream.shown.cores[1].runnable), (11, 1));
    stream.keyframe().queue(1, 11, 1);
    stream.idle(500);
    assert_clean(&stream);
}

#[test]
fn a_fair_server_that_counts_as_a_thread() {
    let mut stream = Stream::of(2);
    stream.show(fair(11, "hog"), 1, Activity::Running, "0-1");
    stream.shown.cores[1].queued = 2;
    stream.keyframe().queue(1, 2, 1);
    stream.idle(500);
    assert_clean(&stream);
}

#[test]
fn the_stopper_during_an_active_balance() {
    let mut stream = Stream::of(2);
    stream.show(fair(11, "hog"), 1, Activity::Running, "0-1");
    stream.keyframe();
    let stopper = runner(18, "migration/1", Rank::realtime(99));
    for _ in 0..100 {
        stream.after(4).switch(1, stopper, 11, Left::Preempted);
        stream.after(1).switch(1, fair(11, "hog"), 18, Left::Sleeping);
    }
    assert_clean(&stream);
}

#[test]
fn threads_of_one_core() {
    let mut stream = Stream::of(2);
    stream.show(fair(11, "hog"), 1, Activity::Running, "0-1");
    for worker in 20..24 {
        stream.show(fair(worker, "kworker/1:0"), 1, Activity::Waiting, "1");
    }
    stream.keyframe();
    stream.idle(500);
    assert_eq!(assert_clean(&stream).waste, Waste::default());
}

#[test]
fn a_section_with_migration_disabled() {
    let mut stream = Stream::of(2);
    stream.show(fair(11, "hog"), 1, Activity::Running, "0-1");
    stream.show(fair(12, "waiter"), 1, Activity::Waiting, "0-1").bound = true;
    stream.keyframe();
    stream.idle(500);
    assert_clean(&stream);
}

#[test]
fn a_cgroup_whose_quota_is_used_up() {
    // As keyframes tell it.
    let mut stream = Stream::of(2);
    stream.show(fair(11, "hog"), 1, Activity::Running, "0-1");
    stream.show(fair(12, "throttled"), 1, Activity::Throttled, "0-1");
    stream.keyframe();
    stream.idle(500);
    assert_clean(&stream);
}

#[test]
fn a_throttled_thread_that_left_as_if_preempted() {
    // The core falls idle behind it: it cannot be runnable.
    let mut alone = Stream::of(2);
    alone.show(fair(12, "throttled"), 1, Activity::Running, "0-1");
    alone.keyframe();
    alone.after(5).switch(1, nobody(), 12, Left::Preempted);
    alone.idle(500);
    assert_clean(&alone);
    // Another thread runs on, and the kernel counts that one alone.
    let mut beside = Stream::of(2);
    beside.hog_and_waiter(1, "0-1");
    beside.switch(1, fair(12, "waiter"), 11, Left::Preempted);
    beside.after(5).queue(1, 1, 1).switch(1, fair(11, "hog"), 12, Left::Preempted);
    beside.idle(500);
    assert_clean(&beside);
}

#[test]
fn a_waiting_sched_idle_thread() {
    let mut stream = Stream::of(2);
    stream.show(fair(11, "hog"), 1, Activity::Running, "0-1");
    stream.show(runner(12, "batch", Rank::BENEATH), 1, Activity::Waiting, "0-1");
    stream.keyframe();
    stream.idle(500);
    let report = assert_clean(&stream);
    assert_eq!(report.allowed_by_policy[0].label, Label::Policy(PolicyReason::SchedIdle));
    assert_eq!(report.allowed_by_policy[0].reach, Some(Grade::C));
}

#[test]
fn a_core_that_runs_only_sched_idle_threads() {
    let mut stream = Stream::of(2);
    stream.show(runner(21, "batch", Rank::BENEATH), 0, Activity::Running, "0-1");
    stream.hog_and_waiter(1, "0-1");
    stream.idle(500);
    let report = assert_clean(&stream);
    assert_eq!(report.allowed_by_policy[0].label, Label::Policy(PolicyReason::BesideSchedIdle));
}

#[test]
fn realtime_threads_and_those_behind_them() {
    let mut stream = Stream::of(2);
    stream.show(runner(11, "control", Rank::realtime(50)), 1, Activity::Running, "1");
    stream.show(fair(12, "waiter"), 1, Activity::Waiting, "0-1");
    stream.keyframe();
    stream.idle(500);
    let report = assert_clean(&stream);
    assert_eq!(report.allowed_by_policy[0].label, Label::Policy(PolicyReason::BehindRealtime));

    let mut stream = Stream::of(2);
    stream.show(runner(11, "control", Rank::realtime(50)), 1, Activity::Running, "1");
    stream.show(runner(12, "control", Rank::realtime(50)), 1, Activity::Waiting, "0-1");
    stream.keyframe();
    stream.idle(500);
    let report = assert_clean(&stream);
    assert_eq!(report.allowed_by_policy[0].label, Label::Policy(PolicyReason::Realtime));
}

#[test]
fn a_core_that_goes_and_domains_that_are_rebuilt() {
    let mut stream = Stream::of(2);
    stream.hog_and_waiter(1, "0-1");
    stream.after(70).push(0, What::Online { of: on(0), online: false });
    stream.after(10).keyframe();
    stream.after(70).push(0, What::Online { of: on(0), online: true });
    stream.after(10).keyframe();
    for state in &mut stream.shown.cores {
        state.domain = cores("0");
    }
    stream.after(70).keyframe();
    stream.after(70);
    let report = stream.check();
    assert!(report.violations.is_empty(), "{report}");
    assert_eq!(report.unjudged.len(), 2);
    assert_eq!(report.unjudged[0].why, "core 0 went off line");
}

#[test]
fn a_core_that_is_gone_is_not_idle_and_one_that_came_back_is() {
    let mut stream = Stream::of(2);
    stream.hog_and_waiter(1, "0-1");
    let whole = stream.shown.clone();
    stream.shown.cores.remove(0);
    stream.push(0, What::Online { of: on(0), online: false }).keyframe();
    // The kernel parks its threads there.
    stream.after(1).switch(0, fair(7, "cpuhp/0"), 0, Left::Sleeping);
    stream.after(1).switch(0, nobody(), 7, Left::Sleeping);
    stream.idle(500);
    assert_clean(&stream);

    let back = stream.now;
    stream.push(0, What::Online { of: on(0), online: true });
    stream.shown = whole;
    stream.keyframe();
    stream.idle(500);
    let report = stream.check();
    let [found] = report.violations.as_slice() else { panic!("{report}") };
    assert_eq!((found.from_ns, found.idle), (back.0, CoreSet::of(on(0))));
}

#[test]
fn a_wake_up_that_is_on_its_way_to_the_idle_core() {
    let mut stream = Stream::of(2);
    stream.shown.cores[0].wake_pending = true;
    stream.hog_and_waiter(1, "0-1");
    stream.idle(500);
    assert_clean(&stream);

    let mut stream = Stream::of(2);
    stream.show(fair(30, "sleeper"), 0, Activity::Sleeping, "0-1");
    stream.hog_and_waiter(1, "0-1");
    stream.waking(30, 0);
    stream.idle(500);
    assert_clean(&stream);
}

#[test]
fn a_keyframe_that_was_overtaken_is_put_right_by_the_stream() {
    let mut stream = Stream::of(2);
    stream.hog_and_waiter(1, "0-1");
    // The walk took no lock: the waiter had been moved already.
    stream.switch(0, fair(12, "waiter"), 0, Left::Sleeping);
    stream.idle(500);
    assert_clean(&stream);
}

#[test]
fn time_that_the_hypervisor_took_is_told_beside() {
    let mut stream = Stream::of(2);
    stream.hog_and_waiter(1, "0-1");
    for _ in 0..20 {
        let (next, stolen) = (fair(11, "hog"), Nanos::from_millis(8));
        stream.after(10).push(1, What::Switch { next, left: 11, how: Left::Preempted, stolen });
    }
    let report = stream.check();
    assert_eq!(report.violations[0].label, Label::Hypervisor, "{report}");
    assert_eq!(report.violations[0].evidence.stolen_ms, 160.0);
}

#[test]
fn the_checkers_own_thread() {
    let options = || Options { own: std::collections::BTreeSet::from([77]), ..Options::default() };
    // It stands in the way of a hog, which would run if nobody checked.
    let mut stream = Stream::of(2);
    stream.show(fair(77, "quell"), 1, Activity::Running, "0-1");
    stream.show(fair(12, "waiter"), 1, Activity::Waiting, "0-1");
    stream.keyframe();
    stream.idle(500);
    assert_eq!(stream.check_with(options()).verdict, Verdict::Clean);
    // It occupies the core that would be idle.
    let mut stream = Stream::of(2);
    stream.show(fair(77, "quell"), 0, Activity::Running, "0-1");
    stream.hog_and_waiter(1, "0-1");
    stream.idle(500);
    assert_eq!(stream.check().verdict, Verdict::Clean);
    assert_eq!(stream.check_with(options()).verdict, Verdict::Violated);
}
