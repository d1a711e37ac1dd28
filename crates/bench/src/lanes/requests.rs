//! Sections 3.2 and 3.3 of the article: a server beside busy loops on one core, by the length of the slices and by the
//! order of the table.
//!
//! The server takes its requests from rings in shared memory ([`super::ring`]), which stand for the article's network
//! stack in user space. The client polls on the other core; where a dedicated scheduler spins there, within its loop.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use quell_model::{CoreSet, Nanos};

use super::client::{self, Client, Figure, Load, Seen};
use super::peers::Peer;
use super::program;
use super::server::Waits;
use super::sharing::{PATIENCE, Pattern, Place, Shared, System, Turns};
use crate::host::{self, Policy, Program, pin, set_policy};
use crate::progress::{Progress, Stop};
use crate::report::BenchReport;

/// Work of a request.
const SERVICE: Nanos = Nanos::from_micros(2);
/// Requests a second beside which latencies are measured: a few percent of a core.
const RATE_RPS: f64 = 10_000.0;
/// Before anything is counted.
const WARM_UP: Nanos = Nanos::from_millis(50);
/// The slots of the tables.
const SLOT: Nanos = Nanos::from_micros(50);
/// The tables, as `quell lane run --table` has them.
const TABLES: [(&str, &str); 2] = [("A-A-B-C", "A,A,B,C"), ("A-B-A-C", "A,B,A,C")];

/// One measurement.
#[derive(Clone, Debug)]
struct Cell {
    case: String,
    /// The name of the system in the report.
    name: String,
    system: System,
    waits: Waits,
    /// Busy loops beside the server.
    loops: usize,
    /// The server's part of the core, where that can be said.
    share: f64,
}

/// What one run showed: beside a light load, and with as many requests as the server could do.
struct Sample {
    light: Seen,
    full: Option<Seen>,
}

/// How much of it is measured.
#[derive(Clone, Debug)]
pub struct Extent {
    /// The slices.
    pub slices: Vec<Nanos>,
    /// Interleaved rounds.
    pub rounds: usize,
    /// The time of each run.
    pub time: Duration,
}

/// Measures a server by the length of the slices, and adds the rows.
///
/// # Errors
/// When the programs or lanes fail, or a stop was asked for.
pub fn measure_slices(
    place: &Place,
    extent: &Extent,
    report: &mut BenchReport,
    progress: &mut dyn Progress,
    stop: &Stop,
) -> Result<()> {
    let cells = cells_of_slices(&extent.slices, place.prototype.is_some());
    measure(place, &cells, extent, report, progress, stop)
}

/// Measures it by the order of the table, and adds the rows.
///
/// # Errors
/// As [`measure_slices`].
pub fn measure_tables(
    place: &Place,
    extent: &Extent,
    report: &mut BenchReport,
    progress: &mut dyn Progress,
    stop: &Stop,
) -> Result<()> {
    measure(place, &cells_of_tables(), extent, report, progress, stop)
}

fn measure(
    place: &Place,
    cells: &[Cell],
    extent: &Extent,
    report: &mut BenchReport,
    progress: &mut dyn Progress,
    stop: &Stop,
) -> Result<()> {
    let mut samples: Vec<Vec<Sample>> = cells.iter().map(|_| Vec::new()).collect();
    let mut refused: Vec<Option<String>> = vec![None; cells.len()];
    let total = extent.rounds * cells.len();
    for round in 0..extent.rounds {
        for (at, cell) in cells.iter().enumerate() {
            progress.step(
                round * cells.len() + at,
                total,
                &format!("{}: {}", cell.case, cell.name),
            );
            if refused[at].is_some() {
                continue;
            }
            match sample(place, cell, extent.time, round as u64, stop) {
                Ok(sample) => samples[at].push(sample),
                Err(error) if matches!(cell.system, System::Kernel(_)) => {
                    stop.check()?;
                    refused[at] = Some(format!("{error:#}"));
                }
                Err(error) => return Err(error.context(format!("{}: {}", cell.case, cell.name))),
            }
        }
    }
    for ((cell, samples), refused) in cells.iter().zip(&samples).zip(refused) {
        match refused {
            Some(why) => report.notes.push(format!("{}: {}: n/a: {why}", cell.case, cell.name)),
            None => tell(report, cell, samples),
        }
    }
    compare_tables(report, cells, &samples);
    Ok(())
}

/// The name of a case of slices on a lane.
pub fn case(waits: Waits, pattern: Pattern) -> String {
    format!("slices: {} {}", waits.name(), pattern.name())
}

