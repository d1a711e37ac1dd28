//! Frames that arrive.

use std::collections::VecDeque;

use quell_model::Nanos;

use super::peer::Answer;
use super::stream::{Phase, Stream};
use super::{Engine, Notice, StreamFailure};
use crate::ids::{OpenRefusal, ResetReason, StreamId};
use crate::table::Key;
use crate::vns::StreamError;
use crate::wire::{Header, Kind, OPEN_BYTES, Open, OpenError, UPDATE_BYTES, Update, UpdateError};

/// What becomes of a frame's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It was a control frame: nothing.
    Done,
    /// The bytes of the stream from `start` to `end` go to the socket's memory, those before and after to nowhere. The
    /// driver says [`Engine::arrived`] of those that are there, and [`Engine::finished`] at the end of the frame, or of the
    /// channel: until then nothing else writes them.
    Into {
        /// The socket.
        socket: Key,
        /// First offset.
        start: u64,
        /// Offset behind the last.
        end: u64,
    },
    /// Nowhere.
    Nowhere,
}

/// A frame for which the channel is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameRefused {
    /// The channel is not up.
    #[error("a frame on a channel that is not up")]
    NoChannel,
    /// A payload that is shorter or longer than its kind has.
    #[error("a control frame with {0} bytes of payload")]
    Length(usize),
    /// A payload that is none of its kind.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// A payload that is none of its kind.
    #[error("{0}")]
    Update(#[from] UpdateError),
    /// A stream of its numbers that this endpoint should have opened.
    #[error("the peer opens stream {0}, a number of this side")]
    Number(StreamId),
    /// A frame that gives the channel up, out of turn.
    #[error("the peer gives the channel up in a way that it cannot")]
    Retire,
    /// A frame behind the last.
    #[error("a {0:?} frame on a channel that the peer has given up")]
    Retired(Kind),
}

impl Engine {
    /// A frame arrived. `control` is the payload of a control frame, empty for data: that of a data frame goes where the
    /// answer says.
    ///
    /// # Errors
    /// When the peer broke the protocol: the driver closes the channel and says [`Engine::channel_down`].
    pub fn frame(
        &mut self,
        key: Key,
        header: &Header,
        control: &[u8],
        now: Nanos,
    ) -> Result<Delivery, FrameRefused> {
        let channel = self.channels.get_mut(key).ok_or(FrameRefused::NoChannel)?;
        (channel.last_heard, channel.pings) = (now, 0);
        if channel.leaving.heard.is_some() && header.kind != Kind::Retire {
            return Err(FrameRefused::Retired(header.kind));
        }
        let (peer, offset) = (channel.peer, header.offset);
        let id = header.stream;
        let known = self.peers.get(peer).and_then(|peer| peer.streams.get(&id)).copied();
        match (header.kind, known) {
            (Kind::Ping, _) => {
                channel.pong_due = Some(offset);
                self.tell_channel(key);
            }
            (Kind::Pong, _) => {}
            (Kind::Retire, _) => self.heard(key, offset)?,
            (Kind::Goodbye, _) => {
                self.peers.get_mut(peer).into_iter().for_each(|peer| peer.said_goodbye = true);
            }
            (Kind::Open, _) => {
                let open = Open::decode(&payload::<OPEN_BYTES>(control)?)?;
                self.opened(peer, header, open, now)?;
            }
            (Kind::Closed, None) => self.confirmed_closed(peer, id),
            (Kind::Reset, None) => self.reset_of_unknown(peer, id, now),
            (kind, None) => {
                self.of_unknown(peer, header, now);
                return Ok(if kind.is_data() { Delivery::Nowhere } else { Delivery::Done });
            }
            (Kind::Data, Some(stream)) => return Ok(self.data(stream, header, now)),
            (kind, Some(stream)) => self.control(stream, kind, offset, control, now)?,
        }
        Ok(Delivery::Done)
    }

    fn control(
        &mut self,
        key: Key,
        kind: Kind,
        offset: u64,
        control: &[u8],
        now: Nanos,
    ) -> Result<(), FrameRefused> {
        let Some(stream) = self.streams.get_mut(key) else { return Ok(()) };
        stream.is_confirmed = true;
        let is_open =
            matches!(kind, Kind::Update | Kind::Resend | Kind::Stop | Kind::Stopped | Kind::Resume);
        if is_open && matches!(stream.phase, Phase::Opening { .. }) {
            // It was accepted: the frame that says so is on another channel, or lost with it.
            self.accepted(key, 0, now);
        }
        match kind {
            Kind::Accept => self.accepted(key, offset, now),
            Kind::Refuse => {
                let refusal = OpenRefusal::from_code(offset);
                self.fail(key, StreamFailure::Refused(refusal), now);
            }
            Kind::Reset => {
                let reason = ResetReason::from_code(offset);
                self.fail(key, StreamFailure::Reset(reason), now);
            }
            Kind::Update | Kind::Resend => {
                let update = Update::decode(&payload::<UPDATE_BYTES>(control)?)?;
                match kind {
                    Kind::Update => self.updated(key, offset, &update, now),
                    _ => self.missing(key, offset, update.limit),
                }
            }
            Kind::Stop | Kind::Stopped | Kind::Resume => self.relief_frame(key, kind, offset),
            // Of no stream, or handled before.
            Kind::Data | Kind::Open | Kind::Closed => {}
            Kind::Ping | Kind::Pong | Kind::Goodbye | Kind::Retire => {}
        }
        Ok(())
    }

