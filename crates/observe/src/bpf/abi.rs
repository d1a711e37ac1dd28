//! What the BPF programs and user space share: the mirror of `bpf/quell.h`.
//!
//! Every field of a mapped structure is an atomic, since a BPF program may write it at any time. A test compares each
//! field with the compiled structure ([`crate::layout`]), and the loader the sizes.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use quell_model::{Nanos, Role};

use super::BpfConfig;
use super::shared::coherent;
#[cfg(test)]
use crate::layout::Layout;
use crate::layout::{Field as _, bpf_record, bpf_struct};
use quell_os::{ThreadRef, Tid};

pub(super) const SETS: usize = 16;
pub(super) const BUCKETS: usize = 208;
pub(super) const BUCKET_MIN_LOG2: u32 = 8;

pub(super) const RUNNING: u32 = 1;
pub(super) const WAITING: u32 = 2;
pub(super) const SLEEPING: u32 = 3;
/// The state of a slot that no event and no look has told about yet.
pub(super) const UNKNOWN: u32 = 0;

/// `QUELL_WOKEN`, `QUELL_IN_KERNEL` and `QUELL_IN_TRANSACTION`, flags of a slot.
const FLAG_WOKEN: u8 = 1;
const FLAG_IN_KERNEL: u8 = 2;
const FLAG_IN_TRANSACTION: u8 = 8;

/// `QUELL_RECENT`: the threads that a core remembers.
const RECENT: usize = 4;
/// `QUELL_KINDS`.
pub(super) const KINDS: usize = 5;
pub(super) const KIND_IDLE: u32 = 1;
pub(super) const KIND_LC: u32 = 2;
pub(super) const KIND_BE: u32 = 3;
pub(super) const KIND_LC_FAIR: u32 = 4;

/// `NSEC_PER_SEC / USER_HZ`: from the boot clock in ns to field 22 of a `stat` file.
const NANOS_PER_TICK: u64 = 10_000_000;

/// How often a read is tried again while a writer is at it: one holds a slot for some 100 ns.
const READ_TRIES: u32 = 1_000;

/// What the scheduler of a lane waits for: [`Task::lane`].
pub(super) const LANE_SLEEPS: u32 = 1;
pub(super) const LANE_WAKES: u32 = 2;

/// Data that lives in a mapped BPF array.
///
/// # Safety
/// The type consists of atomics alone, so that any bit pattern is valid, and its layout is that of the C
/// structure that the map holds.
pub(super) unsafe trait Shared {}

// SAFETY: a word.
unsafe impl Shared for AtomicU64 {}

bpf_struct! {
    /// A watched thread.
    "slot" pub(super) struct Slot {
        seq: AtomicU32,
        state: AtomicU32,
        since: AtomicU64,
        ran: AtomicU64,
        waited: AtomicU64,
        transitions: AtomicU64,
        core: AtomicU32,
        task: AtomicU32,
        lc: AtomicU8,
        role: AtomicU8,
        flags: AtomicU8,
        counted: AtomicU8,
        reuse_count: AtomicU32,
        generation: AtomicU32,
        tid: AtomicU32,
        awake_since: AtomicU64,
        pending: AtomicU64,
        burst_exec: AtomicU64,
        burst_ran: AtomicU64,
        overrun_sent: AtomicU64,
        input_ran: AtomicU64,
        stretch_max: AtomicU64,
        told_lock: AtomicU64,
        start_boottime: AtomicU64,
        tgid: AtomicU32,
        parent_tid: AtomicU32,
        children: AtomicU8,
        guest: AtomicU8,
        member: AtomicU8,
        proved_sent: AtomicU8,
        needs: AtomicU16,
        proved: AtomicU16,
        reserved: [AtomicU64; 5],
    }
}

// SAFETY: atomics alone; `bpf/quell.h: struct slot`.
unsafe impl Shared for Slot {}

/// A coherent copy of a [`Slot`].
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotCopy {
    pub state: u32,
    pub since: Nanos,
    pub awake_since: Nanos,
    pub ran: Nanos,
    pub waited: Nanos,
    pub transitions: u64,
    pub core: u32,
    pub task: u32,
    pub generation: u32,
    pub lc: bool,
    /// The wait in progress began with a wake-up.
    pub woken: bool,
    /// It waits or sleeps inside the kernel, where it may hold what others need.
    pub in_kernel: bool,
    /// In the middle of a transaction of a file system.
    pub in_transaction: bool,
    pub guest: bool,
    pub member: u8,
    /// `enum quell_role`.
    pub role: u8,
    /// `ran` when its burst began.
    pub burst_ran: Nanos,
    /// `ran` when it last received from a socket in this burst, else when that began.
    pub input_ran: Nanos,
    /// The longest stretch of the burst before that.
    pub stretch_max: Nanos,
    /// How often the slot was freed.
    pub used: u32,
    /// `None`: the slot is free.
    pub thread: Option<ThreadRef>,
    pub parent: Tid,
}

