//! From transitions to which thread had each core, and what each thread of the service did.

use std::collections::{BTreeMap, HashMap};

use quell_model::{CoreId, Left, Nanos, Rank, Runner};

/// A wake-up that comes this shortly before its thread leaves the core belongs to that sleep: the waker and
/// the sleeper met.
const WAKES_ITS_SLEEP: Nanos = Nanos::from_micros(50);

/// What happened on a core, as far as attribution works on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreEvent {
    /// As [`What::Switch`](quell_model::What::Switch).
    Switched {
        /// Thread that got the core.
        next: Runner,
        /// Thread that left it, by number.
        left: i32,
        /// How that one left.
        how: Left,
        /// Time that the hypervisor took from the core since its last switch.
        stolen: Nanos,
    },
    /// A thread became runnable.
    Woken(Runner),
    /// A softirq began or ended.
    Softirq {
        /// `true` at its begin.
        begins: bool,
    },
    /// The handler of a device interrupt began or ended.
    Interrupt {
        /// `true` at its begin.
        begins: bool,
    },
}

/// A [`CoreEvent`] with its time and core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// On CLOCK_MONOTONIC.
    pub at: Nanos,
    /// The core; of a wake-up that on which the thread ran last.
    pub core: CoreId,
    /// What happened.
    pub event: CoreEvent,
}

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
pub(crate) struct Turn {
    pub span: Span,
    pub who: Runner,
    /// What the hypervisor took of it.
    pub stolen: Nanos,
}

/// What happened on one core.
#[derive(Debug, Default)]
pub(crate) struct CoreLine {
    pub turns: Vec<Turn>,
    pub softirqs: Vec<Span>,
    pub interrupts: Vec<Span>,
    /// When its events were lost; in the order of time, without overlaps.
    pub unknown: Vec<Span>,
}

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    Waiting,
    Sleeping,
    Blocked,
    Stopped,
}

/// A time in which a thread did one thing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub span: Span,
    pub state: State,
    /// Where it ran, or got to run in the end.
    pub core: CoreId,
    pub rank: Rank,
}

/// Who had each core, and what each thread of some processes did.
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
    /// Marks time in which cores lost events, and says whether softirqs and interrupts are known at all.
    pub(super) fn set_unknown(&mut self, lost: Vec<(CoreId, Span)>, explains_interrupts: bool) {
        self.explains_interrupts = explains_interrupts;
        self.unknown = joined(lost.iter().map(|(_, span)| *span).collect());
        for (core, span) in lost {
            self.cores.entry(core).or_default().unknown.push(span);
        }
        for line in self.cores.values_mut() {
            line.unknown = joined(std::mem::take(&mut line.unknown));
        }
    }

    /// Builds it from what was recorded between two times, in any order. Threads of `processes` are followed.
    pub fn new(
        mut transitions: Vec<Transition>,
        processes: &[i32],
        from: Nanos,
        to: Nanos,
    ) -> Timeline {
        transitions.sort_by_key(|transition| transition.at);
        let mut builder = Builder { processes, cores: HashMap::new(), threads: HashMap::new() };
        let mut timeline = Timeline {
            cores: BTreeMap::new(),
            threads: BTreeMap::new(),
            span: Span { from, to },
            unknown: Vec::new(),
            explains_interrupts: true,
        };
        for transition in &transitions {
            builder.take(transition, &mut timeline);
        }
        builder.end(to, &mut timeline);
        timeline
    }
}

/// What goes on at the present of the builder.
struct Builder<'p> {
    processes: &'p [i32],
    cores: HashMap<CoreId, OpenCore>,
    threads: HashMap<i32, OpenThread>,
}

#[derive(Default)]
struct OpenCore {
    turn: Option<(Nanos, Runner)>,
    softirq: Option<Nanos>,
    interrupt: Option<Nanos>,
}

struct OpenThread {
    since: Nanos,
    state: State,
    core: CoreId,
    who: Runner,
    /// When it was woken although it ran.
    woken: Option<Nanos>,
}

