//! Runtimes under the daemon: what they claim goes into the Snapshot, and the Plan's cores become grants.
//!
//! A tick has three parts here. [`Runtimes::fill`] copies what each kernel thread published, and adds it to what the
//! observer saw of its task: the queueing delay of a task is the greatest of its kernel threads' (Caladan, OSDI'20,
//! section 4.1). [`Runtimes::assign`] compares the cores that the Plan leaves to the task with those that its kernel
//! threads hold; it revokes and grants, and has the back end keep each kernel thread to its core. [`Runtimes::finish`]
//! rings the bells once the back end has placed the threads, and tells each runtime what the daemon makes of it.
//!
//! A runtime is not trusted. A kernel thread is one only if the observer sees a thread of that number in the process
//! that registered; what a runtime claims beyond that raises its own task's signals and nobody else's, and whether it
//! leaves a core does not depend on it: after the deadline its thread is moved like any other.
//!
//! **Grants stand.** Where cores are shared by priority a kernel thread that sleeps costs its core nothing, so it
//! keeps its grant until the Plan gives the core to somebody else: who wakes up on a core of its own needs no
//! scheduler.

mod grants;
mod status;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use quell_act::backend::Pin;
use quell_model::{CoreId, CoreSet, Nanos, Signal, Snapshot, TaskId};
use quell_observe::{ThreadState, ThreadView};
use quell_os::clock;
use quell_os::{ThreadHandle, ThreadRef};
use quell_shm::runtime::{KthreadState, WorkCopy};
use rustix::event::epoll;

use super::hints;
use crate::contract::Contract;

/// How long a thread that was not found is not looked for.
const RETRY: Nanos = Nanos::from_millis(10);
/// Threads looked for in one tick at most, for each runtime: a look walks the list of all threads.
const LOOKS_MAX: u32 = 8;
/// A bell that was not answered is rung again after this.
const RING_AGAIN: Nanos = Nanos::from_millis(1);
/// Rings taken at once.
const EVENTS: usize = 16;

/// The runtimes that are registered.
pub struct Runtimes {
    list: Vec<Runtime>,
    /// Readable when a runtime asks for a core; `None` where the kernel had no descriptor left.
    asks: Option<OwnedFd>,
    /// When the last ask was taken.
    asked: Nanos,
    /// How long a kernel thread has to leave a core that is revoked.
    deadline: Nanos,
    /// Whether any signal of the Snapshot may be ours to clear.
    filled: bool,
    /// A runtime joined or left since the last Plan was taken in.
    changed: bool,
}

/// One runtime.
struct Runtime {
    task: TaskId,
    contract: Box<Contract>,
    since: Nanos,
    kthreads: Vec<Kthread>,
    /// Cores that the Plan leaves to it: those that it owns, and those beneath others.
    owned: CoreSet,
    usable: CoreSet,
    /// Cores that one of its kernel threads holds.
    held: CoreSet,
    /// The greatest queueing delay of its kernel threads.
    delay: Nanos,
    /// Whether anything waits in any of its queues.
    has_work: bool,
    /// Kernel threads that could use a core more than they have.
    wants: u32,
    /// Cores in use in thousandths, smoothed.
    load: u64,
    last: Nanos,
    grants: u64,
    revokes: u64,
    overdue: u64,
    ignored: u64,
}

/// One kernel thread as the daemon knows it.
struct Kthread {
    copy: WorkCopy,
    /// The thread behind it, once found.
    thread: Option<ThreadRef>,
    /// The back end knows that it is one.
    welcome: bool,
    handle: Option<ThreadHandle>,
    /// Where it was in the observer's list.
    at: usize,
    /// The number that was not found, and when it is looked for again.
    missing: i32,
    retry: Nanos,
    /// How long it has been ready to run, and has not.
    waited: Nanos,
    /// The grant in force.
    held: Option<Held>,
    /// The grant that was revoked and that it has not been seen to leave.
    leaving: Option<Leaving>,
    last_core: Option<CoreId>,
    rung: Nanos,
    ring: bool,
    /// The uthread that was asked to yield last.
    yielded: Option<Nanos>,
}

