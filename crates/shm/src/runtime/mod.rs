//! The memory that a runtime and the daemon share, version 1: what each kernel thread of the runtime has to do, and
//! which core it was granted.
//!
//! ```text
//! header, 128 bytes       who it is for                 | what the daemon tells the application (its delay, its cores)
//! kthread 0, 256 bytes    work: the runtime writes      | counters: the runtime writes
//!                         grant: the daemon writes      | spare
//! kthread 1 ..
//! ```
//!
//! The daemon creates the memory (a memfd), sets its size, seals it (no one can shrink it, so reading it is no SIGBUS) and
//! passes it on; then each side maps it. All words are atomics in the byte order of the machine. A line has one writer, and is
//! padded so that no two writers share one or its neighbour in the prefetcher's pair.
//!
//! The runtime is not trusted. Whatever is read here is a claim: [`KthreadLoad::read`] bounds it by the time of reading, so that a time in the
//! future or a negative age cannot be expressed, and what follows from a claim falls on the task that made it.
//!
//! Caladan, OSDI'20, section 4.1 and its `q_ptrs`; with whole words instead of 32-bit cycle counts, which wrap.

mod grant;
mod memory;

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use quell_model::{CoreId, Nanos};

pub use grant::{Grant, NewGrant};
pub use memory::{Memory, MemoryError};

/// `QUELLRUN`.
pub const MAGIC: u64 = u64::from_ne_bytes(*b"QUELLRUN");
/// The version of this layout.
pub const VERSION: u32 = 1;
/// Kernel threads that a runtime may have at most.
pub const KTHREADS_MAX: u32 = 1_024;
/// The grant under which a kernel thread runs that needs none: alone. No daemon comes to this number.
pub const NO_DAEMON: u64 = u64::MAX;
/// Nothing: no time, no wait. No clock of a running host reads zero.
const NONE: u64 = 0;

/// The head of the memory.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    kthreads: AtomicU32,
    /// Counts the daemons that the memory was shared with, so that a runtime notices another one.
    daemon: AtomicU64,
    spare: [u64; 5],
    /// What the application may read back.
    pub told: CongestionInfo,
}

/// What the daemon makes of the runtime: for overload control in the application. Written by the daemon.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct CongestionInfo {
    queueing_delay_ns: AtomicU64,
    load_millicores: AtomicU64,
    cores: AtomicU64,
    updates: AtomicU64,
}

/// One kernel thread of a runtime.
#[repr(C, align(256))]
#[derive(Debug, Default)]
pub struct Kthread {
    /// What it has to do. Written by the runtime.
    pub work: KthreadLoad,
    /// What it has done. Written by the runtime.
    pub counters: Counters,
    /// The core it may use. Written by the daemon.
    pub grant: Grant,
}

impl Kthread {
    /// Whether the kernel thread has to leave its core: the grant under which it runs was revoked. Two loads, of lines
    /// that hardly ever change hands; for each of its scheduling points. Never so under [`NO_DAEMON`].
    #[inline]
    pub fn is_core_revoked(&self) -> bool {
        self.grant.is_revoked(self.work.generation())
    }

    /// Whether the uthread that runs, as [`KthreadLoad::set_uthread`] was told, has had its quantum.
    #[inline]
    pub fn is_quantum_over(&self) -> bool {
        self.grant.is_quantum_over(Nanos(self.work.uthread_start.load(Ordering::Relaxed)))
    }
}

/// What a kernel thread has to do.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct KthreadLoad {
    thread: AtomicI32,
    state: AtomicU32,
    /// Since when the oldest uthread that is ready waits. While its switches are short, the runtime reads its clock once in
    /// eight: the time may be too early by a few microseconds, or by one long run of a uthread just before. Never too late.
    oldest_ready: AtomicU64,
    /// When the next timer is due.
    timer_deadline: AtomicU64,
    /// Since when the oldest completion of I/O that nobody looked at waits.
    io_since: AtomicU64,
    /// When the uthread that runs began to, as above. No two in a row have the same.
    uthread_start: AtomicU64,
    /// The grant under which it runs or ran last.
    generation: AtomicU64,
    /// When the request in service began; for the hyperthread controller.
    request_start: AtomicU64,
    queued: AtomicU64,
}

