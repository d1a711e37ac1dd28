//! Each wait is charged to how its thread came there, then to the passes that left it there.

use std::sync::Arc;

use quell_model::{
    Activity, CoreDomains, Domain, DomainGroup, DomainTrees, GroupKind, Left, MoveCause, Pass,
    PassEntry, PassGroup, PassOutcome, Skipped, Topology, What,
};

use super::super::*;
use super::stream::{Stream, cores, fair, nobody, on};

/// Two nodes of two cores; hogs that may not move run on all but core `idle` of node 0 and `busy`.
fn two_nodes(idle: u16, busy: u16) -> Stream {
    let mut stream = Stream::on(Topology::regular(2, 2, 1).unwrap());
    for core in (0..4).filter(|core| *core != idle && *core != busy) {
        let thread = fair(100 + i32::from(core), "pinned");
        stream.show(thread, core, Activity::Running, &core.to_string());
    }
    stream
}

fn only(report: &Report) -> &WastedWait {
    let [found] = report.violations.as_slice() else { panic!("{report}") };
    found
}

/// The causes of the only finding, with the time of each in milliseconds.
fn causes(report: &Report) -> Vec<(Cause, f64)> {
    only(report).causes.iter().map(|share| (share.cause, share.wasted_ms)).collect()
}

fn came(report: &Report, thread: i32) -> Cause {
    let waiter = only(report).waiters.iter().find(|waiter| waiter.thread == thread);
    waiter.unwrap_or_else(|| panic!("{report}")).came
}

fn group(list: &str, mean: u64, minimum: u64) -> PassGroup {
    let (kind, queued) = (GroupKind::HasSpare, 0);
    PassGroup { cores: cores(list), sum: mean, mean, minimum, queued, idle: 0, kind }
}

fn pass(core: u16, outcome: PassOutcome, groups: Vec<PassGroup>) -> What {
    What::Pass(Box::new(Pass {
        core: on(core),
        level: 1,
        entry: PassEntry::Nohz,
        groups,
        outcome,
        moved: 0,
        skipped: Skipped::default(),
    }))
}

/// Two threads that never sleep take turns of 5 ms on a core.
fn take_turns(stream: &mut Stream, core: u16, turns: u64) {
    for turn in 0..turns {
        let (next, left) = if turn % 2 == 0 { (12, 11) } else { (11, 12) };
        stream.after(5).switch(core, fair(next, "hog"), left, Left::Preempted);
    }
}

#[test]
fn hogs_that_never_sleep_are_not_blamed_on_wakeups() {
    let mut stream = two_nodes(0, 2);
    stream.hog_and_waiter(2, "0-3");
    stream.show(fair(30, "napper"), 3, Activity::Sleeping, "0-3");
    stream.keyframe();
    for turn in 0..200 {
        // A thread is woken onto another busy core at each turn, the way the guests' services are.
        let (next, left) = if turn % 2 == 0 { (12, 11) } else { (11, 12) };
        stream.after(4).switch(2, fair(next, "hog"), left, Left::Preempted);
        stream.woken(30, 3).after(1).switch(3, fair(30, "napper"), 103, Left::Preempted);
        stream.switch(3, fair(103, "pinned"), 30, Left::Sleeping);
    }
    let report = stream.check();
    let found = only(&report);
    assert_eq!((found.core, found.label), (on(2), Label::Unknown), "{report}");
    assert_eq!(found.evidence.busy_wakeups_outside_llc, 0, "{report}");
    assert!(found.causes.iter().all(|share| !share.cause.is_wakeup()), "{report}");
    assert_eq!((came(&report, 11), came(&report, 12)), (Cause::Preempted, Cause::Preempted));
    assert!(report.to_string().contains("% preempted here after a turn"), "{report}");
}

#[test]
fn a_hog_that_was_woken_long_ago_takes_turns_without_blame() {
    let mut stream = two_nodes(0, 2);
    stream.show(fair(11, "hog"), 2, Activity::Running, "0-3");
    stream.show(fair(12, "hog"), 2, Activity::Sleeping, "0-3");
    stream.keyframe();
    stream.woken(12, 2);
    take_turns(&mut stream, 2, 100);
    let report = stream.check();
    // It waits 5 ms because it was woken there, and all later turns because it is left there.
    assert_eq!(causes(&report), [(Cause::Preempted, 495.0), (Cause::WokenOutsideLlc, 5.0)]);
    assert_eq!(only(&report).label, Label::Unknown);
}

