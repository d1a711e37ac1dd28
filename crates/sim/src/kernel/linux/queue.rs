//! Threads that come into and leave the queue of a core, and which one it runs next.

use quell_model::{CoreId, CoreSet, MoveCause, Nanos};

use super::fair::{Arrival, Entity, PickResult};
use super::load::Share;
use super::sums::Sums;
use super::{Linux, Migration, ROOT, SchedClass, SchedThread};

impl Linux {
    /// Puts a thread into the queue of a core. It waits there.
    pub(super) fn enqueue(&mut self, thread: usize, core: usize, arrival: Arrival, now: Nanos) {
        debug_assert!(!self.threads[thread].is_queued, "thread {thread} is in a queue");
        debug_assert!(self.may_use(thread, core), "thread {thread} may not use core {core}");
        self.charge(core, now);
        self.end_idle(core);
        let state = &mut self.threads[thread];
        state.runnable.pass(now, false);
        let (class, group) = (state.class, state.group);
        let slept_at = state.core;
        (state.core, state.is_queued) = (core, true);
        self.waste.add_queued(core, state.mask, class.is_fair(), 1);
        if class.is_fair() {
            let counts = state.counted;
            let place = state.place;
            self.cores[core].fair.push(thread);
            for sums in self.groups[group].sums_of(core) {
                sums.add(&counts);
            }
            let entity = Entity::Thread(thread as u32);
            let relative = match arrival {
                Arrival::New => 0,
                Arrival::Moved => place,
                Arrival::Woken => self.fair_queue(group, slept_at).relative(place),
            };
            if group != ROOT {
                self.enter_root(group, core, now);
            }
            self.fair_queue_mut(group, core).put(entity, class.weight(), arrival, relative);
            self.reweigh_group(group, core, now);
        } else {
            self.insert_realtime(thread, core);
            self.realtime_queued += 1;
            self.realtime_levels.add(class);
            self.note_realtime(core);
        }
        self.set_queued(core, self.cores[core].queued + 1);
        if self.cores[core].queued >= 2 {
            self.is_overloaded = true;
        }
    }

    /// What was counted or summed over the queue of a core is to be looked at again.
    fn note_change(&mut self, core: usize) {
        self.stale.insert(Linux::id(core));
        self.waste.note(core);
    }

    fn set_queued(&mut self, core: usize, queued: u32) {
        self.cores[core].queued = queued;
        self.note_change(core);
        match queued > 1 {
            true => self.crowded.insert(Linux::id(core)),
            false => self.crowded.remove(Linux::id(core)),
        };
    }

    /// The entity of a group comes into the root queue with its first thread.
    fn enter_root(&mut self, group: usize, core: usize, now: Nanos) {
        if self.groups[group].on[core].queue.len() > 0 {
            return;
        }
        let weight = self.group_weight(group, core, now);
        let root = &mut self.cores[core].root;
        let place = root.relative(self.groups[group].on[core].place);
        root.put(Entity::Group(group as u32), weight, Arrival::Woken, place);
    }

