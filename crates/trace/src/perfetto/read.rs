//! Reads a trace back. Nothing in the file is trusted: lengths are bounded, numbers checked.

use std::collections::VecDeque;
use std::io::{self, BufRead, Read};

use prost::Message;
use prost::bytes::Bytes;
use quell_model::{CoreId, Event, Keyframe, Meta, Nanos, Topology, What};

use super::balance::Counts;
use super::convert::{self, Malformed};
use super::ftrace::{self, Ftraced};
use super::keyframe;
use super::wire::{
    BUNDLE_CPU, BUNDLE_EVENT, Content, PACKET_TAG, Packet, Private, SYNC_MARKER, Value, next_field,
};
use super::{GROUP_EVENTS, PACKET_MAX};
use crate::stream::{ReadError, Source, stranger};

/// Packets before the first Meta at most: a foreign trace is not read to its end to say that it is foreign.
const OPENING_PACKETS: usize = 16;

const TOO_MANY: Malformed = Malformed(
    "a group of events with more domains, or groups of domains and passes, than one may have; record the trace again",
);

/// Whether a file that begins so may be a Perfetto trace. A text may begin with the same byte, an empty line.
pub fn is_perfetto(head: &[u8]) -> bool {
    let is_text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    head.first() == Some(&PACKET_TAG) && !head.iter().take(32).all(is_text)
}

/// Reads a trace that [`super::Writer`] wrote. Holds one group of events.
#[derive(Debug)]
pub struct Reader<R> {
    packets: Packets<R>,
    meta: Meta,
    group: Group,
    ready: VecDeque<Event>,
    is_over: bool,
}

impl<R: BufRead> Reader<R> {
    /// Reads from the beginning.
    ///
    /// # Errors
    /// When the input cannot be read or is no trace of this project.
    pub fn new(input: R) -> Result<Reader<R>, ReadError> {
        Reader::open(Packets { input, at: 0, start: 0 })
    }

    /// Reads from the first segment that begins at or behind where `input` stands, which is `at` bytes into the
    /// file.
    ///
    /// # Errors
    /// As [`Reader::new`]; also when no segment begins there.
    pub fn resume(input: R, at: u64) -> Result<Reader<R>, ReadError> {
        let mut packets = Packets { input, at, start: at };
        packets.find_marker()?;
        Reader::open(packets)
    }

    fn open(mut packets: Packets<R>) -> Result<Reader<R>, ReadError> {
        const FOREIGN: ReadError = ReadError::NotATrace(
            "this Perfetto trace is not one of Quell's: it lacks their topology and keyframes",
        );
        for _ in 0..OPENING_PACKETS {
            let Some(packet) = packets.next()? else { break };
            let content = packet.private.and_then(|private| private.content);
            if let Some(Content::Meta(json)) = content {
                let meta = packets.meta(&json)?;
                return Ok(Reader {
                    packets,
                    meta,
                    group: Group::default(),
                    ready: VecDeque::new(),
                    is_over: false,
                });
            }
        }
        Err(FOREIGN)
    }

    /// Reads the next group; `false` at the end of the file.
    fn read_group(&mut self) -> Result<bool, ReadError> {
        loop {
            let Some(packet) = self.packets.next()? else { return Ok(false) };
            let Some(private) = packet.private else { continue };
            if let Some(Content::Meta(json)) = private.content {
                let meta = self.packets.meta(&json)?;
                if meta.topology != self.meta.topology {
                    return Err(self.packets.damaged("a trace of another host begins here"));
                }
                self.meta = meta;
            }
            match private.group {
                None => {}
                Some(events @ 1..=GROUP_EVENTS) => return self.read_events(events).map(|()| true),
                Some(_) => return Err(self.packets.damaged("a group larger than any is written")),
            }
        }
    }
}

impl<R: BufRead> Reader<R> {
    /// Reads the events of a group. None of them is given if one is missing or damaged.
    fn read_events(&mut self, events: u32) -> Result<(), ReadError> {
        self.group.begin(events);
        while !self.group.is_whole() {
            let packet = self
                .packets
                .next()?
                .ok_or_else(|| self.packets.damaged("the file ends within a group of events"))?;
            let added = self.group.add(packet, &self.meta.topology);
            added.map_err(|Malformed(what)| self.packets.damaged(what))?;
        }
        let finished = self.group.finish(&mut self.ready);
        finished.map_err(|Malformed(what)| {
            self.ready.clear();
            self.packets.damaged(what)
        })
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Event, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() && !self.is_over {
            match self.read_group() {
                Ok(more) => self.is_over = !more,
                Err(err) => {
                    self.is_over = true;
                    return Some(Err(err));
                }
            }
        }
        self.ready.pop_front().map(Ok)
    }
}

