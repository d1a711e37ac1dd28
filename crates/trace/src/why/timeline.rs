//! Which thread had each core, and what each thread of the service did, from the changes of a [`HostState`].

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use quell_model::{CoreId, Nanos, Rank, Runner, ThreadName, Topology};

use super::from_events::Follow;
use crate::host::{
    HostCore, HostState, HostThread, HostVisitor, Occupant, ThreadIndex, ThreadState,
};

/// A span of time, its end not included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub from: Nanos,
    pub to: Nanos,
}

impl Span {
    /// What two spans share.
    pub fn overlap(self, other: Span) -> Option<Span> {
        let span = Span { from: self.from.max(other.from), to: self.to.min(other.to) };
        (span.from < span.to).then_some(span)
    }

    pub fn length(self) -> Nanos {
        self.to.since(self.from)
    }
}

/// One thread's time on a core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunInterval {
    pub span: Span,
    /// As it was described when it got the core.
    pub thread: Runner,
    /// What the hypervisor took of it.
    pub steal: Nanos,
}

/// What happened on one core. Everything is in the order of time and without overlaps.
#[derive(Debug, Default)]
pub(crate) struct CoreLine {
    pub runs: Vec<RunInterval>,
    pub softirqs: Vec<Span>,
    pub interrupts: Vec<Span>,
    /// When its events were lost.
    pub unknown: Vec<Span>,
}

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimelineState {
    Running,
    /// Runnable, or being woken.
    Waiting,
    Sleeping,
    Blocked,
    Stopped,
    /// The events do not show it.
    Unknown,
}

impl TimelineState {
    /// `None` for a state in which a thread neither works nor waits for work.
    fn of(state: ThreadState) -> Option<TimelineState> {
        match state {
            ThreadState::Running => Some(TimelineState::Running),
            ThreadState::Waiting | ThreadState::Waking => Some(TimelineState::Waiting),
            ThreadState::Sleeping | ThreadState::Delayed => Some(TimelineState::Sleeping),
            ThreadState::Blocked => Some(TimelineState::Blocked),
            ThreadState::Stopped => Some(TimelineState::Stopped),
            ThreadState::Unknown => Some(TimelineState::Unknown),
            ThreadState::New
            | ThreadState::Throttled
            | ThreadState::Migrating
            | ThreadState::Exited => None,
        }
    }
}

/// A time in which a thread did one thing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub span: Span,
    pub state: TimelineState,
    /// Where it ran, or got to run in the end.
    pub core: CoreId,
    /// Of a wait at its begin.
    pub rank: Rank,
}

/// Which thread had each core, and what each followed thread did.
#[derive(Debug)]
pub struct Timeline {
    pub(crate) cores: BTreeMap<CoreId, CoreLine>,
    /// By the thread's number; stretches in the order of time.
    pub(crate) threads: BTreeMap<i32, Vec<Stretch>>,
    pub(crate) span: Span,
    /// When events of any core were lost; in the order of time, without overlaps.
    pub(super) unknown: Vec<Span>,
    /// Whether all time that softirqs and interrupts took is known.
    pub(super) explains_interrupts: bool,
}

impl Timeline {
    /// Whether all time that softirqs and interrupts took is known. If not, time that nothing else explains is unknown.
    pub fn explains_interrupts(&self) -> bool {
        self.explains_interrupts
    }
}

/// A bracket of which the end is still to come.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bracket {
    Softirq,
    Interrupt,
}

/// Builds a [`Timeline`] from what a [`HostState`] reports.
#[derive(Debug)]
pub(super) struct Builder {
    pub follow: Follow,
    /// By index.
    cores: Vec<OpenCore>,
    /// By slot; `None` for threads that are not followed.
    open: Vec<Option<OpenThread>>,
    ended: BTreeMap<i32, Vec<Stretch>>,
    /// What is open when the stream ends, ends here.
    until: Nanos,
    /// Run intervals, stretches and brackets so far.
    pub held: usize,
    /// Lost events so far.
    pub lost: u64,
    /// Whether a followed thread ran or waited.
    pub is_found: bool,
}

#[derive(Debug)]
struct OpenCore {
    id: CoreId,
    line: CoreLine,
    /// The thread that has it.
    thread: Runner,
    softirq: Option<Nanos>,
    interrupt: Option<Nanos>,
    lost_since: Option<Nanos>,
}

/// A followed thread.
#[derive(Debug)]
struct OpenThread {
    followed_since: Nanos,
    stretches: Vec<Stretch>,
    /// A wait that may go on, on another core too.
    wait: Option<Stretch>,
    /// Its priority when it began to wait, or will.
    wait_rank: Rank,
}