    /// Takes a thread out of its queue. Its place in virtual time is as of the queue; `FairQueue::relative` has it for another
    /// one.
    fn dequeue(&mut self, thread: usize, sleeps: bool, now: Nanos) {
        let SchedThread { class, group, core, is_queued, .. } = self.threads[thread];
        debug_assert!(is_queued, "thread {thread} is in no queue");
        self.charge(core, now);
        self.refresh(thread, now, true);
        let runs = self.cores[core].running == Some(thread);
        self.threads[thread].runnable.pass(now, true);
        if class.is_fair() {
            let counts = self.threads[thread].counted;
            self.cores[core].fair.retain(|other| *other != thread);
            for sums in self.groups[group].sums_of(core) {
                sums.subtract(&counts);
                if sleeps {
                    sums.block(&counts, now);
                }
            }
            let entity = Entity::Thread(thread as u32);
            let queue = self.fair_queue_mut(group, core);
            let place = if sleeps { queue.sleep(entity) } else { queue.remove(entity) };
            if let Some(place) = place {
                self.threads[thread].place = place;
                self.leave_root(group, core);
            }
            // A delayed sleeper stays in the queue and counts there.
            self.set_queued(core, self.cores[core].queued - u32::from(place.is_some()));
            self.reweigh_group(group, core, now);
        } else {
            self.cores[core].realtime.retain(|other| *other != thread);
            self.realtime_queued -= 1;
            self.realtime_levels.remove(class);
            self.set_queued(core, self.cores[core].queued - 1);
        }
        if runs {
            self.cores[core].running = None;
            if class.is_fair() {
                // Its group waits again, if it has other threads.
                self.cores[core].root.put_back();
            }
        }
        self.note_realtime(core);
        self.waste.add_queued(core, self.threads[thread].mask, class.is_fair(), -1);
        self.threads[thread].is_queued = false;
        self.threads[thread].ran_at = if runs { now } else { self.threads[thread].ran_at };
    }

    /// The entity of a group leaves the root queue with its last thread.
    fn leave_root(&mut self, group: usize, core: usize) {
        if group != ROOT && self.groups[group].on[core].queue.len() == 0 {
            let root = &mut self.cores[core].root;
            if let Some(place) = root.remove(Entity::Group(group as u32)) {
                self.groups[group].on[core].place = place;
            }
        }
    }

    fn reweigh_group(&mut self, group: usize, core: usize, now: Nanos) {
        if group != ROOT && self.groups[group].on[core].queue.len() > 0 {
            let weight = self.group_weight(group, core, now);
            self.cores[core].root.set_weight(Entity::Group(group as u32), weight);
        }
    }

    pub(super) fn fair_queue(&self, group: usize, core: usize) -> &super::fair::FairQueue {
        match group {
            ROOT => &self.cores[core].root,
            _ => &self.groups[group].on[core].queue,
        }
    }

    fn fair_queue_mut(&mut self, group: usize, core: usize) -> &mut super::fair::FairQueue {
        match group {
            ROOT => &mut self.cores[core].root,
            _ => &mut self.groups[group].on[core].queue,
        }
    }

    /// Charges the running thread with the time that passed (`update_curr`).
    pub(super) fn charge(&mut self, core: usize, now: Nanos) {
        self.note_change(core);
        let queue = &mut self.cores[core];
        let ran = now.since(queue.charged);
        queue.charged = queue.charged.max(now);
        queue.queued_time.0 += u64::from(queue.queued) * ran.0;
        let class = queue.running.map(|thread| self.threads[thread].class);
        queue.fair_share.pass(now, class.is_some_and(SchedClass::is_fair));
        queue.fair_runnable.pass_all(now, queue.fair.len());
        queue.realtime_share.pass(now, class.is_some_and(|class| !class.is_fair()));
        self.charge_limit(core, ran, now);
        let Some(thread) = self.cores[core].running else { return };
        self.threads[thread].ran_at = now;
        let SchedThread { class, group, .. } = self.threads[thread];
        self.threads[thread].used.pass(now, class.is_fair());
        if !class.is_fair() {
            return;
        }
        self.cores[core].root.charge(ran);
        if group != ROOT {
            self.groups[group].on[core].queue.charge(ran);
        }
    }

    /// A thread of this core goes to sleep. The core reschedules.
    pub fn sleep(&mut self, thread: usize, now: Nanos) {
        let core = self.threads[thread].core;
        self.dequeue(thread, true, now);
        self.resched.insert(Linux::id(core));
    }

