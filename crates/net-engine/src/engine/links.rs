//! Channels that come and go, and the peers that they lead to.

use std::collections::{BTreeMap, VecDeque};

use quell_model::Nanos;

use super::peer::{Channel, ChannelCaps, Peer};
use super::retire::{Leaving, Word};
use super::stream::Phase;
use super::{Engine, Notice, StreamFailure};
use crate::flow::Reserved;
use crate::ids::{ChannelId, Class, EndpointId, ResetReason, StreamId};
use crate::scheduler::DeficitQueue;
use crate::table::Key;
use crate::vns::RangeSet;
use crate::wire::{Features, Hello, Refusal};

impl Engine {
    /// What this endpoint says first on a channel.
    pub fn hello(&self, channel: ChannelId, class: Class) -> Hello {
        Hello {
            endpoint: self.config.id,
            channel,
            class,
            features: self.config.features(),
            max_frame: self.config.max_frame,
            first_window: self.policies.first_window,
        }
    }

    /// A channel is up: both sides have said hello. `is_ours`: this side opened it.
    ///
    /// # Errors
    /// When it is not taken; the driver closes it.
    pub fn channel_up(
        &mut self,
        hello: &Hello,
        is_ours: bool,
        caps: ChannelCaps,
        now: Nanos,
    ) -> Result<Key, Refusal> {
        if hello.endpoint == self.config.id {
            return Err(Refusal::OwnEndpoint);
        }
        let features = self.config.features().common(hello.features);
        if caps.is_lossy && !features.contains(Features::RECOVERY) {
            return Err(Refusal::Lossy);
        }
        let peer = self.meet(hello)?;
        let number = (hello.channel, is_ours);
        let id = ChannelId(self.next_channel);
        let it = self.peers.get(peer).ok_or(Refusal::Closing)?;
        let mut known = it.channels.iter().filter_map(|key| self.channels.get(*key));
        if known.any(|channel| channel.number == number) {
            return Err(Refusal::Duplicate(hello.channel));
        }
        if it.channels.len() >= self.config.channels_max {
            return Err(Refusal::TooMany(self.config.channels_max));
        }
        self.next_channel = self.next_channel.wrapping_add(1);
        let channel = Channel {
            id,
            number,
            peer,
            class: hello.class,
            caps,
            ready: DeficitQueue::new(self.config.quantum),
            transport_backlog: 0,
            is_full: false,
            rtt: Nanos::ZERO,
            charged: 0,
            last_heard: now,
            pings: 0,
            ping_due: false,
            pong_due: None,
            goodbye_due: false,
            leaving: Leaving::default(),
            is_told: false,
        };
        let key = self.channels.insert(channel);
        if let Some(it) = self.peers.get_mut(peer) {
            it.channels.push(key);
            it.is_lossy |= caps.is_lossy;
            it.lost_since = None;
        }
        self.wake_at(Nanos(now.0.saturating_add(self.config.ping_after.0)));
        self.resume_all(peer);
        Ok(key)
    }

    /// The peer that says hello: known, or new.
    fn meet(&mut self, hello: &Hello) -> Result<Key, Refusal> {
        if let Some(known) = self.endpoints.get(&hello.endpoint) {
            return Ok(*known);
        }
        if self.peers.len() >= self.config.peers_max {
            return Err(Refusal::TooManyPeers(self.config.peers_max));
        }
        // Numbers are never used again, whatever was forgotten meanwhile.
        let first = (Some(StreamId::first(self.config.id, hello.endpoint)), RangeSet::new());
        let (next, seen) = self.forgotten.remove(&hello.endpoint).unwrap_or(first);
        let peer = self.peers.insert(Peer {
            endpoint: hello.endpoint,
            features: self.config.features().common(hello.features),
            first_window: hello.first_window,
            max_frame: hello.max_frame.min(self.config.max_frame),
            streams: BTreeMap::new(),
            next,
            seen,
            channels: Vec::new(),
            control: Default::default(),
            answers: VecDeque::new(),
            has_dropped_answers: false,
            closed: BTreeMap::new(),
            closed_order: VecDeque::new(),
            reserved: Reserved::default(),
            is_lossy: false,
            lost_since: None,
            said_goodbye: false,
        });
        self.endpoints.insert(hello.endpoint, peer);
        Ok(peer)
    }

