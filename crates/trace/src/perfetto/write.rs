//! Writes a trace.

use std::collections::HashMap;
use std::io::{self, Write};
use std::mem;

use prost::Message;
use prost::bytes::Bytes;
use quell_model::{
    Activity, CoreId, CoreSet, Event, Keyframe, Meta, Nanos, PassGroup, Runner, TaskNames,
    ThreadName, What,
};

use super::balance::Counts;
use super::convert::{Shape, Track, shape, shown};
use super::direct::{self, Place};
use super::wire::{self, *};
use super::{GROUP_EVENTS, balance, keyframe, violation};
use crate::stream::{Sink, stranger};

/// Bytes of a group from which on it is closed: with the largest event more, it still fits into packets.
const GROUP_BYTES: usize = 2 << 20;
/// Time of a group at most, so that of a writer that is killed little is missing.
const GROUP_TIME: Nanos = Nanos::from_millis(250);
/// Threads that the writer remembers to have described.
const KNOWN_MAX: usize = 65_536;
/// The only writer of the trace.
pub const SEQUENCE: u32 = 1;

/// Threads that the writer finds without a look into its table.
const RECENT: usize = 256;
/// Bytes of a core's chain that are kept for the next group.
const CHAIN_KEPT: usize = 64 << 10;

/// Writes a trace as a Perfetto file. Holds back one group of events: at most 16,384, a quarter of a second, or
/// some 2 MB.
pub struct Writer<W: Write> {
    out: W,
    opening: Option<Opening>,
    group: Group,
    /// Who has each core, by its position in the topology.
    running: Vec<Option<Runner>>,
    /// Threads that were described: their process and name.
    known: HashMap<i32, (i32, ThreadName)>,
    /// Some of these, by the last bits of their number.
    recent: Vec<Option<(i32, i32, ThreadName)>>,
    /// Threads to describe with this group.
    news: ProcessTree,
    /// Tasks that events introduced, for titles.
    tasks: TaskNames,
    /// Whether a segment was opened.
    is_open: bool,
}

/// What each segment opens with.
struct Opening {
    meta: Meta,
    cores: CoreSet,
    json: Bytes,
    tracks: Vec<u8>,
}

/// The events since the last one was written.
#[derive(Default)]
struct Group {
    events: u32,
    bytes: usize,
    began: Nanos,
    /// By the core's position.
    bundles: Vec<Chain>,
    others: Chain,
    /// The sequence number that each core's next event has if none is missing.
    expected: Vec<Option<u64>>,
    /// Cores that lost events.
    lost: Vec<bool>,
    /// Of its domain trees and passes.
    counts: Counts,
}

/// Events that lie one behind the other in the file.
#[derive(Clone, Default)]
struct Chain {
    bytes: Vec<u8>,
    /// How many events of the group there are up to its last one.
    reach: u32,
}

impl<W: Write> Writer<W> {
    /// Writes to `out`, in pieces of whole groups.
    pub fn new(out: W) -> Writer<W> {
        Writer {
            out,
            opening: None,
            group: Group::default(),
            running: Vec::new(),
            known: HashMap::new(),
            recent: vec![None; RECENT],
            news: ProcessTree::default(),
            tasks: TaskNames::default(),
            is_open: false,
        }
    }

    /// What was written to. What was not finished is lost.
    pub fn into_inner(self) -> W {
        self.out
    }

    /// What is written to: to see how much it has.
    pub fn get_ref(&self) -> &W {
        &self.out
    }

    fn opening(&self) -> io::Result<&Opening> {
        self.opening.as_ref().ok_or_else(|| invalid("an event before the trace's Meta"))
    }

    fn position(&self, core: CoreId) -> io::Result<usize> {
        self.opening()?.meta.topology.position(core).ok_or_else(|| unknown(core))
    }

