//! What an endpoint has: its channels, what they have carried, and why they are there.

use std::fmt;

use quell_net_engine::Class;

use crate::core::Core;
use crate::endpoint::{Endpoint, Peer};

/// An endpoint at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Streams, those in backlogs and those that only a peer has to learn of included.
    pub streams: usize,
    /// Bytes of memory that hold what was written and not acknowledged.
    pub unacknowledged_bytes: u64,
    /// Bytes of memory that peers may fill.
    pub promised_bytes: u64,
    /// Of all peers.
    pub channels: Vec<ChannelStats>,
}

/// A channel at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelStats {
    /// Where it leads.
    pub peer: Peer,
    /// What it carries.
    pub class: Class,
    /// What carries it.
    pub transport: &'static str,
    /// Why it is there.
    pub origin: Origin,
    /// Bytes that its transport has taken, in so many calls.
    pub sent: Carried,
    /// Bytes that have come, in so many calls.
    pub received: Carried,
    /// Sockets whose data waits for it.
    pub waiting_sockets: usize,
    /// Its transport takes no more for now.
    pub is_full: bool,
    /// A thread of the program reads it at this moment, rather than the endpoint's own.
    pub is_led: bool,
}

/// Bytes, and how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Bytes.
    pub bytes: u64,
    /// Calls of the transport.
    pub calls: u64,
}

/// Why a channel is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This side opens one of the latency class to each peer, and as many for throughput as the configuration says.
    Configured,
    /// The peer has opened it.
    Peer,
    /// The program has made it of a transport of its own.
    Attached,
}

impl Carried {
    pub(crate) fn count(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.calls += 1;
    }
}

impl Endpoint {
    /// What it has now.
    pub fn stats(&self) -> Stats {
        self.shared().with(|core, _| core.stats()).0
    }
}

impl Core {
    fn stats(&self) -> Stats {
        let channels = self.channels.keys().filter_map(|key| {
            let channel = self.channels.get(key)?;
            Some(ChannelStats {
                peer: Peer(channel.peer),
                class: channel.class,
                transport: channel.name,
                origin: channel.origin,
                sent: channel.sent,
                received: channel.received,
                waiting_sockets: self.engine.waiting(key),
                is_full: channel.is_blocked,
                is_led: channel.leader.is_some(),
            })
        });
        Stats {
            streams: self.engine.stream_count(),
            unacknowledged_bytes: self.engine.send_used(),
            promised_bytes: self.engine.receive_reserved(),
            channels: channels.collect(),
        }
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stats { streams, unacknowledged_bytes, promised_bytes, channels } = self;
        writeln!(
            f,
            "{streams} streams; {unacknowledged_bytes} bytes not acknowledged, {promised_bytes} promised to peers"
        )?;
        channels.iter().try_for_each(|channel| writeln!(f, "{channel}"))
    }
}

impl fmt::Display for ChannelStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = match self.class {
            Class::Latency => "latency",
            Class::Throughput => "throughput",
        };
        let origin = match self.origin {
            Origin::Configured => "opened here by the configuration",
            Origin::Peer => "opened by the peer",
            Origin::Attached => "attached by the program",
        };
        let (sent, received) = (self.sent, self.received);
        write!(
            f,
            "{class} over {}, {origin}: sent {} bytes in {} calls, received {} in {}; {} sockets wait{}",
            self.transport,
            sent.bytes,
            sent.calls,
            received.bytes,
            received.calls,
            self.waiting_sockets,
            if self.is_full { "; full" } else { "" }
        )
    }
}
