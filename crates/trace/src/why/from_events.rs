//! From the events of a trace to what attribution works on.
//!
//! Events are taken in the order of time, of a recording, an imported file, a simulation, or live. What they do not
//! contain stays unknown: time in which a core lost events, and, where a source has no softirqs or interrupts, time
//! that these may have taken.

use std::collections::{BTreeMap, BTreeSet};

use quell_model::{
    Activity, CoreId, Event, Keyframe, Left, Meta, Nanos, Rank, Runner, Source, ThreadName, What,
};

use super::timeline::{CoreEvent, Span, Timeline, Transition};

/// Maximum number of transitions that are held: some 400 MB, at least a minute of two busy cores.
const HELD_MAX: usize = 8 << 20;
/// Time before the window that is read too: a queue that is older than this does not count.
const LEAD: Nanos = Nanos::from_millis(200);
/// Process of all followed threads, whatever their own is.
const FOLLOWED: i32 = i32::MIN;

/// Which threads are the service's.
#[derive(Clone, Debug, Default)]
pub struct Follow {
    processes: BTreeSet<i32>,
    comm: Option<ThreadName>,
    task: Option<String>,
}

impl Follow {
    /// The threads of these processes (tgids), and of processes that they fork where the trace has forks.
    pub fn processes(processes: impl IntoIterator<Item = i32>) -> Follow {
        Follow { processes: processes.into_iter().collect(), ..Follow::default() }
    }

    /// The threads with this name (`comm`).
    pub fn comm(name: &str) -> Follow {
        Follow { comm: Some(ThreadName::new(name.as_bytes())), ..Follow::default() }
    }

    /// The threads of this task of Quell, as the trace introduces it.
    pub fn task(name: &str) -> Follow {
        Follow { task: Some(name.to_owned()), ..Follow::default() }
    }

    fn follows(&self, runner: &Runner) -> bool {
        runner.thread != 0
            && (self.processes.contains(&runner.process) || self.comm == Some(runner.name))
    }

    fn take(&mut self, what: &What) {
        if let (What::Task(task), Some(name)) = (what, &self.task)
            && task.name == *name
        {
            self.processes.extend(&task.processes);
        }
    }
}

/// The time that is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its begin; [`Nanos::ZERO`]: that of the trace.
    pub from: Nanos,
    /// Its end; [`Nanos::MAX`]: that of the trace.
    pub to: Nanos,
}

impl Window {
    /// The whole trace.
    pub const ALL: Window = Window { from: Nanos::ZERO, to: Nanos::MAX };
}

/// What a [`Collector`] has of a trace.
#[derive(Debug)]
pub struct Evidence {
    /// Who had each core, and what the followed threads did.
    pub timeline: Timeline,
    /// Events that were lost since the keyframe before the window.
    pub lost: u64,
    /// Whether a followed thread was seen at all.
    pub is_found: bool,
    /// Tasks that the trace introduced, for an error that names them.
    pub tasks: BTreeSet<String>,
}

/// Takes events and keeps what attribution needs.
#[derive(Debug)]
pub struct Collector {
    follow: Follow,
    window: Window,
    held: Vec<Transition>,
    cores: BTreeMap<CoreId, Core>,
    blind: Vec<(CoreId, Span)>,
    /// Followed threads by number, so that a fork of one is followed.
    threads: BTreeSet<i32>,
    tasks: BTreeSet<String>,
    source: Source,
    has_interrupts: bool,
    /// Kinds that were seen: of a text nothing else says whether they were recorded.
    seen: Seen,
    lost: u64,
    first: Option<Nanos>,
    last: Nanos,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    waking: bool,
    softirqs: bool,
    interrupts: bool,
    followed: bool,
}

/// What is known of a core at the present of the stream.
#[derive(Clone, Copy, Debug, Default)]
struct Core {
    running: Option<i32>,
    /// The time of its last event.
    last: Nanos,
    /// The number that its next event has if none is missing.
    expected: Option<u64>,
    /// Since when its state is unknown because events were lost.
    blind: Option<Nanos>,
    softirq: bool,
    interrupt: bool,
}

impl Collector {
    /// For the trace that begins with this Meta.
    pub fn new(meta: &Meta, follow: Follow, window: Window) -> Collector {
        let hook = |name: &str| meta.hooks.iter().any(|hook| hook == name);
        Collector {
            follow,
            window,
            held: Vec::new(),
            cores: BTreeMap::new(),
            blind: Vec::new(),
            threads: BTreeSet::new(),
            tasks: BTreeSet::new(),
            source: meta.source,
            has_interrupts: hook("softirq_entry") && hook("irq_handler_entry"),
            seen: Seen::default(),
            lost: 0,
            first: None,
            last: Nanos::ZERO,
        }
    }

    /// Whether no more is taken: memory for it is full.
    pub fn is_full(&self) -> bool {
        self.held.len() >= HELD_MAX
    }

    /// Whether the window has ended.
    pub fn is_over(&self) -> bool {
        self.last > self.window.to
    }

    /// The time of the last event.
    pub fn last(&self) -> Nanos {
        self.last
    }

    /// Takes the next event.
    pub fn push(&mut self, event: &Event) {
        if self.is_full() {
            return;
        }
        let at = event.at.max(self.last);
        self.first.get_or_insert(at);
        self.last = at;
        self.follow.take(&event.what);
        self.note_losses(event, at);
        self.take(event, at);
        if let Some(core) = self.cores.get_mut(&event.core) {
            core.last = at;
        }
    }

