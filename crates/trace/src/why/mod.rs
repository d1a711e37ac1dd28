//! Why something was slow: a window of time, charged to what happened in it.
//!
//! A [`Collector`] takes events and builds a [`Timeline`] of what its [`HostState`](crate::host::HostState) reports: which thread had
//! each core, and what each thread of the service did. A window is then charged piece by piece:
//!
//! | a thread of the service | is charged to |
//! | --- | --- |
//! | waits while a thread runs that it outranks | [`Cause::KernelSection`] of that one: the kernel would have preempted it at once |
//! | waits while another thread runs | [`Cause::Behind`] that one |
//! | waits for a core that is idle | [`Cause::IdleCore`]: the core takes its time to wake |
//! | waits or runs while a softirq or an interrupt has the core | [`Cause::Softirq`], [`Cause::Interrupt`] |
//! | waits or runs while the hypervisor has the core | [`Cause::Hypervisor`] |
//! | was stopped by a signal | [`Cause::Stopped`] |
//! | runs, or waits for a device or a lock of the kernel | [`Cause::Service`] |
//! | sleeps although a request is on its way | [`Cause::Softirq`] while one runs anywhere, else [`Cause::Unexplained`] |
//! | does any of this on a core whose events were lost, or what the events do not show | [`Cause::Unknown`] |
//! | runs, or waits for a thread that it outranks, in a trace without softirqs and interrupts | [`Cause::Unknown`] |
//!
//! A *wake-up* is the window from the wake-up of a thread until it runs. A *request* is the window from its
//! intended send time to its reply; it is charged along the thread that ran last before the reply. If that
//! thread was busy before the request came, what kept it from its work since it last slept made the queue in
//! which the request waits, and is charged first.

mod attribute;
mod from_events;
#[cfg(test)]
mod from_events_tests;
mod report;
mod requests;
#[cfg(test)]
mod tests;
mod timeline;

use std::collections::BTreeMap;
use std::fmt;

use quell_model::{Nanos, ThreadName};

pub use attribute::{Gap, Inquiry};
pub use from_events::{Collector, Evidence, Follow, Window};
pub use report::{Bound, Report, Share, Slow};
pub use requests::read_requests;
pub use timeline::Timeline;

/// What time was spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// A thread had the core, by right or by turn.
    Behind(ThreadName),
    /// A thread of lower rank was in the kernel and could not be preempted.
    KernelSection(ThreadName),
    /// Softirqs.
    Softirq,
    /// Handlers of devices.
    Interrupt,
    /// The hypervisor ran something else.
    Hypervisor,
    /// The core had to wake from its idle state.
    IdleCore,
    /// The service was stopped.
    Stopped,
    /// The load generator did not run: it sent or received late.
    Generator,
    /// The service itself, and requests before this one.
    Service,
    /// None of these.
    Unexplained,
    /// The source does not contain what would tell: events were lost, or it has no softirqs and interrupts.
    Unknown,
}

impl Cause {
    /// Whether it took time from the service, rather than being its own time or unknown.
    pub fn is_interference(self) -> bool {
        !matches!(self, Cause::Service | Cause::Unexplained | Cause::Unknown)
    }

    /// The kind of cause, without names.
    pub fn kind(self) -> &'static str {
        match self {
            Cause::Behind(_) => "behind",
            Cause::KernelSection(_) => "kernel section",
            Cause::Softirq => "softirq",
            Cause::Interrupt => "interrupt",
            Cause::Hypervisor => "hypervisor",
            Cause::IdleCore => "idle core",
            Cause::Stopped => "stopped",
            Cause::Generator => "load generator",
            Cause::Service => "service",
            Cause::Unexplained => "unexplained",
            Cause::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Behind(name) => write!(f, "waiting behind {name}"),
            Cause::KernelSection(name) => write!(f, "kernel section of {name}"),
            other => f.write_str(other.kind()),
        }
    }
}

/// A window's time by cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blame(BTreeMap<Cause, Nanos>);

impl Blame {
    /// Charges time to a cause.
    pub fn add(&mut self, cause: Cause, time: Nanos) {
        if time > Nanos::ZERO {
            *self.0.entry(cause).or_default() += time;
        }
    }

    /// Takes time from a cause that has at least as much.
    fn lessen(&mut self, cause: Cause, time: Nanos) {
        if let Some(charged) = self.0.get_mut(&cause) {
            *charged = charged.since(time);
        }
    }

    /// The time charged to a cause.
    pub fn of(&self, cause: Cause) -> Nanos {
        self.0.get(&cause).copied().unwrap_or_default()
    }

    /// All causes with their time, the longest first.
    pub fn causes(&self) -> Vec<(Cause, Nanos)> {
        let mut causes: Vec<_> = self.0.iter().map(|(cause, time)| (*cause, *time)).collect();
        causes.sort_by_key(|(cause, time)| (std::cmp::Reverse(*time), *cause));
        causes
    }

    /// The cause with the most time.
    pub fn main(&self) -> Cause {
        self.causes().first().map_or(Cause::Unexplained, |(cause, _)| *cause)
    }

    /// The sum.
    pub fn total(&self) -> Nanos {
        self.0.values().fold(Nanos::ZERO, |sum, time| sum + *time)
    }

    /// The sum of what interfered.
    fn interference(&self) -> Nanos {
        let interfering = self.0.iter().filter(|(cause, _)| cause.is_interference());
        interfering.fold(Nanos::ZERO, |sum, (_, time)| sum + *time)
    }
}
