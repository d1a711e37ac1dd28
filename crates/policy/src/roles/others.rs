//! A tenth for others: LC threads leave a core that they hold almost without a pause, or for which a kernel thread has
//! waited for long.
//!
//! Where threads in the background are above the fair class (`Snapshot::elevated_background`), they are counted among those
//! that hold the core, and leave it first, all of them and for a whole window: a server that took their turn would wait
//! behind them until its own time in the fair class ends.

use quell_model::{CoreId, Nanos, Permille, Role, Snapshot, TaskId, ThreadId};

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

/// Background threads do not leave a core again for so long after they came back to it: the share that is as high at once
/// is that of others.
const SPARED_PAUSE: Nanos = Nanos::from_millis(50);

impl Roles {
    /// Sends the running LC thread of each core that LC holds almost without a pause, or for which a kernel thread has waited
    /// for long, to the fair class for a while.
    pub(super) fn leave_core_to_others(&mut self, now: Nanos, seen: &Snapshot) -> Nanos {
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
            if share <= RT_SHARE_MAX || self.background_goes_first(core.id, now, seen) {
                continue;
            }
            if is_short && share <= RT_SHARE_HARD {
                continue;
            }
            self.leave_to_others(thread, task, length, now, FAIR_TIME);
            next = next.min(now + FAIR_TIME);
        }
        next
    }

    /// Whether threads in the background leave this core, or have left it a moment ago, so that the others may stay.
    fn background_goes_first(&mut self, core: CoreId, now: Nanos, seen: &Snapshot) -> bool {
        if !seen.elevated_background {
            return false;
        }
        self.spared.retain(|(_, until)| now < *until + SPARED_PAUSE);
        if let Some((_, until)) = self.spared.iter().find(|(spared, _)| *spared == core) {
            // After it the share is still as high: it was not theirs.
            return now < *until;
        }
        let mut has_background = false;
        for thread in &mut self.demoted {
            if thread.planned.role == Role::Background {
                thread.leave_for(RT_WINDOW, now);
                has_background = true;
            }
        }
        if has_background {
            self.spared.push((core, now + RT_WINDOW));
        }
        has_background
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
            thread.planned.burst = burst;
            thread.leave_for(time, now);
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

impl Demoted {
    /// Goes to the fair class for so long.
    fn leave_for(&mut self, time: Nanos, now: Nanos) {
        self.earned = match self.planned.role {
            Role::Boosted => Role::Background,
            role => role,
        };
        self.become_role(Role::Fair, now);
        self.until = Some(now + time);
    }
}

/// For how long a thread leaves its core to a kernel thread that waits since then.
fn time_for_kernel(now: Nanos, since: Nanos) -> Nanos {
    let waited = now.since(since).max(KERNEL_WAITS_SHORT);
    let until = since + Nanos((waited.0 / KERNEL_TIME.0 + 1) * KERNEL_TIME.0);
    until.since(now)
}
