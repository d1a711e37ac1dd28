//! Frames that leave.

use quell_model::Nanos;

use super::peer::Answer;
use super::stream::{Phase, Stream};
use super::{Engine, Notice};
use crate::ids::{Class, StreamId};
use crate::table::Key;
use crate::wire::{Header, Kind, OPEN_BYTES, UPDATE_BYTES, Update};

/// The payload of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// None.
    Empty,
    /// Of an open frame.
    Open([u8; OPEN_BYTES]),
    /// Of an update or resend frame.
    Update([u8; UPDATE_BYTES]),
    /// `length` bytes of the socket's memory, from `offset` of the stream on.
    Data(Key),
}

/// See [`Engine::direct`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direct {
    /// Its bytes are kept, or others of its bytes go first.
    Never,
    /// Not before the peer lets it send.
    NoCredit,
    /// So many bytes can go to this channel, once it is free.
    Channel(Key, u64),
}

/// A frame to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its header.
    pub header: Header,
    /// What follows.
    pub body: Body,
}

impl Frame {
    pub(super) fn control(kind: Kind, stream: StreamId, offset: u64) -> Frame {
        Frame { header: Header::control(kind, stream, offset), body: Body::Empty }
    }

    fn update(kind: Kind, stream: StreamId, offset: u64, update: &Update) -> Frame {
        let length = UPDATE_BYTES as u32;
        let header = Header { kind, flags: 0, length, stream, offset };
        Frame { header, body: Body::Update(update.encode()) }
    }
}

impl Engine {
    /// The next frame of a channel, with at most `max` bytes of payload; `None` once it has nothing to send:
    /// [`Notice::Send`] comes when it has.
    pub fn transmit(&mut self, key: Key, max: u32, now: Nanos) -> Option<Frame> {
        let is_silent = self.channels.get(key).is_some_and(|it| it.leaving.is_silent());
        let frame = match is_silent {
            true => None,
            false => self
                .link_frame(key)
                .or_else(|| self.control_frame(key))
                .or_else(|| self.data_frame(key, max, now)),
        };
        let frame = frame.or_else(|| self.retire_frame(key));
        if frame.is_none()
            && let Some(channel) = self.channels.get_mut(key)
        {
            channel.is_told = false;
        }
        frame
    }

    /// Whether a channel has a frame to send. If not, [`Notice::Send`] comes when it has.
    pub fn has_frame(&mut self, key: Key) -> bool {
        let Some(channel) = self.channels.get(key) else { return false };
        let peer = channel.peer;
        let has_control = |class| {
            self.peers.get(peer).is_some_and(|it| it.has_control_of(class))
                && self.control_channel(peer, class) == Some(key)
        };
        let has_other = channel.ping_due
            || channel.pong_due.is_some()
            || channel.goodbye_due
            || Class::ALL.into_iter().any(has_control)
            || !channel.ready.is_empty();
        let is_silent = channel.leaving.is_silent();
        let has_frame = (has_other && !is_silent) || self.next_word(key).is_some();
        if let Some(channel) = self.channels.get_mut(key) {
            channel.is_told = has_frame;
        }
        has_frame
    }

    /// Frames of the channel itself.
    fn link_frame(&mut self, key: Key) -> Option<Frame> {
        let channel = self.channels.get_mut(key)?;
        if let Some(offset) = channel.pong_due.take() {
            return Some(Frame::control(Kind::Pong, StreamId::NONE, offset));
        }
        if std::mem::take(&mut channel.ping_due) {
            let offset = u64::from(channel.pings);
            return Some(Frame::control(Kind::Ping, StreamId::NONE, offset));
        }
        let is_leaving = std::mem::take(&mut channel.goodbye_due);
        is_leaving.then(|| Frame::control(Kind::Goodbye, StreamId::NONE, 0))
    }

