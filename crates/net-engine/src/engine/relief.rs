//! Figure 5 of the paper: response queues, charged to channels; stop and resume.
//!
//! 1. What arrives for a socket moves to its response queue at once.
//! 2. It moves on to the socket's buffer as that has room.
//! 3. Bytes beyond the buffer are charged to the channel that brought them. A channel that is charged beyond its budget is
//!    not read, so that its transport's window closes.
//! 4. Where the buffer stays full, the peer is asked to stop. Once it has, the response queue becomes part of the buffer,
//!    and the channel is free. When there is room, the peer resumes.

use quell_model::Nanos;

use super::stream::{Response, Stream};
use super::{Engine, Notice};
use crate::flow::Relief;
use crate::ids::ChannelId;
use crate::table::Key;
use crate::wire::Kind;

impl Engine {
    /// Bytes have come over a channel: what the socket's buffer cannot take is charged to it.
    pub(super) fn charge(&mut self, channel: Key, key: Key, bytes: u64, now: Nanos) {
        let Some(relief) = self.policies.flow.relief() else { return };
        let Some(it) = self.channels.get_mut(channel) else { return };
        let Some(stream) = self.streams.get_mut(key) else { return };
        let excess = stream.unread().saturating_sub(relief.buffer).min(bytes);
        let response = stream.response.get_or_insert_default();
        if excess == 0 || response.is_stopped {
            return;
        }
        match response.charged.iter_mut().find(|(id, _)| *id == it.id) {
            Some((_, charged)) => *charged += excess,
            None => response.charged.push((it.id, excess)),
        }
        response.since.get_or_insert(now);
        it.charged += excess;
        if it.charged >= relief.channel_budget && it.charged - excess < relief.channel_budget {
            self.notices.push_back(Notice::Pause(channel, true));
        }
        self.wake_at(Nanos(now.0.saturating_add(relief.stop_after.0)));
    }

    /// The application has read: what has room now is charged no more, and a peer that stopped may go on.
    pub(super) fn relieve(&mut self, key: Key) {
        let Some(relief) = self.policies.flow.relief() else { return };
        let Some(stream) = self.streams.get_mut(key) else { return };
        let unread = stream.unread();
        let Some(response) = stream.response.as_deref_mut() else { return };
        let mut free = Vec::new();
        let mut excess = unread.saturating_sub(relief.buffer);
        for (channel, charged) in response.charged.iter_mut().rev() {
            let kept = (*charged).min(excess);
            excess -= kept;
            free.push((*channel, *charged - kept));
            *charged = kept;
        }
        response.charged.retain(|(_, charged)| *charged > 0);
        if response.charged.is_empty() {
            response.since = None;
        }
        if response.stop_sent && unread <= relief.buffer / 2 {
            (response.stop_sent, response.is_stopped) = (false, false);
            stream.due.stop = false;
            stream.due.resume = true;
        }
        let peer = stream.peer;
        self.refund(peer, &free, relief);
        self.queue_control(key);
    }

    /// A stream is over: nothing of it is charged to channels.
    pub(super) fn discharge(&mut self, key: Key) {
        let Some(relief) = self.policies.flow.relief() else { return };
        let Some(stream) = self.streams.get_mut(key) else { return };
        let peer = stream.peer;
        let charged = stream.response.take().map(|response| response.charged);
        self.refund(peer, &charged.unwrap_or_default(), relief);
    }

    fn refund(&mut self, peer: Key, free: &[(ChannelId, u64)], relief: Relief) {
        let Some(peer) = self.peers.get(peer) else { return };
        for key in &peer.channels {
            let Some(channel) = self.channels.get_mut(*key) else { continue };
            let own = free.iter().filter(|(id, _)| *id == channel.id);
            let bytes: u64 = own.map(|(_, bytes)| bytes).sum();
            let was_paused = channel.charged >= relief.channel_budget;
            debug_assert!(channel.charged >= bytes, "a channel is refunded more than was charged");
            channel.charged = channel.charged.saturating_sub(bytes);
            if was_paused && channel.charged < relief.channel_budget {
                self.notices.push_back(Notice::Pause(*key, false));
            }
        }
    }

    /// Asks peers to stop whose response queues have held bytes for too long. Returns when to look again.
    pub(super) fn stop_peers(&mut self, now: Nanos) -> Option<Nanos> {
        let relief = self.policies.flow.relief()?;
        let due = |stream: &Stream| {
            let response = stream.response.as_deref().filter(|response| !response.stop_sent)?;
            Some(Nanos(response.since?.0.saturating_add(relief.stop_after.0)))
        };
        let waiting: Vec<(Key, Nanos)> =
            self.streams.iter().filter_map(|(key, stream)| Some((key, due(stream)?))).collect();
        let mut next = None;
        for (key, at) in waiting {
            if at > now {
                next = Some(next.map_or(at, |next: Nanos| next.min(at)));
                continue;
            }
            if let Some(stream) = self.streams.get_mut(key) {
                stream.due.stop = true;
                stream.due.resume = false;
                stream.response.get_or_insert_default().stop_sent = true;
            }
            self.queue_control(key);
        }
        next
    }

    /// Frames of the handshake.
    pub(super) fn relief_frame(&mut self, key: Key, kind: Kind, _offset: u64) {
        let relief = self.policies.flow.relief();
        let Some(stream) = self.streams.get_mut(key) else { return };
        match kind {
            Kind::Stop => {
                stream.send.set_stopped(true);
                stream.due.stopped = true;
                self.unroute(key);
                self.route(key);
            }
            Kind::Resume => {
                stream.send.set_stopped(false);
                stream.due.stopped = false;
                self.route(key);
            }
            Kind::Stopped => {
                let response: &mut Response = stream.response.get_or_insert_default();
                if !response.stop_sent {
                    // The peer has heard Resume before Stop: they went over different channels.
                    stream.due.resume = true;
                    return self.queue_control(key);
                }
                // The response queue becomes part of the buffer.
                response.is_stopped = true;
                let free = std::mem::take(&mut response.charged);
                response.since = None;
                let peer = stream.peer;
                if let Some(relief) = relief {
                    self.refund(peer, &free, relief);
                }
            }
            _ => {}
        }
        self.queue_control(key);
    }
}
