//! What happens by time.

use quell_model::Nanos;

use super::stream::Phase;
use super::{Engine, Notice, StreamFailure};
use crate::table::Key;

/// Pings without an answer after which a channel is dead.
const PINGS_MAX: u32 = 3;

impl Engine {
    /// When [`Engine::timers`] wants to be called, if at all: calls that come later are late, no more.
    pub fn next_timer(&self) -> Option<Nanos> {
        self.timer
    }

    /// Does what is due by time.
    pub fn timers(&mut self, now: Nanos) {
        if self.timer.is_none_or(|at| now < at) {
            return;
        }
        self.timer = None;
        self.end_openings(now);
        self.check_channels(now);
        for key in std::mem::take(&mut self.late_reports) {
            if let Some(stream) = self.streams.get_mut(key) {
                stream.has_late_report = false;
                stream.due.report |= stream.failure().is_none() && stream.receive.has_news();
                self.queue_control(key);
            }
        }
        self.resend(now);
        if let Some(at) = self.stop_peers(now) {
            self.wake_at(at);
        }
        self.end_grace(now);
        let mut next = None;
        for (_, peer) in self.peers.iter_mut() {
            peer.forget_closed(now);
            let forget = peer.closed_order.front().and_then(|id| peer.closed.get(id));
            let lost = peer.lost_since.map(|at| Nanos(at.0.saturating_add(self.config.grace.0)));
            let at = forget.map(|closed| closed.until).into_iter().chain(lost);
            next = at.chain(next).min();
        }
        if let Some(at) = next {
            self.wake_at(at);
        }
    }

    fn end_openings(&mut self, now: Nanos) {
        let mut next = None;
        let mut over = Vec::new();
        for (key, stream) in self.streams.iter() {
            match stream.phase {
                Phase::Opening { until } if until <= now => over.push(key),
                Phase::Opening { until } => next = next.into_iter().chain([until]).min(),
                _ => {}
            }
        }
        over.into_iter().for_each(|key| self.fail(key, StreamFailure::TimedOut, now));
        if let Some(at) = next {
            self.wake_at(at);
        }
    }

    /// Asks channels that say nothing, and ends those that do not answer.
    fn check_channels(&mut self, now: Nanos) {
        let after = self.config.ping_after;
        let mut next = None;
        let (mut quiet, mut dead) = (Vec::new(), Vec::new());
        for (key, channel) in self.channels.iter_mut() {
            if channel.leaving.heard.is_some() {
                // The other side has said that it is silent, and reads what this one sends.
                channel.last_heard = now;
            }
            let wait = after.0.saturating_mul(u64::from(channel.pings) + 1);
            let at = Nanos(channel.last_heard.0.saturating_add(wait));
            if at > now {
                next = next.into_iter().chain([at]).min();
            } else if channel.pings >= PINGS_MAX {
                dead.push(key);
            } else {
                channel.pings += 1;
                channel.ping_due = true;
                quiet.push(key);
                next = next.into_iter().chain([Nanos(now.0.saturating_add(after.0))]).min();
            }
        }
        quiet.into_iter().for_each(|key| self.tell_channel(key));
        for key in dead {
            self.notices.push_back(Notice::Close(key));
            self.channel_down(key, now);
        }
        if let Some(at) = next {
            self.wake_at(at);
        }
    }

    /// Whether a channel to a stream's peer loses frames.
    pub(super) fn is_lossy(&self, key: Key) -> bool {
        let peer = self.streams.get(key).and_then(|stream| self.peers.get(stream.peer));
        peer.is_some_and(|peer| peer.is_lossy)
    }

    /// On lossy transports: a stream has something that the peer has to acknowledge, or to let it send.
    pub(super) fn note_waiting(&mut self, key: Key, now: Nanos) {
        if !self.is_lossy(key) {
            return;
        }
        let Some(stream) = self.streams.get_mut(key) else { return };
        if stream.send.is_finished() {
            stream.waiting_since = None;
            return;
        }
        let is_waiting = stream.send.is_in_flight()
            || stream.send.is_blocked()
            || stream.send.is_ready()
            || matches!(stream.phase, Phase::Opening { .. });
        match is_waiting {
            true => _ = stream.waiting_since.get_or_insert(now),
            false => stream.waiting_since = None,
        }
        if is_waiting {
            let after = stream.resend.after(self.config.resend_after);
            self.wake_at(Nanos(now.0.saturating_add(after.0)));
        }
    }

    /// On lossy transports: a gap that the peer reports is sent again, once in a while.
    pub(super) fn repair(&mut self, key: Key, start: u64, end: u64, now: Nanos) {
        let pause = Nanos(self.config.resend_after.0 / 4);
        let Some(stream) = self.streams.get_mut(key) else { return };
        if stream.repaired.is_some_and(|at| now.since(at) < pause) {
            return;
        }
        stream.repaired = Some(now);
        stream.send.missing(start, end);
        self.route(key);
    }

    /// Whether a channel that may carry a stream has bytes that its transport has not sent.
    fn has_backlog(&self, key: Key) -> bool {
        let peer = self.streams.get(key).and_then(|stream| self.peers.get(stream.peer));
        let channels = peer.map_or(&[][..], |peer| &peer.channels);
        let mut channels = channels.iter().filter_map(|key| self.channels.get(*key));
        channels.any(|channel| channel.is_full || channel.transport_backlog > 0)
    }

    /// On lossy transports: what was not acknowledged in time is sent again, and the peer asked for its limit.
    fn resend(&mut self, now: Nanos) {
        let least = self.config.resend_after;
        let waiting: Vec<(Key, Nanos)> = self
            .streams
            .iter()
            .filter_map(|(key, stream)| {
                let after = stream.resend.after(least);
                Some((key, Nanos(stream.waiting_since?.0.saturating_add(after.0))))
            })
            .collect();
        for (key, at) in waiting {
            if at > now {
                self.wake_at(at);
                continue;
            }
            let (mut after, has_left) = (least, !self.has_backlog(key));
            if let Some(stream) = self.streams.get_mut(key) {
                stream.waiting_since = Some(now);
            }
            // What waits on this side is not lost.
            if has_left && let Some(stream) = self.streams.get_mut(key) {
                stream.resend.in_vain();
                after = stream.resend.after(least);
                stream.send.all_missing();
                stream.must_open |= matches!(stream.phase, Phase::Opening { .. });
                stream.must_probe |= stream.send.is_blocked();
            }
            self.wake_at(Nanos(now.0.saturating_add(after.0)));
            self.route(key);
        }
        for (_, peer) in self.peers.iter_mut() {
            if peer.is_lossy {
                peer.answer_again();
            }
        }
        let peers: Vec<Key> = self.peers.iter().map(|(key, _)| key).collect();
        for peer in peers {
            self.tell_control(peer);
        }
    }
}