impl<R: BufRead> Source for Reader<R> {
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

/// The events of a group, as far as they are read.
#[derive(Debug, Default)]
struct Group {
    /// By place.
    entries: Vec<Option<Entry>>,
    /// How many of them are there.
    filled: usize,
    /// How many events of the group there are up to the last one outside of the bundles.
    reach: u32,
    /// A keyframe of which more parts follow, and its place.
    partial: Option<(u32, Entry, Keyframe)>,
    /// Of the domain trees and passes among the entries: they take many times their bytes in the file.
    counts: Counts,
    /// By core: the number of its next event, where that is known.
    expected: Vec<Option<u64>>,
}

#[derive(Debug)]
struct Entry {
    sequence: Option<u64>,
    at: Nanos,
    core: CoreId,
    what: What,
}

impl Group {
    /// Begins anew.
    fn begin(&mut self, events: u32) {
        self.entries.clear();
        self.entries.resize_with(events as usize, || None);
        (self.filled, self.reach, self.partial) = (0, 0, None);
        self.counts = Counts::default();
    }

    fn is_whole(&self) -> bool {
        self.filled == self.entries.len()
    }

    fn add(&mut self, packet: Packet, topology: &Topology) -> Result<(), Malformed> {
        if let Some(bundle) = packet.ftrace_events {
            return self.add_bundle(&bundle, topology);
        }
        let Some(private) = packet.private else { return Ok(()) };
        if private.group.is_some() || matches!(private.content, Some(Content::Meta(_))) {
            return Err(Malformed("a group of events that lacks some"));
        }
        if let Some(Content::Keyframe(part)) = &private.content {
            return self.add_keyframe(part, packet.timestamp, &private, topology);
        }
        let Some(event) = packet.track_event else { return Ok(()) };
        let at = packet.timestamp.unwrap_or_default();
        let what = convert::track(event, Nanos(at), &private)?;
        let (place, entry) = self.entry(private.told.or(packet.timestamp), &private, what)?;
        self.put(place, entry, topology)
    }

    fn add_bundle(&mut self, mut bundle: &[u8], topology: &Topology) -> Result<(), Malformed> {
        let (mut on, mut reach) = (None, 0);
        while !bundle.is_empty() {
            let event = match next_field(&mut bundle) {
                Some((BUNDLE_CPU, Value::Number(number))) => {
                    on = u32::try_from(number).ok();
                    continue;
                }
                Some((BUNDLE_EVENT, Value::Bytes(event))) => event,
                Some(_) => continue,
                None => return Err(Malformed("a bundle that is none")),
            };
            let core = convert::core(on)?;
            let Some(Ftraced { at, what, skip, sequence }) = ftrace::take(event)? else { continue };
            let place = advance(&mut reach, skip)?;
            self.put(place, Entry { sequence, at, core, what }, topology)?;
        }
        Ok(())
    }

    fn add_keyframe(
        &mut self,
        part: &[u8],
        at: Option<u64>,
        private: &Private,
        topology: &Topology,
    ) -> Result<(), Malformed> {
        let (place, mut entry, mut keyframe) = match self.partial.take() {
            Some(begun) => begun,
            // What it is is known once all parts are.
            None => {
                let (place, entry) = self.entry(at, private, What::Lost { count: 0 })?;
                (place, entry, Keyframe::default())
            }
        };
        keyframe::append(&mut keyframe, part)?;
        if private.more == Some(true) {
            self.partial = Some((place, entry, keyframe));
            return Ok(());
        }
        entry.what = What::Keyframe(keyframe.into());
        self.put(place, entry, topology)
    }

    /// An event outside of bundles, and its place.
    fn entry(
        &mut self,
        at: Option<u64>,
        private: &Private,
        what: What,
    ) -> Result<(u32, Entry), Malformed> {
        let place = advance(&mut self.reach, private.skip.unwrap_or_default())?;
        let core = convert::core(private.core)?;
        let at = Nanos(at.unwrap_or_default());
        Ok((place, Entry { sequence: private.sequence, at, core, what }))
    }

