//! Figures of a trace: wakeup latency, migrations, depth of run queues, wasted time of cores.
//!
//! The state of the host is [`HostState`]'s and the wasted time is [`WastedTime`]'s; this module adds up.
//!
//! Nothing is concluded across a loss. A wake-up that one may hide is not counted. Queues are known again with the next
//! keyframe only, and events are lost some time before that is reported: the whole time between two keyframes
//! between which something was lost counts as [`DataLoss::time_ns`] and is in no other figure.

use std::collections::BTreeMap;

use quell_model::{Event, Meta, MoveCause, Nanos, Source as Origin, Topology, What};
use serde::Serialize;

use crate::host::{HostCore, HostState, HostThread, HostVisitor, WastedSplit, WastedTime};
use crate::stream::{ReadError, Source};

mod depth;
mod latency;
mod show;

#[cfg(test)]
mod tests;

pub use latency::Latency;

use depth::{DEPTHS, Depths};
use latency::Latencies;

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
    /// Wakeup latency by the threads' name, the most wake-ups first.
    pub wakeups: Vec<Latency>,
    /// Moves of threads between cores.
    pub migrations: Vec<Migrations>,
    /// Core-nanoseconds in which so many threads wanted a core: none, one, … the last for that many and more.
    pub depth_core_ns: Vec<u64>,
    /// The most threads that wanted one core.
    pub deepest: u32,
    /// Time of idle cores beside waiting threads, where nothing was lost: wasted, allowed by a policy, and of
    /// threads whose affinity is not known.
    #[serde(flatten)]
    pub idle: WastedSplit,
    /// Whether that knows which cores a thread may use; otherwise every thread was taken to be free.
    pub knows_affinity: bool,
    /// What losses hide.
    pub data_loss: DataLoss,
    /// What the trace lacks from the start.
    pub absent: Vec<String>,
}

/// Moves of one cause over one distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Migrations {
    /// Why the threads were moved.
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
    /// Between two cores, by index.
    fn of(topology: &Topology, from: usize, to: usize) -> Distance {
        match (&topology.cores()[from], &topology.cores()[to]) {
            (a, b) if a.physical == b.physical => Distance::Sibling,
            (a, b) if a.llc == b.llc => Distance::Llc,
            (a, b) if a.node == b.node => Distance::Node,
            _ => Distance::Further,
        }
    }
}

/// What losses hide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DataLoss {
    /// Lost events, as the recorder reported them.
    pub lost_events: u64,
    /// Places where numbers are missing and no loss was reported.
    pub gaps: u64,
    /// Time of which queues and wasted time are not known, in nanoseconds; it is in none of these figures.
    pub time_ns: u64,
    /// Wake-ups of which the trace does not show when their thread ran.
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
    host: HostState,
    wasted: WastedTime,
    sums: Sums,
    events: u64,
    lost_events: u64,
}

impl Collector {
    /// Begins with a trace's Meta.
    pub fn new(meta: &Meta) -> Collector {
        let sums = Sums {
            topology: meta.topology.clone(),
            latencies: Latencies::default(),
            migrations: BTreeMap::new(),
            depths: Depths::new(meta.topology.len()),
            unknown_wakeups: 0,
            losses: 0,
        };
        Collector {
            host: HostState::new(meta),
            wasted: WastedTime::default(),
            sums,
            events: 0,
            lost_events: 0,
        }
    }

    /// Takes the next event.
    pub fn event(&mut self, event: &Event) {
        self.events += 1;
        if let What::Lost { count } = event.what {
            self.lost_events = self.lost_events.saturating_add(count);
            // The host reports it besides those that only the numbers show.
            let is_known = self.host.topology().position(event.core).is_some();
            self.sums.losses -= i64::from(is_known);
        }
        if self.host.origin().is_none() {
            self.sums.depths.begin(event.at);
        }
        self.wasted.advance(&self.host, event.at);
        self.host.push(event, &mut self.sums);
        self.sums.depths.close_interval(&self.host);
    }

    /// The figures. `meta` is the trace's.
    pub fn finish(mut self, meta: &Meta) -> Report {
        self.wasted.finish(&self.host);
        let to = self.host.now();
        let Sums { latencies, migrations, depths, unknown_wakeups, losses, .. } = self.sums;
        debug_assert!(losses >= 0, "the host reported fewer losses than the recorder");
        Report {
            source: meta.source,
            host: meta.host.clone(),
            kernel: meta.kernel.clone(),
            cores: meta.topology.len(),
            from: self.host.origin().unwrap_or_default(),
            to,
            events: self.events,
            wakeups: latencies.finish(),
            migrations: migrations
                .into_iter()
                .map(|((cause, distance), count)| Migrations { cause, distance, count })
                .collect(),
            deepest: depths.deepest(),
            depth_core_ns: depths.finish(&self.host),
            idle: *self.wasted.judged(),
            knows_affinity: self.host.assumed_affinity().is_none(),
            data_loss: DataLoss {
                lost_events: self.lost_events,
                gaps: u64::try_from(losses).unwrap_or(0),
                time_ns: self.wasted.unjudged_time().0,
                wakeups: unknown_wakeups,
            },
            absent: meta.absent.clone(),
        }
    }
}

/// What the changes of the host add up to.
#[derive(Debug)]
struct Sums {
    topology: Topology,
    latencies: Latencies,
    migrations: BTreeMap<(MoveCause, Distance), u64>,
    depths: Depths,
    unknown_wakeups: u64,
    /// Losses that the host found, less those that the recorder reported.
    losses: i64,
}

impl HostVisitor for Sums {
    fn wakeup_latency(&mut self, thread: &HostThread, from: Nanos, at: Nanos) {
        self.latencies.add(thread.comm(), at.since(from));
    }

    fn wakeups_unknown(&mut self, count: u64, _: Nanos) {
        self.unknown_wakeups += count;
    }

    fn migrated(
        &mut self,
        _: Option<&HostThread>,
        from: usize,
        to: usize,
        cause: MoveCause,
        _: Nanos,
    ) {
        let distance = Distance::of(&self.topology, from, to);
        *self.migrations.entry((cause, distance)).or_default() += 1;
    }

    fn queue_size(&mut self, core: &HostCore, at: Nanos) {
        self.depths.change(core, at);
    }

    fn core_online(&mut self, core: &HostCore, at: Nanos) {
        self.depths.change(core, at);
    }

    fn core_lost(&mut self, _: &HostCore, _: Nanos, _: Nanos, _: u64) {
        self.losses += 1;
    }
}
