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
//! 4. Where an account fills its window, the queue's episode is a finding; the evidence of what happened
//!    meanwhile gets it a label.
//!
//! After a loss of events, or while cores come and go, nothing is concluded until the next keyframe.

mod episode;
mod evidence;
mod facts;
mod flight;
pub(crate) mod host;
mod label;
mod managed;
mod options;
mod report;
mod sampler;
mod seating;
mod standing;
#[cfg(test)]
mod tests;
mod waiters;
mod waste;
mod window;

use std::sync::Arc;

use quell_model::{CoreId, CoreSet, Event, Keyframe, Meta, Nanos, Permille, TaskNames, What};

use episode::{Episode, Kind, WAITERS_MAX};
use evidence::{Log, Totals};
use host::{Host, Queues, State};
use report::Basis;
use seating::named;
use standing::judge;
use waiters::{Beside, Waiters};
use waste::Tally;

use crate::import::NOBODY_KNOWN;

pub use evidence::{Evidence, GroupLoad, Move};
pub use facts::facts;
pub use flight::Flight;
pub use label::Label;
pub use managed::{Managed, ManagedThread};
pub use options::Options;
pub use report::{Blind, Finding, Report, Verdict, Waiter, Waste};
pub use sampler::Sampler;
pub use standing::{Grade, Policy};

/// Findings of a kind, and blind spans, that a report lists.
const LISTED_MAX: usize = 1000;
/// Findings that wait to be told.
const ALERTS_MAX: usize = 100;

/// One kind of standing in one queue.
#[derive(Clone, Debug)]
struct Part {
    /// How its waiters stand that stand so; `None` where none does.
    beside: Option<Beside>,
    episode: Episode,
}

/// A core's queue.
#[derive(Clone, Debug)]
struct Queue {
    /// Since when its waiters stand as they do.
    since: Nanos,
    /// In the order of [`Kind::ALL`].
    parts: [Part; 3],
}

/// Follows a stream of events, and finds waste.
#[derive(Clone, Debug)]
pub struct Checker {
    options: Options,
    host: Host,
    log: Log,
    managed: Managed,
    tasks: TaskNames,
    queues: Vec<Queue>,
    /// Queues with an episode.
    begun: CoreSet,
    waiters: Waiters,
    /// Queues whose waiters stand beside an idle core, of whatever kind.
    standing: CoreSet,
    tally: Tally,
    now: Nanos,
    ticked: Nanos,
    /// The next number in each core's sequence.
    sequence: Vec<Option<u64>>,
    /// How many numbers behind the last event of each core belong to a loss that it told.
    told: Vec<u64>,
    /// When each core told something last.
    heard: Vec<Nanos>,
    /// Since when the stream is judged; `None` before it begins, in a blind span and between samples.
    judging: Option<Nanos>,
    blind: Option<(Nanos, String)>,
    alerts: Vec<Finding>,
    report: Report,
    judged: Nanos,
    blind_for: Nanos,
}

impl Checker {
    /// A checker for the host of which a stream tells.
    pub fn new(meta: &Meta, options: Options) -> Checker {
        let cores = meta.topology.cores().last().map_or(0, |core| core.id.index() + 1);
        let part = || Part { beside: None, episode: Episode::new(&options) };
        let queue = || Queue { since: Nanos::ZERO, parts: [part(), part(), part()] };
        Checker {
            host: Host::new(cores, options.own.clone(), Queues::of(meta.source)),
            log: Log::new(meta.topology.clone()),
            managed: Managed::default(),
            tasks: TaskNames::default(),
            queues: (0..cores).map(|_| queue()).collect(),
            begun: CoreSet::EMPTY,
            waiters: Waiters::new(cores, &options),
            standing: CoreSet::EMPTY,
            tally: Tally::default(),
            now: Nanos::ZERO,
            ticked: Nanos::ZERO,
            sequence: vec![None; cores],
            told: vec![0; cores],
            heard: vec![Nanos::ZERO; cores],
            judging: None,
            blind: None,
            alerts: Vec::new(),
            report: Report::new(meta),
            judged: Nanos::ZERO,
            blind_for: Nanos::ZERO,
            options,
        }
    }

    /// Says which threads a Quell daemon manages from here on, and how.
    pub fn set_managed(&mut self, managed: Managed) {
        self.managed = managed;
        self.look_anew();
    }

