//! Figures of a trace: wake-up latency, migrations, depth of run queues, wasted time of cores.
//!
//! Nothing is concluded across a loss. A wake-up that one may hide is not counted. Queues are known again with the next
//! keyframe only, and events are lost some time before that is told: the whole time between two keyframes
//! between which something was lost counts as *untold*.

use std::collections::{BTreeMap, HashMap};

use quell_model::{CoreId, Event, Meta, MoveCause, Nanos, Source as Origin, Topology, What};
use serde::Serialize;

use crate::old_host::Host;
use crate::stream::{ReadError, Source};

mod show;
mod waking;
mod wasted;

#[cfg(test)]
mod tests;

pub use waking::Latency;
pub use wasted::Wasted;

/// Depths of run queues that are told apart; deeper ones are one.
const DEPTHS: usize = 9;

/// Figures of a trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Where the trace comes from.
    pub source: Origin,
    /// Its host.
    pub host: String,
    /// Its kernel.
    pub kernel: String,
    /// Cores of the host.
    pub cores: usize,
    /// The time of the first event.
    pub from: Nanos,
    /// The time of the last.
    pub to: Nanos,
    /// Events, with keyframes.
    pub events: u64,
    /// Wake-up latency by the threads' name, the most wake-ups first.
    pub wakeups: Vec<Latency>,
    /// Moves of threads between cores.
    pub migrations: Vec<Migrations>,
    /// Core-nanoseconds in which so many threads wanted a core: none, one, … the last for that many and more.
    pub depth_core_ns: Vec<u64>,
    /// The most threads that wanted one core.
    pub deepest: u32,
    /// Time of cores that was wasted.
    pub wasted: Wasted,
    /// Whether that knows which cores a thread may use; otherwise every thread was taken to be free.
    pub knows_affinity: bool,
    /// What could not be told.
    #[serde(rename = "data_loss")]
    pub untold: Untold,
    /// What the trace lacks from the start.
    pub absent: Vec<String>,
}

/// Moves of one cause over one distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Migrations {
    /// Who moved the threads.
    pub cause: MoveCause,
    /// How far.
    pub distance: Distance,
    /// How many moves.
    pub count: u64,
}

/// What two cores share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distance {
    /// The physical core.
    Sibling,
    /// The last-level cache.
    Llc,
    /// The node.
    Node,
    /// The host.
    Further,
}

impl Distance {
    fn of(topology: &Topology, from: CoreId, to: CoreId) -> Distance {
        let core = |id| topology.position(id).map(|at| topology.cores()[at]);
        match (core(from), core(to)) {
            (Some(a), Some(b)) if a.physical == b.physical => Distance::Sibling,
            (Some(a), Some(b)) if a.llc == b.llc => Distance::Llc,
            (Some(a), Some(b)) if a.node == b.node => Distance::Node,
            _ => Distance::Further,
        }
    }
}

/// What losses hide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Untold {
    /// Events that were told to be lost.
    pub lost_events: u64,
    /// Places where numbers are missing and no loss was told.
    pub gaps: u64,
    /// Time of which queues and waste are not known, in nanoseconds; it is in none of these figures.
    pub time_ns: u64,
    /// Wake-ups whose end is not known.
    pub wakeups: u64,
}

/// Reads a trace to its end. With an error: the figures of what came before it.
pub fn read(source: &mut dyn Source) -> (Report, Option<ReadError>) {
    let mut collector = Collector::new(source.meta());
    let mut error = None;
    for event in &mut *source {
        match event {
            Ok(event) => collector.event(&event),
            Err(err) => error = Some(err),
        }
    }
    (collector.finish(source.meta()), error)
}

/// Takes figures from event after event.
#[derive(Debug)]
pub struct Collector {
    host: Host,
    wakeups: waking::Wakeups,
    affinity: wasted::Affinity,
    knows_threads: bool,
    knows_affinity: bool,
    migrations: BTreeMap<(MoveCause, Distance), u64>,
    /// Threads that want each core, by position.
    sizes: Vec<u32>,
    deepest: u32,
    /// What is known for certain, and what since the last keyframe.
    certain: Figures,
    since_keyframe: Figures,
    /// Whether there was a keyframe, and nothing was lost since.
    is_told: bool,
    untold: Untold,
    events: u64,
    span: Option<(Nanos, Nanos)>,
    sequences: HashMap<CoreId, u64>,
    /// What is wasted each nanosecond; `None` where that has to be worked out again.
    rate: Option<Wasted>,
}

/// What grows with time.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    time: Nanos,
    wasted: Wasted,
    depth_core_ns: [u64; DEPTHS],
}

