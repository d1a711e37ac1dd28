//! What the scheduler thread decides, on its way to subscribers.
//!
//! The scheduler thread puts [`Record`]s into a ring of fixed size ([`FeedWriter`]): no lock, no allocation, no
//! system call, and nothing at all without a subscriber. A full ring loses the newest records and counts them. The
//! hub's thread ([`hub`]) empties the ring every [`LOOK`] while there are subscribers, keeps the current state, and
//! puts each line into the bounded queue of each subscriber. The thread of a subscriber's connection alone writes to
//! its socket, so that a client that stops reading fills its own queue and loses its own lines.

mod hub;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use quell_control::subscribe::{CoreUpdate, DecisionUpdate, PlanAffinity, TaskUpdate};
use quell_model::Nanos;
use rtrb::{Consumer, Producer, RingBuffer};

use crate::command::Command;
use crate::mailbox::Postbox;
use hub::Hub;

/// Records that wait for the hub: of 168 bytes each.
const RING_RECORDS: usize = 4096;
/// Interval at which the hub empties the ring: a part of the recorder's event window (`WINDOW`).
const LOOK: Duration = Duration::from_millis(5);
/// Lines that wait for one subscriber.
const LINES_MAX: usize = 4096;

/// One message of the scheduler thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// Tasks joined, left or changed at this time: the hub asks for them before it passes on what follows.
    Tasks(Nanos),
    /// A core changed its owner or its scheduler.
    Decision(DecisionUpdate),
    /// The cores that a task may use changed, or the reason.
    Affinity(PlanAffinity),
}

impl Record {
    fn at(&self) -> Nanos {
        match self {
            Record::Tasks(at) => *at,
            Record::Decision(made) => made.at_ns,
            Record::Affinity(planned) => planned.at_ns,
        }
    }
}

/// The current state, as the scheduler thread answers it. Each record that it pushed before is of `at` or earlier,
/// but for [`Record::Tasks`], and is part of it.
#[derive(Clone, Debug, Default)]
pub struct FeedState {
    /// Time of the last tick.
    pub at: Nanos,
    /// The tasks.
    pub tasks: Vec<TaskUpdate>,
    /// The cores of the plan.
    pub cores: Vec<CoreUpdate>,
    /// What the plan lets each task use.
    pub affinities: Vec<PlanAffinity>,
}

#[derive(Default)]
struct Shared {
    /// Whether there is a subscriber.
    is_wanted: AtomicBool,
    /// Threads or affinities of tasks changed since the hub asked for them.
    has_changed: AtomicBool,
    /// Records that found the ring full.
    lost: AtomicU64,
}

/// The scheduler thread's end.
pub struct FeedWriter {
    ring: Producer<Record>,
    shared: Arc<Shared>,
}

impl FeedWriter {
    /// Whether there is a subscriber: without one nothing has to be pushed.
    pub fn is_wanted(&self) -> bool {
        // Relaxed: the hub sets it before it asks for the state. The command's channel orders that before the answer,
        // and whatever is decided before the answer is part of it.
        self.shared.is_wanted.load(Ordering::Relaxed)
    }

    /// Pushes a record, or counts it as lost.
    pub fn push(&mut self, record: Record) {
        if self.ring.push(record).is_err() {
            // Relaxed: a count; the hub asks for the whole state when it sees it, early or late.
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes that threads of tasks, or their affinities, changed.
    pub fn note_threads(&self) {
        // Relaxed: a flag alone; the hub asks for what changed, and that channel orders it.
        self.shared.has_changed.store(true, Ordering::Relaxed);
    }
}

/// The hub's end, before the hub runs.
pub struct FeedReader {
    ring: Consumer<Record>,
    shared: Arc<Shared>,
}

#[cfg(test)]
impl FeedReader {
    /// What the ring holds.
    pub fn records(mut self) -> impl Iterator<Item = Record> {
        std::iter::from_fn(move || self.ring.pop().ok())
    }
}

/// A new pair, with all its memory.
pub fn pair() -> (FeedWriter, FeedReader) {
    let (producer, consumer) = RingBuffer::new(RING_RECORDS);
    let shared = Arc::new(Shared::default());
    (
        FeedWriter { ring: producer, shared: Arc::clone(&shared) },
        FeedReader { ring: consumer, shared },
    )
}

/// Has the calling thread run before others on its core: it works little, and recorders wait for its lines.
pub fn go_first() {
    // Without the right to it lines arrive later, no more.
    let _ = quell_os::own::go_before_others();
}

/// Lines for one subscriber: each entry is one or more, with their ends.
pub type Lines = Arc<str>;

/// Where subscribers join.
#[derive(Clone)]
pub struct Feed {
    newcomers: Sender<Newcomer>,
}

struct Newcomer {
    lines: Sender<Lines>,
    /// Alive as long as the subscriber.
    alive: std::sync::Weak<()>,
}

/// A subscriber's queue. Dropped, it ends the subscription.
pub struct Subscriber {
    /// Disconnected when the daemon ends.
    pub lines: Receiver<Lines>,
    _alive: Arc<()>,
}

impl Feed {
    /// Starts the hub's thread, which asks the scheduler thread for its state.
    ///
    /// # Errors
    /// When the thread cannot be made.
    pub fn start(reader: FeedReader, engine: Postbox<Command>) -> std::io::Result<Feed> {
        Feed::start_with(reader, Box::new(move || engine.call(Command::FeedState).ok()))
    }

    fn start_with(reader: FeedReader, ask: hub::Ask) -> std::io::Result<Feed> {
        let (newcomers, arrivals) = bounded(0);
        let hub = Hub::new(reader, arrivals, ask);
        std::thread::Builder::new().name("quell-feed".into()).spawn(move || hub.run())?;
        Ok(Feed { newcomers })
    }

    /// Joins a subscriber; `None` when the daemon ends. Its first entry is the current state.
    pub fn subscribe(&self) -> Option<Subscriber> {
        let (send, lines) = bounded(LINES_MAX);
        let alive = Arc::new(());
        self.newcomers.send(Newcomer { lines: send, alive: Arc::downgrade(&alive) }).ok()?;
        Some(Subscriber { lines, _alive: alive })
    }
}