impl Slot {
    /// What a missed switch leaves behind: the thread is said to wait since then.
    #[cfg(test)]
    pub fn plant_wait(&self, since: Nanos) {
        self.state.store(WAITING, Ordering::Relaxed);
        self.since.store(since.0, Ordering::Relaxed);
    }

    /// Grows with each write; odd while one is under way.
    pub fn sequence(&self) -> u32 {
        // Acquire: pairs with the exchange that ends a write, as in `coherent`.
        self.seq.load(Ordering::Acquire)
    }

    /// A coherent copy, and how often it had to be tried again. `None` if a writer never left.
    pub fn read(&self) -> (Option<SlotCopy>, u32) {
        coherent(&self.seq, READ_TRIES, || SlotCopy {
            state: load(&self.state),
            since: Nanos(load_wide(&self.since)),
            awake_since: Nanos(load_wide(&self.awake_since)),
            ran: Nanos(load_wide(&self.ran)),
            waited: Nanos(load_wide(&self.waited)),
            transitions: load_wide(&self.transitions),
            core: load(&self.core),
            task: load(&self.task),
            generation: load(&self.generation),
            lc: self.lc.load(Ordering::Relaxed) != 0,
            woken: self.flags.load(Ordering::Relaxed) & FLAG_WOKEN != 0,
            in_kernel: self.flags.load(Ordering::Relaxed) & FLAG_IN_KERNEL != 0,
            in_transaction: self.flags.load(Ordering::Relaxed) & FLAG_IN_TRANSACTION != 0,
            guest: self.guest.load(Ordering::Relaxed) != 0,
            member: self.member.load(Ordering::Relaxed),
            role: self.role.load(Ordering::Relaxed),
            burst_ran: Nanos(load_wide(&self.burst_ran)),
            input_ran: Nanos(load_wide(&self.input_ran)),
            stretch_max: Nanos(load_wide(&self.stretch_max)),
            used: load(&self.reuse_count),
            thread: identity(load(&self.tid), load(&self.tgid), load_wide(&self.start_boottime)),
            parent: Tid(load(&self.parent_tid) as i32),
        })
    }
}

bpf_struct! {
    /// A core.
    "core" pub(super) struct Core {
        seq: AtomicU32,
        kind: AtomicU32,
        since: AtomicU64,
        total: [AtomicU64; KINDS],
        slot: AtomicU32,
        reuse_count: AtomicU32,
        task: AtomicU32,
        generation: AtomicU32,
        idles: AtomicU64,
        be_from: AtomicU64,
        be_until: AtomicU64,
        be_task: AtomicU32,
        sets: AtomicU32,
        steal: AtomicU64,
        running: AtomicU32,
        recent_next: AtomicU32,
        kthread_since: AtomicU64,
        recent_task: [AtomicU64; RECENT],
        recent_handle: [AtomicU64; RECENT],
    }
}

// SAFETY: atomics alone; `bpf/quell.h: struct core`.
unsafe impl Shared for Core {}

/// A coherent copy of a [`Core`].
#[derive(Clone, Copy, Debug)]
pub(super) struct CoreCopy {
    pub kind: u32,
    pub since: Nanos,
    /// Time spent in each kind before `since`.
    pub total: [Nanos; KINDS],
    /// 1 + the slot of the watched thread that runs, or 0, and that slot's reuse count.
    pub slot: u32,
    pub used: u32,
    pub task: u32,
    pub generation: u32,
    /// How often it fell idle.
    pub idles: u64,
    /// The hypervisor's steal clock of this core.
    pub steal: Nanos,
}

impl Core {
    /// What a missed switch leaves behind: another thread, not watched, is said to have the core.
    #[cfg(test)]
    pub fn plant_stranger(&self) {
        self.slot.store(0, Ordering::Relaxed);
        self.running.store(u32::MAX, Ordering::Relaxed);
    }

    /// Since when a kernel thread of the fair class waits behind LC.
    pub fn kernel_waits(&self) -> Option<Nanos> {
        let since = load_wide(&self.kthread_since);
        (since != 0).then_some(Nanos(since))
    }

