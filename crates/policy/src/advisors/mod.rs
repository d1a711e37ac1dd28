//! Advisors: each watches one thing and suggests; the allocator decides.

mod bandwidth;
mod hyperthread;
mod kernel_sections;
mod quantum;

pub use bandwidth::Bandwidth;
pub use hyperthread::Hyperthread;
pub use kernel_sections::KernelSections;
pub use quantum::Quantum;

use quell_model::Nanos;

/// How often Caladan's controllers look (`IAS_POLL_INTERVAL`: 10 us).
pub const STEP: Nanos = Nanos::from_micros(10);
