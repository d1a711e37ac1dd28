//! Traces in the text of other programs, line by line and in bounded memory:
//!
//! * ftrace (`trace`, `trace_pipe`) and `trace-cmd report`;
//! * `perf sched script`;
//! * the recorder of the Wasted Cores authors, in both widths, and its forks.
//!
//! None of them says everything that a trace of ours does. What they lack is worked out where it can be (run queues
//! from switches and wake-ups, keyframes), and [`Meta::absent`] says so.

use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::io::BufRead;

use quell_model::{Core, CoreId, Event, Meta, Nanos, Runner, Source as Origin, Topology, What};

use crate::stream::{ReadError, Source};
use infer::Infer;
pub(crate) use lines::Lines;

mod ftrace;
mod infer;
mod lines;
mod wasted_cores;

#[cfg(test)]
mod tests;

pub use wasted_cores::NOBODY_KNOWN;

/// Events that are held to bring them into the order of time, and to see which cores there are.
const WINDOW: usize = 16_384;
/// Kinds of lines that are told apart where they are left out.
const OTHERS_MAX: usize = 64;

/// The host and the kernel of a text.
pub const UNKNOWN: &str = "unknown";

/// What a text does not say and the user may.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// How many cores the host has.
    pub cores: Option<u16>,
    /// Into how many nodes they fall, one behind the other.
    pub nodes: Option<u16>,
}

/// What a line says.
#[derive(Debug)]
enum Parsed {
    /// An event.
    Event(Raw),
    /// Events of a core were lost.
    Lost { core: CoreId, count: u64 },
    /// How many cores there are.
    Cores(u16),
    /// An event of a kind that is none of ours.
    Other(String),
    /// A comment, a header.
    Nothing,
}

/// An event, and what else its line says.
#[derive(Debug)]
struct Raw {
    at: Nanos,
    core: CoreId,
    what: What,
    /// Of a switch: who left.
    prev: Option<Runner>,
    /// A thread and its process.
    process: Option<(i32, i32)>,
}

/// A [`Raw`] in a heap whose greatest is the earliest.
#[derive(Debug)]
struct Held {
    raw: Raw,
    /// Its place in the file.
    order: u64,
}

impl Held {
    fn key(&self) -> std::cmp::Reverse<(Nanos, u64)> {
        std::cmp::Reverse((self.raw.at, self.order))
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Held) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Held) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Held) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// Reads a text.
#[derive(Debug)]
pub struct Importer<R> {
    lines: Lines<R>,
    format: Origin,
    meta: Meta,
    window: BinaryHeap<Held>,
    infer: Infer,
    ready: VecDeque<Event>,
    tally: Tally,
    /// Why there is nothing more to read: told once everything before it was given.
    error: Option<ReadError>,
    is_read: bool,
    is_over: bool,
}

/// What was seen and left out.
#[derive(Debug, Default)]
struct Tally {
    /// Events so far.
    order: u64,
    /// The latest time given out, and the latest read.
    given: Nanos,
    latest: Nanos,
    /// One more than the highest core, and what a header says.
    cores: u16,
    /// Events that came too late to be put where they belong.
    late: u64,
    others: BTreeMap<String, u64>,
    /// Of kinds that were too many to tell apart.
    more: u64,
}

