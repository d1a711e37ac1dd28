//! One endpoint: its peers, its channels, its sockets.
//!
//! ```text
//! application ──► open, write, read, close ─┐                 ┌─► transmit ──► driver sends frames
//!                                           ├─► Engine (now) ─┤
//! driver ──► channel_up, frame, arrived ────┘                 └─► notices ──► wakes, opens channels
//! ```
//!
//! Frames are pulled: the driver asks a channel for its next frame when the channel can take one, so that what is sent is
//! decided as late as possible, and small writes gather while a channel is busy. Control frames say what is the case when
//! they are sent, and go before data.

mod app;
mod config;
mod links;
mod peer;
mod receive;
mod relief;
mod retire;
mod stream;
mod timers;
mod transmit;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;

use quell_model::Nanos;

use crate::ids::{Class, EndpointId, ResetReason, StreamId};
use crate::scheduler::{ChannelLoad, Demand};
use crate::table::{Key, Table};
use crate::vns::RangeSet;
use crate::wire::Kind;
use peer::{Answer, Channel, Closed, Listener, Peer};
use stream::{Phase, Stream};

pub use app::{ConnectError, ListenError, SocketStatus};
pub use config::{EngineConfig, Policies};
pub use peer::ChannelCaps;
pub use receive::{Delivery, FrameRefused};
pub use stream::StreamFailure;
pub use transmit::{Body, Direct, Frame};

/// A channel that broke is opened again within this time, unless its peer is gone.
const COMES_BACK_WITHIN: Nanos = Nanos::from_millis(100);

/// What a driver or an application has to learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The socket has bytes to read, has reached its end, or has failed.
    Readable(Key),
    /// The socket can be written again, or has failed.
    Writable(Key),
    /// Written bytes of the socket are needed no more: the driver frees their memory below [`Engine::send_range`].
    Freed(Key),
    /// The peer has accepted the socket.
    Connected(Key),
    /// A listener has a socket to accept.
    Acceptable(Key),
    /// The channel has something to send, and had nothing before.
    Send(Key),
    /// The channel is not to be read for now (`true`), or again.
    Pause(Key, bool),
    /// The channel is over: the driver closes it.
    Close(Key),
    /// There is no channel of this class to the peer, and there should be one.
    Missing(Key, Class),
    /// The socket is forgotten: the driver frees its memory.
    Gone(Key),
    /// The peer is forgotten: nothing was heard of it for the grace time, or it is gone.
    PeerGone(Key),
}

/// See the module.
pub struct Engine {
    config: EngineConfig,
    policies: Policies,
    peers: Table<Peer>,
    channels: Table<Channel>,
    streams: Table<Stream>,
    listeners: Table<Listener>,
    addresses: BTreeMap<SocketAddr, Key>,
    endpoints: BTreeMap<EndpointId, Key>,
    notices: VecDeque<Notice>,
    /// Bytes that sockets have written and that are not acknowledged.
    send_used: u64,
    /// The number of the next channel.
    next_channel: u32,
    /// When [`Engine::timers`] has something to do.
    timer: Option<Nanos>,
    /// Streams with a report that waits a little.
    late_reports: Vec<Key>,
    /// Sockets that found no room.
    short_of_room: Vec<Key>,
    /// Of peers that were forgotten: the next number to them, and the numbers of theirs that were seen.
    forgotten: BTreeMap<EndpointId, (Option<StreamId>, RangeSet)>,
    /// For [`Engine::choose`].
    usable: Vec<Key>,
    loads: Vec<ChannelLoad>,
}

