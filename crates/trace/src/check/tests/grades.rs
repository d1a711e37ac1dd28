//! Grades and labels follow from who could have repaired the waste, and from the evidence.

use std::collections::BTreeMap;

use quell_model::{Activity, Left, MoveCause, Source, Topology, What};

use super::super::*;
use super::stream::{Stream, cores, fair, nobody};

fn found(report: &Report) -> &WastedWait {
    report.violations.first().unwrap_or_else(|| panic!("{report}"))
}

#[test]
fn cores_without_a_common_domain_are_grade_b() {
    let mut stream = Stream::of(2);
    for state in &mut stream.shown.cores {
        state.domain = CoreSet::of(state.core);
    }
    stream.hog_and_waiter(1, "0-1");
    stream.idle(500);
    let report = stream.check();
    assert_eq!((found(&report).reach, found(&report).label), (Some(Grade::B), Label::Domains));
    assert_eq!(found(&report).evidence.domain, Some(cores("1")));
}

#[test]
fn thread_of_unknown_affinity_is_no_violation() {
    let mut stream = Stream::of(2);
    stream.switch(0, nobody(), 5, Left::Sleeping);
    stream.switch(1, fair(11, "hog"), 12, Left::Preempted);
    stream.idle(500);
    let report = stream.check();
    assert_eq!(report.verdict, Verdict::CouldNotTell);
    assert_eq!(report.unknown[0].label, Label::AffinityUnknown);
}

#[test]
fn wake_ups_onto_busy_cores_are_told_apart_by_cache() {
    // Two nodes of two cores. Idle is 1 (same cache) or 2 (another one).
    for (idle, busy, label) in
        [(1, [2, 3], Label::WakeupInsideLlc), (2, [1, 3], Label::WakeupOutsideLlc)]
    {
        let mut stream = Stream::on(Topology::regular(2, 2, 1).unwrap());
        for (core, thread) in [(busy[0], 21), (busy[1], 22)] {
            stream.show(fair(thread, "pinned"), core, Activity::Running, &core.to_string());
        }
        stream.show(fair(12, "waiter"), 0, Activity::Sleeping, "0-3");
        stream.show(fair(11, "hog"), 0, Activity::Running, "0");
        stream.keyframe();
        for _ in 0..60 {
            stream.woken(12, 0);
            stream.after(9).switch(0, fair(12, "waiter"), 11, Left::Preempted);
            stream.after(1).switch(0, fair(11, "hog"), 12, Left::Sleeping);
        }
        let report = stream.check();
        assert_eq!(found(&report).label, label, "idle {idle}: {report}");
        assert_eq!(found(&report).idle, CoreSet::of(quell_model::CoreId(idle)));
    }
}

#[test]
fn heavy_thread_that_hides_idle_cores_is_group_imbalance() {
    let mut stream = Stream::on(Topology::regular(2, 2, 1).unwrap());
    stream.kernel = "4.1.0";
    stream.show(fair(20, "heavy"), 0, Activity::Running, "0");
    stream.show(fair(21, "light"), 3, Activity::Running, "3");
    stream.hog_and_waiter(2, "0-3");
    for (core, load) in [4000, 0, 1000, 900].into_iter().enumerate() {
        stream.shown.cores[core].average = load;
    }
    stream.keyframe();
    stream.idle(500);
    let report = stream.check();
    assert_eq!(found(&report).label, Label::GroupImbalance, "{report}");
    let group = found(&report).evidence.idle_group.as_ref().unwrap();
    assert_eq!((group.cores, group.mean, group.minimum), (cores("0-1"), 2000, 0));
    // Newer kernels have the same loads, and give an idle core threads by their number.
    stream.kernel = "6.12.0";
    let report = stream.check();
    assert_eq!(found(&report).label, Label::Unknown, "{report}");
    assert_eq!(found(&report).evidence.idle_group.as_ref().map(|group| group.mean), Some(2000));
}

#[test]
fn passes_distinguish_not_balanced_from_balanced_in_vain() {
    for (core, label) in [(0, Label::BalancedInVain), (1, Label::NeverBalanced)] {
        let mut stream = Stream::of(2);
        stream.hog_and_waiter(1, "0-1");
        for _ in 0..50 {
            stream.after(9).push(core, What::Softirq { vector: What::BALANCER, begins: true });
            stream.after(1).push(core, What::Softirq { vector: What::BALANCER, begins: false });
        }
        assert_eq!(found(&stream.check()).label, label);
    }
}

#[test]
fn moves_are_counted_by_cause() {
    let mut stream = Stream::of(2);
    stream.hog_and_waiter(1, "0-1");
    stream.show(fair(30, "taskset"), 0, Activity::Sleeping, "0-1");
    stream.keyframe();
    for _ in 0..20 {
        stream.after(10).migrate(30, 0, 1, MoveCause::Affinity);
        stream.after(10).migrate(30, 1, 0, MoveCause::Affinity);
    }
    let report = stream.check();
    assert_eq!(found(&report).evidence.moves, BTreeMap::from([(MoveCause::Affinity, 40)]));
}

/// Thread 12 is managed; Quell pinned it to core 1.
fn managed(planned: &str) -> Managed {
    let thread = ManagedThread {
        original: cores("0-1"),
        planned: cores(planned),
        reason: "its cap is one core".to_owned(),
    };
    Managed { threads: BTreeMap::from([(12, thread)]), ..Managed::default() }
}

#[test]
fn managed_thread_is_judged_by_the_plan() {
    let mut stream = Stream::of(2);
    stream.hog_and_waiter(1, "1");
    stream.idle(500);
    assert_eq!(stream.check().verdict, Verdict::Clean);
    let report = stream.check_managed(Options::default(), managed("0-1"));
    assert_eq!((report.verdict, found(&report).label), (Verdict::Violated, Label::Quell));
    assert_eq!(found(&report).waiters[0].allowed, Some(cores("0-1")));
}

#[test]
fn a_managed_thread_that_a_cap_holds_back_is_explained() {
    let mut stream = Stream::of(2);
    stream.hog_and_waiter(1, "1");
    stream.idle(500);
    let report = stream.check_managed(Options::default(), managed("1"));
    assert_eq!(report.verdict, Verdict::Clean);
    assert_eq!(report.allowed_by_policy[0].label, Label::Policy(PolicyReason::Plan));
    assert!(report.to_string().contains("the plan: its cap is one core"), "{report}");
}

#[test]
fn simulated_thread_waits_though_its_filed_core_idles() {
    let mut stream = Stream::of(2);
    stream.show(fair(11, "hog"), 0, Activity::Running, "0");
    stream.show(fair(12, "waiter"), 1, Activity::Waiting, "0-1");
    stream.keyframe();
    stream.idle(500);
    assert_eq!(stream.check().verdict, Verdict::Clean, "a kernel that has it there runs it");
    stream.source = Source::Simulator;
    assert_eq!(stream.check().verdict, Verdict::Violated);
    let report = stream.check_managed(Options::default(), managed("0"));
    assert_eq!((report.verdict, report.allowed_by_policy.len()), (Verdict::Clean, 1), "{report}");
}
