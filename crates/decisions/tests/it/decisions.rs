//! What is recorded is read back and decided again exactly, and a file that is not as it was written is
//! found out and harms nobody.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::io::Cursor;

use crate::common::{Dice, Scene, host, snapshots};
use proptest::prelude::*;
use quell_decisions::{Event, Meta, *};
use quell_model::*;
use quell_policy::{Config, Host, Policy, by_name, names_for};

const ALL: Options = Options { window: Window { from: Nanos::ZERO, to: Nanos::MAX }, kept: 8 };

fn meta(host: &Host, policy: &str) -> Meta {
    Meta {
        quell: "0.0.0".to_owned(),
        policy: policy.to_owned(),
        config: Config::default(),
        topology: host.topology.clone(),
        managed: host.managed,
        caps: host.caps,
        clock: Clock { monotonic: Nanos::ZERO, unix_ns: 1_700_000_000_000_000_000 },
    }
}

/// Decides all Snapshots and records; `Decision`s as they were, and the recorder.
fn record<S: Sink>(
    host: &Host,
    name: &str,
    seen: &[Snapshot],
    begin: impl FnOnce(Meta, &dyn Policy) -> Recorder<S>,
) -> (Vec<Decision>, Recorder<S>) {
    let mut policy = by_name(name, host.clone(), Config::default()).unwrap();
    let mut recorder = begin(meta(host, name), policy.as_ref());
    let (mut plan, mut decisions) = (Plan::default(), Vec::new());
    for seen in seen {
        // The daemon's clock is read before the host is.
        let now = seen.now - Nanos(300);
        let wake = policy.decide(now, seen, &mut plan);
        recorder.record(now, seen, &plan, wake, policy.as_ref());
        decisions.push(Decision { now, seen: seen.clone(), plan: plan.clone(), wake });
    }
    (decisions, recorder)
}

fn recorded(host: &Host, name: &str, seen: &[Snapshot]) -> (Vec<Decision>, Vec<u8>) {
    let (decisions, recorder) = record(host, name, seen, Recorder::in_memory);
    (decisions, recorder.into_sink())
}

fn read(file: &[u8]) -> Result<Reader<Cursor<&[u8]>>, ReadError> {
    Reader::new(Cursor::new(file))
}

/// Reads, replays and compares, whatever the bytes. True if the file is as it was written.
fn survives(file: &[u8]) -> bool {
    let Ok(mut reader) = read(file) else { return false };
    let replayed = replay(&mut reader, ALL);
    let sound =
        reader.damage().is_empty() && replayed.is_ok_and(|replayed| replayed.differing == 0);
    let mut reader = read(file).unwrap();
    let _ = compare(&mut reader, "static", ALL);
    sound
}

