//! What an application does with sockets.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use quell_model::Nanos;

use super::peer::Listener;
use super::stream::{Due, Phase, ResendTime, Route, Stream};
use super::{Engine, StreamFailure};
use crate::flow::Reading;
use crate::ids::{ChannelId, Class, ResetReason, StreamId};
use crate::table::Key;
use crate::vns::{ReceiveHalf, SendHalf};
use crate::wire::Open;

/// Why no stream could be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// No channel ever led to it, or it is gone.
    #[error("the peer is not connected")]
    NoPeer,
    /// It accepts no further streams.
    #[error("the peer is closing")]
    Closing,
    /// As many streams as are allowed are there.
    #[error("{0} streams are open, the most that are allowed")]
    TooMany(usize),
    /// The memory for what it would receive is spoken for.
    #[error("the memory limit of received data is reached")]
    Memory,
}

/// Why an address cannot be listened on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is in use by another listener of this endpoint")]
pub struct ListenError(pub SocketAddr);

/// What a socket can do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketStatus {
    /// The peer has accepted it.
    pub is_connected: bool,
    /// Bytes that can be read.
    pub readable: u64,
    /// All was read, and nothing follows.
    pub is_at_end: bool,
    /// This side writes no more.
    pub is_ended: bool,
    /// Bytes that can be written.
    pub writable: u64,
    /// Written bytes that no channel has taken.
    pub unsent: u64,
    /// Written bytes that the peer's process has not received.
    pub unacknowledged: u64,
    /// It is over before its time.
    pub failure: Option<StreamFailure>,
}

impl Engine {
    /// Listens on an address, that of all interfaces included.
    ///
    /// # Errors
    /// When another listener has it.
    pub fn listen(&mut self, address: SocketAddr, backlog: usize) -> Result<Key, ListenError> {
        if self.addresses.contains_key(&address) {
            return Err(ListenError(address));
        }
        let listener = Listener { backlog: backlog.max(1), waiting: VecDeque::new() };
        let key = self.listeners.insert(listener);
        self.addresses.insert(address, key);
        Ok(key)
    }

    /// Listens no more; streams that were not accepted are reset.
    pub fn close_listener(&mut self, key: Key, now: Nanos) {
        let Some(listener) = self.listeners.remove(key) else { return };
        self.addresses.retain(|_, listener| *listener != key);
        for waiting in listener.waiting {
            self.fail(waiting, StreamFailure::Aborted(ResetReason::Closed), now);
        }
    }

    /// The listener of an address: the exact one before that of all interfaces.
    pub(super) fn listener_of(&self, address: SocketAddr) -> Option<Key> {
        let any = match address.ip() {
            IpAddr::V4(_) => {
                vec![IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()]
            }
            IpAddr::V6(_) => vec![Ipv6Addr::UNSPECIFIED.into()],
        };
        let all = std::iter::once(address.ip()).chain(any);
        all.map(|ip| SocketAddr::new(ip, address.port()))
            .find_map(|address| self.addresses.get(&address).copied())
    }

    /// The next stream of a listener's backlog; its other end's address comes with it.
    pub fn accept(&mut self, listener: Key) -> Option<(Key, Open)> {
        let key = self.listeners.get_mut(listener)?.waiting.pop_front()?;
        let stream = self.streams.get_mut(key)?;
        debug_assert!(matches!(stream.phase, Phase::Incoming { .. }));
        stream.phase = Phase::Established;
        stream.is_attached = true;
        let open = stream.open;
        self.tell_readable(key);
        Some((key, open))
    }

