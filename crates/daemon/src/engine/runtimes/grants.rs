//! From the cores that a Plan leaves to a runtime to grants of single kernel threads.

use quell_act::backend::Pin;
use quell_model::{CoreId, CoreSet, Nanos, Plan, Snapshot, Topology};
use quell_os::ThreadRef;
use quell_shm::runtime::KthreadState;

use super::{Held, Kthread, Leaving, RING_AGAIN, Runtime, Runtimes};

/// The load follows within this: a weight of 0.1 a tick of 10 us (Caladan, `runtime_info`).
const LOAD_WINDOW: Nanos = Nanos::from_micros(100);

/// How long a kernel thread may be in the middle of a uthread without running, on a core beneath others.
const STARVED: Nanos = Nanos::from_millis(10);

impl Runtimes {
    /// Makes the grants what the Plan says. `replanned` tells whether it differs from the last one; `pin` has the back
    /// end keep a thread to one core.
    pub fn assign(
        &mut self,
        plan: &Plan,
        replanned: bool,
        topology: &Topology,
        now: Nanos,
        pin: &mut dyn FnMut(&ThreadRef, Option<Pin>) -> bool,
    ) {
        let replanned = replanned || std::mem::take(&mut self.changed);
        for runtime in &mut self.list {
            if replanned {
                runtime.owned = plan.owned(runtime.task);
                runtime.usable = plan.usable(runtime.task);
            }
            runtime.welcome(pin);
            runtime.see_who_left(now, pin);
            runtime.relieve(now, now + self.deadline, pin);
            runtime.revoke(now + self.deadline, pin);
            runtime.grant(topology, now, pin);
            runtime.debug_check();
        }
    }

    /// Rings the bells, asks uthreads to yield, and tells what was seen. After the back end has placed the threads.
    pub fn finish(&mut self, seen: &Snapshot, now: Nanos) {
        for runtime in &mut self.list {
            let view = seen.tasks.get(runtime.task.at()).filter(|view| view.id == runtime.task);
            let quantum = view.map_or(Nanos::ZERO, |view| view.limits.times.quantum);
            runtime.ring(now);
            runtime.end_quanta(quantum);
            runtime.tell(now);
        }
    }
}

impl Runtime {
    /// Tells the back end of threads that have become kernel threads, once it knows them.
    fn welcome(&mut self, pin: &mut dyn FnMut(&ThreadRef, Option<Pin>) -> bool) {
        for kthread in self.kthreads.iter_mut().filter(|kthread| !kthread.welcome) {
            kthread.welcome = kthread.thread.is_some_and(|thread| pin(&thread, Some(Pin::Member)));
        }
    }

    /// Whose core was revoked and who has left it: of its own accord, or because its time is over.
    fn see_who_left(&mut self, now: Nanos, pin: &mut dyn FnMut(&ThreadRef, Option<Pin>) -> bool) {
        for kthread in &mut self.kthreads {
            let Some(leaving) = kthread.leaving else { continue };
            let left = kthread.thread.is_none()
                || kthread.copy.state != KthreadState::Running
                || kthread.copy.generation > leaving.generation;
            if !left && now < leaving.until {
                continue;
            }
            self.overdue += u64::from(!left);
            kthread.leaving = None;
            if let Some(thread) = &kthread.thread {
                pin(thread, Some(Pin::Member));
            }
        }
    }

    /// Ends the grants of cores that the Plan does not leave to it any more.
    fn revoke(&mut self, until: Nanos, pin: &mut dyn FnMut(&ThreadRef, Option<Pin>) -> bool) {
        self.held = CoreSet::EMPTY;
        for at in 0..self.kthreads.len() {
            let kthread = &self.kthreads[at];
            let Some(held) = kthread.held else { continue };
            if kthread.thread.is_some() && self.usable.contains(held.core) {
                self.held.insert(held.core);
                continue;
            }
            self.end_grant(at, until, pin);
        }
    }

    /// Ends the grant of one kernel thread.
    fn end_grant(
        &mut self,
        at: usize,
        until: Nanos,
        pin: &mut dyn FnMut(&ThreadRef, Option<Pin>) -> bool,
    ) {
        let signal = self.contract.signal;
        let kthread = &mut self.kthreads[at];
        let Some(held) = kthread.held else { return };
        let Some(lines) = self.contract.memory.kthread(at as u32) else { return };
        lines.grant.revoke(held.generation);
        self.revokes += 1;
        kthread.held = None;
        // One that waits for its core cannot leave it: it is moved at once.
        let runs = kthread.copy.state == KthreadState::Running && kthread.waited < STARVED;
        if runs && kthread.thread.is_some() {
            kthread.leaving = Some(Leaving { generation: held.generation, until });
            if let (Some(signal), Some(handle)) = (signal, &kthread.handle) {
                // One that cannot be signalled is moved when its time is over.
                let _ = handle.signal(signal);
            }
        } else if let Some(thread) = &kthread.thread {
            pin(thread, Some(Pin::Member));
        }
    }