#[derive(Clone, Copy)]
struct Held {
    core: CoreId,
    generation: u64,
}

#[derive(Clone, Copy)]
struct Leaving {
    generation: u64,
    until: Nanos,
}

impl Kthread {
    fn new() -> Kthread {
        Kthread {
            copy: quell_shm::runtime::KthreadLoad::default().read(Nanos::ZERO),
            thread: None,
            welcome: false,
            handle: None,
            at: 0,
            missing: 0,
            retry: Nanos::ZERO,
            waited: Nanos::ZERO,
            held: None,
            leaving: None,
            last_core: None,
            rung: Nanos::ZERO,
            ring: false,
            yielded: None,
        }
    }

    /// The thread that says it is this kernel thread, if it is one of the task's in the process that registered.
    fn find<'a>(
        &mut self,
        task: TaskId,
        contract: &Contract,
        threads: &'a [ThreadView],
        now: Nanos,
        looks: &mut u32,
    ) -> Option<&'a ThreadView> {
        let tid = self.copy.thread;
        let is_it = |view: &&ThreadView| {
            view.thread.tid.0 == tid && view.thread.tgid == contract.process && view.task == task
        };
        if let Some(view) = threads.get(self.at).filter(is_it) {
            return Some(view);
        }
        if *looks == 0 || (self.missing == tid && now < self.retry) {
            return None;
        }
        *looks -= 1;
        match threads.iter().position(|view| is_it(&view)) {
            Some(at) => {
                self.at = at;
                Some(&threads[at])
            }
            None => {
                (self.missing, self.retry) = (tid, now + RETRY);
                None
            }
        }
    }

    /// Whether it is in the middle of a uthread, which nobody else can go on with.
    fn is_halfway(&self) -> bool {
        self.copy.state == KthreadState::Running && self.copy.uthread_start.is_some()
    }

    /// Takes the thread that was found: another one than before starts without a grant.
    fn bind(&mut self, thread: Option<ThreadRef>) {
        if self.thread != thread {
            self.handle = thread.and_then(|thread| ThreadHandle::open(&thread).ok());
            self.thread = thread;
            self.welcome = false;
        }
    }
}

impl Runtimes {
    /// No runtimes yet.
    pub fn new(deadline: Nanos) -> Runtimes {
        Runtimes {
            list: Vec::new(),
            asks: epoll::create(epoll::CreateFlags::CLOEXEC).ok(),
            asked: Nanos::ZERO,
            deadline,
            filled: false,
            changed: false,
        }
    }

    /// A task is a runtime from now on.
    pub fn add(&mut self, task: TaskId, contract: Box<Contract>, now: Nanos) {
        if let Some(asks) = &self.asks {
            // Edge-triggered: each ring is reported once, and nothing has to be read. A runtime that cannot be heard
            // is looked at in every tick all the same.
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            let data = epoll::EventData::new_u64(u64::from(task.index));
            let _ = epoll::add(asks, contract.asks(), data, flags);
        }
        let kthreads = contract.memory.kthreads();
        debug_assert!(!self.has(task), "task {task} is a runtime already");
        self.list.push(Runtime {
            task,
            since: now,
            kthreads: (0..kthreads).map(|_| Kthread::new()).collect(),
            contract,
            owned: CoreSet::EMPTY,
            usable: CoreSet::EMPTY,
            held: CoreSet::EMPTY,
            delay: Nanos::ZERO,
            has_work: false,
            wants: 0,
            load: 0,
            last: now,
            grants: 0,
            revokes: 0,
            overdue: 0,
            ignored: 0,
        });
        self.changed = true;
    }