    /// The running thread called `sched_yield`.
    pub fn yield_now(&mut self, thread: usize, now: Nanos) {
        let SchedThread { class, group, core, .. } = self.threads[thread];
        self.charge(core, now);
        if class.is_fair() {
            self.fair_queue_mut(group, core).yield_running();
            if group != ROOT && self.model.picker == super::Picker::Cfs {
                self.cores[core].root.yield_running();
            }
        } else {
            self.cores[core].realtime.retain(|other| *other != thread);
            self.insert_realtime(thread, core);
        }
        self.resched.insert(Linux::id(core));
    }

    /// The thread that the core runs from now on (`__schedule`): another one, or the same again. A core that would idle
    /// looks for work elsewhere first.
    pub fn schedule(&mut self, core: CoreId, now: Nanos) -> Option<usize> {
        let core = core.index();
        self.resched.remove(Linux::id(core));
        self.charge(core, now);
        self.put_back(core, now);
        self.pull_realtime(core, now);
        let had = self.cores[core].queued;
        if had == 0 && self.online.contains(Linux::id(core)) {
            self.balance_new_idle(core, now);
        }
        let mut next = self.pick(core, now);
        if next.is_none() && had > 0 && self.cores[core].queued == 0 {
            // Nothing was there but sleepers whose dequeueing was delayed.
            self.balance_new_idle(core, now);
            next = self.pick(core, now);
        }
        self.resched.remove(Linux::id(core));
        self.cores[core].running = next;
        self.note_realtime(core);
        self.note_change(core);
        if let Some(thread) = next {
            // From here on it is neither blocked nor waiting; the moment is that of `exec_start`.
            self.threads[thread].ran_at = now;
            self.threads[thread].has_run = true;
            self.threads[thread].used.pass(now, false);
        }
        self.begin_idle(core, now);
        next
    }

    /// The running thread waits with the others.
    fn put_back(&mut self, core: usize, now: Nanos) {
        let Some(thread) = self.cores[core].running.take() else { return };
        self.realtime_runs.set(core, None);
        self.refresh(thread, now, true);
        let SchedThread { class, group, .. } = self.threads[thread];
        if class.is_fair() {
            self.cores[core].root.put_back();
            if group != ROOT {
                self.groups[group].on[core].queue.put_back();
            }
        }
    }

    fn pick(&mut self, core: usize, now: Nanos) -> Option<usize> {
        if !self.is_limited(core)
            && let Some(thread) = self.cores[core].realtime.first()
        {
            return Some(*thread);
        }
        let found = self.pick_fair(core, now);
        // A limit leaves nothing idle.
        found.or_else(|| self.cores[core].realtime.first().copied())
    }

    fn pick_fair(&mut self, core: usize, now: Nanos) -> Option<usize> {
        loop {
            let thread = match self.cores[core].root.pick() {
                PickResult::Nothing => return None,
                PickResult::Left(entity, place) => {
                    self.left_late(entity, core, place);
                    continue;
                }
                PickResult::Entity(Entity::Thread(thread)) => thread as usize,
                PickResult::Entity(Entity::Group(group)) => {
                    match self.groups[group as usize].on[core].queue.pick() {
                        PickResult::Entity(Entity::Thread(thread)) => thread as usize,
                        PickResult::Left(entity, place) => {
                            self.left_late(entity, core, place);
                            self.cores[core].root.put_back();
                            self.leave_root(group as usize, core);
                            self.reweigh_group(group as usize, core, now);
                            continue;
                        }
                        PickResult::Entity(Entity::Group(_)) | PickResult::Nothing => {
                            debug_assert!(
                                false,
                                "group {group} is queued on core {core} without threads"
                            );
                            self.cores[core].root.remove(Entity::Group(group));
                            continue;
                        }
                    }
                }
            };
            if self.model.moves_least_recent {
                // `set_next_task_fair`.
                let fair = &mut self.cores[core].fair;
                fair.retain(|other| *other != thread);
                fair.push(thread);
            }
            return Some(thread);
        }
    }

    /// A delayed sleeper is out of its queue now.
    fn left_late(&mut self, entity: Entity, core: usize, place: i64) {
        if let Entity::Thread(thread) = entity {
            self.threads[thread as usize].place = place;
            self.set_queued(core, self.cores[core].queued - 1);
        }
    }

