//! The steps of which each event consists: a thread changes its state, a core its occupant.

use quell_model::{CoreSet, Nanos, Rank, Runner, ThreadName};

use super::class::Classes;
use super::thread::{ThreadIndex, ThreadState, unnamed};
use super::{HostState, HostVisitor, PlanCores, Queues, Running, WaiterKey};

impl HostState {
    /// The thread of this tid, created or described anew; `None` for the idle thread, for a tid that no kernel
    /// gives, and where the table is full.
    pub(super) fn introduce<V: HostVisitor>(
        &mut self,
        info: &Runner,
        core: usize,
        visitor: &mut V,
    ) -> Option<ThreadIndex> {
        if info.thread <= 0 {
            return None;
        }
        let Some(index) = self.threads.find(info.thread) else {
            return self.create(info, core, visitor);
        };
        if self.threads[index].info != *info {
            self.describe_as(index, info, visitor);
        }
        Some(index)
    }

    /// As [`HostState::introduce`], of a tid alone.
    pub(super) fn introduce_tid<V: HostVisitor>(
        &mut self,
        tid: i32,
        core: usize,
        visitor: &mut V,
    ) -> Option<ThreadIndex> {
        match self.threads.find(tid) {
            None if tid > 0 => self.create(&unnamed(tid), core, visitor),
            known => known,
        }
    }

    fn create<V: HostVisitor>(
        &mut self,
        info: &Runner,
        core: usize,
        visitor: &mut V,
    ) -> Option<ThreadIndex> {
        let index = self.threads.create(*info, core, self.now, Classes::DEFAULT);
        let Some(index) = index else {
            self.overflowed = true;
            return None;
        };
        let key = WaiterKey {
            prio: info.rank,
            is_pinned: self.own.contains(&info.thread),
            plan: self.plan_of(info),
            ..WaiterKey::DEFAULT
        };
        self.threads[index].class = self.classes.join(&key);
        visitor.thread_appeared(&self.threads[index], self.now);
        if info.name != ThreadName::default() {
            visitor.thread_described(&self.threads[index], self.now);
        }
        Some(index)
    }

    /// Names a thread, and reports what changed. What names nothing says nothing.
    pub(super) fn describe_as<V: HostVisitor>(
        &mut self,
        index: ThreadIndex,
        info: &Runner,
        visitor: &mut V,
    ) {
        if info.name == ThreadName::default() {
            return;
        }
        self.threads[index].info = *info;
        let key = self.classes.key(self.threads[index].class);
        let plan = self.plan_of(info);
        if (key.prio, key.plan) != (info.rank, plan) {
            let key = WaiterKey { prio: info.rank, plan, ..*key };
            self.reclassify(index, &key, visitor);
            let core = self.threads[index].core;
            self.mark_dirty(core);
        }
        visitor.thread_described(&self.threads[index], self.now);
    }

    fn plan_of(&self, info: &Runner) -> Option<PlanCores> {
        if self.thread_plans.is_empty() && self.process_plans.is_empty() {
            return None;
        }
        let of_thread = self.thread_plans.get(&info.thread);
        of_thread.or_else(|| self.process_plans.get(&info.process)).copied()
    }

    /// Gives a thread another class, also in the queue in which it waits.
    pub(super) fn reclassify<V: HostVisitor>(
        &mut self,
        index: ThreadIndex,
        key: &WaiterKey,
        visitor: &mut V,
    ) {
        let thread = &self.threads[index];
        let (old, core, waits) = (thread.class, thread.core, thread.state == ThreadState::Waiting);
        let old_key = self.classes.key(old);
        if old_key == key {
            return;
        }
        let (was_above, is_above) = (is_above_idle(old_key.prio), is_above_idle(key.prio));
        let class = self.classes.join(key);
        self.classes.leave(old);
        self.threads[index].class = class;
        if waits {
            let queue = &mut self.cores[core];
            queue.leave_group(old);
            queue.join_group(class);
            queue.above_idle = queue.above_idle + u32::from(is_above) - u32::from(was_above);
            self.mark_dirty(core);
            visitor.waiter_changed(&self.threads[index], self.now);
        }
    }

    pub(super) fn set_allowed<V: HostVisitor>(
        &mut self,
        index: ThreadIndex,
        allowed: CoreSet,
        visitor: &mut V,
    ) {
        let key = self.classes.key(self.threads[index].class);
        if key.allowed != Some(allowed) {
            let key = WaiterKey { allowed: Some(allowed), ..*key };
            self.reclassify(index, &key, visitor);
        }
    }