    /// A task is no runtime any more. Its threads are handled as those of any task from then on.
    pub fn remove(
        &mut self,
        task: TaskId,
        pin: &mut dyn FnMut(&ThreadRef, Option<Pin>) -> bool,
    ) -> Option<Box<Contract>> {
        let at = self.list.iter().position(|runtime| runtime.task == task)?;
        let runtime = self.list.swap_remove(at);
        for thread in runtime.kthreads.iter().filter_map(|kthread| kthread.thread.as_ref()) {
            pin(thread, None);
        }
        if let Some(asks) = &self.asks {
            let _ = epoll::delete(asks, runtime.contract.asks());
        }
        debug_assert!(!self.has(task), "task {task} had two runtimes");
        self.changed = true;
        Some(runtime.contract)
    }

    /// Whether there are any, or signals of one that left have to be cleared.
    pub fn is_active(&self) -> bool {
        self.filled || !self.list.is_empty()
    }

    /// Readable when a kernel thread asks for a core; `None` for `gap` after the last ask, so that a runtime that asks
    /// all the time does not keep the daemon busy.
    pub fn asks_fd(&self, now: Nanos, gap: Nanos) -> Option<BorrowedFd<'_>> {
        let open = !self.list.is_empty() && now >= self.asked + gap;
        self.asks.as_ref().filter(|_| open).map(AsFd::as_fd)
    }

    /// When [`Runtimes::asks_fd`] is there again, if it is not now.
    pub fn deaf_until(&self, now: Nanos, gap: Nanos) -> Option<Nanos> {
        let until = self.asked + gap;
        (!self.list.is_empty() && now < until).then_some(until)
    }

    /// Takes the rings that there are.
    pub fn take_asks(&mut self, now: Nanos) {
        self.asked = now;
        let Some(asks) = &self.asks else { return };
        let none =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [none; EVENTS];
        // Those that remain ring on.
        let _ = epoll::wait(asks, &mut events[..], Some(&rustix::event::Timespec::default()));
    }

    /// How long the runtimes may be left unread: `tick` while one could use a core that it does not have, or works
    /// and may come to need one; sooner where one has to leave a core.
    pub fn poll_every(&self, now: Nanos, tick: Nanos) -> Option<Nanos> {
        let poll = |runtime: &Runtime| {
            let leaving = runtime.kthreads.iter().filter_map(|kthread| kthread.leaving);
            if let Some(until) = leaving.map(|leaving| leaving.until).min() {
                return Some(until.since(now).min(tick));
            }
            let working = runtime.kthreads.iter().any(|it| it.copy.state == KthreadState::Running);
            (working || runtime.wants > 0).then_some(tick)
        };
        self.list.iter().filter_map(poll).min()
    }

    /// Adds what the runtimes publish to the Snapshot. `threads` are those of the observer. After [`hints`], which
    /// clears what was noted of requests.
    pub fn fill(&mut self, seen: &mut Snapshot, threads: &[ThreadView]) {
        // Not the Snapshot's time: what was published since would lie in the future.
        let now = clock::now();
        for runtime in &mut self.list {
            runtime.read(threads, now);
            runtime.note(seen, threads, now);
        }
        self.filled = !self.list.is_empty();
    }
}

impl Runtime {
    /// Copies what its kernel threads published, and finds the threads behind them.
    fn read(&mut self, threads: &[ThreadView], now: Nanos) {
        let mut looks = LOOKS_MAX;
        (self.delay, self.has_work) = (Nanos::ZERO, false);
        let oldest = now.since(self.since);
        for at in 0..self.kthreads.len() {
            let Some(lines) = self.contract.memory.kthread(at as u32) else { break };
            let kthread = &mut self.kthreads[at];
            kthread.copy = lines.work.read(now);
            let view = match kthread.copy.state {
                KthreadState::Absent => None,
                _ => kthread.find(self.task, &self.contract, threads, now, &mut looks),
            };
            let waits = view.filter(|view| view.state == ThreadState::Waiting);
            kthread.waited = waits.map_or(Nanos::ZERO, |view| now.since(view.since));
            let thread = view.map(|view| view.thread);
            if thread != kthread.thread {
                // One thread is one kernel thread.
                let taken =
                    thread.is_some() && self.kthreads.iter().any(|other| other.thread == thread);
                self.kthreads[at].bind(thread.filter(|_| !taken));
                self.ignored += u64::from(taken);
            }
            let kthread = &self.kthreads[at];
            if kthread.thread.is_none() {
                self.ignored += u64::from(
                    kthread.copy.state != KthreadState::Absent && kthread.retry == now + RETRY,
                );
                continue;
            }
            // Nothing can have waited longer than the runtime is here.
            self.delay = self.delay.max(kthread.copy.delay().min(oldest));
            self.has_work |= kthread.copy.queued > 0 || kthread.copy.delay() > Nanos::ZERO;
        }
        debug_assert!(self.delay <= oldest, "a wait longer than the runtime is there");
    }

