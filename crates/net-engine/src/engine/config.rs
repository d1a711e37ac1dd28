//! What an endpoint is configured with.

use quell_model::Nanos;

use crate::flow::{Credit, FlowControl, MemoryLimits};
use crate::ids::EndpointId;
use crate::scheduler::{ChannelChoice, Hash, LeastBacklog};
use crate::wire::Features;

/// Constants of an endpoint.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Its own id: random.
    pub id: EndpointId,
    /// Bytes that a socket may have written without being acknowledged.
    pub send_buffer: u64,
    /// Bytes of them that no channel has taken.
    pub unsent_max: u64,
    /// Bytes of all sockets together that are written and not acknowledged.
    pub send_memory: u64,
    /// Largest payload of a data frame that it sends, and accepts.
    pub max_frame: u32,
    /// Bytes of a socket in a round of deficit round robin. Its reader is woken for as many at once.
    pub quantum: u32,
    /// Share of the bytes that the latency class may take while the other waits, in percent.
    pub latency_percent: u8,
    /// Data is kept until the peer's process has it, so that a lost channel loses nothing.
    pub has_recovery: bool,
    /// How long streams outlive the last channel to their peer.
    pub grace: Nanos,
    /// How long an open frame may be without answer.
    pub open_timeout: Nanos,
    /// A channel from which nothing came for so long is asked for an answer; after three times it is dead.
    pub ping_after: Nanos,
    /// Streams of all peers, those in backlogs included.
    pub streams_max: usize,
    /// Channels of a peer.
    pub channels_max: usize,
    /// Peers.
    pub peers_max: usize,
    /// Time after which unacknowledged data of a lossy transport is sent again at first.
    pub resend_after: Nanos,
}

impl EngineConfig {
    /// The defaults, for an endpoint with this id.
    pub fn new(id: EndpointId) -> EngineConfig {
        EngineConfig {
            id,
            send_buffer: 4 << 20,
            unsent_max: 256 << 10,
            send_memory: 256 << 20,
            max_frame: 128 << 10,
            quantum: 256 << 10,
            latency_percent: 80,
            has_recovery: true,
            grace: Nanos::from_secs(5),
            open_timeout: Nanos::from_secs(5),
            ping_after: Nanos::from_secs(2),
            streams_max: 65_536,
            channels_max: 64,
            peers_max: 1_024,
            resend_after: Nanos::from_millis(10),
        }
    }

    /// What it announces.
    pub fn features(&self) -> Features {
        if self.has_recovery { Features::RECOVERY } else { Features::default() }
    }
}

/// The replaceable decisions of an endpoint: channels of each class, and memory.
pub struct Policies {
    /// Which channel carries a chunk of the latency class, and of the other.
    pub choice: [Box<dyn ChannelChoice>; 2],
    /// How much peers may send.
    pub flow: Box<dyn FlowControl>,
    /// The first window of a stream, which peers may fill before it is accepted: as `flow` gives at least.
    pub first_window: u32,
}

impl Default for Policies {
    fn default() -> Policies {
        let limits = MemoryLimits::default();
        Policies {
            choice: [Box::new(Hash), Box::new(LeastBacklog::default())],
            first_window: limits.stream_min as u32,
            flow: Box::new(Credit::new(limits)),
        }
    }
}