    /// A peer by its endpoint.
    pub fn peer(&self, endpoint: EndpointId) -> Option<Key> {
        self.endpoints.get(&endpoint).copied()
    }

    /// The endpoint of a peer.
    pub fn endpoint(&self, peer: Key) -> Option<EndpointId> {
        Some(self.peers.get(peer)?.endpoint)
    }

    /// The channels of a peer, with their classes.
    pub fn channels(&self, peer: Key) -> impl Iterator<Item = (Key, Class)> {
        let channels = self.peers.get(peer).map_or(&[][..], |peer| &peer.channels);
        channels.iter().filter_map(|key| Some((*key, self.channels.get(*key)?.class)))
    }

    /// What waits, and what is due, goes to the channels that there are now.
    fn resume_all(&mut self, peer: Key) {
        let Some(it) = self.peers.get(peer) else { return };
        let streams: Vec<Key> = it.streams.values().copied().collect();
        streams.into_iter().for_each(|key| self.route(key));
        self.tell_control(peer);
    }

    /// What a channel's transport has not sent, and whether it takes more.
    pub fn channel_load(&mut self, key: Key, backlog: u64, is_full: bool, rtt: Nanos) {
        let Some(channel) = self.channels.get_mut(key) else { return };
        let was_full = std::mem::replace(&mut channel.is_full, is_full);
        (channel.transport_backlog, channel.rtt) = (backlog, rtt);
        let peer = channel.peer;
        if was_full != is_full {
            // Control frames may have to take another channel now.
            self.tell_control(peer);
        }
    }

    /// A channel is gone. What it carried and was not acknowledged is sent again over the others; without recovery, streams
    /// that used it are reset. One that [`Engine::is_retired`] has lost nothing.
    pub fn channel_down(&mut self, key: Key, now: Nanos) {
        let Some(mut channel) = self.channels.remove(key) else { return };
        let Some(peer) = self.peers.get_mut(channel.peer) else { return };
        peer.channels.retain(|other| *other != key);
        let mut others = peer.channels.iter().filter_map(|key| self.channels.get(*key));
        peer.is_lossy = others.any(|channel| channel.caps.is_lossy);
        let has_arrived = channel.leaving.heard == Some(Word::Heard);
        if !has_arrived {
            peer.answer_again();
        }
        let streams: Vec<Key> = peer.streams.values().copied().collect();
        for stream in channel.ready.drain() {
            if let Some(stream) = self.streams.get_mut(stream) {
                stream.route.queued_on = None;
            }
        }
        for stream in streams {
            match has_arrived {
                true => self.leave_channel(stream, channel.id),
                false => self.lose_channel(stream, channel.id, now),
            }
        }
        if let Some(peer) = self.peers.get_mut(channel.peer)
            && peer.channels.is_empty()
        {
            peer.lost_since = Some(now);
            self.wake_at(Nanos(now.0.saturating_add(self.config.grace.0)));
        }
        if !self.channels(channel.peer).any(|(_, class)| class == channel.class) {
            self.notices.push_back(Notice::Missing(channel.peer, channel.class));
        }
        self.resume_all(channel.peer);
    }

