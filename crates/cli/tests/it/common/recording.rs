//! A recording in which it is known which thread waited where, as `quell record` stores one.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::Arc;

use quell_model::{
    Activity, CoreId, CoreSet, CoreState, Event, Keyframe, Left, Meta, Nanos, Rank, Runner, Source,
    ThreadName, ThreadState, Topology, Violation, What,
};
use quell_trace::perfetto::Writer;
use quell_trace::stream::Sink as _;

/// The thread that runs on core 1.
pub const HOG: i32 = 11;
/// The thread that waits behind it.
pub const WAITER: i32 = 12;
/// What the recording says of the waiter, in the words of a checker.
pub const NOTE: &str = "core 1: waiter (12) waited beside an idle core";
/// Milliseconds during which the hog and the waiter take turns while core 0 idles.
const WASTED_MS: u64 = 500;

fn runner(thread: i32) -> Runner {
    let (name, rank) = match thread {
        0 => ("swapper", Rank::NOBODY),
        HOG => ("hog", Rank::FAIR),
        _ => ("waiter", Rank::FAIR),
    };
    Runner { thread, process: thread, rank, name: ThreadName::new(name.as_bytes()) }
}

/// Core 0 idles. The hog runs on core 1, and the waiter waits there; each core is a domain of its own.
fn keyframe(allowed: CoreSet) -> Keyframe {
    let core = |core: u16, running, runnable| CoreState {
        core: CoreId(core),
        running,
        queued: runnable,
        runnable,
        weight: 1024 * u64::from(runnable),
        average: 0,
        wake_pending: false,
        domain: CoreSet::of(CoreId(core)),
    };
    let thread = |thread, state| ThreadState {
        thread: runner(thread),
        core: CoreId(1),
        state,
        allowed,
        bound: false,
    };
    Keyframe {
        cores: vec![core(0, 0, 0), core(1, HOG, 2)],
        threads: vec![thread(HOG, Activity::Running), thread(WAITER, Activity::Waiting)],
    }
}

/// Writes a recording of two threads that may use `allowed` and take turns on core 1.
pub fn two_threads_on_core_1(path: &Path, allowed: &str) -> Vec<Event> {
    let ms = Nanos::from_millis;
    let from = ms(1_000);
    let note = Violation {
        core: CoreId(1),
        from,
        until: from + ms(WASTED_MS),
        waiters: vec![WAITER],
        idle: CoreSet::of(CoreId(0)),
        text: NOTE.into(),
    };
    let mut list = vec![(from, 0, What::Keyframe(Arc::new(keyframe(allowed.parse().unwrap()))))];
    for turn in 1..=WASTED_MS / 4 {
        let (next, left) = if turn % 2 == 0 { (HOG, WAITER) } else { (WAITER, HOG) };
        let next = runner(next);
        let switch = What::Switch { next, left, how: Left::Preempted, stolen: Nanos::ZERO };
        list.push((from + ms(4 * turn), 1, switch));
        // Core 0 is seen as well: nothing of it was lost.
        let parent = HOG;
        list.push((from + ms(4 * turn), 0, What::Fork { parent, child: runner(99) }));
    }
    list.push((note.until, 1, What::Violation(Arc::new(note))));
    let mut numbers = BTreeMap::<u16, u64>::new();
    let numbered = list.into_iter().map(|(at, core, what)| {
        let next = numbers.entry(core).or_default();
        let sequence = *next;
        *next += 1;
        Event { at, core: CoreId(core), sequence, what }
    });
    let events: Vec<Event> = numbered.collect();
    let mut writer = Writer::new(BufWriter::new(File::create(path).unwrap()));
    let meta = Meta {
        source: Source::Recorder,
        topology: Topology::regular(1, 2, 1).unwrap(),
        kernel: "6.12.0".to_owned(),
        host: "test".to_owned(),
        hooks: Vec::new(),
        absent: Vec::new(),
        wall_offset_ns: 0,
    };
    writer.meta(&meta).unwrap();
    events.iter().for_each(|event| writer.event(event).unwrap());
    writer.finish().unwrap();
    events
}
