//! Lane policies: which of its members a lane runs, and until when.
//!
//! A *lane* is the run queue that Quell keeps for one core in user space; its members are threads, or the threads of a
//! process. A [`LanePolicy`] is told who can run, who has the turn and what time it is, and answers who has it
//! next and when it wants to be asked again. Like every policy it does no I/O, reads no clock and allocates nothing
//! while it decides: the same calls give the same turns on a host and in a test.
//!
//! What all of them keep, and the property tests check:
//!
//! * the turn goes to a member that can run, and to nobody only where nobody can (work conservation);
//! * asked again before the time that it named, with the turn given as it said and nothing else changed, a policy
//!   stays with it;
//! * that time lies ahead: a lane that does as told makes progress.
//!
//! The host may be late, and a turn may begin later than it was decided. So times count from `since`, the moment
//! at which the turn really began, and a policy is asked again right after a switch.

mod edf;
mod fair;
mod fifo;
mod members;
mod preemptive;
mod round_robin;
mod spec;
mod table;
mod waiting;

use quell_model::Nanos;

pub use edf::{Edf, Job};
pub use fair::Fair;
pub use fifo::Fifo;
pub use members::{MEMBERS_MAX, Member, Members};
pub use preemptive::Preemptive;
pub use round_robin::RoundRobin;
pub use spec::{NAMES, SLICE_MIN, Spec, SpecError};
pub use table::{Slot, Table};

/// What a policy is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The time.
    pub now: Nanos,
    /// Who can run: neither asleep nor stopped.
    pub runnable: Members,
    /// Who has the turn, and since when. It may have gone to sleep since.
    pub turn: Option<(Member, Nanos)>,
}

impl Seen {
    /// Who has the turn and can use it.
    pub fn current(&self) -> Option<(Member, Nanos)> {
        self.turn.filter(|(member, _)| self.runnable.contains(*member))
    }

    /// Who can run and has not the turn.
    pub fn waiting(&self) -> Members {
        match self.turn {
            Some((member, _)) => self.runnable.without(member),
            None => self.runnable,
        }
    }
}

/// When a policy wants to be asked again. Whatever it says, it is asked when the member whose turn it is goes to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// When a member sleeps or wakes up. No timer runs meanwhile.
    OnChange,
    /// At this time; who wakes up before has to wait for it.
    At(Nanos),
    /// At this time, or when a member wakes up.
    AtOrOnWake(Nanos),
}

impl Look {
    /// The time at which to look, if there is one.
    pub fn at(self) -> Option<Nanos> {
        match self {
            Look::OnChange => None,
            Look::At(at) | Look::AtOrOnWake(at) => Some(at),
        }
    }

    /// Whether a member that wakes up is a reason to look.
    pub fn on_wake(self) -> bool {
        !matches!(self, Look::At(_))
    }
}

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Who runs; `None` if nobody can.
    pub member: Option<Member>,
    /// When to ask again.
    pub look: Look,
}

impl Turn {
    /// Nobody can run.
    pub const IDLE: Turn = Turn { member: None, look: Look::OnChange };

    /// The turn of a member.
    pub fn of(member: Member, look: Look) -> Turn {
        Turn { member: Some(member), look }
    }
}

/// Decides whose turn it is.
pub trait LanePolicy: Send {
    /// The name in configuration and reports.
    fn name(&self) -> &'static str;

    /// Who runs from now on, and when to ask again.
    fn decide(&mut self, seen: &Seen) -> Turn;
}
