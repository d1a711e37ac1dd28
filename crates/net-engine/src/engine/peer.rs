//! Another endpoint, and the channels to it.

use std::collections::{BTreeMap, VecDeque};

use quell_model::Nanos;

use super::retire::Leaving;
use crate::flow::Reserved;
use crate::ids::{ChannelId, Class, EndpointId, StreamId};
use crate::scheduler::DeficitQueue;
use crate::table::Key;
use crate::vns::RangeSet;
use crate::wire::{Features, Kind};

/// Streams that are over and may still be asked about; beyond that the oldest is forgotten.
const CLOSED_MAX: usize = 4_096;
/// Answers to frames of streams that are over; a peer that asks for more has to ask again.
const ANSWERS_MAX: usize = 1_024;
/// Ranges of stream numbers that were seen: of one opener they come nearly in order.
const SEEN_MAX: usize = 1_024;

/// An answer about a stream that is over: always the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub kind: Kind,
    pub stream: StreamId,
    pub offset: u64,
}

/// What is known of a stream that is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closed {
    pub answer: Answer,
    pub until: Nanos,
    /// The peer needs the answer, and has not confirmed it.
    pub is_owed: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Peer {
    pub endpoint: EndpointId,
    /// Those that both have.
    pub features: Features,
    /// Bytes that a new stream may send at first.
    pub first_window: u32,
    /// Largest payload that it accepts.
    pub max_frame: u32,
    pub streams: BTreeMap<StreamId, Key>,
    /// The number of the next stream to it.
    pub next: Option<StreamId>,
    /// Numbers of its streams, halved.
    pub seen: RangeSet,
    pub channels: Vec<Key>,
    /// Streams with control frames that are due, by class.
    pub control: [VecDeque<Key>; 2],
    pub answers: VecDeque<Answer>,
    /// There was no place for some since they were last empty.
    pub has_dropped_answers: bool,
    pub closed: BTreeMap<StreamId, Closed>,
    /// In the order in which they are forgotten.
    pub closed_order: VecDeque<StreamId>,
    pub reserved: Reserved,
    /// One of them loses frames.
    pub is_lossy: bool,
    /// Since when there is no channel to it.
    pub lost_since: Option<Nanos>,
    /// It accepts no further streams.
    pub said_goodbye: bool,
}

impl Peer {
    /// Notes the number of a stream that the peer has opened. False for one that it had before.
    pub fn note_seen(&mut self, stream: StreamId) -> bool {
        let number = stream.0 / 2;
        if self.seen.contains(number) {
            return false;
        }
        self.seen.insert(number, number + 1);
        if self.seen.len() > SEEN_MAX {
            // The lowest gap is given up: its numbers count as seen.
            let gap = {
                let mut ranges = self.seen.iter();
                ranges.next().zip(ranges.next())
            };
            if let Some(((_, start), (end, _))) = gap {
                self.seen.insert(start, end);
            }
        }
        true
    }

    /// Remembers a stream that is over.
    pub fn remember(&mut self, closed: Closed) {
        let stream = closed.answer.stream;
        if self.closed.insert(stream, closed).is_none() {
            self.closed_order.push_back(stream);
        }
        if self.closed_order.len() > CLOSED_MAX {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(stream) = self.closed_order.pop_front() {
            self.closed.remove(&stream);
        }
    }

    /// Forgets streams whose time is over.
    pub fn forget_closed(&mut self, now: Nanos) {
        let is_past =
            |stream: &StreamId| self.closed.get(stream).is_none_or(|closed| closed.until <= now);
        let past = self.closed_order.iter().take_while(|stream| is_past(stream)).count();
        (0..past).for_each(|_| self.forget_oldest());
    }

    /// Queues an answer.
    pub fn answer(&mut self, answer: Answer) {
        if self.answers.contains(&answer) {
            return;
        }
        match self.answers.len() < ANSWERS_MAX {
            true => self.answers.push_back(answer),
            false => self.has_dropped_answers = true,
        }
    }

    /// The next answer. Those for which there was no place are due again behind the last.
    pub fn next_answer(&mut self) -> Option<Answer> {
        let answer = self.answers.pop_front();
        if self.answers.is_empty() && std::mem::take(&mut self.has_dropped_answers) {
            self.answer_again();
        }
        answer
    }

    /// Whether answers that may wait have to go now, for want of places.
    pub fn is_full_of_answers(&self) -> bool {
        self.answers.len() >= ANSWERS_MAX / 2
    }

    /// Answers that may have been lost are due again.
    pub fn answer_again(&mut self) {
        let owed = self.closed.values().filter(|closed| closed.is_owed);
        let owed: Vec<Answer> = owed.map(|closed| closed.answer).collect();
        owed.into_iter().for_each(|answer| self.answer(answer));
    }

    /// Whether control frames wait.
    pub fn has_control(&self) -> bool {
        Class::ALL.into_iter().any(|class| self.has_control_of(class))
    }

    /// Whether those of a class wait. Answers about streams that are over are few, and go with the latency class.
    pub fn has_control_of(&self, class: Class) -> bool {
        let has_answers = class == Class::Latency && !self.answers.is_empty();
        has_answers || !self.control[class.index()].is_empty()
    }
}

/// What a transport can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelCaps {
    /// It loses or reorders frames: streams repair that.
    pub is_lossy: bool,
    /// Largest payload of a frame that it carries.
    pub max_frame: u32,
}

/// A channel that is up.
#[derive(Debug)]
pub(crate) struct Channel {
    /// Unique in this endpoint, and never used again.
    pub id: ChannelId,
    /// Its number at the side that opened it, and whether that is this one.
    pub number: (ChannelId, bool),
    pub peer: Key,
    pub class: Class,
    pub caps: ChannelCaps,
    /// Streams whose next chunk it carries.
    pub ready: DeficitQueue<Key>,
    /// Bytes that its transport has not sent, as the driver says.
    pub transport_backlog: u64,
    pub is_full: bool,
    pub rtt: Nanos,
    /// Bytes of response queues that are charged to it.
    pub charged: u64,
    pub last_heard: Nanos,
    /// Pings since then.
    pub pings: u32,
    pub ping_due: bool,
    pub pong_due: Option<u64>,
    pub goodbye_due: bool,
    pub leaving: Leaving,
    /// The driver has its [`Notice::Send`](super::Notice::Send), and has not found it empty since.
    pub is_told: bool,
}

/// A listening address.
#[derive(Debug)]
pub(crate) struct Listener {
    pub backlog: usize,
    /// Streams that were not accepted, in the order of their arrival.
    pub waiting: VecDeque<Key>,
}
