//! `quell bench lanes`: the evaluation of the priority elevation trick's article (APSys'24), on this host.
//!
//! - [`turns`]: how long turns are, how long until the next one, and what the switches cost (3.1).
//! - [`requests`]: a server beside busy loops, by slice and by table (3.2, 3.3).
//! - [`bimodal`]: short requests behind long ones, with and without preemption (3.4).
//!
//! Beside the lanes, in the same rounds: what the kernel offers ([`peers`]), and the published prototype where its
//! program is given. The floor that this host sets is what the lanes themselves say: the shortest time from the end of a
//! slice until the next member may run.

mod bimodal;
mod client;
mod guest;
mod peers;
mod plots;
mod program;
mod request_server;
mod requests;
mod ring;
mod server;
mod sharing;
mod turns;
mod undisturbed;
mod words;

use std::time::Duration;

use anyhow::Result;
use quell_model::Nanos;

pub use client::in_loop;
pub use program::main;
pub use sharing::Place;

use crate::host::{self, Quiet};
use quell_report::BenchReport;
use quell_terminal::{Progress, Stop};

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Slices as taken, gaps and cycles.
    Accuracy,
    /// A server by slice.
    Slices,
    /// A server by table.
    Table,
    /// Short requests behind long ones.
    Bimodal,
}

impl Part {
    /// All of them.
    pub const ALL: [Part; 4] = [Part::Accuracy, Part::Slices, Part::Table, Part::Bimodal];
}

/// A run of the lanes benchmark.
#[derive(Clone, Debug)]
pub struct LanesSpec {
    /// The command that makes the report again.
    pub command: String,
    /// What is measured.
    pub parts: Vec<Part>,
    /// Interleaved rounds.
    pub rounds: usize,
    /// How long each run takes.
    pub time: Duration,
    /// The slices.
    pub slices: Vec<Nanos>,
    /// Programs and cores.
    pub place: Place,
}

/// Runs the benchmark.
///
/// # Errors
/// When a program or a lane fails, or a stop was asked for.
pub fn run(spec: &LanesSpec, progress: &mut dyn Progress, stop: &Stop) -> Result<BenchReport> {
    let alone = host::alone(progress, stop)?;
    // A fair thread on a core that lanes keep busy is given 50 ms of each second: 5 % of the requests would see that.
    let mut quiet = Quiet::keep()?;
    quiet.keep_off(spec.place.core);
    let aside = quell_testkit::Quiet::on(spec.place.core, &alone)?;
    let _unthrottled = peers::unthrottled()?;
    let mut report = BenchReport::new("lanes", &spec.command);
    let (place, rounds, time) = (&spec.place, spec.rounds, spec.time);
    let extent = requests::Extent { rounds, time };
    for part in Part::ALL.into_iter().filter(|part| spec.parts.contains(part)) {
        match part {
            Part::Accuracy => {
                turns::measure(place, &spec.slices, rounds, time, &mut report, progress, stop)?;
            }
            Part::Slices => {
                let cells = requests::cells_of_slices(&spec.slices, place.prototype.is_some());
                requests::measure(place, &cells, &extent, &mut report, progress, stop)?;
            }
            Part::Table => {
                let cells = requests::cells_of_tables();
                requests::measure(place, &cells, &extent, &mut report, progress, stop)?;
            }
            Part::Bimodal => {
                bimodal::measure(place, rounds, 2 * time, &mut report, progress, stop)?;
            }
        }
    }
    plots::draw(&mut report, &spec.slices);
    report.notes.extend(notes(spec));
    if aside.is_none() {
        report.notes.push(
            "other programs may have run on the lane's core: this host has no cpusets (cgroup v1) to move them aside".into(),
        );
    }
    Ok(report)
}

/// Runs of a cell of guests until it counts as one that cannot be had here: an emulator may end in the middle.
const GUEST_TRIES: usize = 3;

/// A run of a cell, or why there is none: this host refuses what the kernel or the prototype offers, or the emulator is not
/// there or does not keep its guests. `notes` gets what was run again.
///
/// # Errors
/// What is a fault of ours, or a stop was asked for.
fn run_or_why<T>(
    target: turns::Target,
    is_peer: bool,
    (case, notes): (&str, &mut Vec<String>),
    stop: &Stop,
    mut run: impl FnMut() -> Result<T>,
) -> Result<std::result::Result<T, String>> {
    let tries = if target == turns::Target::Vcpu { GUEST_TRIES } else { 1 };
    let mut tried = 0;
    loop {
        tried += 1;
        match run() {
            Ok(done) => return Ok(Ok(done)),
            Err(error) => {
                stop.check()?;
                if tried < tries {
                    notes.push(format!("{case}: run again: {error:#}"));
                } else if is_peer || target == turns::Target::Vcpu {
                    return Ok(Err(format!("{error:#}")));
                } else {
                    return Err(error.context(case.to_owned()));
                }
            }
        }
    }
}

fn notes(spec: &LanesSpec) -> Vec<String> {
    let mut notes = vec![
        "rows of `paper` are constants of the article and its README (bare metal, Linux 6.2), not measured here".to_owned(),
        "slices, table: vCPU (TCG): server and loops are guests without an operating system that QEMU emulates; `halting` is the sleep of a guest: the client's byte wakes QEMU's first thread, which has the client's core at a higher priority, and that thread's interrupt of a serial port wakes the vCPU".to_owned(),
    ];
    if spec.place.prototype.is_none() {
        notes.push(
            "prototype: n/a: no --prototype PROGRAM was given (docs/reference/lanes.md says how to build it)"
                .to_owned(),
        );
    } else {
        notes.push("slices, prototype, dedicated: n/a: its scheduler and the client need a core each beside the lane's".to_owned());
    }
    notes
}
