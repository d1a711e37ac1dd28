//! The allocator's constants, each with its source or the reason for its size.

use quell_model::Nanos;

/// A core's cache counts as cold for a task that last ran there this long ago (Caladan, `ias`).
pub const COLD_AFTER: Nanos = Nanos::from_micros(100);

/// A BE task without a core may take one that another BE task held this long (Caladan, `ias_ts`).
pub const BE_QUANTUM: Nanos = Nanos::from_millis(2);

/// An LC task keeps a burst core, or its guest rights, at least this long after it last needed
/// them. Moving affinities costs tens of microseconds, and load a few milliseconds ago
/// predicts load now.
pub const HOLD_MIN: Nanos = Nanos::from_millis(5);

/// The hold doubles up to this each time a core that was given back is soon wanted again.
pub const HOLD_MAX: Nanos = Nanos::from_millis(160);

/// A core that the back end refused for a task is not tried for it again for this long at first: most
/// refusals are races that the next attempt wins.
pub const REFUSAL_MIN: Nanos = Nanos::from_millis(1);

/// Repeated refusals double the wait up to this.
pub const REFUSAL_MAX: Nanos = Nanos::from_secs(10);

/// A grant may stay `Pending` this many times the back end's typical delay; then it counts as lost
/// and no longer holds up the task's next grant.
pub const PENDING_PATIENCE: u64 = 10;

/// The patience is never shorter than this.
pub const PENDING_PATIENCE_MIN: Nanos = Nanos::from_millis(1);

/// A runaway task is treated as BE for at least this long, or its own bound if that is longer.
pub const RUNAWAY_HOLD_MIN: Nanos = Nanos::from_millis(10);
