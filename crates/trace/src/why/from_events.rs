//! From the events of a trace to what attribution works on.
//!
//! Events are taken in the order of time, of a recording, an imported file, a simulation, or live, by one
//! [`HostState`]. What they do not contain stays unknown: time in which a core lost events, and, where a source has no
//! softirqs or interrupts, time that these may have taken.

use std::collections::BTreeSet;

use quell_model::{Event, Meta, Nanos, Runner, Source, TaskInfo, ThreadName, What};

use super::timeline::{Bracket, Builder, Span, Timeline};
use crate::host::HostState;

/// Maximum number of intervals that are held: some 400 MB, at least a minute of two busy cores.
const HELD_MAX: usize = 8 << 20;
/// Time before the window that is read too: a queue that is older than this does not count.
const LEAD: Nanos = Nanos::from_millis(200);

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

    /// Whether a thread is chosen.
    pub(super) fn follows(&self, thread: &Runner) -> bool {
        thread.thread != 0
            && (self.processes.contains(&thread.process) || self.comm == Some(thread.name))
    }

    /// Takes the processes of a task; whether there are new ones.
    fn take_task(&mut self, task: &TaskInfo) -> bool {
        let before = self.processes.len();
        if self.task.as_ref().is_some_and(|name| task.name == *name) {
            self.processes.extend(&task.processes);
        }
        self.processes.len() > before
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
    /// Which thread had each core, and what the followed threads did.
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
    host: HostState,
    builder: Builder,
    window: Window,
    tasks: BTreeSet<String>,
    source: Source,
    has_interrupts: bool,
    /// Kinds that were seen: of a text nothing else says whether they were recorded.
    has_seen_softirqs: bool,
    has_seen_interrupts: bool,
}

impl Collector {
    /// For the trace that begins with this Meta.
    pub fn new(meta: &Meta, follow: Follow, window: Window) -> Collector {
        let hook = |name: &str| meta.hooks.iter().any(|hook| hook == name);
        Collector {
            host: HostState::new(meta),
            builder: Builder::new(&meta.topology, follow),
            window,
            tasks: BTreeSet::new(),
            source: meta.source,
            has_interrupts: hook("softirq_entry") && hook("irq_handler_entry"),
            has_seen_softirqs: false,
            has_seen_interrupts: false,
        }
    }

    /// Whether no more is taken: memory for it is full.
    pub fn is_full(&self) -> bool {
        self.builder.held >= HELD_MAX
    }

    /// Whether the window has ended.
    pub fn is_over(&self) -> bool {
        self.host.now() > self.window.to
    }

    /// The time of the last event.
    pub fn last(&self) -> Nanos {
        self.host.now()
    }

    /// Takes the next event.
    pub fn push(&mut self, event: &Event) {
        if self.is_full() {
            return;
        }
        self.choose(&event.what);
        self.host.push(event, &mut self.builder);
        let (bracket, begins) = match event.what {
            What::Softirq { begins, .. } => (Bracket::Softirq, begins),
            What::Interrupt { begins, .. } => (Bracket::Interrupt, begins),
            What::Keyframe(_) => return self.begin_anew(),
            _ => return,
        };
        match bracket {
            Bracket::Softirq => self.has_seen_softirqs = true,
            Bracket::Interrupt => self.has_seen_interrupts = true,
        }
        if let Some(core) = self.host.topology().position(event.core) {
            self.builder.bracket(core, bracket, begins, self.host.now());
        }
    }

    /// Takes what an event says of which threads are the service's.
    fn choose(&mut self, what: &What) {
        match what {
            What::Fork { parent, child } if self.builder.follow.comm.is_none() => {
                let parent = self.host.thread_by_tid(*parent);
                if parent.is_some_and(|parent| self.builder.follows(parent)) {
                    self.builder.follow.processes.insert(child.process);
                }
            }
            What::Task(task) => {
                if self.tasks.len() < 64 {
                    self.tasks.insert(task.name.clone());
                }
                if self.builder.follow.take_task(task) {
                    self.builder.choose_anew(&self.host);
                }
            }
            _ => {}
        }
    }

    /// A keyframe well before the window replaces everything before it.
    fn begin_anew(&mut self) {
        if self.host.now() + LEAD <= self.window.from {
            self.host.cut(&mut ());
            self.builder.clear();
        }
    }

    /// Whether all time that softirqs and interrupts took is in the trace.
    fn explains_interrupts(&self) -> bool {
        match self.source {
            Source::Recorder => self.has_interrupts,
            // Its cores have none.
            Source::Simulator => true,
            _ => self.has_seen_softirqs && self.has_seen_interrupts,
        }
    }

    /// What was collected.
    pub fn finish(self) -> Evidence {
        let first = self.host.origin().unwrap_or_default();
        let from = self.window.from.max(first);
        let to = self.window.to.min(self.host.now()).max(from);
        let explains_interrupts = self.explains_interrupts();
        let (lost, is_found) = (self.builder.lost, self.builder.is_found);
        let timeline = self.builder.finish(self.host, Span { from, to }, explains_interrupts);
        Evidence { timeline, lost, is_found, tasks: self.tasks }
    }
}
