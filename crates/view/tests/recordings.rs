//! What the exact tiles of recordings hold: sums of each core, and a digest of every change, wait, mark and move.
//!
//! The digests do not depend on where tiles begin, on their packing or on the numbering of threads.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../trace/tests/recorded/mod.rs"]
mod recorded;
mod tiles;

use std::collections::BTreeMap;

use quell_model::{
    CoreId, Event, GroupKind, Meta, Nanos, Pass, PassEntry, PassGroup, PassOutcome, Skipped, What,
};
use quell_trace::host::{HostState, WastedSplit, WastedTime};
use quell_trace::perfetto::Writer;
use quell_trace::stream::Sink as _;
use quell_view::synthetic::Synthetic;
use quell_view::{ALLOWED, Builder, IdleEpisode, LOST, OFFLINE, Picture, Range, WASTED};
use serde::Serialize;

use crate::recorded::Recording;
use crate::tiles::{Content, Series, Threads, TilePass};

/// Spans of wasted time that are listed.
const LISTED: usize = 10;

/// What a picture holds, in nanoseconds since the first event.
#[derive(Serialize)]
struct Expected {
    span_ns: u64,
    events: u64,
    wasted_ns: u64,
    allowed_ns: u64,
    moves: u64,
    bad_wakeups: u64,
    episodes: usize,
    findings: Vec<IdleEpisode>,
    notes: Notes,
    threads: ThreadSums,
    cores: BTreeMap<CoreId, CoreSums>,
    /// Spans in which a core is marked as wasted: how many, and the first of them as (core, from, to).
    wasted_spans: usize,
    first_wasted: Vec<(CoreId, u64, u64)>,
    digests: BTreeMap<&'static str, String>,
}

/// Texts of the recording.
#[derive(Default, Serialize)]
struct Notes {
    decisions: usize,
    violations: usize,
    digest: String,
}

/// All threads.
#[derive(Serialize)]
struct ThreadSums {
    count: usize,
    ran_ns: u64,
    waited_ns: u64,
    wakeups: u64,
    latency_max_ns: u64,
    digest: String,
}

/// One core. The sums are of a value times the nanoseconds for which it held.
#[derive(Default, Serialize)]
struct CoreSums {
    size_ns: u64,
    size_max: u64,
    load_ns: u64,
    busy_ns: u64,
    runs: usize,
    wasted_ns: u64,
    allowed_ns: u64,
    lost_ns: u64,
    offline_ns: u64,
    waits: usize,
    waited_ns: u64,
}

#[test]
fn recordings_view_matches_expected() {
    recorded::expect("view", report);
}

/// The marked cores are those that [`WastedTime`] matches, for as long: sums are equal to the nanosecond.
#[test]
fn marks_of_recordings_sum_up_to_wasted_time() {
    for recording in recorded::all() {
        let mut source = recording.open();
        let meta = source.meta().clone();
        let events: Vec<Event> = (&mut source).map(Result::unwrap).collect();
        assert_marks_sum_up(&recording.name, &meta, &events);
    }
}

/// As on recordings, with losses and violations at random.
#[test]
fn marks_of_random_traces_sum_up_to_wasted_time() {
    for seed in 0..60 {
        let (nodes, cores_per_node) = (1 + seed as u16 % 3, 1 + seed as u16 % 5);
        let synthetic = Synthetic { nodes, cores_per_node, threads: 20, events: 2_000, seed };
        let events: Vec<Event> = synthetic.events().collect();
        assert_marks_sum_up(&format!("seed {seed}"), &synthetic.meta().unwrap(), &events);
    }
}

fn assert_marks_sum_up(name: &str, meta: &Meta, events: &[Event]) {
    let (mut host, mut wasted) = (HostState::new(meta), WastedTime::default());
    let mut builder = Builder::new(meta.clone(), Range::ALL).unwrap();
    let mut last = Nanos::ZERO;
    for event in events {
        last = last.max(event.at);
        wasted.advance(&host, event.at);
        host.push(event, &mut ());
        builder.push(event).unwrap();
    }
    wasted.advance(&host, last);
    let WastedSplit { wasted, allowed_by_policy, .. } = wasted.total();
    let index = builder.finish().unwrap().index;
    assert_eq!(index.wasted_ns, wasted.thread_ns, "{name}: wasted");
    assert_eq!(index.allowed_ns, allowed_by_policy.thread_ns, "{name}: allowed by policy");
}

