//! The scheduler thread's state: sole owner of observer, policy, executor and back end.
//!
//! One tick is the whole data flow: events → Snapshot → Plan → Outcome. Nothing in it blocks, and once
//! tables have their size nothing in it allocates.

mod congestion;
mod decisions;
mod feed;
mod groups;
mod hints;
mod lanes;
mod members;
mod readings;
mod rehearse;
mod roles;
mod run;
mod runtimes;
mod sight;
mod status;
mod tally;
mod ticks;
mod traffic;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_act::Executor;
use quell_act::backend::{BackEnd, GroupUse, Groups, Notice};
use quell_decisions::{Recorder, RingSink};
use quell_model::{Class, CoreSet, Nanos, Plan, Reason, Rung, Snapshot, TaskPlan};
use quell_observe::HostEvent;
use quell_observe::topology::Hotplug;
use quell_policy::invariants::{Checker, Violation};
use quell_policy::{Host, Policy, Wake};

use crate::events::Events;
use crate::feed::FeedWriter;
use crate::guardian::Guardians;
use crate::lane::Departure;
use crate::memory::Gauge;
use congestion::Congestion;
use hints::Pages;
use lanes::Lanes;
pub use lanes::Link;
use members::Members;
pub use run::{EngineThread, Pace, Settings};
use runtimes::Runtimes;
pub use sight::Sight;
use ticks::Ticks;
use traffic::Meter;

/// How often the set of online cores is read again.
const HOTPLUG_LOOK: Nanos = Nanos::from_millis(100);

/// What the engine is made of.
pub struct Parts {
    /// The host as the policy knows it.
    pub host: Host,
    /// Fills Snapshots.
    pub sight: Sight,
    /// Decides.
    pub policy: Box<dyn Policy>,
    /// Carries Plans out.
    pub back_end: Box<dyn BackEnd + Send>,
    /// Quell's own cgroups for launched tasks.
    pub groups: Groups,
    /// Which of them the back end needs.
    pub group_use: GroupUse,
    /// The one place that writes to the host.
    pub executor: Executor,
    /// Who restores the host if this process dies; `None` in a dry run.
    pub guardians: Option<Guardians>,
    /// Notes every decision, if asked to.
    pub recorder: Option<Recorder<RingSink>>,
    /// Where subscribers read what is decided; `None` in a dry run.
    pub feed: Option<FeedWriter>,
    /// Reads memory traffic, if the policy wants it.
    pub memory: Option<Gauge>,
    /// What this host lacks, in sentences.
    pub degraded: Vec<String>,
}

/// See the module's documentation.
pub struct Engine {
    parts: Parts,
    members: Members,
    seen: Snapshot,
    plan: Plan,
    last_plan: Plan,
    /// What [`feed::publish`] works with.
    owned: feed::Owned,
    checker: Checker,
    violations: Vec<Violation>,
    pending: Vec<HostEvent>,
    hotplug_due: Nanos,
    /// When the first reading of a latency is too old.
    stale_due: Nanos,
    /// `None` on a host without the kernel's list: it has no hotplug.
    hotplug: Option<Hotplug>,
    hints: Pages,
    runtimes: Runtimes,
    lanes: Lanes,
    /// The Plan differs from the last one.
    replanned: bool,
    /// A tick is due at once: something happened while the last one acted.
    hurry: bool,
    /// When the observer's roles are compared with the Plan's.
    roles_due: Nanos,
    traffic: Option<Meter>,
    ticks: Ticks,
    congestion: Congestion,
    events: Events,
    settings: run::Settings,
    listening: bool,
    /// No LC task holds a core that it may have to give up when it falls idle.
    at_rest: bool,
    /// Threads that leave their lanes.
    left: Vec<Departure>,
    sweep_due: Arc<AtomicBool>,
}

impl Engine {
    /// An engine without tasks. It sets `sweep_due` when events were lost.
    pub fn new(mut parts: Parts, settings: run::Settings, sweep_due: Arc<AtomicBool>) -> Engine {
        parts.sight.observer().manage(&parts.host.managed);
        let mut engine = Engine {
            members: Members::default(),
            seen: Snapshot::default(),
            plan: Plan::default(),
            last_plan: Plan::default(),
            owned: feed::Owned::default(),
            checker: Checker::default(),
            violations: Vec::with_capacity(64),
            pending: Vec::with_capacity(256),
            hotplug_due: Nanos::ZERO,
            stale_due: Nanos::MAX,
            hotplug: Hotplug::new().ok(),
            hints: Pages::default(),
            runtimes: Runtimes::new(settings.revoke_deadline),
            lanes: Lanes::new(settings.lane_rungs),
            replanned: false,
            hurry: false,
            roles_due: Nanos::ZERO,
            traffic: parts.memory.take().map(Meter::new),
            ticks: Ticks::default(),
            congestion: Congestion::new(settings.congestion_after),
            events: Events::default(),
            settings,
            listening: false,
            at_rest: false,
            left: Vec::new(),
            sweep_due,
            parts,
        };
        engine.seen.cores = engine.blank_cores();
        let online = engine.hotplug.as_ref().map(|hotplug| *hotplug.online());
        if let Some(gone) =
            online.map(|online| engine.parts.host.topology.all().difference(&online))
        {
            engine.note_cores(gone, false);
        }
        engine
    }