    /// Opens a stream to a peer. [`Notice::Connected`](super::Notice::Connected) or a failure follows; it can be written before.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn open(&mut self, peer: Key, open: Open, now: Nanos) -> Result<Key, ConnectError> {
        let max = self.config.streams_max;
        if self.streams.len() >= max {
            return Err(ConnectError::TooMany(max));
        }
        let it = self.peers.get_mut(peer).ok_or(ConnectError::NoPeer)?;
        let id = it.next.filter(|_| !it.said_goodbye).ok_or(ConnectError::Closing)?;
        let window = self.policies.flow.admit(&mut it.reserved, now);
        let window = window.ok_or(ConnectError::Memory)?;
        let first_window = u64::from(it.first_window);
        it.next = id.next();
        let until = Nanos(now.0.saturating_add(self.config.open_timeout.0));
        let mut stream = Stream::new(id, peer, open, Phase::Opening { until }, window);
        stream.is_attached = true;
        stream.must_open = true;
        stream.receive.raise_limit(window.size());
        stream.send.set_limit(first_window);
        let key = self.streams.insert(stream);
        if let Some(it) = self.peers.get_mut(peer) {
            it.streams.insert(id, key);
        }
        self.wake_at(until);
        self.route(key);
        Ok(key)
    }

    /// The application of a stream that it has just opened goes on at once, and learns of a refusal later.
    pub fn open_early(&mut self, key: Key) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.is_early = true;
        }
    }

    /// What a socket can do; `None` for one that was closed.
    pub fn status(&self, key: Key) -> Option<SocketStatus> {
        let stream = self.streams.get(key).filter(|stream| stream.is_attached)?;
        let failure = stream.failure();
        // What arrived before the peer reset the stream is lost with it, as in TCP.
        let can_read = failure.is_none() || stream.drains();
        Some(SocketStatus {
            is_connected: stream.phase == Phase::Established,
            readable: if can_read { stream.receive.readable() } else { 0 },
            is_at_end: can_read && stream.receive.is_at_end(),
            is_ended: stream.send.is_ended(),
            writable: self.room(stream),
            unsent: stream.send.unsent(),
            unacknowledged: stream.send.outstanding(),
            failure,
        })
    }

    /// The channel that carried the last of a socket's bytes, and why it was chosen; none before the first.
    pub fn carrier(&self, key: Key) -> Option<(ChannelId, &'static str)> {
        let stream = self.streams.get(key)?;
        let last = stream.route.last?;
        let channels = &self.peers.get(stream.peer)?.channels;
        let mut known = channels.iter().filter_map(|key| self.channels.get(*key));
        let channel = known.find(|channel| channel.id == last)?;
        let reason = if stream.route.pinned == Some(last) {
            "the stream was opened on it, and is not answered"
        } else if channel.class != stream.class {
            "there was none of its class"
        } else {
            self.policies.choice[stream.class.index()].reason()
        };
        Some((last, reason))
    }

    /// The number of a channel: no other of this endpoint has it, or had it before.
    pub fn channel_id(&self, key: Key) -> Option<ChannelId> {
        Some(self.channels.get(key)?.id)
    }

    /// Bytes that the peer would accept of a socket beyond what was sent.
    pub fn credit(&self, key: Key) -> u64 {
        self.streams.get(key).map_or(0, |stream| stream.send.credit())
    }

    /// What a socket carries.
    pub fn class_of(&self, key: Key) -> Option<Class> {
        Some(self.streams.get(key)?.class)
    }

    /// The peer of a socket.
    pub fn peer_of(&self, key: Key) -> Option<Key> {
        Some(self.streams.get(key)?.peer)
    }

    fn room(&self, stream: &Stream) -> u64 {
        if stream.send.is_ended() || stream.failure().is_some() {
            return 0;
        }
        let own = self.own_room(stream);
        // A socket that has nothing in memory may have a little of it whatever others have.
        let shared = self.config.send_memory.saturating_sub(self.send_used);
        let least = SEND_LEAST.saturating_sub(stream.send.outstanding());
        own.min(shared.max(least))
    }

    /// Room in a socket's own memory. Little of it is for bytes that no channel has taken: these grow cold.
    fn own_room(&self, stream: &Stream) -> u64 {
        let free = self.config.send_buffer.saturating_sub(stream.send.outstanding());
        free.min(self.config.unsent_max.saturating_sub(stream.send.unsent()))
    }

    /// The first byte of a socket's memory that is still needed, and the end of what was written.
    pub fn send_range(&self, key: Key) -> Option<(u64, u64)> {
        let stream = self.streams.get(key)?;
        Some((stream.send.acked(), stream.send.written()))
    }

    /// The range of a socket's received bytes that can be read.
    pub fn receive_range(&self, key: Key) -> Option<(u64, u64)> {
        let stream = self.streams.get(key)?;
        Some((stream.receive.read_offset(), stream.receive.arrived()))
    }

    /// The application has written so many bytes, which are in the socket's memory.
    pub fn written(&mut self, key: Key, bytes: u64, now: Nanos) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        if stream.failure().is_some() {
            return;
        }
        debug_assert!(!stream.send.is_ended(), "written after the end");
        if stream.send.is_ended() {
            return;
        }
        stream.send.write(bytes);
        self.send_used += bytes;
        self.note_waiting(key, now);
        self.route(key);
    }

    /// The application found no room: a notice follows when there is some.
    pub fn wants_room(&mut self, key: Key) {
        let Some(stream) = self.streams.get(key) else { return };
        // Memory of others helps a socket that has room of its own, and no other.
        let is_short = self.own_room(stream) > 0 && self.room(stream) == 0;
        let Some(stream) = self.streams.get_mut(key) else { return };
        // One without a notice since waits already.
        let is_new = std::mem::take(&mut stream.told_writable);
        if is_new && is_short && !std::mem::replace(&mut stream.is_short_of_room, true) {
            self.short_of_room.push(key);
        }
    }

    /// Has the application woken for room that is worth waking for: a third of the socket's memory, as in the kernel's
    /// `sk_stream_is_writeable`, and half of what may be unsent.
    pub(super) fn tell_room(&mut self, key: Key) {
        let Some(stream) = self.streams.get(key) else { return };
        let (outstanding, unsent) = (stream.send.outstanding(), stream.send.unsent());
        if outstanding <= self.config.send_buffer / 3 * 2 && unsent <= self.config.unsent_max / 2 {
            self.tell_writable(key);
        }
    }

    /// The application has read so many bytes, or looked and found none.
    pub fn read(&mut self, key: Key, bytes: u64, now: Nanos) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.told_readable = false;
        if bytes == 0 || (stream.failure().is_some() && !stream.drains()) {
            return;
        }
        stream.receive.read(bytes);
        self.raise_limit(key, now);
        self.relieve(key);
        self.tell_readable(key);
    }

    /// Lets the peer send more if there is room, and says so if it is enough to say.
    pub(super) fn raise_limit(&mut self, key: Key, now: Nanos) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let Some(peer) = self.peers.get_mut(stream.peer) else { return };
        let receive = &mut stream.receive;
        let reading = Reading {
            arrived: receive.arrived(),
            read: receive.read_offset(),
            limit: receive.limit(),
            now,
        };
        if !receive.is_finished() {
            let flow = &mut self.policies.flow;
            receive.raise_limit(flow.limit(&mut peer.reserved, &mut stream.window, &reading));
        }
        // Before it is accepted the open frame says all.
        let may_report = match stream.phase {
            Phase::Opening { .. } | Phase::Failed(_) => false,
            Phase::Incoming { .. } | Phase::Established => true,
        };
        let size = match peer.is_lossy {
            true => stream.window.size().min(LOSSY_WINDOW),
            false => stream.window.size(),
        };
        let is_due = may_report && receive.is_report_due(size);
        // A latency socket's answer follows soon, as a rule: the report goes with it.
        let may_wait = stream.class == Class::Latency
            && !stream.window.is_limiting()
            && receive.may_report_late(size);
        let is_new = may_report && receive.has_news() && !stream.has_late_report;
        stream.due.report |= is_due;
        match is_due && !may_wait {
            true => self.queue_control(key),
            false if is_due => self.queue_quietly(key),
            false => {}
        }
        if is_new && (!is_due || may_wait) {
            self.report_late(key, now);
        }
    }

    /// What a socket's peer does not need soon is reported a little later.
    pub(super) fn report_late(&mut self, key: Key, now: Nanos) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.has_late_report = true;
            self.late_reports.push(key);
        }
        self.wake_at(Nanos(now.0.saturating_add(REPORT_WITHIN.0)));
    }

    /// The application writes no more; what it has written is sent.
    pub fn end_writing(&mut self, key: Key, now: Nanos) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        if !stream.send.is_ended() && stream.failure().is_none() {
            stream.send.end();
            self.note_waiting(key, now);
            self.route(key);
        }
    }

    /// The application gives a socket up. What it has written is still sent; unread data resets the stream, as in TCP
    /// (RFC 2525, 2.17).
    pub fn close(&mut self, key: Key, now: Nanos) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.is_attached = false;
        let has_unread = stream.receive.readable() > 0;
        if has_unread {
            return self.abort(key, now);
        }
        self.end_writing(key, now);
        self.reap(key, now);
    }

    /// The application gives a socket up with all that it has written.
    pub fn abort(&mut self, key: Key, now: Nanos) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.is_attached = false;
        }
        self.fail(key, StreamFailure::Aborted(ResetReason::Closed), now);
        self.reap(key, now);
    }
}

/// Of a stream that may lose frames as much is reported as if its window were no larger: what is not acknowledged is sent again.
const LOSSY_WINDOW: u64 = 128 << 10;

/// How long a report waits that says little: what it acknowledges keeps memory of the sender.
pub(super) const REPORT_WITHIN: Nanos = Nanos::from_millis(5);
/// What a socket may write whatever others have in memory.
const SEND_LEAST: u64 = 16 << 10;

impl Stream {
    pub(super) fn new(
        id: StreamId,
        peer: Key,
        open: Open,
        phase: Phase,
        window: crate::flow::Window,
    ) -> Stream {
        Stream {
            id,
            peer,
            class: open.class,
            open,
            phase,
            send: SendHalf::default(),
            receive: ReceiveHalf::default(),
            window,
            due: Due::default(),
            is_control_queued: false,
            must_open: false,
            is_early: false,
            is_confirmed: false,
            is_ours: matches!(phase, Phase::Opening { .. }),
            route: Route::default(),
            is_attached: false,
            told_readable: false,
            told_writable: true,
            is_short_of_room: false,
            waiting_since: None,
            resend: ResendTime::default(),
            must_probe: false,
            has_late_report: false,
            repaired: None,
            response: None,
        }
    }
}
