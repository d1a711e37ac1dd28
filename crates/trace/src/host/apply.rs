//! What each event does to the state.

use quell_model::{CoreId, CoreSet, Event, Left, Nanos, Rank, Runner, What};

use super::thread::{ThreadIndex, ThreadState};
use super::{HostState, HostVisitor, KernelCounts, PlanCores, Queues, Running};

/// In a stream without `sched_wakeup`, a `sched_waking` that comes this shortly before its thread leaves the core
/// belongs to that sleep: the waker met the sleeper. An earlier one found the thread running.
const WAKES_ITS_SLEEP: Nanos = Nanos::from_micros(50);

impl HostState {
    /// Finds missing numbers of a core: a loss like one that the recorder reports.
    pub(super) fn take_sequence<V: HostVisitor>(
        &mut self,
        here: usize,
        event: &Event,
        visitor: &mut V,
    ) {
        let core = &mut self.cores[here];
        let expected = core.next_sequence.unwrap_or(event.sequence);
        core.next_sequence = Some(event.sequence.saturating_add(1).max(expected));
        let reported = std::mem::take(&mut core.reported_loss);
        let missing = event.sequence.saturating_sub(expected).saturating_sub(reported);
        if missing > 0 {
            self.lose(here, missing, visitor);
        }
    }

    pub(super) fn apply<V: HostVisitor>(
        &mut self,
        here: Option<usize>,
        what: &What,
        visitor: &mut V,
    ) {
        // Where the core of the event is not in the topology, any stands for where a thread was seen.
        let seen_at = here.unwrap_or(0);
        match what {
            What::Switch { next, left, how, stolen } => {
                if let Some(here) = here {
                    self.switch(here, next, *left, *how, *stolen, visitor);
                }
            }
            What::Waking { thread, target, .. } => self.waking(thread, *target, visitor),
            What::Woken { thread, on, is_new } => self.woken(thread, *on, *is_new, visitor),
            What::Migrate { thread, from, to, cause } => {
                let (from, to) = (self.topology.position(*from), self.topology.position(*to));
                let (Some(from), Some(to)) = (from, to) else { return };
                let index = self.threads.find(*thread);
                let moved = index.map(|index| &self.threads[index]);
                visitor.migrated(moved, from, to, *cause, self.now);
                if let Some(index) = index {
                    self.migrate(index, to, visitor);
                }
            }
            What::Fork { child, .. } => self.fork(child, seen_at, visitor),
            What::Exec { thread } => self.exec(thread, seen_at, visitor),
            What::Exit { thread } => self.exit(*thread, visitor),
            What::Allowed { thread, cores } => {
                if let Some(index) = self.introduce_tid(*thread, seen_at, visitor) {
                    self.set_allowed(index, **cores, visitor);
                }
            }
            What::Planned(plan) => {
                let planned = plan.original.intersection(&plan.cores);
                let cores = PlanCores { planned, original: plan.original };
                self.set_process_plan(plan.process, cores, visitor);
            }
            What::Queue { of, queued, runnable } => {
                if let Some(core) = self.topology.position(*of) {
                    let counts = KernelCounts { queued: *queued, runnable: *runnable };
                    self.set_counts(core, counts, visitor);
                }
            }
            What::Load { of, weight, average } => {
                if let Some(core) = self.topology.position(*of) {
                    self.set_load(core, *weight, *average, visitor);
                }
            }
            What::Online { of, online } => {
                if let Some(core) = self.topology.position(*of) {
                    self.set_online(core, *online, visitor);
                }
            }
            What::Lost { count } => {
                if let Some(here) = here {
                    self.cores[here].reported_loss = count.saturating_sub(1);
                    self.lose(here, *count, visitor);
                }
            }
            What::Keyframe(keyframe) => self.resync(keyframe, visitor),
            What::Considered { .. }
            | What::Softirq { .. }
            | What::Interrupt { .. }
            | What::Task(_)
            | What::Decision(_)
            | What::Annotation(_)
            | What::Pass(_)
            | What::Domains(_)
            | What::Violation(_) => {}
        }
    }

