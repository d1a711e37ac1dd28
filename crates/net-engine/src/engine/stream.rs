//! One end of a stream.

use quell_model::Nanos;

use crate::flow::Window;
use crate::ids::{ChannelId, Class, OpenRefusal, ResetReason, StreamId};
use crate::table::Key;
use crate::vns::{ReceiveHalf, SendHalf};
use crate::wire::Open;

/// Why a stream is over for its application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamFailure {
    /// It was not accepted.
    #[error("the peer refused the connection: {0:?}")]
    Refused(OpenRefusal),
    /// Nothing answered in time.
    #[error("the connection was not answered in time")]
    TimedOut,
    /// The peer reset it.
    #[error("the peer reset the connection: {0:?}")]
    Reset(ResetReason),
    /// It was reset on this side.
    #[error("the connection was reset: {0:?}")]
    Aborted(ResetReason),
}

/// How far a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// This side has asked for it, and gives up at that time.
    Opening { until: Nanos },
    /// The peer has asked for it; the application has not accepted it.
    Incoming { listener: Key },
    /// Both sides have it.
    Established,
    /// It is over, except that the peer has to learn of it.
    Failed(StreamFailure),
}

/// Control frames of a stream that are due. They say what is the case when they are sent, so each is due once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Due {
    pub accept: bool,
    pub report: bool,
    /// Bytes that were dropped have to be asked for.
    pub resend: bool,
    pub stop: bool,
    pub stopped: bool,
    pub resume: bool,
}

impl Due {
    pub fn is_any(&self) -> bool {
        *self != Due::default()
    }
}

/// Where a stream's chunks go.
#[derive(Clone, Debug, Default)]
pub(crate) struct Route {
    /// The channel in whose queue it waits.
    pub queued_on: Option<Key>,
    /// That of its last chunk.
    pub last: Option<ChannelId>,
    /// Bytes in a row on that one.
    pub run_bytes: u64,
    /// Until it is accepted all goes behind its open frame on one channel, since the peer knows nothing of it before.
    pub pinned: Option<ChannelId>,
    /// Without recovery: channels that have carried some of it, any of which may lose it.
    pub used: Vec<ChannelId>,
}

/// Figure 5's state of a stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Response {
    /// Bytes beyond the socket's buffer, by the channel to which they are charged.
    pub charged: Vec<(ChannelId, u64)>,
    /// Since when there are any.
    pub since: Option<Nanos>,
    /// The peer was asked to stop.
    pub stop_sent: bool,
    /// It has.
    pub is_stopped: bool,
}

/// When what a lossy transport took, and was not acknowledged, is sent again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResendTime {
    /// How long acknowledgements have taken of late: the queue of the channel is in it, on this side too.
    ack_time: Nanos,
    /// Times in a row that nothing came.
    in_vain: u32,
}

/// So often the pause before something is sent again is doubled: a peer that reads late says so once.
const DOUBLED_MAX: u32 = 4;
/// The longest one.
const RESEND_MAX: Nanos = Nanos::from_secs(1);

impl ResendTime {
    /// The time, at least `least`.
    pub fn after(&self, least: Nanos) -> Nanos {
        let doubled = least.0.max(2 * self.ack_time.0) << self.in_vain.min(DOUBLED_MAX);
        Nanos(doubled.min(RESEND_MAX.0.max(least.0)))
    }

    /// It was sent again.
    pub fn in_vain(&mut self) {
        self.in_vain += 1;
    }

    /// Something was acknowledged after so long. Of what was sent twice it is not known which (Karn, SIGCOMM'87): then it took
    /// no less than the last pause, as far as is known.
    pub fn acknowledged(&mut self, after: Nanos, least: Nanos) {
        let pause = self.after(least).0;
        self.ack_time = Nanos(match (std::mem::take(&mut self.in_vain), self.ack_time.0) {
            (0, 0) => after.min(RESEND_MAX).0,
            (0, known) => (7 * known + after.min(RESEND_MAX).0) / 8,
            (_, known) => known.max(pause / 2),
        });
    }

    /// What kept it waiting is over, and it was nothing that was lost.
    pub fn begin_anew(&mut self) {
        self.in_vain = 0;
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Stream {
    pub id: StreamId,
    pub peer: Key,
    pub class: Class,
    pub open: Open,
    pub phase: Phase,
    pub send: SendHalf,
    pub receive: ReceiveHalf,
    pub window: Window,
    pub due: Due,
    /// It waits in its peer's queue of control frames.
    pub is_control_queued: bool,
    /// Its open frame has to be sent.
    pub must_open: bool,
    /// Its application does not wait for the answer.
    pub is_early: bool,
    /// The peer has answered: its accept frame arrived, or was seen by what the peer sent after it.
    pub is_confirmed: bool,
    /// This side has opened it.
    pub is_ours: bool,
    pub route: Route,
    /// The application holds it.
    pub is_attached: bool,
    /// The application has a notice that it can read, or write, and has not done so since.
    pub told_readable: bool,
    pub told_writable: bool,
    /// It waits for memory that others have.
    pub is_short_of_room: bool,
    /// Since when it has had something to send that is not acknowledged, or a limit that blocks it.
    pub waiting_since: Option<Nanos>,
    /// How long that may last on a lossy transport.
    pub resend: ResendTime,
    /// A limit that blocks it has to be asked for.
    pub must_probe: bool,
    /// It is among those whose report may be late.
    pub has_late_report: bool,
    /// When a gap that the peer reported was last sent again.
    pub repaired: Option<Nanos>,
    /// Boxed: only streams that are stopped and resumed have one.
    pub response: Option<Box<Response>>,
}

impl Stream {
    /// Whether nothing more happens on it.
    pub fn is_over(&self) -> bool {
        match self.phase {
            Phase::Failed(_) => true,
            _ => self.send.is_finished() && self.receive.is_finished(),
        }
    }

    /// The failure that its application sees.
    pub fn failure(&self) -> Option<StreamFailure> {
        match self.phase {
            Phase::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    /// Its peer is gone, but had sent everything, and said so: that can be read to its end.
    pub fn drains(&self) -> bool {
        let is_lost = matches!(
            self.failure(),
            Some(
                StreamFailure::Reset(ResetReason::PeerLost)
                    | StreamFailure::Aborted(ResetReason::PeerLost)
            )
        );
        is_lost && self.receive.is_finished()
    }

    /// Whether a channel has something to carry for it.
    pub fn has_data(&self) -> bool {
        match self.phase {
            Phase::Failed(_) => false,
            Phase::Incoming { .. } => false,
            _ => self.must_open || self.must_probe || self.send.is_ready(),
        }
    }

    /// Bytes in memory that its application has not read.
    pub fn unread(&self) -> u64 {
        self.receive.readable()
    }
}
