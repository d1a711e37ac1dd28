//! A tenth for others: LC threads leave a core that they hold almost without a pause, or for which a kernel thread has
//! waited for long.
//!
//! Where threads in the background are above the fair class (`Snapshot::elevated_background`), they are counted among those
//! that hold the core, and leave it first, all of them and for a whole window: a server that took their turn would wait
//! behind them until its own time in the fair class ends. The Plan shows them as [`Role::Fair`] meanwhile; what they have
//! to prove, and their boosts, go on.

use quell_model::{CoreId, Nanos, Permille, Role, Snapshot, TaskId, ThreadId};
use serde::{Deserialize, Serialize};

use super::{Demoted, Roles, has_roles, role_of};

/// Share of a core that LC threads above the fair class hold at most, in the window of
/// [`quell_model::CoreView::rt_share`]. Below the 95 % of the kernel's RT throttling, which then never acts.
pub const RT_SHARE_MAX: Permille = Permille(900);

/// Beyond this share, threads with short bursts go to the fair class, too: no other is there to go.
pub const RT_SHARE_HARD: Permille = Permille(930);

/// Time in the fair class beyond [`RT_SHARE_MAX`]: a tenth of the window of 250 ms.
pub const FAIR_TIME: Nanos = Nanos::from_millis(25);

/// A kernel thread that has waited so long for a core is next: it runs within 100 ms, however LC threads with short
/// bursts take turns.
pub const KERNEL_WAITS: Nanos = Nanos::from_millis(75);

/// Threads with short bursts leave the core to a kernel thread only then: most often one with a long burst holds it, and
/// they are a guaranteed neighbour of that one.
pub const KERNEL_WAITS_SHORT: Nanos = Nanos::from_millis(85);

/// Meanwhile LC threads of the core stay in the fair class until the kernel thread has waited for a multiple of this, or has
/// run: all are away at once, for longer than the slice of one that runs on in the fair class.
pub const KERNEL_TIME: Nanos = Nanos::from_millis(20);

/// They stay for so long at least: of a kernel thread that may run elsewhere it is not known whether it has.
pub(super) const KERNEL_TIME_MIN: Nanos = Nanos::from_millis(5);

/// Interval of looks at a core whose kernel thread is next.
const KERNEL_LOOK: Nanos = Nanos(200_000);

/// The same while a thread with a short burst has the core: one with a long burst may have it next.
const KERNEL_LOOK_SHORT: Nanos = Nanos::from_millis(1);

/// The window of [`quell_model::CoreView::rt_share`].
pub const RT_WINDOW: Nanos = Nanos::from_millis(250);

/// Least interval of looks at a core near [`RT_SHARE_MAX`].
const SHARE_LOOK: Nanos = Nanos::from_millis(10);

/// Where that of background threads was in vain, they keep their rung for so long, and event threads take their turns.
const IN_VAIN_PAUSE: Nanos = Nanos::from_secs(5);

/// Background threads left a core that was full, without a change of their roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lowered {
    /// Threads of tasks that may use it are lowered.
    core: CoreId,
    /// [`FAIR_TIME`] after a window of the share: a server that takes its turn then does not wait behind them.
    until: Nanos,
    /// The core was as full without them.
    in_vain: bool,
}

impl Lowered {
    fn end(&self) -> Nanos {
        self.until + if self.in_vain { IN_VAIN_PAUSE } else { Nanos::ZERO }
    }
}

impl Roles {
    /// Sends the running LC thread of each core that LC holds almost without a pause, or for which a kernel thread has waited
    /// for long, to the fair class for a while.
    pub(super) fn leave_core_to_others(&mut self, now: Nanos, seen: &Snapshot) -> Nanos {
        self.lowered.retain(|lowered| now < lowered.end());
        let mut next = Nanos::MAX;
        for core in seen.cores.iter().filter(|core| core.managed && core.online) {
            let Some((thread, length)) = core.burst else { continue };
            let task = core.running.filter(|task| has_roles(seen, *task));
            let Some(task) = task else { continue };
            let is_short = role_of(length) == Role::Event;
            if let Some(since) = core.kernel_waits {
                let due = since + if is_short { KERNEL_WAITS_SHORT } else { KERNEL_WAITS };
                if due <= now {
                    // The next thread above the fair class takes the core at once; its turn comes with the next look.
                    self.leave_to_others(thread, task, length, now, time_for_kernel(now, since));
                    self.note_kernel_thread(thread, core.id, now);
                    next = next.min(now + KERNEL_LOOK);
                    continue;
                }
                next = next.min((since + KERNEL_WAITS).max(now + KERNEL_LOOK_SHORT));
            }
            let Some(share) = core.rt_share.value() else { continue };
            let room = RT_SHARE_MAX.0.saturating_sub(share.0);
            let full = Nanos(RT_WINDOW.0 / 1_000 * u64::from(room));
            next = next.min(now + full.max(SHARE_LOOK));
            let is_full = share > RT_SHARE_MAX;
            if !is_full || self.background_goes_first(core.id, thread, now, seen) {
                continue;
            }
            if is_short && share <= RT_SHARE_HARD {
                continue;
            }
            self.leave_to_others(thread, task, length, now, FAIR_TIME);
            next = next.min(now + FAIR_TIME);
        }
        let lowered = self.lowered.iter().map(|lowered| lowered.until).filter(|until| *until > now);
        lowered.min().map_or(next, |until| next.min(until))
    }

