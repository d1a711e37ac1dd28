//! The static lint of scheduling domains: finds what keeps a balancer from balancing, with no load at all.
//!
//! Two of the four bugs of "The Linux Scheduler: a Decade of Wasted Cores" (EuroSys'16) are in the shape of the
//! domains: groups that were built from core 0's view (section 3.2, rules [`Rule::OwnGroup`] and
//! [`Rule::Separable`]) and levels that are lost when a core goes off line (section 3.4, [`Rule::Reach`] and
//! [`Rule::Unchanged`]). So are `sched_load_balance=0`, cpuset partitions and `isolcpus=`, whoever set them.
//!
//! [`lint`] judges one host at one instant, [`compare`] the same host before and after a core went away and
//! came back, [`Inspection`] does both for several dumps, [`dump`] reads what a host said of itself, and [`traced`] what
//! a trace has.

pub mod dump;
mod inspection;
#[cfg(test)]
mod machines;
mod report;
mod rules;
#[cfg(test)]
mod tests;
pub mod traced;

pub use inspection::{Dump, Inspected, Inspection};
pub use report::{LintFinding, Report, Rule, Undecided, Verdict};
pub(crate) use rules::separable_cores;
pub use rules::{compare, lint};
