//! From records of the scheduler thread to lines of subscribers.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError};
use quell_control::protocol::Update;
use quell_control::subscribe::{CoreUpdate, Lost, PlanAffinity, TaskLeft, TaskUpdate};
use quell_model::{CoreId, Nanos, TaskId};

use super::{FeedReader, FeedState, LINES_MAX, LOOK, Lines, Newcomer, Record};

/// Minimum time between two questions for tasks whose threads changed. Counting threads takes the scheduler thread
/// some 100 ns each.
const THREADS_EVERY: Duration = Duration::from_millis(200);

/// Asks the scheduler thread; `None` when it is gone.
pub(super) type Ask = Box<dyn FnMut() -> Option<Box<FeedState>> + Send>;

/// See the module's documentation.
pub(super) struct Hub {
    reader: FeedReader,
    arrivals: Receiver<Newcomer>,
    ask: Ask,
    asked: Instant,
    subscribers: Vec<Queue>,
    known: Known,
}

/// A subscriber, as the hub knows it.
struct Queue {
    lines: Sender<Lines>,
    alive: Weak<()>,
    /// Lines left out since its queue was full.
    lost: u64,
}

/// The state that all lines so far add up to.
#[derive(Default)]
struct Known {
    at: Nanos,
    tasks: BTreeMap<TaskId, TaskUpdate>,
    cores: BTreeMap<CoreId, CoreUpdate>,
    affinities: BTreeMap<TaskId, PlanAffinity>,
}

/// The scheduler thread is gone.
struct Ended;

impl Hub {
    pub fn new(reader: FeedReader, arrivals: Receiver<Newcomer>, ask: Ask) -> Hub {
        Hub {
            reader,
            arrivals,
            ask,
            asked: Instant::now(),
            subscribers: Vec::new(),
            known: Known::default(),
        }
    }

