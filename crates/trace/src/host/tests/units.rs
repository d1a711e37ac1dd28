//! One rule a test.

use super::*;
use ThreadState::*;

/// What was reported, a line each; threads by serial.
#[derive(Default)]
struct Log(Vec<String>);

impl Log {
    fn of(&self, word: &str) -> Vec<&str> {
        self.0.iter().map(String::as_str).filter(|line| line.contains(word)).collect()
    }
}

impl HostVisitor for Log {
    const TRACKS_DELAYS: bool = true;
    const TRACKS_PLACEMENT: bool = true;

    fn thread_ended(&mut self, thread: &HostThread, at: Nanos) {
        self.0.push(format!("{} ended at {}", thread.serial, at.0));
    }
    fn thread_span(&mut self, thread: &HostThread, until: Nanos) {
        let HostThread { serial, state, core, since, .. } = thread;
        self.0.push(format!("{serial} {state:?} on {core} {}-{}", since.0, until.0));
    }
    fn wakeup_latency(&mut self, thread: &HostThread, from: Nanos, at: Nanos) {
        self.0.push(format!("{} latency {}", thread.serial, at.since(from).0));
    }
    fn wakeups_unknown(&mut self, count: u64, _at: Nanos) {
        self.0.push(format!("{count} latencies unknown"));
    }
    fn delayed(&mut self, thread: &HostThread, by: &HostThread, from: Nanos, to: Nanos) {
        self.0.push(format!("{} delayed by {} {}-{}", thread.serial, by.serial, from.0, to.0));
    }
    fn woken_beside_idle(
        &mut self,
        thread: &HostThread,
        onto: &HostCore,
        idle: &CoreSet,
        _: Nanos,
    ) {
        self.0.push(format!("{} woken onto {} beside {idle}", thread.serial, onto.id));
    }
    fn core_span(
        &mut self,
        core: &HostCore,
        occupant: Occupant<'_>,
        from: Nanos,
        to: Nanos,
        steal: Nanos,
    ) {
        let name = match occupant {
            Occupant::Unknown => "unknown".to_owned(),
            Occupant::Idle => "idle".to_owned(),
            Occupant::Thread(thread) => thread.serial.to_string(),
        };
        self.0.push(format!("core {} had {name} {}-{} steal {}", core.id, from.0, to.0, steal.0));
    }
    fn core_lost(&mut self, core: &HostCore, from: Nanos, at: Nanos, count: u64) {
        self.0.push(format!("core {} lost {count} {}-{}", core.id, from.0, at.0));
    }
    fn core_known(&mut self, core: &HostCore, at: Nanos) {
        self.0.push(format!("core {} known at {}", core.id, at.0));
    }
}

fn logged(source: Source, cores: u16, events: Vec<(u64, u16, What)>) -> (Feed, Log) {
    let (mut feed, mut log) = (Feed::of(source, cores), Log::default());
    for (at, core, what) in events {
        feed.push_with(at, core, what, &mut log);
    }
    feed.host.finish(&mut log);
    feed.host.validate().unwrap();
    (feed, log)
}

#[test]
fn latency_starts_at_waking_and_waiting_at_wakeup() {
    let (_, log) = logged(
        Source::Recorder,
        1,
        vec![
            (0, 0, keyframe(1, vec![entry(5, 0, Activity::Sleeping, "0")])),
            (10, 0, waking(5, 0)),
            (14, 0, woken(5, 0)),
            (40, 0, switch(5, 0, Left::Preempted)),
            (50, 0, switch(0, 5, Left::Blocked)),
        ],
    );
    assert_eq!(log.of("latency"), ["1 latency 30"]);
    assert_eq!(log.of("1 Wa"), ["1 Waking on 0 10-14", "1 Waiting on 0 14-40"]);
    assert_eq!(log.of("1 Running"), ["1 Running on 0 40-50"]);
}

#[test]
fn waking_is_waiting_while_a_stream_has_no_wakeups() {
    let (feed, log) = logged(
        Source::Perf,
        1,
        vec![(10, 0, waking(5, 0)), (40, 0, switch(5, 0, Left::Preempted)), (50, 0, waking(6, 0))],
    );
    assert_eq!(log.of("1 Wa"), ["1 Waiting on 0 10-40"]);
    assert_eq!(feed.state(6), Some((Waiting, 0)));
}