/// Recordings differ: equal digests of two of them would mean that digests hide differences.
#[test]
fn expected_digests_of_recordings_differ() {
    let mut known = BTreeMap::new();
    for recording in recorded::all() {
        let path = recorded::directory().join(format!("{}.view.json", recording.name));
        let expected = std::fs::read_to_string(path).unwrap();
        let expected: serde_json::Value = serde_json::from_str(&expected).unwrap();
        let other = known.insert(expected["digests"].to_string(), recording.name.clone());
        assert_eq!(other, None, "has the digests of {}", recording.name);
    }
}

fn report(recording: &Recording) -> Expected {
    let picture = picture(recording);
    let index = &picture.index;
    let ids: Vec<CoreId> = index.meta.topology.cores().iter().map(|core| core.id).collect();
    let threads = Threads::of(&picture);
    let content = Content::of(&picture);
    let cores = (0..ids.len()).map(|core| (ids[core], core_sums(&content, core, index.span_ns)));
    let wasted = wasted_spans(&content, &ids, index.span_ns);
    let marked: u64 = wasted.iter().map(|(_, from, to)| to - from).sum();
    assert_eq!(marked, index.wasted_ns, "{}: the tiles differ from the sum", recording.name);
    let cores: BTreeMap<CoreId, CoreSums> = cores.collect();
    let allowed: u64 = cores.values().map(|sums| sums.allowed_ns).sum();
    assert_eq!(allowed, index.allowed_ns, "{}: the tiles differ from the sum", recording.name);
    Expected {
        span_ns: index.span_ns,
        events: index.events,
        wasted_ns: index.wasted_ns,
        allowed_ns: index.allowed_ns,
        moves: index.moves,
        bad_wakeups: index.bad_wakeups,
        episodes: index.episodes,
        findings: index.findings.clone(),
        notes: notes(&picture),
        threads: thread_sums(&threads),
        cores,
        wasted_spans: wasted.len(),
        first_wasted: wasted.into_iter().take(LISTED).collect(),
        digests: content.digests(&threads),
    }
}

fn picture(recording: &Recording) -> Picture {
    let mut source = recording.open();
    let mut builder = Builder::new(source.meta().clone(), Range::ALL).unwrap();
    for event in &mut source {
        builder.push(&event.unwrap()).unwrap();
    }
    builder.finish().unwrap()
}

fn core_sums(content: &Content, core: usize, end: u64) -> CoreSums {
    let spans = |series| content.spans(series, core, end);
    let weighted = |series| spans(series).map(|(from, to, value)| (to - from) * value).sum();
    let marked = |mark: u8| {
        let marks = spans(Series::Marks).filter(|(.., marks)| marks & u64::from(mark) != 0);
        marks.map(|(from, to, _)| to - from).sum()
    };
    let runs = || spans(Series::Running).filter(|(.., thread)| *thread != 0);
    let waits = || content.waits.iter().filter(|wait| wait.core == core);
    CoreSums {
        size_ns: weighted(Series::Size),
        size_max: spans(Series::Size).map(|(.., size)| size).max().unwrap_or(0),
        load_ns: weighted(Series::Load),
        busy_ns: runs().map(|(from, to, _)| to - from).sum(),
        runs: runs().count(),
        wasted_ns: marked(WASTED),
        allowed_ns: marked(ALLOWED),
        lost_ns: marked(LOST),
        offline_ns: marked(OFFLINE),
        waits: waits().count(),
        waited_ns: waits().map(|wait| wait.to - wait.from).sum(),
    }
}

/// Spans in which a core is marked as wasted, ordered by time.
fn wasted_spans(content: &Content, ids: &[CoreId], end: u64) -> Vec<(CoreId, u64, u64)> {
    let mut wasted = Vec::new();
    for (core, id) in ids.iter().enumerate() {
        let marks = content.spans(Series::Marks, core, end);
        for (from, to, _) in marks.filter(|(.., marks)| marks & u64::from(WASTED) != 0) {
            match wasted.last_mut() {
                Some((last, _, until)) if *last == *id && *until == from => *until = to,
                _ => wasted.push((*id, from, to)),
            }
        }
    }
    wasted.sort_by_key(|(core, from, _)| (*from, *core));
    wasted
}