/// The name of a system with its slice.
pub fn system(name: &str, slice: Nanos) -> String {
    format!("{name} {} us", slice.as_micros())
}

fn cells_of_slices(slices: &[Nanos], prototype: bool) -> Vec<Cell> {
    let mut cells = Vec::new();
    for waits in Waits::ALL {
        for pattern in Pattern::ALL {
            for slice in slices {
                let own_case = case(waits, pattern);
                let turns = Turns { pattern, slice: *slice, table: None };
                let name = system("quell", *slice);
                cells.push(Cell {
                    case: own_case.clone(),
                    name,
                    system: System::Lane(turns),
                    waits,
                    loops: 1,
                    share: 0.5,
                });
                // In the dedicated pattern its scheduler leaves no place for a client on two cores.
                if prototype && pattern == Pattern::Shared {
                    let system = System::Prototype(pattern, *slice);
                    let name = self::system("prototype", *slice);
                    cells.push(Cell { case: own_case, name, system, waits, loops: 1, share: 0.5 });
                }
            }
        }
        cells.extend(Peer::ALL.into_iter().map(|peer| Cell {
            case: format!("slices: {}, the kernel's", waits.name()),
            name: peer.name().to_owned(),
            system: System::Kernel(peer),
            waits,
            loops: 1,
            share: 0.5,
        }));
    }
    cells
}

fn cells_of_tables() -> Vec<Cell> {
    let mut cells = Vec::new();
    for waits in Waits::ALL {
        for pattern in Pattern::ALL {
            for (name, table) in TABLES {
                let case = match (waits, pattern) {
                    (Waits::Polling, Pattern::Dedicated) => "table".to_owned(),
                    _ => format!("table: {} {}", waits.name(), pattern.name()),
                };
                let turns = Turns { pattern, slice: SLOT, table: Some(table) };
                let system = System::Lane(turns);
                cells.push(Cell {
                    case,
                    name: name.to_owned(),
                    system,
                    waits,
                    loops: 2,
                    share: 0.5,
                });
            }
        }
    }
    cells
}

fn tell(report: &mut BenchReport, cell: &Cell, samples: &[Sample]) {
    let metrics: [(&str, Figure); 3] = [
        ("p50_us", |seen| seen.p50_us),
        ("p99_us", |seen| seen.p99_us),
        ("p99.9_us", |seen| seen.p999_us),
    ];
    for (metric, of) in metrics {
        let each = samples.iter().map(|sample| of(&sample.light)).collect();
        report.push(&cell.case, &cell.name, metric, each);
    }
    let full = |sample: &Sample| sample.full.as_ref().map_or(f64::NAN, |seen| seen.answered_rps);
    report.push(&cell.case, &cell.name, "peak_rps", samples.iter().map(full).collect());
}

/// A-B-A-C against A-A-B-C, in each of their cases.
fn compare_tables(report: &mut BenchReport, cells: &[Cell], samples: &[Vec<Sample>]) {
    for (at, pair) in cells.windows(2).enumerate() {
        if pair[0].name != TABLES[0].0 || pair[1].name != TABLES[1].0 {
            continue;
        }
        let p99 = |samples: &[Sample]| -> Vec<f64> {
            samples.iter().map(|sample| sample.light.p99_us).collect()
        };
        let (one, other) = (p99(&samples[at]), p99(&samples[at + 1]));
        let case = pair[0].case.as_str();
        report.compare(case, (TABLES[1].0, &other), (TABLES[0].0, &one), "p99_us");
    }
}

/// A light load, and as many requests as the server can do.
fn sample(place: &Place, cell: &Cell, time: Duration, seed: u64, stop: &Stop) -> Result<Sample> {
    let light = run(place, cell, Some(RATE_RPS), time, seed, stop)?;
    let full = match cell.loops {
        1 => Some(run(place, cell, None, time, seed, stop)?),
        _ => None,
    };
    Ok(Sample { light, full })
}

