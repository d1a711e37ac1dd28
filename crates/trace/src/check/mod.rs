//! The sanity checker: did a thread wait while a core idled that it could have used?
//!
//! The invariant is that of "The Linux Scheduler: a Decade of Wasted Cores" (EuroSys 2016, section 4.1): no core
//! stays idle while a thread waits in another's queue that it could take. A [`Checker`] follows a stream of
//! [`Event`]s, whoever tells them, and is pure: the same stream gives the same [`Report`].
//!
//! 1. The host's state comes from the events: who runs, who waits where, which cores are idle.
//! 2. Each waiting thread is judged: an idle core that it may use is waste, of grade A or B; a policy may explain
//!    it (grade C); or nobody said where the thread may run.
//! 3. Waste is added up over a sliding window, by *queue* and by *waiter*. Threads that take turns on one core
//!    wait some milliseconds each, so a waiter alone would never show that they share it needlessly: the queue
//!    does. It starts again when a waiting thread is moved out of it, as in the paper. A waiter's own account
//!    starts again when it runs or is moved.
//! 4. The time of each waiter is charged to a [`Cause`]: how it came to wait there, later the passes of the balancer
//!    that left it there.
//! 5. Where an account fills its window, the queue's episode is a finding. The cause of most of its time is its label.
//!
//! After a loss of events, or while cores come and go, nothing is concluded until the next keyframe.

mod arrival;
mod cause;
mod changes;
mod domains;
mod episode;
mod evidence;
mod facts;
mod finding;
mod flight;
mod label;
mod managed;
mod options;
mod passes;
mod phases;
mod placement;
mod report;
mod sampler;
#[cfg(test)]
mod tests;
mod verdict;
mod waiters;
mod window;

use std::sync::Arc;

use quell_model::{CoreId, CoreSet, Event, Keyframe, Left, Meta, Nanos, Pass, TaskNames, What};

use arrival::Arrivals;
use changes::{Changes, Loss};
use domains::Domains;
use episode::{Episode, Kind};
use evidence::{Log, Totals};
use report::Basis;
use verdict::judge;
use waiters::{WaiterId, WaiterTotals, Waiters};

use crate::host::{HostState, Queues, ThreadState, WastedTime};

pub use crate::host::PolicyReason;

pub use cause::{Cause, CauseShare};
pub use evidence::{Evidence, GroupLoad, Move};
pub use facts::facts;
pub use flight::Flight;
pub use label::Label;
pub use managed::{Managed, ManagedThread};
pub use options::Options;
pub use report::{Report, UnjudgedSpan, Verdict, Waiter, Waste, WasteTimes, WastedWait};
pub use sampler::Sampler;
pub use verdict::Grade;

/// Findings of a kind, and blind spans, that a report lists.
const LISTED_MAX: usize = 1000;
/// Findings that wait to be told.
const ALERTS_MAX: usize = 100;

/// The verdicts of one kind in one queue.
#[derive(Clone, Debug)]
struct Part {
    /// What they say together.
    totals: WaiterTotals,
    episode: Episode,
}

/// A core's queue.
#[derive(Clone, Debug)]
struct Queue {
    /// Since when the verdicts on its waiters hold.
    since: Nanos,
    /// In the order of [`Kind::ALL`].
    parts: [Part; 3],
}

/// Follows a stream of events, and finds waste.
#[derive(Clone, Debug)]
pub struct Checker {
    options: Options,
    host: HostState,
    wasted: WastedTime,
    /// What the host state has reported and is not taken yet.
    changes: Changes,
    log: Log,
    domains: Domains,
    /// How each thread came to its core.
    arrivals: Arrivals,
    managed: Managed,
    tasks: TaskNames,
    /// By the core's number.
    queues: Vec<Queue>,
    /// Queues with an episode.
    begun: CoreSet,
    waiters: Waiters,
    /// Queues with a verdict, of whatever kind.
    concerned: CoreSet,
    now: Nanos,
    ticked: Nanos,
    /// Since when the stream is judged; `None` before it begins, in a blind span and between samples.
    judging: Option<Nanos>,
    /// Nobody looks until the next keyframe.
    is_resting: bool,
    blind: Option<(Nanos, String)>,
    alerts: Vec<WastedWait>,
    report: Report,
    judged: Nanos,
    blind_for: Nanos,
}