    /// Writes what a segment opens with.
    fn open_segment(&mut self, at: Nanos) -> io::Result<()> {
        let opening = self.opening()?;
        let mut out = Vec::new();
        put(
            &mut out,
            Packet {
                synchronization_marker: Some(Bytes::from_static(&SYNC_MARKER)),
                ..sequenced()
            },
        );
        put(
            &mut out,
            Packet {
                clock_snapshot: packed(&clocks(at, opening.meta.wall_offset_ns)),
                ..sequenced()
            },
        );
        put(
            &mut out,
            Packet {
                private: Some(Private {
                    content: Some(Content::Meta(opening.json.clone())),
                    ..Private::default()
                }),
                sequence_flags: Some(STATE_CLEARED),
                ..timed(at)
            },
        );
        out.extend_from_slice(&opening.tracks);
        self.out.write_all(&out)?;
        self.forget_threads();
        self.is_open = true;
        Ok(())
    }

    /// Closes the group, and writes it.
    fn flush(&mut self) -> io::Result<()> {
        if self.group.events == 0 {
            return Ok(());
        }
        let news = mem::take(&mut self.news);
        let of_others = self.group.others.bytes.len();
        let size = self.group.bytes - of_others + news.encoded_len() + 4096;
        let out = &mut Vec::with_capacity(size);
        put(
            out,
            Packet {
                private: Some(Private { group: Some(self.group.events), ..Private::default() }),
                ..timed(self.group.began)
            },
        );
        if !news.threads.is_empty() || !news.processes.is_empty() {
            put(out, Packet { process_tree: packed(&news), ..timed(self.group.began) });
        }
        let cores = self.opening.as_ref().map(|opening| opening.meta.topology.cores());
        let chains = self.group.bundles.iter().zip(&self.group.lost);
        for (core, (chain, lost)) in cores.unwrap_or_default().iter().zip(chains) {
            if !chain.bytes.is_empty() || *lost {
                let head = BundleHead {
                    cpu: Some(u32::from(core.id.0)),
                    lost_events: lost.then_some(true),
                };
                direct::put_bundle(out, &head.encode_to_vec(), &chain.bytes);
            }
        }
        let written = self.out.write_all(out);
        let written = written.and_then(|()| self.out.write_all(&self.group.others.bytes));
        self.group.clear();
        written
    }

    /// Threads are described again from now on.
    fn forget_threads(&mut self) {
        self.known.clear();
        self.recent.fill(None);
    }

    /// Tells Perfetto who a thread is.
    fn introduce(&mut self, thread: &Runner) {
        let now = (thread.process, thread.name);
        let recent = thread.thread as u32 as usize % RECENT;
        let known = Some((thread.thread, thread.process, thread.name));
        if thread.thread == 0 || self.recent[recent] == known {
            return;
        }
        if self.known.get(&thread.thread) == Some(&now) {
            self.recent[recent] = known;
            return;
        }
        if self.known.len() >= KNOWN_MAX {
            self.forget_threads();
        }
        self.recent[recent] = known;
        self.known.insert(thread.thread, now);
        let name = shown(&thread.name).into_owned();
        if thread.process == thread.thread {
            let process = Process { pid: Some(thread.process), cmdline: vec![name.clone()] };
            self.news.processes.push(process);
        }
        self.news.threads.push(Thread {
            tid: Some(thread.thread),
            name: Some(name),
            tgid: Some(thread.process),
        });
    }

    /// Follows who has the cores, for Perfetto's fields.
    fn follow(&mut self, at: usize, what: &What) -> io::Result<()> {
        match what {
            What::Switch { next, .. } => {
                self.introduce(next);
                self.running[at] = Some(*next);
            }
            What::Waking { thread, .. }
            | What::Woken { thread, .. }
            | What::Exec { thread }
            | What::Fork { child: thread, .. } => self.introduce(thread),
            What::Keyframe(keyframe) => {
                self.running.fill(None);
                for thread in &keyframe.threads {
                    self.introduce(&thread.thread);
                    if thread.state == Activity::Running {
                        let at = self.position(thread.core)?;
                        self.running[at] = Some(thread.thread);
                    }
                }
            }
            What::Lost { .. } => {
                self.running[at] = None;
                self.group.lost[at] = true;
            }
            _ => {}
        }
        Ok(())
    }
}