    /// Serves until the scheduler thread or the server is gone. Dropped queues end their subscriptions.
    pub fn run(mut self) {
        super::go_first();
        loop {
            let arrival = match self.subscribers.is_empty() {
                true => self.arrivals.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => self.arrivals.recv_timeout(LOOK),
            };
            let newcomer = match arrival {
                Ok(newcomer) => Some(newcomer),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let served = match self.subscribers.is_empty() {
                true => self.wake(),
                false => self.relay(),
            };
            // The last lines go to all.
            if served.is_err() || (self.reader.ring.is_abandoned() && self.reader.ring.is_empty()) {
                return;
            }
            if let Some(Newcomer { lines, alive }) = newcomer {
                // Its queue is empty, and it may be gone already.
                let _ = lines.try_send(self.known.lines(None));
                self.subscribers.push(Queue { lines, alive, lost: 0 });
            }
            self.subscribers.retain(|subscriber| subscriber.alive.strong_count() > 0);
            if self.subscribers.is_empty() {
                // Relaxed: see `FeedWriter::is_wanted`; what is pushed meanwhile is dropped by `wake`.
                self.reader.shared.is_wanted.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Begins to listen: takes the state, and drops what is part of it.
    fn wake(&mut self) -> Result<(), Ended> {
        // Relaxed: see `FeedWriter::is_wanted`.
        self.reader.shared.is_wanted.store(true, Ordering::Relaxed);
        self.renew().map(drop)
    }

    /// Takes the whole state. Returns how many records were lost or dropped for it.
    fn renew(&mut self) -> Result<u64, Ended> {
        let state = self.ask()?;
        let mut dropped = 0;
        while self.reader.ring.peek().is_ok_and(|record| record.at() <= state.at) {
            let is_line = |record| !matches!(record, Record::Tasks(_));
            dropped += u64::from(self.reader.ring.pop().is_ok_and(is_line));
        }
        self.known = Known::from(*state);
        // Relaxed: a count; one that is added after the answer is seen next time.
        Ok(dropped + self.reader.shared.lost.swap(0, Ordering::Relaxed))
    }

    fn ask(&mut self) -> Result<Box<FeedState>, Ended> {
        // Relaxed: set again by what happens after the answer, see `FeedWriter::note_threads`.
        self.reader.shared.has_changed.store(false, Ordering::Relaxed);
        self.asked = Instant::now();
        (self.ask)().ok_or(Ended)
    }

    /// Passes on what came.
    fn relay(&mut self) -> Result<(), Ended> {
        // Relaxed: a count, see `FeedWriter::push`.
        let mut served = Ok(());
        if self.reader.shared.lost.load(Ordering::Relaxed) > 0 {
            let renewed = self.renew();
            let count = *renewed.as_ref().unwrap_or(&0);
            self.subscribers.iter_mut().for_each(|subscriber| subscriber.lost += count);
            served = renewed.map(drop);
        }
        // At most what a full ring holds, so that newcomers are served however much is decided.
        for _ in 0..super::RING_RECORDS {
            let Ok(record) = self.reader.ring.pop() else { break };
            match record {
                // What was decided before the end is told, whether or not the tasks can be asked for.
                Record::Tasks(at) => served = served.and(self.renew_tasks(Some(at))),
                Record::Decision(made) => {
                    self.known.decide(&made);
                    self.send(&Update::Decision(made));
                }
                Record::Affinity(planned) => {
                    self.known.at = self.known.at.max(planned.at_ns);
                    self.known.affinities.insert(planned.task, planned);
                    self.send(&Update::PlanAffinity(planned));
                }
            }
        }
        // Relaxed: see `FeedWriter::note_threads`.
        let has_changed = self.reader.shared.has_changed.load(Ordering::Relaxed);
        if has_changed && self.asked.elapsed() >= THREADS_EVERY {
            served = served.and(self.renew_tasks(None));
        }
        self.catch_up();
        served
    }

    /// Asks for the tasks, and sends those that changed: since `at`, if it is known.
    fn renew_tasks(&mut self, at: Option<Nanos>) -> Result<(), Ended> {
        let state = self.ask()?;
        let at = at.unwrap_or(state.at);
        let mut before = std::mem::take(&mut self.known.tasks);
        self.known.at = self.known.at.max(at);
        for task in state.tasks {
            let known = before.remove(&task.id);
            let since = known.as_ref().map_or(at, |known| known.at_ns);
            let mut task = TaskUpdate { at_ns: since, ..task };
            if known.as_ref() != Some(&task) {
                task.at_ns = at;
                self.send(&Update::Task(task.clone()));
            }
            self.known.tasks.insert(task.id, task);
        }
        for id in before.into_keys() {
            self.known.affinities.remove(&id);
            self.send(&Update::TaskLeft(TaskLeft { at_ns: at, id }));
        }
        Ok(())
    }

    fn send(&mut self, update: &Update) {
        let line = Lines::from(line(update));
        self.subscribers.iter_mut().for_each(|subscriber| subscriber.send(&line));
    }

    /// Sends the number of lost lines and the state to subscribers that lost lines and read again.
    fn catch_up(&mut self) {
        for subscriber in &mut self.subscribers {
            if subscriber.lost > 0 && subscriber.lines.len() <= LINES_MAX / 2 {
                let lines = self.known.lines(Some(subscriber.lost));
                if subscriber.lines.try_send(lines).is_ok() {
                    subscriber.lost = 0;
                }
            }
        }
    }
}

impl Queue {
    fn send(&mut self, line: &Lines) {
        // After a loss come first its count and the state, see `catch_up`.
        if self.lost > 0 || matches!(self.lines.try_send(line.clone()), Err(TrySendError::Full(_)))
        {
            self.lost += 1;
        }
    }
}

impl Known {
    fn from(state: FeedState) -> Known {
        Known {
            at: state.at,
            tasks: state.tasks.into_iter().map(|task| (task.id, task)).collect(),
            cores: state.cores.into_iter().map(|core| (core.core, core)).collect(),
            affinities: state.affinities.into_iter().map(|plan| (plan.task, plan)).collect(),
        }
    }

    fn decide(&mut self, made: &quell_control::subscribe::DecisionUpdate) {
        let quell_model::CoreDecision { core, to: owner, mode, reason, .. } = made.decision;
        self.at = self.at.max(made.at_ns);
        self.cores.insert(core, CoreUpdate { at_ns: made.at_ns, core, owner, mode, reason });
    }

    /// All of it, behind the count of lines that were lost.
    fn lines(&self, lost: Option<u64>) -> Lines {
        let at_ns = self.at;
        let lost = lost.map(|count| Update::Lost(Lost { at_ns, count }));
        let tasks = self.tasks.values().cloned().map(Update::Task);
        let cores = self.cores.values().copied().map(Update::Core);
        let affinities = self.affinities.values().copied().map(Update::PlanAffinity);
        let updates = lost.into_iter().chain(tasks).chain(cores).chain(affinities);
        updates.map(|update| line(&update)).collect::<String>().into()
    }
}

fn line(update: &Update) -> String {
    // Maps with keys that are no strings are what it refuses: there are none.
    let mut line = serde_json::to_string(update).unwrap_or_default();
    debug_assert!(!line.is_empty(), "no line for {update:?}");
    line.push('\n');
    line
}
