//! Recordings of this host: what its scheduler did, with Quell's own decisions, in a file.
//!
//! [`record`] runs until a limit is reached, the command ends, or somebody stops it. Memory is bounded: events go
//! to the file as they come, or, as a flight recorder, only the last seconds are kept and saved at the end.

mod counted;
mod decisions;
mod summary;
#[cfg(test)]
mod tests;
mod why;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quell_model::{Event, Meta, Nanos, What};
use quell_observe::ObserveError;
use quell_observe::bpf::Measurement;
use quell_observe::recorder::{self, Recorder, Statistics};
use quell_os::{ThreadRef, clock, own};
use quell_trace::check::{self, Checker, Flight, WastedWait};
use quell_trace::perfetto::Writer;
use quell_trace::stream::Sink;

pub use quell_observe::recorder::Events;
pub use summary::{Ended, Progress, Summary};
pub use why::Recording;

use self::counted::Counted;
use self::decisions::Decisions;

/// How often the ring is emptied.
const EVERY: Duration = Duration::from_millis(20);
/// How much is recorded of what follows a violation.
const AFTER: Nanos = Nanos::from_secs(1);

/// What to record, and until when.
#[derive(Clone, Debug)]
pub struct Options {
    /// The file; replaced if it exists.
    pub file: PathBuf,
    /// Which events to record.
    pub events: Events,
    /// The size of the ring between the kernel and this process.
    pub ring_bytes: usize,
    /// How often the state of the host is told.
    pub keyframe_every: Nanos,
    /// Ends the recording after this time.
    pub duration: Option<Nanos>,
    /// Ends the recording at this size of the file.
    pub bytes: Option<u64>,
    /// Ends the recording a second after a thread was found to wait beside an idle core that it could use.
    pub on_violation: bool,
    /// Keeps only the end, and saves it when all is over.
    pub keep: Option<Keep>,
    /// Where a daemon would listen.
    pub daemon: PathBuf,
    /// A program to run meanwhile, with its arguments; its end ends the recording.
    pub command: Vec<OsString>,
    /// Measures what the BPF programs cost, which costs some 20 ns a run itself.
    pub cost: bool,
}

/// How much a flight recorder keeps.
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    /// So much of time, from a keyframe on.
    pub time: Nanos,
    /// And no more than this, in memory.
    pub bytes: usize,
}

/// Why a recording failed.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The kernel does not let itself be recorded.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// The file cannot be written. What was written before can be read.
    #[error("{}: {source}", file.display())]
    File {
        /// Which.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The program cannot be run.
    #[error("{command}: {source}")]
    Command {
        /// Which.
        command: String,
        /// Why.
        source: io::Error,
    },
    /// A thread cannot be started.
    #[error("start a thread: {0}")]
    Thread(io::Error),
}

/// Records until a limit, the command's end, or `stop`.
///
/// # Errors
/// When the kernel refuses, the file cannot be written or the command cannot be run.
pub fn record(
    options: &Options,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(&Progress),
) -> Result<Summary, RecordError> {
    let mut store = Store::create(options)?;
    let mut session = Session::start(options)?;
    store.open(session.recorder.meta())?;
    let ended = loop {
        std::thread::sleep(EVERY);
        session.drain()?;
        session.hand_over(&mut store)?;
        tell(&session.progress(&store));
        if let Some(ended) = session.ended(options, &store, stop)? {
            break ended;
        }
    };
    session.finish(store, ended)
}

/// What records.
struct Session {
    recorder: Recorder,
    measurement: Option<Measurement>,
    decisions: Decisions,
    command: Option<(String, Child)>,
    checker: Option<Checker>,
    /// When the recording ends for a violation.
    enough: Nanos,
    began: Nanos,
    cpu_began: Nanos,
    batch: Vec<Event>,
}