impl Group {
    /// An empty one for so many cores.
    fn of(cores: usize) -> Group {
        Group {
            bundles: vec![Chain::default(); cores],
            expected: vec![None; cores],
            lost: vec![false; cores],
            ..Group::default()
        }
    }

    /// No events any more; the next group is about as large.
    fn clear(&mut self) {
        let chains = self.bundles.iter_mut().map(|chain| (chain, CHAIN_KEPT));
        for (chain, kept) in chains.chain([(&mut self.others, 2 * GROUP_BYTES)]) {
            chain.bytes.clear();
            chain.bytes.shrink_to(kept);
            chain.reach = 0;
        }
        self.expected.fill(None);
        self.lost.fill(false);
        (self.events, self.bytes, self.counts) = (0, 0, Counts::default());
        self.began = Nanos::ZERO;
    }

    /// Puts an event behind the others.
    fn push(&mut self, event: &Event, at: usize, ran: Option<&Runner>, tasks: &TaskNames) {
        let sequence = self.sequence(event, at);
        let before = self.bytes_at(at);
        match direct::is_bundled(&event.what, ran) {
            Some(is_bundled) => {
                let position = self.events;
                let chain = if is_bundled { &mut self.bundles[at] } else { &mut self.others };
                let place = Place { skip: chain.skip(position), sequence };
                direct::put(&mut chain.bytes, event, ran, place);
            }
            None => self.push_message(event, (at, sequence), ran, tasks),
        }
        self.bytes += self.bytes_at(at) - before;
        self.counts = self.counts.with(&event.what).unwrap_or_default();
        self.events += 1;
    }

    /// The sequence number of an event, if it is not the expected one.
    fn sequence(&mut self, event: &Event, at: usize) -> Option<u64> {
        let expected = self.expected[at].replace(event.sequence.wrapping_add(1));
        (expected != Some(event.sequence)).then_some(event.sequence)
    }

    /// Bytes of the chains to which an event of a core may be added.
    fn bytes_at(&self, at: usize) -> usize {
        self.bundles[at].bytes.len() + self.others.bytes.len()
    }

    /// Adds an event, which has this sequence number if it is not the expected one, as a message.
    fn push_message(
        &mut self,
        event: &Event,
        (at, sequence): (usize, Option<u64>),
        ran: Option<&Runner>,
        tasks: &TaskNames,
    ) {
        let mut private = Private { sequence, ..Private::default() };
        let shape = shape(&event.what, ran, tasks, &mut private);
        let chain = match shape {
            Some(Shape::Ftrace(_)) => &mut self.bundles[at],
            _ => &mut self.others,
        };
        private.skip = chain.skip(self.events);
        match shape {
            Some(Shape::Ftrace(kind)) => {
                let pid = match (&event.what, ran) {
                    (What::Waking { by, .. }, _) => *by,
                    (What::Switch { left, .. }, _) => *left,
                    (What::Exec { thread }, _) => thread.thread,
                    (What::Exit { thread }, _) => *thread,
                    (What::Fork { parent, .. }, _) => *parent,
                    (_, ran) => ran.map_or(0, |ran| ran.thread),
                };
                let message = FtraceEvent {
                    timestamp: Some(event.at.0),
                    pid: Some(pid as u32),
                    event: Some(kind),
                    private: (private != Private::default()).then_some(private),
                };
                put_field(&mut chain.bytes, BUNDLE_EVENT_TAG, &message);
            }
            Some(Shape::Track(message)) => {
                private.core = Some(u32::from(event.core.0));
                put(
                    &mut chain.bytes,
                    Packet {
                        track_event: packed(&message),
                        private: Some(private),
                        ..timed(event.at)
                    },
                );
            }
            None => {
                private.core = Some(u32::from(event.core.0));
                match &event.what {
                    What::Keyframe(keyframe) => {
                        put_keyframe(&mut chain.bytes, keyframe, event.at, private);
                    }
                    What::Violation(told) => {
                        let packets = violation::packets(event, told, private);
                        packets.into_iter().for_each(|packet| put(&mut chain.bytes, packet));
                    }
                    _ => {}
                }
            }
        }
    }
}

