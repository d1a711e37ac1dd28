//! The /proc observer: what can be seen where BPF is not allowed.
//!
//! Every interval (10 ms, longer if a sweep takes long) it reads `stat` and `schedstat` of each watched
//! thread. It is coarser than the BPF observer, and marks what it says as [`Estimate::ProcSchedstat`]:
//!
//! * a wait shorter than the interval is seen only as a sum; the queueing delay is then the mean wait of
//!   those that got a core since the last sweep;
//! * of several runnable threads on a core, the one that ran most since the last sweep is taken to run;
//! * all threads of a watched process belong to the task of its leader; new ones are found at the next sweep, new processes every tenth; a process whose creator ended in
//!   between is missed;
//! * nothing wakes the observer, and who delays whom is not known.

mod files;
mod table;
#[cfg(test)]
mod tests;

use std::os::fd::BorrowedFd;

use quell_model::{
    Absence, Children, CoreSet, Estimate, Nanos, Permille, Signal, Snapshot, TaskId,
};

use self::files::Reader;
use self::table::{Membership, Table};
use super::{HostEvent, ObserveError, Observer, ThreadState, ThreadView};
use quell_os::{ThreadRef, clock};

/// Least time between two sweeps.
const INTERVAL: Nanos = Nanos::from_millis(10);

/// A sweep may take one part in this many of the time.
const SWEEP_SHARE: u64 = 20;

/// New processes are looked for at each sweep of this many.
const PROCESS_SWEEPS: u32 = 10;

/// Threads that can be watched at once.
const THREADS_MAX: usize = 32_768;

/// Reads /proc each interval.
pub struct ProcObserver {
    table: Table,
    reader: Reader,
    managed: CoreSet,
    events: Vec<HostEvent>,
    idle: Vec<Idle>,
    interval: Nanos,
    swept: Nanos,
    sweeps: u32,
}

/// A core's idle time as of the last sweep.
#[derive(Clone, Copy, Default)]
struct Idle {
    idle: u64,
    whole: u64,
    since: Option<Nanos>,
}

impl Default for ProcObserver {
    fn default() -> Self {
        ProcObserver::new()
    }
}

impl ProcObserver {
    /// Watches nothing yet.
    pub fn new() -> ProcObserver {
        ProcObserver {
            table: Table::default(),
            reader: Reader::default(),
            managed: CoreSet::EMPTY,
            events: Vec::new(),
            idle: Vec::new(),
            interval: INTERVAL,
            swept: Nanos::ZERO,
            sweeps: 0,
        }
    }

    /// How coarse it is now: the time between two sweeps.
    pub fn interval(&self) -> Nanos {
        self.interval
    }

    fn sweep(&mut self, now: Nanos) {
        self.table.look(now, &mut self.reader, &mut self.events);
        self.find_threads(now);
        if self.sweeps.is_multiple_of(PROCESS_SWEEPS) {
            self.find_processes(now);
        }
        self.sweeps = self.sweeps.wrapping_add(1);
        self.look_at_cores();
        let took = clock::now().since(now);
        self.interval = INTERVAL.max(Nanos(took.0 * SWEEP_SHARE));
        self.swept = now;
    }

    fn find_threads(&mut self, now: Nanos) {
        for (tgid, creator, membership) in self.table.processes() {
            for thread in ThreadRef::all_of(tgid).unwrap_or_default() {
                self.adopt(creator, thread, membership, false, now);
            }
        }
    }

    fn find_processes(&mut self, now: Nanos) {
        for (tgid, creator, membership) in self.table.processes() {
            let lc = membership.lc && membership.children == Children::Adopt;
            let guest = membership.guest || (membership.lc && !lc);
            if membership.children == Children::Leave {
                continue;
            }
            for pid in super::procs::descendants(tgid.0) {
                for thread in super::procs::threads(pid).unwrap_or_default() {
                    let membership = Membership { lc, guest, ..membership };
                    self.adopt(creator, thread, membership, true, now);
                }
            }
        }
    }

    fn adopt(
        &mut self,
        parent: ThreadRef,
        child: ThreadRef,
        membership: Membership,
        new_process: bool,
        now: Nanos,
    ) {
        if self.table.contains(child) {
            return;
        }
        let watched = self.table.len() < THREADS_MAX;
        if watched {
            self.table.insert(child, membership, now);
        }
        let task = membership.task;
        // A new process is told of once, by its first thread.
        let new_process = new_process && child.tid == child.tgid;
        self.events.push(HostEvent::Forked { parent, child, task, new_process, watched });
    }

