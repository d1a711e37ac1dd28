//! From the one host state to what a picture shows: series of each core, spans of threads, marks of wasted cores.

use std::sync::Arc;

use quell_model::{
    Certainty, CoreId, CoreSet, Event, Meta, MoveCause, Nanos, Pass, Runner, Search,
};
use quell_model::{TaskNames, Topology, What};
use quell_trace::host::{HostCore, HostState, HostThread, HostVisitor, Occupant, ThreadState};
use quell_trace::host::{WastedCores, WastedTime};

/// A thread by the order of its appearance; 0 is every core's idle thread. A tid that is used again after its thread
/// ended is a thread of its own.
pub type ThreadIndex = u32;

/// The idle thread, and a thread that is not known.
pub const NOBODY: ThreadIndex = 0;

/// What a reader of a trace wants to know. Times are nanoseconds since the first event. They never run backwards, but for
/// the begin of a span and for what shows later that switches were missed; nothing reaches back beyond [`Replay::cut`].
/// Cores are positions in the topology.
pub trait Watch {
    /// Whether it wants spans of threads that delay others, and wake-ups beside idle cores: both cost time.
    const FOLLOWS_THREADS: bool = true;

    /// A run queue has a new size: threads that want the core.
    fn size(&mut self, _core: usize, _at: u64, _size: u32) {}
    /// A run queue has a new load: the sum of the weights in it.
    fn load(&mut self, _core: usize, _at: u64, _weight: u64) {}
    /// A core went to another thread.
    fn running(&mut self, _core: usize, _at: u64, _thread: ThreadIndex) {}
    /// The marks of a core: [`WASTED`], [`ALLOWED`], [`LOST`], [`OFFLINE`].
    fn marks(&mut self, _core: usize, _at: u64, _marks: u8) {}
    /// Events of a core were lost in this span.
    fn gap(&mut self, _core: usize, _from: u64, _to: u64) {}
    /// A thread had a core.
    fn ran(&mut self, _core: usize, _thread: ThreadIndex, _from: u64, _to: u64) {}
    /// A thread waited on one core.
    fn waited(&mut self, _wait: &Wait) {}
    /// A thread got a core at this time, so long after its wake-up began.
    fn latency(&mut self, _thread: ThreadIndex, _at: u64, _ns: u64) {}
    /// One thread ran while another waited for the same core.
    fn delayed(&mut self, _thread: ThreadIndex, _by: ThreadIndex, _from: u64, _to: u64) {}
    /// A thread was moved.
    fn moved(
        &mut self,
        _at: u64,
        _thread: ThreadIndex,
        _from: usize,
        _to: usize,
        _cause: MoveCause,
    ) {
    }
    /// A thread was woken onto a busy core while one that it may use idled.
    fn bad_wakeup(&mut self, _at: u64, _thread: ThreadIndex, _onto: usize, _idle: usize) {}
    /// A search looked at these cores.
    fn considered(
        &mut self,
        _at: u64,
        _by: usize,
        _search: Search,
        _observed: bool,
        _cores: &CoreSet,
    ) {
    }
    /// A pass of the load balancer on behalf of a core ended.
    fn passed(&mut self, _at: u64, _core: usize, _pass: &Pass) {}
    /// The recording says something in words, of a span or of an instant.
    fn note(&mut self, _span: (u64, u64), _core: usize, _kind: Note, _text: &Arc<str>) {}
    /// A thread appeared, or has a new name.
    fn named(&mut self, _thread: ThreadIndex, _as: &Runner) {}
}

/// A mark of a core: it idles while a thread that may use it waits behind another ([`WastedCores::wasted`]).
pub const WASTED: u8 = 1;
/// A mark of a core: events were lost, its state is not known.
pub const LOST: u8 = 2;
/// A mark of a core: it is offline.
pub const OFFLINE: u8 = 4;
/// A mark of a core: as [`WASTED`], and a policy allows it ([`WastedCores::allowed_by_policy`]).
pub const ALLOWED: u8 = 8;

/// What kind of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// [`What::Violation`].
    Violation,
    /// [`What::Decision`], and what stands for it in files of older versions.
    Decision,
}

/// A thread's waiting on one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The thread.
    pub thread: ThreadIndex,
    /// Its core, by position.
    pub core: usize,
    /// Its begin, in nanoseconds since the first event.
    pub from: u64,
    /// Its end.
    pub to: u64,
}

/// Follows events and reports to a [`Watch`] what they mean.
pub struct Replay {
    host: HostState,
    wasted: WastedTime,
    /// The cores that are marked as wasted or allowed.
    marked: WastedCores,
    shown: Shown,
    tasks: TaskNames,
}

