use std::io::{BufReader, Read};

use proptest::collection::vec;
use proptest::prelude::*;
use quell_model::{Activity, CoreId, Event, Keyframe, Source as Origin, What};

use super::{Importer, Options, WINDOW};
use crate::stream::{ReadError, Source};

const SWITCHES: &str = "\
# tracer: nop
#
# entries-in-buffer/entries-written: 6/6   #P:2
#
            hog-10      [000] d..2.   100.000100: sched_waking: comm=web pid=20 prio=120 target_cpu=000
            hog-10      [000] dN.2.   100.000110: sched_wakeup: comm=web pid=20 prio=120 target_cpu=000
            hog-10      [000] d..2.   100.000150: sched_switch: prev_comm=hog prev_pid=10 prev_prio=120 prev_state=R+ ==> next_comm=web next_pid=20 next_prio=120
         <idle>-0       [001] dn.2.   100.000160: sched_migrate_task: comm=hog pid=10 prio=120 orig_cpu=0 dest_cpu=1
         <idle>-0       [001] d..2.   100.000170: sched_switch: prev_comm=swapper/1 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=hog next_pid=10 next_prio=120
            web-20      [000] d..2.   101.500000: sched_switch: prev_comm=web prev_pid=20 prev_prio=120 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120
";

fn import(text: &str) -> (Vec<Event>, Option<ReadError>) {
    let importer = match Importer::new(text.as_bytes(), Options::default()) {
        Ok(importer) => importer,
        Err(err) => return (Vec::new(), Some(err)),
    };
    let (mut events, mut error) = (Vec::new(), None);
    for event in importer {
        match event {
            Ok(event) => events.push(event),
            Err(err) => error = Some(err),
        }
    }
    (events, error)
}

fn keyframes(events: &[Event]) -> Vec<&Keyframe> {
    events
        .iter()
        .filter_map(|event| match &event.what {
            What::Keyframe(keyframe) => Some(keyframe.as_ref()),
            _ => None,
        })
        .collect()
}

/// Sizes of queues as the events tell them, with the core.
fn queues(events: &[Event]) -> Vec<(u16, u32)> {
    events
        .iter()
        .filter_map(|event| match event.what {
            What::Queue { of, runnable, .. } => Some((of.0, runnable)),
            _ => None,
        })
        .collect()
}

#[test]
fn queues_follow_from_switches_wake_ups_and_migrations() {
    let (events, error) = import(SWITCHES);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(queues(&events), [(0, 2), (0, 1), (1, 1), (0, 0)]);
    let first = keyframes(&events)[0];
    let running: Vec<i32> = first.cores.iter().map(|core| core.running).collect();
    assert_eq!(running, [10, 0], "who is switched away first ran before");
    assert_eq!(first.threads.len(), 1);
    let second = keyframes(&events)[1];
    assert_eq!(second.threads.len(), 2, "a keyframe each second knows who runs");
    for core in 0..2 {
        let numbers = events.iter().filter(|event| event.core == CoreId(core));
        assert!(numbers.enumerate().all(|(at, event)| event.sequence == at as u64));
    }
}

#[test]
fn threads_of_the_first_switches_run_and_none_waits_before() {
    let line = |core: u16, at: &str, prev: u32, next: u32| {
        format!(
            "x-{prev} [00{core}] d..2. {at}: sched_switch: prev_comm=p{prev} prev_pid={prev} prev_prio=120 \
             prev_state=S ==> next_comm=n{next} next_pid={next} next_prio=120\n"
        )
    };
    let text = [
        line(0, "10.0", 1, 2),
        // Core 1 idles before; thread 4 was seen by nothing yet.
        line(1, "10.1", 0, 4),
        line(0, "10.2", 2, 5),
        // Thread 2 ran on core 0 before: that it came to core 2 is not in the text.
        line(2, "10.3", 2, 6),
        line(0, "12.0", 5, 7),
    ];
    let (events, error) = import(&text.concat());
    assert!(error.is_none(), "{error:?}");
    let first = keyframes(&events)[0];
    let running: Vec<i32> = first.cores.iter().map(|core| core.running).collect();
    assert_eq!(running, [1, 0, super::NOBODY_KNOWN]);
    let threads: Vec<_> = first.threads.iter().map(|one| (one.thread.thread, one.state)).collect();
    assert_eq!(threads, [(1, Activity::Running)]);
    assert_eq!(first.threads[0].thread.name.to_string(), "p1");
    let sizes: Vec<u32> = first.cores.iter().map(|core| core.runnable).collect();
    assert_eq!(sizes, [1, 0, 0]);
    let last: Vec<i32> = keyframes(&events)[1].cores.iter().map(|core| core.running).collect();
    assert_eq!(last, [5, 4, 6]);
}

