//! Time, and the order of events.

mod debug;
mod events;
mod timers;

use quell_model::{Burst, Class, CoreSet, Nanos, Plan, Role, Rung, Snapshot, TaskScheduler};
use quell_policy::invariants::Checker;
use quell_policy::{Policy, Wake};

use crate::books::Books;
use crate::chance::Chance;
use crate::feed::Feed;
use crate::host::{Backend, RtShare, room};
use crate::kernel::linux::{Linux, Migration};
use crate::kernel::{
    BurstRecord, Core, HelperThread, ProgramState, Progress, State, TaskState, Thread, Work,
    linux_of, programs_of,
};
use crate::machine::hardware::{CACHE_STEP, Hardware, domains_of};
use crate::report::{Report, Timeline};
use crate::scenario::Scenario;
use crate::trace::{Sink, Trace};
use crate::workload::{Load, Style, Task};
use timers::Timers;

/// What a timer is for. At one instant they go off in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// The host changes.
    Change,
    /// Counting begins.
    WarmUp,
    /// An action of the back end on the core at this position takes effect.
    CoreAction(usize),
    /// An action of the back end on a task takes effect.
    TaskAction(usize),
    /// The request, slice or look for work on this core ends.
    End(usize),
    /// A request arrives at a task.
    Arrival(usize),
    /// A core hears of a thread of a task that was woken.
    Wake(usize),
    /// A task goes over to its next phase.
    Phase(usize),
    /// A node's memory has noticed what changed.
    Memory(usize),
    /// A node's caches and clock rate move on.
    Drift(usize),
    /// The burst on a core is looked at.
    Check(usize),
    /// A helper thread wakes up.
    Helper(usize),
    /// A program's thread has slept, or polled long enough.
    Program(usize),
    /// Services tell how they do.
    Feed,
    /// An interval of the timeline ends.
    Sample,
    /// A trace gets a keyframe.
    Keyframe,
    /// The policy decides.
    Tick,
}

/// Which timer has which number.
pub(crate) struct Layout {
    kinds: Vec<Timer>,
    cores: usize,
    tasks: usize,
    nodes: usize,
    checks: usize,
    helpers: usize,
}

impl Layout {
    fn new(
        cores: usize,
        tasks: usize,
        nodes: usize,
        checks: usize,
        helpers: usize,
        programs: usize,
    ) -> Layout {
        let mut kinds = vec![Timer::Change, Timer::WarmUp];
        kinds.extend((0..cores).map(Timer::CoreAction));
        kinds.extend((0..tasks).map(Timer::TaskAction));
        kinds.extend((0..cores).map(Timer::End));
        kinds.extend((0..tasks).map(Timer::Arrival));
        kinds.extend((0..tasks).map(Timer::Wake));
        kinds.extend((0..tasks).map(Timer::Phase));
        kinds.extend((0..nodes).map(Timer::Memory));
        kinds.extend((0..nodes).map(Timer::Drift));
        kinds.extend((0..checks).map(Timer::Check));
        kinds.extend((0..helpers).map(Timer::Helper));
        kinds.extend((0..programs).map(Timer::Program));
        kinds.extend([Timer::Feed, Timer::Sample, Timer::Keyframe, Timer::Tick]);
        Layout { kinds, cores, tasks, nodes, checks, helpers }
    }

    /// The number of a timer.
    pub fn timer(&self, timer: Timer) -> usize {
        let Layout { cores, tasks, nodes, checks, helpers, .. } = *self;
        let last = self.kinds.len() - 1;
        match timer {
            Timer::Change => 0,
            Timer::WarmUp => 1,
            Timer::CoreAction(at) => 2 + at,
            Timer::TaskAction(at) => 2 + cores + at,
            Timer::End(at) => self.end(at),
            Timer::Arrival(at) => 2 + 2 * cores + tasks + at,
            Timer::Wake(at) => 2 + 2 * cores + 2 * tasks + at,
            Timer::Phase(at) => 2 + 2 * cores + 3 * tasks + at,
            Timer::Memory(at) => 2 + 2 * cores + 4 * tasks + at,
            Timer::Drift(at) => 2 + 2 * cores + 4 * tasks + nodes + at,
            Timer::Check(at) => 2 + 2 * cores + 4 * tasks + 2 * nodes + at,
            Timer::Helper(nth) => 2 + 2 * cores + 4 * tasks + 2 * nodes + checks + nth,
            Timer::Program(thread) => {
                2 + 2 * cores + 4 * tasks + 2 * nodes + checks + helpers + thread
            }
            Timer::Feed => last - 3,
            Timer::Sample => last - 2,
            Timer::Keyframe => last - 1,
            Timer::Tick => last,
        }
    }

