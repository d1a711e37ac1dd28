//! NetChannel's engine (Cai, Vuppalapati, Hwang, Kozyrakis, Agarwal: *Towards μs Tail Latency and Terabit Ethernet:
//! Disaggregating the Host Network Stack*, SIGCOMM'22): virtual sockets, channels, and the scheduler between them.
//!
//! Everything here is pure: events and the time go in, frames to send and notices come out. No clock, no thread, no
//! buffer: the engine decides about ranges of bytes, and its driver moves them. So a program's library, a daemon and a
//! simulation run the same code.
//!
//! - [`wire`]: what travels over a channel.
//! - [`vns`]: the two halves of a stream.
//! - [`flow`]: how much a peer may send.
//! - [`scheduler`]: the choice, number and place of channels, copying, and the order of sockets.
//! - [`Engine`]: one endpoint with all its peers.

mod engine;
pub mod flow;
mod ids;
pub mod scheduler;
mod table;
pub mod vns;
pub mod wire;

pub use engine::{
    Body, ChannelCaps, ConnectError, Delivery, Direct, Engine, EngineConfig, Frame, FrameRefused,
    ListenError, Notice, Policies, SocketStatus, StreamFailure,
};
pub use ids::{ChannelId, Class, EndpointId, OpenRefusal, ResetReason, StreamId};
pub use table::{Key, Table};