    /// The peer opens a stream.
    fn opened(
        &mut self,
        peer: Key,
        header: &Header,
        open: Open,
        now: Nanos,
    ) -> Result<(), FrameRefused> {
        let id = header.stream;
        let Some(it) = self.peers.get_mut(peer) else { return Ok(()) };
        if id.is_opened_by(self.config.id, it.endpoint) {
            return Err(FrameRefused::Number(id));
        }
        if let Some(known) = it.streams.get(&id).copied() {
            // The answer was lost. The frame carries a limit, as the first one did.
            if let Some(stream) = self.streams.get_mut(known) {
                stream.due.accept = true;
                stream.send.set_limit(header.offset);
            }
            self.queue_control(known);
            self.route(known);
            return Ok(());
        }
        if !it.note_seen(id) {
            self.of_unknown(peer, header, now);
            return Ok(());
        }
        match self.admit(peer, id, header.offset, open, now) {
            Ok(key) if header.flags & Header::EARLY != 0 => {
                self.queue_quietly(key);
                self.report_late(key, now);
            }
            Ok(key) => self.queue_control(key),
            Err(refusal) => {
                let until = Nanos(now.0.saturating_add(self.config.grace.0));
                let answer = Answer { kind: Kind::Refuse, stream: id, offset: refusal.code() };
                if let Some(it) = self.peers.get_mut(peer) {
                    it.remember(super::Closed { answer, until, is_owed: true });
                }
                self.wake_at(until);
                self.answer(peer, Kind::Refuse, id, refusal.code(), now);
            }
        }
        Ok(())
    }

    fn admit(
        &mut self,
        peer: Key,
        id: StreamId,
        limit: u64,
        open: Open,
        now: Nanos,
    ) -> Result<Key, OpenRefusal> {
        let listener = self.listener_of(open.destination).ok_or(OpenRefusal::NoListener)?;
        let it = self.listeners.get_mut(listener).ok_or(OpenRefusal::NoListener)?;
        if it.waiting.len() >= it.backlog || self.streams.len() >= self.config.streams_max {
            return Err(OpenRefusal::Busy);
        }
        let known = self.peers.get_mut(peer).ok_or(OpenRefusal::Denied)?;
        let window = self.policies.flow.admit(&mut known.reserved, now);
        let window = window.ok_or(OpenRefusal::Busy)?;
        let mut stream = Stream::new(id, peer, open, Phase::Incoming { listener }, window);
        stream.send.set_limit(limit);
        stream.receive.raise_limit(window.size().max(u64::from(self.policies.first_window)));
        // The accept frame says it.
        stream.receive.announce();
        stream.due.accept = true;
        let key = self.streams.insert(stream);
        known.streams.insert(id, key);
        it.waiting.push_back(key);
        self.notices.push_back(Notice::Acceptable(listener));
        // The first limit may be more than the first window.
        self.raise_limit(key, now);
        Ok(key)
    }