    /// Control frames of streams, on the channel that carries them.
    fn control_frame(&mut self, key: Key) -> Option<Frame> {
        let peer = self.channels.get(key)?.peer;
        Class::ALL.into_iter().find_map(|class| {
            let has_control = self.peers.get(peer)?.has_control_of(class);
            let is_carried = has_control && self.control_channel(peer, class) == Some(key);
            if is_carried { self.control_of(peer, class) } else { None }
        })
    }

    /// The next control frame of a class of streams.
    fn control_of(&mut self, peer: Key, class: Class) -> Option<Frame> {
        let it = self.peers.get_mut(peer)?;
        if class == Class::Latency
            && let Some(answer) = it.next_answer()
        {
            return Some(answer_frame(&answer));
        }
        let waiting = &mut it.control[class.index()];
        while let Some(queued) = waiting.front().copied() {
            let stream = self.streams.get_mut(queued);
            let frame = stream.and_then(due_frame);
            if frame.is_some() {
                return frame;
            }
            waiting.pop_front();
            if let Some(stream) = self.streams.get_mut(queued) {
                stream.is_control_queued = false;
            }
        }
        None
    }

    /// Data, and the open frames of new streams.
    fn data_frame(&mut self, key: Key, max: u32, now: Nanos) -> Option<Frame> {
        loop {
            let channel = self.channels.get(key)?;
            let (queued, allowance) = channel.ready.front()?;
            let peer = self.peers.get(channel.peer)?;
            let max = max.min(peer.max_frame).min(channel.caps.max_frame);
            if max == 0 {
                return None;
            }
            let id = channel.id;
            let keeps = self.has_recovery(queued);
            let sendable = self.streams.get_mut(queued).filter(|stream| stream.has_data());
            let Some(stream) = sendable else {
                self.leave_queue(key, queued, 0);
                continue;
            };
            if std::mem::take(&mut stream.must_open) {
                stream.route.pinned = Some(id);
                stream.route.last = Some(id);
                let (length, limit) = (OPEN_BYTES as u32, stream.receive.limit());
                let (kind, stream_id) = (Kind::Open, stream.id);
                let flags = if stream.is_early { Header::EARLY } else { 0 };
                let header = Header { kind, flags, length, stream: stream_id, offset: limit };
                let body = Body::Open(stream.open.encode());
                stream.receive.reported();
                self.note_waiting(queued, now);
                self.after_sending(key, queued, 0);
                return Some(Frame { header, body });
            }
            if std::mem::take(&mut stream.must_probe) && !stream.send.is_ready() {
                let offset = stream.send.next();
                let header =
                    Header { kind: Kind::Data, flags: 0, length: 0, stream: stream.id, offset };
                self.after_sending(key, queued, 0);
                return Some(Frame { header, body: Body::Empty });
            }
            let Some(chunk) = stream.send.chunk(max.min(allowance.max(1))) else {
                self.leave_queue(key, queued, 0);
                continue;
            };
            let before = stream.send.outstanding();
            stream.send.sent(chunk, id, keeps);
            if !keeps && !stream.route.used.contains(&id) {
                stream.route.used.push(id);
            }
            let freed = before - stream.send.outstanding();
            debug_assert!(stream.send.is_consistent());
            stream.route.run_bytes = match stream.route.last == Some(id) {
                true => stream.route.run_bytes + u64::from(chunk.length),
                false => u64::from(chunk.length),
            };
            stream.route.last = Some(id);
            let fin = if chunk.is_last { Header::FIN } else { 0 };
            let flags = fin | if stream.send.credit() == 0 { Header::BLOCKED } else { 0 };
            let header = Header {
                kind: Kind::Data,
                flags,
                length: chunk.length,
                stream: stream.id,
                offset: chunk.start,
            };
            let body = if chunk.length > 0 { Body::Data(queued) } else { Body::Empty };
            self.free_send(freed);
            self.note_waiting(queued, now);
            self.after_sending(key, queued, chunk.length);
            return Some(Frame { header, body });
        }
    }