impl Builder<'_> {
    fn take(&mut self, transition: &Transition, to: &mut Timeline) {
        let Transition { at, core, event } = *transition;
        let open = self.cores.entry(core).or_default();
        match event {
            CoreEvent::Switched { next, left, how, stolen } => {
                if let Some((since, who)) = open.turn.replace((at, next)) {
                    let (mut from, mut had) = (since, who);
                    if who.thread != left
                        && let Some((unseen, thread)) = self.unseen_switch(left, &who, since)
                    {
                        let span = Span { from: since, to: unseen };
                        let turn = Turn { span, who, stolen: Nanos::ZERO };
                        to.cores.entry(core).or_default().turns.push(turn);
                        self.turn(&thread, State::Running, unseen, core, to);
                        (from, had) = (unseen, thread);
                    }
                    let turn = Turn { span: Span { from, to: at }, who: had, stolen };
                    to.cores.entry(core).or_default().turns.push(turn);
                }
                self.leave(left, how, at, core, to);
                if self.processes.contains(&next.process) {
                    self.turn(&next, State::Running, at, core, to);
                }
            }
            CoreEvent::Woken(who) if self.processes.contains(&who.process) => {
                match self.threads.get_mut(&who.thread) {
                    Some(thread) if thread.state == State::Running => thread.woken = Some(at),
                    Some(thread) if thread.state == State::Waiting => {}
                    _ => self.turn(&who, State::Waiting, at, core, to),
                }
            }
            CoreEvent::Woken(_) => {}
            CoreEvent::Softirq { begins } => {
                let spans = &mut to.cores.entry(core).or_default().softirqs;
                spans.extend(bracket(&mut open.softirq, begins, at));
            }
            CoreEvent::Interrupt { begins } => {
                let spans = &mut to.cores.entry(core).or_default().interrupts;
                spans.extend(bracket(&mut open.interrupt, begins, at));
            }
        }
    }

    /// When a followed thread got the core that it leaves now, where the record shows somebody else there
    /// since some time (some kernels do not tell the switches from every process): if it outranks that one, as
    /// soon as it was woken.
    fn unseen_switch(&self, left: i32, shown: &Runner, since: Nanos) -> Option<(Nanos, Runner)> {
        let thread = self.threads.get(&left)?;
        let outranks = thread.who.rank < shown.rank;
        (outranks && thread.state != State::Running).then(|| (since.max(thread.since), thread.who))
    }

    /// A thread leaves the core.
    fn leave(&mut self, thread: i32, how: Left, at: Nanos, core: CoreId, to: &mut Timeline) {
        let Some(open) = self.threads.get(&thread) else { return };
        let woken = open.woken.is_some_and(|woken| at.since(woken) <= WAKES_ITS_SLEEP);
        let state = match how {
            Left::Preempted => State::Waiting,
            _ if woken => State::Waiting,
            Left::Sleeping => State::Sleeping,
            Left::Blocked => State::Blocked,
            Left::Stopped => State::Stopped,
            Left::Dead => {
                self.close(thread, at, None, to);
                self.threads.remove(&thread);
                return;
            }
        };
        let who = open.who;
        self.close(thread, at, None, to);
        self.threads.insert(thread, OpenThread { since: at, state, core, who, woken: None });
    }

    /// A thread is woken or gets a core.
    fn turn(&mut self, who: &Runner, state: State, at: Nanos, core: CoreId, to: &mut Timeline) {
        self.close(who.thread, at, (state == State::Running).then_some(core), to);
        let open = OpenThread { since: at, state, core, who: *who, woken: None };
        self.threads.insert(who.thread, open);
    }

    /// Notes the stretch in progress. A wait belongs to the core on which it ended.
    fn close(&mut self, thread: i32, at: Nanos, ended_on: Option<CoreId>, to: &mut Timeline) {
        let Some(open) = self.threads.get(&thread) else { return };
        let core = ended_on.filter(|_| open.state == State::Waiting).unwrap_or(open.core);
        let span = Span { from: open.since, to: at };
        let stretch = Stretch { span, state: open.state, core, rank: open.who.rank };
        to.threads.entry(thread).or_default().push(stretch);
    }

    /// The record ends: what goes on is cut off.
    fn end(mut self, at: Nanos, to: &mut Timeline) {
        let threads: Vec<i32> = self.threads.keys().copied().collect();
        threads.into_iter().for_each(|thread| self.close(thread, at, None, to));
        for (core, open) in self.cores {
            let line = to.cores.entry(core).or_default();
            if let Some((since, who)) = open.turn {
                let span = Span { from: since, to: at.max(since) };
                line.turns.push(Turn { span, who, stolen: Nanos::ZERO });
            }
            line.softirqs.extend(open.softirq.map(|from| Span { from, to: at.max(from) }));
            line.interrupts.extend(open.interrupt.map(|from| Span { from, to: at.max(from) }));
        }
    }
}

/// The same time in the order of time, without overlaps and empty spans.
fn joined(mut spans: Vec<Span>) -> Vec<Span> {
    spans.retain(|span| span.from < span.to);
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

/// The span that ends, of something that begins and ends.
fn bracket(open: &mut Option<Nanos>, begins: bool, at: Nanos) -> Option<Span> {
    if begins {
        *open = Some(at);
        return None;
    }
    open.take().map(|from| Span { from, to: at })
}