fn numbers(most: usize) -> impl Strategy<Value = Vec<u16>> {
    proptest::collection::vec(any::<u16>(), 0..most)
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, cases, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn every_decision_is_read_back_and_made_again(rolls in numbers(3000)) {
        let mut dice = Dice::new(&rolls);
        let host = host(&mut dice);
        let seen = snapshots(&mut dice, &host);
        for name in names_for(&host) {
            let (decisions, file) = recorded(&host, name, &seen);
            let mut reader = read(&file).unwrap();
            prop_assert_eq!(reader.meta(), &meta(&host, name));
            let mut found = Vec::new();
            while let Some(event) = reader.next() {
                if event == Event::Decision {
                    found.push(reader.decision().clone());
                }
            }
            prop_assert_eq!(&found, &decisions);
            let replayed = replay(&mut read(&file).unwrap(), ALL).unwrap();
            prop_assert_eq!(replayed.decisions, decisions.len() as u64);
            prop_assert_eq!((replayed.differing, replayed.lost, replayed.breaks), (0, 0, 0));
        }
    }

    #[test]
    fn one_changed_byte_is_found(
        rolls in numbers(600),
        at in any::<prop::sample::Index>(),
        flip in 1u8..,
    ) {
        let mut dice = Dice::new(&rolls);
        let host = host(&mut dice);
        let seen = snapshots(&mut dice, &host);
        let (_, mut file) = recorded(&host, "quell", &seen);
        let at = at.index(file.len());
        file[at] ^= flip;
        prop_assert!(!survives(&file), "byte {at} of {}", file.len());
    }

    #[test]
    fn no_file_makes_a_reader_panic(
        rolls in numbers(600),
        cuts in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..40, proptest::collection::vec(any::<u8>(), 0..40)), 1..6),
    ) {
        let mut dice = Dice::new(&rolls);
        let host = host(&mut dice);
        let seen = snapshots(&mut dice, &host);
        let (_, mut file) = recorded(&host, "quell", &seen);
        for (at, removed, put) in cuts {
            let at = at.index(file.len());
            let end = (at + removed).min(file.len());
            file.splice(at..end, put);
        }
        survives(&file);
    }

    #[test]
    fn what_a_slow_writer_loses_is_counted_and_the_rest_is_exact(
        rolls in numbers(3000),
        refuses in numbers(40),
    ) {
        let mut dice = Dice::new(&rolls);
        let host = host(&mut dice);
        let seen = snapshots(&mut dice, &host);
        let begin = |meta: Meta, policy: &dyn Policy| {
            let file = Recorder::in_memory(meta.clone(), policy).into_sink();
            let slow = Slow { file: file[..28].to_vec(), refuses: refuses.clone() };
            Recorder::new(slow, meta, None, policy)
        };
        let (decisions, recorder) = record(&host, "quell", &seen, begin);
        let counts = recorder.counts();
        prop_assert_eq!(counts.recorded + counts.lost, decisions.len() as u64);
        let file = recorder.into_sink().file;
        if counts.recorded > 0 {
            let mut reader = read(&file).unwrap();
            let replayed = replay(&mut reader, ALL).unwrap();
            prop_assert_eq!((replayed.decisions, replayed.differing), (counts.recorded, 0));
            prop_assert!(replayed.lost <= counts.lost && reader.damage().is_empty());
        }
    }
}

/// A sink that now and then has no room.
struct Slow {
    file: Vec<u8>,
    refuses: Vec<u16>,
}

impl Sink for Slow {
    fn room(&self) -> usize {
        usize::MAX
    }

    fn offer(&mut self, frames: &[u8]) -> bool {
        if self.refuses.pop().is_some_and(|roll| roll % 3 == 0) {
            return false;
        }
        self.file.offer(frames)
    }
}

/// A busy host: demand changes at each tick.
fn busy(ticks: u64) -> (Host, Vec<Snapshot>) {
    let mut scene = Scene::new(4, 2, true);
    let ids = [scene.lc(1, 4), scene.lc(1, 8), scene.be(8), scene.be(8)];
    let mut seen = Vec::new();
    for tick in 0..ticks {
        scene.seen.now += Nanos::from_millis(1);
        for (at, id) in ids.into_iter().enumerate() {
            let roll = tick.wrapping_mul(2_654_435_761).wrapping_add(at as u64 * 40_503) >> 7;
            scene.demand(id, (roll % 3) as u32, (roll / 3 % 3) as u32);
        }
        seen.push(scene.seen.clone());
    }
    (scene.host, seen)
}

#[test]
fn a_changed_decision_is_told_with_its_time_and_core() {
    let (host, seen) = busy(200);
    let mut policy = by_name("quell", host.clone(), Config::default()).unwrap();
    let mut recorder = Recorder::in_memory(meta(&host, "quell"), policy.as_ref());
    recorder.name(TaskId { index: 0, generation: 0 }, "web");
    let mut plan = Plan::default();
    for (tick, seen) in seen.iter().enumerate() {
        let wake = policy.decide(seen.now, seen, &mut plan);
        let mut told = plan.clone();
        if tick == 100 {
            told.cores[2].owner = Some(TaskId { index: 0, generation: 0 });
            told.cores[2].reason = Reason::Refused(7);
        }
        recorder.record(seen.now, seen, &told, wake, policy.as_ref());
    }
    let file = recorder.into_sink();
    let replayed = replay(&mut read(&file).unwrap(), ALL).unwrap();
    assert_eq!((replayed.decisions, replayed.differing), (200, 1));
    let difference = &replayed.differences[0];
    assert_eq!(difference.after, Nanos::from_millis(100));
    assert_eq!(difference.what.len(), 1);
    assert!(
        difference.what[0].starts_with(
            "core 2: recorded web's (kernel, the host refused it (errno 7)); replayed"
        )
    );
    let before =
        Options { window: Window { to: Nanos::from_millis(99), ..Window::default() }, kept: 1 };
    let replayed = replay(&mut read(&file).unwrap(), before).unwrap();
    assert_eq!((replayed.decisions, replayed.differing), (100, 0));
}