    /// A stream has sent on a channel: it stays in its queue, goes to that of another, or has nothing more.
    fn after_sending(&mut self, channel: Key, key: Key, bytes: u32) {
        let stays = self.streams.get(key).is_some_and(Stream::has_data)
            && self.choose(key) == Some(channel);
        match stays {
            true => {
                if let Some(channel) = self.channels.get_mut(channel) {
                    channel.ready.sent(bytes, true);
                }
            }
            false => self.leave_queue(channel, key, bytes),
        }
    }

    fn leave_queue(&mut self, channel: Key, key: Key, bytes: u32) {
        if let Some(channel) = self.channels.get_mut(channel) {
            channel.ready.sent(bytes, false);
        }
        if let Some(stream) = self.streams.get_mut(key) {
            stream.route.queued_on = None;
        }
        self.route(key);
    }

    /// Whether what a socket writes next can go to a channel from the application's own memory.
    pub fn direct(&mut self, key: Key) -> Direct {
        let has_recovery = self.has_recovery(key);
        let Some(stream) = self.streams.get(key) else { return Direct::Never };
        let may = stream.phase == Phase::Established
            && stream.class == Class::Throughput
            && !has_recovery
            && !stream.send.is_ended()
            && !stream.send.is_stopped()
            && stream.send.unsent() == 0
            && stream.route.queued_on.is_none();
        if !may {
            return Direct::Never;
        }
        let credit = stream.send.credit();
        if credit == 0 {
            return Direct::NoCredit;
        }
        let chosen = self.choose(key);
        let is_idle = |key: &Key| self.channels.get(*key).is_some_and(|it| it.ready.is_empty());
        chosen.filter(is_idle).map_or(Direct::Never, |chosen| Direct::Channel(chosen, credit))
    }

    /// Sockets that wait for a channel.
    pub fn waiting(&self, channel: Key) -> usize {
        self.channels.get(channel).map_or(0, |channel| channel.ready.len())
    }

    /// Without recovery the memory of a chunk is free once the channel has taken it: the driver says so. Returns the first
    /// offset that is still needed.
    pub fn taken(&mut self, key: Key, now: Nanos) -> Option<u64> {
        let stream = self.streams.get(key)?;
        let acked = stream.send.acked();
        self.tell_room(key);
        if !self.has_recovery(key) {
            self.notices.push_back(Notice::Freed(key));
        }
        self.reap(key, now);
        Some(acked)
    }
}

fn answer_frame(answer: &Answer) -> Frame {
    let Answer { kind, stream, offset } = *answer;
    match kind {
        Kind::Update => {
            let update = Update { limit: offset, beyond: None };
            let mut frame = Frame::update(kind, stream, offset, &update);
            frame.header.flags = Header::FIN;
            frame
        }
        _ => Frame::control(kind, stream, offset),
    }
}

/// The most urgent control frame of a stream that is due.
fn due_frame(stream: &mut Stream) -> Option<Frame> {
    let (id, due) = (stream.id, &mut stream.due);
    if std::mem::take(&mut due.accept) {
        let limit = stream.receive.limit();
        stream.receive.announce();
        return Some(Frame::control(Kind::Accept, id, limit));
    }
    if std::mem::take(&mut due.stop) {
        return Some(Frame::control(Kind::Stop, id, stream.receive.arrived()));
    }
    if std::mem::take(&mut due.stopped) {
        return Some(Frame::control(Kind::Stopped, id, stream.send.next()));
    }
    if std::mem::take(&mut due.resume) {
        return Some(Frame::control(Kind::Resume, id, stream.receive.limit()));
    }
    if std::mem::take(&mut due.resend)
        && let Some((start, end)) = stream.receive.wanted()
    {
        let update = Update { limit: end - start, beyond: None };
        return Some(Frame::update(Kind::Resend, id, start, &update));
    }
    if std::mem::take(&mut due.report) {
        let update = Update { limit: stream.receive.limit(), beyond: stream.receive.beyond() };
        let ack = stream.receive.ack();
        stream.receive.reported();
        return Some(Frame::update(Kind::Update, id, ack, &update));
    }
    None
}
