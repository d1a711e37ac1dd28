//! What came out.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use hdrhistogram::Histogram;
use quell_model::{Bytes, BytesPerSec, CoreMode, CorePlan, MoveCause, Nanos, Plan};
use quell_policy::invariants::Violation;

use crate::books::Broken;
use crate::engine::Engine;
use crate::kernel::Deadlock;

/// Latencies, to three digits.
#[derive(Clone, Debug, PartialEq)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    #[expect(clippy::expect_used, reason = "three digits are within what the histogram can do")]
    fn new() -> Latencies {
        Latencies(Histogram::new(3).expect("a histogram of three digits"))
    }

    pub(crate) fn record(&mut self, latency: Nanos) {
        // It grows to what it is given; memory is all that could fail.
        let _ = self.0.record(latency.0);
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency that this share (0 to 1) of requests does not exceed; zero of none.
    pub fn quantile(&self, share: f64) -> Nanos {
        Nanos(if self.0.is_empty() { 0 } else { self.0.value_at_quantile(share) })
    }

    /// The longest.
    pub fn max(&self) -> Nanos {
        Nanos(self.0.max())
    }

    /// Their mean; zero of none.
    pub fn mean(&self) -> Nanos {
        Nanos(if self.0.is_empty() { 0 } else { self.0.mean() as u64 })
    }
}

/// What became of one task.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskReport {
    /// Latencies of answered requests that arrived after the warm-up.
    pub latency: Latencies,
    /// Requests that arrived.
    pub arrived: u64,
    /// Requests that were answered.
    pub answered: u64,
    /// Requests that were not answered by the end, dropped ones included.
    pub unanswered: u64,
    /// Time that its threads ran.
    pub ran: Nanos,
    /// Of that, time that they looked for work.
    pub polled: Nanos,
    /// Work done after the warm-up: core time on an idle host.
    pub work: Nanos,
    /// When the last thread of its program ended.
    pub completed: Option<Nanos>,
}

impl TaskReport {
    fn new() -> TaskReport {
        TaskReport {
            latency: Latencies::new(),
            arrived: 0,
            answered: 0,
            unanswered: 0,
            ran: Nanos::ZERO,
            polled: Nanos::ZERO,
            work: Nanos::ZERO,
            completed: None,
        }
    }

    /// The latency that this many in a thousand requests do not exceed; zero of none.
    pub fn percentile(&self, per_mille: u16) -> Nanos {
        self.latency.quantile(f64::from(per_mille) / 1_000.0)
    }
}

/// Cores that idled while threads waited in the queues of others and might have used them. Zero where one queue serves all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Waste {
    /// Time of such cores together.
    pub cores: Nanos,
    /// Time in which there was one.
    pub time: Nanos,
    /// Time of all cores that idled meanwhile, usable or not, together.
    pub idle: Nanos,
    /// Time of the threads that waited, by how near the nearest core was that they might have used: a sibling of the core in whose
    /// queue they were, another core of its node, a core of another node.
    pub waits: [Nanos; 3],
}

/// What became of a scenario.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// By place.
    pub tasks: Vec<TaskReport>,
    /// Breaches of the invariants, judged at each decision: the first [`Report::BREACHES_KEPT`].
    pub violations: Vec<(Nanos, Violation)>,
    /// How many there were in all.
    pub violated: u64,
    /// Sums that did not come out: faults of the simulator.
    pub broken: Vec<Broken>,
    /// Events.
    pub events: u64,
    /// Decisions.
    pub ticks: u64,
    /// Cores that changed hands in Plans.
    pub owner_changes: u64,
    /// Times that a task's rung or shared cores changed in Plans.
    pub rung_changes: u64,
    /// Longest time in which some LC thread waited while a core that it is allowed on was idle or ran BE.
    pub longest_inversion: Nanos,
    /// Longest time that a thread of the kernel waited for its core.
    pub longest_kernel_wait: Nanos,
    /// Cores that idled while threads waited in other cores' queues.
    pub waste: Waste,
    /// Threads that the kernel moved from queue to queue, by cause.
    pub migrations: BTreeMap<MoveCause, u64>,
    /// Those that went to another node.
    pub node_migrations: u64,
    /// Programs that cannot go on.
    pub deadlocks: Vec<Deadlock>,
    /// Time after the warm-up that threads were in the queue of each core, the running one included, by position of the core;
    /// none where one queue serves all. Sleepers count until they are dequeued (`nr_running`).
    pub queued: Vec<Nanos>,
    /// Time in which managed cores that were online had nothing to run, over all of them.
    pub idle: Nanos,
    /// What went through the memory controllers.
    pub memory_bytes: Bytes,
    /// Intervals, where the scenario asked for them.
    pub timeline: Vec<Sample>,
    /// A fingerprint of every Plan and of all results, to compare runs.
    pub digest: u64,
}