#[test]
fn a_preempted_wakeup_counts_until_it_has_run_a_full_turn() {
    let mut stream = two_nodes(0, 2);
    stream.show(fair(11, "hog"), 2, Activity::Running, "2");
    stream.show(fair(12, "worker"), 2, Activity::Sleeping, "0-3");
    stream.keyframe();
    stream.woken(12, 2);
    for ran in [1, 1, 1, 1] {
        stream.after(40).switch(2, fair(12, "worker"), 11, Left::Preempted);
        stream.after(ran).switch(2, fair(11, "hog"), 12, Left::Preempted);
    }
    stream.idle(40);
    let report = stream.check();
    // Three waits before it has run for 3 ms, two after.
    assert_eq!(causes(&report), [(Cause::WokenOutsideLlc, 120.0), (Cause::Preempted, 80.0)]);
    assert_eq!(only(&report).label, Label::WakeupOutsideLlc);
}

#[test]
fn a_wakeup_is_inside_the_cache_or_outside_it() {
    for (idle, cause, label) in [
        (3, Cause::WokenInsideLlc, Label::WakeupInsideLlc),
        (0, Cause::WokenOutsideLlc, Label::WakeupOutsideLlc),
    ] {
        let mut stream = two_nodes(idle, 2);
        stream.show(fair(11, "hog"), 2, Activity::Running, "2");
        stream.show(fair(12, "worker"), 2, Activity::Sleeping, "0-3");
        stream.keyframe();
        for _ in 0..50 {
            stream.woken(12, 2);
            stream.after(9).switch(2, fair(12, "worker"), 11, Left::Preempted);
            stream.after(1).switch(2, fair(11, "hog"), 12, Left::Sleeping);
        }
        let report = stream.check();
        assert_eq!((only(&report).label, came(&report, 12)), (label, cause), "{report}");
    }
}

#[test]
fn a_wakeup_while_all_cores_were_busy_is_not_to_blame() {
    let mut stream = two_nodes(0, 2);
    stream.show(fair(11, "hog"), 2, Activity::Running, "2");
    stream.show(fair(12, "worker"), 2, Activity::Sleeping, "0-3");
    stream.keyframe();
    stream.switch(0, fair(20, "brief"), 0, Left::Sleeping);
    stream.woken(12, 2);
    stream.after(1).switch(0, nobody(), 20, Left::Sleeping);
    stream.idle(300);
    let report = stream.check();
    assert_eq!(causes(&report), [(Cause::Placed, 300.0)]);
    assert_eq!(only(&report).label, Label::Unknown);
}

#[test]
fn a_migration_while_all_cores_were_busy_is_not_to_blame() {
    for is_busy in [true, false] {
        let mut stream = two_nodes(0, 2);
        stream.show(fair(11, "hog"), 2, Activity::Running, "2");
        stream.show(fair(12, "worker"), 3, Activity::Waiting, "0-3");
        stream.keyframe();
        if is_busy {
            stream.switch(0, fair(20, "brief"), 0, Left::Sleeping);
        }
        stream.migrate(12, 3, 2, MoveCause::Periodic);
        if is_busy {
            stream.after(1).switch(0, nobody(), 20, Left::Sleeping);
        }
        stream.idle(300);
        let causes = causes(&stream.check());
        let is_blamed = causes.iter().any(|(it, _)| *it == Cause::Migrated(MoveCause::Periodic));
        assert_eq!(is_blamed, !is_busy, "{causes:?}");
    }
}

#[test]
fn an_arrival_counts_for_a_window_at_most() {
    let mut stream = two_nodes(0, 2);
    stream.show(fair(11, "hog"), 2, Activity::Running, "2");
    stream.show(fair(12, "worker"), 2, Activity::Sleeping, "0-3");
    stream.keyframe();
    stream.woken(12, 2);
    stream.idle(400);
    let report = stream.check();
    let [(Cause::Waited, waited), (Cause::WokenOutsideLlc, woken)] = causes(&report)[..] else {
        panic!("{report}")
    };
    assert!((100.0..=104.0).contains(&woken) && waited + woken == 400.0, "{report}");
    assert_eq!(came(&report, 12), Cause::Waited);
}

#[test]
fn a_thread_that_is_forked_beside_idle_cores_is_placed_wrong() {
    let mut stream = two_nodes(0, 2);
    stream.show(fair(11, "parent"), 2, Activity::Running, "2");
    stream.keyframe();
    for child in 200..240 {
        stream.push(2, What::Fork { parent: 11, child: fair(child, "child") });
        stream.allowed(child, "0-3");
        stream.push(2, What::Woken { thread: fair(child, "child"), on: on(2), is_new: true });
        stream.after(9).switch(2, fair(child, "child"), 11, Left::Preempted);
        stream.after(1).switch(2, fair(11, "parent"), child, Left::Dead);
    }
    let report = stream.check();
    assert_eq!(causes(&report)[0].0, Cause::Forked, "{report}");
    assert_eq!(only(&report).label, Label::Fork);
}