impl Session {
    fn start(options: &Options) -> Result<Session, RecordError> {
        // Without the right to it events are lost sooner, which is told.
        let _ = own::go_before_others();
        let recorder = Recorder::start(&recorder::Options {
            events: options.events,
            processes: Vec::new(),
            ring_bytes: options.ring_bytes,
            keyframe_every: Some(options.keyframe_every),
        })?;
        let measurement = options.cost.then(|| recorder.measure()).transpose();
        let measurement = measurement.map_err(|source| ObserveError::Kernel {
            what: "measuring BPF programs".to_owned(),
            source,
        })?;
        let began = clock::now();
        let decisions = Decisions::follow(&options.daemon, began).map_err(RecordError::Thread)?;
        let reader = ThreadRef::current().map_err(RecordError::Thread)?.tid.0;
        let rules = check::Options { own: BTreeSet::from([reader]), ..check::Options::default() };
        let checker = options.on_violation.then(|| Checker::new(recorder.meta(), rules));
        Ok(Session {
            recorder,
            measurement,
            decisions,
            command: run(&options.command)?,
            checker,
            enough: Nanos::MAX,
            began,
            cpu_began: clock::process_cpu(),
            batch: Vec::new(),
        })
    }

    fn drain(&mut self) -> Result<(), ObserveError> {
        let Session { recorder, decisions, .. } = self;
        decisions.take(clock::now(), &mut |at, what| recorder.tell(at, what));
        self.recorder.drain(&mut self.batch)
    }

    /// Puts what was drained into the store. A violation in it is the begin of the end.
    fn hand_over(&mut self, store: &mut Store<'_>) -> Result<(), RecordError> {
        for event in self.batch.drain(..) {
            if let Some(checker) = &mut self.checker {
                checker.event(&event);
            }
            store.put(event)?;
        }
        let found = self.checker.as_mut().map(Checker::alerts).unwrap_or_default();
        if found.iter().any(WastedWait::is_violation) {
            self.enough = self.enough.min(clock::now() + AFTER);
        }
        Ok(())
    }

    /// Tells each violation once it is known how long it lasted.
    fn tell_violations(&mut self) -> Vec<String> {
        let now = clock::now();
        let found = self.checker.take().map(|checker| checker.finish(now).violations);
        let tell = |finding: &WastedWait| {
            self.recorder.tell(now, What::Violation(finding.violation().into()));
            finding.to_string()
        };
        found.unwrap_or_default().iter().map(tell).collect()
    }

    fn progress(&self, store: &Store<'_>) -> Progress {
        let Statistics { events, lost, .. } = self.recorder.statistics();
        let elapsed = clock::now().since(self.began);
        Progress { elapsed, events, lost, bytes: store.bytes() }
    }

    fn ended(
        &mut self,
        options: &Options,
        store: &Store<'_>,
        stop: &AtomicBool,
    ) -> Result<Option<Ended>, RecordError> {
        // Relaxed: a flag alone, nothing is published by it.
        if stop.load(Ordering::Relaxed) {
            return Ok(Some(Ended::Interrupted));
        }
        if let Some((name, child)) = &mut self.command {
            let status = child.try_wait();
            let status =
                status.map_err(|source| RecordError::Command { command: name.clone(), source })?;
            if let Some(status) = status {
                self.command = None;
                return Ok(Some(Ended::Command { code: status.code() }));
            }
        }
        let now = clock::now();
        if now >= self.enough {
            return Ok(Some(Ended::Violation));
        }
        let elapsed = now.since(self.began);
        if options.duration.is_some_and(|duration| elapsed >= duration) {
            return Ok(Some(Ended::Duration));
        }
        Ok(options.bytes.is_some_and(|bytes| store.bytes() >= bytes).then_some(Ended::Size))
    }

