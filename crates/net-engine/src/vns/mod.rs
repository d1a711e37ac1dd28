//! Virtual sockets (the paper, section 3.1): reliable byte streams in order over several channels.
//!
//! Each half of a stream counts bytes by 64-bit offsets. Bytes themselves are the driver's: the engine decides about ranges, so
//! that the same state machines run on buffers of a program and on mere lengths in a simulation.

mod ranges;
mod receive;
mod send;

pub use ranges::RangeSet;
pub use receive::{ReceiveHalf, StreamError};
pub use send::{AckOfNothing, Chunk, SendHalf};
