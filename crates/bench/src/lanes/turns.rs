//! Section 3.1 of the article: how long a turn is, how long until the next one, and what the switches cost.
//!
//! Busy loops take turns by round robin. Each notes the stretches for which it had the core and the gaps between
//! them, and counts its turns of the loop: against those of a loop that nobody interrupts they are its share of the core.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use quell_model::{CoreSet, Nanos};
use serde_json::Value;

use super::guest::Guest;
use super::peers::Peer;
use super::program::{self, Noted};
use super::run_or_why;
use super::sharing::{PATIENCE, Pattern, Place, Shared, System, Turns, micros};
use crate::host::{self, Program};
use quell_report::BenchReport;
use quell_report::stats;
use quell_terminal::{Progress, Stop};

/// Turns at the start of a run that are left out: caches and the other program's start.
const FIRST: usize = 50;

/// A guest is looked at for this long at least: emulated, it gets on slowly.
const GUEST_MIN: Duration = Duration::from_secs(1);

/// What takes turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Two processes.
    Process,
    /// Two threads of one.
    Pthread,
    /// The vCPU threads of two virtual machines.
    Vcpu,
}

impl Target {
    /// All of them.
    pub const ALL: [Target; 3] = [Target::Process, Target::Pthread, Target::Vcpu];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Target::Process => "process",
            Target::Pthread => "pthread",
            Target::Vcpu => "vCPU (TCG)",
        }
    }
}

/// One measurement.
#[derive(Clone, Debug)]
struct Cell {
    target: Target,
    system: System,
    case: String,
}

/// What one run of a cell showed.
#[derive(Default)]
struct Sample {
    turns: Vec<f64>,
    between: Vec<f64>,
    units_per_s: f64,
    lane: Value,
}

/// The times that a sample has of one kind.
type Times = fn(&Sample) -> &[f64];
/// What is told of many times.
type Figure = fn(&[f64]) -> f64;

/// Measures all cells, and adds their rows.
///
/// # Errors
/// When the programs cannot be started or take no turns, or a stop was asked for.
pub fn measure(
    place: &Place,
    slices: &[Nanos],
    rounds: usize,
    time: Duration,
    report: &mut BenchReport,
    progress: &mut dyn Progress,
    stop: &Stop,
) -> Result<()> {
    let cells = cells(slices, place.prototype.is_some());
    let mut samples: Vec<Vec<Sample>> = cells.iter().map(|_| Vec::new()).collect();
    let mut refused: Vec<Option<String>> = vec![None; cells.len()];
    let total = rounds * cells.len();
    for round in 0..rounds {
        for (at, cell) in cells.iter().enumerate() {
            let what = format!("{}: {}", cell.case, cell.system);
            progress.step(round * cells.len() + at, total, &what);
            if refused[at].is_some() {
                continue;
            }
            let whose = (what.as_str(), &mut report.notes);
            let done = run_or_why(cell.target, cell.system.is_peer(), whose, stop, || {
                run(place, cell, time, stop)
            });
            match done? {
                Ok(sample) => samples[at].push(sample),
                Err(why) => refused[at] = Some(why),
            }
        }
    }
    let alone = |target: Target| -> Vec<f64> {
        let as_it = |(cell, _): &(&Cell, _)| {
            cell.system == System::Alone
                && (cell.target == Target::Vcpu) == (target == Target::Vcpu)
        };
        let own = cells.iter().zip(&samples).filter(as_it).flat_map(|(_, samples)| samples);
        own.map(|sample| sample.units_per_s).collect()
    };
    for ((cell, samples), refused) in cells.iter().zip(&samples).zip(refused) {
        match refused {
            Some(why) => report.notes.push(format!("{}: {}: n/a: {why}", cell.case, cell.system)),
            None => tell(report, cell, samples, &alone(cell.target)),
        }
    }
    Ok(())
}

/// The name of a lane's case.
pub fn case(target: Target, pattern: Pattern, slice: Nanos) -> String {
    format!("accuracy: {} {} {} us", target.name(), pattern.name(), slice.as_micros())
}