impl Checker {
    /// A checker for the host of which a stream tells.
    pub fn new(meta: &Meta, options: Options) -> Checker {
        let cores = meta.topology.cores().last().map_or(0, |core| core.id.index() + 1);
        let part = || Part { totals: WaiterTotals::default(), episode: Episode::new(&options) };
        let queue = || Queue { since: Nanos::ZERO, parts: [part(), part(), part()] };
        let mut host = HostState::new(meta);
        host.set_own(options.own.iter().copied(), &mut ());
        Checker {
            host,
            wasted: WastedTime::default(),
            changes: Changes::default(),
            log: Log::new(meta),
            domains: Domains::new(cores),
            arrivals: Arrivals::default(),
            managed: Managed::default(),
            tasks: TaskNames::default(),
            queues: (0..cores).map(|_| queue()).collect(),
            begun: CoreSet::EMPTY,
            waiters: Waiters::new(cores, &options),
            concerned: CoreSet::EMPTY,
            now: Nanos::ZERO,
            ticked: Nanos::ZERO,
            judging: None,
            is_resting: false,
            blind: None,
            alerts: Vec::new(),
            report: Report::new(meta),
            judged: Nanos::ZERO,
            blind_for: Nanos::ZERO,
            options,
        }
    }

    /// Says which threads a Quell daemon manages from here on, and how. It counts from the next event on.
    pub fn set_managed(&mut self, managed: Managed) {
        let cores = |(number, thread): (&i32, &ManagedThread)| (*number, thread.cores());
        self.host.set_plans(
            managed.threads.iter().map(cores),
            managed.processes.iter().map(cores),
            &mut self.changes,
        );
        self.managed = managed;
    }

    /// Takes the next event. One that is older than its forerunner counts as simultaneous.
    pub fn event(&mut self, event: &Event) {
        if self.judging.is_none() && self.blind.is_none() {
            self.judging = Some(self.now.max(event.at));
        }
        self.report.events += 1;
        self.take(event);
    }

    /// Takes a keyframe that belongs to no stream.
    fn keyframe(&mut self, at: Nanos, keyframe: Arc<Keyframe>) {
        let what = What::Keyframe(keyframe);
        // It has no number among the events of its core, which are read meanwhile.
        self.take(&Event { at, core: CoreId(u16::MAX), sequence: 0, what });
    }

    fn take(&mut self, event: &Event) {
        let at = self.now.max(event.at);
        match std::mem::take(&mut self.is_resting) {
            true => self.wasted.skip(&self.host, at),
            false => drop(self.wasted.advance(&self.host, at)),
        }
        self.log.event(at, event, &self.host);
        self.before(at, event);
        self.host.push(event, &mut self.changes);
        self.now = at;
        self.take_losses(at, event);
        self.take_word(at, &event.what);
        if let Some(wakeup) = &self.changes.busy_wakeup {
            self.log.busy_wakeup(wakeup);
        }
        self.place_waiters(at, &event.what);
        if matches!(event.what, What::Keyframe(_)) {
            self.report.samples += 1;
            self.end_blind(at);
            self.judging.get_or_insert(at);
        }
        if self.judging.is_some() {
            self.reassess(at);
            self.tick(at);
        }
        self.changes.clear();
    }

    /// Notes what shows only while the host is as it was before the event.
    fn before(&mut self, at: Nanos, event: &Event) {
        match &event.what {
            What::Switch { left, how, .. } => self.before_switch(at, event.core, *left, *how),
            What::Migrate { thread, from, .. } => {
                let waits = self.host.thread_by_tid(*thread).filter(|thread| {
                    let is_here = self.host.cores()[thread.core].id == *from;
                    is_here && thread.state == ThreadState::Waiting
                });
                if waits.is_some() {
                    self.changes.relieved.push(*from);
                }
            }
            // Where the domains have changed, the kernel has rebuilt them, and what was seen before does not count.
            What::Keyframe(keyframe) => {
                let is_rebuilt = keyframe.cores.iter().any(|entry| {
                    let known = self.host.core(entry.core).and_then(|core| core.domain.as_ref());
                    known.is_some_and(|known| *known != entry.domain)
                });
                if is_rebuilt {
                    self.pause(at);
                }
            }
            _ => {}
        }
    }