#[test]
fn keyframe_lists_thread_on_its_way_to_a_queue() {
    let text = "\
     a-1 [000] d..2. 10.000000: sched_wakeup: comm=z pid=9 prio=120 target_cpu=000\n\
     a-1 [000] d..2. 10.000000: sched_waking: comm=b pid=2 prio=120 target_cpu=001\n\
     a-1 [000] d..2. 12.000000: sched_waking: comm=c pid=3 prio=120 target_cpu=001\n";
    let (events, _) = import(text);
    assert_eq!(queues(&events), [(0, 1)], "a thread that is being woken is in no queue");
    let second = keyframes(&events)[1];
    let waits: Vec<_> = second.threads.iter().map(|one| (one.thread.thread, one.core.0)).collect();
    assert_eq!(waits, [(2, 1), (9, 0)]);
    assert!(second.threads.iter().all(|one| one.state == Activity::Waiting));
}

#[test]
fn what_a_text_lacks_is_said() {
    let importer = Importer::new(SWITCHES.as_bytes(), Options::default()).unwrap();
    assert_eq!(importer.meta().source, Origin::Ftrace);
    assert_eq!(importer.meta().topology.len(), 2);
    assert!(importer.meta().absent.iter().any(|absent| absent.starts_with("affinity")));
}

#[test]
fn the_user_may_say_how_large_the_host_is() {
    let options = Options { cores: Some(64), nodes: Some(8) };
    let importer = Importer::new(SWITCHES.as_bytes(), options).unwrap();
    let cores = importer.meta().topology.cores().to_vec();
    assert_eq!((cores.len(), cores[7].node, cores[8].node, cores[63].node), (64, 0, 1, 7));
}

#[test]
fn garbage_is_refused_with_its_line_and_the_reason() {
    let (_, error) = import("# a comment\nhello\n");
    assert!(error.unwrap().to_string().starts_with("line 2: this is no trace"));
    let (_, error) = import(&format!("{SWITCHES}hello\n"));
    assert_eq!(
        error.unwrap().to_string(),
        "line 11: neither an event (`name-pid [core] time: event: fields`) nor a comment"
    );
    let damaged = SWITCHES.replace("next_pid=0", "next_pid=zero");
    let (_, error) = import(&damaged);
    assert!(error.unwrap().to_string().starts_with("line 10: `sched_switch` without a valid"));
    assert!(matches!(import("").1, Some(ReadError::NotATrace(_))));
    assert!(matches!(import("\n\n# nothing\n").1, Some(ReadError::NotATrace(_))));
}

#[test]
fn a_line_without_end_is_refused() {
    let endless = BufReader::new(SWITCHES.as_bytes().chain(std::io::repeat(b'x')));
    let last = Importer::new(endless, Options::default()).unwrap().last();
    assert!(last.unwrap().unwrap_err().to_string().contains("line 11: longer than"));
}

#[test]
fn an_error_far_behind_comes_after_what_was_before_it() {
    let mut text = String::new();
    for at in 0..WINDOW as u64 + 100 {
        text += &format!("{} nsecs RQ 0 {}\n", at * 10, at % 3);
    }
    text += "oops\n";
    let (events, error) = import(&text);
    let queues = queues(&events);
    assert_eq!(queues.len(), WINDOW + 100);
    assert!(error.unwrap().to_string().starts_with(&format!("line {}:", WINDOW + 101)));
}