/// What a kernel thread has done since its runtime began.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Counters {
    /// Switches to a uthread.
    pub switches: AtomicU64,
    /// Uthreads taken from another kernel thread.
    pub steals: AtomicU64,
    /// Times that it parked for want of work.
    pub parks: AtomicU64,
    /// Times that it parked because its core was revoked.
    pub revokes: AtomicU64,
    /// Uthreads that were made to yield at the end of their quantum.
    pub preemptions: AtomicU64,
    /// Time that it ran uthreads.
    pub busy_ns: AtomicU64,
    /// Times that it woke without a core, for a timer or for I/O.
    pub asks: AtomicU64,
}

/// A copy of [`Counters`]; sums over several add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountersCopy {
    /// See [`Counters::switches`].
    pub switches: u64,
    /// See [`Counters::steals`].
    pub steals: u64,
    /// See [`Counters::parks`].
    pub parks: u64,
    /// See [`Counters::revokes`].
    pub revokes: u64,
    /// See [`Counters::preemptions`].
    pub preemptions: u64,
    /// See [`Counters::busy_ns`].
    pub busy_ns: u64,
    /// See [`Counters::asks`].
    pub asks: u64,
}

impl Counters {
    /// Copies them: each a claim by itself.
    pub fn read(&self) -> CountersCopy {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        CountersCopy {
            switches: load(&self.switches),
            steals: load(&self.steals),
            parks: load(&self.parks),
            revokes: load(&self.revokes),
            preemptions: load(&self.preemptions),
            busy_ns: load(&self.busy_ns),
            asks: load(&self.asks),
        }
    }
}

impl std::ops::AddAssign for CountersCopy {
    /// Wraps: a runtime may claim anything.
    fn add_assign(&mut self, other: CountersCopy) {
        let add = |to: &mut u64, with: u64| *to = to.wrapping_add(with);
        add(&mut self.switches, other.switches);
        add(&mut self.steals, other.steals);
        add(&mut self.parks, other.parks);
        add(&mut self.revokes, other.revokes);
        add(&mut self.preemptions, other.preemptions);
        add(&mut self.busy_ns, other.busy_ns);
        add(&mut self.asks, other.asks);
    }
}

/// What a kernel thread is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum KthreadState {
    /// Not started, or ended.
    Absent = 0,
    /// Runs uthreads, or looks for some.
    Running = 1,
    /// Asleep without a core.
    Parked = 2,
    /// Awake without a core: it has a timer or I/O that is due, and waits to be granted one.
    Asking = 3,
}

/// A copy of [`KthreadLoad`], bounded by when it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCopy {
    /// The kernel's number of the thread, as it says.
    pub thread: i32,
    /// What it is doing.
    pub state: KthreadState,
    /// How long the oldest ready uthread has waited.
    pub ready_age: Nanos,
    /// How long the next timer is overdue.
    pub timer_age: Nanos,
    /// When the next timer is due; `None`: there is none.
    pub timer: Option<Nanos>,
    /// How long the oldest completion of I/O has waited.
    pub io_age: Nanos,
    /// How long the uthread has run that runs.
    pub uthread_age: Nanos,
    /// When it began to, as it says; `None`: none runs.
    pub uthread_start: Option<Nanos>,
    /// When the request in service began.
    pub request_start: Option<Nanos>,
    /// The grant it acts under.
    pub generation: u64,
    /// Uthreads that are ready.
    pub queued: u64,
}

