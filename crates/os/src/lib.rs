//! Safe wrappers of the system calls that several crates need: the clock, shared mappings, handles on threads and
//! processes, scheduling attributes, settings of the calling thread, the path of a connection, and the
//! cores of the host.
//!
//! Nothing here changes another thread or process: only the crate `act` does.

mod child;
pub mod clock;
mod exists;
mod group;
mod handle;
mod map;
pub mod own;
mod peer;
pub mod pidfd;
pub mod sched;
pub mod tcp;
mod thread;
mod thread_clock;
pub mod topology;

pub use exists::exists;
pub use group::id as group_id;
pub use handle::ThreadHandle;
pub use map::{MapAccess, SharedMap, SharedWords};
pub use peer::credentials as peer_credentials;
pub use thread::{ThreadRef, ThreadStat, Tid};