    /// Whether the woken or moved thread preempts what its core runs (`check_preempt_curr`).
    pub(super) fn preempt_if_due(&mut self, thread: usize) {
        let SchedThread { class, group, core, .. } = self.threads[thread];
        let preempts = match self.cores[core].running {
            None => true,
            Some(running) => {
                let runs = &self.threads[running];
                match (class, runs.class) {
                    (SchedClass::RealTime(own), SchedClass::RealTime(other)) => own > other,
                    (SchedClass::RealTime(_), _) => true,
                    (_, SchedClass::RealTime(_)) => self.is_limited(core),
                    (SchedClass::Idle, _) => false,
                    // Until EEVDF the policy of the running thread decided, whatever its group.
                    (SchedClass::Fair { .. }, SchedClass::Idle)
                        if runs.group == group || self.model.picker == super::Picker::Cfs =>
                    {
                        true
                    }
                    _ => self.preempts_fair(group, runs.group, core, thread),
                }
            }
        };
        if preempts {
            self.resched.insert(Linux::id(core));
        }
    }

    /// Fair threads are compared in the queue that both are in.
    fn preempts_fair(&self, own: usize, other: usize, core: usize, thread: usize) -> bool {
        let entity = |group| match group {
            ROOT => Entity::Thread(thread as u32),
            group => Entity::Group(group as u32),
        };
        match own == other {
            true => self.fair_queue(own, core).woken_preempts(Entity::Thread(thread as u32)),
            false => self.cores[core].root.woken_preempts(entity(own)),
        }
    }

    /// A tick of a core: slices end, and balancing may be due.
    pub fn tick(&mut self, core: CoreId, now: Nanos) {
        let at = core.index();
        self.charge(at, now);
        if let Some(thread) = self.cores[at].running {
            self.refresh(thread, now, true);
            let SchedThread { class, group, .. } = self.threads[thread];
            if class.is_fair() {
                self.reweigh_group(group, at, now);
                if self.slice_is_over(thread, at) {
                    self.resched.insert(core);
                }
            }
            self.check_limit(at, now);
        }
        self.balance_at_tick(at, now);
    }

    /// Whether the running fair thread, or its group, has had its slice (`entity_tick`, `sched_slice`).
    fn slice_is_over(&mut self, thread: usize, core: usize) -> bool {
        let SchedThread { class, group, .. } = self.threads[thread];
        let root = &self.cores[core].root;
        let part = |period: Nanos, weight: u64, of: u64| Nanos(period.0 * weight / of.max(1));
        if group == ROOT {
            let period = self.tunables.period(root.len() as u64);
            let slice = part(period, class.weight(), root.weight());
            return self.cores[core].root.slice_is_over(slice);
        }
        let of_group = self.cores[core].root.weight_of(Entity::Group(group as u32));
        let root_weight = root.weight();
        let of_root = part(self.tunables.period(root.len() as u64), of_group, root_weight);
        let queue = &mut self.groups[group].on[core].queue;
        let period = self.tunables.period(queue.len() as u64);
        let own = part(part(period, class.weight(), queue.weight()), of_group, root_weight);
        let is_over = queue.slice_is_over(own);
        self.cores[core].root.slice_is_over(of_root) || is_over
    }

    /// Moves a thread that waits, or that the stopper took off its core, to another core.
    pub(super) fn migrate(&mut self, thread: usize, to: usize, cause: MoveCause, now: Nanos) {
        let from = self.threads[thread].core;
        debug_assert_ne!(from, to, "thread {thread} moves to its own core");
        if self.cores[from].running == Some(thread) {
            self.resched.insert(Linux::id(from));
        }
        self.dequeue(thread, false, now);
        let group = self.threads[thread].group;
        if self.threads[thread].class.is_fair() {
            let place = self.threads[thread].place;
            self.threads[thread].place = self.fair_queue(group, from).relative(place);
        }
        // `migrate_task_rq_fair`: its caches are cold there.
        self.threads[thread].ran_at = Nanos::ZERO;
        if !self.resched.contains(Linux::id(from)) {
            self.begin_idle(from, now);
        }
        self.migrations.push(Migration { thread, from, to, cause });
        self.carry_used(thread, from, to, now);
        self.enqueue(thread, to, Arrival::Moved, now);
        self.preempt_if_due(thread);
    }