    /// The number of [`Timer::End`].
    pub fn end(&self, at: usize) -> usize {
        2 + self.cores + self.tasks + at
    }
}

/// A host in motion.
pub(crate) struct Engine<'a> {
    pub scenario: &'a Scenario,
    pub now: Nanos,
    pub layout: Layout,
    pub timers: Timers,
    pub hardware: Hardware,
    pub threads: Vec<Thread>,
    /// What is remembered of their bursts, by thread.
    pub records: Vec<BurstRecord>,
    pub helpers: Vec<HelperThread>,
    pub cores: Vec<Core>,
    pub tasks: Vec<TaskState>,
    /// Tasks from here on are the kernel's: policies do not see them.
    pub visible: usize,
    /// The scheduler of the kernel, where each core has a queue of its own.
    pub linux: Option<Box<Linux>>,
    /// The thread whose end of a burst is under way: it wakes others.
    pub acting: Option<usize>,
    /// By task.
    pub programs: Vec<ProgramState>,
    /// What the kernel moved just now.
    pub migrations: Vec<Migration>,
    pub backend: Backend,
    pub seen: Snapshot,
    pub went_idle: CoreSet,
    /// Threads whose bursts were too long, those that have proved themselves, and those that ended, since the last Snapshot.
    pub overruns: Vec<usize>,
    pub proofs: Vec<usize>,
    pub exits: Vec<Burst>,
    pub rt_shares: Vec<RtShare>,
    /// Cores that are online, online and without a thread, and with a thread on each rung.
    pub online: CoreSet,
    pub idle: CoreSet,
    pub on_rung: [CoreSet; RUNGS],
    /// Cores on which BE runs.
    pub on_be: CoreSet,
    /// Cores whose burst is looked at no later than its budget ends: their timer is armed for that.
    pub checks_armed: CoreSet,
    pub books: Books,
    pub report: Report,
    pub timeline: Timeline,
    pub feed: Feed,
    pub trace: Option<Trace<'a>>,
    pub plan: Plan,
    /// Chance of the back end.
    pub mishaps: Chance,
    pub last_plan: Plan,
    last_tick: Option<Nanos>,
    checker: Checker,
    /// When what changes, in order; up to `changed` it has.
    changes: Vec<usize>,
    changed: usize,
    /// Per task, since when a thread of it waits although a core could serve it.
    pub inverted: Vec<Option<Nanos>>,
    /// Per task in `inverted`, since when what waits longest did so after the last event.
    oldest: Vec<Nanos>,
    /// Scratch: where the machine's stretch moved.
    moved: Vec<(usize, usize)>,
}

/// Simulated time between two checks of the accounting, in debug builds.
const DEBUG_INTERVAL: Nanos = Nanos::from_millis(1);

/// Streams of chance from here on are those of helpers.
const HELPER_STREAMS: u64 = 1 << 42;

const RUNGS: usize = Rung::SchedIdle as usize + 1;

/// Runs a scenario under a policy.
pub fn run(scenario: &Scenario, policy: &mut dyn Policy) -> Report {
    Engine::new(scenario, None).run(policy)
}

/// Runs a scenario under a policy and tells everything that the scheduler did.
pub fn run_traced(scenario: &Scenario, policy: &mut dyn Policy, sink: &mut dyn Sink) -> Report {
    Engine::new(scenario, Some(Trace::new(sink, scenario.host.topology.len()))).run(policy)
}