    fn put(&mut self, place: u32, entry: Entry, topology: &Topology) -> Result<(), Malformed> {
        if topology.position(entry.core).is_none() || stranger(&entry.what, topology).is_some() {
            return Err(Malformed("an event of a core that the topology does not have"));
        }
        self.counts = self.counts.with(&entry.what).ok_or(TOO_MANY)?;
        let free = self.entries.get_mut(place as usize).filter(|place| place.is_none());
        *free.ok_or(Malformed("a group of events that are not its own"))? = Some(entry);
        self.filled += 1;
        Ok(())
    }

    /// Moves its events, numbered and in the order in which they were written, behind those in `ready`.
    fn finish(&mut self, ready: &mut VecDeque<Event>) -> Result<(), Malformed> {
        self.expected.clear();
        for Entry { sequence, at, core, what } in self.entries.drain(..).flatten() {
            if self.expected.len() <= core.index() {
                self.expected.resize(core.index() + 1, None);
            }
            let expected = &mut self.expected[core.index()];
            let sequence = sequence.or(*expected);
            let sequence = sequence.ok_or(Malformed("an event without its sequence number"))?;
            *expected = Some(sequence.wrapping_add(1));
            ready.push_back(Event { at, core, sequence, what });
        }
        Ok(())
    }
}

/// The place of an event in its group, so many behind what its chain has reached.
fn advance(reach: &mut u32, skip: u32) -> Result<u32, Malformed> {
    let place = reach.checked_add(skip).filter(|place| *place < GROUP_EVENTS);
    let place = place.ok_or(Malformed("an event past the end of its group"))?;
    *reach = place + 1;
    Ok(place)
}

/// The packets of a file.
#[derive(Debug)]
struct Packets<R> {
    input: R,
    /// Where the next byte lies in the file.
    at: u64,
    /// Where the last packet began.
    start: u64,
}

impl<R: BufRead> Packets<R> {
    fn damaged(&self, what: &str) -> ReadError {
        ReadError::Damaged { offset: self.start, what: what.to_owned() }
    }

    fn failed(&self, source: io::Error) -> ReadError {
        ReadError::Io { offset: self.at, source }
    }

    fn meta(&self, json: &[u8]) -> Result<Meta, ReadError> {
        serde_json::from_slice(json).map_err(|err| self.damaged(&format!("its Meta: {err}")))
    }

    /// The next packet; `None` at the end of the file.
    fn next(&mut self) -> Result<Option<Packet>, ReadError> {
        const WITHIN: &str = "the file ends within a packet";
        self.start = self.at;
        match self.byte()? {
            None => return Ok(None),
            Some(PACKET_TAG) => {}
            Some(_) => return Err(self.damaged("no packet begins here")),
        }
        let mut length = 0;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.byte()?.ok_or_else(|| self.damaged(WITHIN))?;
            length |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        if length > PACKET_MAX {
            return Err(self.damaged("a packet longer than any that is written"));
        }
        // In steps: a length that lies costs no memory that the file does not have.
        let mut bytes = Vec::new();
        let read = (&mut self.input).take(length).read_to_end(&mut bytes);
        self.at += read.map_err(|source| self.failed(source))? as u64;
        if (bytes.len() as u64) < length {
            return Err(self.damaged(WITHIN));
        }
        let packet = Packet::decode(Bytes::from(bytes));
        packet.map(Some).map_err(|err| self.damaged(&err.to_string()))
    }

    fn byte(&mut self) -> Result<Option<u8>, ReadError> {
        let byte = loop {
            match self.input.fill_buf() {
                Ok(bytes) => break bytes.first().copied(),
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(self.failed(source)),
            }
        };
        if byte.is_some() {
            self.input.consume(1);
            self.at += 1;
        }
        Ok(byte)
    }

    /// Goes on to behind the next synchronization marker.
    fn find_marker(&mut self) -> Result<(), ReadError> {
        let mut last = [0; SYNC_MARKER.len()];
        while last != SYNC_MARKER {
            last.rotate_left(1);
            let Some(byte) = self.byte()? else {
                return Err(self.damaged("no segment of a trace begins at or behind this"));
            };
            last[SYNC_MARKER.len() - 1] = byte;
        }
        Ok(())
    }
}