#[test]
fn another_policy_is_compared_over_time() {
    let (host, seen) = busy(500);
    let (_, file) = recorded(&host, "quell", &seen);
    let other = compare(&mut read(&file).unwrap(), "static", ALL).unwrap();
    assert_eq!((other.decisions, other.compared), (500, Nanos::from_millis(499)));
    assert!(other.differing > 0 && other.differed > Nanos::ZERO && !other.differences.is_empty());
    assert!(other.cores.iter().any(|core| core.other_owner > Nanos::ZERO));
    assert!(other.tasks.iter().any(|task| task.recorded != task.other));
    let same = compare(&mut read(&file).unwrap(), "quell", ALL).unwrap();
    assert_eq!((same.differing, same.differed), (0, Nanos::ZERO));
    assert!(same.tasks.iter().all(|task| task.recorded == task.other));
    assert!(compare(&mut read(&file).unwrap(), "nobody", ALL).is_err());
}

/// Records through the writer thread into a file.
fn spooled(
    path: &std::path::Path,
    ring: Option<u64>,
    host: &Host,
    seen: &[Snapshot],
) -> Vec<Decision> {
    let file = NewFile::create(path, ring).unwrap();
    let segment = file.segment_bytes();
    let (sink, spool) = file.start().unwrap();
    let begin = |meta: Meta, policy: &dyn Policy| Recorder::new(sink, meta, segment, policy);
    let (decisions, recorder) = record(host, "quell", seen, begin);
    assert_eq!(recorder.counts(), Counts { recorded: seen.len() as u64, lost: 0 });
    drop(recorder);
    spool.finish().unwrap();
    decisions
}

#[test]
fn a_ring_keeps_the_newest_decisions_within_its_size() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ring");
    let (host, seen) = busy(60_000);
    let decisions = spooled(&path, Some(RING_MIN), &host, &seen);
    assert!(std::fs::metadata(&path).unwrap().len() <= RING_MIN);
    let mut reader = Reader::open(&path).unwrap();
    let replayed = replay(&mut reader, ALL).unwrap();
    assert_eq!((replayed.differing, replayed.lost, replayed.breaks), (0, 0, 0));
    assert!(reader.damage().is_empty(), "{:?}", reader.damage());
    assert_eq!(reader.extent().segments, 16);
    assert!(reader.extent().bytes > RING_MIN * 3 / 4, "{:?}", reader.extent());
    assert!(replayed.decisions < 60_000, "an older one was overwritten");
    assert_eq!(Some(reader.decision()), decisions.last());

    let mut bytes = std::fs::read(&path).unwrap();
    // In the first half of the eighth of sixteen slots; the end of one is unused.
    let within = bytes.len() / 16 * 7 + bytes.len() / 48;
    bytes[within] ^= 1;
    let mut reader = read(&bytes).unwrap();
    let damaged = replay(&mut reader, ALL).unwrap();
    assert_eq!(reader.damage().len(), 1);
    assert_eq!(
        (damaged.differing, damaged.breaks),
        (0, 1),
        "the other segments are as good as before"
    );
    assert!(
        damaged.decisions < replayed.decisions && damaged.decisions > replayed.decisions * 7 / 8
    );
}

#[test]
fn a_file_of_another_kind_is_never_overwritten_and_a_recording_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("it");
    std::fs::write(&path, "precious").unwrap();
    let refused = NewFile::create(&path, None).err().unwrap().to_string();
    assert!(refused.contains("exists and is not a recording"), "{refused}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    std::fs::remove_file(&path).unwrap();
    let (host, seen) = busy(10);
    spooled(&path, None, &host, &seen);
    let first = std::fs::read(&path).unwrap();
    spooled(&path, None, &host, &seen[..5]);
    assert_eq!(std::fs::read(dir.path().join("it.old")).unwrap(), first);
    assert!(matches!(NewFile::create(&path, Some(1)), Err(SpoolError::RingTooSmall(1))));
}
