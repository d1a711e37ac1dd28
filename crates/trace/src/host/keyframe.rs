//! A keyframe is taken for the truth: what it does not list sleeps.

use std::collections::HashMap;

use quell_model::{Activity, Keyframe, Nanos};

use super::thread::{THREADS_MAX, ThreadIndex, ThreadState};
use super::{HostState, HostVisitor, KernelCounts, Running};

/// What a keyframe says of a thread: its state and core.
type Listed = (ThreadIndex, ThreadState, usize);

impl HostState {
    /// Takes the state of the host from a keyframe. A wait or run that it confirms goes on.
    ///
    /// The kernel is not stopped while a recorder walks over its threads, so entries may contradict each other:
    /// what a core runs is taken from the core's own entry.
    pub(super) fn resync<V: HostVisitor>(&mut self, keyframe: &Keyframe, visitor: &mut V) {
        self.keyframes += 1;
        let listed = self.take_threads(keyframe, visitor);
        let (running, runs_on) = self.take_runners(keyframe, visitor);
        for (core, running) in running.iter().enumerate() {
            if self.cores[core].running != *running
                && let Some(index) = self.vacate(core, visitor)
            {
                self.threads[index].waking_while_running = None;
                self.set_state(index, ThreadState::Unknown, core, self.now, visitor);
            }
        }
        self.rest_unlisted(visitor);
        for (index, state, core) in listed {
            if !runs_on.contains_key(&index) {
                self.confirm(index, state, core, visitor);
            }
        }
        for (core, running) in running.into_iter().enumerate() {
            if self.cores[core].running == running {
                continue;
            }
            self.end_occupancy(core, self.now, Nanos::ZERO, visitor);
            if let Running::Thread(index) = running {
                // The switch was not seen.
                self.drop_wakeup(index, visitor);
                self.threads[index].has_run = true;
                self.set_state(index, ThreadState::Running, core, self.now, visitor);
            }
            self.set_occupant(core, running, self.now, visitor);
        }
        self.take_cores(keyframe, visitor);
        self.mark_all_dirty();
        self.drop_surplus(visitor);
    }

    /// Names the listed threads. The first entry of a thread counts.
    fn take_threads<V: HostVisitor>(
        &mut self,
        keyframe: &Keyframe,
        visitor: &mut V,
    ) -> Vec<Listed> {
        let mut listed = Vec::with_capacity(keyframe.threads.len());
        for entry in &keyframe.threads {
            let Some(core) = self.topology.position(entry.core) else { continue };
            let Some(index) = self.introduce(&entry.thread, core, visitor) else { continue };
            if std::mem::replace(&mut self.threads[index].listed_in, self.keyframes)
                == self.keyframes
            {
                continue;
            }
            self.set_allowed(index, entry.allowed, visitor);
            self.set_migration_disabled(index, entry.bound, visitor);
            listed.push((index, state_of(entry.state), core));
        }
        listed
    }

    /// What each core runs, by index, and the core of each running thread. The first entry of a core counts, and
    /// the first core of a thread.
    fn take_runners<V: HostVisitor>(
        &mut self,
        keyframe: &Keyframe,
        visitor: &mut V,
    ) -> (Vec<Running>, HashMap<ThreadIndex, usize>) {
        let mut running = vec![Running::Unknown; self.cores.len()];
        let mut runs_on = HashMap::new();
        let mut is_listed = vec![false; self.cores.len()];
        for entry in &keyframe.cores {
            let Some(core) = self.topology.position(entry.core) else { continue };
            if std::mem::replace(&mut is_listed[core], true) {
                continue;
            }
            if entry.running == 0 {
                running[core] = Running::Idle;
            } else if let Some(index) = self.introduce_tid(entry.running, core, visitor) {
                self.threads[index].listed_in = self.keyframes;
                running[core] = match runs_on.contains_key(&index) {
                    true => Running::Unknown,
                    false => Running::Thread(index),
                };
                runs_on.entry(index).or_insert(core);
            }
        }
        (running, runs_on)
    }