impl Chain {
    /// The next event is the one at this position of the group: how many others lie between it and the last one.
    fn skip(&mut self, position: u32) -> Option<u32> {
        let skip = position - std::mem::replace(&mut self.reach, position + 1);
        Some(skip).filter(|skip| *skip > 0)
    }
}

impl<W: Write> Sink for Writer<W> {
    fn meta(&mut self, meta: &Meta) -> io::Result<()> {
        if self.opening.is_some() {
            return Err(invalid("a second Meta"));
        }
        let json = Bytes::from(serde_json::to_vec(meta)?);
        let mut tracks = Vec::new();
        describe_tracks(&mut tracks, meta);
        self.running = vec![None; meta.topology.len()];
        self.group = Group::of(meta.topology.len());
        let cores = meta.topology.all();
        self.opening = Some(Opening { meta: meta.clone(), cores, json, tracks });
        Ok(())
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        let at = self.position(event.core)?;
        let opening = self.opening()?;
        let knows = |group: &PassGroup| group.cores.is_subset(&opening.cores);
        let is_known = match &event.what {
            What::Pass(pass) => opening.cores.contains(pass.core) && pass.groups.iter().all(knows),
            _ => false,
        };
        if !is_known && let Some(core) = stranger(&event.what, &opening.meta.topology) {
            return Err(unknown(core));
        }
        let are_domains = matches!(event.what, What::Domains(_));
        if let What::Domains(trees) = &event.what {
            balance::check_trees(trees)?;
        }
        let is_keyframe = matches!(event.what, What::Keyframe(_));
        if is_keyframe
            || self.group.events >= GROUP_EVENTS
            || self.group.bytes >= GROUP_BYTES
            || event.at.since(self.group.began) >= GROUP_TIME
            || self.group.counts.with(&event.what).is_none()
        {
            self.flush()?;
        }
        if is_keyframe || !self.is_open {
            self.open_segment(event.at)?;
        }
        if self.group.events == 0 {
            self.group.began = event.at;
        }
        let ran = self.running[at];
        self.follow(at, &event.what)?;
        self.tasks.take(&event.what);
        self.group.push(event, at, ran.as_ref(), &self.tasks);
        // A reader refuses a group of events with more domains, or more of their groups, than the largest trees have.
        if are_domains { self.flush() } else { Ok(()) }
    }

    fn finish(&mut self) -> io::Result<()> {
        if !self.is_open {
            self.open_segment(Nanos::ZERO)?;
        }
        self.flush()?;
        self.out.flush()
    }
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.into())
}

fn unknown(core: CoreId) -> io::Error {
    invalid(format!("core {core} is not in the topology that the trace began with"))
}

/// A packet of the trace's only sequence.
pub fn sequenced() -> Packet {
    Packet { trusted_packet_sequence_id: Some(SEQUENCE), ..Packet::default() }
}

pub fn timed(at: Nanos) -> Packet {
    Packet { timestamp: Some(at.0), timestamp_clock_id: Some(MONOTONIC), ..sequenced() }
}

pub fn packed(message: &impl Message) -> Option<Bytes> {
    Some(bytes(message))
}

pub fn bytes(message: &impl Message) -> Bytes {
    Bytes::from(message.encode_to_vec())
}

/// Appends a packet.
fn put(out: &mut Vec<u8>, packet: Packet) {
    put_field(out, PACKET_TAG, &packet);
}

#[expect(clippy::expect_used, reason = "a vector takes whatever it is given")]
fn put_field(out: &mut Vec<u8>, tag: u8, message: &impl Message) {
    out.push(tag);
    message.encode_length_delimited(out).expect("a vector grows");
}

