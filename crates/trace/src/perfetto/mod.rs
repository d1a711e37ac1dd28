//! Traces as Perfetto's files: what `ui.perfetto.dev` shows, and what is read back here without loss.
//!
//! A trace is one or more *segments*, which can be read alone or one behind the other. Each opens with Perfetto's
//! synchronization marker, the clocks, [`Meta`](quell_model::Meta), the names of the tracks, and a keyframe.
//! In a segment events come in *groups*, so that a writer and a reader hold a bounded number of them:
//!
//! ```text
//! group: how many events ─► bundle of core 0 ─► bundle of core 1 … ─► events that no tracepoint has
//! ```
//!
//! Perfetto wants the events of one core together; a number with each says where in the group it came. What
//! Perfetto has no field for lies in a field of our own, which other programs skip.

mod balance;
mod convert;
mod direct;
mod ftrace;
mod keyframe;
mod read;
mod tasks;
mod violation;
mod wire;
mod write;

pub use convert::TEXT_MAX;
pub use read::{Reader, is_perfetto};
pub use write::Writer;

/// Events of a group at most.
const GROUP_EVENTS: u32 = 16_384;
/// Bytes of a packet at most, but for its own tag and length.
const PACKET_MAX: u64 = 4 << 20;
/// Threads of a keyframe at most: the kernel's PID_MAX_LIMIT.
const THREADS_MAX: usize = 1 << 22;

#[cfg(test)]
mod any;
#[cfg(test)]
mod tests;