#[test]
fn a_thread_that_a_migration_brought_is_charged_to_its_cause() {
    for cause in [MoveCause::Periodic, MoveCause::Exec, MoveCause::Affinity] {
        let mut stream = two_nodes(0, 2);
        stream.show(fair(11, "hog"), 2, Activity::Running, "2");
        stream.show(fair(12, "moved"), 3, Activity::Waiting, "0-3");
        stream.keyframe();
        stream.migrate(12, 3, 2, cause);
        stream.idle(99);
        // It is still there when it has run a turn.
        stream.switch(2, fair(12, "moved"), 11, Left::Preempted);
        stream.after(3).switch(2, fair(11, "hog"), 12, Left::Preempted);
        stream.idle(30);
        let report = stream.check();
        let expected = [(Cause::Migrated(cause), 99.0), (Cause::Preempted, 30.0)];
        assert_eq!(causes(&report), expected);
        assert_eq!(only(&report).label, Label::Migration);
    }
}

#[test]
fn passes_of_an_idle_core_take_over_what_they_left() {
    let groups = || vec![group("0-1", 500, 0), group("2-3", 400, 300)];
    let level = || vec![group("0-1", 300, 0), group("2-3", 400, 0)];
    for (groups, cause, label) in [
        (groups(), Cause::GroupImbalance, Label::GroupImbalance),
        (level(), Cause::Left(PassOutcome::LocalIsBusier), Label::BalancedInVain),
    ] {
        let mut stream = two_nodes(0, 2);
        stream.hog_and_waiter(2, "0-3");
        take_turns(&mut stream, 2, 10);
        stream.push(0, pass(0, PassOutcome::LocalIsBusier, groups));
        take_turns(&mut stream, 2, 40);
        let report = stream.check();
        let found = causes(&report);
        assert_eq!(found.iter().find(|(found, _)| *found == cause), Some(&(cause, 200.0)));
        assert_eq!(found.iter().map(|(_, ms)| ms).sum::<f64>(), 250.0, "{report}");
        assert_eq!(only(&report).label, label, "{report}");
        assert_eq!(only(&report).evidence.balance_passes_on_idle, Some(1));
    }
}

#[test]
fn a_pass_from_before_a_thread_came_says_nothing_of_it() {
    let mut stream = two_nodes(0, 2);
    stream.show(fair(11, "hog"), 2, Activity::Running, "2");
    stream.show(fair(12, "late"), 2, Activity::Sleeping, "0-3");
    stream.keyframe();
    stream.after(1).allowed(30, "0-3").woken(30, 2);
    let left = vec![group("0-1", 300, 0), group("2-3", 400, 0)];
    stream.after(1).push(0, pass(0, PassOutcome::WithinMargin, left));
    stream.after(1).exit(30).switch(0, fair(20, "brief"), 0, Left::Sleeping).woken(12, 2);
    stream.after(1).switch(0, nobody(), 20, Left::Sleeping);
    stream.idle(300);
    assert_eq!(causes(&stream.check())[0], (Cause::Placed, 300.0));
}

#[test]
fn passes_of_busy_cores_and_of_other_affinities_do_not_count() {
    let mut stream = two_nodes(0, 2);
    stream.hog_and_waiter(2, "0,2-3");
    let groups = |local, other| vec![group(local, 300, 0), group(other, 400, 0)];
    for _ in 0..30 {
        stream.after(5).push(1, pass(1, PassOutcome::Kept, groups("0-1", "2-3")));
        let mut busy = pass(0, PassOutcome::Kept, groups("0-1", "2-3"));
        if let What::Pass(pass) = &mut busy {
            pass.entry = PassEntry::Periodic;
        }
        stream.after(5).push(0, busy);
    }
    let report = stream.check();
    assert_eq!(causes(&report).len(), 1, "{report}");
    assert!(!matches!(causes(&report)[0].0, Cause::Left(_)), "{report}");
}

/// The domains of two nodes with these groups of the level of both, for every core.
fn trees(groups: [&[&str]; 4]) -> What {
    let level = |name: &str, span: &str, groups: &[&str]| Domain {
        name: name.to_owned(),
        span: cores(span),
        groups: groups
            .iter()
            .map(|list| DomainGroup { cores: cores(list), balance: cores(list) })
            .collect(),
        flags: None,
        balance: None,
    };
    let tree = |core: u16| {
        let (span, own): (_, [&str; 2]) = match core {
            0 => ("0-1", ["0", "1"]),
            1 => ("0-1", ["1", "0"]),
            2 => ("2-3", ["2", "3"]),
            _ => ("2-3", ["3", "2"]),
        };
        let groups = groups[usize::from(core)];
        let top = (!groups.is_empty()).then(|| level("NUMA", "0-3", groups));
        let domains = [level("MC", span, &own)].into_iter().chain(top).collect();
        CoreDomains { core: on(core), root: Some(cores("0-3")), domains }
    };
    let trees = DomainTrees::new((0..4).map(tree).collect(), CoreSet::EMPTY).unwrap();
    What::Domains(Arc::new(trees))
}