    pub(super) fn set_migration_disabled<V: HostVisitor>(
        &mut self,
        index: ThreadIndex,
        disabled: bool,
        visitor: &mut V,
    ) {
        let thread = &mut self.threads[index];
        if thread.migration_disabled == disabled {
            return;
        }
        thread.migration_disabled = disabled;
        let is_pinned = disabled || self.own.contains(&thread.info.thread);
        let key = WaiterKey { is_pinned, ..*self.classes.key(thread.class) };
        self.reclassify(index, &key, visitor);
    }

    /// Names the threads of the checker itself: they are discounted.
    pub fn set_own<V: HostVisitor>(&mut self, own: impl IntoIterator<Item = i32>, visitor: &mut V) {
        self.own = own.into_iter().collect();
        self.rekey(None, visitor);
        self.mark_all_dirty();
        self.settle(visitor);
    }

    /// Says which cores plans of Quell let threads use, by tid and by tgid, in place of all that was said before.
    pub fn set_plans<V: HostVisitor>(
        &mut self,
        threads: impl IntoIterator<Item = (i32, PlanCores)>,
        processes: impl IntoIterator<Item = (i32, PlanCores)>,
        visitor: &mut V,
    ) {
        self.thread_plans = threads.into_iter().collect();
        self.process_plans = processes.into_iter().collect();
        self.rekey(None, visitor);
        self.settle(visitor);
    }

    pub(super) fn set_process_plan<V: HostVisitor>(
        &mut self,
        tgid: i32,
        plan: PlanCores,
        visitor: &mut V,
    ) {
        if self.process_plans.insert(tgid, plan) != Some(plan) {
            self.rekey(Some(tgid), visitor);
        }
    }

    /// Gives the threads of a process, or all, the class that they have by what was said of them.
    fn rekey<V: HostVisitor>(&mut self, tgid: Option<i32>, visitor: &mut V) {
        for slot in 0..self.threads.slots() {
            let Some(thread) = self.threads.get(slot) else { continue };
            if tgid.is_some_and(|tgid| tgid != thread.tgid()) {
                continue;
            }
            let (index, key) = (thread.index, *self.classes.key(thread.class));
            let is_pinned = thread.migration_disabled || self.own.contains(&thread.info.thread);
            let plan = self.plan_of(&thread.info);
            self.reclassify(index, &WaiterKey { is_pinned, plan, ..key }, visitor);
        }
    }

    /// Reports the span of a thread that ends, and what it waited behind in it.
    pub(super) fn end_span<V: HostVisitor>(&self, index: ThreadIndex, at: Nanos, visitor: &mut V) {
        let thread = &self.threads[index];
        if at <= thread.since {
            return;
        }
        visitor.thread_span(thread, at);
        let core = &self.cores[thread.core];
        if V::TRACKS_DELAYS
            && thread.state == ThreadState::Waiting
            && let Running::Thread(by) = core.running
            && by != index
        {
            let from = thread.since.max(core.since);
            if at > from {
                visitor.delayed(thread, &self.threads[by], from, at);
            }
        }
    }

    /// A thread changes its state or core at a time that is not before its last change.
    ///
    /// A running thread keeps being named by its core: the caller gives the core another occupant.
    pub(super) fn set_state<V: HostVisitor>(
        &mut self,
        index: ThreadIndex,
        state: ThreadState,
        core: usize,
        at: Nanos,
        visitor: &mut V,
    ) {
        let thread = &self.threads[index];
        let (old, old_core) = (thread.state, thread.core);
        if (old, old_core) == (state, core) {
            return;
        }
        debug_assert!(at >= thread.since, "a thread changes before its last change");
        self.end_span(index, at, visitor);
        self.unlist(index);
        let stays = self.threads[index].next.is_some() || self.cores[old_core].tail == Some(index);
        debug_assert!(!stays, "a thread stays in the queue that it leaves");
        let thread = &mut self.threads[index];
        (thread.state, thread.core, thread.since) = (state, core, at);
        self.list(index);
        if old.is_placed() || state.is_placed() {
            self.mark_dirty(old_core);
            self.mark_dirty(core);
        }
        if old == ThreadState::Waiting || state == ThreadState::Waiting {
            visitor.waiter_changed(&self.threads[index], self.now);
        }
    }

    /// Takes a thread out of the list of its core and out of its counts.
    fn unlist(&mut self, index: ThreadIndex) {
        let thread = &mut self.threads[index];
        if !thread.state.is_listed() {
            return;
        }
        let (state, class, prio) = (thread.state, thread.class, thread.prio());
        let (previous, next) = (thread.previous.take(), thread.next.take());
        let core = &mut self.cores[thread.core];
        match previous {
            Some(previous) => self.threads[previous].next = next,
            None => core.head = next,
        }
        match next {
            Some(next) => self.threads[next].previous = previous,
            None => core.tail = previous,
        }
        let listed = if state == ThreadState::Waiting { core.waiting } else { core.waking };
        debug_assert!(listed > 0, "core {}: more threads leave its queue than came", core.id);
        if state == ThreadState::Waiting {
            core.waiting -= 1;
            core.above_idle -= u32::from(is_above_idle(prio));
            core.leave_group(class);
        } else {
            core.waking -= 1;
        }
    }

