//! Open-loop load generator, LC test server and the means to run best-effort antagonists.
//!
//! - [`run`] offers load by a [`LoadSpec`] and returns a [`LoadReport`]; [`search_peak`] finds the
//!   highest rate that a server sustains.
//! - [`serve`] is the synthetic LC server, whose service times its clients choose.
//! - [`be`] is how an antagonist publishes its work and how a benchmark reads it; the antagonists
//!   themselves are the modes of the program `quell-antagonist`.
//!
//! All times are CLOCK_MONOTONIC nanoseconds, the clock of every contract in Quell.

pub mod be;
pub mod go;
pub mod protocol;
pub mod rests;
pub mod serve;

mod arrivals;
mod books;
mod carrier;
mod clock;
mod connection;
mod error;
mod generator;
mod latency;
mod preload;
mod report;
mod run;
mod rusage;
mod search;
mod sleep;
mod spec;
mod stall;
mod stamps;
mod timeline;
mod trace;

pub use arrivals::{Arrivals, Bursts, Step};
pub use clock::{now, thread_cpu_time};
pub use error::LoadError;
pub use latency::{Latency, Recorder};
pub use protocol::ProtocolSpec;
pub use report::{GeneratorReport, LimitedBy, LoadReport, Sample, StepReport, Totals};
pub use run::{Interval, Progress, Silent, run};
pub use search::{PeakReport, Probe, SearchSpec, search_peak, search_peak_by};
pub use sleep::Idle;
pub use spec::LoadSpec;
pub use stall::{Activity, STALL_THRESHOLD, Stall, StallClock, Stalls};
pub use timeline::TimePoint;
pub use trace::Trace;
