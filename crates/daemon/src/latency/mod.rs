//! Tail latency and load of LC tasks, on their way into the Snapshot.
//!
//! A [`Gauge`] a task. What it reads comes as a report over the control socket, or from a thread of its own
//! that asks a program or a page of metrics every so often. Each reading goes to the scheduler thread as a
//! command and is judged against the bound here. None of it runs on the scheduler thread or a managed core.

mod metrics;
mod page;
mod program;
mod slo;

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use quell_control::config::{LatencyConfig, LatencySource, Unit};
use quell_control::protocol::{LatencyReport, LatencyStatus};
use quell_model::{Absence, Nanos, RequestsPerSec, Signal, TaskId};
use quell_os::clock;

use crate::command::Command;
use crate::mailbox::Postbox;
use metrics::Pages;
use program::Printed;
use slo::Slo;

/// A reading holds for so many intervals.
const HOLDS_FOR: u64 = 3;
/// The longest latency that is believed.
const LATENCY_MAX: Nanos = Nanos::from_secs(3_600);
/// The highest load that is believed, in requests a second.
const LOAD_MAX: f64 = 1e12;
/// Reports of one task in a second at most.
const REPORTS_PER_SECOND: u32 = 10;
/// Percentiles in one report at most.
const QUANTILES_MAX: usize = 16;
/// How long a program or a server may take, if the interval is not shorter.
const PATIENCE_MAX: Duration = Duration::from_secs(10);

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measures {
    /// The latency at the configured percentile.
    pub latency: Signal<Nanos>,
    /// Requests a second.
    pub load: Signal<RequestsPerSec>,
}

/// What was measured, when, and how often it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// When.
    pub at: Nanos,
    /// Until the next one, as intended.
    pub every: Nanos,
    /// The latency at the configured percentile.
    pub latency: Signal<Nanos>,
    /// Requests a second.
    pub load: Signal<RequestsPerSec>,
}

impl Reading {
    /// From then on it is too old to act on.
    pub fn until(&self) -> Nanos {
        self.at + Nanos(self.every.0 * HOLDS_FOR)
    }
}

/// The tail latency and load of one LC task.
pub struct Gauge {
    config: LatencyConfig,
    meter: Arc<Meter>,
    /// The thread that reads ends once this is gone.
    _reads: Option<Sender<Infallible>>,
}

impl Gauge {
    /// Begins to read as configured.
    pub fn start(task: TaskId, config: &LatencyConfig, engine: &Postbox<Command>) -> Gauge {
        let slo = config.slo.map(|bound| Slo::new(bound, clock::now()));
        let seen = Seen { slo, ..Seen::default() };
        let meter = Arc::new(Meter { task, engine: engine.clone(), seen: Mutex::new(seen) });
        let reads = match &config.source {
            LatencySource::Reports => None,
            LatencySource::Command(_) | LatencySource::Metrics(_) => {
                let (keep, kept) = bounded(0);
                let (config, to) = (config.clone(), Arc::clone(&meter));
                let spawned = std::thread::Builder::new()
                    .name("quell-latency".into())
                    .spawn(move || watch(&config, &to, &kept));
                if let Err(err) = spawned {
                    meter.lock().problem = Some(format!("no thread to read it: {err}"));
                }
                Some(keep)
            }
        };
        Gauge { config: config.clone(), meter, _reads: reads }
    }

    /// Takes a report of a process.
    ///
    /// # Errors
    /// A sentence: it makes no sense, comes too soon, or the latency comes from elsewhere.
    pub fn report(&self, report: &LatencyReport, from: i32) -> Result<(), String> {
        if self.config.source != LatencySource::Reports {
            let source = in_words(&self.config.source);
            return Err(format!("the latency of `{}` comes from {source}", report.task));
        }
        let measures = reported(report, self.config.percentile)?;
        let now = clock::now();
        let mut seen = self.meter.lock();
        if !seen.admit(now) {
            return Err(format!(
                "`{}` is reported on more than {REPORTS_PER_SECOND} times a second",
                report.task
            ));
        }
        seen.by = Some(from);
        drop(seen);
        self.meter.note(Ok(measures), now, Nanos::from_millis(report.interval_ms));
        Ok(())
    }