    fn switch<V: HostVisitor>(
        &mut self,
        here: usize,
        next: &Runner,
        left: i32,
        how: Left,
        steal: Nanos,
        visitor: &mut V,
    ) {
        let leaves = match self.cores[here].running {
            Running::Thread(index) if self.threads[index].tid() == left => {
                self.end_occupancy(here, self.now, steal, visitor);
                Some(index)
            }
            Running::Idle if left == 0 => {
                self.end_occupancy(here, self.now, steal, visitor);
                None
            }
            _ => self.catch_up(here, left, how, steal, visitor),
        };
        if next.thread != left
            && let Some(index) = leaves
        {
            self.leave(index, here, how, visitor);
        }
        // The slot of a thread that ended may be used again below.
        self.cores[here].running = Running::Unknown;
        let running = match self.introduce(next, here, visitor) {
            Some(index) => {
                self.switch_in(index, here, visitor);
                Running::Thread(index)
            }
            None if next.thread == 0 => Running::Idle,
            None => Running::Unknown,
        };
        self.cores[here].wake_pending = false;
        self.set_occupant(here, running, self.now, visitor);
        if running == Running::Idle {
            self.cores[here].runnable = Some(0);
            self.empty_queue(here, visitor);
        }
    }

    /// A thread gets a core.
    fn switch_in<V: HostVisitor>(&mut self, index: ThreadIndex, here: usize, visitor: &mut V) {
        let thread = &mut self.threads[index];
        let (state, core) = (thread.state, thread.core);
        thread.has_run = true;
        thread.waking_while_running = None;
        if state == ThreadState::Running && core != here {
            // It cannot have two cores: what runs on the other one was missed.
            self.vacate(core, visitor);
        }
        if let Some(from) = self.take_wakeup(index) {
            visitor.wakeup_latency(&self.threads[index], from, self.now);
        }
        self.set_migration_disabled(index, false, visitor);
        self.set_state(index, ThreadState::Running, here, self.now, visitor);
    }

    /// A thread leaves the core that it ran on.
    fn leave<V: HostVisitor>(
        &mut self,
        index: ThreadIndex,
        here: usize,
        how: Left,
        visitor: &mut V,
    ) {
        let waking = self.threads[index].waking_while_running.take();
        let sleeps = match how {
            Left::Dead => return self.end_thread(index, visitor),
            Left::Preempted => {
                return self.set_state(index, ThreadState::Waiting, here, self.now, visitor);
            }
            Left::Sleeping => ThreadState::Sleeping,
            Left::Blocked => ThreadState::Blocked,
            Left::Stopped => ThreadState::Stopped,
        };
        match waking {
            Some((at, target)) if self.has_wakeups || self.now.since(at) <= WAKES_ITS_SLEEP => {
                self.note_wakeup(index, at);
                self.set_state(index, self.woken_state(), target as usize, self.now, visitor);
            }
            _ => self.set_state(index, sleeps, here, self.now, visitor),
        }
    }

    /// The state of a thread after `sched_waking`.
    fn woken_state(&self) -> ThreadState {
        if self.has_wakeups { ThreadState::Waking } else { ThreadState::Waiting }
    }

    /// Another thread leaves a core than the one that was seen there: switches were missed. Ends the span of what
    /// was seen there, and returns the thread that leaves.
    ///
    /// When it got the core is not known; where it waited and preempts what was seen, it did so at once.
    fn catch_up<V: HostVisitor>(
        &mut self,
        here: usize,
        left: i32,
        how: Left,
        steal: Nanos,
        visitor: &mut V,
    ) -> Option<ThreadIndex> {
        let known = match how {
            Left::Preempted => self.introduce_tid(left, here, visitor),
            _ => self.threads.find(left),
        };
        // A thread that has its place on another core by now left this one before: the order is damaged. Where moves
        // are not recorded, one that waits there was moved.
        let leaves = known.filter(|index| {
            let thread = &self.threads[*index];
            let may_have_moved = !self.has_migrations && thread.state.is_listed();
            thread.core == here || !thread.state.is_placed() || may_have_moved
        });
        let switched_at = leaves.and_then(|index| self.missed_switch(here, index));
        let until = switched_at.unwrap_or(self.now);
        let seen = self.cores[here].running;
        let seen_steal = if switched_at.is_none() { steal } else { Nanos::ZERO };
        self.end_occupancy(here, until, seen_steal, visitor);
        if let Running::Thread(seen) = seen {
            self.threads[seen].waking_while_running = None;
            self.set_state(seen, ThreadState::Unknown, here, until, visitor);
        }
        let index = leaves?;
        self.drop_wakeup(index, visitor);
        self.threads[index].has_run = true;
        if switched_at.is_some() {
            self.set_state(index, ThreadState::Running, here, until, visitor);
            self.set_occupant(here, Running::Thread(index), until, visitor);
            self.end_occupancy(here, self.now, steal, visitor);
        } else if self.threads[index].state.is_listed() {
            // It ran, if only for a moment: what it waits from now on is another wait.
            self.set_state(index, ThreadState::Unknown, here, self.now, visitor);
        }
        Some(index)
    }