    /// Grants, as the daemon knows them: a core is held by one kernel thread, which exists, or by none. Release builds
    /// compile this to nothing.
    fn debug_check(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let mut held = CoreSet::EMPTY;
        for kthread in &self.kthreads {
            if let Some(grant) = kthread.held {
                debug_assert!(!held.contains(grant.core), "core {} is granted twice", grant.core);
                held.insert(grant.core);
                debug_assert!(
                    kthread.thread.is_some(),
                    "core {} is granted to no thread",
                    grant.core
                );
                debug_assert!(
                    kthread.leaving.is_none(),
                    "core {}: a grant amid a revoke",
                    grant.core
                );
            }
            let bound = kthread.thread.is_some_and(|thread| thread.tgid != self.contract.process);
            debug_assert!(
                !bound,
                "a kernel thread of another process than {}",
                self.contract.process
            );
        }
        debug_assert_eq!(held, self.held, "cores held by kernel threads and by their runtime");
        debug_assert!(held.difference(&self.usable).is_empty(), "{held} held of {}", self.usable);
    }

    /// Adds it to the Snapshot.
    fn note(&mut self, seen: &mut Snapshot, threads: &[ThreadView], now: Nanos) {
        let Some(view) = seen.tasks.get(self.task.at()).filter(|view| view.id == self.task) else {
            return;
        };
        let limits = view.limits;
        let without = |it: &&Kthread| it.thread.is_some() && it.held.is_none();
        let asking = |it: &&Kthread| it.copy.state == KthreadState::Asking;
        let congested = self.delay > Nanos::ZERO && self.delay >= limits.times.delay_target;
        let asks = self.kthreads.iter().filter(without).any(|it| asking(&it));
        let room = self.kthreads.iter().any(|it| without(&it));
        // One core more at a time, as in Caladan: the next look tells whether that was enough. Who asks while another
        // kernel thread has a core is served by that one, unless the delay says that it does not come to it.
        let wants = room && (congested || (asks && self.held.is_empty()));
        self.wants = u32::from(wants);

        let view = &mut seen.tasks[self.task.at()];
        view.waiting = view.waiting.saturating_add(self.wants);
        if self.delay > Nanos::ZERO || wants {
            let waited = view.queueing_delay.value().unwrap_or_default();
            view.queueing_delay = Signal::Measured(waited.max(self.delay));
        }
        // Kernel threads look for work before they sleep, and under load never do: what has run for long is a uthread.
        let running = |it: &&Kthread| it.copy.state == KthreadState::Running;
        let longest = self.kthreads.iter().filter(running).map(|it| it.copy.uthread_age).max();
        view.longest_run = Signal::Measured(longest.unwrap_or_default().min(now.since(self.since)));
        for kthread in &self.kthreads {
            let Some(start) = kthread.copy.request_start.filter(|_| kthread.thread.is_some())
            else {
                continue;
            };
            let runs =
                |it: &&ThreadView| matches!(it.state, ThreadState::Running | ThreadState::Waiting);
            let Some(thread) = threads.get(kthread.at).filter(runs) else {
                continue;
            };
            hints::note(seen, thread, start.min(seen.now));
        }
    }
}