/// What was reported so far.
struct Shown {
    topology: Topology,
    origin: Nanos,
    /// By the slot of the host's table.
    threads: Vec<ThreadIndex>,
    /// The index of the next thread.
    next: ThreadIndex,
    /// By core.
    marks: Vec<u8>,
}

impl Replay {
    /// Before the first event of a recording.
    pub fn new(meta: &Meta) -> Replay {
        let shown = Shown {
            topology: meta.topology.clone(),
            origin: Nanos::ZERO,
            threads: Vec::new(),
            next: NOBODY + 1,
            marks: vec![0; meta.topology.len()],
        };
        Replay {
            host: HostState::new(meta),
            wasted: WastedTime::default(),
            marked: WastedCores::default(),
            shown,
            tasks: TaskNames::default(),
        }
    }

    /// The time of the first event, `None` before it.
    pub fn origin(&self) -> Option<Nanos> {
        self.host.origin()
    }

    /// The time of the last event, in nanoseconds since the first.
    pub fn now(&self) -> u64 {
        self.shown.time(self.host.now())
    }

    /// Threads seen, the idle one included.
    pub fn threads(&self) -> usize {
        self.shown.next as usize
    }

    /// Takes the next event. What names a core outside of the topology is passed over.
    pub fn push(&mut self, event: &Event, watch: &mut impl Watch) {
        if self.host.origin().is_none() {
            self.shown.origin = event.at;
        }
        self.mark_wasted(event.at, watch);
        self.host.push(event, &mut Visitor { watch, shown: &mut self.shown });
        if let Some(core) = self.host.topology().position(event.core) {
            self.describe(core, &event.what, watch);
        }
    }

    /// Reports what was waited until now, so that what follows is apart from it.
    pub fn cut(&mut self, watch: &mut impl Watch) {
        self.host.cut(&mut Visitor { watch, shown: &mut self.shown });
    }

    /// Ends what still runs or waits.
    pub fn finish(&mut self, watch: &mut impl Watch) {
        self.host.finish(&mut Visitor { watch, shown: &mut self.shown });
    }

    /// Lets time pass until `to`: the marks of wasted cores are known once their state has lasted.
    fn mark_wasted(&mut self, to: Nanos, watch: &mut impl Watch) {
        if !self.wasted.advance(&self.host, to) {
            return;
        }
        let (before, now) = (self.marked, *self.wasted.cores());
        self.marked = now;
        let either = |cores: &WastedCores| cores.wasted.union(&cores.allowed_by_policy);
        let at = self.shown.time(self.host.now());
        for id in either(&before).union(&either(&now)).iter() {
            let Some(core) = self.host.topology().position(id) else { continue };
            let mut marks = self.shown.marks[core] & !(WASTED | ALLOWED);
            marks |= if now.wasted.contains(id) { WASTED } else { 0 };
            marks |= if now.allowed_by_policy.contains(id) { ALLOWED } else { 0 };
            self.shown.mark(core, marks, at, watch);
        }
    }

    /// What an event says that is no state of the host.
    fn describe(&mut self, core: usize, what: &What, watch: &mut impl Watch) {
        let now = self.now();
        let position = |id: &CoreId| self.host.topology().position(*id);
        match what {
            What::Considered { by, search, cores, certainty } => {
                if let Some(by) = position(by) {
                    let observed = *certainty == Certainty::Observed;
                    watch.considered(now, by, *search, observed, cores);
                }
            }
            What::Pass(pass) => {
                if let Some(core) = position(&pass.core) {
                    watch.passed(now, core, pass);
                }
            }
            What::Task(_) => self.tasks.take(what),
            What::Decision(decision) => {
                let core = position(&decision.core).unwrap_or(core);
                let line = decision.line(|id| self.tasks.name(id));
                watch.note((now, now), core, Note::Decision, &line.into());
            }
            What::Annotation(text) => watch.note((now, now), core, Note::Decision, text),
            What::Violation(found) => {
                let at = |time: Nanos| self.shown.time(time).min(now);
                let core = position(&found.core).unwrap_or(core);
                let span = (at(found.from), at(found.until));
                watch.note(span, core, Note::Violation, &found.text);
            }
            _ => {}
        }
    }
}

impl Shown {
    /// A time in nanoseconds since the first event.
    fn time(&self, at: Nanos) -> u64 {
        at.since(self.origin).0
    }

    fn index(&self, thread: &HostThread) -> ThreadIndex {
        let index = self.threads.get(thread.index.index()).copied().unwrap_or(NOBODY);
        debug_assert_ne!(index, NOBODY, "thread {} has not appeared", thread.tid());
        index
    }

