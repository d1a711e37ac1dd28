//! A simulated host for closed-loop tests of policies.
//!
//! It drives any [`Policy`](quell_policy::Policy) through the same Snapshot and Plan as the real host:
//!
//! ```text
//! workload ─► threads ─► cores ─► Snapshot ─► decide ─► Plan ─► back end ─► rights on cores ─┐
//!                ▲    (priority sharing)        (delayed, refused or lost actions)          │
//!                └──────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Discrete events in integer nanoseconds from one seeded source of chance: the same [`Scenario`] gives
//! the same [`Report`] to the byte, its digest included. The machine is a small one: cores differ
//! in nothing but their number, a context switch costs a fixed time, and there are no caches.

mod backend;
mod chance;
mod cpu;
mod engine;
mod observe;
mod report;
mod scenario;

pub use engine::run;
pub use report::{Report, TaskReport};
pub use scenario::{Change, Faults, Load, Scenario, Service, Task};