    /// The peer has accepted a stream.
    fn accepted(&mut self, key: Key, limit: u64, now: Nanos) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let was_opening = matches!(stream.phase, Phase::Opening { .. });
        if was_opening {
            stream.phase = Phase::Established;
            stream.route.pinned = None;
            stream.must_open = false;
            self.notices.push_back(Notice::Connected(key));
            self.raise_limit(key, now);
            self.leave_silent_channel(key);
        }
        let Some(stream) = self.streams.get_mut(key) else { return };
        if stream.send.set_limit(limit) {
            self.note_waiting(key, now);
            self.route(key);
            self.tell_room(key);
        }
    }

    /// The peer reports what has arrived, and what it lets this side send.
    fn updated(&mut self, key: Key, ack: u64, update: &Update, now: Nanos) {
        let has_recovery = self.has_recovery(key);
        let (is_lossy, least) = (self.is_lossy(key), self.config.resend_after);
        let Some(stream) = self.streams.get_mut(key) else { return };
        match stream.send.ack(ack, update.beyond) {
            Ok(0) => {}
            Ok(freed) => {
                if let Some(since) = stream.waiting_since.take() {
                    stream.resend.acknowledged(now.since(since), least);
                }
                self.notices.push_back(Notice::Freed(key));
                self.free_send(freed);
            }
            Err(_) => {
                let failure = StreamFailure::Aborted(ResetReason::Protocol);
                return self.fail(key, failure, now);
            }
        }
        if let Some((start, _)) = update.beyond.filter(|_| is_lossy && has_recovery) {
            self.repair(key, ack, start, now);
        }
        let Some(stream) = self.streams.get_mut(key) else { return };
        if stream.send.set_limit(update.limit) && !stream.send.is_in_flight() {
            // It has waited for the limit alone.
            stream.waiting_since = None;
            stream.resend.begin_anew();
        }
        self.note_waiting(key, now);
        self.route(key);
        self.tell_room(key);
        self.reap(key, now);
    }

    /// The peer misses bytes, and says so.
    fn missing(&mut self, key: Key, offset: u64, length: u64) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.send.missing(offset, offset.saturating_add(length));
            self.route(key);
        }
    }

    /// A data frame of a stream that is there.
    fn data(&mut self, key: Key, header: &Header, now: Nanos) -> Delivery {
        let Some(stream) = self.streams.get_mut(key) else { return Delivery::Nowhere };
        if let Phase::Opening { .. } = stream.phase {
            // It was accepted: the frame that says so is on another channel.
            let limit = stream.send.next();
            self.accepted(key, limit, now);
        }
        let Some(stream) = self.streams.get_mut(key) else { return Delivery::Nowhere };
        if header.is_blocked() {
            stream.window.note_limiting();
        }
        match stream.receive.check(header.offset, header.length, header.is_last()) {
            Ok((start, end)) if start < end && stream.receive.claim(start, end) => {
                Delivery::Into { socket: key, start, end }
            }
            Ok(_) => {
                self.after_arrival(key, now);
                Delivery::Nowhere
            }
            Err(StreamError::Limit { .. } | StreamError::End { .. } | StreamError::Ack(_)) => {
                self.fail(key, StreamFailure::Aborted(ResetReason::Protocol), now);
                Delivery::Nowhere
            }
        }
    }

    /// Bytes of a data frame that came over a channel are in the socket's memory.
    pub fn arrived(&mut self, channel: Key, key: Key, start: u64, end: u64, now: Nanos) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        if stream.failure().is_some() {
            return;
        }
        stream.receive.arrive(start, end);
        debug_assert!(stream.receive.is_consistent());
        self.charge(channel, key, end - start, now);
        self.after_arrival(key, now);
    }

    /// A channel is done with the payload of a frame, whether all of it has come or not.
    pub fn finished(&mut self, key: Key, start: u64, end: u64) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.receive.unclaim(start, end);
        self.ask(key);
    }

    /// Asks for bytes that were dropped, if it is time.
    pub(super) fn ask(&mut self, key: Key) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        if stream.failure().is_none() && stream.receive.must_ask() {
            stream.due.resend = true;
            self.queue_control(key);
        }
    }

    fn after_arrival(&mut self, key: Key, now: Nanos) {
        let Some(stream) = self.streams.get(key) else { return };
        let is_waiting = matches!(stream.phase, Phase::Incoming { .. });
        if !stream.is_attached && !is_waiting && stream.receive.readable() > 0 {
            // Its application has closed it: this is never read, and the peer has to learn that.
            return self.fail(key, StreamFailure::Aborted(ResetReason::Closed), now);
        }
        self.ask(key);
        self.tell_readable(key);
        self.raise_limit(key, now);
        self.reap(key, now);
    }

    /// A frame of a stream that is not there: it is over, or was never opened, or its open frame is on its way.
    fn of_unknown(&mut self, peer: Key, header: &Header, now: Nanos) {
        let id = header.stream;
        let Some(it) = self.peers.get_mut(peer) else { return };
        let is_own = id.is_opened_by(self.config.id, it.endpoint);
        let was_own = is_own && it.next.is_none_or(|next| id < next);
        let answer = match it.closed.get_mut(&id) {
            // The peer's last report: it has what it waited for.
            Some(closed)
                if header.kind == Kind::Update
                    && header.is_last()
                    && closed.answer.kind == Kind::Update =>
            {
                closed.is_owed = false;
                Answer { kind: Kind::Closed, stream: id, offset: 0 }
            }
            Some(closed) => closed.answer,
            None if was_own || it.seen.contains(id.0 / 2) => {
                let offset = ResetReason::Unknown.code();
                Answer { kind: Kind::Reset, stream: id, offset }
            }
            // The peer repeats what is not answered.
            None => return,
        };
        let Answer { kind, stream, offset } = answer;
        self.answer(peer, kind, stream, offset, now);
    }

    fn reset_of_unknown(&mut self, peer: Key, id: StreamId, now: Nanos) {
        let Some(it) = self.peers.get_mut(peer) else { return };
        if !id.is_opened_by(self.config.id, it.endpoint) {
            // Its open frame may come later: that stream is over.
            it.note_seen(id);
        }
        if let Some(closed) = it.closed.get_mut(&id) {
            closed.is_owed = false;
        }
        self.answer(peer, Kind::Closed, id, 0, now);
    }

    fn confirmed_closed(&mut self, peer: Key, id: StreamId) {
        let Some(it) = self.peers.get_mut(peer) else { return };
        if let Some(closed) = it.closed.get_mut(&id) {
            closed.is_owed = false;
        }
        let queued: VecDeque<Answer> = std::mem::take(&mut it.answers);
        it.answers = queued.into_iter().filter(|answer| answer.stream != id).collect();
    }
}

fn payload<const N: usize>(bytes: &[u8]) -> Result<[u8; N], FrameRefused> {
    bytes.try_into().map_err(|_| FrameRefused::Length(bytes.len()))
}