/// An interval of the timeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Its end.
    pub at: Nanos,
    /// Memory traffic.
    pub traffic: BytesPerSec,
    /// By place.
    pub tasks: Vec<TaskSample>,
}

/// A task in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TaskSample {
    /// Time that its threads ran, over all cores.
    pub ran: Nanos,
    /// Work done: core time on an idle host.
    pub work: Nanos,
    /// Requests that arrived.
    pub arrived: u64,
    /// Requests that were answered.
    pub answered: u64,
    /// Median latency of those.
    pub p50: Nanos,
    /// 99 %.
    pub p99: Nanos,
    /// 99.9 %.
    pub p999: Nanos,
    /// The longest.
    pub max: Nanos,
}

impl Report {
    /// Breaches that are kept. A rival may break an invariant at each of millions of decisions.
    pub const BREACHES_KEPT: usize = 1_000;

    /// Counts breaches, and keeps the first ones.
    pub(crate) fn breached(&mut self, now: Nanos, found: Vec<Violation>) {
        self.violated += found.len() as u64;
        let room = Report::BREACHES_KEPT.saturating_sub(self.violations.len());
        self.violations.extend(found.into_iter().take(room).map(|violation| (now, violation)));
    }

    pub(crate) fn new(tasks: usize) -> Report {
        let tasks = (0..tasks).map(|_| TaskReport::new()).collect();
        Report { tasks, digest: Fnv::START, ..Report::default() }
    }

    /// Counts what a new Plan changes, and adds that to the fingerprint.
    pub(crate) fn compare(&mut self, now: Nanos, before: &Plan, after: &Plan) {
        let mut hash = Fnv(self.digest);
        for (at, core) in after.cores.iter().enumerate() {
            let last = before.cores.get(at);
            if last != Some(core) {
                self.owner_changes += u64::from(last.is_some_and(|last| last.owner != core.owner));
                // The mode follows from the owner; digests older than this mode stay comparable.
                let mode =
                    if core.mode == CoreMode::Runtime { CoreMode::Kernel } else { core.mode };
                (now, CorePlan { mode, ..*core }).hash(&mut hash);
            }
        }
        for (at, task) in after.tasks.iter().enumerate() {
            let last = before.tasks.get(at);
            if last != Some(task) {
                let shifted = |last: &quell_model::TaskPlan| {
                    (last.rung, last.shared_cores) != (task.rung, task.shared_cores)
                };
                self.rung_changes += u64::from(last.is_some_and(shifted));
                (now, task).hash(&mut hash);
            }
        }
        if before.roles != after.roles {
            (now, &after.roles).hash(&mut hash);
        }
        self.digest = hash.0;
    }