impl Collector {
    /// Begins with a trace's Meta.
    pub fn new(meta: &Meta) -> Collector {
        Collector {
            host: Host::new(meta.topology.clone()),
            wakeups: waking::Wakeups::default(),
            affinity: wasted::Affinity::default(),
            knows_threads: meta.source != Origin::WastedCores,
            knows_affinity: matches!(meta.source, Origin::Recorder | Origin::Simulator),
            migrations: BTreeMap::new(),
            sizes: vec![0; meta.topology.len()],
            deepest: 0,
            certain: Figures::default(),
            since_keyframe: Figures::default(),
            is_told: false,
            untold: Untold::default(),
            events: 0,
            span: None,
            sequences: HashMap::new(),
            rate: None,
        }
    }

    /// Takes the next event.
    pub fn event(&mut self, event: &Event) {
        self.events += 1;
        self.pass(event.at);
        let expected = self.sequences.insert(event.core, event.sequence.wrapping_add(1));
        match event.what {
            What::Lost { count } => {
                self.untold.lost_events = self.untold.lost_events.saturating_add(count);
                self.is_told = false;
            }
            _ if expected.is_some_and(|expected| expected != event.sequence) => {
                self.untold.gaps += 1;
                self.is_told = false;
                self.wakeups.event(event.at, &What::Lost { count: 0 }, &self.host);
            }
            _ => {}
        }
        if self.knows_threads {
            self.wakeups.event(event.at, &event.what, &self.host);
        }
        self.affinity.event(&event.what);
        self.follow(event);
    }

    fn follow(&mut self, event: &Event) {
        match &event.what {
            What::Migrate { from, to, cause, .. } => {
                let distance = Distance::of(self.host.topology(), *from, *to);
                *self.migrations.entry((*cause, distance)).or_default() += 1;
            }
            What::Queue { of, runnable, .. } => self.size(*of, *runnable),
            What::Keyframe(keyframe) => {
                self.settle();
                self.is_told = true;
                for core in &keyframe.cores {
                    self.size(core.core, core.runnable);
                }
            }
            _ => {}
        }
        if let Some(here) = self.host.topology().position(event.core) {
            self.host.follow(here, &event.what);
        }
        let says_nothing_of_queues = matches!(
            event.what,
            What::Load { .. }
                | What::Considered { .. }
                | What::Softirq { .. }
                | What::Interrupt { .. }
                | What::Task(_)
                | What::Decision(_)
                | What::Annotation(_)
                | What::Planned(_)
        );
        if !says_nothing_of_queues {
            self.rate = None;
        }
    }

    fn size(&mut self, of: CoreId, runnable: u32) {
        if let Some(at) = self.host.topology().position(of) {
            self.sizes[at] = runnable;
            self.deepest = self.deepest.max(runnable);
        }
    }

    /// Lets time pass up to `at`.
    fn pass(&mut self, at: Nanos) {
        let (from, last) = self.span.unwrap_or((at, at));
        self.span = Some((from, at.max(last)));
        let time = at.since(last);
        if time == Nanos::ZERO {
            return;
        }
        let rate = *self.rate.get_or_insert_with(|| match self.knows_threads {
            true => wasted::now(&self.host, &self.affinity),
            false => wasted::by_sizes(&self.sizes),
        });
        let figures = &mut self.since_keyframe;
        figures.time += time;
        figures.wasted.add(&rate, time);
        for (core, size) in self.host.cores().iter().zip(&self.sizes) {
            if core.online {
                let sum = &mut figures.depth_core_ns[(*size as usize).min(DEPTHS - 1)];
                *sum = sum.saturating_add(time.0);
            }
        }
    }

    /// What happened since the last keyframe counts, or is untold.
    fn settle(&mut self) {
        let figures = std::mem::take(&mut self.since_keyframe);
        if !self.is_told {
            self.untold.time_ns = self.untold.time_ns.saturating_add(figures.time.0);
            return;
        }
        self.certain.wasted.add(&figures.wasted, Nanos(1));
        for (sum, more) in self.certain.depth_core_ns.iter_mut().zip(figures.depth_core_ns) {
            *sum = sum.saturating_add(more);
        }
    }

    /// The figures. `meta` is the trace's.
    pub fn finish(mut self, meta: &Meta) -> Report {
        self.settle();
        let (from, to) = self.span.unwrap_or_default();
        let depths = self.certain.depth_core_ns;
        let used = depths.iter().rposition(|time| *time > 0).map_or(0, |last| last + 1);
        let migrations = self.migrations.into_iter();
        self.untold.wakeups = self.wakeups.untold;
        Report {
            source: meta.source,
            host: meta.host.clone(),
            kernel: meta.kernel.clone(),
            cores: meta.topology.len(),
            from,
            to,
            events: self.events,
            wakeups: self.wakeups.finish(),
            migrations: migrations
                .map(|((cause, distance), count)| Migrations { cause, distance, count })
                .collect(),
            depth_core_ns: depths[..used].to_vec(),
            deepest: self.deepest,
            wasted: self.certain.wasted,
            knows_affinity: self.knows_affinity,
            untold: self.untold,
            absent: meta.absent.clone(),
        }
    }
}