    /// When a thread got the core that it leaves now, if that follows: it preempts what was seen there, so it
    /// had the core as soon as it waited.
    fn missed_switch(&self, here: usize, index: ThreadIndex) -> Option<Nanos> {
        let (core, thread) = (&self.cores[here], &self.threads[index]);
        let is_listed = thread.state.is_listed();
        let preempts = match core.running {
            Running::Unknown => false,
            Running::Idle => is_listed,
            Running::Thread(seen) => {
                let is_known = is_listed || thread.has_run;
                is_known && thread.prio() < self.threads[seen].prio()
            }
        };
        let from = core.since.max(thread.since).max(self.cut_at);
        (preempts && from < self.now).then_some(from)
    }

    /// The kernel runs the idle thread of a core: what waited there by the events is throttled, or left unseen.
    fn empty_queue<V: HostVisitor>(&mut self, here: usize, visitor: &mut V) {
        let is_known = self.queues == Queues::PerCore && self.has_migrations;
        if !is_known || self.cores[here].waiting == 0 {
            return;
        }
        let mut next = self.cores[here].head;
        while let Some(index) = next {
            next = self.threads[index].next;
            if self.threads[index].state == ThreadState::Waiting {
                self.set_state(index, ThreadState::Unknown, here, self.now, visitor);
            }
        }
    }

    fn waking<V: HostVisitor>(&mut self, info: &Runner, target: CoreId, visitor: &mut V) {
        let Some(target) = self.topology.position(target) else { return };
        let Some(index) = self.introduce(info, target, visitor) else { return };
        match self.threads[index].state {
            ThreadState::Running => {
                self.threads[index].waking_while_running = Some((self.now, target as u32));
            }
            // It is runnable: the wake-up changes nothing.
            ThreadState::Waiting | ThreadState::Waking => {}
            _ => {
                if V::TRACKS_PLACEMENT && !self.has_wakeups {
                    self.judge_placement(index, target, visitor);
                }
                self.note_wakeup(index, self.now);
                self.set_state(index, self.woken_state(), target, self.now, visitor);
                if !self.has_wakeups {
                    self.outdate_count(target);
                }
            }
        }
    }

    fn woken<V: HostVisitor>(&mut self, info: &Runner, on: CoreId, is_new: bool, visitor: &mut V) {
        self.has_wakeups |= !is_new;
        let Some(on) = self.topology.position(on) else { return };
        if is_new && self.threads.find(info.thread).is_some_and(|index| self.is_used(index)) {
            self.end_tid(info.thread, visitor);
        }
        let Some(index) = self.introduce(info, on, visitor) else { return };
        match self.threads[index].state {
            // It goes on as if it had not been about to sleep.
            ThreadState::Running => self.threads[index].waking_while_running = None,
            state => {
                if V::TRACKS_PLACEMENT && state != ThreadState::Waiting {
                    self.judge_placement(index, on, visitor);
                }
                // A wake-up of a thread that waits already is none. A keyframe may have listed a new thread before
                // its first wake-up was recorded.
                if state != ThreadState::Waiting || is_new {
                    self.note_wakeup(index, self.now);
                }
                self.set_state(index, ThreadState::Waiting, on, self.now, visitor);
            }
        }
        // The count does not change when a sleeper returns whose dequeue was delayed.
        self.outdate_count(on);
    }

    /// Whether a thread cannot be the one that is woken for the first time.
    fn is_used(&self, index: ThreadIndex) -> bool {
        let thread = &self.threads[index];
        thread.has_run && thread.state != ThreadState::Running
    }

    fn judge_placement<V: HostVisitor>(&self, index: ThreadIndex, on: usize, visitor: &mut V) {
        let (thread, onto) = (&self.threads[index], &self.cores[on]);
        let key = self.class(thread.class);
        let allowed = key.allowed.or(self.assumed_affinity());
        let (Running::Thread(_), Some(allowed), false) = (onto.running, allowed, key.is_pinned)
        else {
            return;
        };
        let idle = self.idle.intersection(&allowed);
        let is_known = onto.is_online && !onto.is_lost && !self.idle.contains(onto.id);
        if is_known && !idle.is_empty() {
            visitor.woken_beside_idle(thread, onto, &idle, self.now);
        }
    }

    /// The cores that a thread may use whose affinity is not reported: all of them where the source never
    /// reports any, else nothing is known.
    pub fn assumed_affinity(&self) -> Option<CoreSet> {
        self.assumes_free_affinity.then(|| self.topology.all())
    }

