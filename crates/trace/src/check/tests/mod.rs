//! The checker against streams in which it is known who waits where.

mod causes;
mod false_positives;
mod grades;
mod properties;
mod stream;

use quell_model::{Activity, CoreSet, Left, Nanos, Rank, Source};

use super::*;
use stream::{Stream, fair, ms, on, runner};

#[test]
fn a_waiter_beside_an_idle_core_is_a_violation_of_grade_a() {
    let mut stream = Stream::of(2);
    stream.hog_and_waiter(1, "0-1");
    stream.idle(500);
    let report = stream.check();
    assert_eq!(report.verdict, Verdict::Violated, "{report}");
    let [found] = report.violations.as_slice() else { panic!("{report}") };
    assert_eq!((found.core, found.reach, found.idle), (on(1), Some(Grade::A), CoreSet::of(on(0))));
    assert_eq!((found.waiters[0].thread, found.waiters[0].name.as_str()), (12, "waiter"));
    assert_eq!(found.wasted_ms, 500.0);
    let half = WasteTimes { any_s: 0.5, cores_s: 0.5, threads_s: 0.5 };
    assert_eq!(report.waste, Waste { wasted: half, ..Waste::default() });
}

#[test]
fn threads_that_share_a_core_beside_an_idle_one_are_found() {
    let mut stream = Stream::of(2);
    stream.hog_and_waiter(1, "0-1");
    for turn in 0..100 {
        let (next, left) = if turn % 2 == 0 { (12, 11) } else { (11, 12) };
        stream.after(4).switch(1, fair(next, "hog"), left, Left::Preempted);
    }
    let report = stream.check();
    let [found] = report.violations.as_slice() else { panic!("{report}") };
    let waiters: Vec<i32> = found.waiters.iter().map(|waiter| waiter.thread).collect();
    assert!(waiters.contains(&11) && waiters.contains(&12), "{report}");
}

#[test]
fn one_that_may_move_is_found_behind_thousands_that_may_not() {
    let mut stream = Stream::of(2);
    stream.show(fair(11, "hog"), 1, Activity::Running, "1");
    for pinned in 1_000..6_000 {
        stream.show(fair(pinned, "pinned"), 1, Activity::Waiting, "1");
    }
    stream.keyframe();
    stream.idle(500);
    assert_eq!(stream.check().verdict, Verdict::Clean);
    // The queue moves on: from now on one of those that come may use the idle core.
    let mut runs = 11;
    for turn in 0..500 {
        let next = 1_000 + turn;
        stream.after(1).switch(1, fair(next, "pinned"), runs, Left::Sleeping);
        runs = next;
        if turn == 100 {
            stream.allowed(12, "0-1").waking(12, 1).woken(12, 1);
        }
    }
    let report = stream.check();
    let [found] = report.violations.as_slice() else { panic!("{report}") };
    let waiters: Vec<i32> = found.waiters.iter().map(|waiter| waiter.thread).collect();
    assert_eq!((waiters.as_slice(), found.wasted_ms), (&[12][..], 399.0), "{report}");
    assert_eq!(report.waste.wasted.threads_s, 0.399);
}

#[test]
fn waiters_are_named_with_what_each_waited_whoever_came_first() {
    let mut stream = Stream::of(2);
    stream.hog_and_waiter(1, "0-1");
    stream.after(50).allowed(13, "0-1").waking(13, 1).woken(13, 1);
    stream.after(150).switch(1, fair(12, "waiter"), 11, Left::Sleeping);
    stream.idle(100);
    let report = stream.check();
    let [found] = report.violations.as_slice() else { panic!("{report}") };
    let waited: Vec<(i32, f64)> =
        found.waiters.iter().map(|waiter| (waiter.thread, waiter.wasted_ms)).collect();
    assert_eq!(waited, [(13, 250.0), (12, 200.0)], "{report}");
}

#[test]
fn thread_that_comes_and_goes_is_named_once() {
    let mut stream = Stream::of(2);
    stream.show(runner(11, "realtime", Rank::realtime(1)), 1, Activity::Running, "0-1");
    stream.show(fair(12, "waiter"), 1, Activity::Waiting, "0-1");
    stream.show(fair(13, "waiter"), 1, Activity::Waiting, "0-1");
    stream.keyframe();
    // Its affinity sends it to another group of waiters and back, while 13 stays behind it.
    for list in ["1", "0-1", "1", "0-1"] {
        stream.after(10).allowed(12, list);
    }
    stream.idle(300);
    let report = stream.check();
    let [found] = report.allowed_by_policy.as_slice() else { panic!("{report}") };
    let waited: Vec<(i32, f64)> =
        found.waiters.iter().map(|waiter| (waiter.thread, waiter.wasted_ms)).collect();
    assert_eq!(waited, [(13, 340.0), (12, 320.0)], "{report}");
}