    fn note_losses(&mut self, event: &Event, at: Nanos) {
        let core = self.cores.entry(event.core).or_insert(Core { last: at, ..Core::default() });
        let mut missing = match core.expected {
            Some(expected) => event.sequence.saturating_sub(expected),
            None => 0,
        };
        let mut numbers = 1;
        if let What::Lost { count } = event.what {
            (missing, numbers) = (missing.saturating_add(count), count.max(1));
        }
        core.expected = Some(event.sequence.saturating_add(numbers));
        if missing == 0 {
            return;
        }
        self.lost = self.lost.saturating_add(missing);
        let since = core.last;
        core.blind.get_or_insert(since);
        // The other end of a bracket may be among what was lost.
        let open = (std::mem::take(&mut core.softirq), std::mem::take(&mut core.interrupt));
        if open.0 {
            self.hold(since, event.core, CoreEvent::Softirq { begins: false });
        }
        if open.1 {
            self.hold(since, event.core, CoreEvent::Interrupt { begins: false });
        }
    }

    fn take(&mut self, event: &Event, at: Nanos) {
        match &event.what {
            What::Switch { next, left, how, stolen } => {
                self.core(event.core).running = Some(next.thread);
                let next = self.marked(*next);
                let (left, how, stolen) = (*left, *how, *stolen);
                self.hold(at, event.core, CoreEvent::Switched { next, left, how, stolen });
            }
            What::Waking { thread, target, .. } => {
                self.seen.waking = true;
                self.woken(at, *target, thread);
            }
            What::Woken { thread, on, is_new } if *is_new || !self.seen.waking => {
                self.woken(at, *on, thread);
            }
            What::Softirq { begins, .. } => {
                self.seen.softirqs = true;
                self.core(event.core).softirq = *begins;
                self.hold(at, event.core, CoreEvent::Softirq { begins: *begins });
            }
            What::Interrupt { begins, .. } => {
                self.seen.interrupts = true;
                self.core(event.core).interrupt = *begins;
                self.hold(at, event.core, CoreEvent::Interrupt { begins: *begins });
            }
            What::Fork { parent, child }
                if self.follow.comm.is_none() && self.threads.contains(parent) =>
            {
                self.follow.processes.insert(child.process);
            }
            What::Task(task) if self.tasks.len() < 64 => {
                self.tasks.insert(task.name.clone());
            }
            What::Keyframe(keyframe) => self.synchronise(at, keyframe),
            _ => {}
        }
    }

    /// A keyframe ends what losses left unknown. Before the window's lead it replaces everything.
    fn synchronise(&mut self, at: Nanos, keyframe: &Keyframe) {
        if at + LEAD <= self.window.from {
            self.held.clear();
            self.blind.clear();
            self.lost = 0;
            self.cores.values_mut().for_each(|core| {
                *core = Core { last: core.last, expected: core.expected, ..Core::default() };
            });
        }
        let runners: BTreeMap<i32, &Runner> =
            keyframe.threads.iter().map(|one| (one.thread.thread, &one.thread)).collect();
        let mut was_blind = self.held.is_empty();
        for entry in &keyframe.cores {
            let core = self.core(entry.core);
            let blind = core.blind.take();
            if core.running.is_some() && blind.is_none() {
                continue;
            }
            let left = core.running.replace(entry.running).unwrap_or(-1);
            was_blind |= blind.is_some();
            if let Some(from) = blind {
                self.blind.push((entry.core, Span { from, to: at }));
            }
            let next = runners.get(&entry.running).map_or_else(idle, |runner| **runner);
            let next = self.marked(next);
            let (how, stolen) = (Left::Sleeping, Nanos::ZERO);
            if left != next.thread {
                self.hold(at, entry.core, CoreEvent::Switched { next, left, how, stolen });
            }
        }
        if was_blind {
            for thread in keyframe.threads.iter().filter(|one| one.state == Activity::Waiting) {
                self.woken(at, thread.core, &thread.thread);
            }
        }
    }

    fn woken(&mut self, at: Nanos, core: CoreId, thread: &Runner) {
        if self.follow.follows(thread) {
            let thread = self.marked(*thread);
            self.hold(at, core, CoreEvent::Woken(thread));
        }
    }

    fn core(&mut self, core: CoreId) -> &mut Core {
        let last = self.last;
        self.cores.entry(core).or_insert(Core { last, ..Core::default() })
    }

    fn hold(&mut self, at: Nanos, core: CoreId, event: CoreEvent) {
        self.held.push(Transition { at, core, event });
    }

    /// The thread with the process of all followed ones, if it is one.
    fn marked(&mut self, thread: Runner) -> Runner {
        if !self.follow.follows(&thread) {
            return Runner { process: thread.process.max(0), ..thread };
        }
        self.seen.followed = true;
        self.threads.insert(thread.thread);
        Runner { process: FOLLOWED, ..thread }
    }

    /// Whether all time that softirqs and interrupts took is in the trace.
    fn explains_interrupts(&self) -> bool {
        match self.source {
            Source::Recorder => self.has_interrupts,
            // Its cores have none.
            Source::Simulator => true,
            _ => self.seen.softirqs && self.seen.interrupts,
        }
    }

    /// What was collected.
    pub fn finish(mut self) -> Evidence {
        let first = self.first.unwrap_or_default();
        let (from, to) = (self.window.from.max(first), self.window.to.min(self.last));
        let ended = self.last;
        for (id, core) in &self.cores {
            let since = core.blind.map(|from| (*id, Span { from, to: ended.max(from) }));
            self.blind.extend(since);
        }
        let explains_interrupts = self.explains_interrupts();
        let mut timeline = Timeline::new(self.held, &[FOLLOWED], from, to.max(from));
        timeline.set_unknown(self.blind, explains_interrupts);
        Evidence { timeline, lost: self.lost, is_found: self.seen.followed, tasks: self.tasks }
    }
}

fn idle() -> Runner {
    Runner { thread: 0, process: 0, rank: Rank::NOBODY, name: ThreadName::default() }
}