    /// Adds to its row of the status what the scheduler thread does not know.
    pub fn complete(&self, row: &mut LatencyStatus) {
        let mut seen = self.meter.lock();
        row.percentile = self.config.percentile;
        row.source = match seen.by {
            Some(pid) => format!("reports of process {pid}"),
            None => in_words(&self.config.source),
        };
        row.problem.clone_from(&seen.problem);
        row.slo = seen.slo.as_mut().map(|slo| slo.status(clock::now()));
    }
}

/// Where readings arrive.
struct Meter {
    task: TaskId,
    engine: Postbox<Command>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    slo: Option<Slo>,
    problem: Option<String>,
    /// The process that reported last.
    by: Option<i32>,
    /// Reports in the second that began then.
    reports: (Nanos, u32),
}

impl Seen {
    /// Whether one more report fits into this second.
    fn admit(&mut self, now: Nanos) -> bool {
        let (began, count) = &mut self.reports;
        if now.since(*began) >= Nanos::from_secs(1) {
            (*began, *count) = (now, 0);
        }
        *count += 1;
        *count <= REPORTS_PER_SECOND
    }
}

impl Meter {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        // Nothing panics while it holds the lock.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, measured: Result<Measures, String>, at: Nanos, every: Nanos) {
        let measures = match measured {
            Ok(measures) => measures,
            Err(why) => {
                self.lock().problem = Some(why);
                return;
            }
        };
        let Measures { latency, load } = measures;
        let reading = Reading { at, every, latency, load };
        let mut seen = self.lock();
        seen.problem = None;
        if let Some(slo) = &mut seen.slo {
            slo.note(&reading);
        }
        drop(seen);
        self.engine.post(Command::Reading(self.task, reading));
    }
}