    fn look_at_cores(&mut self) {
        let idle = &mut self.idle;
        let busy = self.table.running_cores();
        let swept = self.swept;
        let looked = self.reader.idle_ticks(|core, idle_ticks, whole| {
            if idle.len() <= core.index() {
                idle.resize(core.index() + 1, Idle::default());
            }
            let known = &mut idle[core.index()];
            // Between two ticks of the clock nothing is told anew.
            if whole == known.whole {
                return;
            }
            let was_idle_throughout = whole - known.whole == idle_ticks.saturating_sub(known.idle);
            known.since =
                (was_idle_throughout && !busy.contains(core)).then(|| known.since.unwrap_or(swept));
            (known.idle, known.whole) = (idle_ticks, whole);
        });
        if let Err(error) = looked {
            tracing::debug!(%error, "reading /proc/stat");
        }
    }

    fn fill_cores(&mut self, seen: &mut Snapshot) {
        seen.went_idle = CoreSet::EMPTY;
        for view in &mut seen.cores {
            let idle_since = self.idle.get(view.id.index()).and_then(|idle| idle.since);
            if idle_since.is_some() && view.idle_since.is_none() && self.managed.contains(view.id) {
                seen.went_idle.insert(view.id);
            }
            view.idle_since = idle_since;
            view.running = self.table.running_on(view.id);
            view.lc_busy = self
                .table
                .lc_share(view.id)
                .map_or(Signal::Absent(Absence::Stale), |share: Permille| estimated(share));
        }
    }

    fn fill_tasks(&mut self, now: Nanos, seen: &mut Snapshot) {
        for task in &mut seen.tasks {
            (task.running, task.waiting, task.sleeping) = (0, 0, 0);
            task.running_on = CoreSet::EMPTY;
            task.queueing_delay = Signal::Absent(Absence::NotApplicable);
            task.longest_run = Signal::Absent(Absence::NotApplicable);
            task.delay_caused = Signal::Absent(Absence::NotSupported);
        }
        for (view, private) in self.table.rows() {
            let task = seen.tasks.get_mut(view.task.at());
            let own = |task: &&mut quell_model::TaskView| task.alive && task.id == view.task;
            let Some(task) = task.filter(own).filter(|_| !private.guest) else { continue };
            match view.state {
                ThreadState::Running => {
                    task.running += 1;
                    task.running_on.insert(view.core);
                }
                ThreadState::Waiting => {
                    task.waiting += 1;
                    let delay = now.since(view.since).max(private.mean_wait);
                    let known = task.queueing_delay.value().unwrap_or_default();
                    task.queueing_delay = estimated(known.max(delay));
                }
                ThreadState::Sleeping | ThreadState::Unknown => task.sleeping += 1,
            }
            if view.state == ThreadState::Running {
                let known = task.longest_run.value().unwrap_or_default();
                task.longest_run = estimated(known.max(now.since(view.awake_since)));
            }
        }
    }
}

fn estimated<T>(value: T) -> Signal<T> {
    Signal::Estimated { value, how: Estimate::ProcSchedstat }
}

impl Observer for ProcObserver {
    fn watch(
        &mut self,
        thread: ThreadRef,
        task: TaskId,
        lc: bool,
        children: Children,
    ) -> Result<(), ObserveError> {
        let shown = self.reader.thread(thread).and_then(|shown| {
            let same = shown.start_ticks == thread.start_ticks;
            same.then_some(()).ok_or(std::io::ErrorKind::NotFound.into())
        });
        shown.map_err(|source| ObserveError::Kernel {
            what: format!("watching thread {}", thread.tid),
            source,
        })?;
        if self.table.len() >= THREADS_MAX && !self.table.contains(thread) {
            return Err(ObserveError::Full { limit: THREADS_MAX });
        }
        self.table.insert(thread, Membership { task, lc, children, guest: false }, clock::now());
        // Seen at the next read, whenever the last sweep was.
        self.swept = Nanos::ZERO;
        Ok(())
    }

    fn watch_member(
        &mut self,
        thread: ThreadRef,
        _task: TaskId,
        _member: u8,
        _lc: bool,
        _children: Children,
    ) -> Result<(), ObserveError> {
        Err(ObserveError::Kernel {
            what: format!("watching thread {} as a member of a lane", thread.tid),
            source: std::io::Error::other("lanes need signals = \"bpf\""),
        })
    }

    fn unwatch(&mut self, thread: ThreadRef) {
        self.table.remove(thread);
    }

    fn manage(&mut self, cores: &CoreSet) {
        self.managed = *cores;
    }

    fn read(&mut self, seen: &mut Snapshot) {
        let now = clock::now();
        if now >= self.swept + self.interval {
            self.sweep(now);
        }
        seen.now = now;
        self.fill_tasks(now, seen);
        self.fill_cores(seen);
        for task in seen.tasks.iter().filter(|task| task.alive && task.is_congested()) {
            if !seen.dirty.contains(&task.id.index) {
                seen.dirty.push(task.id.index);
            }
        }
    }

    fn threads(&self) -> &[ThreadView] {
        self.table.views()
    }

    fn drain_events(&mut self, sink: &mut dyn FnMut(HostEvent)) {
        self.events.drain(..).for_each(sink);
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn note_unserved(&mut self, _: TaskId, _: bool) {}

    fn wake_on_events(&mut self, _: bool) {}
}
