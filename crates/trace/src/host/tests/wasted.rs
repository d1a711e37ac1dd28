//! What is wasted, and which cores.

use super::*;

fn waits(runs: Runner, waiters: Vec<Entry>) -> What {
    let mut threads = vec![entry_of(runs, 3, Activity::Running, cores("0-3"))];
    threads.extend(waiters);
    keyframe(4, threads)
}

fn judged(first: What) -> WastedTime {
    let mut feed = Feed::recorder(4);
    feed.push(0, 0, first).until(1_000);
    feed.wasted.finish(&feed.host);
    feed.wasted
}

fn times(of: &CoreTimes) -> [u64; 3] {
    [of.wall_ns, of.core_ns, of.thread_ns]
}

#[test]
fn lowest_cores_are_wasted_first() {
    let waiting = |tid, allowed| entry(tid, 3, Activity::Waiting, allowed);
    let free = judged(waits(fair(1), vec![waiting(2, "0-3"), waiting(3, "0-3")]));
    assert_eq!(times(&free.judged().wasted), [1_000, 1_000, 2_000]);
    assert_eq!(free.cores().wasted, cores("0-1"));
    // Two that may use the same core, and one that may use any, in whatever order they came.
    let waiters = vec![waiting(2, "0-3"), waiting(3, "2"), waiting(4, "2-3")];
    let tied = judged(waits(fair(1), waiters));
    assert_eq!(times(&tied.judged().wasted), [1_000, 1_000, 2_000]);
    assert_eq!(tied.cores().wasted, cores("0,2"));
    assert_eq!(free.judged_time(), Nanos(1_000));
}

#[test]
fn policies_allow_what_they_explain() {
    let waiting = |prio, allowed| entry_of(runner(2, prio), 3, Activity::Waiting, cores(allowed));
    for (runs, prio) in [
        (Rank::FAIR, Rank::BENEATH),
        (Rank::FAIR, Rank::realtime(1)),
        (Rank::realtime(5), Rank::FAIR),
    ] {
        let wasted = judged(waits(runner(1, runs), vec![waiting(prio, "0-1")]));
        assert_eq!(times(&wasted.judged().wasted), [0; 3]);
        assert_eq!(times(&wasted.judged().allowed_by_policy), [1_000; 3]);
        assert_eq!(wasted.cores().allowed_by_policy, cores("0"));
    }
    let wasted = judged(waits(fair(1), vec![waiting(Rank::FAIR, "3")]));
    assert_eq!(times(&wasted.judged().total()), [0; 3], "it may use no idle core");
}

#[test]
fn wasted_cores_come_before_allowed_ones() {
    let idle_class = entry_of(runner(2, Rank::BENEATH), 3, Activity::Waiting, cores("0-3"));
    let wasted = judged(waits(fair(1), vec![idle_class, entry(3, 3, Activity::Waiting, "2")]));
    let cores_now = wasted.cores();
    assert_eq!((cores_now.wasted, cores_now.allowed_by_policy), (cores("2"), cores("0")));
    assert_eq!(times(&wasted.judged().wasted), [1_000, 1_000, 1_000]);
    assert_eq!(times(&wasted.judged().allowed_by_policy), [0, 0, 1_000]);
}

#[test]
fn plans_are_judged_and_not_their_affinity() {
    let mut feed = Feed::recorder(4);
    feed.push(0, 0, waits(fair(1), vec![entry(2, 3, Activity::Waiting, "3")]));
    let plan = |planned: &str| {
        let (original, planned) = (cores("0-3"), cores(planned));
        [(2, PlanCores { planned, original })]
    };
    feed.host.set_plans(plan("1-3"), [], &mut ());
    feed.until(100);
    assert_eq!(feed.wasted.cores().wasted, cores("1"));
    feed.push(100, 0, What::Annotation("".into()));
    feed.host.set_plans([], plan("3"), &mut ());
    feed.host.validate().unwrap();
    feed.until(200);
    assert_eq!(feed.wasted.cores().allowed_by_policy, cores("0"));
    assert_eq!(feed.wasted.total().allowed_by_policy.thread_ns, 100);
}

#[test]
fn migration_disabled_threads_waste_nothing() {
    let mut bound = entry(2, 3, Activity::Waiting, "0-3");
    bound.bound = true;
    assert_eq!(times(&judged(waits(fair(1), vec![bound])).judged().total()), [0; 3]);
}

