//! The event loop.

mod events;
mod schedule;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use quell_model::{Class, CoreSet, Nanos, Plan, Rung, Snapshot};
use quell_policy::invariants::Checker;
use quell_policy::{Policy, Wake};

use crate::backend::{Action, Backend};
use crate::chance::Chance;
use crate::cpu::{Core, Rights, State, Thread, Work};
use crate::observe::room;
use crate::report::{Report, TaskReport};
use crate::scenario::{Load, Scenario};

/// What happens next. The order breaks ties in time after the sequence number, which is unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A request arrives at a task.
    Arrival(usize),
    /// A thread finishes what it started the `starts`-th time it was put on a core.
    Finished { thread: usize, starts: u64 },
    /// Its slice ends.
    Slice { thread: usize, starts: u64 },
    /// An action of the back end takes effect.
    Effect(Action),
    /// The host changes.
    Change(usize),
}

/// A host in motion.
pub(crate) struct Engine<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) now: Nanos,
    pub(crate) threads: Vec<Thread>,
    pub(crate) cores: Vec<Core>,
    pub(crate) alive: Vec<bool>,
    pub(crate) generations: Vec<u32>,
    pub(crate) backend: Backend,
    pub(crate) seen: Snapshot,
    pub(crate) went_idle: CoreSet,
    rights: Vec<Rights>,
    /// Cores that each task may use now.
    allowed: Vec<CoreSet>,
    /// Requests that wait for a thread: when they arrived and how long they take.
    backlog: Vec<VecDeque<(Nanos, Nanos)>>,
    /// One stream of chance a task, so that its requests do not depend on the policy, and one for actions.
    arrivals: Vec<Chance>,
    mishaps: Chance,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    sequence: u64,
    next_tick: Nanos,
    last_tick: Option<Nanos>,
    plan: Plan,
    checker: Checker,
    /// Per task, since when a thread of it waits although a core could serve it.
    inverted: Vec<Option<Nanos>>,
    report: Report,
}

/// Runs a scenario under a policy.
pub fn run(scenario: &Scenario, policy: &mut dyn Policy) -> Report {
    let mut engine = Engine::new(scenario);
    engine.prepare();
    loop {
        let event_at = engine.events.peek().map_or(Nanos::MAX, |Reverse((at, _, _))| *at);
        let at = event_at.min(engine.next_tick);
        if at > scenario.length {
            return engine.finish();
        }
        engine.now = at;
        if event_at <= engine.next_tick {
            if let Some(Reverse((_, _, event))) = engine.events.pop() {
                engine.handle(event);
            }
        } else {
            engine.tick(policy);
        }
        engine.watch_inversions();
    }
}

