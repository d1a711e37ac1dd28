//! What is known of a quantity, and how.

use serde::{Deserialize, Serialize};

/// A value with its provenance. Nobody reads a made-up zero: what is not known is [`Signal::Absent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Signal<T> {
    /// Read from the thing itself.
    Measured(T),
    /// Derived from something else.
    Estimated {
        /// The estimate.
        value: T,
        /// What it was derived from.
        how: Estimate,
    },
    /// Not known.
    Absent(Absence),
}

/// What an estimate was derived from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Estimate {
    /// Per-thread `schedstat` and `stat` files in /proc, read once a tick: waits shorter than a
    /// tick are seen only as a sum.
    ProcSchedstat,
    /// A smoothed value over several ticks.
    Smoothed,
    /// Interpolated within a bucket of a histogram.
    Histogram,
    /// What a counter grew by between its last two readings, spread over the time since.
    Interpolated,
    /// Misses in the last-level cache: without what is written back, and without devices.
    CacheMisses,
}

/// Why a value is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Absence {
    /// Nothing supplies it: the operator named no source.
    NoSource,
    /// The host has no means to measure it (no PMU, no resctrl, no BPF).
    NotSupported,
    /// It was not asked for in this state, e.g. the wait of a task without waiting threads.
    NotApplicable,
    /// The last reading is too old to act on.
    Stale,
}

impl<T: Copy> Signal<T> {
    /// The value, measured or estimated.
    pub fn value(&self) -> Option<T> {
        match *self {
            Signal::Measured(value) | Signal::Estimated { value, .. } => Some(value),
            Signal::Absent(_) => None,
        }
    }
}

impl<T> Default for Signal<T> {
    fn default() -> Self {
        Signal::Absent(Absence::NoSource)
    }
}
