//! Every benchmark behind `quell bench`.
//!
//! A benchmark takes a spec, reports its progress, and returns a [`quell_report::BenchReport`]: the one shape of
//! all of them. [`stops`] has the rule by which requests are left out, pure and tested by itself; [`host`] does by hand what an administrator without Quell would.

pub mod check;
pub mod client;
pub mod daemon;
pub mod host;
pub mod lanes;
pub mod mechanism;
pub mod net;
pub mod net_figures;
pub mod overhead;
pub mod overload;
pub mod reaction;
pub mod runtime;
pub mod runtime_colocate;
pub mod services;
pub mod stage;
pub mod stops;
mod switch_cost;
pub mod three_services;
pub mod view;
pub mod wake_cost;
pub mod why;