#[test]
fn unknown_affinity_is_a_part_of_its_own_whatever_the_source() {
    let wasted = |source| {
        let mut feed = Feed::of(source, 2);
        feed.push(0, 0, keyframe(2, vec![entry(1, 1, Activity::Running, "0-1")]));
        feed.push(100, 1, woken(9, 1)).until(300);
        feed.wasted.total()
    };
    for source in [Source::Recorder, Source::Ftrace, Source::Perf] {
        let found = wasted(source);
        assert_eq!((found.affinity_unknown.thread_ns, found.total().thread_ns), (200, 0));
    }
}

#[test]
fn sizes_serve_where_no_threads_are_reported() {
    let mut feed = Feed::of(Source::WastedCores, 5);
    feed.push(0, 0, keyframe(5, vec![]));
    for (core, size) in [(2, 3), (3, 1), (4, 2)] {
        feed.push(0, 0, queue(core, size));
    }
    feed.until(1_000);
    assert_eq!(times(&feed.wasted.total().wasted), [1_000, 2_000, 2_000]);
    assert_eq!(feed.wasted.cores().wasted, cores("0-1"));
    feed.push(1_000, 4, What::Lost { count: 1 }).until(1_100);
    assert_eq!(times(&feed.wasted.total().wasted), [1_100, 2_100, 2_200]);
}

#[test]
fn usable_cores_name_the_policy_and_do_not_overlap() {
    let usable = |runs: Rank, waiter: Entry, plan: Option<&str>| {
        let mut feed = Feed::recorder(4);
        feed.push(0, 0, waits(runner(1, runs), vec![waiter]));
        let plan =
            plan.map(|planned| PlanCores { planned: cores(planned), original: cores("0-3") });
        feed.host.set_plans(plan.map(|plan| (2, plan)), [], &mut ());
        let class = feed.host.thread_by_tid(2).unwrap().class;
        feed.host.usable_cores(class, 3)
    };
    let waiter = |prio| entry_of(runner(2, prio), 3, Activity::Waiting, cores("1-3"));
    let free = usable(Rank::FAIR, waiter(Rank::FAIR), None);
    assert_eq!((free.wasted, free.allowed_by_policy), (cores("1-2"), None));
    for (runs, prio, reason) in [
        (Rank::FAIR, Rank::BENEATH, PolicyReason::SchedIdle),
        (Rank::realtime(5), Rank::BENEATH, PolicyReason::SchedIdle),
        (Rank::realtime(5), Rank::realtime(1), PolicyReason::Realtime),
        (Rank::realtime(5), Rank::FAIR, PolicyReason::BehindRealtime),
    ] {
        let found = usable(runs, waiter(prio), None);
        assert_eq!(
            (found.wasted, found.allowed_by_policy),
            (CoreSet::EMPTY, Some((reason, cores("1-2"))))
        );
    }
    // A plan counts, whatever the affinity and the priority.
    let planned = usable(Rank::realtime(5), waiter(Rank::BENEATH), Some("0"));
    let barred = Some((PolicyReason::Plan, cores("1-2")));
    assert_eq!((planned.wasted, planned.allowed_by_policy), (cores("0"), barred));
    assert_eq!(planned.layers(), [cores("0"), cores("0-2"), cores("0-2")]);
}

#[test]
fn skipped_time_does_not_count() {
    let mut feed = Feed::recorder(4);
    let crowded = || waits(fair(1), vec![entry(2, 3, Activity::Waiting, "0-3")]);
    feed.push(0, 0, crowded()).until(100);
    feed.wasted.skip(&feed.host, Nanos(5_000));
    feed.push(5_000, 0, crowded()).until(5_030);
    assert_eq!(times(&feed.wasted.total().wasted), [130; 3]);
    feed.wasted.finish(&feed.host);
    assert_eq!(feed.wasted.judged_time(), Nanos(130));
}

#[test]
fn time_with_a_loss_is_unjudged() {
    let crowded = || {
        let waiter = entry(6, 1, Activity::Waiting, "0-3");
        keyframe(4, vec![entry(5, 1, Activity::Running, "0-3"), waiter])
    };
    let mut feed = Feed::recorder(4);
    feed.push(0, 0, crowded()).push(200, 1, What::Lost { count: 9 });
    feed.push(1_000, 0, crowded()).until(1_500);
    feed.wasted.finish(&feed.host);
    assert_eq!(feed.wasted.judged().wasted.wall_ns, 500);
    assert_eq!(feed.wasted.unjudged().wasted.wall_ns, 200, "a lost core wastes nothing");
    assert_eq!(feed.wasted.unjudged_time(), Nanos(1_000));
    assert_eq!(feed.wasted.total().wasted.wall_ns, 700);
}
