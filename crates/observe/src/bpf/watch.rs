//! Calls of the BPF programs about one thread: watch, unwatch, set its role, read its state again. Each is a
//! system call; the rest of the observer loads mapped memory.

use std::io;

use quell_model::{CoreId, CoreSet, Nanos, Role, TaskId, ThreadId};
use quell_os::ThreadRef;

use super::abi::{RUNNING, SLEEPING, UNKNOWN, WAITING, WatchArgs};
use super::{BpfObserver, ObserveError};

/// How often a thread that runs is asked for its core before the next event decides.
const SETTLE_TRIES: u32 = 4;

/// A wait or sleep of this length may be none: a switch or a wake-up that was missed leaves one behind.
const DOUBTFUL: Nanos = Nanos::from_millis(500);

/// How many threads that wait for long are asked about in one go, and how many that sleep.
const DOUBTS_MAX: usize = 16;

impl WatchArgs {
    /// Arguments that name a thread and leave the rest 0.
    pub(super) fn of(thread: ThreadRef) -> WatchArgs {
        WatchArgs { tid: thread.tid.0, start_ticks: thread.start_ticks, ..WatchArgs::default() }
    }
}

impl BpfObserver {
    /// Watches a thread, or changes how it is watched.
    pub(super) fn watch_thread(&mut self, args: WatchArgs) -> Result<(), ObserveError> {
        let refused = |source: io::Error| match source.raw_os_error() {
            Some(libc::ENOSPC) => ObserveError::Full { limit: self.programs.slots.len() },
            _ => ObserveError::Kernel { what: format!("watching thread {}", args.tid), source },
        };
        let (mut state, mut core) = self.programs.call("watch", args).map_err(refused)?;
        if state == RUNNING {
            self.programs.settle(CoreId(core as u16));
        }
        // A thread that is on a core is known to that core alone; it may be gone when the core is asked.
        for _ in 0..SETTLE_TRIES {
            if state != UNKNOWN {
                break;
            }
            self.programs.settle(CoreId(core as u16));
            match self.programs.call("seed", args) {
                Ok(answer) => (state, core) = answer,
                // It ended: its slot is free again.
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Stops watching a thread. One that ended has freed its slot.
    pub(super) fn unwatch_thread(&mut self, thread: ThreadRef) {
        if let Ok((RUNNING, core)) = self.programs.call("unwatch", WatchArgs::of(thread)) {
            self.programs.settle(CoreId(core as u16));
        }
    }

    /// Judges the thread's bursts by this role; see [`super::Observer::set_role`] for the result.
    pub(super) fn change_role(
        &mut self,
        thread: ThreadId,
        task: TaskId,
        role: Role,
        needs: u32,
    ) -> bool {
        let Some(view) = self.views.view_of(thread) else {
            self.views.note_exit(thread, task);
            return false;
        };
        let args = WatchArgs { role: role.code(), needs, ..WatchArgs::of(view.thread) };
        let (state, core) = match self.programs.call("set_role", args) {
            Ok(answer) => answer,
            Err(error) => {
                // Gone, or its number changed with an exec. A slot that is taken for long is tried again.
                if error.raw_os_error() == Some(libc::ESRCH) {
                    self.views.note_exit(thread, task);
                }
                return false;
            }
        };
        if state == RUNNING {
            // No switch will show the core that the thread on it changed class.
            self.programs.settle(CoreId(core as u16));
            let args = WatchArgs { core, ..WatchArgs::default() };
            let armed = self.programs.call("look_at_burst", args);
            debug_assert!(armed.is_ok(), "a program without a failure: {armed:?}");
        }
        // The burst that cost the role ended before BPF had the role: no event will report that end.
        let ended = state == SLEEPING && role != Role::Event && needs == 0;
        if ended {
            self.proved.push(thread);
        }
        ended
    }

    /// Where a switch was missed, a thread may be said to wait that runs or sleeps; a thread that has the core
    /// from then on tells nothing by itself. One whose wake-up was missed may never run where others decide by it.
    pub(super) fn ask_about_the_quiet(&mut self, now: Nanos) {
        let then = now.since(DOUBTFUL);
        let mut quiet = self.views.waiting_since_before(then, DOUBTS_MAX);
        quiet.extend(self.views.sleeping_since_before(then, DOUBTS_MAX));
        let mut cores = CoreSet::EMPTY;
        for thread in quiet {
            if let Ok((WAITING, core)) = self.programs.call("seed", WatchArgs::of(thread)) {
                cores.insert(CoreId(core as u16));
            }
        }
        cores.iter().for_each(|core| self.programs.settle(core));
    }
}