impl<R: BufRead> Importer<R> {
    /// Begins to read: finds out which format it is, and which cores there are.
    ///
    /// # Errors
    /// When the input cannot be read, or its first event is none of a known format.
    pub fn new(input: R, options: Options) -> Result<Importer<R>, ReadError> {
        let mut lines = Lines::new(input);
        let mut tally = Tally::default();
        let format = detect(&mut lines, &mut tally)?;
        let mut window = BinaryHeap::new();
        let mut more = Ok(true);
        while matches!(more, Ok(true)) && window.len() < WINDOW {
            more = read(&lines, format, &mut tally).and_then(|held| {
                window.extend(held);
                lines.advance()
            });
        }
        let topology =
            topology(options, tally.cores).map_err(|what| lines.wrong(what.to_string()))?;
        let meta = meta(format, topology);
        let mut early: Vec<&Held> = window.iter().collect();
        early.sort_by(|a, b| b.cmp(a));
        let infer = Infer::new(&meta, early.into_iter().map(|held| &held.raw));
        let mut importer = Importer {
            lines,
            format,
            meta,
            window,
            infer,
            ready: VecDeque::new(),
            tally,
            error: None,
            is_read: false,
            is_over: false,
        };
        // The line behind the window is read and waits.
        let taken = more
            .and_then(|more| if more { importer.take_line().map(|()| true) } else { Ok(false) });
        importer.went_on(taken);
        Ok(importer)
    }

    /// Puts the event of the current line into the window.
    fn take_line(&mut self) -> Result<(), ReadError> {
        if let Some(held) = read(&self.lines, self.format, &mut self.tally)? {
            let core = crate::stream::stranger(&held.raw.what, &self.meta.topology);
            let own =
                Some(held.raw.core).filter(|core| self.meta.topology.position(*core).is_none());
            if let Some(core) = own.or(core) {
                return Err(self.lines.wrong(format!(
                    "core {core}, of which the first {WINDOW} events know nothing; say how many cores \
                     the host has with --cores"
                )));
            }
            self.window.push(held);
        }
        Ok(())
    }

    /// Whether there may be more to read.
    fn went_on(&mut self, more: Result<bool, ReadError>) {
        self.is_read = !matches!(more, Ok(true));
        self.error = more.err();
    }

    /// Takes the earliest event of the window, and what follows from it; `false` if there is none.
    fn step(&mut self) -> bool {
        while !self.is_read && self.window.len() < WINDOW {
            let more = match self.lines.advance() {
                Ok(true) => self.take_line().map(|()| true),
                end => end,
            };
            self.went_on(more);
        }
        let Some(Held { mut raw, .. }) = self.window.pop() else { return false };
        if raw.at < self.tally.given {
            raw.at = self.tally.given;
            self.tally.late += 1;
        }
        self.tally.given = raw.at;
        self.infer.event(raw, &mut self.ready);
        true
    }
}

/// Reads up to the first event and says whose it is.
fn detect<R: BufRead>(lines: &mut Lines<R>, tally: &mut Tally) -> Result<Origin, ReadError> {
    const EMPTY: &str = "it has no event of ftrace, `trace-cmd report`, `perf sched script` or the \
                         Wasted Cores recorder";
    const NEITHER: &str = "this is no trace: neither of Quell nor of ftrace, `trace-cmd report`, `perf sched \
                           script` or the Wasted Cores recorder";
    while lines.advance()? {
        let line = lines.line();
        if wasted_cores::is_one(&line) {
            return Ok(Origin::WastedCores);
        }
        match ftrace::parse(&line) {
            Ok(Parsed::Cores(cores)) => tally.cores = cores,
            Ok(Parsed::Nothing | Parsed::Lost { .. }) => {}
            _ if ftrace::is_perf(&line) => return Ok(Origin::Perf),
            Ok(Parsed::Event(_) | Parsed::Other(_)) => return Ok(Origin::Ftrace),
            Err(_) => return Err(lines.wrong(NEITHER.to_owned())),
        }
    }
    Err(ReadError::NotATrace(EMPTY))
}

