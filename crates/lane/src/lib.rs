//! A lane inside a program: its own threads take turns on one core, in an order that the program decides.
//!
//! Four levels of `SCHED_FIFO` order the threads of a lane, lowest first: parked workers, a dispatcher that chooses
//! among them, the chosen worker ("running"), and a switcher that sleeps on a timer and ends turns ([`Level`]).
//! Threads enter ([`Lane::enter`]) and leave; while they are in, any thread of the program may raise and lower them
//! by their [`Member`]s. `include/quell_lane.h` is the same for C and C++; `docs/reference/lanes.md` is the guide.
//!
//! Only threads of the own process are changed, and the kernel forgets what it knew of them when they end: whatever
//! ends the program, nothing is left behind, so no journal and no guardian is needed. Nothing here panics or ends
//! the program; what the host refuses is a [`LaneError`] that says what is missing.
//!
//! A thread that enters while another one polls on the core gets no further until that one sleeps: let all threads
//! enter before the dispatcher begins. A thread made by one that is in a lane starts under `SCHED_OTHER`, but on the
//! lane's core.
//!
//! A worker that is preempted after 20 us and then goes on:
//!
//! ```no_run
//! use std::sync::OnceLock;
//! use std::time::Duration;
//!
//! use quell_lane::{Expiry, Lane, LaneError, Level, Priorities};
//!
//! # fn main() -> Result<(), LaneError> {
//! let lane = Lane::open(1, Priorities::default())?;
//! let worker = OnceLock::new();
//! std::thread::scope(|scope| {
//!     scope.spawn(|| {
//!         let own = lane.enter(Level::Running)?;
//!         let _ = worker.set(own.member());
//!         lane.arm(Duration::from_micros(20))?;
//!         let sum: u64 = (0..1_000_000).sum();
//!         println!("{sum}, in time: {}", lane.disarm());
//!         // In time or not, the switcher is done.
//!         lane.stop()?;
//!         own.leave()
//!     });
//!     scope.spawn(|| {
//!         let _own = lane.enter(Level::Switcher)?;
//!         if let (Expiry::Slice(_), Some(worker)) = (lane.wait()?, worker.get()) {
//!             lane.preempt(worker, Duration::from_micros(20))?;
//!             // A dispatcher would have its turn now.
//!             lane.set(worker, Level::Running)?;
//!         }
//!         Ok::<(), LaneError>(())
//!     });
//! });
//! # Ok(())
//! # }
//! ```

mod error;
mod lane;
mod level;
mod permissions;
mod seat;
mod sys;
mod turn;

pub use error::LaneError;
pub use lane::{Expiry, Lane, LaneGuard, Member, Preempted};
pub use level::{Level, PRIORITY_MAX, Priorities};