    /// Adds the results to the fingerprint.
    pub(crate) fn seal(&mut self) {
        let mut hash = Fnv(self.digest);
        for task in &self.tasks {
            let TaskReport { arrived, answered, unanswered, ran, polled, work, latency, completed } =
                task;
            let tail = [500, 990, 999].map(|per_mille| task.percentile(per_mille));
            (arrived, answered, unanswered, ran, polled, work).hash(&mut hash);
            (latency.count(), latency.mean(), tail, latency.max()).hash(&mut hash);
            if let Some(completed) = completed {
                completed.hash(&mut hash);
            }
        }
        let Report { ticks, events, memory_bytes, owner_changes, rung_changes, .. } = self;
        (ticks, events, memory_bytes, owner_changes, rung_changes).hash(&mut hash);
        let Report { longest_inversion, idle, violated, .. } = self;
        (longest_inversion, idle, violated, self.broken.len() as u64).hash(&mut hash);
        if self.longest_kernel_wait > Nanos::ZERO {
            self.longest_kernel_wait.hash(&mut hash);
        }
        if !self.migrations.is_empty() {
            self.waste.cores.hash(&mut hash);
            let migrations = self.migrations.iter();
            migrations.for_each(|(cause, count)| (*cause as u64, count).hash(&mut hash));
        }
        for Sample { at, traffic, tasks } in &self.timeline {
            (at, traffic).hash(&mut hash);
            for TaskSample { ran, work, arrived, answered, p50, p99, p999, max } in tasks {
                (ran, work, arrived, answered, p50, p99, p999, max).hash(&mut hash);
            }
        }
        self.digest = hash.0;
    }
}

/// FNV-1a, a number at a time instead of a byte: the same on machines of either byte order and any width of `usize`.
struct Fnv(u64);

impl Fnv {
    const START: u64 = 0xcbf2_9ce4_8422_2325;
}

impl Hasher for Fnv {
    /// Slices of numbers come here, in the byte order of the machine.
    fn write(&mut self, bytes: &[u8]) {
        let (numbers, rest) = bytes.as_chunks();
        numbers.iter().for_each(|number| self.write_u64(u64::from_ne_bytes(*number)));
        rest.iter().for_each(|byte| self.write_u8(*byte));
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(u64::from(number));
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(u64::from(number));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        // The product's upper bits depend on all of the number, its lower ones do not.
        self.0 = (self.0 ^ number).wrapping_mul(0x100_0000_01b3).rotate_left(29);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as i64 as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The intervals so far, and what the present one has seen.
#[derive(Default)]
pub(crate) struct Timeline {
    pub samples: Vec<Sample>,
    latencies: Vec<Vec<u64>>,
    last: Vec<TaskSample>,
    moved: u64,
}

impl Timeline {
    pub fn new(tasks: usize) -> Timeline {
        Timeline {
            latencies: vec![Vec::new(); tasks],
            last: vec![TaskSample::default(); tasks],
            ..Timeline::default()
        }
    }

    pub fn answered(&mut self, task: usize, latency: Nanos) {
        self.latencies[task].push(latency.0);
    }
}

impl Engine<'_> {
    /// Ends an interval.
    pub(crate) fn sample(&mut self) {
        self.book_all();
        let moved = self.hardware.moved();
        let length = self.scenario.sample;
        let passed = u128::from(moved - self.timeline.moved) * 1_000_000_000;
        let traffic = BytesPerSec((passed / u128::from(length.0)) as u64);
        self.timeline.moved = moved;
        let tasks = (0..self.tasks.len()).map(|task| self.sample_task(task)).collect();
        self.timeline.samples.push(Sample { at: self.now, traffic, tasks });
    }

    fn sample_task(&mut self, task: usize) -> TaskSample {
        let books = &self.books.tasks[task];
        let mut latencies = std::mem::take(&mut self.timeline.latencies[task]);
        latencies.sort_unstable();
        let tail = |per_mille: usize| {
            let rank = (latencies.len() * per_mille).div_ceil(1_000).saturating_sub(1);
            Nanos(latencies.get(rank).copied().unwrap_or_default())
        };
        let total = TaskSample {
            ran: books.ran,
            work: books.work(),
            arrived: books.arrived,
            answered: books.answered,
            p50: tail(500),
            p99: tail(990),
            p999: tail(999),
            max: tail(1_000),
        };
        latencies.clear();
        self.timeline.latencies[task] = latencies;
        let last = std::mem::replace(&mut self.timeline.last[task], total);
        TaskSample {
            ran: total.ran - last.ran,
            work: total.work - last.work,
            arrived: total.arrived - last.arrived,
            answered: total.answered - last.answered,
            ..total
        }
    }
}