/// The event of the current line.
fn read<R: BufRead>(
    lines: &Lines<R>,
    format: Origin,
    tally: &mut Tally,
) -> Result<Option<Held>, ReadError> {
    let line = lines.line();
    let parsed = match format {
        Origin::WastedCores => wasted_cores::parse(&line),
        _ => ftrace::parse(&line),
    };
    let raw = match parsed.map_err(|what| lines.wrong(what))? {
        Parsed::Event(raw) => raw,
        Parsed::Lost { core, count } => {
            Raw { at: tally.latest, core, what: What::Lost { count }, prev: None, process: None }
        }
        Parsed::Cores(cores) => {
            tally.cores = tally.cores.max(cores);
            return Ok(None);
        }
        Parsed::Other(kind) => {
            tally.leave_out(kind);
            return Ok(None);
        }
        Parsed::Nothing => return Ok(None),
    };
    tally.latest = raw.at;
    tally.order += 1;
    if tally.order <= WINDOW as u64 {
        let named = named_cores(&raw).into_iter().flatten().map(|core| core.0 + 1).max();
        tally.cores = tally.cores.max(named.unwrap_or(0));
        if format == Origin::WastedCores {
            let cells = line.split_once('\t').and_then(|(cells, _)| wasted_cores::cores(cells));
            tally.cores = tally.cores.max(cells.unwrap_or(0) as u16);
        }
    }
    Ok(Some(Held { raw, order: tally.order }))
}

fn named_cores(raw: &Raw) -> [Option<CoreId>; 3] {
    let (a, b) = match &raw.what {
        What::Waking { target: core, .. } | What::Woken { on: core, .. } => (Some(*core), None),
        What::Migrate { from, to, .. } => (Some(*from), Some(*to)),
        _ => (None, None),
    };
    [Some(raw.core), a, b]
}

impl Tally {
    fn leave_out(&mut self, kind: String) {
        let known = self.others.len();
        match self.others.get_mut(&kind) {
            Some(count) => *count += 1,
            None if known < OTHERS_MAX => drop(self.others.insert(kind, 1)),
            None => self.more += 1,
        }
    }
}

/// As the user says, else one node of as many cores as were seen.
fn topology(options: Options, seen: u16) -> Result<Topology, quell_model::TopologyError> {
    let cores = options.cores.unwrap_or(seen).max(1);
    let nodes = options.nodes.unwrap_or(1).clamp(1, cores);
    let of = |core| Core {
        id: CoreId(core),
        physical: core,
        llc: (u32::from(core) * u32::from(nodes) / u32::from(cores)) as u16,
        node: (u32::from(core) * u32::from(nodes) / u32::from(cores)) as u16,
    };
    Topology::new((0..cores).map(of).collect())
}

fn meta(format: Origin, topology: Topology) -> Meta {
    let absent: &[&str] = match format {
        Origin::WastedCores => &[
            "topology: as many cores as were seen, in the nodes that were said",
            "threads: who runs and who waits; migrations have thread -1",
            "switches, wake-ups, forks, exits",
            "affinity: which cores a thread may use",
            "queues before their first change: taken as empty",
            "time of day",
        ],
        _ => &[
            "topology: as many cores as were seen, in the nodes that were said",
            "queues: worked out from switches and wake-ups",
            "load",
            "affinity: every thread is taken to be free to use every core",
            "causes of migrations",
            "time of day",
        ],
    };
    Meta {
        source: format,
        topology,
        kernel: UNKNOWN.to_owned(),
        host: UNKNOWN.to_owned(),
        hooks: Vec::new(),
        absent: absent.iter().map(|text| (*text).to_owned()).collect(),
        wall_offset_ns: 0,
    }
}

impl<R: BufRead> Iterator for Importer<R> {
    type Item = Result<Event, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() && !self.is_over {
            self.is_over = !self.step();
        }
        self.ready.pop_front().map(Ok).or_else(|| self.error.take().map(Err))
    }
}

impl<R: BufRead> Source for Importer<R> {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn remarks(&self) -> Vec<String> {
        let mut remarks: Vec<String> = self
            .tally
            .others
            .iter()
            .map(|(kind, count)| format!("left out {count} lines of kind `{kind}`"))
            .collect();
        if self.tally.more > 0 {
            remarks.push(format!("left out {} lines of further kinds", self.tally.more));
        }
        if self.tally.late > 0 {
            remarks.push(format!(
                "{} events lay more than {WINDOW} events behind their place and were moved to where \
                 they stood",
                self.tally.late
            ));
        }
        remarks
    }
}
