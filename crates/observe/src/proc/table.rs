//! The watched threads, as of the last sweep.

use std::collections::HashMap;

use quell_model::{Children, CoreId, CoreSet, Nanos, Permille, TaskId, ThreadId};

use super::files::{Reader, Shown};
use crate::{HostEvent, ThreadState, ThreadView};
use quell_os::{ThreadRef, Tid};

/// To whom a thread belongs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Membership {
    pub task: TaskId,
    pub lc: bool,
    pub children: Children,
    /// A process of an LC task that is treated as BE: not one of the task's threads.
    pub guest: bool,
}

/// What a view needs beside what everybody may see.
#[derive(Clone, Copy)]
pub(super) struct Private {
    children: Children,
    pub guest: bool,
    last: Option<Shown>,
    /// How long it ran between the last two sweeps.
    ran_lately: Nanos,
    /// The mean wait of each time it got a core since the sweep before.
    pub mean_wait: Nanos,
    sleeps: u64,
}

/// The watched threads.
#[derive(Default)]
pub(super) struct Table {
    views: Vec<ThreadView>,
    private: Vec<Private>,
    at: HashMap<ThreadRef, usize>,
    /// LC run time by core between the last two sweeps, and the time between them.
    lc_ran: HashMap<CoreId, Nanos>,
    between: Nanos,
    looked: Nanos,
}

impl Table {
    pub fn len(&self) -> usize {
        self.views.len()
    }

    pub fn contains(&self, thread: ThreadRef) -> bool {
        self.at.contains_key(&thread)
    }

    pub fn views(&self) -> &[ThreadView] {
        &self.views
    }

    pub fn rows(&self) -> impl Iterator<Item = (&ThreadView, &Private)> {
        self.views.iter().zip(&self.private)
    }

    /// Adds a thread, or gives it to another task.
    pub fn insert(&mut self, thread: ThreadRef, to: Membership, now: Nanos) {
        let at = *self.at.entry(thread).or_insert_with(|| {
            self.views.push(ThreadView {
                id: ThreadId { index: thread.tid.0 as u32, generation: 0 },
                thread,
                task: to.task,
                member: 0,
                lc: to.lc,
                state: ThreadState::Unknown,
                since: now,
                awake_since: now,
                core: CoreId(0),
                ran: Nanos::ZERO,
                waited: Nanos::ZERO,
                burst: Nanos::ZERO,
                burst_whole: Nanos::ZERO,
                transitions: 0,
            });
            self.private.push(Private {
                children: to.children,
                guest: to.guest,
                last: None,
                ran_lately: Nanos::ZERO,
                mean_wait: Nanos::ZERO,
                sleeps: 0,
            });
            self.views.len() - 1
        });
        let (view, private) = (&mut self.views[at], &mut self.private[at]);
        (view.task, view.lc) = (to.task, to.lc);
        (private.children, private.guest) = (to.children, to.guest);
    }

    pub fn remove(&mut self, thread: ThreadRef) {
        let Some(at) = self.at.remove(&thread) else { return };
        self.views.swap_remove(at);
        self.private.swap_remove(at);
        if let Some(moved) = self.views.get(at) {
            self.at.insert(moved.thread, at);
        }
    }

    /// The watched processes, each with a thread to name as the creator of new ones.
    pub fn processes(&self) -> Vec<(Tid, ThreadRef, Membership)> {
        let mut processes: HashMap<Tid, (ThreadRef, Membership)> = HashMap::new();
        for (view, private) in self.rows() {
            let membership = Membership {
                task: view.task,
                lc: view.lc,
                children: private.children,
                guest: private.guest,
            };
            let known = processes.entry(view.thread.tgid).or_insert((view.thread, membership));
            // The leader lives as long as its process, and tells the same at each sweep.
            if view.thread.tid == view.thread.tgid {
                *known = (view.thread, membership);
            }
        }
        let rows = processes.into_iter().map(|(tgid, (thread, to))| (tgid, thread, to));
        rows.collect()
    }

