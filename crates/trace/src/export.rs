//! Traces in the text of the Wasted Cores authors' recorder, for their tools.

use std::fmt::Write as _;
use std::io::{self, Write};

use quell_model::{CoreId, Event, Meta, MoveCause, Search, Topology, What};

use crate::stream::{Sink, stranger};

/// Writes run-queue sizes, loads, moves and considered cores in that format, with the cells of each core before
/// each line; everything else is left out, as is what the format cannot say: moves of other causes, and considered
/// cores past the 64th.
pub struct WastedCores<W: Write> {
    out: W,
    topology: Option<Topology>,
    /// By the core's position.
    cells: Vec<Cell>,
    line: String,
}

/// What is known of a core; -1 is not known.
#[derive(Clone, Copy, Debug)]
struct Cell {
    size: i64,
    last_move: i64,
    load: i64,
}

impl<W: Write> WastedCores<W> {
    /// Writes to `out`, line by line.
    pub fn new(out: W) -> WastedCores<W> {
        WastedCores { out, topology: None, cells: Vec::new(), line: String::new() }
    }

    /// What was written to.
    pub fn into_inner(self) -> W {
        self.out
    }

    fn cell(&mut self, of: CoreId) -> Option<&mut Cell> {
        let at = self.topology.as_ref()?.position(of)?;
        self.cells.get_mut(at)
    }

    /// Takes the event into its cell; what stands behind the cells, where there is a line for it.
    fn told(&mut self, what: &What) -> Option<String> {
        match what {
            What::Queue { of, queued, .. } => {
                let cell = self.cell(*of)?;
                if i64::from(*queued) < cell.size {
                    cell.last_move = -1;
                }
                cell.size = i64::from(*queued);
                Some(format!("RQ {of} {queued}"))
            }
            What::Load { of, weight, .. } => {
                self.cell(*of)?.load = *weight as i64;
                Some(format!("LD {of} {weight}"))
            }
            What::Migrate { from, to, cause, .. } => {
                let kind = match cause {
                    MoveCause::Exec => 0,
                    MoveCause::Wakeup => 1,
                    MoveCause::Fork => 2,
                    MoveCause::NewIdle => 13,
                    MoveCause::Periodic => 14,
                    MoveCause::Active => 24,
                    _ => return None,
                };
                self.cell(*to)?.last_move = kind;
                Some(format!("SC {kind} {from} {to}"))
            }
            _ => None,
        }
    }
}

/// A line of considered cores, behind the time.
fn considered(what: &What) -> Option<String> {
    let What::Considered { by, search, cores, .. } = what else { return None };
    let kind = match search {
        Search::IdleSibling => 200,
        Search::GroupStatistics => 201,
        Search::BusiestQueue => 202,
        Search::Idlest => 203,
    };
    Some(format!("BA {kind} {by} {by} {:016x}", cores.words()[0]))
}

impl<W: Write> Sink for WastedCores<W> {
    fn meta(&mut self, meta: &Meta) -> io::Result<()> {
        self.cells = vec![Cell { size: -1, last_move: -1, load: -1 }; meta.topology.len()];
        self.topology = Some(meta.topology.clone());
        Ok(())
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        let topology = self.topology.as_ref();
        if topology.is_none_or(|topology| stranger(&event.what, topology).is_some()) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "an event before the trace's Meta, or of a core that it does not have",
            ));
        }
        if let Some(text) = considered(&event.what) {
            return writeln!(self.out, "# {} nsecs {text}", event.at.0);
        }
        let Some(text) = self.told(&event.what) else { return Ok(()) };
        self.line.clear();
        for Cell { size, last_move, load } in &self.cells {
            let _ = write!(self.line, "{size:4}{last_move:4}{load:12}");
        }
        writeln!(self.out, "{}\t {} nsecs {text}", self.line, event.at.0)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use quell_model::{Certainty, Nanos, Source};

    use super::*;
    use crate::import::{Importer, NOBODY_KNOWN, Options};

    #[test]
    fn what_the_format_has_is_read_back() {
        let all = [
            What::Queue { of: CoreId(1), queued: 2, runnable: 2 },
            What::Load { of: CoreId(0), weight: 1 << 40, average: 0 },
            What::Migrate {
                thread: NOBODY_KNOWN,
                from: CoreId(1),
                to: CoreId(0),
                cause: MoveCause::NewIdle,
            },
            What::Considered {
                by: CoreId(1),
                search: Search::BusiestQueue,
                cores: Box::new("0-1,63".parse().unwrap()),
                certainty: Certainty::Observed,
            },
            What::Queue { of: CoreId(1), queued: 1, runnable: 1 },
        ];
        let meta = Meta {
            source: Source::Simulator,
            topology: Topology::regular(1, 2, 1).unwrap(),
            kernel: String::new(),
            host: String::new(),
            hooks: vec![],
            absent: vec![],
            wall_offset_ns: 0,
        };
        let mut sink = WastedCores::new(Vec::new());
        sink.meta(&meta).unwrap();
        for (at, what) in all.iter().enumerate() {
            let event =
                Event { at: Nanos(at as u64), core: CoreId(0), sequence: 0, what: what.clone() };
            sink.event(&event).unwrap();
        }
        sink.event(&Event {
            at: Nanos(9),
            core: CoreId(0),
            sequence: 0,
            what: What::Exit { thread: 1 },
        })
        .unwrap();
        let text = sink.into_inner();
        let importer = Importer::new(&text[..], Options::default()).unwrap();
        assert_eq!(crate::stream::Source::meta(&importer).topology.len(), 2);
        let back: Vec<What> = importer
            .map(|event| event.unwrap().what)
            .filter(|what| !matches!(what, What::Keyframe(_)))
            .collect();
        assert_eq!(back, all);
    }
}
