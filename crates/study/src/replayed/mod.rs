//! Recorded hosts as tasks of a simulation: how long each thread ran and slept, and which threads it woke, under another
//! kernel, fix or topology.
//!
//! The trace is read through [`HostState`], as `check`, `stats` and `view` read it. `extract` turns the changes of threads
//! into steps, [`compare`] replays a recording on its own kernel and topology beside its own figures.

mod compare;
mod extract;
#[cfg(test)]
mod tests;
mod thread;

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use quell_model::{CoreId, Nanos, What};
use quell_sim::file::FileError;
use quell_sim::{Recording, Window};
use quell_trace::host::{HostState, WastedTime};
use quell_trace::import::Options;
use quell_trace::stream::{ReadError, Source};

pub use compare::{Row, check_model, compare, kernel_of, model_of, replay, text};

use extract::{Extract, Loss};

/// The most threads, steps and sets of cores of a recording.
const THREADS_MAX: usize = 1 << 16;
const STEPS_MAX: usize = 1 << 22;
const SETS_MAX: usize = 1 << 14;
/// Simulations are no longer than an hour.
const SECONDS_MAX: usize = 3_600;

/// Why a trace cannot be replayed, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// Events are missing in the chosen part.
    #[error("{} of core {core} were lost {} s after the begin", events(*.count), seconds(*.at))]
    Lost {
        /// Of which core.
        core: CoreId,
        /// How many, where that is known.
        count: Option<u64>,
        /// When that was noticed, after the first event.
        at: Nanos,
        /// When all cores are known again, after the first event; `None`: at no time.
        known_again: Option<Nanos>,
    },
    /// The trace breaks off.
    #[error("{error}")]
    Damaged {
        /// Where and why.
        error: ReadError,
        /// How much of the chosen part comes before.
        whole: Nanos,
    },
    /// There is too much of it.
    #[error("more than {most} {what}")]
    TooLarge {
        /// The limit.
        most: usize,
        /// Of what.
        what: &'static str,
    },
    /// The source has no threads.
    #[error("a trace of {0} says nothing of threads")]
    WithoutThreads(String),
    /// The chosen part is after the end.
    #[error("it ends {} s after its begin", seconds(*.0))]
    Ended(Nanos),
    /// The trace goes on, but without an event in the chosen part.
    #[error("no event is between {} s and {} s after its begin", seconds(*.from), seconds(*.until))]
    Empty {
        /// Where the part begins, after the first event.
        from: Nanos,
        /// Where it ends.
        until: Nanos,
        /// The next event, after the first one.
        next: Nanos,
    },
}

impl ReplayError {
    /// What to do about it.
    pub fn remedy(&self) -> String {
        match self {
            ReplayError::Lost { known_again: Some(at), .. } => format!(
                "record again with a larger `--buffer`, or begin after the loss: `from_s = {}`",
                seconds(*at + Nanos(999))
            ),
            ReplayError::Lost { at, .. } if *at > Nanos::ZERO => format!(
                "record again with a larger `--buffer`, or end before the loss: `length_s` below {}",
                seconds(*at)
            ),
            ReplayError::Lost { .. } => "record again with a larger `--buffer`".to_owned(),
            ReplayError::Damaged { whole, .. } if *whole > Nanos::ZERO => format!(
                "record again, or replay what comes before: `length_s = {}`",
                seconds(*whole)
            ),
            ReplayError::Damaged { .. } => {
                "name a trace of `quell record`, or text of ftrace or `perf sched script`"
                    .to_owned()
            }
            ReplayError::TooLarge { .. } => {
                "replay a part of it with `from_s` and `length_s`".to_owned()
            }
            ReplayError::WithoutThreads(_) => "record the host with `quell record`".to_owned(),
            ReplayError::Ended(_) => "choose an earlier `from_s`".to_owned(),
            ReplayError::Empty { from, next, .. } => format!(
                "the next event is {} s after its begin: choose another `from_s`, or a longer part: \
                 `length_s = {}`",
                seconds(*next),
                seconds(Nanos(next.since(*from).0.saturating_add(999)))
            ),
        }
    }
}