impl<'a> Engine<'a> {
    fn new(scenario: &'a Scenario) -> Engine<'a> {
        let cores: Vec<Core> =
            scenario.host.topology.cores().iter().map(|core| Core::new(core.id)).collect();
        let tasks = scenario.tasks.len();
        let thread = |task| Thread {
            task,
            state: State::Sleeping,
            work: Work::Nothing,
            last_core: None,
            ran: Nanos::ZERO,
            starts: 0,
        };
        let threads = (0..tasks)
            .flat_map(|task| (0..scenario.tasks[task].threads).map(move |_| thread(task)))
            .collect();
        // Before the first Plan a shared core is open to every task that is allowed on it.
        let shares = scenario.host.caps.shares_cores;
        let rights = scenario.tasks.iter().map(|task| Rights {
            rung: Rung::Own,
            beneath: if shares { task.limits.allowed } else { CoreSet::EMPTY },
        });
        let stream = |number: usize| Chance::new(scenario.seed.wrapping_mul(1_000) + number as u64);
        Engine {
            now: Nanos::ZERO,
            threads,
            alive: vec![true; tasks],
            generations: vec![0; tasks],
            backend: Backend::new(scenario.faults, cores.len(), tasks),
            seen: room(cores.len(), tasks),
            went_idle: CoreSet::EMPTY,
            rights: rights.collect(),
            allowed: vec![CoreSet::EMPTY; tasks],
            backlog: vec![VecDeque::new(); tasks],
            arrivals: (0..tasks).map(stream).collect(),
            mishaps: stream(tasks),
            events: BinaryHeap::new(),
            sequence: 0,
            next_tick: Nanos::ZERO,
            last_tick: None,
            plan: Plan::default(),
            checker: Checker::default(),
            inverted: vec![None; tasks],
            report: Report { tasks: vec![TaskReport::default(); tasks], ..Report::default() },
            cores,
            scenario,
        }
    }

    fn prepare(&mut self) {
        for (nth, (at, _)) in self.scenario.changes.iter().enumerate() {
            self.schedule(*at, Event::Change(nth));
        }
        self.settle();
        for place in 0..self.scenario.tasks.len() {
            self.begin(place);
        }
    }

    /// Sets a task that just joined to work.
    fn begin(&mut self, place: usize) {
        match self.scenario.tasks[place].load {
            Load::Hog => {
                for thread in 0..self.threads.len() {
                    if self.threads[thread].task == place {
                        self.wake(thread, Work::Endless);
                    }
                }
            }
            Load::Open { .. } => self.schedule_arrival(place),
        }
    }

    fn schedule(&mut self, at: Nanos, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    /// Asks for a decision as soon as the tick allows.
    fn ring(&mut self) {
        let earliest = self.last_tick.map_or(self.now, |last| last + self.scenario.tick);
        self.next_tick = self.next_tick.min(earliest.max(self.now));
    }

    fn tick(&mut self, policy: &mut dyn Policy) {
        self.observe();
        let before = self.plan.clone();
        let wake = policy.decide(self.now, &self.seen, &mut self.plan);
        self.report.ticks += 1;
        self.report.compare(&before, &self.plan);
        self.report.fingerprint(self.now, &self.plan);
        let mut found = Vec::new();
        self.checker.check(&self.scenario.host, &self.seen, &self.plan, &mut found);
        self.report.violations.extend(found.into_iter().map(|violation| (self.now, violation)));
        for (at, action) in self.backend.carry_out(&self.plan, self.now, &mut self.mishaps) {
            self.schedule(at, Event::Effect(action));
        }
        self.last_tick = Some(self.now);
        self.next_tick = match wake {
            Wake::At(at) => at.max(self.now + self.scenario.tick),
            Wake::OnChange => Nanos::MAX,
        };
    }

    /// Notes how long an LC thread waits although a core that its task may own more of idles or runs BE.
    fn watch_inversions(&mut self) {
        for place in 0..self.scenario.tasks.len() {
            let inverted = self.is_inverted(place);
            let since = &mut self.inverted[place];
            match (inverted, *since) {
                (true, None) => *since = Some(self.now),
                (false, Some(began)) => {
                    let lasted = self.now.since(began);
                    self.report.longest_inversion = self.report.longest_inversion.max(lasted);
                    *since = None;
                }
                _ => {}
            }
        }
    }

    fn is_inverted(&self, place: usize) -> bool {
        let treated = self.plan.tasks.get(place).map(|task| task.class);
        if treated != Some(Class::LatencyCritical) {
            return false;
        }
        let threads = || self.threads.iter().filter(|thread| thread.task == place);
        let running = threads().filter(|thread| matches!(thread.state, State::Running { .. }));
        let limits = &self.scenario.tasks[place].limits;
        threads().any(|thread| matches!(thread.state, State::Waiting { .. }))
            && running.count() < limits.max as usize
            && self.cores.iter().any(|core| {
                let runs_be =
                    |thread: usize| self.class_of(self.threads[thread].task) == Class::BestEffort;
                core.online
                    && self.scenario.host.managed.contains(core.id)
                    && limits.allowed.contains(core.id)
                    && core.running.is_none_or(runs_be)
            })
    }

    fn finish(mut self) -> Report {
        self.now = self.scenario.length;
        for thread in 0..self.threads.len() {
            self.account(thread);
            if let Work::Request { .. } = self.threads[thread].work {
                self.report.tasks[self.threads[thread].task].unanswered += 1;
            }
        }
        for (place, task) in self.report.tasks.iter_mut().enumerate() {
            task.unanswered += self.backlog[place].len() as u64;
            task.latencies.sort_unstable();
        }
        self.report
    }
}