#[test]
fn thread_that_comes_with_a_switch_was_unknown_before() {
    let mut feed = Feed::of(Source::Ftrace, 2);
    feed.push(0, 0, switch(0, 1, Left::Sleeping)).push(10, 1, switch(7, 0, Left::Preempted));
    assert_eq!(feed.host.cores()[1].waiting, 0);
    let mut log = Log::default();
    feed.push_with(30, 1, switch(0, 7, Left::Sleeping), &mut log);
    assert_eq!(log.of("Wait"), [""; 0]);
    assert_eq!(log.of("Unknown"), [""; 0], "it appeared when it ran");
    assert_eq!(feed.state(7), Some((Sleeping, 1)));
}

#[test]
fn running_thread_that_is_woken_goes_on_unless_it_sleeps() {
    let mut feed = Feed::recorder(2);
    feed.push(0, 0, switch(5, 0, Left::Preempted));
    feed.push(10, 1, waking(5, 0)).push(11, 0, woken(5, 0));
    assert_eq!(feed.state(5), Some((Running, 0)));
    feed.push(20, 0, switch(0, 5, Left::Sleeping));
    assert_eq!(feed.state(5), Some((Sleeping, 0)), "that wake-up was over");
    // The waker meets the sleeper: the wake-up is in flight.
    feed.push(30, 0, switch(5, 0, Left::Preempted)).push(40, 1, waking(5, 1));
    feed.push(45, 0, switch(0, 5, Left::Sleeping));
    assert_eq!(feed.state(5), Some((Waking, 1)));
    let mut log = Log::default();
    feed.push(50, 1, woken(5, 1)).push_with(60, 1, switch(5, 0, Left::Preempted), &mut log);
    assert_eq!(log.of("latency"), ["1 latency 20"]);
}

#[test]
fn moved_wait_is_two_spans_and_one_latency() {
    let (_, log) = logged(
        Source::Recorder,
        2,
        vec![
            (0, 0, woken(5, 0)),
            (20, 1, migrate(5, 0, 1)),
            (30, 1, switch(5, 0, Left::Preempted)),
        ],
    );
    assert_eq!(log.of("Wait"), ["1 Waiting on 0 0-20", "1 Waiting on 1 20-30"]);
    assert_eq!(log.of("latency"), ["1 latency 30"]);
}

#[test]
fn delays_name_each_thread_that_ran_meanwhile() {
    let (_, log) = logged(
        Source::Recorder,
        1,
        vec![
            (0, 0, switch(1, 0, Left::Preempted)),
            (10, 0, woken(2, 0)),
            (30, 0, switch(3, 1, Left::Sleeping)),
            (50, 0, switch(2, 3, Left::Sleeping)),
        ],
    );
    assert_eq!(log.of("delayed"), ["2 delayed by 1 10-30", "2 delayed by 3 30-50"]);
}

#[test]
fn reused_tid_is_a_new_thread() {
    for end in [
        vec![(2, 0, switch(0, 5, Left::Dead)), (2, 0, What::Exit { thread: 5 })],
        vec![(2, 0, What::Exit { thread: 5 }), (2, 0, switch(0, 5, Left::Dead))],
        vec![(2, 0, What::Fork { parent: 1, child: fair(5) })],
        vec![(2, 0, switch(0, 5, Left::Sleeping)), (2, 0, woken_new(5, 0))],
    ] {
        let mut events = vec![(0, 0, waking(5, 0)), (1, 0, switch(5, 0, Left::Preempted))];
        events.extend(end);
        events.extend([(3, 0, woken(5, 0)), (7, 0, switch(5, 0, Left::Preempted))]);
        let (feed, log) = logged(Source::Recorder, 1, events);
        assert_eq!(log.of("1 ended"), ["1 ended at 2"]);
        assert_eq!(feed.host.thread_by_tid(5).unwrap().serial, 2);
        assert_eq!(log.of("1 latency"), ["1 latency 1"]);
    }
}

#[test]
fn first_wakeup_of_a_forked_thread_is_its_own() {
    let mut feed = Feed::recorder(1);
    feed.push(0, 0, What::Fork { parent: 1, child: fair(5) });
    assert_eq!(feed.state(5), Some((New, 0)));
    feed.push(1, 0, allowed(5, "0")).push(2, 0, woken_new(5, 0));
    let thread = feed.host.thread_by_tid(5).unwrap();
    assert_eq!((thread.serial, thread.state), (1, Waiting));
    assert_eq!(feed.host.allowed(thread), Some(cores("0")));
}

