//! What a benchmark does to the host by hand, as an administrator without Quell would: start
//! programs, set their policies and affinities, read their accounting, and put everything back.

mod process;
mod sched;
mod snapshot;
mod spinner;

pub use process::{Program, Usage};
pub use sched::{Policy, affinity, nice, pin, policy, set_nice, set_policy, this_thread};
pub use snapshot::{Difference, HostSnapshot};
pub use spinner::PauseLoop;