/// A loop that nobody interrupts, of a program and of a guest, and those that share the core.
fn cells(slices: &[Nanos], prototype: bool) -> Vec<Cell> {
    let alone = |target: Target| {
        let case = format!("accuracy: {} alone", target.name());
        Cell { target, system: System::Alone, case }
    };
    let mut cells = vec![alone(Target::Process), alone(Target::Vcpu)];
    for target in Target::ALL {
        for pattern in Pattern::ALL {
            for slice in slices {
                let case = case(target, pattern, *slice);
                let turns = Turns { pattern, slice: *slice, table: None };
                let systems = [
                    Some(System::Lane(turns)),
                    prototype.then_some(System::Prototype(pattern, *slice)),
                ];
                cells.extend(systems.into_iter().flatten().map(|system| Cell {
                    target,
                    system,
                    case: case.clone(),
                }));
            }
        }
    }
    cells.extend(Peer::ALL.into_iter().map(|peer| Cell {
        target: Target::Process,
        system: System::Kernel(peer),
        case: "accuracy: process, the kernel's".into(),
    }));
    cells
}

/// What the article has: the turn and the time between two, in us. Bare metal, Linux 6.2.
fn published(target: Target, turns: &Turns) -> (f64, f64) {
    let slice = turns.slice.0 as f64 / 1e3;
    match (turns.pattern, target) {
        (Pattern::Dedicated, _) => (slice, slice),
        (Pattern::Shared, Target::Process) => (slice + 0.5, slice + 4.6),
        (Pattern::Shared, Target::Pthread) => (slice + 0.5, slice + 4.2),
        (Pattern::Shared, Target::Vcpu) => (slice + 2.2, slice + 9.4),
    }
}

/// Adds a cell's rows: median, mean and deviation of each round's turns, and what the lane says of itself.
fn tell(report: &mut BenchReport, cell: &Cell, samples: &[Sample], alone: &[f64]) {
    let system = cell.system.to_string();
    let units = samples.iter().map(|sample| sample.units_per_s).collect();
    report.push(&cell.case, &system, "units_per_s", units);
    if cell.system == System::Alone {
        return;
    }
    let kinds: [(&str, Times); 2] =
        [("slice_us", |sample| &sample.turns), ("gap_us", |sample| &sample.between)];
    for (kind, pick) in kinds {
        let figures: [(&str, Figure); 3] = [
            ("p50", |all| stats::median(all).unwrap_or(f64::NAN)),
            ("mean", mean),
            ("sd", deviation),
        ];
        for (figure, of) in figures {
            let each = samples.iter().map(|sample| of(pick(sample))).collect();
            report.push(&cell.case, &system, &format!("{kind}_{figure}"), each);
        }
    }
    if let System::Lane(turns) = &cell.system {
        let (turn, between) = published(cell.target, turns);
        report.push(&cell.case, "paper", "slice_us_mean", vec![turn]);
        report.push(&cell.case, "paper", "gap_us_mean", vec![between]);
    }
    let shares = samples.iter().zip(alone).map(|(sample, alone)| sample.units_per_s / alone);
    report.push(&cell.case, &system, "share", shares.collect());
    let each = |of: fn(&Value) -> Option<f64>| {
        samples.iter().map(|sample| of(&sample.lane).unwrap_or(f64::NAN)).collect()
    };
    report.push(
        &cell.case,
        &system,
        "floor_us",
        each(|lane| micros(&lane["lanes"][0]["floor_ns"])),
    );
    report.push(
        &cell.case,
        &system,
        "switch_us",
        each(|lane| micros(&lane["lanes"][0]["switch_mean_ns"])),
    );
    report.push(&cell.case, &system, "scheduler_us_per_switch", each(scheduler_cost));
}

/// CPU time of the scheduler thread for each hand-over, in us.
fn scheduler_cost(lane: &Value) -> Option<f64> {
    let lane = &lane["lanes"][0];
    let switches = lane["switches"].as_f64().filter(|count| *count > 0.0)?;
    Some(micros(&lane["scheduler"]["cpu_ns"])? / switches)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / values.len() as f64).sqrt()
}

/// One run of a cell.
fn run(place: &Place, cell: &Cell, time: Duration, stop: &Stop) -> Result<Sample> {
    let directory = host::directory()?;
    let (noted, lane) = match cell.target {
        Target::Vcpu => run_guests(place, cell, directory.path(), time, stop)?,
        _ => run_loops(place, cell, directory.path(), time, stop)?,
    };
    let micros = |of: fn(&Noted) -> &Vec<u32>| -> Vec<f64> {
        let skip = |all: &[u32]| FIRST.min(all.len() / 2);
        let each = noted.iter().flat_map(|noted| of(noted).iter().skip(skip(of(noted))));
        each.map(|ns| f64::from(*ns) / 1e3).collect()
    };
    let each: Vec<f64> =
        noted.iter().map(|noted| noted.units as f64 / (noted.ns as f64 / 1e9)).collect();
    Ok(Sample {
        turns: micros(|noted| &noted.turns),
        between: micros(|noted| &noted.between),
        units_per_s: mean(&each),
        lane,
    })
}