    fn blank_cores(&self) -> Vec<quell_model::CoreView> {
        let view = |core: &quell_model::Core| quell_model::CoreView {
            managed: self.parts.host.managed.contains(core.id),
            ..quell_model::CoreView::new(core.id)
        };
        self.parts.host.topology.cores().iter().map(view).collect()
    }

    /// One tick: the whole data flow once. `by_event` tells what called it.
    pub fn tick(&mut self, now: Nanos, by_event: bool) -> Wake {
        let wake = self.decide(now);
        self.act(now);
        self.ticks.count(by_event);
        wake
    }

    /// The tick's first half: from the host to a Plan.
    fn decide(&mut self, now: Nanos) -> Wake {
        self.take_events();
        self.look_at_cores(now);
        self.drop_stale_readings(now);
        debug_assert!(
            self.seen.now <= now,
            "the clock runs backwards: {now} after {}",
            self.seen.now
        );
        self.seen.now = now;
        self.parts.sight.observer().read(&mut self.seen);
        self.take_hints();
        if let Some(traffic) = &mut self.traffic {
            traffic.fill(&mut self.seen);
        }
        for outcome in self.parts.back_end.outcomes() {
            if let Some(at) = self.parts.host.topology.position(outcome.core) {
                debug_assert_eq!(self.seen.cores[at].id, outcome.core, "outcome of another core");
                self.seen.cores[at].outcome = outcome.outcome;
            }
        }
        let wake = self.parts.policy.decide(now, &self.seen, &mut self.plan);
        self.debug_check_plan();
        self.record(now, wake);
        self.check_invariants();
        self.watch_congestion();
        self.replanned = self.plan != self.last_plan;
        if self.replanned {
            self.ticks.plans += 1;
            if let Some(feed) = self.parts.feed.as_mut().filter(|feed| feed.is_wanted()) {
                feed::publish(feed, &mut self.owned, now, &self.last_plan, &self.plan);
            }
            self.note_roles();
            self.count_reliefs();
            self.last_plan.clone_from(&self.plan);
            self.listen();
            self.at_rest = !self.lends();
        }
        self.compare_roles(now);
        self.seen.dirty.clear();
        self.seen.bursts.clear();
        self.seen.locks.clear();
        wake
    }

    /// The Plan is about the tasks and cores of the Snapshot. Release builds compile this to nothing.
    fn debug_check_plan(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        for (index, task) in self.plan.tasks.iter().enumerate() {
            debug_assert_eq!(task.id.at(), index, "the Plan has a task in the place of another");
        }
        let managed = &self.parts.host.managed;
        for core in &self.plan.cores {
            let alive = |id| self.members.get(id).is_some();
            debug_assert!(core.owner.is_none_or(alive), "core {} is of a task that left", core.id);
            let may = core.owner.is_none() || managed.contains(core.id);
            debug_assert!(may, "core {} has an owner and is not managed", core.id);
        }
    }

    /// After the observer: it tells where the threads run.
    fn take_hints(&mut self) {
        let threads = self.parts.sight.seen().threads();
        if self.hints.is_active() || self.runtimes.is_active() {
            hints::clear(&mut self.seen);
        }
        let (members, events) = (&mut self.members, &mut self.events);
        self.hints.fill(&mut self.seen, threads, |task, what| members.problem(task, events, what));
        self.runtimes.fill(&mut self.seen, threads);
    }

    fn record(&mut self, now: Nanos, wake: Wake) {
        let Some(recorder) = &mut self.parts.recorder else { return };
        let complete = recorder.counts().lost == 0;
        recorder.record(now, &self.seen, &self.plan, wake, self.parts.policy.as_ref());
        if complete && recorder.counts().lost > 0 {
            self.events.tell("the recording has gaps: its writer is behind, or cannot write");
        }
    }

    /// Asks for events while they can change something. Each costs the managed core a wake-up of this thread,
    /// hundreds a second under load; where one core is owned by the one LC task that may have it, there is
    /// nothing to decide.
    fn listen(&mut self) {
        let unserved = |plan: &TaskPlan| {
            plan.class == Class::LatencyCritical
                && plan.rung != Rung::Lc
                && self.members.get(plan.id).is_some()
        };
        let mut wanted = self.parts.host.managed.len() > 1;
        for plan in &self.plan.tasks {
            let unserved = unserved(plan);
            self.parts.sight.observer().note_unserved(plan.id, unserved);
            wanted |= unserved;
        }
        wanted &= self.settings.events;
        if wanted != self.listening {
            self.listening = wanted;
            self.parts.sight.observer().wake_on_events(wanted);
        }
    }

    /// Whether an LC task holds a core beyond its guarantee: somebody gets it back once it is left.
    fn lends(&self) -> bool {
        self.plan.cores.iter().any(|core| {
            let owner = core.owner.and_then(|id| self.plan.tasks.get(id.at()));
            let is_lc = owner.is_some_and(|task| task.class == Class::LatencyCritical);
            is_lc && core.reason != Reason::Guaranteed
        })
    }