    /// A thread leaves its core: whether it ran there matters to what it waits for.
    fn before_switch(&mut self, at: Nanos, on: CoreId, left: i32, how: Left) {
        let Some(thread) = self.host.thread_by_tid(left) else { return };
        let is_here = self.host.cores()[thread.core].id == on;
        match how {
            Left::Preempted if is_here && thread.state == ThreadState::Running => {
                self.arrivals.ran(WaiterId::of(thread), on, thread.since, at);
            }
            Left::Preempted => {}
            _ => self.arrivals.left(thread.index.index()),
        }
    }

    /// Events are missing: nothing is judged until a keyframe. A thread that waits on another core by what is known
    /// may have been moved to the core of which they are missing.
    fn take_losses(&mut self, at: Nanos, event: &Event) {
        let losses = std::mem::take(&mut self.changes.losses);
        let reported = match event.what {
            What::Lost { count } => Some(count),
            _ => None,
        };
        for (index, Loss { core, from, count }) in losses.iter().enumerate() {
            self.report.lost = self.report.lost.saturating_add(*count);
            self.take_back(*core, *from, at);
            // What is missing before the event comes first.
            let is_reported = reported.is_some() && index + 1 == losses.len();
            let why = if is_reported { "were lost" } else { "are missing" };
            self.go_blind(at, format!("{count} events of core {core} {why}"));
        }
        if let Some(count) = reported.filter(|_| losses.is_empty()) {
            // Of a core that the topology does not have.
            self.report.lost = self.report.lost.saturating_add(count);
            self.go_blind(at, format!("{count} events of core {} were lost", event.core));
        }
        self.changes.losses = losses;
    }

    /// Takes what the host state does not hold.
    fn take_word(&mut self, at: Nanos, what: &What) {
        match what {
            What::Online { of, online } => {
                let way = if *online { "on" } else { "off" };
                self.domains.forget_passes();
                self.go_blind(at, format!("core {of} went {way} line"));
            }
            What::Domains(trees) => {
                if self.domains.take_trees(trees) && self.judging.is_some() {
                    // The kernel has rebuilt them: what was seen before does not count.
                    self.pause(at);
                    self.judging = Some(at);
                }
                self.changes.has_shifted = true;
            }
            What::Pass(pass) => self.take_pass(at, pass),
            What::Task(_) => self.tasks.take(what),
            What::Planned(plan) => {
                let managed = ManagedThread {
                    original: plan.original,
                    planned: plan.original.intersection(&plan.cores),
                    reason: self.tasks.plan_reason(&plan.reason),
                };
                self.managed.processes.insert(plan.process, managed);
            }
            _ => {}
        }
    }

    /// A pass of the balancer on an idle core left what waits in the queues that it compared.
    fn take_pass(&mut self, at: Nanos, pass: &Pass) {
        self.domains.take_pass(pass);
        if !passes::is_of_idle_core(pass) {
            return;
        }
        let queues = self.host.contended().union(&self.concerned);
        for on in queues.iter().filter(|on| *on != pass.core) {
            let Some(cause) = passes::left_by(pass, on, &self.domains) else { continue };
            self.settle(on, at);
            let host = &self.host;
            self.waiters.pass_left(on, at, cause, |class| {
                let key = host.class(class);
                let allowed = key.allowed.or(host.assumed_affinity());
                !key.is_pinned && allowed.is_some_and(|allowed| allowed.contains(pass.core))
            });
        }
    }

    /// Events of a core are missing: what was concluded from its silence since `from`, when it reported something
    /// last, is taken back.
    fn take_back(&mut self, core: CoreId, from: Nanos, at: Nanos) {
        for on in self.begun.iter() {
            self.settle(on, at);
            for (kind, part) in Kind::ALL.into_iter().zip(&mut self.queues[on.index()].parts) {
                let rests = on == core || part.episode.idle.contains(core);
                if rests && part.episode.until > from {
                    part.episode.clear();
                    part.totals.clear();
                    self.waiters.clear(on, Some(kind));
                    self.waiters.begin_episode(on, kind);
                }
            }
        }
        let rests = |found: &WastedWait| {
            (found.core == core || found.idle.contains(core)) && found.until_ns > from.0
        };
        self.alerts.retain(|found| !rests(found));
        self.report.retain(|found| !rests(found));
    }

