//! `quell check` on this host: what it sees goes to the checker, and what that finds is said.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use quell_model::{Event, Meta, Nanos, Source, What};
use quell_observe::keyframe::KeyframeReader;
use quell_observe::recorder::{self, Events, Recorder};
use quell_observe::{settings, topology};
use quell_os::{ThreadRef, clock, own};
use quell_trace::check::{Checker, Flight, Options, Report, Sampler, WastedWait};
use quell_trace::perfetto::Writer;
use quell_trace::stream::Sink;

use crate::check_plan::PlanWatch;
use crate::client::Daemon;
use quell_terminal::interrupted;

/// How much is kept before a violation is found, and after it.
const BEFORE: Nanos = Nanos::from_secs(5);
const AFTER: Nanos = Nanos::from_secs(1);
/// Between two visits to the ring of events.
const VISIT: Duration = Duration::from_millis(20);

/// How to watch this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// A look each interval, and closer ones where it is suspicious: costs next to nothing
    Sampling,
    /// Every event: exact wasted time, moves and their causes; costs by the event
    Exact,
}

/// What is wanted.
pub struct Wanted<'a> {
    pub mode: Mode,
    pub interval: Nanos,
    pub duration: Option<Nanos>,
    pub options: Options,
    pub save: Option<PathBuf>,
    /// Standard output is for the report alone.
    pub quiet_output: bool,
    pub daemon: &'a Daemon,
}

/// Watches until the time is over or Ctrl-C; the report, and where the seconds around a violation were saved.
pub fn run(wanted: &Wanted) -> Result<(Report, Option<PathBuf>)> {
    if let Err(error) = own::go_before_others() {
        eprintln!("quell check: it competes with all threads for its time ({error})");
    }
    let mut watch = Watch {
        wanted,
        options: Options {
            own: BTreeSet::from([ThreadRef::current()?.tid.0]),
            ..wanted.options.clone()
        },
        plan: PlanWatch::new(wanted.daemon)?,
        stop: interrupted()?,
        begin: clock::now(),
    };
    let (mut report, saved) = match wanted.mode {
        Mode::Sampling => watch.sample()?,
        Mode::Exact => watch.follow()?,
    };
    report.facts.extend(settings::unusual());
    report.facts.extend(watch.plan.facts());
    Ok((report, saved))
}

struct Watch<'a> {
    wanted: &'a Wanted<'a>,
    options: Options,
    plan: PlanWatch<'a>,
    stop: Arc<AtomicBool>,
    /// When the first look was.
    begin: Nanos,
}

impl Watch<'_> {
    fn is_over(&self) -> bool {
        // Relaxed: a flag alone, nothing is published by it.
        clock::now() >= self.until() || self.stop.load(Ordering::Relaxed)
    }

    fn until(&self) -> Nanos {
        self.wanted.duration.map_or(Nanos::MAX, |duration| self.begin + duration)
    }

    /// Every event.
    fn follow(&mut self) -> Result<(Report, Option<PathBuf>)> {
        let mut stream = Stream::start(&self.options)?;
        self.begin = clock::now();
        let mut saved = None;
        while !self.is_over() {
            std::thread::sleep(VISIT);
            if let Some(managed) = self.plan.news() {
                stream.checker.set_managed(managed);
            }
            for finding in stream.visit()? {
                self.say(&finding);
            }
            if saved.is_none() && stream.has_seen_enough() {
                let so_far = stream.checker.clone().finish(clock::now());
                saved = Some(self.save(&stream.kept, &so_far)?);
            }
        }
        let (report, kept) = stream.finish();
        if saved.is_none() && !report.violations.is_empty() {
            saved = Some(self.save(&kept, &report)?);
        }
        Ok((report, saved))
    }

    /// A look each interval; the first violation is then looked at event by event, for its causes.
    fn sample(&mut self) -> Result<(Report, Option<PathBuf>)> {
        let mut reader = KeyframeReader::open()?;
        let meta = meta()?;
        self.begin = clock::now();
        let mut sampler = Sampler::new(&meta, self.options.clone(), self.wanted.interval);
        let (mut next, mut closer) = (self.begin, None);
        while !self.is_over() {
            let now = clock::now();
            if now < next {
                // Ctrl-C should not have to wait for a look.
                std::thread::sleep(Duration::from_nanos((next - now).0).min(5 * VISIT));
                continue;
            }
            if let Some(managed) = self.plan.news() {
                sampler.set_managed(managed);
            }
            let (at, keyframe) = reader.read()?;
            next = sampler.keyframe(at, Arc::new(keyframe));
            for finding in sampler.alerts().into_iter().filter(WastedWait::is_violation) {
                self.say(&finding);
                if closer.is_none() {
                    closer = Some(self.look_closer()?);
                }
            }
        }
        let mut report = sampler.finish();
        let saved = closer.map(|(seen, saved)| {
            report.explain_by(&seen);
            saved
        });
        Ok((report, saved))
    }

    /// Records what happens right after a violation was found.
    fn look_closer(&mut self) -> Result<(Report, PathBuf)> {
        let mut stream = Stream::start(&self.options)?;
        let until = clock::now() + AFTER;
        while clock::now() < until {
            std::thread::sleep(VISIT);
            stream.visit()?;
        }
        let (report, kept) = stream.finish();
        let saved = self.save(&kept, &report)?;
        Ok((report, saved))
    }

    fn say(&self, finding: &WastedWait) {
        let since = Nanos(finding.until_ns) - self.begin;
        let line = format!("+{:.1} s: {finding}", since.0 as f64 / 1e9);
        match self.wanted.quiet_output {
            true => eprintln!("{line}"),
            false => println!("{line}"),
        }
    }

    /// Writes what is kept, and behind it the violations.
    fn save(&self, kept: &Kept, report: &Report) -> Result<PathBuf> {
        let path = self.wanted.save.clone().unwrap_or_else(|| {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            PathBuf::from(format!("quell-violation-{}.pftrace", now.as_secs()))
        });
        let write = || {
            let mut writer = Writer::new(BufWriter::new(File::create(&path)?));
            writer.meta(&kept.meta)?;
            kept.flight.events().try_for_each(|event| writer.event(event))?;
            if let Some(last) = kept.flight.events().last() {
                for (finding, sequence) in report.violations.iter().zip(last.sequence + 1..) {
                    let what = What::Violation(finding.violation().into());
                    writer.event(&Event { what, sequence, ..*last })?;
                }
            }
            writer.finish()
        };
        write().with_context(|| path.display().to_string())?;
        if kept.flight.is_cut() {
            eprintln!("{}: memory held less than {BEFORE} before the violation", path.display());
        }
        Ok(path)
    }
}

