//! NetScheduler (the paper, section 3.3): which channel carries a chunk, how many channels there are, where they run,
//! which thread copies, which socket goes first, how fast bulk data may leave, and how much peers may send where the network does
//! not say.
//!
//! Four traits, one a decision; each has at least two implementations, chosen by configuration. All are pure: what they
//! know of the time and the host is in their arguments.

mod choice;
mod copy;
mod count;
mod deficit;
mod grants;
mod pacing;
mod placement;
mod share;

pub use choice::{
    ChannelChoice, ChannelLoad, Demand, Hash, LeastBacklog, RoundRobin, ShortestRemaining,
};
pub use copy::{CopyPolicy, CopyWork, InlineCopy, PerCoreCopy, WorkerLoad};
pub use count::{ByUtilization, ChannelCount, Fixed, PeerLoad, Target};
pub use deficit::DeficitQueue;
pub use grants::{GrantLimits, Granter, Sender};
pub use pacing::{Pacer, PathSample};
pub use placement::{Apart, ChannelPlace, Packed, Placement};
pub use share::LatencyShare;