    /// Findings that have become so since this was asked last, as they look by now. A finding that lasts is told
    /// once here, and whole in the report.
    pub fn alerts(&mut self) -> Vec<WastedWait> {
        std::mem::take(&mut self.alerts)
    }

    /// What was found until `at`, the end of the stream.
    pub fn finish(self, at: Nanos) -> Report {
        self.conclude(at, |checker| checker.judged >= checker.options.window)
    }

    fn conclude(mut self, at: Nanos, is_enough: impl Fn(&Checker) -> bool) -> Report {
        let at = self.now.max(at);
        if !self.is_resting {
            self.wasted.advance(&self.host, at);
        }
        self.wasted.finish(&self.host);
        self.pause(at);
        self.end_blind(self.now);
        let basis = Basis {
            is_enough: is_enough(&self),
            judged: self.judged,
            blind: self.blind_for,
            overflowed: self.host.has_overflowed(),
            names_threads: self.host.queues() != Queues::SizesOnly,
        };
        let mut report = self.report;
        report.judged_s = self.judged.0 as f64 / 1e9;
        report.waste = (&self.wasted.total()).into();
        report.migrations = self.log.moves_since(self.log.host_totals(), &Totals::default());
        report.conclude(&basis);
        report
    }

    /// Whether somebody waits beside an idle core that it could use, just now.
    fn is_suspicious(&self) -> bool {
        self.queues.iter().any(|queue| queue.parts[Kind::Wasted as usize].totals.is_any())
    }

    /// Whether a violation lasts.
    fn is_violated(&self) -> bool {
        self.queues.iter().any(|queue| queue.parts[Kind::Wasted as usize].episode.found.is_some())
    }

    /// Judges the waiters of the queues anew which the last event concerns.
    fn reassess(&mut self, at: Nanos) {
        let is_any_free = !self.host.idle().is_empty() || !self.host.sched_idle_only().is_empty();
        let changed = std::mem::take(&mut self.changes.cores);
        for on in &changed {
            self.reassess_queue(*on, is_any_free, at);
        }
        if self.changes.has_shifted {
            let others = self.host.contended().union(&self.concerned);
            for on in others.iter().filter(|on| !changed.contains(on)) {
                self.reassess_queue(on, is_any_free, at);
            }
        }
        let relieved = std::mem::take(&mut self.changes.relieved);
        for on in &relieved {
            self.repaired(*on, at);
        }
        (self.changes.cores, self.changes.relieved) = (changed, relieved);
    }

    fn reassess_queue(&mut self, on: CoreId, is_any_free: bool, at: Nanos) {
        self.settle(on, at);
        if self.begun.contains(on) {
            self.close_past(on, at);
        }
        let is_concerned = is_any_free && self.host.contended().contains(on);
        if !is_concerned && !self.concerned.contains(on) {
            return;
        }
        match self.host.core(on).filter(|_| is_concerned) {
            Some(core) => {
                let (host, domains) = (&self.host, &self.domains);
                self.waiters.judge(on, at, |class| judge(host, domains, class, core));
            }
            None => self.waiters.clear(on, None),
        }
        self.take_verdicts(on, at);
        if self.options.strict {
            self.interrupt(on);
        }
    }

    /// The verdicts on a queue's waiters hold from `at` on.
    fn take_verdicts(&mut self, on: CoreId, at: Nanos) {
        let Some(queue) = self.queues.get_mut(on.index()) else { return };
        let [wasted, allowed, unknown] = &mut queue.parts;
        let totals = [&mut wasted.totals, &mut allowed.totals, &mut unknown.totals];
        self.waiters.add_up(on, totals);
        match queue.parts.iter().any(|part| part.totals.is_any()) {
            true => self.concerned.insert(on),
            false => self.concerned.remove(on),
        }
        for part in queue.parts.iter_mut().filter(|part| part.totals.is_any()) {
            if part.episode.from.is_none() {
                let position = self.host.topology().position(on);
                part.episode.begin(at, self.log.totals(position));
                self.begun.insert(on);
            }
        }
    }