fn events(count: Option<u64>) -> String {
    count.map_or_else(|| "events".to_owned(), |count| format!("{count} events"))
}

/// Microseconds are enough for a key that a user types.
fn seconds(time: Nanos) -> String {
    let micros = time.0 / 1_000;
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Reads the chosen part of a trace file.
///
/// # Errors
/// When it cannot be opened or replayed: with the file and the remedy.
pub fn load(path: &Path, window: Window) -> Result<Recording, FileError> {
    let error = |what: String, remedy: String| FileError {
        file: path.display().to_string(),
        line: None,
        what,
        remedy,
    };
    let file = File::open(path).map_err(|err| {
        error(err.to_string(), "name a trace of `quell record`, relative to this file".to_owned())
    })?;
    let opened = quell_trace::open(BufReader::new(file), Options::default());
    let read = opened
        .map_err(|error| ReplayError::Damaged { error, whole: Nanos::ZERO })
        .and_then(|mut source| read(source.as_mut(), window));
    read.map_err(|err| error(err.to_string(), err.remedy()))
}

/// Reads the chosen part of a trace.
///
/// # Errors
/// When events are missing in it, or it is damaged or too large.
pub fn read(source: &mut dyn Source, window: Window) -> Result<Recording, ReplayError> {
    read_up_to(source, window, STEPS_MAX)
}

/// As [`read`], with this limit of steps.
fn read_up_to(
    source: &mut dyn Source,
    window: Window,
    steps_max: usize,
) -> Result<Recording, ReplayError> {
    let meta = source.meta().clone();
    let mut host = HostState::new(&meta);
    if host.queues() == quell_trace::host::Queues::SizesOnly {
        return Err(ReplayError::WithoutThreads(meta.kernel));
    }
    let mut extract = Extract::new(&meta, steps_max);
    let mut wasted = WastedTime::default();
    let mut first = None;
    while let Some(event) = source.next() {
        let event = event.map_err(|error| {
            let whole = host.now().since(first.unwrap_or_default()).since(window.from);
            ReplayError::Damaged { error, whole }
        })?;
        let origin = *first.get_or_insert(event.at);
        let begin = Nanos(origin.0.saturating_add(window.from.0));
        if let Some(length) = window.length.filter(|length| event.at.since(begin) > *length) {
            if !extract.has_begun() {
                let next = event.at.since(origin);
                let from = window.from;
                return Err(ReplayError::Empty { from, until: from + length, next });
            }
            break;
        }
        if event.at.since(begin) > Nanos::from_secs(SECONDS_MAX as u64) {
            return Err(ReplayError::TooLarge { most: SECONDS_MAX, what: "seconds" });
        }
        if event.at < begin {
            host.push(&event, &mut ());
            continue;
        }
        extract.begin(&host, begin);
        if let Some(loss) = extract.lost(&host) {
            // A keyframe at this very time may make it known.
            if !matches!(event.what, What::Keyframe(_)) || loss.at > begin {
                return Err(lost(source, host, loss, origin));
            }
        }
        wasted.advance(&host, event.at);
        extract.push(&mut host, &event);
        extract.check_size()?;
    }
    if !extract.has_begun() {
        return Err(ReplayError::Ended(host.now().since(first.unwrap_or_default())));
    }
    if let Some(loss) = extract.lost(&host) {
        return Err(lost(source, host, loss, first.unwrap_or_default()));
    }
    wasted.finish(&host);
    extract.end(&mut host)?;
    Ok(extract.finish(&host, &meta, Nanos(wasted.total().wasted.thread_ns)))
}

/// What was lost, and when all is known again after that.
fn lost(source: &mut dyn Source, mut host: HostState, loss: Loss, origin: Nanos) -> ReplayError {
    let mut known_again = None;
    for event in source.map_while(Result::ok) {
        host.push(&event, &mut ());
        match host.lost().is_empty() {
            true if known_again.is_none() => known_again = Some(host.now().since(origin)),
            true => {}
            // Something else was lost.
            false => known_again = None,
        }
    }
    let Loss { core, count, at } = loss;
    ReplayError::Lost { core, count, at: at.since(origin), known_again }
}