    /// A kernel thread that is in the middle of a uthread, beneath others who leave it nothing of its core, and one that is better off
    /// lose their grants, so that the first gets the other's core: one that sleeps if there is any, else one on a core of its own.
    fn relieve(
        &mut self,
        now: Nanos,
        until: Nanos,
        pin: &mut dyn FnMut(&ThreadRef, Option<Pin>) -> bool,
    ) {
        let starves = |it: &Kthread| {
            let shared_cores = it.held.is_some_and(|held| !self.owned.contains(held.core));
            // Its new core has its time, too.
            shared_cores && it.is_halfway() && it.waited.min(now.since(it.rung)) >= STARVED
        };
        let Some(starved) = self.kthreads.iter().position(starves) else { return };
        let rank = |it: &Kthread| {
            let held = it.held.filter(|held| self.usable.contains(held.core));
            let sleeps = it.copy.state == KthreadState::Parked;
            held.map_or(0, |held| match self.owned.contains(held.core) {
                own if sleeps => 2 + u8::from(own),
                own => u8::from(own),
            })
        };
        let others = self.kthreads.iter().enumerate().filter(|(at, _)| *at != starved);
        let better = others.max_by_key(|(_, it)| rank(it)).filter(|(_, it)| rank(it) > 0);
        let Some(better) = better.map(|(at, _)| at) else { return };
        self.end_grant(starved, until, pin);
        self.end_grant(better, until, pin);
    }

    /// Grants the cores that nobody holds.
    fn grant(
        &mut self,
        topology: &Topology,
        now: Nanos,
        pin: &mut dyn FnMut(&ThreadRef, Option<Pin>) -> bool,
    ) {
        let free = self.usable.difference(&self.held);
        if free.is_empty() {
            return;
        }
        // Its own first: beneath others it may have to wait.
        let own = free.intersection(&self.owned);
        for core in own.iter().chain(free.difference(&own).iter()) {
            let Some(at) = self.choose(core, topology) else { return };
            let thread = self.kthreads[at].thread;
            let Some(lines) = self.contract.memory.kthread(at as u32) else { return };
            // One that the back end does not know yet gets its core in the next tick.
            if !thread.is_some_and(|thread| pin(&thread, Some(Pin::Core(core)))) {
                self.kthreads[at].ring = false;
                continue;
            }
            debug_assert!(!self.held.contains(core), "core {core} is held and granted again");
            let given = lines.work.offer(&lines.grant, core);
            self.held.insert(core);
            self.grants += 1;
            let kthread = &mut self.kthreads[at];
            kthread.held = Some(Held { core, generation: given.generation });
            kthread.last_core = Some(core);
            kthread.ring = given.awaited || self.has_work;
            kthread.rung = now;
        }
    }

    /// The kernel thread that gets a core: one that was taken from its core in the middle of a uthread, which nobody else
    /// can go on with, else one that asks, else one with work of its own, else the one that had it last, else one that had
    /// its sibling, else any.
    fn choose(&self, core: CoreId, topology: &Topology) -> Option<usize> {
        let siblings = topology.siblings(core);
        let rank = |kthread: &Kthread| {
            let asks = kthread.copy.state == KthreadState::Asking;
            let near = match kthread.last_core {
                Some(last) if last == core => 2,
                Some(last) if siblings.contains(last) => 1,
                _ => 0,
            };
            (kthread.is_halfway(), asks, kthread.copy.queued > 0, near)
        };
        let can = |kthread: &Kthread| {
            kthread.thread.is_some() && kthread.held.is_none() && kthread.leaving.is_none()
        };
        let candidates = self.kthreads.iter().enumerate().filter(|(_, kthread)| can(kthread));
        // The first of the best.
        candidates.rev().max_by_key(|(_, kthread)| rank(kthread)).map(|(at, _)| at)
    }

    fn ring(&mut self, now: Nanos) {
        for (at, kthread) in self.kthreads.iter_mut().enumerate() {
            let waits = kthread.held.is_some() && kthread.copy.state == KthreadState::Asking;
            let again = waits && now.since(kthread.rung) >= RING_AGAIN;
            if std::mem::take(&mut kthread.ring) || again {
                kthread.rung = now;
                self.contract.ring(at);
            }
        }
    }

    /// Asks uthreads that ran for their quantum to yield, where others wait for their kernel thread.
    fn end_quanta(&mut self, quantum: Nanos) {
        if quantum == Nanos::ZERO {
            return;
        }
        for (at, kthread) in self.kthreads.iter_mut().enumerate() {
            let copy = &kthread.copy;
            let over = copy.state == KthreadState::Running
                && copy.queued > 0
                && copy.uthread_age >= quantum
                && copy.uthread_start != kthread.yielded;
            let Some(start) = copy.uthread_start.filter(|_| over) else { continue };
            if let Some(lines) = self.contract.memory.kthread(at as u32) {
                lines.grant.end_quantum(start);
                kthread.yielded = Some(start);
            }
        }
    }

    /// Tells the application what the daemon makes of it.
    fn tell(&mut self, now: Nanos) {
        let running = |it: &&Kthread| it.held.is_some() && it.copy.state == KthreadState::Running;
        let active = self.kthreads.iter().filter(running).count() as u64 * 1_000;
        let weight = now.since(self.last).0.min(LOAD_WINDOW.0);
        self.last = now;
        self.load =
            (self.load * (LOAD_WINDOW.0 - weight) + active * weight).div_ceil(LOAD_WINDOW.0);
        debug_assert!(self.load <= self.kthreads.len() as u64 * 1_000, "load {}", self.load);
        let cores = self.held.len() as u64;
        self.contract.memory.header().told.tell(self.delay, self.load, cores);
    }
}