    /// The strict form: whoever does not wait beside an idle core now begins anew.
    fn interrupt(&mut self, on: CoreId) {
        for kind in Kind::ALL {
            if !self.queues[on.index()].parts[kind as usize].totals.is_any() {
                self.close(on, kind);
            }
        }
        self.waiters.forget(on, false);
    }

    /// Adds the time since a queue was settled last to its accounts.
    fn settle(&mut self, on: CoreId, at: Nanos) {
        let Some(queue) = self.queues.get_mut(on.index()) else { return };
        let from = std::mem::replace(&mut queue.since, at);
        if at <= from {
            return;
        }
        if !self.concerned.contains(on) {
            return;
        }
        for part in &mut queue.parts {
            if part.totals.is_any() {
                part.episode.add(from, at, &part.totals);
            }
        }
        let charges = &mut queue.parts[Kind::Wasted as usize].episode.charges;
        self.waiters.add(on, from, at, charges);
        self.waiters.expire(on, at);
        self.evaluate(on);
    }

    /// Looks at the clock of all accounts, several times a window.
    fn tick(&mut self, at: Nanos) {
        if at.since(self.ticked) < Nanos(self.options.window.0 / 32) {
            return;
        }
        self.ticked = at;
        for on in self.begun.iter() {
            self.settle(on, at);
            self.close_past(on, at);
        }
    }

    /// Ends the episodes of a queue in which nothing was wasted for a window.
    fn close_past(&mut self, on: CoreId, at: Nanos) {
        for kind in Kind::ALL {
            if self.queues[on.index()].parts[kind as usize].episode.is_past(at, &self.options) {
                self.close(on, kind);
            }
        }
    }

    /// A waiting thread was moved out of a queue: what was wrong is repaired, unless another waits there for longer
    /// than the window.
    fn repaired(&mut self, on: CoreId, at: Nanos) {
        self.settle(on, at);
        if self.waiters.overdue(on, &self.options).is_empty() {
            Kind::ALL.into_iter().for_each(|kind| self.restart(on, kind, at));
        }
    }

    /// Ends an episode, and begins the next one where somebody still waits.
    fn restart(&mut self, on: CoreId, kind: Kind, at: Nanos) {
        self.close(on, kind);
        let part = &mut self.queues[on.index()].parts[kind as usize];
        if part.totals.is_any() {
            let position = self.host.topology().position(on);
            part.episode.begin(at, self.log.totals(position));
            self.begun.insert(on);
        }
    }

    /// Ends an episode; a finding goes into the report.
    fn close(&mut self, on: CoreId, kind: Kind) {
        if let Some(finding) = self.finding(on, kind) {
            self.report.add(kind, finding);
        }
        let Some(queue) = self.queues.get_mut(on.index()) else { return };
        queue.parts[kind as usize].episode.clear();
        self.waiters.begin_episode(on, kind);
        if queue.parts.iter().all(|part| part.episode.from.is_none()) {
            self.begun.remove(on);
        }
    }

    /// Stops judging: what comes before is closed, what comes after begins anew with the next keyframe.
    fn pause(&mut self, at: Nanos) {
        self.now = at;
        let Some(since) = self.judging.take() else { return };
        self.judged += at.since(since);
        for on in self.begun.iter() {
            self.settle(on, at);
            Kind::ALL.into_iter().for_each(|kind| self.close(on, kind));
        }
        for (at, queue) in self.queues.iter_mut().enumerate() {
            let on = CoreId(at as u16);
            queue.parts.iter_mut().for_each(|part| part.totals.clear());
            self.waiters.clear(on, None);
            self.waiters.forget(on, true);
        }
        self.concerned = CoreSet::EMPTY;
    }

    /// As [`Checker::pause`], of looks: what the host does until the next keyframe does not count at all.
    fn rest(&mut self, at: Nanos) {
        self.pause(at);
        self.is_resting = true;
    }

    fn go_blind(&mut self, at: Nanos, why: String) {
        self.pause(at);
        self.blind.get_or_insert((at, why));
    }

    fn end_blind(&mut self, at: Nanos) {
        if let Some((from, why)) = self.blind.take() {
            self.add_blind(from, at, why);
        }
    }

    fn add_blind(&mut self, from: Nanos, until: Nanos, why: String) {
        self.blind_for += until.since(from);
        self.report.add_blind(UnjudgedSpan { from_ns: from.0, until_ns: until.0, why });
    }
}