fn labelled(domains: What) -> (Label, Option<Grade>, Report) {
    let mut stream = two_nodes(0, 2);
    stream.push(0, domains);
    stream.hog_and_waiter(2, "0-3");
    take_turns(&mut stream, 2, 60);
    let report = stream.check();
    (only(&report).label, only(&report).reach, report)
}

#[test]
fn trees_tell_groups_from_missing_levels() {
    let own = ["0-1", "2-3"].as_slice();
    let (label, reach, _) = labelled(trees([own, own, &["2-3", "0-1"], &["2-3", "0-1"]]));
    assert_eq!((label, reach), (Label::Unknown, Some(Grade::A)));
    // Every group that has core 2 has core 0 as well.
    let (label, reach, report) = labelled(trees([&["0-3"], own, own, own]));
    assert_eq!((label, reach), (Label::Groups, Some(Grade::A)));
    assert_eq!(causes(&report), [(Cause::Groups, 300.0)]);
    assert!(report.to_string().contains("100 % here in the own group of every idle core"));
    // The level of both nodes is gone, whatever the keyframes say.
    let (label, reach, report) = labelled(trees([&[], &[], &[], &[]]));
    assert_eq!((label, reach), (Label::Domains, Some(Grade::B)));
    assert_eq!(only(&report).evidence.domain, Some(cores("2-3")));
}

#[test]
fn groups_of_passes_stand_for_trees() {
    let mut stream = two_nodes(0, 2);
    stream.hog_and_waiter(2, "0-3");
    for _ in 0..30 {
        take_turns(&mut stream, 2, 2);
        stream.push(0, pass(0, PassOutcome::NoBusiest, vec![group("0", 0, 0), group("1", 9, 9)]));
        stream.push(0, pass(0, PassOutcome::NoBusiest, vec![group("0-3", 9, 0)]));
    }
    let report = stream.check();
    assert_eq!((only(&report).label, causes(&report)[0].0), (Label::Groups, Cause::Groups));
}

#[test]
fn rebuilt_domains_begin_anew() {
    let own = ["0-1", "2-3"].as_slice();
    let mut stream = two_nodes(0, 2);
    stream.push(0, trees([&["0-3"], own, own, own]));
    stream.hog_and_waiter(2, "0-3");
    take_turns(&mut stream, 2, 60);
    let others = ["2-3", "0-1"].as_slice();
    stream.push(0, trees([own, own, others, others]));
    take_turns(&mut stream, 2, 60);
    let report = stream.check();
    let labels: Vec<(Label, f64)> =
        report.violations.iter().map(|found| (found.label, found.wasted_ms)).collect();
    assert_eq!(labels, [(Label::Groups, 300.0), (Label::Unknown, 300.0)], "{report}");
    assert!(report.unjudged.is_empty(), "{report}");
}

#[test]
fn without_passes_the_loads_of_real_groups_count() {
    // The groups are {0, 3} and {1, 2}, not the nodes: {0, 1} and {2, 3}.
    let mut stream = two_nodes(0, 2);
    stream.kernel = "4.1.0";
    stream.push(0, trees([&["0,3", "1-2"], &["1-2", "0,3"], &["1-2", "0,3"], &["0,3", "1-2"]]));
    stream.hog_and_waiter(2, "0-3");
    for (core, load) in [0, 100, 900, 4_000].into_iter().enumerate() {
        stream.shown.cores[core].average = load;
    }
    stream.keyframe();
    take_turns(&mut stream, 2, 60);
    let report = stream.check();
    let found = only(&report);
    let loads =
        |group: &Option<GroupLoad>| group.as_ref().map(|it| (it.cores, it.mean, it.minimum));
    assert_eq!(loads(&found.evidence.idle_group), Some((cores("0,3"), 2_000, 0)));
    assert_eq!(loads(&found.evidence.busy_group), Some((cores("1-2"), 500, 100)));
    assert_eq!(found.label, Label::GroupImbalance, "{report}");
}

#[test]
fn plan_is_blamed_only_where_affinity_withholds_it() {
    let mut stream = Stream::of(2);
    stream.hog_and_waiter(1, "0-1");
    stream.idle(300);
    let thread = ManagedThread {
        original: cores("0-1"),
        planned: cores("0-1"),
        reason: "its share".to_owned(),
    };
    let managed = Managed { threads: [(12, thread)].into(), ..Managed::default() };
    let report = stream.check_managed(Options::default(), managed);
    assert_eq!(only(&report).label, Label::Unknown, "{report}");
}