impl OpenThread {
    fn new(thread: &HostThread, followed_since: Nanos) -> OpenThread {
        let wait_rank = thread.prio();
        OpenThread { followed_since, stretches: Vec::new(), wait: None, wait_rank }
    }

    fn end_wait(&mut self) {
        self.stretches.extend(self.wait.take());
    }

    /// Takes a stretch. A wait is one, however often the thread is moved, and belongs to the core on which it ends.
    fn take(&mut self, stretch: Stretch) {
        if stretch.state == TimelineState::Waiting {
            match &mut self.wait {
                Some(wait) if wait.span.to == stretch.span.from => {
                    (wait.span.to, wait.core) = (stretch.span.to, stretch.core);
                }
                wait => {
                    self.stretches.extend(wait.take());
                    *wait = Some(Stretch { rank: self.wait_rank, ..stretch });
                }
            }
            return;
        }
        if let Some(wait) = &mut self.wait
            && stretch.state == TimelineState::Running
        {
            wait.core = stretch.core;
        }
        self.end_wait();
        let last = self.stretches.last().map_or(Nanos::ZERO, |last| last.span.to);
        debug_assert!(last <= stretch.span.from, "a thread is in two states at once");
        self.wait_rank = stretch.rank;
        self.stretches.push(stretch);
    }
}

impl Builder {
    pub fn new(topology: &Topology, follow: Follow) -> Builder {
        let open = |core: &quell_model::Core| OpenCore {
            id: core.id,
            line: CoreLine::default(),
            thread: idle(),
            softirq: None,
            interrupt: None,
            lost_since: None,
        };
        Builder {
            follow,
            cores: topology.cores().iter().map(open).collect(),
            open: Vec::new(),
            ended: BTreeMap::new(),
            until: Nanos::MAX,
            held: 0,
            lost: 0,
            is_found: false,
        }
    }

    /// Whether a thread is followed.
    pub fn follows(&self, thread: &HostThread) -> bool {
        self.open.get(thread.index.index()).is_some_and(Option::is_some)
    }

    /// Follows the threads that are chosen by now.
    pub fn choose_anew(&mut self, host: &HostState) {
        host.threads().for_each(|thread| self.thread_described(thread, host.now()));
    }

    /// A softirq or interrupt begins or ends.
    pub fn bracket(&mut self, core: usize, kind: Bracket, begins: bool, at: Nanos) {
        let core = &mut self.cores[core];
        let (open, spans) = match kind {
            Bracket::Softirq => (&mut core.softirq, &mut core.line.softirqs),
            Bracket::Interrupt => (&mut core.interrupt, &mut core.line.interrupts),
        };
        if begins {
            *open = Some(at);
        } else if let Some(from) = open.take() {
            spans.push(Span { from, to: at.max(from) });
            self.held += 1;
        }
    }

    /// Forgets everything before now.
    pub fn clear(&mut self) {
        for core in &mut self.cores {
            core.line = CoreLine::default();
            (core.softirq, core.interrupt) = (None, None);
        }
        for open in self.open.iter_mut().flatten() {
            open.stretches.clear();
            open.wait = None;
        }
        self.ended.clear();
        (self.held, self.lost) = (0, 0);
    }

    /// The timeline, of which this span is asked about.
    pub fn finish(
        mut self,
        mut host: HostState,
        span: Span,
        explains_interrupts: bool,
    ) -> Timeline {
        self.until = span.to;
        host.finish(&mut self);
        let ended = host.now();
        host.threads().for_each(|thread| self.thread_ended(thread, ended));
        let mut timeline = Timeline {
            cores: BTreeMap::new(),
            threads: self.ended,
            span,
            unknown: Vec::new(),
            explains_interrupts,
        };
        for core in self.cores {
            let mut line = core.line;
            let open = |from: Nanos| Span { from, to: span.to.max(from) };
            line.softirqs.extend(core.softirq.map(open));
            line.interrupts.extend(core.interrupt.map(open));
            line.unknown.extend(core.lost_since.map(|from| Span { from, to: ended.max(from) }));
            line.unknown.retain(|span| span.from < span.to);
            timeline.unknown.extend(&line.unknown);
            timeline.cores.insert(core.id, line);
        }
        timeline.unknown = joined(timeline.unknown);
        timeline
    }

    fn open(&mut self, index: ThreadIndex) -> Option<&mut OpenThread> {
        self.open.get_mut(index.index())?.as_mut()
    }
}