    /// A channel is gone, and all that it has carried has arrived.
    fn leave_channel(&mut self, key: Key, channel: ChannelId) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.route.used.retain(|used| *used != channel);
        if let Some(response) = &mut stream.response {
            response.charged.retain(|(charged, _)| *charged != channel);
        }
    }

    fn lose_channel(&mut self, key: Key, channel: ChannelId, now: Nanos) {
        let has_recovery = self.has_recovery(key);
        let Some(stream) = self.streams.get_mut(key) else { return };
        let route = &stream.route;
        let used = route.used.contains(&channel) || route.pinned == Some(channel);
        if !has_recovery && used {
            return self.fail(key, StreamFailure::Aborted(ResetReason::PeerLost), now);
        }
        stream.send.channel_lost(channel);
        if let Phase::Opening { .. } = stream.phase
            && stream.route.pinned == Some(channel)
        {
            stream.must_open = true;
            stream.route.pinned = None;
            stream.send.all_missing();
        }
        // Control frames that were on their way may be lost: each is repeated once.
        let was_accepted = matches!(stream.phase, Phase::Established | Phase::Incoming { .. });
        stream.due.accept |= was_accepted && !stream.is_ours && !stream.is_confirmed;
        stream.receive.report_again();
        let is_opening = matches!(stream.phase, Phase::Opening { .. });
        stream.due.report |= !is_opening && stream.receive.has_news();
        stream.receive.ask_again();
        stream.due.resend |= stream.receive.must_ask();
        if let Some(response) = &stream.response {
            stream.due.stop |= response.stop_sent;
            stream.due.resume |= !response.stop_sent;
            stream.due.stopped |= stream.send.is_stopped();
        }
        if let Some(response) = &mut stream.response {
            response.charged.retain(|(charged, _)| *charged != channel);
        }
        self.queue_control(key);
    }

    /// Whether a stream's data is kept until it is acknowledged.
    pub(super) fn has_recovery(&self, key: Key) -> bool {
        let peer = self.streams.get(key).and_then(|stream| self.peers.get(stream.peer));
        peer.is_some_and(|peer| peer.features.contains(Features::RECOVERY))
    }

    /// The peer is gone, for instance because it has restarted: all its streams are reset at once.
    pub fn peer_gone(&mut self, peer: Key, now: Nanos) {
        let Some(it) = self.peers.get(peer) else { return };
        let streams: Vec<Key> = it.streams.values().copied().collect();
        let channels = it.channels.clone();
        for stream in streams {
            self.fail(stream, StreamFailure::Reset(ResetReason::PeerLost), now);
        }
        for channel in channels {
            self.channels.remove(channel);
            self.notices.push_back(Notice::Close(channel));
        }
        self.forget_peer(peer);
    }

    fn forget_peer(&mut self, key: Key) {
        // Failed streams that an application still holds keep their reserved memory until they are closed: it is taken
        // from the peer's account now.
        let held: Vec<Key> =
            self.streams.iter().filter(|(_, it)| it.peer == key).map(|(key, _)| key).collect();
        let Some(mut peer) = self.peers.remove(key) else { return };
        for stream in held.iter().filter_map(|key| self.streams.get(*key)) {
            self.policies.flow.release(&mut peer.reserved, stream.window);
        }
        debug_assert_eq!(peer.reserved.bytes(), 0, "a peer's memory is not balanced");
        self.endpoints.remove(&peer.endpoint);
        while self.forgotten.len() >= self.config.peers_max {
            // One that comes back after so many others finds its old numbers answered by resets.
            self.forgotten.pop_first();
        }
        self.forgotten.insert(peer.endpoint, (peer.next, peer.seen));
        self.notices.push_back(Notice::PeerGone(key));
    }

    /// A peer whose last channel is lost for the grace time is forgotten.
    pub(super) fn end_grace(&mut self, now: Nanos) {
        let grace = self.config.grace;
        let is_over = |since: Option<Nanos>| since.is_some_and(|since| now.since(since) >= grace);
        let lost: Vec<Key> = self
            .peers
            .iter()
            .filter(|(_, peer)| is_over(peer.lost_since))
            .map(|(key, _)| key)
            .collect();
        lost.into_iter().for_each(|peer| self.peer_gone(peer, now));
    }

    /// Announces to all peers that this endpoint opens and accepts nothing more.
    pub fn say_goodbye(&mut self) {
        let keys: Vec<Key> = self.channels.iter().map(|(key, _)| key).collect();
        for key in keys {
            if let Some(channel) = self.channels.get_mut(key) {
                channel.goodbye_due = true;
            }
            self.tell_channel(key);
        }
    }
}