    /// Whether threads in the background leave this core, or have left it a moment ago, so that the others may stay.
    fn background_goes_first(
        &mut self,
        core: CoreId,
        running: ThreadId,
        now: Nanos,
        seen: &Snapshot,
    ) -> bool {
        if !seen.elevated_background {
            return false;
        }
        if let Some(lowered) = self.lowered.iter_mut().find(|lowered| lowered.core == core) {
            let is_spared = now + FAIR_TIME < lowered.until;
            lowered.in_vain |= !is_spared;
            return is_spared;
        }
        // One that left the core alone a moment ago comes back before the next window.
        let in_background = |thread: &Demoted| {
            let role = match thread.planned.role {
                Role::Fair => thread.earned,
                role => role,
            };
            role == Role::Background && may_use(seen, thread.planned.task, core)
        };
        // One that has the core itself is one to leave it, too, and it alone.
        let has_core = self.role(running) == Role::Background;
        let leave = !has_core && self.demoted.iter().any(in_background);
        if leave {
            let until = now + RT_WINDOW + FAIR_TIME;
            self.lowered.push(Lowered { core, until, in_vain: false });
        }
        leave
    }

    /// Whether threads in the background of this task are in the fair class although others of them are above it.
    pub(super) fn is_lowered(&self, task: TaskId, now: Nanos, seen: &Snapshot) -> bool {
        let is_here = |lowered: &Lowered| now < lowered.until && may_use(seen, task, lowered.core);
        self.lowered.iter().any(is_here)
    }

    /// Sends a thread to the fair class for so long.
    fn leave_to_others(
        &mut self,
        thread: ThreadId,
        task: TaskId,
        burst: Nanos,
        now: Nanos,
        time: Nanos,
    ) {
        let Some(thread) = self.entry(thread, task, now) else { return };
        if thread.planned.role != Role::Fair {
            thread.earned = match thread.planned.role {
                Role::Boosted => Role::Background,
                role => role,
            };
            thread.planned.burst = burst;
            thread.become_role(Role::Fair, now);
            thread.until = Some(now + time);
        }
    }

    /// The thread is in the fair class for a kernel thread of this core.
    fn note_kernel_thread(&mut self, thread: ThreadId, core: CoreId, now: Nanos) {
        if let Ok(index) = self.find(thread)
            && self.demoted[index].planned.role == Role::Fair
            && self.demoted[index].planned.since == now
        {
            // One that is there for its share of the core stays for that.
            self.demoted[index].for_kernel = Some(core);
        }
    }

    /// Threads that left their core to a kernel thread which has run come back.
    pub(super) fn end_for_kernel(&mut self, now: Nanos, seen: &Snapshot) -> Nanos {
        let mut next = Nanos::MAX;
        for thread in &mut self.demoted {
            let Some(core) = thread.for_kernel else { continue };
            let view = seen.cores.iter().find(|view| view.id == core);
            let least = thread.planned.since + KERNEL_TIME_MIN;
            if least > now {
                next = next.min(least);
            } else if view.is_none_or(|view| view.kernel_waits.is_none()) {
                thread.until = Some(now);
            } else {
                next = next.min(now + KERNEL_LOOK_SHORT);
            }
        }
        next
    }
}

/// Whether a task may use a core.
fn may_use(seen: &Snapshot, task: TaskId, core: CoreId) -> bool {
    let view = seen.tasks.get(task.at()).filter(|view| view.id == task);
    view.is_some_and(|view| view.limits.allowed.contains(core))
}

/// For how long a thread leaves its core to a kernel thread that waits since then.
fn time_for_kernel(now: Nanos, since: Nanos) -> Nanos {
    let waited = now.since(since).max(KERNEL_WAITS_SHORT);
    let until = since + Nanos((waited.0 / KERNEL_TIME.0 + 1) * KERNEL_TIME.0);
    until.since(now)
}