impl fmt::Debug for Engine {
    /// Its state, without constants, policies and what it computes anew each time.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("peers", &self.peers)
            .field("channels", &self.channels)
            .field("streams", &self.streams)
            .field("listeners", &self.listeners)
            .field("notices", &self.notices)
            .field("send_used", &self.send_used)
            .field("next_channel", &self.next_channel)
            .field("timer", &self.timer)
            .field("late_reports", &self.late_reports)
            .field("short_of_room", &self.short_of_room)
            .field("forgotten", &self.forgotten)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// An endpoint without peers.
    pub fn new(config: EngineConfig, policies: Policies) -> Engine {
        Engine {
            config,
            policies,
            peers: Table::default(),
            channels: Table::default(),
            streams: Table::default(),
            listeners: Table::default(),
            addresses: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            notices: VecDeque::new(),
            send_used: 0,
            next_channel: 1,
            timer: None,
            late_reports: Vec::new(),
            short_of_room: Vec::new(),
            forgotten: BTreeMap::new(),
            usable: Vec::new(),
            loads: Vec::new(),
        }
    }

    /// What happened, in order.
    pub fn notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Whether something happened that [`Engine::notice`] would tell.
    pub fn has_notice(&self) -> bool {
        !self.notices.is_empty()
    }

    /// Its constants.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Bytes of memory that peers may fill.
    pub fn receive_reserved(&self) -> u64 {
        self.policies.flow.reserved().bytes()
    }

    /// Bytes of memory that hold what was written and not acknowledged.
    pub fn send_used(&self) -> u64 {
        self.send_used
    }

    /// Sockets, those in backlogs and those that only the peer has to learn of included.
    pub fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// Whether something that was written, or has to be said of a socket, has not arrived at a peer that can be reached, or
    /// was not lost for long.
    pub fn has_unsettled(&self, now: Nanos) -> bool {
        let may_be_there =
            |peer: &Peer| peer.lost_since.is_none_or(|since| now.since(since) <= COMES_BACK_WITHIN);
        let is_reached = |key| self.peers.get(key).is_some_and(may_be_there);
        let mut streams = self.streams.iter().map(|(_, stream)| stream);
        let mut peers = self.peers.iter().map(|(_, peer)| peer);
        streams.any(|stream| {
            stream.failure().is_none() && !stream.send.is_finished() && is_reached(stream.peer)
        }) || peers.any(|peer| peer.has_control() && may_be_there(peer))
    }

    /// Has [`Engine::timers`] called at this time.
    fn wake_at(&mut self, at: Nanos) {
        self.timer = Some(self.timer.map_or(at, |timer| timer.min(at)));
    }

    /// A control frame of a stream is due.
    fn queue_control(&mut self, key: Key) {
        self.queue_quietly(key);
        if let Some(stream) = self.streams.get(key).filter(|stream| stream.is_control_queued) {
            self.tell_control(stream.peer);
        }
    }