impl WorkCopy {
    /// The queueing delay of this kernel thread: the sum of the ages of the oldest element of each of its queues
    /// (Caladan, OSDI'20, section 4.1).
    pub fn delay(&self) -> Nanos {
        Nanos(self.ready_age.0.saturating_add(self.timer_age.0).saturating_add(self.io_age.0))
    }
}

/// A time as it is stored.
#[inline]
fn word(at: Option<Nanos>) -> u64 {
    at.map_or(NONE, |at| at.0.max(1))
}

fn age(since: u64, now: Nanos) -> Nanos {
    match since {
        NONE => Nanos::ZERO,
        since => Nanos(now.0.saturating_sub(since)),
    }
}

/// All words are claims of their own, and nothing else is published through them: relaxed, but for `state`.
impl KthreadLoad {
    /// Its thread began.
    pub fn begin(&self, thread: i32) {
        self.thread.store(thread, Ordering::Relaxed);
        self.set_state(KthreadState::Running);
    }

    /// Says what it does now. Release: pairs with the acquire of [`KthreadLoad::read`], so that who sees it parked sees the
    /// queue that it left behind.
    pub fn set_state(&self, state: KthreadState) {
        self.state.store(state as u32, Ordering::Release);
    }

    /// Since when the oldest ready uthread waits, and how many do.
    #[inline]
    pub fn set_ready(&self, oldest: Option<Nanos>, queued: u64) {
        self.oldest_ready.store(word(oldest), Ordering::Relaxed);
        self.queued.store(queued, Ordering::Relaxed);
    }

    /// When the next timer is due.
    #[inline]
    pub fn set_timer(&self, deadline: Option<Nanos>) {
        self.timer_deadline.store(word(deadline), Ordering::Relaxed);
    }

    /// Since when completions of I/O wait.
    pub fn set_io(&self, since: Option<Nanos>) {
        self.io_since.store(word(since), Ordering::Relaxed);
    }

    /// A uthread began to run then, or none runs.
    #[inline]
    pub fn set_uthread(&self, start: Option<Nanos>) {
        self.uthread_start.store(word(start), Ordering::Relaxed);
    }

    /// A request began to be served then, or none is.
    #[inline]
    pub fn set_request(&self, start: Option<Nanos>) {
        self.request_start.store(word(start), Ordering::Relaxed);
    }

    /// The grant under which it runs from now on.
    pub fn set_generation(&self, generation: u64) {
        self.generation.store(generation, Ordering::Relaxed);
    }

    /// The grant under which it runs or ran last.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Says in another memory what is said here: a runtime that registers with another daemon goes on there. All but
    /// the state and the grant.
    pub fn copy_to(&self, other: &KthreadLoad) {
        let copy = |from: &AtomicU64, to: &AtomicU64| {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        };
        other.thread.store(self.thread.load(Ordering::Relaxed), Ordering::Relaxed);
        copy(&self.oldest_ready, &other.oldest_ready);
        copy(&self.timer_deadline, &other.timer_deadline);
        copy(&self.io_since, &other.io_since);
        copy(&self.uthread_start, &other.uthread_start);
        copy(&self.request_start, &other.request_start);
        copy(&self.queued, &other.queued);
    }

    /// Asks for a core: from now on the daemon sees that this kernel thread is awake without one. A grant that is
    /// there already is returned; without one the caller rings the daemon and waits for its bell. In every
    /// interleaving with [`KthreadLoad::offer`] one of the two sees the other: a grant is never lost.
    pub fn ask(&self, grant: &Grant) -> Option<(u64, CoreId)> {
        grant::ask(&self.state, KthreadState::Asking as u32, grant)
    }

    /// Grants this kernel thread a core. The daemon alone calls it.
    pub fn offer(&self, grant: &Grant, core: CoreId) -> NewGrant {
        grant::offer(&self.state, KthreadState::Asking as u32, grant, core)
    }

