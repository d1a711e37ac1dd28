//! The kernel model [`Linux`] in the engine: wake-ups, sleeps and rights go to it, and cores run what it picks.

use quell_model::{CoreId, Nanos, Rung};

use super::linux::{Linux, ROOT, SchedClass, weights};
use super::programs::recording_of;
use super::recorded::recorded_class;
use super::{State, Work};
use crate::engine::Engine;
use crate::scenario::{Kernel, Scenario};
use crate::workload::{Style, Task, ThreadKind};

/// The scheduler of a scenario with all its threads, asleep, and the task groups of the kinds of threads of each program;
/// `None` where one queue serves all cores.
pub(crate) fn linux_of(scenario: &Scenario) -> (Option<Box<Linux>>, Vec<Vec<usize>>) {
    let Kernel::Linux(model) = scenario.kernel else { return (None, Vec::new()) };
    let topology = &scenario.host.topology;
    let mut linux = Box::new(Linux::new(model, topology));
    let mut groups = Groups { autogroup: model.autogroup, known: Vec::new() };
    let mut kind_groups = Vec::new();
    for (at, task) in scenario.tasks.iter().enumerate() {
        let is_kernel = task.style == Style::Kernel;
        // Tasks without a session of their own choice are each in one, as services of systemd are.
        let session = task.session.map_or((Some(at), None), |session| (None, Some(session)));
        // A recording does not say which groups its threads are in.
        let is_ungrouped = is_kernel
            || recording_of(task).is_some() && task.session.is_none() && task.cpu_weight.is_none();
        let weight = task.cpu_weight;
        let group = match is_ungrouped {
            true => ROOT,
            false => groups.of(session, weight, &mut linux),
        };
        let kinds = match task.load.program() {
            Some(program) => program.kinds.as_slice(),
            None => &[],
        };
        let of_kind = |kind: &ThreadKind| {
            kind.session.map_or(group, |own| groups.of((Some(at), Some(own)), weight, &mut linux))
        };
        kind_groups.push(kinds.iter().map(of_kind).collect());
        let class = class_of(if is_kernel { Rung::LcFair } else { Rung::Original }, task);
        let first = task.limits.allowed.intersection(&topology.all()).first().unwrap_or(CoreId(0));
        for own in 0..task.all_threads() as usize {
            let class = recorded_class(task, own).unwrap_or(class);
            linux.add_thread(class, group, topology.all(), first, Nanos::ZERO);
        }
    }
    (Some(linux), kind_groups)
}

/// A session: of a task alone or of the whole scenario, and its number there.
type Session = (Option<usize>, Option<u32>);

/// The task groups of sessions, and of cgroups with a weight.
struct Groups {
    autogroup: bool,
    known: Vec<((Session, Option<u32>), usize)>,
}

impl Groups {
    fn of(&mut self, session: Session, weight: Option<u32>, linux: &mut Linux) -> usize {
        if !self.autogroup && weight.is_none() {
            return ROOT;
        }
        let key = (session, weight);
        if let Some((_, group)) = self.known.iter().find(|(known, _)| *known == key) {
            return *group;
        }
        let group = linux.add_group(weight.map_or(weights::NICE_0, weights::of_cgroup));
        self.known.push((key, group));
        group
    }
}

/// The class of a thread on a rung. A thread of a task that Quell leaves alone has the task's policy and nice value.
fn class_of(rung: Rung, task: &Task) -> SchedClass {
    match rung {
        Rung::SchedIdle => SchedClass::Idle,
        Rung::Original if task.sched_idle => SchedClass::Idle,
        Rung::Original | Rung::LcFair => SchedClass::Fair { weight: weights::of_nice(task.nice) },
        rung => SchedClass::RealTime(99 - rung as u8),
    }
}