    /// Puts a thread at the end of the list of its core and into its counts, where its state belongs there.
    fn list(&mut self, index: ThreadIndex) {
        let thread = &mut self.threads[index];
        if !thread.state.is_listed() {
            return;
        }
        let (state, class, prio) = (thread.state, thread.class, thread.prio());
        debug_assert!(thread.next.is_none(), "tid {} is in two queues", thread.tid());
        let core = &mut self.cores[thread.core];
        thread.previous = core.tail.replace(index);
        match thread.previous {
            Some(previous) => self.threads[previous].next = Some(index),
            None => core.head = Some(index),
        }
        if state == ThreadState::Waiting {
            core.waiting += 1;
            core.above_idle += u32::from(is_above_idle(prio));
            core.join_group(class);
        } else {
            core.waking += 1;
        }
    }

    /// Reports the span of a core's occupant, and what it delayed. The occupant stays until it is replaced.
    pub(super) fn end_occupancy<V: HostVisitor>(
        &mut self,
        core: usize,
        at: Nanos,
        steal: Nanos,
        visitor: &mut V,
    ) {
        let place = &self.cores[core];
        if at > place.since {
            visitor.core_span(place, self.occupant(core), place.since, at, steal);
            if V::TRACKS_DELAYS
                && let Running::Thread(by) = place.running
            {
                for waiter in self.waiters(core).filter(|waiter| at > waiter.since) {
                    let from = waiter.since.max(place.since);
                    visitor.delayed(waiter, &self.threads[by], from, at);
                }
            }
        }
        self.cores[core].since = at;
    }

    /// Gives a core an occupant whose predecessor's span has ended.
    pub(super) fn set_occupant<V: HostVisitor>(
        &mut self,
        core: usize,
        running: Running,
        at: Nanos,
        visitor: &mut V,
    ) {
        self.mark_dirty(core);
        self.cores[core].running = running;
        visitor.core_switched(&self.cores[core], self.occupant(core), at);
    }

    /// What has a core is not known from now on. Its thread, if one had it, is left to the caller.
    pub(super) fn vacate<V: HostVisitor>(
        &mut self,
        core: usize,
        visitor: &mut V,
    ) -> Option<ThreadIndex> {
        let running = self.cores[core].running;
        if running != Running::Unknown {
            self.end_occupancy(core, self.now, Nanos::ZERO, visitor);
            self.set_occupant(core, Running::Unknown, self.now, visitor);
        }
        match running {
            Running::Thread(index) => Some(index),
            Running::Unknown | Running::Idle => None,
        }
    }

    /// Ends a thread: no core runs it any more.
    pub(super) fn end_thread<V: HostVisitor>(&mut self, index: ThreadIndex, visitor: &mut V) {
        self.drop_wakeup(index, visitor);
        let core = self.threads[index].core;
        self.set_state(index, ThreadState::Unknown, core, self.now, visitor);
        visitor.thread_ended(&self.threads[index], self.now);
        self.classes.leave(self.threads[index].class);
        self.threads.remove(index);
    }

    /// Notes that a thread was woken, unless it was and has not run since.
    pub(super) fn note_wakeup(&mut self, index: ThreadIndex, at: Nanos) {
        let thread = &mut self.threads[index];
        if thread.wakeup_epoch != self.wakeup_epoch {
            (thread.woken_at, thread.wakeup_epoch) = (at, self.wakeup_epoch);
            self.pending_wakeups += 1;
        }
    }

    /// Takes the pending wake-up of a thread.
    pub(super) fn take_wakeup(&mut self, index: ThreadIndex) -> Option<Nanos> {
        let thread = &mut self.threads[index];
        if thread.wakeup_epoch != self.wakeup_epoch {
            return None;
        }
        thread.wakeup_epoch = 0;
        debug_assert!(self.pending_wakeups > 0, "more wake-ups ended than began");
        self.pending_wakeups -= 1;
        Some(thread.woken_at)
    }

    /// The latency of a thread's pending wake-up will not be known.
    pub(super) fn drop_wakeup<V: HostVisitor>(&mut self, index: ThreadIndex, visitor: &mut V) {
        if self.take_wakeup(index).is_some() {
            visitor.wakeups_unknown(1, self.now);
        }
    }

    pub(super) fn mark_dirty(&mut self, core: usize) {
        let place = &mut self.cores[core];
        if !place.is_dirty {
            place.is_dirty = true;
            self.dirty.push(core as u16);
        }
    }