fn notes(picture: &Picture) -> Notes {
    let mut notes = Notes::default();
    let mut digest = tiles::Digest::default();
    for note in &picture.index.notes {
        match note.kind {
            "decision" => notes.decisions += 1,
            _ => notes.violations += 1,
        }
        digest.line(format_args!("{} {} {} {}", note.at_ns, note.to_ns, note.core, note.text));
    }
    assert_eq!(picture.index.notes_left_out, 0);
    notes.digest = digest.finish();
    notes
}

fn thread_sums(threads: &Threads) -> ThreadSums {
    let people = &threads.people;
    let sum = |key: &str| people.iter().map(|one| one[key].as_u64().unwrap()).sum();
    let max = |key: &str| people.iter().map(|one| one[key].as_u64().unwrap()).max();
    ThreadSums {
        count: people.len(),
        ran_ns: sum("ran_ns"),
        waited_ns: sum("waited_ns"),
        wakeups: sum("wakeups"),
        latency_max_ns: max("latency_max_ns").unwrap_or(0),
        digest: threads.digest(),
    }
}

#[test]
fn tile_holds_passes_of_the_balancer_with_their_groups() {
    let group = |cores: &str, sum, kind| PassGroup {
        cores: cores.parse().unwrap(),
        sum,
        mean: sum / 2,
        minimum: 3,
        queued: 4,
        idle: 1,
        kind,
    };
    let pass = |core, entry, outcome, moved, groups| Pass {
        core: CoreId(core),
        level: 2,
        entry,
        groups,
        outcome,
        moved,
        skipped: Skipped { running: 5, pinned: 6, warm: 7, heavy: 8 },
    };
    let meta = Synthetic { nodes: 2, cores_per_node: 2, threads: 1, events: 0, seed: 1 };
    let groups =
        vec![group("0-1,3", 1 << 40, GroupKind::HasSpare), group("2", 10, GroupKind::Overloaded)];
    let passes = [
        pass(1, PassEntry::Nohz, PassOutcome::LocalIsBusier, 0, groups),
        pass(3, PassEntry::Active, PassOutcome::Moved, 1, Vec::new()),
    ];
    let mut builder = Builder::new(meta.meta().unwrap(), Range::ALL).unwrap();
    for (at, pass) in (0..).zip(passes) {
        let (core, what) = (pass.core, What::Pass(Box::new(pass)));
        builder.push(&Event { at: Nanos(100 + 7 * at), core, sequence: 0, what }).unwrap();
    }
    let content = Content::of(&builder.finish().unwrap());
    let groups =
        vec![(vec![0, 2, 1, 1], [1 << 40, 1 << 39, 3, 4, 1, 0]), (vec![2, 1], [10, 5, 3, 4, 1, 4])];
    let expected = [
        TilePass { at: 0, numbers: [1, 2, 1, 3, 0, 5, 6, 7, 8], groups },
        TilePass { at: 7, numbers: [3, 2, 3, 0, 1, 5, 6, 7, 8], groups: Vec::new() },
    ];
    assert_eq!(content.passes, expected);
}

/// Traces with violations and considered cores, which no recorder here makes so many of. The one of six cores has no
/// loss, so that all of it is judged.
#[test]
fn planted_recordings_are_what_synthetic_makes() {
    let many = Synthetic::paper(9_000);
    let few = Synthetic { nodes: 2, cores_per_node: 3, threads: 24, events: 16_000, seed: 2 };
    for (name, synthetic, has_losses) in
        [("planted-64-cores", many, true), ("planted-6-cores", few, false)]
    {
        let mut writer = Writer::new(Vec::new());
        writer.meta(&synthetic.meta().unwrap()).unwrap();
        let mut next = vec![0; usize::from(synthetic.nodes * synthetic.cores_per_node)];
        for mut event in synthetic.events() {
            if !has_losses {
                if matches!(event.what, What::Lost { .. }) {
                    continue;
                }
                event.sequence = next[event.core.index()];
                next[event.core.index()] += 1;
            }
            writer.event(&event).unwrap();
        }
        writer.finish().unwrap();
        recorded::expect_trace(name, &writer.into_inner());
    }
}