    /// Copies it. Any bits are a copy.
    pub fn read(&self, now: Nanos) -> WorkCopy {
        let state = match self.state.load(Ordering::Acquire) {
            1 => KthreadState::Running,
            2 => KthreadState::Parked,
            3 => KthreadState::Asking,
            _ => KthreadState::Absent,
        };
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let timer = load(&self.timer_deadline);
        let request = load(&self.request_start);
        let uthread = load(&self.uthread_start);
        WorkCopy {
            thread: self.thread.load(Ordering::Relaxed),
            state,
            ready_age: age(load(&self.oldest_ready), now),
            timer_age: age(timer, now),
            timer: (timer != NONE).then_some(Nanos(timer)),
            io_age: age(load(&self.io_since), now),
            uthread_age: age(uthread, now),
            uthread_start: (uthread != NONE).then_some(Nanos(uthread)),
            request_start: (request != NONE && request <= now.0).then_some(Nanos(request)),
            generation: load(&self.generation),
            queued: load(&self.queued),
        }
    }
}

impl CongestionInfo {
    /// Tells what the daemon saw. The daemon alone calls it.
    pub fn tell(&self, queueing_delay: Nanos, load_millicores: u64, cores: u64) {
        self.queueing_delay_ns.store(queueing_delay.0, Ordering::Relaxed);
        self.load_millicores.store(load_millicores, Ordering::Relaxed);
        self.cores.store(cores, Ordering::Relaxed);
        self.updates.fetch_add(1, Ordering::Relaxed);
    }

    /// The queueing delay of the task: the greatest of its kernel threads.
    pub fn queueing_delay(&self) -> Nanos {
        Nanos(self.queueing_delay_ns.load(Ordering::Relaxed))
    }

    /// Cores in use, smoothed (weight 0.1 a tick of 10 µs), in thousandths.
    pub fn load_millicores(&self) -> u64 {
        self.load_millicores.load(Ordering::Relaxed)
    }

    /// Cores granted now.
    pub fn cores(&self) -> u64 {
        self.cores.load(Ordering::Relaxed)
    }

    /// How often it was told: zero without a daemon.
    pub fn updates(&self) -> u64 {
        self.updates.load(Ordering::Relaxed)
    }
}

/// Bytes of the memory of a runtime with so many kernel threads.
pub fn memory_bytes(kthreads: u32) -> usize {
    size_of::<Kthread>() * (kthreads as usize + 1)
}

/// Offset of a kernel thread's lines: the header is padded to the size of one.
pub fn kthread_offset(at: u32) -> usize {
    size_of::<Kthread>() * (at as usize + 1)
}

const _: () = assert!(size_of::<Kthread>() == 256 && size_of::<Header>() == 128);
const _: () = assert!(size_of::<KthreadLoad>() == 64 && size_of::<Grant>() == 64);

impl Header {
    /// Sets up memory that is zero, for this many kernel threads. The daemon alone calls it.
    pub fn init(&self, kthreads: u32, daemon: u64) {
        self.version.store(VERSION, Ordering::Relaxed);
        self.kthreads.store(kthreads, Ordering::Relaxed);
        self.daemon.store(daemon, Ordering::Relaxed);
        // Release: who sees the mark sees the rest. Pairs with `kthreads`.
        self.magic.store(MAGIC, Ordering::Release);
    }

    /// How many kernel threads it is for; `None` if it is not this layout.
    pub fn kthreads(&self) -> Option<u32> {
        // Acquire: pairs with `init`.
        let known = self.magic.load(Ordering::Acquire) == MAGIC
            && self.version.load(Ordering::Relaxed) == VERSION;
        let kthreads = self.kthreads.load(Ordering::Relaxed);
        (known && (1..=KTHREADS_MAX).contains(&kthreads)).then_some(kthreads)
    }

    /// Which daemon shares it.
    pub fn daemon(&self) -> u64 {
        self.daemon.load(Ordering::Relaxed)
    }
}