#[test]
fn a_core_that_comes_late_is_named_with_the_remedy() {
    let mut text = String::new();
    for at in 0..WINDOW as u64 + 100 {
        text += &format!("{} nsecs RQ 0 {}\n", at * 10, at % 3);
    }
    text += "99999999 nsecs RQ 5 1\n";
    let error = import(&text).1.unwrap().to_string();
    assert!(error.contains("core 5") && error.contains("--cores"), "{error}");
    let options = Options { cores: Some(6), nodes: None };
    assert!(Importer::new(text.as_bytes(), options).unwrap().all(|event| event.is_ok()));
}

#[test]
fn events_come_in_the_order_of_time_though_lines_do_not() {
    let text = "20 nsecs RQ 1 1\n10 nsecs RQ 0 1\n15 nsecs LD 0 1024\n";
    let (events, _) = import(text);
    let times: Vec<u64> = events.iter().map(|event| event.at.0).collect();
    assert_eq!(times, [10, 10, 15, 20]);
}

#[test]
fn kinds_of_forks_are_left_out_and_counted() {
    let text = "10 nsecs RQ 0 1\n11 nsecs HOTCACHE 1 2\n12 nsecs HOTCACHE 1 2\n13 nsecs WF 3\n";
    let mut importer = Importer::new(text.as_bytes(), Options::default()).unwrap();
    assert_eq!(importer.by_ref().count(), 2);
    assert_eq!(
        importer.remarks(),
        ["left out 2 lines of kind `HOTCACHE`", "left out 1 lines of kind `WF`"]
    );
}

#[test]
fn a_loss_leaves_a_core_unknown() {
    let text = SWITCHES.replace(
        "         <idle>-0       [001] dn.2.",
        "CPU:0 [LOST 7 EVENTS]\n         <idle>-0       [001] dn.2.",
    );
    let (events, error) = import(&text);
    assert!(error.is_none());
    let lost = events.iter().position(|event| matches!(event.what, What::Lost { count: 7 }));
    let lost = &events[lost.unwrap()];
    assert_eq!((lost.core, lost.at.0), (CoreId(0), 100_000_150_000));
}

#[test]
fn no_keyframe_claims_to_know_a_core_right_after_a_loss() {
    let line = |at: &str, prev: u32, next: u32| {
        format!(
            "x-{prev} [000] d..2. {at}: sched_switch: prev_comm=x prev_pid={prev} prev_prio=120 \
             prev_state=S ==> next_comm=x next_pid={next} next_prio=120\n"
        )
    };
    let text = [
        line("10.0", 1, 2),
        line("10.9", 2, 3),
        "CPU:0 [LOST 5 EVENTS]\n".to_owned(),
        line("11.1", 7, 8),
        line("12.0", 8, 9),
    ];
    let (events, error) = import(&text.concat());
    assert!(error.is_none());
    let keyframes = events.iter().filter(|event| matches!(event.what, What::Keyframe(_)));
    let times: Vec<u64> = keyframes.map(|event| event.at.as_micros()).collect();
    assert_eq!(times, [10_000_000, 12_000_000]);
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in ".{0,300}") {
        let _ = import(&text);
    }

    #[test]
    fn no_changed_line_makes_it_panic(
        at in any::<prop::sample::Index>(),
        with in vec(any::<u8>(), 0..6),
    ) {
        let mut bytes = SWITCHES.as_bytes().to_vec();
        let at = at.index(bytes.len());
        let end = (at + with.len()).min(bytes.len());
        bytes.splice(at..end, with);
        if let Ok(importer) = Importer::new(&bytes[..], Options::default()) {
            importer.take_while(Result::is_ok).for_each(drop);
        }
    }
}