    fn migrate<V: HostVisitor>(&mut self, index: ThreadIndex, to: usize, visitor: &mut V) {
        self.set_migration_disabled(index, false, visitor);
        let (state, core) = (self.threads[index].state, self.threads[index].core);
        match state {
            ThreadState::Running if core == to => {}
            // A running thread is stopped first, then moved: its switch is still to come, or was lost.
            ThreadState::Running => {
                self.vacate(core, visitor);
                self.threads[index].waking_while_running = None;
                self.set_state(index, ThreadState::Waiting, to, self.now, visitor);
            }
            ThreadState::Waiting | ThreadState::Waking => {
                self.set_state(index, state, to, self.now, visitor);
            }
            _ => self.threads[index].core = to,
        }
        self.outdate_count(to);
    }

    fn fork<V: HostVisitor>(&mut self, child: &Runner, here: usize, visitor: &mut V) {
        self.end_tid(child.thread, visitor);
        if let Some(index) = self.introduce(child, here, visitor) {
            self.threads[index].state = ThreadState::New;
        }
    }

    /// The thread has a new name. One that was not its process' leader has taken the leader's tid.
    fn exec<V: HostVisitor>(&mut self, info: &Runner, here: usize, visitor: &mut V) {
        if let Running::Thread(index) = self.cores[here].running {
            let runs = self.threads[index].info;
            let is_other = runs.thread != info.thread && runs.process == info.process;
            if is_other && info.thread == info.process {
                self.end_tid(info.thread, visitor);
                self.threads.renumber(index, info.thread);
            }
        }
        self.introduce(info, here, visitor);
    }

    fn exit<V: HostVisitor>(&mut self, tid: i32, visitor: &mut V) {
        let Some(index) = self.threads.find(tid) else { return };
        // A running thread goes on, and may be preempted, until it is switched away for good.
        if self.threads[index].state != ThreadState::Running {
            self.end_thread(index, visitor);
        }
    }

    /// Ends the thread that has a tid, if one has.
    fn end_tid<V: HostVisitor>(&mut self, tid: i32, visitor: &mut V) {
        let Some(index) = self.threads.find(tid) else { return };
        if self.threads[index].state == ThreadState::Running {
            self.vacate(self.threads[index].core, visitor);
        }
        self.end_thread(index, visitor);
    }

    /// Something may have changed the queue: the kernel's count is not current.
    fn outdate_count(&mut self, core: usize) {
        self.cores[core].runnable = None;
        self.mark_dirty(core);
    }

    pub(super) fn set_counts<V: HostVisitor>(
        &mut self,
        core: usize,
        counts: KernelCounts,
        visitor: &mut V,
    ) {
        self.cores[core].runnable = Some(counts.runnable);
        self.mark_dirty(core);
        if self.cores[core].counts.replace(counts) != Some(counts) {
            visitor.queue_size(&self.cores[core], self.now);
        }
    }

    pub(super) fn set_load<V: HostVisitor>(
        &mut self,
        core: usize,
        weight: u64,
        average: u64,
        visitor: &mut V,
    ) {
        let place = &mut self.cores[core];
        if (place.load_weight, place.load_avg) != (weight, average) {
            (place.load_weight, place.load_avg) = (weight, average);
            visitor.queue_load(place, self.now);
        }
    }

    pub(super) fn set_online<V: HostVisitor>(
        &mut self,
        core: usize,
        online: bool,
        visitor: &mut V,
    ) {
        self.mark_dirty(core);
        if std::mem::replace(&mut self.cores[core].is_online, online) != online {
            visitor.core_online(&self.cores[core], self.now);
        }
    }

    /// Events of a core are missing: neither its occupant nor its queue is known, and no pending wake-up of the
    /// host is, since its end may be among them.
    fn lose<V: HostVisitor>(&mut self, here: usize, count: u64, visitor: &mut V) {
        self.incomplete = Some(self.keyframes);
        visitor.core_lost(&self.cores[here], self.cores[here].last_event, self.now, count);
        if self.pending_wakeups > 0 {
            visitor.wakeups_unknown(self.pending_wakeups, self.now);
        }
        self.pending_wakeups = 0;
        self.wakeup_epoch = self.wakeup_epoch.wrapping_add(1).max(1);
        if let Some(index) = self.vacate(here, visitor) {
            self.threads[index].waking_while_running = None;
            self.set_state(index, ThreadState::Unknown, here, self.now, visitor);
        }
        while let Some(index) = self.cores[here].head {
            self.set_state(index, ThreadState::Unknown, here, self.now, visitor);
        }
        let core = &mut self.cores[here];
        (core.is_lost, core.runnable, core.wake_pending) = (true, None, false);
        self.mark_dirty(here);
    }
}

/// Whether a priority is of a real-time or deadline class.
pub(super) fn is_realtime(prio: Rank) -> bool {
    prio < Rank::FAIR
}
