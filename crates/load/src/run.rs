//! One run from specification to report.
//!
//! Two threads: the generator's, which spins or sleeps for short times, and the caller's, which sleeps and shows progress. The
//! generator leaves its figures in a mailbox once a second and never waits for a reader.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_model::{CoreId, Nanos};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::arrivals::Schedule;
use crate::books::{Account, Tally};
use crate::carrier::Target;
use crate::clock::now;
use crate::connection::Connection;
use crate::error::LoadError;
use crate::generator::{Generator, Raw};
use crate::latency::Recorder;
use crate::preload::preload;
use crate::report::{LoadReport, StepReport, Totals, verdict};
use crate::spec::LoadSpec;
use crate::timeline::timeline;

/// From set-up to the first request: the generator's thread must be up by then.
const LEAD: Nanos = Nanos::from_millis(20);
/// How often the caller's thread looks for a wish to stop.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What a run shows while it lasts. All methods are called on the thread that called [`run`].
pub trait Progress {
    /// The measured window begins about now.
    fn begin(&mut self, _at: Nanos) {}
    /// The figures of another second, warm-up included.
    fn interval(&mut self, _interval: &Interval) {}
    /// The measured window ends about now.
    fn end(&mut self, _at: Nanos) {}
    /// Asked a few times a second; `true` ends the run early.
    fn stop(&mut self) -> bool {
        false
    }
}

/// No progress wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {}

/// The figures of about one second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Its end.
    pub at: Nanos,
    /// Requests that were due, a second.
    pub offered_rps: f64,
    /// Replies, a second.
    pub achieved_rps: f64,
    /// Requests sent late by the generator.
    pub late: u64,
    /// Requests without a reply at its end.
    pub outstanding: usize,
    /// Median latency from the intended send time, in microseconds.
    pub p50_us: f64,
    /// 99 % of the latencies are no longer, in microseconds.
    pub p99_us: f64,
    /// 99.9 % of the latencies are no longer, in microseconds.
    pub p999_us: f64,
}

/// Where the generator leaves the figures of the last second.
#[derive(Default)]
pub(crate) struct Mailbox(Mutex<Letter>);

#[derive(Default)]
struct Letter {
    full: bool,
    tally: Tally,
}

impl Mailbox {
    /// Leaves the tally and takes an empty one; keeps counting in it if the last is still unread.
    pub fn post(&self, tally: &mut Tally) {
        let Ok(mut letter) = self.0.try_lock() else { return };
        if !letter.full {
            std::mem::swap(&mut letter.tally, tally);
            letter.full = true;
        }
    }

    /// The figures since `since`, if there are new ones.
    fn take(&self, since: Nanos) -> Option<Interval> {
        let mut letter = lock(&self.0);
        if !letter.full {
            return None;
        }
        letter.full = false;
        let tally = &letter.tally;
        let seconds = tally.at.since(since).0.max(1) as f64 / 1e9;
        let interval = Interval {
            at: tally.at,
            offered_rps: tally.scheduled as f64 / seconds,
            achieved_rps: tally.replies as f64 / seconds,
            late: tally.late,
            outstanding: tally.outstanding,
            p50_us: tally.latency.at(0.5).0 as f64 / 1e3,
            p99_us: tally.latency.at(0.99).0 as f64 / 1e3,
            p999_us: tally.latency.at(0.999).0 as f64 / 1e3,
        };
        letter.tally.clear();
        Some(interval)
    }
}