    /// Takes the next event. One that is older than its forerunner counts as simultaneous.
    pub fn event(&mut self, event: &Event) {
        let at = self.now.max(event.at);
        if self.judging.is_none() && self.blind.is_none() {
            self.judging = Some(at);
        }
        self.report.events += 1;
        let missing = self.missing_before(event);
        if missing > 0 {
            self.report.lost = self.report.lost.saturating_add(missing);
            self.take_back(event.core, at);
            self.go_blind(at, format!("{missing} events of core {} are missing", event.core));
        }
        match &event.what {
            What::Lost { count } => {
                self.report.lost = self.report.lost.saturating_add(*count);
                if let Some(told) = self.told.get_mut(event.core.index()) {
                    *told = count.saturating_sub(1);
                }
                self.take_back(event.core, at);
                self.go_blind(at, format!("{count} events of core {} were lost", event.core));
            }
            What::Online { of, online } => {
                let way = if *online { "on" } else { "off" };
                self.go_blind(at, format!("core {of} went {way} line"));
            }
            What::Task(_) => self.tasks.take(&event.what),
            What::Planned(plan) => {
                let managed = ManagedThread {
                    original: plan.original,
                    planned: plan.original.intersection(&plan.cores),
                    reason: self.tasks.plan_reason(&plan.reason),
                };
                self.managed.processes.insert(plan.process, managed);
                self.look_anew();
            }
            _ => {}
        }
        if let Some(heard) = self.heard.get_mut(event.core.index()) {
            *heard = at;
        }
        self.take(at, event);
    }

    /// Events of a core are missing, and nobody knows since when: what was concluded from its silence since it
    /// told something last is taken back.
    fn take_back(&mut self, core: CoreId, at: Nanos) {
        let Some(&heard) = self.heard.get(core.index()) else { return };
        for on in self.begun.iter() {
            self.settle(on, at);
            for (kind, part) in Kind::ALL.into_iter().zip(&mut self.queues[on.index()].parts) {
                let rests = on == core || part.episode.idle.contains(core);
                if rests && part.episode.until > heard {
                    part.episode.clear();
                    part.beside = None;
                    self.waiters.clear(on, Some(kind));
                    self.waiters.begin_episode(on, kind);
                }
            }
        }
        let rests = |found: &Finding| {
            (found.core == core || found.idle.contains(core)) && found.until_ns > heard.0
        };
        self.alerts.retain(|found| !rests(found));
        self.report.retain(|found| !rests(found));
    }

    /// Takes a keyframe that belongs to no stream.
    fn keyframe(&mut self, at: Nanos, keyframe: Arc<Keyframe>) {
        let at = self.now.max(at);
        let what = What::Keyframe(keyframe);
        self.take(at, &Event { at, core: CoreId(0), sequence: 0, what });
    }

    /// Findings that have become so since this was asked last, as they look by now. A finding that lasts is told
    /// once here, and whole in the report.
    pub fn alerts(&mut self) -> Vec<Finding> {
        std::mem::take(&mut self.alerts)
    }

    /// What was found until `at`, the end of the stream.
    pub fn finish(self, at: Nanos) -> Report {
        self.conclude(at, |checker| checker.judged >= checker.options.window)
    }

    fn conclude(mut self, at: Nanos, is_enough: impl Fn(&Checker) -> bool) -> Report {
        self.pause(self.now.max(at));
        self.end_blind(self.now);
        let basis = Basis {
            is_enough: is_enough(&self),
            judged: self.judged,
            blind: self.blind_for,
            overflowed: self.host.overflowed,
            names_threads: self.host.queues != Queues::SizesAlone,
        };
        let mut report = self.report;
        report.judged_s = self.judged.0 as f64 / 1e9;
        report.waste = self.tally.sums();
        report.moves = self.log.moves_since(&Totals::default());
        report.conclude(&basis);
        report
    }

    /// Whether somebody waits beside an idle core that it could use, just now.
    fn is_suspicious(&self) -> bool {
        self.queues.iter().any(|queue| queue.parts[Kind::Wasted as usize].beside.is_some())
    }

    /// Whether a violation lasts.
    fn is_violated(&self) -> bool {
        self.queues.iter().any(|queue| queue.parts[Kind::Wasted as usize].episode.found.is_some())
    }

    fn all(&self) -> CoreSet {
        (0..self.queues.len()).map(|at| CoreId(at as u16)).collect()
    }