/// One run: server and loops share the core, and the client offers its load.
fn run(
    place: &Place,
    cell: &Cell,
    rate_rps: Option<f64>,
    time: Duration,
    seed: u64,
    stop: &Stop,
) -> Result<Seen> {
    let folder = host::folder()?;
    let load = Load {
        ring: folder.path().join("ring"),
        rate_rps,
        service: SERVICE,
        long: SERVICE,
        long_per_mille: 0.0,
        warm_up: WARM_UP,
        duration: Nanos(time.as_nanos() as u64),
        seed,
    };
    client::make(&load)?;
    let server = start_server(place, &load.ring, cell.waits)?;
    let mut threads = vec![(server.pid(), cell.share)];
    let part = (1.0 - cell.share) / cell.loops as f64;
    let loops = start_loops(place, folder.path(), cell.loops, stop)?;
    threads.extend(loops.iter().map(|program| (program.pid(), part)));
    let seen = match &cell.system {
        System::Lane(turns) if turns.pattern == Pattern::Dedicated => {
            let file = folder.path().join("load.json");
            std::fs::write(&file, serde_json::to_vec(&load)?)?;
            let shared = cell.system.start(place, folder.path(), &threads, Some(&file), stop)?;
            let seen = left(&client::report(&load.ring), time, stop);
            end(shared, vec![server], loops, stop)?;
            seen
        }
        system => {
            let mut client = Client::open(load.clone())?;
            let shared = system.start(place, folder.path(), &threads, None, stop)?;
            let seen = poll(&mut client, place);
            end(shared, vec![server], loops, stop)?;
            seen
        }
    }?;
    // Nothing was answered within the time: there is no latency to tell of, and 0 answers a second.
    match seen.count {
        0 => Ok(Seen { p50_us: f64::NAN, p99_us: f64::NAN, p999_us: f64::NAN, ..seen }),
        _ => Ok(seen),
    }
}

/// The server, once it serves.
fn start_server(place: &Place, ring: &Path, waits: Waits) -> Result<Program> {
    let mut command = place.member();
    command.arg("serve").arg(ring).arg(waits.name());
    Program::start("quell lane-member", &mut command)
}

/// Busy loops that nobody ends before the run is over.
fn start_loops(place: &Place, folder: &Path, count: usize, stop: &Stop) -> Result<Vec<Program>> {
    let mut loops = Vec::new();
    for nth in 0..count {
        let file: PathBuf = folder.join(format!("loop-{nth}"));
        let mut command = place.member();
        command.arg("spin").arg(&file).arg(u64::MAX.to_string()).arg("1");
        let program = Program::start("quell lane-member", &mut command)?;
        program::spinning(&file, program.pid(), stop, PATIENCE)?;
        loops.push(program);
    }
    Ok(loops)
}

/// Polls on the other core, before all fair threads there, until the load is over.
pub(super) fn poll(client: &mut Client, place: &Place) -> Result<Seen> {
    std::thread::scope(|scope| {
        let polls = scope.spawn(|| -> Result<Seen> {
            pin(0, &CoreSet::of(place.other)).context("pin the client")?;
            set_policy(0, Policy::Fifo(1)).context("the client's policy")?;
            let until = Instant::now() + PATIENCE;
            while !client.poll() {
                ensure!(Instant::now() < until, "the server does not serve");
            }
            Ok(client.seen())
        });
        polls.join().map_err(|_| anyhow::anyhow!("the client panicked"))?
    })
}

/// What a client within a scheduler's loop left, once it is there.
fn left(file: &Path, time: Duration, stop: &Stop) -> Result<Seen> {
    let until = Instant::now() + time + PATIENCE;
    while !file.exists() {
        ensure!(Instant::now() < until, "the client in the scheduler's loop does not end");
        stop.sleep(Duration::from_millis(20))?;
    }
    serde_json::from_slice(&std::fs::read(file)?).context("what a client saw")
}

/// Ends the programs, upon which a lane ends by itself.
fn end(shared: Shared, server: Vec<Program>, loops: Vec<Program>, stop: &Stop) -> Result<()> {
    drop((server, loops));
    shared.finish(stop)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cell_is_there_once_and_tables_come_in_pairs() {
        let slices = [Nanos::from_micros(5), Nanos::from_micros(50)];
        let mut cells = cells_of_slices(&slices, true);
        cells.extend(cells_of_tables());
        let mut names: Vec<String> =
            cells.iter().map(|cell| format!("{} {}", cell.case, cell.name)).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        let mut report = BenchReport::new("lanes", "test");
        let seen = |p99_us| Seen {
            p50_us: 1.0,
            p99_us,
            p999_us: 2.0,
            answered_rps: 3.0,
            count: 4,
            unanswered: 0,
        };
        let samples: Vec<Vec<Sample>> = cells
            .iter()
            .map(|cell| {
                let p99 = if cell.name == TABLES[1].0 { 50.0 } else { 100.0 };
                vec![Sample { light: seen(p99), full: None }]
            })
            .collect();
        compare_tables(&mut report, &cells, &samples);
        assert_eq!(report.ratios.len(), 4);
        let ratio = report.ratio("table", "A-B-A-C", "p99_us").unwrap();
        assert_eq!((ratio.against.as_str(), ratio.median), ("A-A-B-C", 0.5));
    }
}
