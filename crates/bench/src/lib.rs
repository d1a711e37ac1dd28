//! Every benchmark behind `quell bench`.
//!
//! A benchmark takes a spec, tells its [`progress`](mod@progress), and returns a [`BenchReport`]: the one shape of
//! all of them. [`stats`] and [`stall`] hold the rules by which figures are made, pure and tested by
//! themselves; [`host`] does by hand what an administrator without Quell would.

pub mod check;
pub mod colocate;
pub mod daemon;
pub mod docs;
pub mod host;
pub mod lanes;
pub mod machine;
pub mod mechanism;
pub mod overhead;
pub mod plot;
pub mod progress;
pub mod reaction;
pub mod report;
pub mod runtime;
pub mod runtime_colocate;
pub mod simhost;
pub mod simspeed;
pub mod simulate;
pub mod stall;
pub mod stats;
pub mod summary;
mod switch_cost;
pub mod table;
pub mod validation;
pub mod view;
pub mod why;

pub use progress::{Live, Progress, Silent, Stop};
pub use report::{BenchReport, Curve, Ratio, Row};