impl HostVisitor for Builder {
    fn thread_appeared(&mut self, thread: &HostThread, at: Nanos) {
        let slot = thread.index.index();
        if self.open.len() <= slot {
            self.open.resize_with(slot + 1, || None);
        }
        let is_followed = self.follow.follows(&thread.info);
        self.open[slot] = is_followed.then(|| OpenThread::new(thread, at));
    }

    fn thread_described(&mut self, thread: &HostThread, at: Nanos) {
        match (self.follow.follows(&thread.info), self.follows(thread)) {
            (true, false) => self.open[thread.index.index()] = Some(OpenThread::new(thread, at)),
            (false, true) => self.thread_ended(thread, at),
            _ => {}
        }
    }

    fn thread_ended(&mut self, thread: &HostThread, _: Nanos) {
        let open = self.open.get_mut(thread.index.index()).and_then(Option::take);
        if let Some(mut open) = open {
            open.end_wait();
            if !open.stretches.is_empty() {
                // Few numbers come twice: the stretches are rarely moved.
                match self.ended.entry(thread.tid()) {
                    Entry::Vacant(place) => {
                        place.insert(open.stretches);
                    }
                    Entry::Occupied(place) => place.into_mut().append(&mut open.stretches),
                }
            }
        }
    }

    fn thread_span(&mut self, thread: &HostThread, until: Nanos) {
        let core = self.cores[thread.core].id;
        let to = until.min(self.until);
        let Some(open) = self.open(thread.index) else { return };
        let Some(state) = TimelineState::of(thread.state) else { return open.end_wait() };
        let span = Span { from: thread.since.max(open.followed_since), to };
        if span.from < span.to {
            open.take(Stretch { span, state, core, rank: thread.prio() });
            self.held += 1;
        }
    }

    fn waiter_changed(&mut self, thread: &HostThread, _: Nanos) {
        let core = self.cores[thread.core].id;
        let Some(open) = self.open(thread.index) else { return };
        match thread.state {
            ThreadState::Waiting | ThreadState::Waking => self.is_found = true,
            state => {
                if let Some(wait) = open.wait.as_mut().filter(|_| state == ThreadState::Running) {
                    wait.core = core;
                }
                // What it waits later is another wait, even where nothing shows how long it ran.
                open.end_wait();
            }
        }
    }

    fn wakeup_latency(&mut self, thread: &HostThread, from: Nanos, at: Nanos) {
        let core = self.cores[thread.core].id;
        let Some(open) = self.open(thread.index).filter(|_| from == at) else { return };
        // A wait of no length is one, and no span.
        let span = Span { from, to: at };
        open.take(Stretch { span, state: TimelineState::Waiting, core, rank: thread.prio() });
        self.held += 1;
    }

    fn core_span(
        &mut self,
        core: &HostCore,
        has: Occupant<'_>,
        from: Nanos,
        to: Nanos,
        steal: Nanos,
    ) {
        let span = Span { from, to: to.min(self.until) };
        if !matches!(has, Occupant::Unknown) && span.from < span.to {
            let open = &mut self.cores[core.index];
            let last = open.line.runs.last().map_or(Nanos::ZERO, |last| last.span.to);
            debug_assert!(last <= span.from, "core {} runs two threads at once", core.id);
            open.line.runs.push(RunInterval { span, thread: open.thread, steal });
            self.held += 1;
        }
    }

    fn core_switched(&mut self, core: &HostCore, occupant: Occupant<'_>, _: Nanos) {
        let thread = occupant.thread();
        self.is_found |= thread.is_some_and(|thread| self.follows(thread));
        self.cores[core.index].thread = thread.map_or_else(idle, |thread| thread.info);
    }

    fn core_lost(&mut self, core: &HostCore, from: Nanos, _: Nanos, count: u64) {
        self.lost = self.lost.saturating_add(count);
        self.cores[core.index].lost_since.get_or_insert(from);
        // The other end of a bracket may be among what was lost.
        self.bracket(core.index, Bracket::Softirq, false, from);
        self.bracket(core.index, Bracket::Interrupt, false, from);
    }

    fn core_known(&mut self, core: &HostCore, at: Nanos) {
        let core = &mut self.cores[core.index];
        let since = core.lost_since.take();
        core.line.unknown.extend(since.map(|from| Span { from, to: at.max(from) }));
    }
}

fn idle() -> Runner {
    Runner { thread: 0, process: 0, rank: Rank::NOBODY, name: ThreadName::default() }
}

/// The same time in the order of time and without overlaps.
fn joined(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_by_key(|span| span.from);
    let mut joined: Vec<Span> = Vec::new();
    for span in spans {
        match joined.last_mut() {
            Some(last) if span.from <= last.to => last.to = last.to.max(span.to),
            _ => joined.push(span),
        }
    }
    joined
}
