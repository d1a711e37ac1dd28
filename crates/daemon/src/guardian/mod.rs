//! The two processes that restore the host if the daemon dies or hangs.
//!
//! Both are identical, are exec'ed before the daemon has a second thread, live in sessions of their own and
//! sleep in `poll` on a rung above everything else of Quell. Each holds the journal and a handle on the daemon's
//! process. When the daemon ends, or its heartbeat in the journal is older than a bound, a guardian makes
//! sure that the daemon is dead, locks the journal, restores, and closes it; the other one finds it
//! closed and leaves. If the first is killed meanwhile, the lock falls to the second.
//!
//! The daemon's side, [`Guardians`], keeps the executor's gate shut unless both are ready: a daemon that lost
//! one changes nothing until it has another. Their link is a socket pair, over which the daemon also
//! hands them descriptors to hold ([`Guardians::hold`]): what they stand for outlives the daemon.

mod link;
mod process;
mod spawn;

pub use process::{Descent, Held, main, main_with};
pub use spawn::{Config, Guardians, SpawnError, Until};