    fn missing_before(&mut self, event: &Event) -> u64 {
        let Some(next) = self.sequence.get_mut(event.core.index()) else { return 0 };
        let expected = next.unwrap_or(event.sequence);
        *next = Some(event.sequence.saturating_add(1).max(expected));
        let told = self.told.get_mut(event.core.index()).map(std::mem::take).unwrap_or_default();
        event.sequence.saturating_sub(expected).saturating_sub(told)
    }

    /// Every waiter is judged anew with the next event, and every queue.
    fn look_anew(&mut self) {
        self.host.dirty = self.all();
        self.host.touch_waiting();
    }

    fn take(&mut self, at: Nanos, event: &Event) {
        self.now = at;
        self.log.event(at, event, &self.host);
        let left = match &event.what {
            What::Keyframe(keyframe) => self.look(at, keyframe, event),
            _ => self.step(event),
        };
        self.seat(at);
        if self.judging.is_some() {
            let affected = match self.host.shifted {
                true => self.waiters.occupied.union(&self.standing).union(&self.host.dirty),
                false => self.host.dirty,
            };
            self.reassess(&affected, at);
            left.iter().for_each(|on| self.repaired(on, at));
            self.tick(at);
        }
        (self.host.dirty, self.host.shifted) = (CoreSet::EMPTY, false);
    }

    /// Takes an event other than a keyframe. Returns the queue out of which it moved a waiting thread.
    fn step(&mut self, event: &Event) -> CoreSet {
        let from = match &event.what {
            What::Migrate { thread, from, .. } => {
                let waits = |thread: &host::Thread| thread.state == State::Waiting;
                let waited = self.host.thread(*thread).filter(|thread| waits(thread));
                waited.filter(|thread| thread.core == *from).map(|_| *from)
            }
            _ => None,
        };
        self.host.apply(event);
        from.into_iter().collect()
    }

    /// A keyframe resynchronises, and ends a blind span. Where the domains have changed, the kernel has rebuilt
    /// them, and what was seen before does not count. Returns the queues out of which a waiting thread was moved.
    fn look(&mut self, at: Nanos, keyframe: &Keyframe, event: &Event) -> CoreSet {
        self.report.looks += 1;
        let rebuilt = keyframe.cores.iter().any(|seen| {
            let known = self.host.core(seen.core).and_then(|core| core.domain);
            known.is_some_and(|known| known != seen.domain)
        });
        if rebuilt {
            self.pause(at);
        }
        self.host.apply(event);
        let host = &mut self.host;
        host.touched.clear();
        host.touched.extend(self.waiters.threads());
        host.touch_waiting();
        let went = |thread: i32| {
            let on = self.waiters.core_of(thread)?;
            let now = self.host.thread(thread).filter(|now| now.state != State::Away)?;
            (now.core != on).then_some(on)
        };
        let left = self.waiters.threads().filter_map(went).collect();
        self.end_blind(at);
        self.judging.get_or_insert(at);
        left
    }

    /// Judges the waiters of some queues anew.
    fn reassess(&mut self, affected: &CoreSet, at: Nanos) {
        let mut wasted = false;
        for on in affected.iter() {
            self.settle(on, at);
            if self.begun.contains(on) {
                self.close_past(on, at);
            }
            let Some(queue) = self.queues.get_mut(on.index()) else { continue };
            let nobody_idles = self.host.idle.is_empty() && self.host.lowly.is_empty();
            let stands = !nobody_idles && self.waiters.occupied.contains(on);
            if !stands && !self.standing.contains(on) {
                continue;
            }
            if stands && self.host.is_contended(on) {
                let host = &self.host;
                self.waiters.stand(on, at, |likeness| judge(host, likeness, on));
            } else {
                self.waiters.clear(on, None);
            }
            let beside = self.waiters.beside(on);
            match beside.iter().any(Option::is_some) {
                true => self.standing.insert(on),
                false => self.standing.remove(on),
            }
            for (part, beside) in queue.parts.iter_mut().zip(beside) {
                part.beside = beside;
                if part.beside.is_some() {
                    part.episode.begin(at, self.log.totals());
                    self.begun.insert(on);
                }
            }
            wasted = true;
            if self.options.strict {
                self.interrupt(on);
            }
        }
        if wasted {
            self.add_up(at);
        }
    }