    /// What a thread that changes cores used goes with it.
    pub(super) fn carry_used(&mut self, thread: usize, from: usize, to: usize, now: Nanos) {
        self.detach_used(thread, from, now);
        self.attach_used(thread, to, now);
    }

    /// The core counts what a fair thread used no more (`detach_entity_load_avg`). The thread is in no queue.
    fn detach_used(&mut self, thread: usize, core: usize, now: Nanos) {
        if !self.compares_types() || !self.threads[thread].class.is_fair() {
            return;
        }
        self.charge(core, now);
        let state = &mut self.threads[thread];
        state.used.pass(now, false);
        state.runnable.pass(now, false);
        self.cores[core].fair_share.subtract(&state.used);
        self.cores[core].fair_runnable.subtract(&state.runnable);
    }

    /// The core counts it from now on (`attach_entity_load_avg`).
    fn attach_used(&mut self, thread: usize, core: usize, now: Nanos) {
        if !self.compares_types() || !self.threads[thread].class.is_fair() {
            return;
        }
        self.charge(core, now);
        let state = &mut self.threads[thread];
        state.used.pass(now, false);
        state.runnable.pass(now, false);
        self.cores[core].fair_share.add(&state.used);
        self.cores[core].fair_runnable.add(&state.runnable);
    }

    /// The thread has another class, or another weight in it.
    pub fn set_class(&mut self, thread: usize, class: SchedClass, now: Nanos) {
        if self.threads[thread].class == class {
            return;
        }
        self.finish_delayed(thread);
        let SchedThread { core, is_queued, .. } = self.threads[thread];
        let was_fair = self.threads[thread].class.is_fair();
        if !is_queued {
            // `switched_from_fair`, `switched_to_fair`.
            if was_fair && !class.is_fair() {
                self.detach_used(thread, core, now);
            }
            self.threads[thread].class = class;
            if !was_fair {
                self.attach_used(thread, core, now);
            }
            return self.refresh(thread, now, false);
        }
        let runs = self.cores[core].running == Some(thread);
        self.dequeue(thread, false, now);
        let group = self.threads[thread].group;
        if was_fair && !class.is_fair() {
            self.detach_used(thread, core, now);
        }
        if was_fair {
            let place = self.threads[thread].place;
            self.threads[thread].place = self.fair_queue(group, core).relative(place);
        }
        self.threads[thread].class = class;
        if !was_fair {
            self.attach_used(thread, core, now);
        }
        self.refresh(thread, now, true);
        let arrival = if was_fair { Arrival::Moved } else { Arrival::Woken };
        self.enqueue(thread, core, arrival, now);
        if runs {
            self.resched.insert(Linux::id(core));
        }
        self.preempt_if_due(thread);
    }

    /// The thread may use these cores from now on. One that is elsewhere moves (`__set_cpus_allowed_ptr`).
    pub fn set_allowed(&mut self, thread: usize, allowed: CoreSet, now: Nanos) {
        if self.threads[thread].allowed == allowed && self.is_where_it_may(thread) {
            return;
        }
        self.allow(thread, allowed);
        self.fall_back(thread);
        let SchedThread { core, is_queued, .. } = self.threads[thread];
        if is_queued && !self.may_use(thread, core) {
            let to = self.threads[thread].allowed.intersection(&self.online).first();
            if let Some(to) = to {
                self.migrate(thread, to.index(), MoveCause::Affinity, now);
            }
        }
    }

