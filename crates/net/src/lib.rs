//! NetChannel for programs: virtual sockets of two classes over a few channels between endpoints.
//!
//! ```no_run
//! use quell_net::{Class, Endpoint, EndpointConfig};
//!
//! # fn main() -> Result<(), quell_net::Error> {
//! let endpoint = Endpoint::new(EndpointConfig::default())?;
//! endpoint.connect_peer("127.0.0.1:7117".parse().expect("an address"))?;
//! let stream = endpoint.connect("127.0.0.1:80".parse().expect("an address"), Class::Latency)?;
//! stream.write_all(b"hello")?;
//! # Ok(())
//! # }
//! ```
//!
//! An endpoint is one process's end of all its channels. Each pair of endpoints has a channel for latency and one or more
//! for throughput, whatever the number of sockets; [`quell_net_engine`] decides what travels where, this crate moves it.

mod askers;
mod attach;
mod batch;
mod channel;
mod config;
mod copying;
mod core;
mod count;
mod direct;
mod endpoint;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod green;
mod handshake;
mod helper;
mod inbox;
mod leading;
mod meet;
mod memory;
pub mod messages;
#[cfg(test)]
mod models;
mod opening;
mod outbox;
mod pacing;
mod placed;
mod placing;
mod queue;
mod selector;
mod shared;
mod shm;
mod slices;
mod socket;
mod stats;
mod store;
mod stream;
mod table;
mod tcp;
pub mod threads;
pub mod transport;
mod udp;
mod uring;
mod waiter;

pub use attach::Side;
pub use config::{EndpointConfig, OtherHosts, SameHost};
pub use count::NewCount;
pub use endpoint::{Endpoint, Listener, Peer};
pub use error::Error;
pub use quell_net_engine::{
    Class, EngineConfig, OpenRefusal, Policies, ResetReason, SocketStatus, StreamFailure, flow,
    scheduler,
};
pub use selector::Selector;
pub use stats::{
    Carried, ChannelStats, CopyWorkerStats, Origin, PeerStats, PlacedThreadStats, Stats,
    StreamStats,
};
pub use stream::{Chunks, Reservation, Stream};