#[test]
fn short_interruptions_hide_a_violation_only_if_strict() {
    let mut stream = Stream::of(2);
    stream.hog_and_waiter(1, "0-1");
    for _ in 0..30 {
        stream.after(30).switch(0, fair(7, "kworker"), 0, Left::Sleeping);
        stream.after(1).switch(0, stream::nobody(), 7, Left::Sleeping);
    }
    assert_eq!(stream.check().verdict, Verdict::Violated);
    let strict = Options { strict: true, ..Options::default() };
    assert_eq!(stream.check_with(strict).verdict, Verdict::Clean);
}

#[test]
fn the_strict_form_reports_what_is_never_interrupted() {
    let mut stream = Stream::of(2);
    stream.hog_and_waiter(1, "0-1");
    stream.idle(300);
    let strict = Options { strict: true, ..Options::default() };
    assert_eq!(stream.check_with(strict).verdict, Verdict::Violated);
}

#[test]
fn a_balance_ends_the_violation_and_is_in_its_evidence() {
    let mut stream = Stream::of(2);
    stream.hog_and_waiter(1, "0-1");
    stream.after(200).migrate(12, 1, 0, quell_model::MoveCause::NewIdle);
    stream.switch(0, fair(12, "waiter"), 0, Left::Sleeping);
    stream.idle(500);
    let report = stream.check();
    let [found] = report.violations.as_slice() else { panic!("{report}") };
    assert_eq!(found.wasted_ms, 200.0);
    assert_eq!(found.label, Label::Unknown);
}

#[test]
fn overtaken_waiter_is_found_although_balances_go_on() {
    let mut stream = Stream::of(2);
    stream.hog_and_waiter(1, "0-1");
    for thread in 100..130 {
        stream.woken(thread, 1).allowed(thread, "0-1");
        stream.after(9).migrate(thread, 1, 0, quell_model::MoveCause::Periodic);
        stream.exit(thread);
        stream.after(1);
    }
    let report = stream.check();
    assert!(report.violations.iter().any(|found| found.waiters[0].thread == 12), "{report}");
}

#[test]
fn across_a_loss_nothing_is_concluded() {
    let mut stream = Stream::of(2);
    stream.hog_and_waiter(1, "0-1");
    stream.after(60).lost(1, 9);
    stream.after(60).keyframe();
    stream.after(60).lost(1, 9);
    stream.idle(500);
    let report = stream.check();
    assert_eq!(report.verdict, Verdict::CouldNotTell, "{report}");
    let spans: Vec<u64> = report.unjudged.iter().map(|span| span.until_ns - span.from_ns).collect();
    assert_eq!(spans, [ms(60).0, ms(500).0]);
}

#[test]
fn findings_on_a_core_that_lost_events_are_taken_back() {
    let silent = |lost: bool| {
        let mut stream = Stream::of(2);
        stream.hog_and_waiter(1, "0-1");
        stream.after(5).switch(0, stream::nobody(), 0, Left::Preempted);
        stream.after(300);
        if lost {
            stream.skip(0, 3);
        }
        stream.switch(0, fair(7, "busy"), 0, Left::Preempted);
        stream.check()
    };
    assert_eq!(silent(false).verdict, Verdict::Violated);
    assert!(silent(true).violations.is_empty(), "{}", silent(true));
}

#[test]
fn a_gap_in_a_sequence_is_a_loss() {
    let mut stream = Stream::of(2);
    stream.hog_and_waiter(1, "0-1");
    stream.switch(1, fair(11, "hog"), 11, Left::Preempted).skip(1, 3);
    stream.after(1).switch(1, fair(11, "hog"), 11, Left::Preempted);
    stream.idle(500);
    let report = stream.check();
    assert_eq!(report.unjudged[0].why, "3 events of core 1 are missing");
    assert!(report.violations.is_empty());
}

#[test]
fn the_report_reads_the_same_after_json() {
    let mut stream = Stream::of(2);
    stream.hog_and_waiter(1, "0-1");
    stream.idle(500);
    let report = stream.check();
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    assert!(report.to_string().contains("core 1: waiter (12) waited 500.0 ms of 500.0 ms"));
}

