//! Threads of a [`HostState`](super::HostState), by dense index.

use std::collections::HashMap;
use std::ops::{Index, IndexMut};

use quell_model::{Nanos, Rank, Runner, ThreadName};

use super::class::ClassIndex;

/// Threads that are kept, sleepers included. Threads beyond it are not followed.
pub(super) const THREADS_MAX: usize = 1 << 18;

/// The state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ThreadState {
    /// No event says what it does.
    Unknown,
    /// It was created and is not woken yet (`TASK_NEW`).
    New,
    /// It has its core.
    Running,
    /// It is in the run queue of its core and does not run.
    Waiting,
    /// It is being woken (`sched_waking`) and not in a run queue yet.
    Waking,
    /// It is in the run queue and the quota of its cgroup is used up.
    Throttled,
    /// It sleeps and is still in the run queue (delayed dequeue, Linux 6.12).
    Delayed,
    /// It is between two run queues.
    Migrating,
    /// It sleeps, interruptibly or for a cause that the source does not report.
    Sleeping,
    /// It sleeps uninterruptibly (state D): for a device or a lock of the kernel.
    Blocked,
    /// A signal or a debugger stopped it.
    Stopped,
    /// It ended.
    Exited,
}

impl ThreadState {
    /// Whether a thread in this state is in the list of its core: it waits there or is being woken for it.
    pub fn is_listed(self) -> bool {
        matches!(self, ThreadState::Waiting | ThreadState::Waking)
    }

    /// Whether the thread has a core, waits for one or is being woken for one.
    pub fn is_placed(self) -> bool {
        self == ThreadState::Running || self.is_listed()
    }
}

/// The slot of a live thread. A slot is used again after its thread ended; [`HostThread::serial`] is unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadIndex(pub(super) u32);

impl ThreadIndex {
    /// The slot as an index into dense tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A thread.
#[derive(Clone, Debug)]
pub struct HostThread {
    /// Its slot.
    pub index: ThreadIndex,
    /// Its number in the order of appearance, from 1; a reused tid is a new thread with a new serial.
    pub serial: u32,
    /// Tid, tgid, scheduling priority and comm, as last reported.
    pub info: Runner,
    /// What it does.
    pub state: ThreadState,
    /// Where it runs, waits or is woken to; otherwise where it was last. Index into the topology.
    pub core: usize,
    /// Since when it is in its state on this core, or since the last [`HostState::cut`](super::HostState::cut).
    pub since: Nanos,
    /// The affinity, priority and plan that it shares with other threads.
    pub class: ClassIndex,
    /// It may not leave its core now: a per-core kernel thread, or within `migrate_disable()`.
    pub migration_disabled: bool,
    /// When the wake-up began from which it has not run yet; valid in `wakeup_epoch`.
    pub(super) woken_at: Nanos,
    pub(super) wakeup_epoch: u32,
    /// A `sched_waking` that came while it ran, and the core that it named.
    pub(super) waking_while_running: Option<(Nanos, u32)>,
    /// It was seen on a core.
    pub(super) has_run: bool,
    /// The number of the last keyframe that lists it.
    pub(super) listed_in: u64,
    /// The neighbours in the list of its core.
    pub(super) previous: Option<ThreadIndex>,
    pub(super) next: Option<ThreadIndex>,
}

impl HostThread {
    /// The kernel's number.
    pub fn tid(&self) -> i32 {
        self.info.thread
    }

    /// The number of its process; 0 while not reported.
    pub fn tgid(&self) -> i32 {
        self.info.process
    }

    /// Its scheduling priority across classes.
    pub fn prio(&self) -> Rank {
        self.info.rank
    }

    /// Its name.
    pub fn comm(&self) -> ThreadName {
        self.info.name
    }
}

/// A thread of which only the tid is reported: fair, as nearly all are.
pub(super) fn unnamed(tid: i32) -> Runner {
    Runner { thread: tid, process: 0, rank: Rank::FAIR, name: ThreadName::default() }
}

/// All live threads.
#[derive(Clone, Debug, Default)]
pub(super) struct ThreadTable {
    slots: Vec<HostThread>,
    free: Vec<ThreadIndex>,
    by_tid: TidTable,
    serial: u32,
}

impl ThreadTable {
    /// Live threads.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Live threads, in the order of their slots.
    pub fn iter(&self) -> impl Iterator<Item = &HostThread> {
        self.slots.iter().filter(|thread| thread.state != ThreadState::Exited)
    }

    /// Slots, used or free.
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// The live thread in a slot.
    pub fn get(&self, slot: u32) -> Option<&HostThread> {
        self.slots.get(slot as usize).filter(|thread| thread.state != ThreadState::Exited)
    }

    pub fn find(&self, tid: i32) -> Option<ThreadIndex> {
        self.by_tid.get(tid)
    }

    /// A new thread; `None` where the table is full. No live thread has its tid.
    pub fn create(
        &mut self,
        info: Runner,
        core: usize,
        now: Nanos,
        class: ClassIndex,
    ) -> Option<ThreadIndex> {
        debug_assert!(self.by_tid.get(info.thread).is_none(), "tid {} is in use", info.thread);
        if self.len() >= THREADS_MAX {
            return None;
        }
        self.serial = self.serial.wrapping_add(1).max(1);
        let thread = |index| HostThread {
            index,
            serial: self.serial,
            info,
            state: ThreadState::Unknown,
            core,
            since: now,
            class,
            migration_disabled: false,
            woken_at: Nanos::ZERO,
            wakeup_epoch: 0,
            waking_while_running: None,
            has_run: false,
            listed_in: 0,
            previous: None,
            next: None,
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.slots[index.index()] = thread(index);
                index
            }
            None => {
                let index = ThreadIndex(self.slots.len() as u32);
                self.slots.push(thread(index));
                index
            }
        };
        self.by_tid.set(info.thread, Some(index));
        Some(index)
    }