    /// The same, for one that goes with the next frame of its channel.
    fn queue_quietly(&mut self, key: Key) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        if !stream.due.is_any() || std::mem::replace(&mut stream.is_control_queued, true) {
            return;
        }
        let (peer, class) = (stream.peer, stream.class);
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.control[class.index()].push_back(key);
        }
    }

    /// The peer is answered about a stream that is over.
    fn answer(&mut self, peer: Key, kind: Kind, stream: StreamId, offset: u64, now: Nanos) {
        if let Some(it) = self.peers.get_mut(peer) {
            it.answer(Answer { kind, stream, offset });
        }
        match kind {
            Kind::Closed | Kind::Update => self.answer_late(peer, now),
            _ => self.tell_control(peer),
        }
    }

    /// No application waits for an answer: it goes with the next frame of its channel, or soon.
    fn answer_late(&mut self, peer: Key, now: Nanos) {
        if self.peers.get(peer).is_some_and(Peer::is_full_of_answers) {
            self.tell_control(peer);
        }
        self.wake_at(Nanos(now.0.saturating_add(app::REPORT_WITHIN.0)));
    }

    /// The channel that carries the control frames of a class of streams. Those of bulk data go over a channel of their own, so
    /// that they wake no thread that waits for latency sockets; but control frames never wait behind data: where that
    /// channel is full, or may be paused, they go over one of the latency class, which is always read.
    fn control_channel(&self, peer: Key, class: Class) -> Option<Key> {
        let channels = &self.peers.get(peer)?.channels;
        let find = |class: Class, may_be_full: bool| {
            channels.iter().find(|key| {
                let channel = self.channels.get(**key).filter(|it| !it.leaving.has_begun);
                channel.is_some_and(|it| it.class == class && (may_be_full || !it.is_full))
            })
        };
        let is_own = class == Class::Throughput && !self.has_control_apart();
        let own = if is_own { find(class, false) } else { None };
        let speaks =
            |key: &&Key| self.channels.get(**key).is_some_and(|it| !it.leaving.is_silent());
        let any = || channels.iter().find(speaks);
        own.or_else(|| find(Class::Latency, true)).or_else(any).copied()
    }

    /// Whether channels of the throughput class may be paused, so that all control frames go over the latency class.
    pub fn has_control_apart(&self) -> bool {
        self.policies.flow.relief().is_some()
    }

    /// Has the control frames sent that are due.
    fn tell_control(&mut self, peer: Key) {
        for class in Class::ALL {
            let has_control = self.peers.get(peer).is_some_and(|it| it.has_control_of(class));
            if let Some(channel) = self.control_channel(peer, class).filter(|_| has_control) {
                self.tell_channel(channel);
            }
        }
    }

    fn tell_channel(&mut self, key: Key) {
        let Some(channel) = self.channels.get_mut(key) else { return };
        if !std::mem::replace(&mut channel.is_told, true) {
            self.notices.push_back(Notice::Send(key));
        }
    }

    /// Puts a stream into the queue of the channel that its next chunk takes, if it has one and is in none.
    fn route(&mut self, key: Key) {
        let Some(stream) = self.streams.get(key) else { return };
        if stream.route.queued_on.is_some() || !stream.has_data() {
            return;
        }
        let Some(chosen) = self.choose(key) else { return };
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.route.queued_on = Some(chosen);
        if let Some(channel) = self.channels.get_mut(chosen) {
            channel.ready.push(key);
        }
        self.tell_channel(chosen);
    }

    /// The channel for a stream's next chunk: the one that its open frame took until it is accepted, then by policy.
    fn choose(&mut self, key: Key) -> Option<Key> {
        let stream = self.streams.get(key)?;
        let peer = self.peers.get(stream.peer)?;
        let number = |key: &Key| self.channels.get(*key).map(|channel| channel.id);
        if let Some(pinned) = stream.route.pinned
            && let Some(channel) = peer.channels.iter().find(|key| number(key) == Some(pinned))
        {
            return Some(*channel);
        }
        let staying = |key: &Key| self.channels.get(*key).filter(|it| !it.leaving.has_begun);
        let of_class = |key: &&Key| staying(key).is_some_and(|it| it.class == stream.class);
        let usable = &mut self.usable;
        usable.clear();
        usable.extend(peer.channels.iter().filter(of_class));
        if usable.is_empty() {
            // Another class is better than none: it has lost all of its own.
            usable.extend(peer.channels.iter().filter(|key| staying(key).is_some()));
        }
        let demand = Demand {
            stream: stream.id.0,
            remaining: stream.send.unsent(),
            last: usable.iter().position(|key| number(key) == stream.route.last),
            run_bytes: stream.route.run_bytes,
        };
        self.loads.clear();
        for channel in usable.iter().filter_map(|key| self.channels.get(*key)) {
            let queued = channel.ready.len() as u64 * u64::from(self.config.quantum);
            let backlog_bytes = channel.transport_backlog.saturating_add(queued);
            let (is_full, rtt) = (channel.is_full, channel.rtt);
            self.loads.push(ChannelLoad { backlog_bytes, is_full, rtt });
        }
        if self.loads.is_empty() {
            return None;
        }
        let index = self.policies.choice[stream.class.index()].choose(&demand, &self.loads);
        debug_assert!(index < self.loads.len(), "a policy chose channel {index}");
        usable.get(index).or(usable.first()).copied()
    }

    /// Memory of written bytes is free: sockets that found none may look again.
    fn free_send(&mut self, bytes: u64) {
        debug_assert!(self.send_used >= bytes, "more is freed than was used");
        self.send_used -= bytes;
        if bytes == 0 {
            return;
        }
        for key in std::mem::take(&mut self.short_of_room) {
            if let Some(stream) = self.streams.get_mut(key) {
                stream.is_short_of_room = false;
            }
            self.tell_writable(key);
        }
    }

    /// Takes a stream out of the queue of its channel.
    fn unroute(&mut self, key: Key) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        if let Some(channel) = stream.route.queued_on.take()
            && let Some(channel) = self.channels.get_mut(channel)
        {
            channel.ready.remove(key);
        }
    }

    /// Has the application woken: once until it has looked.
    fn tell_readable(&mut self, key: Key) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let can_read = stream.receive.readable() > 0
            || stream.receive.is_at_end()
            || stream.failure().is_some();
        if can_read && stream.is_attached && !std::mem::replace(&mut stream.told_readable, true) {
            self.notices.push_back(Notice::Readable(key));
        }
    }

    fn tell_writable(&mut self, key: Key) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        if stream.is_attached && !std::mem::replace(&mut stream.told_writable, true) {
            self.notices.push_back(Notice::Writable(key));
        }
    }

    /// Ends a stream in both directions, and notifies its application and, unless it began there, its peer.
    fn fail(&mut self, key: Key, failure: StreamFailure, now: Nanos) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        if stream.failure().is_some() {
            return;
        }
        let was = std::mem::replace(&mut stream.phase, Phase::Failed(failure));
        let told = match failure {
            StreamFailure::Aborted(reason) => Some(reason),
            StreamFailure::TimedOut => Some(ResetReason::Closed),
            StreamFailure::Refused(_) | StreamFailure::Reset(_) => None,
        };
        let (id, peer) = (stream.id, stream.peer);
        let freed = stream.send.outstanding();
        self.free_send(freed);
        self.unroute(key);
        self.discharge(key);
        let until = Nanos(now.0.saturating_add(self.config.grace.0));
        if let Some(it) = self.peers.get_mut(peer) {
            it.streams.remove(&id);
            let (kind, offset) = match told {
                Some(reason) => (Kind::Reset, reason.code()),
                None => (Kind::Closed, 0),
            };
            let answer = Answer { kind, stream: id, offset };
            it.remember(Closed { answer, until, is_owed: told.is_some() });
            it.answer(answer);
        }
        self.tell_control(peer);
        self.wake_at(until);
        if let Phase::Incoming { listener } = was
            && let Some(listener) = self.listeners.get_mut(listener)
        {
            listener.waiting.retain(|waiting| *waiting != key);
        }
        if let Some(stream) = self.streams.get_mut(key) {
            // A waiter for the other direction has to learn it as well, whatever notice it had before.
            (stream.told_readable, stream.told_writable) = (false, false);
        }
        self.tell_readable(key);
        self.tell_writable(key);
        self.reap(key, now);
    }

    /// Forgets a stream that is over and that no application holds.
    fn reap(&mut self, key: Key, now: Nanos) {
        let Some(stream) = self.streams.get(key) else { return };
        if stream.is_attached || !stream.is_over() {
            return;
        }
        self.unroute(key);
        self.discharge(key);
        let Some(mut stream) = self.streams.remove(key) else { return };
        self.notices.push_back(Notice::Gone(key));
        let (ack, has_failed) = (stream.receive.ack(), stream.failure().is_some());
        let until = Nanos(now.0.saturating_add(self.config.grace.0));
        self.free_send(if has_failed { 0 } else { stream.send.outstanding() });
        if let Some(peer) = self.peers.get_mut(stream.peer) {
            if !has_failed {
                peer.streams.remove(&stream.id);
                let answer = Answer { kind: Kind::Update, stream: stream.id, offset: ack };
                // The peer waits for this last report.
                peer.remember(Closed { answer, until, is_owed: true });
                peer.answer(answer);
            }
            stream.is_control_queued = false;
            peer.control[stream.class.index()].retain(|queued| *queued != key);
            self.policies.flow.release(&mut peer.reserved, stream.window);
        }
        self.answer_late(stream.peer, now);
        self.wake_at(until);
    }
}