    /// Threads that are not listed are taken to sleep.
    fn rest_unlisted<V: HostVisitor>(&mut self, visitor: &mut V) {
        for slot in 0..self.threads.slots() {
            let Some(thread) = self.threads.get(slot) else { continue };
            let (index, core) = (thread.index, thread.core);
            let sleeps = matches!(
                thread.state,
                ThreadState::Sleeping
                    | ThreadState::Blocked
                    | ThreadState::Stopped
                    | ThreadState::New
            );
            if thread.listed_in != self.keyframes && !sleeps {
                debug_assert_ne!(thread.state, ThreadState::Running, "a core runs it unlisted");
                self.drop_wakeup(index, visitor);
                self.set_state(index, ThreadState::Sleeping, core, self.now, visitor);
            }
        }
    }

    /// A thread that runs on no core is in this state.
    fn confirm<V: HostVisitor>(
        &mut self,
        index: ThreadIndex,
        state: ThreadState,
        core: usize,
        visitor: &mut V,
    ) {
        let old = self.threads[index].state;
        let state = match (old, state) {
            // The core ran something else when it was looked at.
            (_, ThreadState::Running) => ThreadState::Unknown,
            // A keyframe lists a thread that is being woken as waiting.
            (ThreadState::Waking, ThreadState::Waiting) => old,
            // Events say more of a sleep than a keyframe.
            (
                ThreadState::Blocked | ThreadState::Stopped | ThreadState::New,
                ThreadState::Sleeping,
            ) => old,
            _ => state,
        };
        if !state.is_listed() {
            self.drop_wakeup(index, visitor);
        }
        self.set_state(index, state, core, self.now, visitor);
    }

    /// Counts, loads and domains. Cores that are not listed are offline; a keyframe without any says nothing.
    fn take_cores<V: HostVisitor>(&mut self, keyframe: &Keyframe, visitor: &mut V) {
        if keyframe.cores.is_empty() {
            return;
        }
        let mut is_listed = vec![false; self.cores.len()];
        for entry in &keyframe.cores {
            let Some(core) = self.topology.position(entry.core) else { continue };
            if std::mem::replace(&mut is_listed[core], true) {
                continue;
            }
            let counts = KernelCounts { queued: entry.queued, runnable: entry.runnable };
            self.set_counts(core, counts, visitor);
            self.set_load(core, entry.weight, entry.average, visitor);
            self.cores[core].wake_pending = entry.wake_pending;
            self.cores[core].domain = Some(entry.domain);
        }
        for (core, is_listed) in is_listed.into_iter().enumerate() {
            self.set_online(core, is_listed, visitor);
            if !is_listed {
                self.cores[core].runnable = None;
            }
            if std::mem::take(&mut self.cores[core].is_lost) {
                visitor.core_known(&self.cores[core], self.now);
            }
        }
    }

    /// Stops following sleepers that are not listed, where there are too many.
    fn drop_surplus<V: HostVisitor>(&mut self, visitor: &mut V) {
        if self.threads.len() <= THREADS_MAX / 2 {
            return;
        }
        self.overflowed = false;
        for slot in 0..self.threads.slots() {
            let Some(thread) = self.threads.get(slot) else { continue };
            if thread.listed_in != self.keyframes {
                self.end_thread(thread.index, visitor);
            }
        }
    }
}

fn state_of(activity: Activity) -> ThreadState {
    match activity {
        Activity::Running => ThreadState::Running,
        Activity::Waiting => ThreadState::Waiting,
        Activity::Throttled => ThreadState::Throttled,
        Activity::Delayed => ThreadState::Delayed,
        Activity::Moving => ThreadState::Migrating,
        Activity::Sleeping => ThreadState::Sleeping,
    }
}
