//! What an endpoint has: its channels, what they have carried, and why they are there.

use std::fmt;
use std::time::Duration;

use quell_model::{CoreId, Nanos};
use quell_net_engine::{Class, Key};

use crate::channel::Channel;
use crate::core::Core;
use crate::endpoint::{Endpoint, Peer};
use crate::placing::{PlacedThread, Placing, ThreadState};
use crate::stream::Stream;

/// An endpoint at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Streams, those in backlogs and those that only a peer has to learn of included.
    pub streams: usize,
    /// Bytes of memory that hold what was written and not acknowledged.
    pub unacknowledged_bytes: u64,
    /// Bytes of memory that peers may fill.
    pub promised_bytes: u64,
    /// Peers, each with what was decided for it.
    pub peers: Vec<PeerStats>,
    /// Of all peers.
    pub channels: Vec<ChannelStats>,
    /// Threads that send and read channels, each on its core, where a policy places them.
    pub placed_threads: Vec<PlacedThreadStats>,
    /// Threads that copy large reads and writes, where a policy wants them.
    pub copy_workers: Vec<CopyWorkerStats>,
}

/// A thread that sends and reads channels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedThreadStats {
    /// Where the policy wants it.
    pub core: CoreId,
    /// Whether the kernel keeps it there, as was read back; `None` until it runs.
    pub is_kept: Option<bool>,
    /// The [`ChannelStats::number`] of its channels.
    pub channels: Vec<u32>,
}

/// A thread that copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyWorkerStats {
    /// Where the policy wants it.
    pub core: CoreId,
    /// Whether the kernel keeps it there, as was read back.
    pub is_kept: bool,
    /// Parts of calls that it has copied.
    pub parts: u64,
    /// Bytes of those.
    pub bytes: u64,
}

/// A peer at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStats {
    /// Which.
    pub peer: Peer,
    /// Channels of the throughput class that this side keeps open to it: all that there are where no policy decides.
    pub throughput_channels: usize,
    /// Why so many.
    pub reason: &'static str,
}

/// A channel at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelStats {
    /// No other channel of the endpoint has it, or had it before.
    pub number: u32,
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
    /// Round-trip time of bulk data, where its transport crosses a network and has said it.
    pub rtt: Option<Duration>,
    /// Bytes per second that it sends at most, so that no queue forms in front of the slowest link.
    pub pace: Option<u64>,
    /// It is given up: what it carries arrives, and nothing new takes it.
    pub is_leaving: bool,
    /// Its transport takes no more for now.
    pub is_full: bool,
    /// The core on which a thread of the endpoint sends and reads it, if a policy has placed it.
    pub core: Option<CoreId>,
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
    /// Time in these calls; of the throughput class only.
    pub time: Duration,
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
    pub(crate) fn count(&mut self, bytes: usize, time: Duration) {
        self.bytes += bytes as u64;
        self.calls += 1;
        self.time += time;
    }
}

/// A stream at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamStats {
    /// What it carries.
    pub class: Class,
    /// The [`ChannelStats::number`] of the channel that carried the last of its bytes, if it is still there.
    pub channel: Option<u32>,
    /// Why that one.
    pub reason: &'static str,
    /// Bytes that can be read.
    pub readable_bytes: u64,
    /// Written bytes that no channel has taken.
    pub unsent_bytes: u64,
    /// Written bytes that the peer's process has not received.
    pub unacknowledged_bytes: u64,
    /// Bytes that the peer would accept beyond what was sent.
    pub credit_bytes: u64,
}

impl Stream {
    /// How it stands; `None` once it is over.
    pub fn stats(&self) -> Option<StreamStats> {
        let (key, class) = (self.key(), self.class());
        let look = |core: &mut Core, _| {
            let status = core.engine.status(key)?;
            let carrier = core.engine.carrier(key);
            Some(StreamStats {
                class,
                channel: carrier.map(|(channel, _)| channel.0),
                reason: carrier.map_or("nothing was sent, or its channel is gone", |it| it.1),
                readable_bytes: status.readable,
                unsent_bytes: status.unsent,
                unacknowledged_bytes: status.unacknowledged,
                credit_bytes: core.engine.credit(key),
            })
        };
        self.endpoint().shared().with(look).0
    }
}

