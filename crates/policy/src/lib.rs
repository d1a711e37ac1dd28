//! Core allocation: what is decided, never how it is carried out.
//!
//! A [`Policy`] turns each Snapshot into a Plan. It does no I/O, reads no clock, keeps no global
//! state and allocates nothing once its tables have the size of the host, so the same Snapshots
//! give the same Plans byte for byte, on a real host, in simulation and in replay.
//!
//! The default policy is composed after *A Decade of Wasted Cores* (EuroSys'16, section 5): one core
//! module, the [`Allocator`], keeps four invariants in this order, and advisors only suggest:
//!
//! 1. a task's guaranteed cores are its own whenever it wants them;
//! 2. BE never preempts LC, and BE yields first;
//! 3. no core idles while a task that may use it has runnable work, unless a ban or a cap says so,
//!    and then the plan says which;
//! 4. advice is followed in the order ban, cap, preference.
//!
//! [`invariants::check`] judges any Plan by them and shares no code with the allocator.
//!
//! Inside one core that is a lane, a [`lanes::LanePolicy`] decides whose turn it is.

mod advice;
pub mod advisors;
mod allocator;
mod explain;
mod host;
pub mod invariants;
pub mod lanes;
mod quell;
mod registry;
pub mod reliefs;
pub mod rivals;
pub mod roles;
mod state;

use quell_model::{Nanos, Plan, Snapshot};

pub use advice::{Advice, BanScope, Preference};
pub use allocator::{Allocator, constants as allocator_constants};
pub use explain::{Change, CoreWhy, Explanation, Invariant, Offer, TaskWhy, Veto};
pub use host::{Host, Missing};
pub use quell::Quell;
pub use registry::{Config, NAMES, PolicyError, by_name, check, names_for};
pub use state::BadState;

/// When a policy wants to be asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// At this time, or at the next change if that comes first.
    At(Nanos),
    /// Not before something changes: a task's state, a core, a limit.
    OnChange,
}

impl Wake {
    /// `At` for a time that comes, `OnChange` for [`Nanos::MAX`].
    pub(crate) fn at(time: Nanos) -> Wake {
        match time {
            Nanos::MAX => Wake::OnChange,
            time => Wake::At(time),
        }
    }

    /// The earlier of both.
    fn or_at(self, time: Nanos) -> Wake {
        match self {
            Wake::At(at) => Wake::At(at.min(time)),
            Wake::OnChange => Wake::at(time),
        }
    }
}

/// Signals that cost something to look at, which a policy may or may not read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// When requests began. They begin without any event of the kernel, so whoever reads this is asked often
    /// enough to see it in time.
    pub requests: bool,
    /// Memory traffic.
    pub memory: bool,
    /// The tail latency that services report.
    pub latency: bool,
}

/// Decides which task gets which core.
pub trait Policy: Send {
    /// The name in configuration, reports and recordings.
    fn name(&self) -> &'static str;

    /// Writes the whole desired state for what was seen into `plan`, whatever it held before.
    fn decide(&mut self, now: Nanos, seen: &Snapshot, plan: &mut Plan) -> Wake;

    /// Parts that it runs without, because the host lacks what they need; to be said at start.
    fn missing(&self) -> &[Missing] {
        &[]
    }

    /// Signals that are there for it alone: nobody looks at what no policy reads.
    fn reads(&self) -> Reads {
        Reads::default()
    }

    /// Why the last Plan is as it is. Formats on demand; the tick only fills fixed tables.
    fn explain(&self) -> Explanation {
        Explanation::default()
    }

    /// Appends all that later decisions depend on besides the Snapshots to come, so that a recording can be
    /// replayed from its middle. Allocates only where `state` has no room.
    fn save(&self, state: &mut Vec<u8>);

    /// Takes back what a policy of this name, host and configuration saved, off the front of `state`. From
    /// there on it decides as that one did.
    ///
    /// # Errors
    /// When the bytes are no such state; what the policy knew before is lost then.
    fn restore(&mut self, state: &mut &[u8]) -> Result<(), BadState>;
}

/// Suggests; the allocator decides. Advice is given anew each tick and holds for that tick.
pub trait Advisor: Send {
    /// The name in explanations.
    fn name(&self) -> &'static str;

    /// Adds what it has to say to `advice`.
    fn advise(&mut self, now: Nanos, seen: &Snapshot, advice: &mut Advice);

    /// Its part of [`Policy::save`].
    fn save(&self, state: &mut Vec<u8>);

    /// Its part of [`Policy::restore`].
    ///
    /// # Errors
    /// When the bytes are no such state.
    fn restore(&mut self, state: &mut &[u8]) -> Result<(), BadState>;
}