#[test]
fn exec_of_a_thread_that_leads_no_process_takes_the_tid() {
    let of = |tid| Runner { process: 7, ..fair(tid) };
    let mut feed = Feed::recorder(1);
    let next = of(8);
    feed.push(0, 0, What::Switch { next, left: 0, how: Left::Preempted, stolen: Nanos::ZERO });
    feed.push(1, 0, What::Exec { thread: of(7) });
    assert_eq!((feed.running(), feed.state(8)), (vec![Some(7)], None));
    feed.push(2, 0, switch(0, 7, Left::Sleeping));
    assert_eq!(feed.state(7), Some((Sleeping, 0)));
}

#[test]
fn lost_events_make_one_core_unknown_until_a_keyframe() {
    let crowded = || {
        keyframe(
            2,
            vec![
                entry(5, 0, Activity::Running, "0-1"),
                entry(6, 0, Activity::Waiting, "0-1"),
                entry(7, 1, Activity::Running, "0-1"),
            ],
        )
    };
    let (mut feed, mut log) = (Feed::recorder(2), Log::default());
    feed.push(0, 0, crowded()).push(10, 1, woken(8, 1));
    feed.push_with(30, 0, What::Lost { count: 9 }, &mut log);
    assert_eq!(feed.running(), [None, Some(7)]);
    assert_eq!((feed.state(5), feed.state(6)), (Some((Unknown, 0)), Some((Unknown, 0))));
    assert_eq!((feed.state(8), feed.host.lost()), (Some((Waiting, 1)), &cores("0")));
    assert_eq!(log.of("lost"), ["core 0 lost 9 0-30"]);
    assert_eq!(log.of("latencies"), ["1 latencies unknown"]);
    // Numbers that the loss explains are no second one.
    feed.skip(0, 8).push_with(40, 0, switch(5, 6, Left::Preempted), &mut log);
    assert_eq!((feed.running()[0], feed.host.lost()), (Some(5), &cores("0")));
    assert_eq!(log.of("lost").len(), 1);
    feed.push_with(50, 1, crowded(), &mut log);
    assert_eq!((feed.host.lost(), log.of("known at")), (&cores(""), vec!["core 0 known at 50"]));
    assert_eq!(feed.host.contended(), &cores("0"));
}

#[test]
fn gap_in_the_sequence_is_a_loss() {
    let (mut feed, mut log) = (Feed::recorder(1), Log::default());
    feed.push(0, 0, switch(5, 0, Left::Preempted)).skip(0, 3);
    feed.push_with(20, 0, switch(6, 9, Left::Preempted), &mut log);
    assert_eq!(log.of("lost"), ["core 0 lost 3 0-20"]);
    assert_eq!((feed.state(5), feed.running()), (Some((Unknown, 0)), vec![Some(6)]));
}

#[test]
fn missed_switch_happened_when_the_waiting_thread_preempts() {
    let high = runner(5, Rank::realtime(10));
    let low = runner(6, Rank::BENEATH);
    let to = |next, left, how| What::Switch { next, left, how, stolen: Nanos(3) };
    let (_, log) = logged(
        Source::Recorder,
        1,
        vec![
            (0, 0, to(high, 0, Left::Preempted)),
            (10, 0, to(low, 5, Left::Sleeping)),
            (40, 0, What::Woken { thread: high, on: CoreId(0), is_new: false }),
            // Its switch-in is missing.
            (100, 0, to(low, 5, Left::Sleeping)),
            (120, 0, to(low, 6, Left::Preempted)),
        ],
    );
    assert_eq!(
        log.of("core 0 had"),
        [
            "core 0 had 1 0-10 steal 3",
            "core 0 had 2 10-40 steal 0",
            "core 0 had 1 40-100 steal 3",
            "core 0 had 2 100-120 steal 3",
        ]
    );
    assert_eq!(log.of("1 Running"), ["1 Running on 0 0-10", "1 Running on 0 40-100"]);
    assert_eq!(log.of("latencies"), ["1 latencies unknown"]);
}

#[test]
fn missed_switch_leaves_the_thread_before_unknown() {
    let mut feed = Feed::recorder(1);
    feed.push(0, 0, switch(5, 0, Left::Preempted)).push(10, 0, switch(7, 6, Left::Preempted));
    assert_eq!((feed.state(5), feed.state(6)), (Some((Unknown, 0)), Some((Waiting, 0))));
    assert_eq!(feed.running(), [Some(7)]);
}