    /// As [`Slot::read`].
    pub fn read(&self) -> (Option<CoreCopy>, u32) {
        coherent(&self.seq, READ_TRIES, || CoreCopy {
            kind: load(&self.kind),
            since: Nanos(load_wide(&self.since)),
            total: std::array::from_fn(|kind| Nanos(load_wide(&self.total[kind]))),
            slot: load(&self.slot),
            used: load(&self.reuse_count),
            task: load(&self.task),
            generation: load(&self.generation),
            idles: load_wide(&self.idles),
            steal: Nanos(load_wide(&self.steal)),
        })
    }
}

bpf_struct! {
    /// What user space wants of a core.
    "core_order" pub(super) struct CoreOrder {
        pub sets: AtomicU32,
        pub told_idle: AtomicU32,
        reserved: [AtomicU64; 7],
    }
}

// SAFETY: atomics alone; `bpf/quell.h: struct core_order`.
unsafe impl Shared for CoreOrder {}

bpf_struct! {
    /// A set of managed cores that some LC tasks may use.
    "core_set" pub(super) struct SetOfCores {
        pub word: AtomicU64,
        pub cores: AtomicU32,
        reserved0: AtomicU32,
        reserved: [AtomicU64; 6],
    }
}

// SAFETY: atomics alone; `bpf/quell.h: struct core_set`.
unsafe impl Shared for SetOfCores {}

bpf_struct! {
    /// A task.
    "task" pub(super) struct Task {
        pub set: AtomicU32,
        pub told_queued: AtomicU32,
        pub unserved: AtomicU32,
        pub lane: AtomicU32,
        pub ring: AtomicU32,
        reserved0: AtomicU32,
        pub changes: AtomicU64,
        reserved: [AtomicU64; 4],
    }
}

// SAFETY: atomics alone; `bpf/quell.h: struct task`.
unsafe impl Shared for Task {}

bpf_struct! {
    /// What the threads of a task did on one core.
    "task_time" pub(super) struct TaskTime {
        pub ran: AtomicU64,
        pub waited: AtomicU64,
    }
}

// SAFETY: atomics alone; `bpf/quell.h: struct task_time`.
unsafe impl Shared for TaskTime {}

bpf_struct! {
    /// A task's wake-to-run times.
    "histograms" pub(super) struct Histograms {
        pub own: [AtomicU32; BUCKETS],
        pub caused: [AtomicU32; BUCKETS],
    }
}

// SAFETY: atomics alone; `bpf/quell.h: struct histograms`.
unsafe impl Shared for Histograms {}

bpf_struct! {
    /// What user space wants of the observer.
    "control" pub(super) struct Control {
        pub wake_on_events: AtomicU32,
        pub idle_wanted: AtomicU32,
        pub self_tgid: AtomicU32,
        pub armed: AtomicU32,
        pub wake_gap: AtomicU64,
        pub words: AtomicU32,
        pub tasks: AtomicU32,
        pub stall_min: AtomicU64,
        pub budgets: [AtomicU64; 2],
        pub elevated_background: AtomicU32,
        reserved: AtomicU32,
    }
}

// SAFETY: atomics alone; `bpf/quell.h: struct control`.
unsafe impl Shared for Control {}

impl Control {
    /// Set before the programs are attached.
    pub fn configure(&self, config: &BpfConfig, words: u32, tasks: u32) {
        self.wake_gap.store(config.wake_gap.0, Ordering::Relaxed);
        self.stall_min.store(config.stall_min.0, Ordering::Relaxed);
        for (budget, role) in self.budgets.iter().zip(Role::ALL) {
            budget.store(role.budget().map_or(0, |budget| budget.0), Ordering::Relaxed);
        }
        self.words.store(words, Ordering::Relaxed);
        self.tasks.store(tasks, Ordering::Relaxed);
        self.self_tgid.store(std::process::id(), Ordering::Relaxed);
        self.armed.store(1, Ordering::Relaxed);
    }
}

bpf_struct! {
    /// Sums over all cores, and what went wrong.
    "totals" pub(super) struct Totals {
        pub idle_while_waiting: AtomicU64,
        pub active: AtomicU64,
        pub last_wake: AtomicU64,
        be_in_kernel: AtomicU64,
        told_stopped: AtomicU64,
        reserved: [AtomicU64; 3],
        pub table_full: AtomicU64,
        pub storage_failed: AtomicU64,
        pub events_dropped: AtomicU64,
        pub contended: AtomicU64,
        pub missed_wakes: AtomicU64,
        pub watched: AtomicU64,
        pub missed_switches: AtomicU64,
        reserved1: AtomicU64,
    }
}

// SAFETY: atomics alone; `bpf/quell.h: struct totals`.
unsafe impl Shared for Totals {}