    /// What is wasted on the whole host from `at` on.
    fn add_up(&mut self, at: Nanos) {
        let wasted =
            |on: CoreId| self.queues[on.index()].parts[Kind::Wasted as usize].beside.as_ref();
        self.tally.set(at, self.standing.iter().filter_map(wasted));
    }

    /// The strict form: whoever does not stand beside an idle core now begins anew.
    fn interrupt(&mut self, on: CoreId) {
        for kind in Kind::ALL {
            if self.queues[on.index()].parts[kind as usize].beside.is_none() {
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
        if !self.standing.contains(on) {
            return;
        }
        for part in &mut queue.parts {
            if let Some(beside) = &part.beside {
                part.episode.add(from, at, beside);
            }
        }
        self.waiters.add(on, from, at);
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

    /// Makes findings of the episodes that fill their window.
    fn evaluate(&mut self, on: CoreId) {
        for kind in Kind::ALL {
            let Some(queue) = self.queues.get_mut(on.index()) else { return };
            let Part { episode, .. } = &mut queue.parts[kind as usize];
            if episode.found.is_some() {
                continue;
            }
            let mut over = episode.is_over(&self.options);
            if kind == Kind::Wasted {
                for (waiter, wait) in self.waiters.overdue(on, &self.options) {
                    episode.include(named(waiter), wait);
                    over = true;
                }
            }
            if over {
                let mut looks = Box::default();
                if let Some(idle) = episode.idle.first() {
                    self.log.look(&mut looks, &self.host, idle, on);
                }
                episode.found = Some(looks);
                let finding = self.finding(on, kind);
                if self.alerts.len() < ALERTS_MAX {
                    self.alerts.extend(finding);
                }
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
        if part.beside.is_some() {
            part.episode.begin(at, self.log.totals());
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

    /// The finding that an episode is, if it is one.
    fn finding(&self, on: CoreId, kind: Kind) -> Option<Finding> {
        let episode = &self.queues.get(on.index())?.parts[kind as usize].episode;
        let (from, looks) = (episode.from?, episode.found.as_ref()?);
        let meanwhile = self.log.since(&episode.before, from, on);
        let evidence = Evidence {
            queues: looks.queues.clone(),
            domain: looks.domain,
            idle_group: looks.idle_group.clone(),
            busy_group: looks.busy_group.clone(),
            ..meanwhile
        };
        let present = self.waiters.names(on, kind, WAITERS_MAX);
        let present: Vec<_> =
            present.into_iter().map(|(thread, time)| (named(thread), time)).collect();
        let waiters = episode.all_waiters(&present);
        let (grade, label) = episode.verdict(kind, &evidence, &waiters);
        let named = waiters.iter().filter(|(thread, _)| **thread != NOBODY_KNOWN);
        let mut waiters: Vec<Waiter> =
            named.map(|(thread, wasted)| self.waiter(*thread, *wasted)).collect();
        waiters.sort_by(|a, b| b.wasted_ms.total_cmp(&a.wasted_ms));
        let span = episode.until.since(from);
        Some(Finding {
            core: on,
            from_ns: from.0,
            until_ns: episode.until.0,
            wasted_ms: episode.wasted.0 as f64 / 1e6,
            share_percent: f64::from(Permille::of(episode.wasted, span).0) / 10.0,
            waiters,
            idle: episode.idle,
            grade,
            label,
            evidence,
        })
    }

    fn waiter(&self, number: i32, wasted: Nanos) -> Waiter {
        let thread = self.host.thread(number);
        let process = thread.map_or(0, |thread| thread.runner.process);
        let plan = self.managed.of(number, process);
        Waiter {
            thread: number,
            process,
            name: thread.map(|thread| thread.runner.name.to_string()).unwrap_or_default(),
            wasted_ms: wasted.0 as f64 / 1e6,
            allowed: plan.map(|plan| plan.original).or(thread.and_then(|thread| thread.allowed)),
            plan: plan.map(|plan| plan.reason.clone()),
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
            queue.parts.iter_mut().for_each(|part| part.beside = None);
            self.waiters.clear(on, None);
            self.waiters.forget(on, true);
        }
        self.standing = CoreSet::EMPTY;
        self.tally.set(at, std::iter::empty());
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
        self.report.add_blind(Blind { from_ns: from.0, until_ns: until.0, why });
    }
}
