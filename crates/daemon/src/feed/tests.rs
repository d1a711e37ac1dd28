use std::path::PathBuf;
use std::sync::Mutex;

use quell_control::client::ClientError;
use quell_control::protocol::Update;
use quell_control::subscribe::Subscription;
use quell_model::{Class, CoreDecision, CoreId, CoreMode, CoreSet, Reason, TaskId, TaskReason};

use super::*;
use crate::server::{self, SUBSCRIBERS_MAX, Server};

const WEB: TaskId = TaskId { index: 0, generation: 0 };
const WAIT: Duration = Duration::from_secs(120);

/// The server with a scheduler thread that the test plays.
struct Scene {
    _directory: tempfile::TempDir,
    server: Server,
    path: PathBuf,
    writer: FeedWriter,
    state: Arc<Mutex<FeedState>>,
}

impl Scene {
    fn new() -> Scene {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let (writer, reader) = pair();
        let state = Arc::new(Mutex::new(FeedState {
            at: Nanos(1_000),
            tasks: vec![task(WEB, "web", &[7])],
            ..FeedState::default()
        }));
        let asked = Arc::clone(&state);
        let ask = Box::new(move || Some(Box::new(asked.lock().unwrap().clone())));
        let feed = Feed::start_with(reader, ask).unwrap();
        let server = server::start(&path, None, bounded(1).0, bounded(1).0, feed).unwrap();
        Scene { _directory: directory, server, path, writer, state }
    }

    fn subscribe(&self) -> Result<Subscription, ClientError> {
        Subscription::open(&self.path, WAIT)
    }
}

fn task(id: TaskId, name: &str, processes: &[i32]) -> TaskUpdate {
    TaskUpdate {
        at_ns: Nanos(1_000),
        id,
        name: name.to_owned(),
        class: Class::LatencyCritical,
        processes: processes.to_vec(),
        affinities: Vec::new(),
    }
}

/// The decision at this time; every other one takes the core away again.
fn decision(at: u64) -> DecisionUpdate {
    let (from, to) = if at.is_multiple_of(2) { (None, Some(WEB)) } else { (Some(WEB), None) };
    let (core, mode, reason) = (CoreId(1), CoreMode::Kernel, Reason::HandedOver);
    let decision = CoreDecision { core, from, to, mode, reason };
    DecisionUpdate { at_ns: Nanos(at), decision }
}

fn next(subscription: &mut Subscription) -> Update {
    subscription.next_update().unwrap().expect("a line in time")
}

#[test]
fn a_stopped_subscriber_loses_only_its_own_lines() {
    const FIRST: u64 = 2_000;
    const END: u64 = FIRST + 40_000;
    let mut scene = Scene::new();
    let mut stopped = scene.subscribe().unwrap();
    let mut reading = scene.subscribe().unwrap();
    for subscription in [&mut stopped, &mut reading] {
        assert_eq!(next(subscription), Update::Task(task(WEB, "web", &[7])));
    }
    // More than its socket and its queue hold, in parts that the ring holds.
    for batch in (FIRST..END).step_by(RING_RECORDS / 2) {
        let batch = batch..(batch + RING_RECORDS as u64 / 2).min(END);
        batch.clone().for_each(|at| scene.writer.push(Record::Decision(decision(at))));
        for at in batch {
            assert_eq!(next(&mut reading), Update::Decision(decision(at)));
        }
    }
    let mut expected = FIRST;
    let lost = loop {
        match next(&mut stopped) {
            Update::Decision(made) => {
                assert_eq!(made, decision(expected));
                expected += 1;
            }
            Update::Lost(lost) => break lost,
            other => panic!("{other:?}"),
        }
    };
    assert!(lost.count > 0);
    assert_eq!(expected + lost.count, END);
    assert_eq!(next(&mut stopped), Update::Task(task(WEB, "web", &[7])));
    let Update::Core(core) = next(&mut stopped) else { panic!("no state after a loss") };
    assert_eq!((core.at_ns, core.owner), (Nanos(END - 1), decision(END - 1).decision.to));
    scene.writer.push(Record::Decision(decision(END)));
    for subscription in [&mut stopped, &mut reading] {
        assert_eq!(next(subscription), Update::Decision(decision(END)));
    }
}