bpf_record! {
    /// The argument of the `watch`, `seed` and `unwatch` programs.
    #[derive(Default)]
    "watch_args" pub(super) struct WatchArgs {
        pub tid: i32,
        pub task: u32,
        pub start_ticks: u64,
        pub generation: u32,
        pub lc: u32,
        pub children: u32,
        /// Written by the program, as `core`.
        pub state: u32,
        pub core: u32,
        pub member: u32,
        /// Of `set_role`, as `needs`.
        pub role: u32,
        pub needs: u32,
    }
}

impl WatchArgs {
    pub const BYTES: usize = size_of::<WatchArgs>();

    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let mut put = |offset: usize, value: &[u8]| {
            bytes[offset..offset + value.len()].copy_from_slice(value);
        };
        put(offset_of!(Self, tid), &self.tid.to_ne_bytes());
        put(offset_of!(Self, task), &self.task.to_ne_bytes());
        put(offset_of!(Self, start_ticks), &self.start_ticks.to_ne_bytes());
        put(offset_of!(Self, generation), &self.generation.to_ne_bytes());
        put(offset_of!(Self, lc), &self.lc.to_ne_bytes());
        put(offset_of!(Self, children), &self.children.to_ne_bytes());
        put(offset_of!(Self, state), &self.state.to_ne_bytes());
        put(offset_of!(Self, core), &self.core.to_ne_bytes());
        put(offset_of!(Self, member), &self.member.to_ne_bytes());
        put(offset_of!(Self, role), &self.role.to_ne_bytes());
        put(offset_of!(Self, needs), &self.needs.to_ne_bytes());
        bytes
    }

    /// The state and the core that the program wrote back.
    pub fn answer(bytes: &[u8; Self::BYTES]) -> (u32, u32) {
        let args = WatchArgs::from_bytes(bytes);
        (args.state, args.core)
    }
}

bpf_record! {
    /// `struct identity`.
    "identity" pub(super) struct Identity {
        tid: u32,
        tgid: u32,
        start_boottime: u64,
    }
}

impl Identity {
    /// The thread; `None` where there is none.
    pub fn thread(&self) -> Option<ThreadRef> {
        identity(self.tid, self.tgid, self.start_boottime)
    }

    /// The numbers alone, of an event whose subject is not a thread.
    pub fn tgid(&self) -> Tid {
        Tid(self.tgid as i32)
    }

    /// As [`Identity::tgid`].
    pub fn tid(&self) -> Tid {
        Tid(self.tid as i32)
    }
}

bpf_record! {
    /// An event of the ring.
    "event" pub(super) struct Event {
        pub kind: u32,
        pub core: u32,
        pub task: u32,
        pub generation: u32,
        pub subject: Identity,
        pub parent: Identity,
        pub flags: u32,
        reserved: u32,
        pub from: u64,
        pub to: u64,
        pub stolen: u64,
        pub slot: u32,
        pub reuse_count: u32,
        pub length: u64,
        pub owner_slot: u32,
        pub owner_reuse_count: u32,
    }
}

/// The thread with these numbers; `None` where there is none.
pub(super) fn identity(tid: u32, tgid: u32, start_boottime: u64) -> Option<ThreadRef> {
    (tid != 0).then_some(ThreadRef {
        tid: Tid(tid as i32),
        tgid: Tid(tgid as i32),
        start_ticks: start_boottime / NANOS_PER_TICK,
    })
}

fn load(word: &AtomicU32) -> u32 {
    word.load(Ordering::Relaxed)
}

fn load_wide(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

#[cfg(test)]
pub(crate) fn layouts() -> Vec<Layout> {
    vec![
        Slot::LAYOUT,
        Core::LAYOUT,
        CoreOrder::LAYOUT,
        SetOfCores::LAYOUT,
        Task::LAYOUT,
        TaskTime::LAYOUT,
        Histograms::LAYOUT,
        Control::LAYOUT,
        Totals::LAYOUT,
        WatchArgs::LAYOUT,
        Identity::LAYOUT,
        Event::LAYOUT,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_written_as_they_are_read() {
        let args =
            WatchArgs { tid: 1, task: 2, start_ticks: 3, generation: 4, ..Default::default() };
        let args = WatchArgs { lc: 5, children: 6, state: 7, core: 8, member: 9, ..args };
        let args = WatchArgs { role: 10, needs: 11, ..args };
        let read = WatchArgs::parse(&args.to_bytes()).unwrap();
        assert_eq!(format!("{read:?}"), format!("{args:?}"));
        assert_eq!(WatchArgs::answer(&args.to_bytes()), (7, 8));
    }
}