    /// Looks at each thread. Those that ended are told of and left out.
    pub fn look(&mut self, now: Nanos, reader: &mut Reader, events: &mut Vec<HostEvent>) {
        self.between = now.since(self.looked);
        self.looked = now;
        self.lc_ran.clear();
        let mut at = 0;
        while at < self.views.len() {
            let thread = self.views[at].thread;
            match reader.thread(thread) {
                Ok(shown) if shown.start_ticks == thread.start_ticks => {
                    self.account(at, &shown);
                    self.note_sleep(at, now, reader);
                    at += 1;
                }
                _ => {
                    self.remove(thread);
                    events.push(HostEvent::Exited(thread));
                }
            }
        }
        self.decide(now);
    }

    fn account(&mut self, at: usize, shown: &Shown) {
        let (view, private) = (&mut self.views[at], &mut self.private[at]);
        if let Some(last) = private.last {
            private.ran_lately = shown.ran.since(last.ran);
            let (waited, slices) =
                (shown.waited.since(last.waited), shown.slices.saturating_sub(last.slices));
            view.ran += private.ran_lately;
            view.waited += waited;
            private.mean_wait = Nanos(waited.0.checked_div(slices).unwrap_or(0));
            if view.lc {
                *self.lc_ran.entry(shown.core).or_default() += private.ran_lately;
            }
        }
        view.core = shown.core;
        private.last = Some(*shown);
    }

    fn note_sleep(&mut self, at: usize, now: Nanos, reader: &mut Reader) {
        let (view, private) = (&mut self.views[at], &mut self.private[at]);
        let runnable = private.last.is_some_and(|last| last.runnable);
        // Only who is runnable can have run without sleeping: the third file is read for those alone.
        let sleeps = if runnable { reader.sleeps(view.thread).ok() } else { None };
        if sleeps != Some(private.sleeps) {
            private.sleeps = sleeps.unwrap_or(0);
            view.awake_since = now;
        }
    }

    /// Of the runnable threads on each core, the one that ran most lately runs; the others wait.
    fn decide(&mut self, now: Nanos) {
        let mut most: HashMap<CoreId, (Nanos, usize)> = HashMap::new();
        for (at, (view, private)) in self.rows().enumerate() {
            if private.last.is_some_and(|last| last.runnable) {
                let found = (private.ran_lately, at);
                let known = most.entry(view.core).or_insert(found);
                *known = (*known).max(found);
            }
        }
        for (at, (view, private)) in self.views.iter_mut().zip(&self.private).enumerate() {
            let runnable = private.last.is_some_and(|last| last.runnable);
            let state = match most.get(&view.core) {
                Some(&(_, runs)) if runs == at => ThreadState::Running,
                _ if runnable => ThreadState::Waiting,
                _ => ThreadState::Sleeping,
            };
            if state != view.state || (state == ThreadState::Waiting && private.ran_lately.0 > 0) {
                view.state = state;
                view.since = now;
                view.transitions += 1;
            }
        }
    }

    /// The task whose thread is taken to run on a core.
    pub fn running_on(&self, core: CoreId) -> Option<TaskId> {
        let runs = |view: &&ThreadView| view.core == core && view.state == ThreadState::Running;
        self.views.iter().find(runs).map(|view| view.task)
    }

    /// The cores on which a watched thread is taken to run.
    pub fn running_cores(&self) -> CoreSet {
        let running = self.views.iter().filter(|view| view.state == ThreadState::Running);
        running.map(|view| view.core).collect()
    }

    /// The share of the time between the last two sweeps that LC threads ran on a core.
    pub fn lc_share(&self, core: CoreId) -> Option<Permille> {
        let ran = self.lc_ran.get(&core).copied().unwrap_or_default();
        (self.between > Nanos::ZERO).then(|| Permille::of(ran, self.between))
    }
}