    pub(super) fn mark_all_dirty(&mut self) {
        (0..self.cores.len()).for_each(|core| self.mark_dirty(core));
    }

    /// Keeps the sets of cores after an event.
    pub(super) fn settle<V: HostVisitor>(&mut self, visitor: &mut V) {
        if self.dirty.is_empty() {
            return;
        }
        let (mut shifted, mut has_news) = (false, false);
        let mut dirty = std::mem::take(&mut self.dirty);
        for &index in &dirty {
            let core = usize::from(index);
            self.cores[core].is_dirty = false;
            self.assert_consistent(core);
            let id = self.cores[core].id;
            let (idle, low) = (self.is_idle(core), self.is_sched_idle_only(core));
            let (contended, lost) = (self.is_contended(core), self.cores[core].is_lost);
            let idle_changed = set_member(&mut self.idle, id, idle);
            shifted |= idle_changed;
            shifted |= set_member(&mut self.sched_idle_only, id, low);
            has_news |= idle_changed | set_member(&mut self.contended, id, contended) | contended;
            set_member(&mut self.lost, id, lost);
        }
        self.assert_sets();
        self.epoch += u64::from(has_news);
        for &index in &dirty {
            visitor.core_changed(&self.cores[usize::from(index)], self.now);
        }
        dirty.clear();
        self.dirty = dirty;
        if shifted {
            visitor.idle_set_changed(self.now);
        }
    }

    fn is_idle(&self, core: usize) -> bool {
        let core = &self.cores[core];
        if self.queues == Queues::SizesOnly {
            return core.is_online && !core.is_lost && core.runnable == Some(0);
        }
        core.is_quiet()
            && match core.running {
                Running::Unknown => false,
                Running::Idle if self.queues == Queues::Shared => true,
                // Where the kernel's count is current it decides: a thread that waits here is throttled.
                Running::Idle => core.runnable.map_or(core.waiting == 0, |runnable| runnable == 0),
                Running::Thread(index) => {
                    core.waiting == 0 && self.is_own(self.threads[index].tid())
                }
            }
    }

    fn is_sched_idle_only(&self, core: usize) -> bool {
        let core = &self.cores[core];
        let Running::Thread(index) = core.running else { return false };
        core.is_quiet() && core.above_idle == 0 && !is_above_idle(self.threads[index].prio())
    }

    fn is_contended(&self, core: usize) -> bool {
        let core = &self.cores[core];
        if !core.is_online || core.is_lost {
            return false;
        }
        match (self.queues, core.running) {
            (Queues::SizesOnly, _) => core.runnable >= Some(2),
            _ if core.waiting == 0 => false,
            (Queues::Shared, _) => true,
            // A kernel that has a runnable thread in the queue does not run the idle thread.
            (Queues::PerCore, Running::Unknown | Running::Idle) => false,
            (Queues::PerCore, Running::Thread(index)) => {
                let is_throttled = core.runnable.is_some_and(|count| count <= core.waiting);
                // Without the checker that one waiting thread would run.
                let is_ours = core.waiting == 1 && self.is_own(self.threads[index].tid());
                !is_throttled && !is_ours
            }
        }
    }

    /// What the sets of cores have to do with each other.
    fn assert_sets(&self) {
        let (idle, contended, lost) = (&self.idle, &self.contended, &self.lost);
        debug_assert!(idle.is_disjoint(lost), "idle {idle}, and events of {lost} are lost");
        debug_assert!(contended.is_disjoint(lost), "contended {contended}, {lost} are lost");
        let is_apart = self.queues == Queues::Shared || idle.is_disjoint(contended);
        debug_assert!(is_apart, "cores {idle} idle, on {contended} threads wait behind others");
    }

    /// The invariants of one core that cost nothing to check.
    fn assert_consistent(&self, core: usize) {
        let place = &self.cores[core];
        debug_assert_eq!(place.waiting + place.waking == 0, place.head.is_none());
        debug_assert_eq!(place.waiting == 0, place.groups.is_empty());
        debug_assert!(place.above_idle <= place.waiting);
        if let Running::Thread(index) = place.running {
            let thread = &self.threads[index];
            debug_assert_eq!(
                thread.state,
                ThreadState::Running,
                "a core runs a thread that does not run"
            );
            debug_assert_eq!(thread.core, core, "a core runs a thread of another core");
        }
    }
}

pub(super) fn is_above_idle(prio: Rank) -> bool {
    prio != Rank::BENEATH
}

/// Adds or removes a core; whether that was a change.
fn set_member(cores: &mut CoreSet, core: quell_model::CoreId, is_member: bool) -> bool {
    if cores.contains(core) == is_member {
        return false;
    }
    match is_member {
        true => cores.insert(core),
        false => cores.remove(core),
    }
    true
}