    fn finish(mut self, mut store: Store<'_>, ended: Ended) -> Result<Summary, RecordError> {
        let costs = self.measurement.take().map(|_| self.recorder.cost());
        let elapsed = clock::now().since(self.began);
        // The last decisions arrive within the window.
        std::thread::sleep(Duration::from_nanos(recorder::WINDOW.0));
        self.drain()?;
        self.hand_over(&mut store)?;
        let (lost_decisions, late) = self.decisions.lost_and_late();
        let violations = self.tell_violations();
        let statistics = self.recorder.finish(&mut self.batch);
        for event in self.batch {
            store.put(event)?;
        }
        let file = store.options.file.clone();
        let written = store.finish()?;
        let summary = Summary {
            file,
            ended,
            seconds: elapsed.0 as f64 / 1e9,
            events: statistics.events,
            kept_events: written.events,
            kept_seconds: written.span.0 as f64 / 1e9,
            kept_less: written.is_cut,
            violations,
            events_per_s: statistics.events as f64 / (elapsed.0.max(1) as f64 / 1e9),
            lost: statistics.lost,
            lost_decisions,
            late: statistics.late + late,
            unseen: statistics.unseen,
            bytes: written.bytes,
            cpu_ms: clock::process_cpu().since(self.cpu_began).0 as f64 / 1e6,
            programs: costs.map(|costs| costs.iter().map(summary::Cost::from).collect()),
        };
        if let Some((name, mut child)) = self.command {
            // It keeps the terminal: whoever waits for this program waits for that one.
            child.wait().map_err(|source| RecordError::Command { command: name, source })?;
        }
        Ok(summary)
    }
}

fn run(command: &[OsString]) -> Result<Option<(String, Child)>, RecordError> {
    let [program, arguments @ ..] = command else { return Ok(None) };
    let name = program.to_string_lossy().into_owned();
    let child = Command::new(program).args(arguments).spawn();
    let child = child.map_err(|source| RecordError::Command { command: name.clone(), source })?;
    Ok(Some((name, child)))
}

/// Where events go.
struct Store<'a> {
    options: &'a Options,
    writer: Writer<Counted<File>>,
    keep: Option<Flight>,
    events: u64,
    first: Option<Nanos>,
    last: Nanos,
}

/// What is in a file.
struct Written {
    events: u64,
    bytes: u64,
    span: Nanos,
    /// Memory held less than the time that was to be kept.
    is_cut: bool,
}

impl<'a> Store<'a> {
    /// Makes the file before anything is recorded: whoever may not write it hears so at once.
    fn create(options: &'a Options) -> Result<Store<'a>, RecordError> {
        let file = File::create(&options.file).map_err(|source| at(&options.file, source))?;
        let (writer, keep) = (
            Writer::new(Counted::new(file)),
            options.keep.map(|keep| Flight::new(keep.time, keep.bytes)),
        );
        Ok(Store { options, writer, keep, events: 0, first: None, last: Nanos::ZERO })
    }

    fn open(&mut self, meta: &Meta) -> Result<(), RecordError> {
        self.writer.meta(meta).map_err(|source| at(&self.options.file, source))
    }

    fn put(&mut self, event: Event) -> Result<(), RecordError> {
        match &mut self.keep {
            Some(keep) => keep.push(event),
            None => self.write(&event)?,
        }
        Ok(())
    }

    fn write(&mut self, event: &Event) -> Result<(), RecordError> {
        self.events += 1;
        self.first.get_or_insert(event.at);
        self.last = event.at;
        self.writer.event(event).map_err(|source| at(&self.options.file, source))
    }

    /// Bytes in the file.
    fn bytes(&self) -> u64 {
        self.writer.get_ref().bytes()
    }

    fn finish(mut self) -> Result<Written, RecordError> {
        let keep = self.keep.take();
        if let Some(keep) = &keep {
            keep.events().try_for_each(|event| self.write(event))?;
        }
        self.writer.finish().map_err(|source| at(&self.options.file, source))?;
        let span = self.last.since(self.first.unwrap_or(self.last));
        let is_cut = keep.is_some_and(|keep| keep.is_cut());
        Ok(Written { events: self.events, bytes: self.bytes(), span, is_cut })
    }
}

fn at(file: &Path, source: io::Error) -> RecordError {
    RecordError::File { file: file.to_owned(), source }
}