/// Busy loops of this host: what they noted, and what the lane says.
fn run_loops(
    place: &Place,
    cell: &Cell,
    directory: &Path,
    time: Duration,
    stop: &Stop,
) -> Result<(Vec<Noted>, Value)> {
    let processes = match (&cell.system, cell.target) {
        (System::Alone, _) => vec![1],
        (_, Target::Pthread) => vec![2],
        _ => vec![1, 1],
    };
    let mut loops = Vec::new();
    let mut threads = Vec::new();
    for (nth, count) in processes.into_iter().enumerate() {
        let file = directory.join(format!("turns-{nth}"));
        let mut command = place.member();
        command.arg("spin").arg(&file).arg(time.as_nanos().to_string()).arg(count.to_string());
        let program = Program::start("quell lane-member", &mut command)?;
        threads.extend(program::spinning(&file, program.pid(), stop, PATIENCE)?);
        loops.push((program, file));
    }
    let shared = cell.system.start(place, directory, &in_parts(&threads), None, stop)?;
    if let Shared::Kernel { .. } = shared {
        // On a lane they see by their own policy that they have begun.
        loops.iter().try_for_each(|(_, file)| program::begin(file))?;
    }
    // Borrowed: should it fail, whoever shares the core goes first, and lets them end.
    let noted = finish(&loops, time + cell.system.patience(), stop)?;
    ensure!(noted.len() == threads.len(), "{} loops took turns", noted.len());
    Ok((noted, shared.finish(stop)?))
}

/// The busy loops of guests.
fn run_guests(
    place: &Place,
    cell: &Cell,
    directory: &Path,
    time: Duration,
    stop: &Stop,
) -> Result<(Vec<Noted>, Value)> {
    let count = if cell.system == System::Alone { 1 } else { 2 };
    let boot = |nth| Guest::boot(directory, &format!("guest-{nth}"), stop);
    let mut guests = (0..count).map(boot).collect::<Result<Vec<Guest>>>()?;
    let threads: Vec<i32> = guests.iter().map(Guest::vcpu).collect::<Result<_>>()?;
    // A vCPU may have to wait for QEMU's other threads, which must not wait for the lane.
    guests.iter().try_for_each(|guest| guest.pin(&CoreSet::of(place.other)))?;
    let shared = cell.system.start(place, directory, &in_parts(&threads), None, stop)?;
    let time = time.max(GUEST_MIN);
    let noted = guests.iter_mut().map(|guest| guest.note(time, stop)).collect::<Result<_>>()?;
    drop(guests);
    Ok((noted, shared.finish(stop)?))
}

/// Each thread with an equal part of the core.
fn in_parts(threads: &[i32]) -> Vec<(i32, f64)> {
    let part = 1.0 / threads.len() as f64;
    threads.iter().map(|tid| (*tid, part)).collect()
}

/// Waits for the loops' end, for so long at most, and reads what they noted.
fn finish(loops: &[(Program, PathBuf)], most: Duration, stop: &Stop) -> Result<Vec<Noted>> {
    let until = Instant::now() + most;
    let mut noted = Vec::new();
    for (_, file) in loops {
        while !program::is_done(file) {
            ensure!(
                Instant::now() < until,
                "its loops had hardly any of the core for {} s",
                most.as_secs()
            );
            stop.sleep(Duration::from_millis(20))?;
        }
        noted.extend(program::read(file).context("what a loop noted")?);
    }
    Ok(noted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cell_is_there_once_beside_the_articles_figures() {
        let slices = [Nanos::from_micros(5), Nanos::from_micros(50)];
        let cells = cells(&slices, true);
        let mut names: Vec<String> =
            cells.iter().map(|cell| format!("{} {}", cell.case, cell.system)).collect();
        names.sort();
        names.dedup();
        assert_eq!((names.len(), cells.len()), (2 + 3 * 2 * 2 * 2 + 4, names.len()));
        let turns = Turns { pattern: Pattern::Shared, slice: slices[0], table: None };
        let (turn, between) = published(Target::Process, &turns);
        assert!((turn - 5.5).abs() < 1e-9 && (between - 9.6).abs() < 1e-9);
    }

    #[test]
    fn the_deviation_is_that_of_all_values() {
        assert!((deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]) - 2.0).abs() < 1e-9);
    }
}