#[test]
fn sizes_of_queues_alone_are_never_called_clean_nor_violated() {
    let sized = |sizes: [u32; 2]| {
        let mut stream = Stream::of(2);
        for core in 0..2 {
            let runnable = sizes[usize::from(core)];
            stream.push(core, What::Queue { of: on(core), queued: runnable, runnable });
        }
        stream.idle(500);
        stream.source = Source::WastedCores;
        stream.check()
    };
    let calm = sized([1, 1]);
    assert_eq!(calm.verdict, Verdict::CouldNotTell);
    assert!(calm.unknown.is_empty() && calm.verdict_reason.contains("names no threads"), "{calm}");
    let crowded = sized([0, 3]);
    assert_eq!(crowded.verdict, Verdict::CouldNotTell);
    assert!(crowded.verdict_reason.contains("beside idle cores"), "{crowded}");
    let [found] = crowded.unknown.as_slice() else { panic!("{crowded}") };
    assert_eq!((found.core, found.idle), (on(1), CoreSet::of(on(0))));
    assert_eq!((found.reach, found.label), (None, Label::ThreadsUnknown));
    assert!(found.waiters.is_empty() && crowded.violations.is_empty());
    assert!(crowded.to_string().contains("threads waited 500.0 ms"), "{crowded}");
}

#[test]
fn a_sampler_confirms_and_watches_before_it_reports() {
    let mut stream = Stream::of(2);
    stream.hog_and_waiter(1, "0-1");
    let (meta, look) = (stream.meta(), stream.look());
    let mut sampler = Sampler::new(&meta, Options::default(), Nanos::from_secs(1));
    let first = sampler.keyframe(ms(1_000), look.clone());
    assert_eq!((first, sampler.is_watching()), (ms(1_000), false));
    let mut next = sampler.keyframe(first, look.clone());
    let mut looks = 2;
    while sampler.alerts().is_empty() {
        assert!(sampler.is_watching() && looks < 40);
        next = sampler.keyframe(next, look.clone());
        looks += 1;
    }
    let report = sampler.finish();
    assert_eq!(report.verdict, Verdict::Violated);
    assert!(report.violations[0].wasted_ms >= 99.0, "{report}");
}

#[test]
fn a_sampler_drops_what_the_second_look_does_not_show() {
    let mut stream = Stream::of(2);
    let calm = stream.look();
    stream.hog_and_waiter(1, "0-1");
    let mut sampler = Sampler::new(&stream.meta(), Options::default(), Nanos::from_secs(1));
    let again = sampler.keyframe(ms(1_000), stream.look());
    assert_eq!(sampler.keyframe(again, calm.clone()), again + Nanos::from_secs(1));
    let _ = sampler.keyframe(ms(2_000), calm);
    let report = sampler.finish();
    assert_eq!(report.verdict, Verdict::Clean);
    assert_eq!(report.samples, 3);
}

#[test]
fn a_sampler_concludes_nothing_from_looks_that_are_far_apart() {
    let mut stream = Stream::of(2);
    stream.hog_and_waiter(1, "0-1");
    let mut sampler = Sampler::new(&stream.meta(), Options::default(), Nanos::from_secs(1));
    for look in 0..50 {
        let _ = sampler.keyframe(ms(1_000 + 60 * look), stream.look());
    }
    let report = sampler.finish();
    assert_eq!(report.verdict, Verdict::CouldNotTell, "{report}");
}

#[test]
fn suspicion_gone_at_a_late_look_does_not_count() {
    let mut stream = Stream::of(2);
    let calm = stream.look();
    stream.hog_and_waiter(1, "0-1");
    let mut sampler = Sampler::new(&stream.meta(), Options::default(), Nanos::from_secs(1));
    for (at, look) in [(1_000, stream.look()), (1_001, stream.look()), (1_060, calm)] {
        let _ = sampler.keyframe(ms(at), look);
    }
    let report = sampler.finish();
    assert_eq!((report.verdict, report.unjudged.len()), (Verdict::Clean, 0), "{report}");
}

#[test]
fn looks_between_which_a_waiter_was_moved_begin_anew() {
    let mut stream = Stream::of(3);
    stream.hog_and_waiter(1, "0-2");
    let looks = [stream.look(), {
        let mut moved = stream.clone();
        moved.shown.threads[1].core = on(0);
        moved.shown.threads[1].state = quell_model::Activity::Running;
        moved.shown.cores[0].running = 12;
        moved.show(fair(13, "next"), 1, quell_model::Activity::Waiting, "0-2");
        moved.look()
    }];
    let mut sampler = Sampler::new(&stream.meta(), Options::default(), Nanos::from_secs(1));
    let mut next = ms(1_000);
    for look in 0..100 {
        // Every 40 ms the waiter is moved away, and another waits in its place.
        next = sampler.keyframe(next, looks[look / 10 % 2].clone());
    }
    let report = sampler.finish();
    assert!(report.violations.is_empty(), "{report}");
}