impl<'a> Engine<'a> {
    fn new(scenario: &'a Scenario, trace: Option<Trace<'a>>) -> Engine<'a> {
        let topology = &scenario.host.topology;
        let profiles = scenario.tasks.iter().map(|task| task.phases[0].profile).collect();
        let hardware = Hardware::new(scenario.machine.clone(), topology, profiles);
        let domains = domains_of(topology);
        let cores = topology.cores().iter().zip(&domains).map(|(core, domain)| {
            let siblings = topology.siblings(core.id);
            let siblings = siblings.iter().filter_map(|sibling| topology.position(sibling));
            Core::new(core.id, siblings.collect(), *domain, hardware.domains[*domain].node)
                .with_capacity(topology.capacity(core.id))
        });
        let cores: Vec<Core> = cores.collect();
        let (threads, tasks, helpers) = people(scenario);
        let checks = if scenario.host.caps.bursts { cores.len() } else { 0 };
        let nodes = hardware.nodes.len();
        let has_programs = scenario.tasks.iter().any(|task| task.load.program().is_some());
        let programs = if has_programs { threads.len() } else { 0 };
        let layout = Layout::new(cores.len(), tasks.len(), nodes, checks, helpers.len(), programs);
        let mut changes: Vec<usize> = (0..scenario.changes.len()).collect();
        changes.sort_by_key(|nth| scenario.changes[*nth].0);
        let (linux, groups) = linux_of(scenario);
        Engine {
            now: Nanos::ZERO,
            timers: Timers::new(layout.kinds.len()),
            layout,
            visible: tasks.iter().take_while(|task| !task.is_kernel).count(),
            linux,
            acting: None,
            programs: programs_of(scenario, groups),
            migrations: Vec::new(),
            backend: Backend::new(cores.len(), &tasks),
            seen: room(cores.len(), tasks.len()),
            went_idle: CoreSet::EMPTY,
            overruns: Vec::new(),
            proofs: Vec::new(),
            exits: Vec::new(),
            rt_shares: vec![RtShare::default(); cores.len()],
            online: topology.all(),
            idle: topology.all(),
            on_rung: [CoreSet::EMPTY; RUNGS],
            on_be: CoreSet::EMPTY,
            checks_armed: CoreSet::EMPTY,
            books: Books::new(tasks.len()),
            report: Report::new(tasks.len()),
            timeline: Timeline::new(tasks.len()),
            feed: Feed::new(tasks.len()),
            trace,
            plan: Plan::default(),
            mishaps: Chance::new(scenario.seed, u64::MAX),
            last_plan: Plan::default(),
            last_tick: None,
            checker: Checker::default(),
            changes,
            changed: 0,
            inverted: vec![None; tasks.len()],
            oldest: vec![Nanos::ZERO; tasks.len()],
            moved: Vec::new(),
            hardware,
            records: vec![BurstRecord::default(); threads.len()],
            threads,
            helpers,
            cores,
            tasks,
            scenario,
        }
    }

    fn run(mut self, policy: &mut dyn Policy) -> Report {
        self.prepare();
        loop {
            let (at, timer) = self.timers.next();
            if at > self.scenario.length {
                return self.finish();
            }
            debug_assert!(self.now <= at, "time runs backwards: {at} after {}", self.now);
            if at.0 / DEBUG_INTERVAL.0 > self.now.0 / DEBUG_INTERVAL.0 {
                self.debug_check();
            }
            self.note_waste(at);
            self.now = at;
            self.timers.arm(timer, Nanos::MAX);
            if let keyframe @ Timer::Keyframe = self.layout.kinds[timer] {
                // Of the trace alone: what is simulated is the same without it, its digest included.
                self.handle(keyframe);
                continue;
            }
            self.report.events += 1;
            self.acting = None;
            match self.layout.kinds[timer] {
                Timer::Tick => self.tick(policy),
                other => self.handle(other),
            }
            self.watch_inversions();
            self.tell_switches();
        }
    }

    fn prepare(&mut self) {
        let arm = |engine: &mut Engine, timer, at| {
            let timer = engine.layout.timer(timer);
            engine.timers.arm(timer, at);
        };
        arm(self, Timer::Tick, Nanos::ZERO);
        arm(self, Timer::WarmUp, self.scenario.warm_up);
        if let Some(first) = self.changes.first() {
            arm(self, Timer::Change, self.scenario.changes[*first].0);
        }
        if self.scenario.sample > Nanos::ZERO {
            arm(self, Timer::Sample, self.scenario.sample);
        }
        if self.scenario.feed > Nanos::ZERO {
            arm(self, Timer::Feed, self.scenario.feed);
        }
        if self.trace.is_some() {
            arm(self, Timer::Keyframe, Nanos::ZERO);
            if let Some(linux) = &mut self.linux {
                linux.note_records();
            }
        }
        if self.hardware.drifts() {
            (0..self.hardware.nodes.len())
                .for_each(|node| arm(self, Timer::Drift(node), CACHE_STEP));
        }
        for task in 0..self.tasks.len() {
            self.allow(task);
        }
        (0..self.cores.len()).for_each(|at| self.arm_idle_tick(at));
        for task in 0..self.tasks.len() {
            self.begin_load(task);
        }
    }

    /// Sets a task that just joined to work.
    pub fn begin_load(&mut self, task: usize) {
        self.begin_helpers(task);
        match self.scenario.tasks[task].load {
            Load::Hog => {
                let first = self.tasks[task].first;
                self.tasks[task].sleepers.clear();
                for thread in first..first + self.scenario.tasks[task].threads as usize {
                    self.wake(thread, Work::Endless);
                }
            }
            Load::Program(_) => self.begin_program(task),
            Load::Recorded(_) => self.begin_recording(task),
            Load::Open { .. } => {
                self.tasks[task].arrival_ps = self.now.0.saturating_mul(1_000);
                self.schedule_arrival(task);
            }
        }
    }

    /// No more requests and helpers for a task that left.
    pub fn silence(&mut self, task: usize) {
        self.timers.arm(self.layout.timer(Timer::Arrival(task)), Nanos::MAX);
        for nth in 0..self.helpers.len() {
            if self.threads[self.helpers[nth].thread].task == task {
                self.timers.arm(self.layout.timer(Timer::Helper(nth)), Nanos::MAX);
            }
        }
    }

    /// Asks for a decision as soon as the tick allows.
    pub fn ring(&mut self) {
        let earliest = self.last_tick.map_or(self.now, |last| last + self.scenario.tick);
        let tick = self.layout.timer(Timer::Tick);
        let due = self.timers.time(tick).min(earliest.max(self.now));
        self.timers.arm(tick, due);
    }

    /// A node's memory will notice a change.
    pub fn settle_soon(&mut self, node: usize) {
        let timer = self.layout.timer(Timer::Memory(node));
        if self.timers.time(timer) == Nanos::MAX {
            self.timers.arm(timer, self.now + crate::machine::Memory::REACTION);
        }
    }

    fn tick(&mut self, policy: &mut dyn Policy) {
        self.observe();
        // A policy writes the whole Plan, whatever was there.
        std::mem::swap(&mut self.last_plan, &mut self.plan);
        let wake = policy.decide(self.now, &self.seen, &mut self.plan);
        self.report.ticks += 1;
        let mut found = Vec::new();
        self.checker.check(&self.scenario.host, &self.seen, &self.plan, &mut found);
        self.report.breached(self.now, found);
        self.seen.dirty.clear();
        self.tell_decision();
        self.report.compare(self.now, &self.last_plan, &self.plan);
        self.last_tick = Some(self.now);
        self.carry_out();
        if let Wake::At(at) = wake {
            let tick = self.layout.timer(Timer::Tick);
            let due = self.timers.time(tick).min(at.max(self.now + self.scenario.tick));
            self.timers.arm(tick, due);
        }
    }

    /// The threads of a task.
    pub fn threads_of(&self, task: usize) -> std::ops::Range<usize> {
        let first = self.tasks[task].first;
        first..first + self.scenario.tasks[task].all_threads() as usize
    }

    /// The position of a core.
    #[expect(
        clippy::expect_used,
        reason = "every core in a set of the engine comes from the topology"
    )]
    pub fn at(&self, core: quell_model::CoreId) -> usize {
        self.scenario.host.topology.position(core).expect("a core of the host")
    }

    fn finish(mut self) -> Report {
        self.note_waste(self.scenario.length);
        self.now = self.scenario.length;
        // Cores that are busy to the end tell nothing, and a trace ends with its last event.
        self.tell_keyframe();
        self.book_all();
        (0..self.threads.len()).for_each(|thread| self.note_kernel_wait(thread));
        for core in &mut self.cores {
            if core.running.is_none() {
                core.book_idle(self.now);
            }
        }
        self.close_books()
    }

    /// Books every thread, core and node up to now.
    pub fn book_all(&mut self) {
        (0..self.cores.len()).for_each(|at| self.account(at));
        (0..self.hardware.nodes.len()).for_each(|node| self.hardware.book(node, self.now));
    }
}