    /// It is in no queue, or in that of a core that it may use, which is online.
    fn is_where_it_may(&self, thread: usize) -> bool {
        let SchedThread { core, is_queued, .. } = self.threads[thread];
        let allowed = &self.threads[thread].allowed;
        !allowed.is_disjoint(&self.online) && (!is_queued || self.may_use(thread, core))
    }

    /// A thread of which no core is online may use all that are (`select_fallback_rq`).
    pub(super) fn fall_back(&mut self, thread: usize) {
        if self.threads[thread].allowed.is_disjoint(&self.online) {
            self.allow(thread, self.online);
        }
    }

    fn allow(&mut self, thread: usize, allowed: CoreSet) {
        let mask = self.waste.masks.take(&allowed, &self.near);
        let state = &mut self.threads[thread];
        state.allowed = allowed;
        let before = std::mem::replace(&mut state.mask, mask);
        if state.is_queued {
            self.waste.add_queued(state.core, before, state.class.is_fair(), -1);
            self.waste.add_queued(state.core, mask, state.class.is_fair(), 1);
        }
        self.waste.masks.release(before);
    }

    /// A delayed sleeper leaves its queue at once.
    pub(super) fn finish_delayed(&mut self, thread: usize) {
        let SchedThread { group, core, is_queued, .. } = self.threads[thread];
        if is_queued || !self.threads[thread].class.is_fair() {
            return;
        }
        let place = self.fair_queue_mut(group, core).remove(Entity::Thread(thread as u32));
        if let Some(place) = place {
            self.threads[thread].place = place;
            self.set_queued(core, self.cores[core].queued - 1);
            self.leave_root(group, core);
        }
    }

    /// The core has work again.
    fn end_idle(&mut self, core: usize) {
        if !self.idle.contains(Linux::id(core)) {
            return;
        }
        self.idle.remove(Linux::id(core));
    }

    /// A wake-up ends the idle time of a core: its mean moves by an eighth (`ttwu_do_activate`).
    pub(super) fn note_idle_time(&mut self, core: usize, now: Nanos) {
        if self.is_idle(core) {
            let queue = &mut self.cores[core];
            let idled = now.since(queue.idle_since);
            let mean = Nanos((queue.mean_idle.0 * 7 + idled.0) / 8);
            queue.mean_idle = mean.min(Nanos(2 * super::balance::MIGRATION_COST.0));
        }
    }

    /// The core idles if nothing is left.
    pub(super) fn begin_idle(&mut self, core: usize, now: Nanos) {
        let id = Linux::id(core);
        let queue = &mut self.cores[core];
        if queue.queued == 0 && self.online.contains(id) && !self.idle.contains(id) {
            queue.idle_since = now;
            self.tickless.insert(id);
            self.idle.insert(id);
        }
    }

    /// Forgets the past of a thread that ended; its number may be another one's.
    pub fn reset(&mut self, thread: usize, now: Nanos) {
        self.finish_delayed(thread);
        let SchedThread { class, group, core, counted, share, has_run, .. } = self.threads[thread];
        if self.model.load == super::LoadMetric::Average && class.is_fair() && has_run {
            // What it was blocked with goes with it (`task_dead_fair`); in 4.1 that only decays.
            for sums in self.groups[group].sums_of(core) {
                sums.unblock(&counted, share.updated(), now);
            }
            self.stale.insert(Linux::id(core));
        }
        if has_run {
            self.detach_used(thread, core, now);
        }
        let state = &mut self.threads[thread];
        debug_assert!(!state.is_queued, "thread {thread} is in a queue");
        state.share = Share::new(self.model.load, self.tunables.granularity, now);
        state.counted = Sums::default();
        (state.used, state.runnable) = (Share::none(now), Share::none(now));
        (state.place, state.has_run, state.ran_at) = (0, false, Nanos::ZERO);
    }
}