#[test]
fn the_last_lines_reach_every_subscriber_before_the_server_has_settled() {
    // As many as its socket holds: they are read later.
    const LINES: u64 = 50;
    let mut scene = Scene::new();
    let mut subscriptions = [scene.subscribe().unwrap(), scene.subscribe().unwrap()];
    for subscription in &mut subscriptions {
        assert!(matches!(next(subscription), Update::Task(_)));
    }
    (0..LINES).for_each(|at| scene.writer.push(Record::Decision(decision(2_000 + at))));
    // The scheduler thread ends, without a word to the hub.
    drop(scene.writer);
    let clients = scene.server.close();
    // A busy host may need longer than a daemon waits.
    while !clients.settle() {}
    for subscription in &mut subscriptions {
        for at in 0..LINES {
            assert_eq!(next(subscription), Update::Decision(decision(2_000 + at)));
        }
        assert!(subscription.next_update().is_err(), "that is the end");
    }
}

#[test]
fn a_full_ring_counts_what_it_loses_for_all() {
    const COUNT: u64 = 3 * RING_RECORDS as u64;
    let mut scene = Scene::new();
    let mut subscriptions = [scene.subscribe().unwrap(), scene.subscribe().unwrap()];
    for subscription in &mut subscriptions {
        assert!(matches!(next(subscription), Update::Task(_)));
    }
    (0..COUNT).for_each(|at| scene.writer.push(Record::Decision(decision(2_000 + at))));
    for subscription in &mut subscriptions {
        let (mut seen, mut lost) = (0, 0);
        while seen + lost < COUNT {
            match next(subscription) {
                Update::Decision(_) => seen += 1,
                Update::Lost(told) => lost += told.count,
                Update::Task(_) | Update::Core(_) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(seen + lost, COUNT);
        assert!(lost > 0);
    }
}

#[test]
fn tasks_are_told_before_decisions_that_name_them() {
    let mut scene = Scene::new();
    let mut subscription = scene.subscribe().unwrap();
    assert!(matches!(next(&mut subscription), Update::Task(_)));
    let batch = TaskId { index: 1, generation: 0 };
    scene.state.lock().unwrap().tasks = vec![task(batch, "batch", &[8])];
    scene.writer.push(Record::Tasks(Nanos(2_000)));
    let cores = CoreSet::of(CoreId(1));
    let planned =
        PlanAffinity { at_ns: Nanos(2_001), task: batch, cores, reason: TaskReason::Guest };
    scene.writer.push(Record::Affinity(planned));
    let joined = TaskUpdate { at_ns: Nanos(2_000), ..task(batch, "batch", &[8]) };
    assert_eq!(next(&mut subscription), Update::Task(joined.clone()));
    let left = next(&mut subscription);
    assert!(matches!(left, Update::TaskLeft(left) if left.id == WEB), "{left:?}");
    assert_eq!(next(&mut subscription), Update::PlanAffinity(planned));
    // Threads that came are found by a question of their own.
    scene.state.lock().unwrap().tasks[0].processes.push(9);
    scene.writer.note_threads();
    let grown = next(&mut subscription);
    assert!(matches!(&grown, Update::Task(grown) if grown.processes == [8, 9]), "{grown:?}");
    let mut later = scene.subscribe().unwrap();
    assert_eq!(next(&mut later), grown);
    assert_eq!(next(&mut later), Update::PlanAffinity(planned));
}

#[test]
fn nothing_is_wanted_once_the_last_subscriber_is_gone() {
    let mut scene = Scene::new();
    assert!(!scene.writer.is_wanted());
    let mut subscription = scene.subscribe().unwrap();
    assert!(matches!(next(&mut subscription), Update::Task(_)));
    assert!(scene.writer.is_wanted());
    drop(subscription);
    while scene.writer.is_wanted() {
        std::thread::sleep(LOOK);
    }
    // What is pushed late is part of the state that the next one gets.
    scene.writer.push(Record::Decision(decision(900)));
    let mut next_one = scene.subscribe().unwrap();
    assert!(matches!(next(&mut next_one), Update::Task(_)));
    scene.writer.push(Record::Decision(decision(1_001)));
    assert_eq!(next(&mut next_one), Update::Decision(decision(1_001)));
}

#[test]
fn a_subscriber_too_many_is_refused_and_calls_are_not() {
    let scene = Scene::new();
    let held: Vec<_> = (0..SUBSCRIBERS_MAX).map(|_| scene.subscribe().unwrap()).collect();
    let refused = scene.subscribe().unwrap_err().to_string();
    assert!(refused.contains("subscribed already"), "{refused}");
    let mut client = quell_control::client::Client::connect(&scene.path).unwrap();
    assert!(client.call(quell_control::protocol::Method::Schema).is_ok());
    drop(held);
}
