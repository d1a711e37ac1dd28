//! Limits of steps, and parts of a trace without events.

use super::*;

/// The steps of all threads.
fn steps_of(recording: &Recording) -> usize {
    recording.program.kinds.iter().map(|kind| kind.steps.len()).sum()
}

/// The limit is the very number of steps.
fn assert_steps_are_counted(trace: impl Fn() -> Events, steps: usize) {
    let whole = read_up_to(&mut trace(), ALL, steps).unwrap();
    assert_eq!(steps_of(&whole), steps);
    let error = read_up_to(&mut trace(), ALL, steps - 1).unwrap_err();
    assert_eq!(error.to_string(), format!("more than {} steps", steps - 1));
    assert!(error.remedy().contains("`from_s`"), "{}", error.remedy());
}

#[test]
fn a_burst_without_sleep_is_one_step() {
    // Two threads take turns, without a sleep between: one burst each.
    let turns = || {
        let mut whats = vec![(0, 0, keyframe(&[1]))];
        for turn in 1..=200 {
            let (next, left) = if turn % 2 == 1 { (2, 1) } else { (1, 2) };
            whats.push((turn * 10, 0, switch(next, left, Left::Preempted)));
        }
        events(1, whats)
    };
    assert_steps_are_counted(turns, 3);
    // A thread that sleeps between bursts: two steps each.
    let sleeps = || {
        let mut whats = vec![(0, 0, keyframe(&[1]))];
        for turn in 0..100 {
            whats.push((turn * 20 + 10, 0, switch(0, 1, Left::Sleeping)));
            whats.push((turn * 20 + 20, 0, switch(1, 0, Left::Preempted)));
        }
        whats.push((2_010, 0, switch(0, 1, Left::Sleeping)));
        events(1, whats)
    };
    assert_steps_are_counted(sleeps, 201);
}

#[test]
fn bursts_that_go_on_at_the_end_count() {
    assert_steps_are_counted(
        || events(2, vec![(0, 0, keyframe(&[1, 2])), (10, 0, keyframe(&[1, 2]))]),
        2,
    );
}

#[test]
fn steps_before_waits_count() {
    // Keyframes alone: one thread runs, the other one waits and sleeps in turn.
    let waits = || {
        let whats = (0..100).map(|turn| {
            let What::Keyframe(frame) = keyframe(&[1]) else { unreachable!() };
            let mut frame = (*frame).clone();
            if turn % 2 == 1 {
                frame.threads.push(ThreadState {
                    thread: runner(2),
                    core: CoreId(0),
                    state: Activity::Waiting,
                    allowed: first(1),
                    bound: false,
                });
            }
            (turn * 10, 0, What::Keyframe(std::sync::Arc::new(frame)))
        });
        events(1, whats.collect())
    };
    // The sleep before each wait but the first one, where the thread appears, and the burst of the other thread.
    assert_steps_are_counted(waits, 50);
}

#[test]
fn an_empty_part_is_told_from_the_end() {
    let trace = || {
        let whats = vec![
            (1_000, 0, keyframe(&[1])),
            (2_000, 0, switch(0, 1, Left::Sleeping)),
            (900_000, 0, switch(1, 0, Left::Preempted)),
            (950_000, 0, switch(0, 1, Left::Sleeping)),
        ];
        events(1, whats)
    };
    let millis = Nanos::from_millis;
    let part = |from, length: Option<u64>| {
        read(&mut trace(), Window { from: millis(from), length: length.map(millis) })
    };
    let error = part(100, Some(200)).unwrap_err();
    assert_eq!(error.to_string(), "no event is between 0.1 s and 0.3 s after its begin");
    // The remedy names how long the part has to be.
    let remedy = error.remedy();
    assert!(remedy.contains("the next event is 0.899 s after its begin"), "{remedy}");
    let (_, length) = remedy.split_once("length_s = ").unwrap();
    let length: f64 = length.trim_end_matches('`').parse().unwrap();
    assert!(part(100, Some((length * 1e3).ceil() as u64)).is_ok(), "{length}");
    // After the last event.
    for length in [None, Some(200)] {
        let error = part(1_000, length).unwrap_err();
        assert_eq!(error.to_string(), "it ends 0.949 s after its begin");
        assert!(error.remedy().contains("earlier `from_s`"), "{}", error.remedy());
    }
}
