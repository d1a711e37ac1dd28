//! What a [`HostState`](super::HostState) reports.

use quell_model::{CoreSet, MoveCause, Nanos};

use super::core::HostCore;
use super::thread::{HostThread, Occupant};

/// Takes the changes of a [`HostState`](super::HostState). Methods do nothing by default; a visitor is a type
/// parameter, so that one that is not used costs nothing.
///
/// Times are on the clock of the events and never run backwards, but for the begin of a span and for what a
/// missed switch says: those are at or after the last change of the same core and thread, and at or after the
/// last [`HostState::cut`](super::HostState::cut).
pub trait HostVisitor {
    /// Whether [`HostVisitor::delayed`] is wanted: it costs a call for each waiting thread at each switch.
    const TRACKS_DELAYS: bool = false;
    /// Whether [`HostVisitor::woken_beside_idle`] is wanted.
    const TRACKS_PLACEMENT: bool = false;

    /// A thread appeared.
    fn thread_appeared(&mut self, _thread: &HostThread, _at: Nanos) {}
    /// The comm, tgid or priority of a thread was reported for the first time, or changed.
    fn thread_described(&mut self, _thread: &HostThread, _at: Nanos) {}
    /// A thread ended, or is not followed any more. Its slot is free after this call.
    fn thread_ended(&mut self, _thread: &HostThread, _at: Nanos) {}
    /// A thread was in `thread.state` on `thread.core` from `thread.since` until `until`, which is later.
    fn thread_span(&mut self, _thread: &HostThread, _until: Nanos) {}
    /// A thread began or ceased to wait, waits on another core, or waits in another class. It is as it is now.
    fn waiter_changed(&mut self, _thread: &HostThread, _at: Nanos) {}
    /// A thread that was woken at `from` got a core.
    fn wakeup_latency(&mut self, _thread: &HostThread, _from: Nanos, _at: Nanos) {}
    /// The latency of so many wake-ups is not known: their end may have been lost.
    fn wakeups_unknown(&mut self, _count: u64, _at: Nanos) {}
    /// A thread was woken into the queue of a core that runs another thread, although `idle` cores are allowed
    /// to it. The thread and the host are as they were before.
    fn woken_beside_idle(
        &mut self,
        _thread: &HostThread,
        _onto: &HostCore,
        _idle: &CoreSet,
        _at: Nanos,
    ) {
    }
    /// `by` ran while `thread` waited for the same core.
    fn delayed(&mut self, _thread: &HostThread, _by: &HostThread, _from: Nanos, _to: Nanos) {}
    /// A thread was moved between two cores, by index; `None` for one that no earlier event named.
    fn migrated(
        &mut self,
        _thread: Option<&HostThread>,
        _from: usize,
        _to: usize,
        _cause: MoveCause,
        _at: Nanos,
    ) {
    }

    /// A core had this occupant in this span. `steal` is the time that the hypervisor took of it.
    fn core_span(
        &mut self,
        _core: &HostCore,
        _occupant: Occupant<'_>,
        _from: Nanos,
        _to: Nanos,
        _steal: Nanos,
    ) {
    }
    /// A core has another occupant.
    fn core_switched(&mut self, _core: &HostCore, _occupant: Occupant<'_>, _at: Nanos) {}
    /// The kernel's counts of a core's queue were reported and differ from the last ones.
    fn queue_size(&mut self, _core: &HostCore, _at: Nanos) {}
    /// The load of a core's queue was reported and differs from the last one.
    fn queue_load(&mut self, _core: &HostCore, _at: Nanos) {}
    /// A core went online or offline.
    fn core_online(&mut self, _core: &HostCore, _at: Nanos) {}
    /// `count` events of a core are missing between its last event, at `from`, and now: it is unknown from now on.
    fn core_lost(&mut self, _core: &HostCore, _from: Nanos, _at: Nanos, _count: u64) {}
    /// A keyframe made an unknown core known.
    fn core_known(&mut self, _core: &HostCore, _at: Nanos) {}
    /// After an event: what decides about waiting threads and idle cores may have changed on this core.
    fn core_changed(&mut self, _core: &HostCore, _at: Nanos) {}
    /// After an event: the set of idle cores, or of those that run SCHED_IDLE threads only, changed.
    fn idle_set_changed(&mut self, _at: Nanos) {}
}

/// No visitor.
impl HostVisitor for () {}
