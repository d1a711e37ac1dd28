//! Recordings of hosts and of simulations, replayed.

use std::collections::BTreeMap;

use proptest::prelude::*;
use quell_model::{
    Activity, CoreSet, CoreState, Event, Keyframe, Left, Meta, Rank, Runner, Source as Origin,
    ThreadName, ThreadState, Topology,
};
use quell_sim::file::Simulation;
use quell_sim::{ProgramStep, RecordedClass, RecordedStart, Report, Service};
use quell_trace::host::{HostThread, HostVisitor};
use quell_trace::perfetto::Writer;
use quell_trace::stream::Sink as _;

use super::*;

mod guests;
mod hosts;
mod limits;
#[path = "../../../trace/tests/recorded/mod.rs"]
mod recorded;

const ALL: Window = Window { from: Nanos::ZERO, length: None };

/// A trace in memory.
struct Events {
    meta: Meta,
    events: std::vec::IntoIter<Event>,
}

impl Iterator for Events {
    type Item = Result<Event, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.events.next().map(Ok)
    }
}

impl Source for Events {
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

/// A trace of a host with two cores; times in microseconds.
fn events(cores: u16, whats: Vec<(u64, u16, What)>) -> Events {
    let mut sequence = BTreeMap::<u16, u64>::new();
    let events = whats.into_iter().map(|(at, core, what)| {
        let next = sequence.entry(core).or_default();
        *next += 1;
        Event { at: Nanos(at * 1_000), core: CoreId(core), sequence: *next - 1, what }
    });
    let meta = Meta {
        source: Origin::Recorder,
        topology: Topology::regular(1, cores, 1).unwrap(),
        kernel: "6.12.1".to_owned(),
        host: String::new(),
        hooks: Vec::new(),
        absent: Vec::new(),
        wall_offset_ns: 0,
    };
    let events: Vec<Event> = events.collect();
    Events { meta, events: events.into_iter() }
}

fn first(cores: u16) -> CoreSet {
    Topology::regular(1, cores, 1).unwrap().all()
}

fn runner(thread: i32) -> Runner {
    let name = ThreadName::new(format!("t{thread}").as_bytes());
    Runner { thread, process: 1, rank: Rank::FAIR, name }
}

fn switch(next: i32, left: i32, how: Left) -> What {
    What::Switch { next: runner(next), left, how, stolen: Nanos::ZERO }
}

fn waking(thread: i32, by: i32, target: u16) -> What {
    What::Waking { thread: runner(thread), by, target: CoreId(target) }
}

/// All cores idle but those that run a thread.
fn keyframe(running: &[i32]) -> What {
    let all = first(running.len() as u16);
    let mut frame = Keyframe::default();
    for (core, running) in running.iter().enumerate() {
        let core = CoreId(core as u16);
        frame.cores.push(CoreState {
            core,
            running: *running,
            queued: u32::from(*running != 0),
            runnable: u32::from(*running != 0),
            weight: 0,
            average: 0,
            wake_pending: false,
            domain: all,
        });
        if *running != 0 {
            frame.threads.push(ThreadState {
                thread: runner(*running),
                core,
                state: Activity::Running,
                allowed: all,
                bound: false,
            });
        }
    }
    What::Keyframe(std::sync::Arc::new(frame))
}

fn compute(micros: u64) -> ProgramStep {
    ProgramStep::Compute(Service::Fixed(Nanos(micros * 1_000)))
}

fn sleep(micros: u64) -> ProgramStep {
    ProgramStep::Sleep(Service::Fixed(Nanos(micros * 1_000)))
}

fn steps(recording: &Recording, name: &str) -> Vec<ProgramStep> {
    let kind = recording.program.kinds.iter().find(|kind| kind.name == name);
    kind.unwrap_or_else(|| panic!("no thread {name}")).steps.clone()
}

/// Two threads wake and fork others on two cores.
fn wakes_and_forks() -> Events {
    use Left::{Dead, Preempted, Sleeping};
    events(
        2,
        vec![
            (0, 0, keyframe(&[1, 0])),
            // Preempted and back: one burst.
            (100, 0, switch(7, 1, Preempted)),
            (150, 0, switch(1, 7, Sleeping)),
            (200, 0, waking(2, 1, 1)),
            (200, 1, switch(2, 0, Preempted)),
            (250, 0, What::Fork { parent: 1, child: runner(3) }),
            (250, 0, What::Woken { thread: runner(3), on: CoreId(1), is_new: true }),
            (300, 0, switch(0, 1, Sleeping)),
            (400, 1, switch(3, 2, Sleeping)),
            (400, 1, What::Exec { thread: runner(3) }),
            // No thread that runs wakes it: a timer does.
            (500, 0, waking(1, 0, 0)),
            (500, 0, switch(1, 0, Preempted)),
            (600, 1, What::Exit { thread: 3 }),
            (600, 1, switch(0, 3, Dead)),
            (700, 0, What::Exit { thread: 1 }),
            (700, 0, switch(0, 1, Dead)),
        ],
    )
}

#[test]
fn bursts_wake_ups_and_forks_become_steps() {
    let mut trace = wakes_and_forks();
    let read = read(&mut trace, ALL).unwrap();
    let place =
        |name: &str| read.program.kinds.iter().position(|kind| kind.name == name).unwrap() as u32;
    let [one, two, three] = ["t1", "t2", "t3"].map(place);
    assert_eq!(
        steps(&read, "t1"),
        [
            compute(150),
            ProgramStep::Post(two),
            compute(50),
            ProgramStep::Fork(three),
            compute(50),
            sleep(200),
            compute(200),
        ]
    );
    assert_eq!(steps(&read, "t2"), [ProgramStep::Take(two), compute(200)]);
    assert_eq!(steps(&read, "t3"), [ProgramStep::Exec, compute(200)]);
    let start = |of: u32| read.threads[of as usize].start;
    assert_eq!(start(one), RecordedStart::Runnable(CoreId(0)));
    assert_eq!(start(two), RecordedStart::Asleep(CoreId(1)));
    assert_eq!(start(three), RecordedStart::Forked);
    // Thread 2 goes on after the recording.
    assert_eq!(
        [one, two, three].map(|of| read.threads[of as usize].ended.is_some()),
        [true, false, true]
    );
    assert_eq!(read.figures.completed, Nanos(700_000));
    assert_eq!(read.figures.ran, Nanos(900_000));
}

#[test]
fn a_wake_up_by_what_does_not_run_is_a_timer() {
    use Left::{Preempted, Sleeping};
    // A poster that was not recorded, one that runs elsewhere, an interrupt, and a tick over another thread.
    for (by, extra) in [(99, None), (3, None), (1, Some(What::Interrupt { irq: 4, begins: true }))]
    {
        let mut whats = vec![
            (0, 0, keyframe(&[1, 2])),
            (100, 1, switch(3, 2, Sleeping)),
            (150, 0, waking(2, by, 1)),
            (200, 1, switch(2, 3, Preempted)),
            (300, 1, switch(3, 2, Preempted)),
        ];
        if let Some(what) = extra {
            whats.insert(2, (120, 0, what));
        }
        let read = read(&mut events(2, whats), ALL).unwrap();
        assert_eq!(steps(&read, "t2"), [compute(100), sleep(50), compute(100)], "by {by}");
        assert!(!steps(&read, "t1").iter().any(|step| matches!(step, ProgramStep::Post(_))));
    }
    let tick = ThreadName::new(b"rcu_preempt");
    let tick = Runner { name: tick, ..runner(4) };
    let whats = vec![
        (0, 0, keyframe(&[1, 0])),
        (100, 0, What::Waking { thread: tick, by: 1, target: CoreId(1) }),
        (100, 1, What::Switch { next: tick, left: 0, how: Preempted, stolen: Nanos::ZERO }),
        (200, 1, switch(0, 4, Sleeping)),
    ];
    let read = read(&mut events(2, whats), ALL).unwrap();
    assert_eq!(steps(&read, "rcu_preempt"), [sleep(100), compute(100)]);
}

#[test]
fn classes_and_cores_are_kept() {
    let realtime = Runner { rank: Rank::realtime(42), ..runner(2) };
    let whats = vec![
        (0, 0, keyframe(&[1, 0])),
        (
            10,
            1,
            What::Switch { next: realtime, left: 0, how: Left::Preempted, stolen: Nanos::ZERO },
        ),
        (20, 1, What::Allowed { thread: 2, cores: CoreSet::of(CoreId(1)).into() }),
        (30, 1, What::Allowed { thread: 2, cores: first(2).into() }),
        (40, 1, What::Allowed { thread: 2, cores: first(1).into() }),
        (50, 1, switch(0, 2, Left::Sleeping)),
    ];
    let read = read(&mut events(2, whats), ALL).unwrap();
    let place = read.program.kinds.iter().position(|kind| kind.name == "t2").unwrap();
    let thread = &read.threads[place];
    assert_eq!(thread.class, RecordedClass::RealTime(42));
    // All cores of the recorded host are all cores of any other one.
    assert_eq!(read.cores[thread.allowed.unwrap() as usize], CoreSet::of(CoreId(1)));
    let sets = read.program.kinds[place].steps.iter().filter_map(|step| match step {
        ProgramStep::Allow(set) => Some(read.cores[*set as usize]),
        _ => None,
    });
    assert_eq!(sets.collect::<Vec<_>>(), [CoreSet::EMPTY, first(1)]);
}

/// CPU time by thread, added up without the code under test.
#[derive(Default)]
struct Ran(BTreeMap<u32, u64>);

impl HostVisitor for Ran {
    fn thread_span(&mut self, thread: &HostThread, until: Nanos) {
        if thread.state == quell_trace::host::ThreadState::Running {
            *self.0.entry(thread.serial).or_default() += until.since(thread.since).0;
        }
    }
}

#[test]
fn threads_have_the_cpu_time_of_the_trace() {
    for recording in recorded::all() {
        let Ok(read) = read(recording.open().as_mut(), ALL) else { continue };
        let mut host = HostState::new(recording.open().meta());
        let mut ran = Ran::default();
        for event in recording.open() {
            host.push(&event.unwrap(), &mut ran);
        }
        host.finish(&mut ran);
        let mut expected: Vec<u64> = ran.0.into_values().collect();
        let mut found: Vec<u64> =
            (0..read.threads.len()).map(|thread| read.work_of(thread).0).collect();
        found.retain(|time| *time > 0);
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(expected, found, "{}", recording.name);
        assert_eq!(read.figures.ran.0, expected.iter().sum::<u64>(), "{}", recording.name);
    }
}

/// Programs of steps with locks, forks, sleeps, and a class of its own for none.
const PROGRAM: &str = r#"
version = 1
length_ms = 3000
warm_up_ms = 0
[machine]
physical = 4
managed = "0-3"
[host]
policy = "linux-default"
cores = "shared"
tick_us = 100000
bursts = false
costs = { switch_ns = 0 }
[kernel]
model = "linux-6.12"
[[task]]
name = "build"
model = "program"
threads = 12
[[task.thread]]
name = "make"
count = 1
steps = ["repeat 40", "take slot", "compute 1ms ~30%", "fork job", "end", "compute 20ms"]
[[task.thread]]
name = "job"
steps = ["compute 3ms ~40%", "exec", "compute 30ms ~60%", "sleep 2ms ~50%", "compute 5ms", "post slot"]
[[task.sync]]
name = "slot"
tokens = 6
[[task]]
name = "pinned"
model = "program"
cores = "1-2"
[[task.thread]]
name = "worker"
count = 3
steps = ["repeat 30", "compute 8ms ~50%", "sleep 4ms", "end"]
"#;

/// The scenario's report, and its trace.
fn simulated(text: &str) -> (Report, Events) {
    let simulation = Simulation::parse(text, "x.toml", "x", &|_| unreachable!()).unwrap();
    let mut policy = simulation.driver().unwrap();
    let meta = simulation.scenario.meta(policy.name());
    let mut all = Vec::new();
    let mut sink = |event: Event| all.push(event);
    let report = quell_sim::run_traced(&simulation.scenario, policy.as_mut(), &mut sink);
    (report, Events { meta, events: all.into_iter() })
}

fn within(part: f64, expected: f64, found: f64) -> bool {
    (found - expected).abs() <= part * expected
}

#[test]
fn a_simulated_program_replays_as_it_was() {
    let (report, mut trace) = simulated(PROGRAM);
    let completed = report.tasks.iter().map(|task| task.completed.unwrap()).max().unwrap();
    let ran: Nanos = report.tasks.iter().fold(Nanos::ZERO, |sum, task| sum + task.ran);
    let read = read(&mut trace, ALL).unwrap();
    let row = compare("program", &read, &trace.meta.topology, "linux-6.12").unwrap();
    let seconds = |time: Nanos| time.0 as f64 / 1e9;
    assert!(within(0.001, seconds(ran), row.recorded_cpu_s), "{row:?}, {ran}");
    assert!(within(0.001, seconds(ran), row.replayed_cpu_s), "{row:?}, {ran}");
    assert!(within(0.2, seconds(completed), row.replayed_s), "{row:?}, {completed}");
    // Of some dozen milliseconds on four cores each wait is a tenth.
    let wasted = seconds(report.waste.cores);
    let room = 0.2 * wasted + 0.015 * 4.0 * seconds(completed);
    assert!((wasted - row.replayed_wasted_core_s).abs() <= room, "{row:?}, {wasted}");
    assert!(row.completes_alike(), "{row:?}");
}

#[test]
fn another_topology_and_kernel_take_the_same_cpu_time() {
    let read = read(recorded::named("make-j4").open().as_mut(), ALL).unwrap();
    let steps: usize = read.program.kinds.iter().map(|kind| kind.steps.len()).sum();
    let mut completed = Vec::new();
    for cores in [1, 2, 16] {
        for model in ["linux-4.1", "linux-5.4", "linux-6.18", "global"] {
            let topology = Topology::regular(1, cores, 1).unwrap();
            let report = replay(&read, &topology, model).unwrap();
            let ran = report.tasks[0].ran;
            // A nanosecond to go on after each wake-up.
            let extra = ran.since(read.figures.ran);
            assert!(ran >= read.figures.ran && extra.0 <= steps as u64, "{cores} {model}: {ran}");
            assert_eq!(report.broken, [], "{cores} {model}");
            completed.push((cores, report.tasks[0].completed.unwrap()));
        }
    }
    let slowest = |of: u16| completed.iter().filter(|it| it.0 == of).map(|it| it.1).max().unwrap();
    assert!(slowest(16) < slowest(2) && slowest(2) < slowest(1), "{completed:?}");
}

#[test]
fn a_recorded_thread_runs_only_where_it_may() {
    let whats = vec![
        (0, 0, keyframe(&[1, 2])),
        (1, 0, What::Allowed { thread: 1, cores: first(1).into() }),
        (2, 1, What::Allowed { thread: 2, cores: first(1).into() }),
        (9_000, 0, switch(0, 1, Left::Sleeping)),
        (9_000, 1, switch(0, 2, Left::Sleeping)),
    ];
    let read = read(&mut events(2, whats), ALL).unwrap();
    for model in ["linux-6.18", "global"] {
        let report = replay(&read, &Topology::regular(1, 2, 1).unwrap(), model).unwrap();
        // Thread 2 is let go on core 1 until it is restricted: the two take turns from then on, or before.
        let completed = report.tasks[0].completed.unwrap();
        assert!(completed >= Nanos::from_millis(17), "{model}: {completed}");
    }
}

#[test]
fn lost_events_are_refused_with_a_remedy_that_works() {
    let trace = || recorded::named("overflow").open();
    let mut window = ALL;
    let mut refused = 0;
    let read = loop {
        match read(trace().as_mut(), window) {
            Ok(read) => break read,
            Err(err @ ReplayError::Lost { .. }) => {
                let remedy = err.remedy();
                assert!(err.to_string().contains("events of core"), "{err}");
                assert!(remedy.contains("--buffer"), "{remedy}");
                let (_, from) = remedy.split_once("from_s = ").expect("a place after the loss");
                let from: f64 = from.trim_end_matches('`').parse().unwrap();
                window.from = Nanos((from * 1e9) as u64);
                refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
        assert!(refused < 9, "{window:?}");
    };
    assert!(refused > 0 && read.figures.ran > Nanos::ZERO);
    // What was before the loss is whole, too.
    let before = Window { from: Nanos::ZERO, length: Some(Nanos::from_millis(100)) };
    let whole = super::read(trace().as_mut(), before).unwrap();
    assert!(whole.figures.length <= Nanos::from_millis(100), "{:?}", whole.figures);
}

#[test]
fn parts_of_a_trace_add_up() {
    let part = |from: u64, length| {
        let window =
            Window { from: Nanos::from_millis(from), length: Some(Nanos::from_millis(length)) };
        read(recorded::named("make-j4").open().as_mut(), window).unwrap()
    };
    let [first, second, both] = [part(200, 300), part(500, 400), part(200, 700)];
    // Two busy cores.
    let apart = first.figures.ran + second.figures.ran;
    assert!(apart <= both.figures.ran, "{apart} of {}", both.figures.ran);
    assert!(both.figures.ran.since(apart) < Nanos::from_millis(10), "{apart}");
    let past = Window { from: Nanos::from_secs(99), length: None };
    let error = read(recorded::named("make-j4").open().as_mut(), past).unwrap_err();
    assert!(error.to_string().contains("it ends 1.7"), "{error}");
}

#[test]
fn what_is_no_trace_of_threads_is_refused() {
    let error = read(recorded::named("wasted-cores").open().as_mut(), ALL).unwrap_err();
    assert!(error.to_string().contains("nothing of threads"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cut.pftrace");
    let error = load(&file, ALL).unwrap_err();
    assert!(error.to_string().contains("cut.pftrace"), "{error}");
    let mut bytes = recorded::named("make-j4").bytes();
    bytes.truncate(bytes.len() / 2);
    std::fs::write(&file, &bytes).unwrap();
    let error = load(&file, ALL).unwrap_err();
    assert!(error.to_string().contains("damaged at byte"), "{error}");
    // The remedy names how much is whole.
    let (_, length) = error.remedy.split_once("length_s = ").unwrap();
    let length: f64 = length.trim_end_matches('`').parse().unwrap();
    let window = Window { from: Nanos::ZERO, length: Some(Nanos((length * 1e9) as u64)) };
    assert!(load(&file, window).is_ok(), "{length}");
}

/// Whatever a trace says: events that contradict each other included.
fn any_event() -> impl Strategy<Value = (u64, u16, What)> {
    let tid = 0..6i32;
    let core = 0..3u16;
    let what = prop_oneof![
        4 => (tid.clone(), tid.clone(), 0..4u8).prop_map(|(next, left, how)| {
            let how = [Left::Preempted, Left::Sleeping, Left::Blocked, Left::Dead][how as usize];
            switch(next, left, how)
        }),
        4 => (tid.clone(), tid.clone(), core.clone())
            .prop_map(|(thread, by, target)| waking(thread, by, target)),
        2 => (tid.clone(), core.clone(), any::<bool>()).prop_map(|(thread, on, is_new)| {
            What::Woken { thread: runner(thread), on: CoreId(on), is_new }
        }),
        1 => (tid.clone(), tid.clone())
            .prop_map(|(parent, child)| What::Fork { parent, child: runner(child) }),
        1 => tid.clone().prop_map(|thread| What::Exec { thread: runner(thread) }),
        1 => tid.clone().prop_map(|thread| What::Exit { thread }),
        1 => (tid.clone(), 1..4u16)
            .prop_map(|(thread, cores)| What::Allowed { thread, cores: first(cores).into() }),
        1 => (tid.clone(), tid.clone(), tid).prop_map(|(a, b, c)| keyframe(&[a, b, c])),
    ];
    (1..3_000u64, core, what)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// No trace makes a replay that waits for what never comes.
    #[test]
    fn any_trace_replays_to_its_end(whats in proptest::collection::vec(any_event(), 1..120)) {
        let mut at = 0;
        let timed = whats.into_iter().map(|(gap, core, what)| {
            at += gap;
            (at, core, what)
        });
        let mut trace = events(3, timed.collect());
        let read = read(&mut trace, ALL).unwrap();
        prop_assert_eq!(read.check(), Ok(()));
        prop_assume!(!read.threads.is_empty());
        let work: u64 = (0..read.threads.len()).map(|thread| read.work_of(thread).0).sum();
        let steps: usize = read.program.kinds.iter().map(|kind| kind.steps.len()).sum();
        for (cores, model) in [(3, "linux-6.12"), (1, "linux-4.1"), (2, "global")] {
            let topology = Topology::regular(1, cores, 1).unwrap();
            let report = replay(&read, &topology, model).unwrap();
            prop_assert!(report.tasks[0].completed.is_some(), "{} {:?}", model, read);
            let ran = report.tasks[0].ran.0;
            let slack = (2 * steps + read.threads.len()) as u64;
            prop_assert!(ran.abs_diff(work) <= slack, "{} {} {}", model, ran, work);
        }
    }
}

/// A small trace as a file has it.
fn small() -> Vec<u8> {
    let mut trace = wakes_and_forks();
    let mut writer = Writer::new(Vec::new());
    writer.meta(trace.meta()).unwrap();
    trace.by_ref().for_each(|event| writer.event(&event.unwrap()).unwrap());
    writer.finish().unwrap();
    writer.into_inner()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// As `fuzz/fuzz_targets/replay.rs`, which goes on for longer.
    #[test]
    fn damaged_traces_are_refused_or_replayed(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)
    ) {
        let mut bytes = small();
        for (place, value) in damage {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        let opened = quell_trace::open(std::io::Cursor::new(bytes), Options::default());
        let Ok(mut source) = opened else { return Ok(()) };
        let topology = source.meta().topology.clone();
        match read(source.as_mut(), ALL) {
            Ok(read) if !read.threads.is_empty() && read.figures.length < Nanos::from_secs(1) => {
                prop_assert_eq!(read.check(), Ok(()));
                let report = replay(&read, &topology, "linux-6.12").unwrap();
                prop_assert!(report.tasks[0].completed.is_some());
            }
            Ok(_) => {}
            Err(error) => prop_assert!(!error.to_string().is_empty() && !error.remedy().is_empty()),
        }
    }
}
