//! A simulated host: the same policies, on hardware that is not here.
//!
//! It drives any [`Policy`](quell_policy::Policy) through the same Snapshot and Plan as the real host:
//!
//! ```text
//! workload ─► kernel: threads on cores ─► Snapshot ─► decide ─► Plan ─► back end ─► rights on cores ─┐
//!                ▲     ▲                            (late, refused, lost, raced)                     │
//!                │     └── machine: siblings, caches, memory, clock rate                             │
//!                └───────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Discrete events in integer nanoseconds, chance from seeded streams: the same [`Scenario`] gives the same [`Report`] to the
//! byte on every machine, its digest included. The parts know each other in one direction only:
//!
//! | folder | is | knows |
//! | --- | --- | --- |
//! | `workload` | what tasks do | how a thread uses the machine |
//! | `machine` | what cores share | nothing |
//! | `kernel` | which thread runs where, by rung and right | machine, workload |
//! | `host` | Plans into rights, the state into Snapshots | kernel |
//! | `engine` | time and the order of events | all |
//! | `file` | scenarios as TOML | [`Scenario`] |

mod books;
mod chance;
mod engine;
mod feed;
pub mod file;
pub mod fuzz;
mod host;
mod kernel;
pub mod machine;
mod report;
mod scenario;
mod trace;
pub mod workload;

/// What every example comes to. It changes with the model and the policies, and with nothing else, so that results of another
/// one can be told apart.
pub const MODEL: &str = include_str!("../tests/digests.txt");

pub use books::Broken;
pub use engine::{run, run_traced};
pub use kernel::Deadlock;
pub use kernel::linux::{
    Balancer, Fix, Fixes, KernelModel, LevelRules, LoadMetric, Picker, RtLimit, WakeSearch,
};
pub use machine::Machine;
pub use report::{Latencies, Report, Sample, TaskReport, TaskSample, Waste};
pub use scenario::{Change, Costs, Faults, Kernel, Scenario};
pub use trace::Sink;
pub use workload::{
    Helper, Load, Phase, Program, ProgramStep, RecordedClass, RecordedFigures, RecordedStart,
    RecordedThread, Recording, Service, Step, Style, Sync, SyncKind, Task, ThreadKind, Waiting,
    Window,
};