/// Whether policies see bursts of the task's threads, and give them roles.
fn has_roles(scenario: &Scenario, task: &Task) -> bool {
    let limits = &task.limits;
    let is_lc = limits.class == Class::LatencyCritical;
    scenario.host.caps.bursts && is_lc && limits.scheduler == TaskScheduler::Kernel
}

/// The threads of all tasks, asleep, the tasks, and which threads are helpers.
fn people(scenario: &Scenario) -> (Vec<Thread>, Vec<TaskState>, Vec<HelperThread>) {
    let (mut threads, mut tasks, mut helpers) = (Vec::new(), Vec::new(), Vec::new());
    for (at, task) in scenario.tasks.iter().enumerate() {
        let first = threads.len();
        let thread = |helper| Thread {
            task: at,
            state: State::Sleeping,
            work: Work::Nothing,
            last_core: None,
            ran: Nanos::ZERO,
            role: Role::Event,
            helper,
            start_core: None,
            waker: None,
        };
        threads.extend((0..task.threads).map(|_| thread(None)));
        tasks.push(task_state(scenario, at, first));
        let kinds = task.helpers.iter().enumerate();
        for (kind, nth) in kinds.flat_map(|(kind, of)| (0..of.threads).map(move |nth| (kind, nth)))
        {
            let stream = HELPER_STREAMS + helpers.len() as u64;
            let pinned = (task.style == Style::Kernel).then_some(nth as usize);
            let chance = Chance::new(scenario.seed, stream);
            threads.push(thread(Some(helpers.len() as u32)));
            helpers.push(HelperThread { thread: threads.len() - 1, kind, pinned, chance });
        }
    }
    (threads, tasks, helpers)
}