    /// The second half: from the Plan to the host.
    fn act(&mut self, now: Nanos) {
        self.beat(now);
        self.take_departures();
        self.lanes.stand_up(&self.plan);
        let (host, back_end) = (&self.parts.host, &mut self.parts.back_end);
        self.runtimes.assign(
            &self.plan,
            self.replanned,
            &host.topology,
            now,
            &mut |thread, core| back_end.pin(thread, core),
        );
        let threads = self.parts.sight.seen().threads();
        let report = self.parts.back_end.apply(&self.plan, threads, &mut self.parts.executor);
        self.lanes.sit_down(&self.plan);
        self.lanes.lend(&self.parts.sight, &mut self.parts.executor, now);
        self.runtimes.finish(&self.seen, now);
        if report.writes() > 0 {
            self.publish_threads();
        }
        self.ticks.changes += u64::from(report.writes());
        self.ticks.refused += u64::from(report.refused);
        self.ticks.stale += u64::from(report.stale);
        self.take_notices();
    }

    fn take_notices(&mut self) {
        let (members, events, lanes) = (&mut self.members, &mut self.events, &self.lanes);
        let left = &mut self.left;
        self.parts.back_end.drain_notices(&mut |notice| match notice {
            // Its wish is respected, and a lane takes all of a thread or nothing.
            Notice::ChangedByTask { task, thread, .. } if lanes.of(task).is_some() => {
                left.push(Departure { task, thread, why: "it changed its own scheduling" });
            }
            Notice::ChangedByTask { task, thread, what } => members.problem(
                task,
                events,
                format!("thread {} changed its own {what}; it is left so", thread.tid),
            ),
            Notice::Unelevated { task, errno } => members.problem(
                task,
                events,
                format!(
                    "the host refuses it real-time priority ({}); it keeps its own policy. `quell doctor` tells why",
                    std::io::Error::from_raw_os_error(errno)
                ),
            ),
            Notice::Elevated(task) => {
                members.problem(task, events, "it has real-time priority now".to_owned());
            }
            Notice::Refused { task, what, target, errno } => members.problem(
                task,
                events,
                format!("{what} of {}: {}", target.display(), std::io::Error::from_raw_os_error(errno)),
            ),
        });
        while let Some(departure) = self.left.pop() {
            self.let_go(&departure);
        }
    }

    fn take_events(&mut self) {
        let pending = &mut self.pending;
        pending.clear();
        self.parts.sight.observer().drain_events(&mut |event| pending.push(event));
        for at in 0..self.pending.len() {
            match self.pending[at] {
                HostEvent::Forked { parent, child, task, watched, .. } => {
                    if watched && self.lanes.of(task).is_some() {
                        self.lanes.look_for_threads();
                    }
                    let host = &mut self.parts.executor;
                    self.parts.back_end.forked(&parent, &child, watched, host);
                    self.ticks.forks += 1;
                    self.publish_threads();
                }
                HostEvent::Exited(thread) => {
                    self.lanes.exited(&thread);
                    self.parts.executor.forget(&thread);
                    self.publish_threads();
                }
                HostEvent::Execed(_) => self.lanes.execed(),
                HostEvent::CoreIdle(_) => {}
                HostEvent::LcQueued(task) => self.seen.dirty.push(task.index),
                HostEvent::Lost(events) => {
                    self.ticks.events_lost += events;
                    // Relaxed: a flag alone; whoever sees it reads /proc anew.
                    self.sweep_due.store(true, Ordering::Relaxed);
                    self.lanes.lost_events(self.parts.sight.seen().threads());
                }
            }
        }
    }

    /// Hotplug: the kernel's list of online cores, read a few times a second.
    fn look_at_cores(&mut self, now: Nanos) {
        if now < self.hotplug_due {
            return;
        }
        self.hotplug_due = now + HOTPLUG_LOOK;
        let Some(hotplug) = &mut self.hotplug else { return };
        let before = *hotplug.online();
        // A list that does not read is read again in a while.
        let Ok(Some(present)) = hotplug.changed() else { return };
        self.note_cores(before.difference(&present), false);
        self.note_cores(present.difference(&before), true);
        let alive = self.seen.tasks.iter().filter(|task| task.alive).map(|task| task.id.index);
        self.seen.dirty.extend(alive);
    }

    fn note_cores(&mut self, changed: CoreSet, online: bool) {
        if changed.is_empty() {
            return;
        }
        let what = if online { "came online" } else { "went offline" };
        self.events.tell(format!("core {changed} {what}"));
        for core in self.seen.cores.iter_mut().filter(|core| changed.contains(core.id)) {
            core.online = online;
        }
    }

    fn check_invariants(&mut self) {
        self.violations.clear();
        self.checker.check(&self.parts.host, &self.seen, &self.plan, &mut self.violations);
        for violation in &self.violations {
            self.ticks.violated(violation.rule);
            self.events.tell(format!("invariant violated: {violation}"));
        }
    }
}
