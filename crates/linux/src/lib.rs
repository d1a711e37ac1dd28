//! The only room that talks to the kernel.
//!
//! * [`observe`]: what the host does: BPF thread slots, the /proc fallback, topology.
//! * [`act`]: what Quell changes: executor, journal, back ends. One place writes to the host.
//! * [`doctor`]: what this host can do, and how to enable the rest.
//! * [`own`], [`clock`]: Quell's own files and threads, and the one clock.
//!
//! Policies live elsewhere and never see this crate.

pub mod act;
pub mod clock;
pub mod doctor;
mod handle;
pub mod observe;
pub mod own;
mod sys;
#[doc(hidden)]
pub mod testing;
mod thread;

pub use handle::ThreadHandle;
pub use thread::{ThreadRef, Tid};