/// A task whose threads are numbered from `first` on.
fn task_state(scenario: &Scenario, at: usize, first: usize) -> TaskState {
    let task = &scenario.tasks[at];
    let is_kernel = task.style == Style::Kernel;
    // Before the first Plan a shared core is open to every task that is allowed on it.
    let shares = scenario.host.caps.shares_cores;
    TaskState {
        alive: true,
        generation: 0,
        class: task.limits.class,
        // Threads of the kernel share the fair class with background threads.
        rung: if is_kernel { Rung::LcFair } else { Rung::Original },
        has_roles: has_roles(scenario, task),
        demoted: 0,
        is_kernel,
        held: 0,
        shared_cores: if shares { task.limits.allowed } else { CoreSet::EMPTY },
        owned: CoreSet::EMPTY,
        reach: task.limits.allowed.intersection(&scenario.host.managed),
        bound: scenario.host.topology.all(),
        allowed: CoreSet::EMPTY,
        first,
        sleepers: (first..first + task.threads as usize).rev().collect(),
        waiting: std::collections::VecDeque::new(),
        backlog: std::collections::VecDeque::new(),
        inboxes: match task.own_connections {
            true => vec![std::collections::VecDeque::new(); task.threads as usize],
            false => Vec::new(),
        },
        running: 0,
        running_on: CoreSet::EMPTY,
        polling_on: CoreSet::EMPTY,
        chance: Chance::new(scenario.seed, at as u64),
        arrival_ps: 0,
        phase: 0,
        progress: Progress {
            left: task.phases[0].work.0 << crate::kernel::WORK_BITS,
            ..Progress::default()
        },
    }
}