    /// Frees the slot of a thread that is on no core and in no list.
    pub fn remove(&mut self, index: ThreadIndex) {
        let thread = &mut self.slots[index.index()];
        debug_assert!(!thread.state.is_placed(), "a thread that ends has a place");
        thread.state = ThreadState::Exited;
        self.by_tid.set(thread.info.thread, None);
        self.free.push(index);
    }

    /// Gives a thread another tid, which is free: a thread that is not the leader took the leader's at exec.
    pub fn renumber(&mut self, index: ThreadIndex, tid: i32) {
        debug_assert!(self.by_tid.get(tid).is_none(), "tid {tid} is in use");
        let old = std::mem::replace(&mut self.slots[index.index()].info.thread, tid);
        self.by_tid.set(old, None);
        self.by_tid.set(tid, Some(index));
    }
}

impl Index<ThreadIndex> for ThreadTable {
    type Output = HostThread;
    #[inline]
    fn index(&self, index: ThreadIndex) -> &HostThread {
        &self.slots[index.index()]
    }
}

impl IndexMut<ThreadIndex> for ThreadTable {
    #[inline]
    fn index_mut(&mut self, index: ThreadIndex) -> &mut HostThread {
        &mut self.slots[index.index()]
    }
}

/// Bits of a tid that choose an entry of a leaf, and of each node above it. Together they are `PID_MAX_LIMIT` of
/// 64-bit kernels; only damaged streams and other models go beyond.
const LEAF_BITS: u32 = 6;
const NODE_BITS: u32 = 8;
const TIDS: usize = 1 << (LEAF_BITS + 2 * NODE_BITS);

/// Slots by tid: a tree of three levels for the tids that a kernel gives, small where they are scattered and never
/// slow whatever they are, and a map for the others. Entries of leaves are slots plus one.
#[derive(Clone, Debug)]
struct TidTable {
    /// The root, and behind it nodes and leaves; entries of nodes are where the next level begins, 0 for none.
    nodes: Vec<u32>,
    others: HashMap<i32, u32>,
}

impl Default for TidTable {
    fn default() -> TidTable {
        TidTable { nodes: vec![0; 1 << NODE_BITS], others: HashMap::new() }
    }
}

impl TidTable {
    #[inline]
    fn get(&self, tid: i32) -> Option<ThreadIndex> {
        let slot = match usize::try_from(tid) {
            Ok(tid) if tid < TIDS => {
                let [root, node, leaf] = split(tid);
                match self.nodes[root] {
                    0 => 0,
                    nodes => match self.nodes[nodes as usize + node] {
                        0 => 0,
                        leaves => self.nodes[leaves as usize + leaf],
                    },
                }
            }
            _ => self.others.get(&tid).copied().unwrap_or(0),
        };
        slot.checked_sub(1).map(ThreadIndex)
    }

    fn set(&mut self, tid: i32, index: Option<ThreadIndex>) {
        let slot = index.map_or(0, |index| index.0 + 1);
        match usize::try_from(tid) {
            Ok(tid) if tid < TIDS => {
                let [root, node, leaf] = split(tid);
                let nodes = self.below(root, NODE_BITS);
                let leaves = self.below(nodes + node, LEAF_BITS);
                self.nodes[leaves + leaf] = slot;
            }
            _ if slot == 0 => drop(self.others.remove(&tid)),
            _ => drop(self.others.insert(tid, slot)),
        }
    }

    /// Where the level below an entry begins; makes it, with so many bits, where there is none.
    fn below(&mut self, entry: usize, bits: u32) -> usize {
        if self.nodes[entry] == 0 {
            self.nodes[entry] = self.nodes.len() as u32;
            self.nodes.resize(self.nodes.len() + (1 << bits), 0);
        }
        self.nodes[entry] as usize
    }
}

/// The entries on the way to a tid, in the root, a node and a leaf.
fn split(tid: usize) -> [usize; 3] {
    let [nodes, leaves] = [1 << NODE_BITS, 1 << LEAF_BITS].map(|entries| entries - 1);
    [tid >> (LEAF_BITS + NODE_BITS), tid >> LEAF_BITS & nodes, tid & leaves]
}

/// What has a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Running {
    /// Not known: no event said so, or events were lost.
    Unknown,
    /// The idle thread.
    Idle,
    /// A thread.
    Thread(ThreadIndex),
}

/// What has a core, for a visitor.
#[derive(Clone, Copy, Debug)]
pub enum Occupant<'h> {
    /// Not known.
    Unknown,
    /// The idle thread.
    Idle,
    /// A thread.
    Thread(&'h HostThread),
}

impl<'h> Occupant<'h> {
    /// The thread, if it is one and known.
    pub fn thread(self) -> Option<&'h HostThread> {
        match self {
            Occupant::Thread(thread) => Some(thread),
            Occupant::Unknown | Occupant::Idle => None,
        }
    }
}