#[test]
fn thread_that_runs_elsewhere_leaves_its_core_unknown() {
    let mut feed = Feed::recorder(2);
    feed.push(0, 0, switch(5, 0, Left::Preempted)).push(10, 1, switch(5, 0, Left::Preempted));
    assert_eq!(feed.running(), [None, Some(5)]);
    // What the first core says of it later is older.
    feed.push(11, 0, switch(6, 5, Left::Preempted));
    assert_eq!((feed.running(), feed.state(5)), (vec![Some(6), Some(5)], Some((Running, 1))));
}

#[test]
fn migrated_running_thread_waits_at_its_new_core() {
    let mut feed = Feed::recorder(2);
    feed.push(0, 0, switch(5, 0, Left::Preempted)).push(10, 1, migrate(5, 0, 1));
    assert_eq!((feed.running()[0], feed.state(5)), (None, Some((Waiting, 1))));
    feed.push(11, 0, switch(0, 5, Left::Preempted));
    assert_eq!((feed.running()[0], feed.state(5)), (Some(0), Some((Waiting, 1))));
}

#[test]
fn switch_to_idle_empties_the_queue() {
    let mut feed = Feed::recorder(1);
    feed.push(0, 0, switch(5, 0, Left::Preempted)).push(5, 0, woken(6, 0));
    feed.push(10, 0, switch(0, 5, Left::Preempted));
    assert_eq!((feed.state(5), feed.state(6)), (Some((Unknown, 0)), Some((Unknown, 0))));
    assert_eq!(feed.host.idle(), &cores("0"));
}

#[test]
fn simulated_threads_wait_under_an_idle_core() {
    let mut feed = Feed::of(Source::Simulator, 1);
    feed.push(0, 0, switch(5, 0, Left::Preempted)).push(5, 0, switch(0, 5, Left::Preempted));
    assert_eq!(feed.state(5), Some((Waiting, 0)));
    assert_eq!((feed.host.idle(), feed.host.contended()), (&cores("0"), &cores("0")));
}

#[test]
fn keyframe_confirms_waits_and_corrects_the_rest() {
    let (mut feed, mut log) = (Feed::recorder(2), Log::default());
    feed.push(0, 0, switch(5, 0, Left::Preempted)).push(5, 0, woken(6, 0));
    feed.push(6, 0, woken(7, 0)).push(7, 1, switch(9, 0, Left::Preempted));
    let frame = keyframe(
        2,
        vec![entry(5, 0, Activity::Running, "0"), entry(6, 0, Activity::Waiting, "0-1")],
    );
    feed.push_with(20, 0, frame, &mut log);
    assert_eq!(log.of("core 0 had"), [""; 0], "it goes on running");
    assert_eq!((feed.state(6), feed.state(7)), (Some((Waiting, 0)), Some((Sleeping, 0))));
    assert_eq!(feed.running(), [Some(5), Some(0)]);
    assert_eq!(feed.host.idle(), &cores("1"));
    feed.push_with(30, 0, switch(6, 5, Left::Sleeping), &mut log);
    assert_eq!(log.of("2 Waiting"), ["2 Waiting on 0 5-30"]);
    assert_eq!(log.of("2 latency"), ["2 latency 25"]);
    assert_eq!(log.of("latencies"), ["1 latencies unknown"], "that of 7");
}

#[test]
fn offline_and_unlisted_cores_are_not_idle() {
    let mut feed = Feed::recorder(3);
    feed.push(0, 0, keyframe(3, vec![]));
    assert_eq!(feed.host.idle(), &cores("0-2"));
    feed.push(5, 1, What::Online { of: CoreId(1), online: false });
    assert_eq!(feed.host.idle(), &cores("0,2"));
    feed.push(9, 0, keyframe(2, vec![]));
    assert_eq!(feed.host.idle(), &cores("0-1"));
}

#[test]
fn count_that_is_too_low_excuses_a_queue() {
    let mut feed = Feed::recorder(1);
    feed.push(0, 0, switch(5, 0, Left::Preempted)).push(1, 0, woken(6, 0));
    assert_eq!(feed.host.contended(), &cores("0"));
    feed.push(2, 0, queue(0, 1));
    assert_eq!(feed.host.contended(), &cores(""), "the one that waits is throttled");
    feed.push(3, 0, queue(0, 2));
    assert_eq!(feed.host.contended(), &cores("0"));
}

#[test]
fn own_threads_count_as_if_they_did_not_run() {
    let mut feed = Feed::recorder(2);
    feed.host.set_own([77], &mut ());
    feed.push(0, 0, switch(77, 0, Left::Preempted));
    assert_eq!(feed.host.idle(), &cores("0"));
    feed.push(1, 0, woken(5, 0));
    assert_eq!((feed.host.idle(), feed.host.contended()), (&cores(""), &cores("")));
    feed.push(2, 0, woken(6, 0));
    assert_eq!(feed.host.contended(), &cores("0"), "one of two would wait");
}