/// Reads every so often until nobody wants it any more.
fn watch(config: &LatencyConfig, meter: &Meter, wanted: &Receiver<Infallible>) {
    let every = Duration::from_nanos(config.every.0);
    let patience = every.min(PATIENCE_MAX);
    let mut pages = Pages::new(config.percentile);
    let mut due = Instant::now();
    loop {
        let measured = match &config.source {
            LatencySource::Command(command) => program::ask(command, patience).and_then(printed),
            LatencySource::Metrics(metrics) => {
                let page = page::fetch(metrics.addr, &metrics.path, patience);
                page.and_then(|page| pages.read(metrics, &page, clock::now()))
            }
            LatencySource::Reports => return,
        };
        meter.note(measured, clock::now(), config.every);
        // A reading that took too long is not made up for.
        due = (due + every).max(Instant::now());
        if wanted.recv_deadline(due) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

fn printed(printed: Printed) -> Result<Measures, String> {
    let (latency, load) = match printed {
        Printed::Latency(us) => (Some(us), None),
        Printed::Both { latency_us: None, load_rps: None } => {
            return Err("it printed neither `latency_us` nor `load_rps`".to_owned());
        }
        Printed::Both { latency_us, load_rps } => (latency_us, load_rps),
    };
    measured(latency, load)
}

fn reported(report: &LatencyReport, percentile: f64) -> Result<Measures, String> {
    if !(10..=60_000).contains(&report.interval_ms) {
        return Err("`interval_ms` has to be between 10 and 60000".to_owned());
    }
    if report.latency.len() > QUANTILES_MAX {
        return Err(format!("a report has at most {QUANTILES_MAX} percentiles"));
    }
    let is_it = |known: f64| (known - percentile).abs() < 1e-6;
    let Some(wanted) = report.latency.iter().find(|quantile| is_it(quantile.percentile)) else {
        let had: Vec<String> =
            report.latency.iter().map(|quantile| quantile.percentile.to_string()).collect();
        return Err(format!(
            "percentile {percentile} is wanted of `{}`, the report has {}",
            report.task,
            if had.is_empty() { "none".to_owned() } else { had.join(", ") }
        ));
    };
    measured(Some(wanted.latency_us), report.load_rps)
}

fn measured(latency_us: Option<f64>, load_rps: Option<f64>) -> Result<Measures, String> {
    let absent = || Absence::NoSource;
    Ok(Measures {
        latency: match latency_us {
            Some(us) => Signal::Measured(latency_of(us, Unit::Us)?),
            None => Signal::Absent(absent()),
        },
        load: match load_rps {
            Some(rate) => Signal::Measured(load_of(rate)?),
            None => Signal::Absent(absent()),
        },
    })
}

/// A latency that somebody claims.
fn latency_of(value: f64, unit: Unit) -> Result<Nanos, String> {
    let nanos = value * unit.nanos();
    // False of what is no number.
    match (0.0..=LATENCY_MAX.0 as f64).contains(&nanos) {
        true => Ok(Nanos(nanos.round() as u64)),
        false => Err(format!("{value} is no latency")),
    }
}

/// A load that somebody claims.
fn load_of(rate: f64) -> Result<RequestsPerSec, String> {
    match (0.0..=LOAD_MAX).contains(&rate) {
        true => Ok(RequestsPerSec(rate.round() as u64)),
        false => Err(format!("{rate} is no load")),
    }
}

fn in_words(source: &LatencySource) -> String {
    match source {
        LatencySource::Reports => "reports".to_owned(),
        LatencySource::Command(command) => format!("command `{}`", command.join(" ")),
        LatencySource::Metrics(metrics) => format!("{} {}", metrics.url, metrics.metric),
    }
}

#[cfg(test)]
mod tests {
    use quell_control::protocol::Quantile;

    use super::*;

    fn report(latency: &[(f64, f64)]) -> LatencyReport {
        let quantile = |&(percentile, latency_us)| Quantile { percentile, latency_us };
        LatencyReport {
            task: "web".into(),
            interval_ms: 1_000,
            load_rps: Some(10.0),
            latency: latency.iter().map(quantile).collect(),
        }
    }

    #[test]
    fn a_report_gives_the_wanted_percentile() {
        let measures = reported(&report(&[(50.0, 10.0), (99.9, 70.5)]), 99.9).unwrap();
        assert_eq!(measures.latency, Signal::Measured(Nanos(70_500)));
        assert_eq!(measures.load, Signal::Measured(RequestsPerSec(10)));
    }

    #[test]
    fn reports_that_make_no_sense_are_refused() {
        let many = vec![(99.9, 1.0); QUANTILES_MAX + 1];
        for (bad, wanted) in [
            (report(&[(50.0, 1.0), (99.0, 2.0)]), "the report has 50, 99"),
            (report(&[]), "the report has none"),
            (report(&[(99.9, -1.0)]), "is no latency"),
            (report(&[(99.9, 1e18)]), "is no latency"),
            (report(&[(f64::NAN, 1.0)]), "NaN"),
            (report(&many), "at most 16"),
            (LatencyReport { interval_ms: 0, ..report(&[(99.9, 1.0)]) }, "interval_ms"),
            (LatencyReport { interval_ms: u64::MAX, ..report(&[(99.9, 1.0)]) }, "interval_ms"),
            (LatencyReport { load_rps: Some(-1.0), ..report(&[(99.9, 1.0)]) }, "is no load"),
        ] {
            let refused = reported(&bad, 99.9).unwrap_err();
            assert!(refused.contains(wanted), "{bad:?}: {refused}");
        }
    }

    #[test]
    fn ten_reports_a_second_fit_and_no_more() {
        let mut seen = Seen::default();
        let at = |ms: u64| Nanos::from_millis(5_000 + ms);
        assert!((0..10).all(|nth| seen.admit(at(nth))));
        assert!(!seen.admit(at(900)));
        assert!(seen.admit(at(1_000)));
    }
}