fn put_keyframe(out: &mut Vec<u8>, keyframe: &Keyframe, at: Nanos, first: Private) {
    let parts = keyframe::parts(keyframe);
    let last = parts.len() - 1;
    let mut private = Some(first);
    for (part, bytes) in parts.into_iter().enumerate() {
        let private = Private {
            content: Some(Content::Keyframe(bytes)),
            more: (part < last).then_some(true),
            ..private.take().unwrap_or_default()
        };
        let instant = TrackEvent {
            r#type: Some(INSTANT),
            track_uuid: Some(Track::Keyframes.uuid(None)),
            name: Some("keyframe".to_owned()),
            ..TrackEvent::default()
        };
        let track_event = (part == 0).then(|| packed(&instant)).flatten();
        put(out, Packet { track_event, private: Some(private), ..timed(at) });
    }
}

/// Perfetto files ftrace events under BOOTTIME and wants to know how the clocks stand to each other. Time that the
/// host slept is in none of ours, so BOOTTIME is told to be MONOTONIC.
fn clocks(at: Nanos, wall_offset_ns: i64) -> ClockSnapshot {
    let clock =
        |clock_id, timestamp| wire::Clock { clock_id: Some(clock_id), timestamp: Some(timestamp) };
    let mut clocks = vec![clock(MONOTONIC, at.0), clock(BOOTTIME, at.0)];
    if wall_offset_ns != 0 {
        clocks.push(clock(REALTIME, at.0.saturating_add_signed(wall_offset_ns)));
    }
    ClockSnapshot { clocks, primary_trace_clock: Some(MONOTONIC) }
}

fn describe_tracks(out: &mut Vec<u8>, meta: &Meta) {
    for (rank, (track, name)) in Track::ALL.into_iter().enumerate() {
        let descriptor = TrackDescriptor {
            uuid: Some(track.uuid(None)),
            name: Some(name.to_owned()),
            child_ordering: Some(3),
            sibling_order_rank: Some(rank as i32),
            ..TrackDescriptor::default()
        };
        put(out, Packet { track_descriptor: packed(&descriptor), ..sequenced() });
        if !matches!(track, Track::Queue | Track::Load) {
            continue;
        }
        for core in meta.topology.cores() {
            let descriptor = TrackDescriptor {
                uuid: Some(track.uuid(Some(core.id.0))),
                name: Some(format!("core {}", core.id)),
                parent_uuid: Some(track.uuid(None)),
                counter: Some(CounterDescriptor { unit: Some(2) }),
                sibling_order_rank: Some(i32::from(core.id.0)),
                ..TrackDescriptor::default()
            };
            put(out, Packet { track_descriptor: packed(&descriptor), ..sequenced() });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::any::{CORES, any_events, any_runner};
    use super::*;

    proptest! {
        #[test]
        fn an_event_written_field_by_field_is_the_same_as_its_message(
            events in any_events(),
            ran in vec(proptest::option::of(any_runner()), CORES as usize),
        ) {
            let tasks = TaskNames::default();
            let (mut direct, mut by_message) = (Group::of(CORES.into()), Group::of(CORES.into()));
            for event in &events {
                let at = event.core.index();
                // The thread that leaves is known most of the time.
                let ran = ran[at].map(|ran| match event.what {
                    What::Switch { left, .. } if left % 4 != 0 => Runner { thread: left, ..ran },
                    _ => ran,
                });
                direct.push(event, at, ran.as_ref(), &tasks);
                let sequence = by_message.sequence(event, at);
                by_message.push_message(event, (at, sequence), ran.as_ref(), &tasks);
                by_message.events += 1;
            }
            prop_assert_eq!(direct.others.bytes, by_message.others.bytes);
            for (ours, theirs) in direct.bundles.iter().zip(&by_message.bundles) {
                prop_assert_eq!(&ours.bytes, &theirs.bytes);
            }
        }
    }
}