/// No code panics while it holds one of these locks, so a poisoned one is still sound.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Offers the load and waits until it is over.
///
/// # Errors
/// A specification that makes no sense, a server that cannot be reached or prepared, or a core that
/// the process may not use. What goes wrong during the run is in the report.
pub fn run(spec: &LoadSpec, progress: &mut dyn Progress) -> Result<LoadReport, LoadError> {
    spec.check()?;
    let mut protocol = spec.protocol.build().map_err(LoadError::Spec)?;
    let schedule = Schedule::new(spec)?;
    let expected = schedule.expected();
    let target = Target::of(spec)?;
    if spec.preload {
        preload(&target, &mut *protocol)?;
    }
    let mut connections = (0..spec.connections)
        .map(|_| Connection::open(&target, &*protocol))
        .collect::<Result<Vec<_>, LoadError>>()?;
    if spec.stamps {
        connections.iter_mut().try_for_each(Connection::stamp)?;
    }
    let (stop, mailbox) = (AtomicBool::new(false), Mailbox::default());
    let over = (Mutex::new(false), Condvar::new());
    let start = now() + LEAD;
    let generator = Generator::new(spec, protocol, connections, schedule, start, &stop, &mailbox)?;
    let core = spec.core;
    let raw = std::thread::scope(|scope| {
        let spinning = std::thread::Builder::new()
            .name("quell-load".into())
            .spawn_scoped(scope, || {
                let raw = pin(core).map(|()| generator.run());
                *lock(&over.0) = true;
                over.1.notify_one();
                raw
            })
            .map_err(LoadError::system("start the generator's thread"))?;
        watch(spec, start, progress, (&mailbox, &stop, &over));
        spinning.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    Ok(report(spec, &expected, start + spec.warmup, raw))
}

fn pin(core: Option<CoreId>) -> Result<(), LoadError> {
    let Some(core) = core else { return Ok(()) };
    let mut cores = CpuSet::new();
    cores.set(usize::from(core.0));
    sched_setaffinity(None, &cores).map_err(LoadError::system("pin the generator to its core"))
}

/// Sleeps until the generator is over, and shows progress meanwhile.
fn watch(
    spec: &LoadSpec,
    start: Nanos,
    progress: &mut dyn Progress,
    (mailbox, stop, over): (&Mailbox, &AtomicBool, &(Mutex<bool>, Condvar)),
) {
    let begin = start + spec.warmup;
    let end = begin + spec.measured();
    let (mut begun, mut ended, mut since) = (false, false, start);
    let mut is_over = lock(&over.0);
    while !*is_over {
        let at = now();
        let next_event = [begin, end].into_iter().filter(|&event| event > at).min();
        let until_event = next_event.map(|event| Duration::from_nanos(event.since(at).0));
        let sleep = until_event.map_or(LOOK_EVERY, |until| until.min(LOOK_EVERY));
        is_over = over.1.wait_timeout(is_over, sleep).unwrap_or_else(PoisonError::into_inner).0;
        let at = now();
        if !begun && at >= begin {
            begun = true;
            progress.begin(at);
        }
        if let Some(interval) = mailbox.take(since) {
            since = interval.at;
            progress.interval(&interval);
        }
        if !ended && at >= end {
            ended = true;
            progress.end(at);
        }
        if progress.stop() {
            // Relaxed: nothing else is published through the flag.
            stop.store(true, Ordering::Relaxed);
        }
    }
    if begun && !ended {
        progress.end(now());
    }
}

/// `expected` is how many requests each step has by the schedule.
fn report(spec: &LoadSpec, expected: &[f64], begin: Nanos, raw: Raw) -> LoadReport {
    let over = raw.finish;
    let accounts = raw.books.accounts.iter().skip(1);
    let mut totals = Totals::default();
    let (mut latency, mut lateness) = (Recorder::new(), Recorder::new());
    let mut received = spec.stamps.then(Recorder::new);
    let mut short = spec.protocol.has_long_ones().then(Recorder::new);
    let mut replies = 0;
    let mut steps = Vec::new();
    for (account, requests) in accounts.zip(expected) {
        totals.add(&account.totals);
        latency.merge(&account.latency);
        lateness.merge(&account.lateness);
        if let (Some(all), Some(own)) = (&mut short, &account.short) {
            all.merge(own);
        }
        if let (Some(all), Some(own)) = (&mut received, &account.received) {
            all.merge(own);
        }
        replies += account.replies_in_window;
        steps.push(step_report(account, *requests, over));
    }
    let whole = Account {
        totals,
        replies_in_window: replies,
        latency,
        short,
        lateness,
        received,
        start: begin,
        end: begin + spec.measured(),
    };
    let overall = step_report(&whole, expected.iter().sum(), over);
    let (limited_by, limited_because) = verdict(&overall, &raw.generator);
    let window = (overall.start_ns, overall.end_ns);
    LoadReport {
        spec: spec.clone(),
        timeline: timeline(&raw.books.samples, window, raw.books.deadline),
        overall,
        steps,
        limited_by,
        limited_because,
        generator: raw.generator,
        stalls: raw.stalls,
        connections_lost: raw.connections_lost,
        connections_reopened: raw.connections_reopened,
        ended_early: raw.ended_early,
        samples_missing: raw.books.samples_missing,
        samples: raw.books.samples,
        recorder: whole.latency,
    }
}

fn step_report(account: &Account, expected: f64, over: Nanos) -> StepReport {
    let end_ns = account.end.min(over).max(account.start);
    let seconds_until = |end: Nanos| end.since(account.start).0.max(1) as f64 / 1e9;
    let seconds = seconds_until(end_ns);
    StepReport {
        start_ns: account.start,
        end_ns,
        target_rps: expected / seconds_until(account.end),
        offered_rps: account.totals.scheduled as f64 / seconds,
        achieved_rps: account.replies_in_window as f64 / seconds,
        totals: account.totals,
        latency: account.latency.summary(),
        short: account.short.as_ref().map(Recorder::summary),
        lateness: account.lateness.summary(),
        received: account.received.as_ref().map(Recorder::summary),
    }
}