/// What looks alone are of.
fn meta() -> Result<Meta> {
    let host = rustix::system::uname();
    Ok(Meta {
        source: Source::Recorder,
        topology: topology::read()?,
        kernel: host.release().to_string_lossy().into_owned(),
        host: host.nodename().to_string_lossy().into_owned(),
        hooks: Vec::new(),
        absent: vec!["what happens between two looks".to_owned()],
        wall_offset_ns: clock::wall_offset_ns(),
    })
}

/// The end of a stream of events, for a trace.
struct Kept {
    meta: Meta,
    flight: Flight,
}

/// Every event of this host, on its way to a checker.
struct Stream {
    recorder: Recorder,
    checker: Checker,
    kept: Kept,
    events: Vec<Event>,
    /// When the first violation was found.
    found: Option<Nanos>,
}

impl Stream {
    fn start(options: &Options) -> Result<Stream> {
        // Loads come with keyframes; each change of them would double the events.
        let events = Events { load: false, softirqs: false, interrupts: false, ..Events::ALL };
        let recorder =
            Recorder::start(&recorder::Options { events, ..recorder::Options::default() })?;
        let meta = recorder.meta().clone();
        Ok(Stream {
            checker: Checker::new(&meta, options.clone()),
            kept: Kept { meta, flight: Flight::new(BEFORE + AFTER, Flight::BYTES) },
            recorder,
            events: Vec::new(),
            found: None,
        })
    }

    /// Takes what has happened, and tells the violations that were found.
    fn visit(&mut self) -> Result<Vec<WastedWait>> {
        self.recorder.drain(&mut self.events)?;
        self.take();
        let mut found = self.checker.alerts();
        found.retain(WastedWait::is_violation);
        if let Some(first) = found.first() {
            self.found.get_or_insert(Nanos(first.until_ns));
        }
        Ok(found)
    }

    /// Whether the seconds around the first violation are over.
    fn has_seen_enough(&self) -> bool {
        self.found.is_some_and(|found| clock::now() >= found + AFTER)
    }

    fn take(&mut self) {
        for event in self.events.drain(..) {
            self.checker.event(&event);
            self.kept.flight.push(event);
        }
    }

    fn finish(self) -> (Report, Kept) {
        let Stream { recorder, mut checker, mut kept, mut events, .. } = self;
        // To end takes the recorder a while, in which nobody looks.
        let end = clock::now();
        recorder.finish(&mut events);
        for event in events {
            checker.event(&event);
            kept.flight.push(event);
        }
        (checker.finish(end), kept)
    }
}