    fn occupant(&self, occupant: Occupant<'_>) -> ThreadIndex {
        occupant.thread().map_or(NOBODY, |thread| self.index(thread))
    }

    fn mark(&mut self, core: usize, marks: u8, at: u64, watch: &mut impl Watch) {
        if std::mem::replace(&mut self.marks[core], marks) != marks {
            watch.marks(core, at, marks);
        }
    }
}

/// Translates what the host reports for a [`Watch`].
struct Visitor<'r, W> {
    watch: &'r mut W,
    shown: &'r mut Shown,
}

impl<W: Watch> HostVisitor for Visitor<'_, W> {
    const TRACKS_DELAYS: bool = W::FOLLOWS_THREADS;
    const TRACKS_PLACEMENT: bool = W::FOLLOWS_THREADS;

    fn thread_appeared(&mut self, thread: &HostThread, _at: Nanos) {
        let slot = thread.index.index();
        if self.shown.threads.len() <= slot {
            self.shown.threads.resize(slot + 1, NOBODY);
        }
        self.shown.threads[slot] = self.shown.next;
        self.shown.next += 1;
    }

    fn thread_described(&mut self, thread: &HostThread, _at: Nanos) {
        self.watch.named(self.shown.index(thread), &thread.info);
    }

    fn thread_span(&mut self, thread: &HostThread, until: Nanos) {
        if thread.state == ThreadState::Waiting {
            let (from, to) = (self.shown.time(thread.since), self.shown.time(until));
            let thread_index = self.shown.index(thread);
            self.watch.waited(&Wait { thread: thread_index, core: thread.core, from, to });
        }
    }

    fn wakeup_latency(&mut self, thread: &HostThread, from: Nanos, at: Nanos) {
        let index = self.shown.index(thread);
        self.watch.latency(index, self.shown.time(at), at.since(from).0);
    }

    fn woken_beside_idle(
        &mut self,
        thread: &HostThread,
        onto: &HostCore,
        idle: &CoreSet,
        at: Nanos,
    ) {
        let index = self.shown.index(thread);
        if let Some(first) = idle.first().and_then(|id| self.shown.topology.position(id)) {
            self.watch.bad_wakeup(self.shown.time(at), index, onto.index, first);
        }
    }

    fn delayed(&mut self, thread: &HostThread, by: &HostThread, from: Nanos, to: Nanos) {
        let (thread, by) = (self.shown.index(thread), self.shown.index(by));
        self.watch.delayed(thread, by, self.shown.time(from), self.shown.time(to));
    }

    fn migrated(
        &mut self,
        thread: Option<&HostThread>,
        from: usize,
        to: usize,
        cause: MoveCause,
        at: Nanos,
    ) {
        let thread = thread.map_or(NOBODY, |thread| self.shown.index(thread));
        self.watch.moved(self.shown.time(at), thread, from, to, cause);
    }

    fn core_span(
        &mut self,
        core: &HostCore,
        occupant: Occupant<'_>,
        from: Nanos,
        to: Nanos,
        _steal: Nanos,
    ) {
        if let Some(thread) = occupant.thread() {
            let index = self.shown.index(thread);
            self.watch.ran(core.index, index, self.shown.time(from), self.shown.time(to));
        }
    }

    fn core_switched(&mut self, core: &HostCore, occupant: Occupant<'_>, at: Nanos) {
        let thread = self.shown.occupant(occupant);
        self.watch.running(core.index, self.shown.time(at), thread);
    }

    fn queue_size(&mut self, core: &HostCore, at: Nanos) {
        self.watch.size(core.index, self.shown.time(at), core.runnable.unwrap_or_default());
    }

    fn queue_load(&mut self, core: &HostCore, at: Nanos) {
        self.watch.load(core.index, self.shown.time(at), core.load_weight);
    }

    fn core_online(&mut self, core: &HostCore, at: Nanos) {
        let marks = self.shown.marks[core.index] & !OFFLINE;
        let marks = if core.is_online { marks } else { marks | OFFLINE };
        self.shown.mark(core.index, marks, self.shown.time(at), self.watch);
    }

    fn core_lost(&mut self, core: &HostCore, from: Nanos, at: Nanos, _count: u64) {
        self.watch.gap(core.index, self.shown.time(from), self.shown.time(at));
        let marks = self.shown.marks[core.index] | LOST;
        self.shown.mark(core.index, marks, self.shown.time(at), self.watch);
    }

    fn core_known(&mut self, core: &HostCore, at: Nanos) {
        let marks = self.shown.marks[core.index] & !LOST;
        self.shown.mark(core.index, marks, self.shown.time(at), self.watch);
    }
}