impl Engine<'_> {
    /// A thread waits: it goes into the queue of a core, unless it is in one.
    pub(super) fn queue_thread(&mut self, thread: usize) {
        let allowed = self.cores_of(thread).intersection(&self.online);
        let Some(linux) = &mut self.linux else { return };
        if linux.is_queued(thread) || allowed.is_empty() {
            return;
        }
        let state = &mut self.threads[thread];
        let (waker, start_core) = (state.waker.take(), state.start_core.take());
        linux.set_allowed(thread, allowed, self.now);
        if linux.is_new(thread) {
            let parent = waker.map_or(linux.last_core(thread), |waker| linux.last_core(waker));
            linux.fork(thread, parent, start_core, self.now);
        } else {
            linux.wake(thread, waker, self.now);
        }
        self.follow_linux();
    }

    /// A thread waits and runs no longer.
    pub(super) fn unqueue_thread(&mut self, thread: usize) {
        let Some(linux) = &mut self.linux else { return };
        if linux.is_queued(thread) {
            linux.sleep(thread, self.now);
        }
    }

    /// Cores that have to reschedule do.
    pub(crate) fn follow_linux(&mut self) {
        while let Some(linux) = &mut self.linux {
            let Some(core) = linux.next_resched() else { break };
            self.reschedule(core);
        }
        let Some(linux) = &mut self.linux else { return };
        linux.take_migrations(&mut self.migrations);
        for migration in &self.migrations {
            *self.report.migrations.entry(migration.cause).or_default() += 1;
            self.report.node_migrations += u64::from(linux.crosses_nodes(migration));
        }
        if let Some(trace) = &mut self.trace {
            trace.note_linux(&self.migrations, linux);
        }
    }

    fn reschedule(&mut self, core: CoreId) {
        let at = self.at(core);
        let Some(linux) = &mut self.linux else { return };
        let next = linux.schedule(core, self.now);
        let running = self.cores[at].running;
        if next.is_some() && next == running {
            return;
        }
        if running.is_some() {
            self.stop(at);
        }
        let Some(thread) = next else { return self.idles(at) };
        if let State::Running(other) = self.threads[thread].state {
            // It was moved while it ran; the core that it leaves reschedules too.
            self.stop(other);
        }
        self.start(thread, at);
    }

    /// Time passes: cores may idle meanwhile that waiting threads might use.
    pub(crate) fn note_waste(&mut self, until: Nanos) {
        let Some(linux) = &mut self.linux else { return };
        let waste = linux.waste();
        if waste.cores == 0 {
            return;
        }
        let time = until.since(self.now);
        let total = &mut self.report.waste;
        total.time += time;
        total.cores += Nanos(waste.cores * time.0);
        total.idle += Nanos(linux.idle_cores() * time.0);
        for (total, threads) in total.waits.iter_mut().zip(waste.threads) {
            *total += Nanos(threads * time.0);
        }
    }

    /// The time so far that threads were in the queue of each core, by position.
    pub(crate) fn queued_times(&self) -> Vec<Nanos> {
        let Some(linux) = &self.linux else { return Vec::new() };
        self.cores.iter().map(|core| linux.queued_time(core.id, self.now)).collect()
    }

    /// A tick of a core.
    pub(super) fn tick_linux(&mut self, at: usize) {
        let Some(linux) = &mut self.linux else { return };
        linux.tick(self.cores[at].id, self.now);
        let next = linux.next_tick(self.now);
        let ticks_idle = linux.ticks_idle();
        self.follow_linux();
        if self.cores[at].running.is_none() {
            if ticks_idle {
                self.timers.arm(self.layout.end(at), next);
            }
        } else if self.cores[at].slice <= self.now {
            self.cores[at].slice = next;
            self.rearm(at);
        }
    }

    /// A core idles: it has a tick all the same where the kernel has one always.
    pub(crate) fn arm_idle_tick(&mut self, at: usize) {
        if let Some(linux) = self.linux.as_ref().filter(|linux| linux.ticks_idle()) {
            self.timers.arm(self.layout.end(at), linux.next_tick(self.now));
        }
    }

    /// The cores of a task changed.
    pub(super) fn allow_linux(&mut self, task: usize) {
        if self.linux.is_none() {
            return;
        }
        for thread in self.threads_of(task) {
            let allowed = self.cores_of(thread).intersection(&self.online);
            let Some(linux) = &mut self.linux else { return };
            match (allowed.is_empty(), linux.is_queued(thread)) {
                // As in a frozen cgroup: it waits in no queue.
                (true, true) => linux.sleep(thread, self.now),
                (true, false) => {}
                (false, _) => linux.set_allowed(thread, allowed, self.now),
            }
            if let State::Waiting { .. } = self.threads[thread].state
                && !allowed.is_empty()
            {
                self.queue_thread(thread);
            }
        }
        self.follow_linux();
    }

    /// The rung of a task, or the role of a thread of it, changed.
    pub(super) fn reclass_linux(&mut self, threads: std::ops::Range<usize>) {
        for thread in threads {
            let place = self.threads[thread].task;
            let (task, rung) = (&self.scenario.tasks[place], self.rung_of(thread));
            let is_own = matches!(rung, Rung::Original | Rung::LcFair);
            let own = is_own.then(|| recorded_class(task, thread - self.tasks[place].first));
            let class = own.flatten().unwrap_or_else(|| class_of(rung, task));
            if let Some(linux) = &mut self.linux {
                linux.set_class(thread, class, self.now);
            }
        }
        self.follow_linux();
    }

    /// A runtime's request gets a sleeping thread, which goes where the kernel puts it.
    pub(super) fn feed_linux(&mut self, task: usize) {
        if self.tasks[task].allowed.is_empty() || self.tasks[task].held > 0 {
            return;
        }
        let state = &mut self.tasks[task];
        let Some(request) = state.backlog.pop_front() else { return };
        let Some(thread) = state.sleepers.pop() else { return state.backlog.push_front(request) };
        self.wake(thread, Work::Request(request));
    }
}