impl fmt::Display for StreamStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let channel = self.channel.map_or("no channel".to_owned(), |it| format!("channel {it}"));
        write!(
            f,
            "{channel}: {}; {} bytes to read, {} to send, {} not acknowledged, {} may follow",
            self.reason,
            self.readable_bytes,
            self.unsent_bytes,
            self.unacknowledged_bytes,
            self.credit_bytes
        )
    }
}

impl Endpoint {
    /// What it has now.
    pub fn stats(&self) -> Stats {
        let copy_workers = self.copying().stats();
        Stats { copy_workers, ..self.shared().with(|core, _| core.stats()).0 }
    }
}

impl Core {
    fn stats(&self) -> Stats {
        let channels = self.channels.keys().filter_map(|key| {
            let channel = self.channels.get(key)?;
            Some(ChannelStats {
                number: self.engine.channel_id(key)?.0,
                peer: Peer(channel.peer),
                class: channel.class,
                transport: channel.name,
                origin: channel.origin,
                sent: channel.sent,
                received: channel.received,
                waiting_sockets: self.engine.waiting(key),
                rtt: (channel.rtt > Nanos::ZERO).then(|| Duration::from_nanos(channel.rtt.0)),
                pace: channel.pace,
                is_leaving: self.engine.is_leaving(key),
                is_full: channel.is_blocked,
                core: self.core_of(channel),
                is_led: channel.leader.is_some(),
            })
        });
        Stats {
            streams: self.engine.stream_count(),
            unacknowledged_bytes: self.engine.send_used(),
            promised_bytes: self.engine.receive_reserved(),
            peers: self.peer_stats(),
            channels: channels.collect(),
            placed_threads: self.placed_threads(),
            copy_workers: Vec::new(),
        }
    }

    fn core_of(&self, channel: &Channel) -> Option<CoreId> {
        Some(self.placing.as_ref()?.threads().get(channel.thread?)?.core)
    }

    fn placed_threads(&self) -> Vec<PlacedThreadStats> {
        let threads = self.placing.iter().flat_map(Placing::threads).enumerate();
        let stats = |(index, thread): (usize, &PlacedThread)| {
            let is_its = |key: &Key| {
                self.channels.get(*key).is_some_and(|channel| channel.thread == Some(index))
            };
            let keys = self.channels.keys().filter(is_its);
            PlacedThreadStats {
                core: thread.core,
                is_kept: match thread.state {
                    ThreadState::Wanted | ThreadState::Started => None,
                    ThreadState::Runs(is_kept) => Some(is_kept),
                    ThreadState::Failed => Some(false),
                },
                channels: keys.filter_map(|key| Some(self.engine.channel_id(key)?.0)).collect(),
            }
        };
        threads.map(stats).collect()
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stats { streams, unacknowledged_bytes, promised_bytes, peers, channels, .. } = self;
        writeln!(
            f,
            "{streams} streams; {unacknowledged_bytes} bytes not acknowledged, {promised_bytes} promised to peers"
        )?;
        for PeerStats { throughput_channels: count, reason, .. } in peers {
            writeln!(f, "a peer with {count} channels for throughput: {reason}")?;
        }
        channels.iter().try_for_each(|channel| writeln!(f, "{channel}"))?;
        for PlacedThreadStats { core, is_kept, channels } in &self.placed_threads {
            let place = match is_kept {
                Some(true) => "kept to core",
                Some(false) => "not kept to core",
                None => "not started yet on core",
            };
            writeln!(f, "a thread for {} channels, {place} {core}", channels.len())?;
        }
        for CopyWorkerStats { core, parts, bytes, .. } in &self.copy_workers {
            writeln!(f, "core {core} has copied {bytes} bytes in {parts} parts")?;
        }
        Ok(())
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
            "channel {}: {class} over {}, {origin}: sent {} bytes in {} calls, received {} in {}; {} sockets wait{}",
            self.number,
            self.transport,
            sent.bytes,
            sent.calls,
            received.bytes,
            received.calls,
            self.waiting_sockets,
            if self.is_full { "; full" } else { "" }
        )?;
        if self.is_leaving {
            write!(f, "; given up")?;
        }
        if let Some(core) = self.core {
            write!(f, "; on core {core}")?;
        }
        if let Some(rtt) = self.rtt {
            write!(f, "; round trips of {} us", rtt.as_micros())?;
        }
        if let Some(pace) = self.pace {
            write!(f, "; paced at {} Mbit/s, below its slowest link", pace / 125_000)?;
        }
        Ok(())
    }
}