#[test]
fn wakeup_onto_a_busy_core_names_the_idle_ones() {
    let (_, log) = logged(
        Source::Recorder,
        3,
        vec![
            (
                0,
                0,
                keyframe(
                    3,
                    vec![
                        entry(1, 0, Activity::Running, "0"),
                        entry(2, 0, Activity::Sleeping, "0-1"),
                        entry(3, 0, Activity::Sleeping, "0"),
                    ],
                ),
            ),
            (5, 0, woken(2, 0)),
            (6, 0, woken(3, 0)),
        ],
    );
    assert_eq!(log.of("woken onto"), ["2 woken onto 0 beside 1"]);
}

#[test]
fn cut_splits_waits_and_nothing_reaches_back_beyond_it() {
    let (mut feed, mut log) = (Feed::recorder(1), Log::default());
    feed.push(0, 0, switch(5, 0, Left::Preempted)).push(5, 0, woken(6, 0));
    feed.push(10, 0, queue(0, 2));
    feed.host.cut(&mut log);
    feed.host.validate().unwrap();
    feed.push_with(30, 0, switch(6, 5, Left::Sleeping), &mut log);
    assert_eq!(log.of("Waiting"), ["2 Waiting on 0 5-10", "2 Waiting on 0 10-30"]);
    assert_eq!(log.of("delayed"), ["2 delayed by 1 5-10", "2 delayed by 1 10-30"]);
}

#[test]
fn parallel_make_without_first_wakeups_has_empty_queues() {
    // As `trace-cmd record -e sched_switch -e sched_waking -e sched_wakeup -e sched_migrate_task` of `make -j4`.
    let mut feed = Feed::of(Source::Ftrace, 2);
    let mut deepest = 0;
    for job in 0..300u16 {
        let (at, core) = (u64::from(job) * 100, job % 2);
        let tid = 1_000 + i32::from(job);
        feed.push(at, core, switch(tid, 0, Left::Preempted));
        feed.push(at + 60, core, switch(0, tid, Left::Dead));
        deepest = deepest.max(feed.host.cores().iter().map(|core| core.waiting).max().unwrap());
    }
    assert_eq!(deepest, 0);
    assert_eq!(feed.host.threads().count(), 0, "all have ended");
}

/// A recorder that leaves out what `quell why` does not need.
fn recorder_without_moves() -> Feed {
    let mut feed = Feed::recorder(2);
    let hooks = ["sched_switch", "sched_waking"].map(str::to_owned).to_vec();
    feed.host = HostState::new(&Meta { hooks, ..meta(Source::Recorder, 2) });
    feed
}

#[test]
fn thread_waits_from_waking_where_the_recorder_has_no_wakeups() {
    let mut feed = recorder_without_moves();
    feed.push(0, 0, switch(1, 0, Left::Sleeping)).push(10, 1, waking(2, 0));
    assert_eq!(feed.state(2), Some((ThreadState::Waiting, 0)));
    // It ran on when it was woken, and sleeps much later.
    feed.push(20, 1, waking(1, 0)).push(900_000, 0, switch(2, 1, Left::Sleeping));
    assert_eq!(feed.state(1), Some((ThreadState::Sleeping, 0)));
}

#[test]
fn waiting_thread_may_be_anywhere_where_moves_are_not_recorded() {
    let mut feed = recorder_without_moves();
    feed.push(0, 0, switch(1, 0, Left::Sleeping)).push(0, 1, switch(3, 0, Left::Sleeping));
    feed.push(10, 1, waking(2, 0)).push(20, 0, switch(0, 1, Left::Sleeping));
    assert_eq!(feed.state(2), Some((ThreadState::Waiting, 0)), "it may have been moved");
    feed.push(30, 1, switch(3, 2, Left::Sleeping));
    assert_eq!(feed.state(2), Some((ThreadState::Sleeping, 1)));
}

#[test]
fn wait_ends_where_a_waiting_thread_leaves_its_core() {
    let mut feed = Feed::recorder(1);
    feed.push(0, 0, switch(1, 0, Left::Sleeping)).push(10, 0, woken(2, 0));
    feed.push(50, 0, switch(1, 2, Left::Preempted));
    let thread = feed.host.thread_by_tid(2).unwrap();
    assert_eq!((thread.state, thread.since), (ThreadState::Waiting, Nanos(50)));
}
