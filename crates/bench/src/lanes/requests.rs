//! Sections 3.2 and 3.3 of the article: a server beside busy loops on one core, by the length of the slices and by the
//! order of the table.
//!
//! The server takes its requests from rings in shared memory ([`super::ring`]), which stand for the article's network
//! stack in user space. The client polls on the other core; where a dedicated scheduler spins there, within its loop.
//!
//! Server and loops are processes, or the vCPUs of guests; the sleep of a guest is a halt, which an interrupt ends.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use quell_model::{CoreSet, Nanos};

use super::client::{self, Client, Kept, Load, Seen};
use super::guest::{self, Guest, GuestServer};
use super::peers::Peer;
use super::program;
use super::run_or_why;
use super::server::Waits;
use super::sharing::{PATIENCE, Pattern, Place, Shared, System, Turns};
use super::turns::Target;
use super::undisturbed::{self, Latencies, StallWatch};
use crate::host::{self, Policy, Program, pin, set_policy};
use crate::stops::CoreStop;
use quell_report::BenchReport;
use quell_terminal::{Progress, Stop};

/// How often a timer looks whether the core stands still. Five times a millisecond, as elsewhere, its interrupts of tens of
/// microseconds would be the tail of a server with short turns; so they are half a percent of the time.
const LOOK_PERIOD: Nanos = Nanos::from_millis(4);
/// Work of a request.
const SERVICE: Nanos = Nanos::from_micros(2);
/// Requests a second beside which latencies are measured: a few percent of a core.
const RATE_RPS: f64 = 10_000.0;
/// Before anything is counted.
const WARM_UP: Nanos = Nanos::from_millis(50);
/// The slots of the tables.
const SLOT: Nanos = Nanos::from_micros(50);
/// What servers and loops are.
const TARGETS: [Target; 2] = [Target::Process, Target::Vcpu];
/// The tables, as `quell lane run --table` has them.
pub const TABLES: [(&str, &str); 2] = [("A-A-B-C", "A,A,B,C"), ("A-B-A-C", "A,B,A,C")];

/// One measurement.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Its case in the report.
    pub case: String,
    /// The name of the system in the report.
    name: String,
    system: System,
    target: Target,
    waits: Waits,
    /// Busy loops beside the server.
    loops: usize,
    /// The server's part of the core, where that can be said.
    share: f64,
}

/// What one run showed: beside a light load, and with as many requests as the server could do.
struct Sample {
    light: Seen,
    latencies: Latencies,
    full: Option<Seen>,
}

/// How much of it is measured.
#[derive(Clone, Debug)]
pub struct Extent {
    /// Interleaved rounds.
    pub rounds: usize,
    /// The time of each run.
    pub time: Duration,
}

/// Measures these cells, and adds their rows.
///
/// # Errors
/// When the programs or lanes fail, or a stop was asked for.
pub fn measure(
    place: &Place,
    cells: &[Cell],
    extent: &Extent,
    report: &mut BenchReport,
    progress: &mut dyn Progress,
    stop: &Stop,
) -> Result<()> {
    let mut samples: Vec<Vec<Sample>> = cells.iter().map(|_| Vec::new()).collect();
    let mut refused: Vec<Option<String>> = vec![None; cells.len()];
    let mut stalls = StallWatch::new(place.core, LOOK_PERIOD, &mut report.notes);
    let total = extent.rounds * cells.len();
    for round in 0..extent.rounds {
        for (at, cell) in cells.iter().enumerate() {
            let what = format!("{}: {}", cell.case, cell.name);
            progress.step(round * cells.len() + at, total, &what);
            if refused[at].is_some() {
                continue;
            }
            let whose = (what.as_str(), &mut report.notes);
            let done = run_or_why(cell.target, cell.system.is_peer(), whose, stop, || {
                sample(place, cell, extent.time, round as u64, &mut stalls, stop)
            });
            match done? {
                Ok(sample) => samples[at].push(sample),
                Err(why) => refused[at] = Some(why),
            }
        }
    }
    for ((cell, samples), refused) in cells.iter().zip(&samples).zip(refused) {
        match refused {
            Some(why) => report.notes.push(format!("{}: {}: n/a: {why}", cell.case, cell.name)),
            None => tell(report, cell, samples),
        }
    }
    let latencies = samples.iter().flatten().map(|sample| &sample.latencies);
    report.notes.extend(undisturbed::note_of("slices, table", latencies));
    compare_tables(report, cells, &samples);
    Ok(())
}

/// What a server is and how it waits, in names of cases.
pub fn server(target: Target, waits: Waits) -> String {
    match (target, waits) {
        (Target::Vcpu, Waits::Epoll) => format!("{} halting", target.name()),
        (Target::Vcpu, Waits::Polling) => format!("{} polling", target.name()),
        _ => waits.name().to_owned(),
    }
}

/// The name of a case of slices on a lane.
pub fn case(target: Target, waits: Waits, pattern: Pattern) -> String {
    format!("slices: {} {}", server(target, waits), pattern.name())
}

/// The name of a system with its slice.
pub fn system(name: &str, slice: Nanos) -> String {
    format!("{name} {} us", slice.as_micros())
}

/// A server by the length of the slices.
pub fn cells_of_slices(slices: &[Nanos], prototype: bool) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (target, waits, pattern) in kinds() {
        for slice in slices {
            let case = case(target, waits, pattern);
            let cell = |name: &str, system: System| {
                let (case, name) = (case.clone(), self::system(name, *slice));
                Cell { case, name, system, target, waits, loops: 1, share: 0.5 }
            };
            let turns = Turns { pattern, slice: *slice, table: None };
            cells.push(cell("quell", System::Lane(turns)));
            // In the dedicated pattern its scheduler leaves no place for a client on two cores.
            if prototype && pattern == Pattern::Shared && target == Target::Process {
                cells.push(cell("prototype", System::Prototype(pattern, *slice)));
            }
        }
    }
    for waits in Waits::ALL {
        cells.extend(Peer::ALL.into_iter().map(|peer| Cell {
            case: format!("slices: {}, the kernel's", waits.name()),
            name: peer.name().to_owned(),
            system: System::Kernel(peer),
            target: Target::Process,
            waits,
            loops: 1,
            share: 0.5,
        }));
    }
    cells
}

/// It by the order of the table.
pub fn cells_of_tables() -> Vec<Cell> {
    let mut cells = Vec::new();
    for (target, waits, pattern) in kinds() {
        for (name, table) in TABLES {
            let case = match (target, waits, pattern) {
                (Target::Process, Waits::Polling, Pattern::Dedicated) => "table".to_owned(),
                _ => format!("table: {} {}", server(target, waits), pattern.name()),
            };
            let system = System::Lane(Turns { pattern, slice: SLOT, table: Some(table) });
            let name = name.to_owned();
            cells.push(Cell { case, name, system, target, waits, loops: 2, share: 0.5 });
        }
    }
    cells
}

/// All servers, in both patterns.
pub fn kinds() -> impl Iterator<Item = (Target, Waits, Pattern)> {
    TARGETS.into_iter().flat_map(|target| {
        Waits::ALL.into_iter().flat_map(move |waits| {
            Pattern::ALL.into_iter().map(move |pattern| (target, waits, pattern))
        })
    })
}

fn tell(report: &mut BenchReport, cell: &Cell, samples: &[Sample]) {
    for (metric, of) in undisturbed::FIGURES {
        let each = samples.iter().map(|sample| of(&sample.latencies)).collect();
        report.push(&cell.case, &cell.name, metric, each);
    }
    let stopped = samples.iter().map(|sample| sample.light.stopped_percent).collect();
    report.push(&cell.case, &cell.name, "client_stopped_percent", stopped);
    let full = |sample: &Sample| sample.full.as_ref().map_or(f64::NAN, |seen| seen.answered_rps);
    report.push(&cell.case, &cell.name, "peak_rps", samples.iter().map(full).collect());
    let service = |sample: &Sample| sample.light.service_us.unwrap_or(f64::NAN);
    report.push(&cell.case, &cell.name, "service_us_min", samples.iter().map(service).collect());
}

/// A-B-A-C against A-A-B-C, in each of their cases.
fn compare_tables(report: &mut BenchReport, cells: &[Cell], samples: &[Vec<Sample>]) {
    for (at, pair) in cells.windows(2).enumerate() {
        if pair[0].name != TABLES[0].0 || pair[1].name != TABLES[1].0 {
            continue;
        }
        let p99 = |samples: &[Sample]| -> Vec<f64> {
            samples.iter().map(|sample| sample.latencies.p99_us()).collect()
        };
        let (one, other) = (p99(&samples[at]), p99(&samples[at + 1]));
        if one.len() != other.len() {
            continue;
        }
        let case = pair[0].case.as_str();
        report.compare(case, (TABLES[1].0, &other), (TABLES[0].0, &one), "p99_us");
    }
}

/// A light load, and as many requests as the server can do.
fn sample(
    place: &Place,
    cell: &Cell,
    time: Duration,
    seed: u64,
    stalls: &mut StallWatch,
    stop: &Stop,
) -> Result<Sample> {
    let (light, latencies) = stalls.run(|stalls| {
        let (seen, kept, windows) =
            run(place, cell, Some(RATE_RPS), time, seed, Some(stalls), stop)?;
        Ok((seen, Latencies::of(&kept, &windows)))
    })?;
    let full = match cell.loops {
        1 => Some(run(place, cell, None, time, seed, None, stop)?.0),
        _ => None,
    };
    Ok(Sample { light, latencies, full })
}

/// One run: server and loops share the core, and the client offers its load.
fn run(
    place: &Place,
    cell: &Cell,
    rate_rps: Option<f64>,
    time: Duration,
    seed: u64,
    mut stalls: Option<&mut StallWatch>,
    stop: &Stop,
) -> Result<(Seen, Kept, Vec<CoreStop>)> {
    let directory = host::directory()?;
    let load = Load {
        ring: directory.path().join("ring"),
        rings_at: if cell.target == Target::Vcpu { guest::RINGS_AT } else { 0 },
        rate_rps,
        service: SERVICE,
        long: SERVICE,
        long_per_mille: 0.0,
        warm_up: WARM_UP,
        duration: Nanos(time.as_nanos() as u64),
        seed,
    };
    if cell.target == Target::Vcpu {
        guest::make_memory(&load.ring)?;
    }
    client::make(&load)?;
    let mut members = vec![start_server(place, &load.ring, cell, stop)?];
    members.extend(start_loops(place, directory.path(), cell, stop)?);
    let threads = parts(&members, cell.share)?;
    stalls.as_deref_mut().map_or(Ok(()), StallWatch::begin)?;
    let seen = offer(place, cell, &load, directory.path(), members, &threads, stop);
    // Also after an error: no interrupt disturbs what comes next.
    let stalls = stalls.map_or(Ok(Vec::new()), StallWatch::end)?;
    let (seen, kept) = seen?;
    Ok((seen, kept, stalls))
}

/// The client offers the load, on this host's other core or within the scheduler's loop.
fn offer(
    place: &Place,
    cell: &Cell,
    load: &Load,
    directory: &Path,
    members: Vec<Member>,
    threads: &[(i32, f64)],
    stop: &Stop,
) -> Result<(Seen, Kept)> {
    match &cell.system {
        System::Lane(turns) if turns.pattern == Pattern::Dedicated => {
            let file = directory.join("load.json");
            std::fs::write(&file, serde_json::to_vec(load)?)?;
            let shared = cell.system.start(place, directory, threads, Some(&file), stop)?;
            let time = Duration::from_nanos(load.duration.0);
            let seen = left(&client::report(&load.ring), time, stop);
            end(shared, members, stop)?;
            seen
        }
        system => {
            let mut client = Client::open(load.clone())?;
            let shared = system.start(place, directory, threads, None, stop)?;
            let seen = poll(&mut client, place, system.patience());
            end(shared, members, stop)?;
            seen.map(|seen| (seen, client.kept()))
        }
    }
}

/// What is put on the core.
enum Member {
    /// A server or a loop, of one thread.
    Process(Program),
    /// A loop.
    Loop(Guest),
    /// A server.
    Server(GuestServer),
}

impl Member {
    fn thread(&self) -> Result<i32> {
        match self {
            Member::Process(program) => Ok(program.pid()),
            Member::Loop(guest) => guest.vcpu(),
            Member::Server(guest) => guest.vcpu(),
        }
    }
}

/// The members' threads: the server, which is the first, has its share of the core, and the others what is left.
fn parts(members: &[Member], share: f64) -> Result<Vec<(i32, f64)>> {
    let part = (1.0 - share) / (members.len() - 1).max(1) as f64;
    let shares = std::iter::once(share).chain(std::iter::repeat(part));
    members.iter().zip(shares).map(|(member, share)| Ok((member.thread()?, share))).collect()
}

/// The server, once it serves or is about to.
fn start_server(place: &Place, ring: &Path, cell: &Cell, stop: &Stop) -> Result<Member> {
    if cell.target == Target::Vcpu {
        let mut guest = GuestServer::boot(ring, cell.waits, stop)?;
        guest.pin(&CoreSet::of(place.core))?;
        on_other_core(place, || guest.serve(stop))?;
        // Its vCPU comes back on the lane. QEMU's other threads take nothing of that.
        guest.pin(&CoreSet::of(place.other))?;
        return Ok(Member::Server(guest));
    }
    let mut command = place.member();
    command.arg("serve").arg(ring).arg(cell.waits.name());
    Ok(Member::Process(Program::start("quell lane-member", &mut command)?))
}

/// Busy loops that nobody ends before the run is over.
fn start_loops(place: &Place, directory: &Path, cell: &Cell, stop: &Stop) -> Result<Vec<Member>> {
    let mut loops = Vec::new();
    for nth in 0..cell.loops {
        if cell.target == Target::Vcpu {
            let guest = Guest::boot(directory, &format!("loop-{nth}"), stop)?;
            guest.pin(&CoreSet::of(place.other))?;
            loops.push(Member::Loop(guest));
            continue;
        }
        let file: PathBuf = directory.join(format!("loop-{nth}"));
        let mut command = place.member();
        command.arg("spin").arg(&file).arg(u64::MAX.to_string()).arg("1");
        let program = Program::start("quell lane-member", &mut command)?;
        program::spinning(&file, program.pid(), stop, PATIENCE)?;
        loops.push(Member::Process(program));
    }
    Ok(loops)
}

/// Polls on the other core until the load is over; the server begins within `patience`.
pub(super) fn poll(client: &mut Client, place: &Place, patience: Duration) -> Result<Seen> {
    on_other_core(place, || {
        let until = Instant::now() + patience;
        while !client.poll() {
            ensure!(Instant::now() < until, "the server does not serve");
        }
        Ok(client.seen())
    })
}

/// Does something on the other core, before all fair threads there.
fn on_other_core<T: Send>(place: &Place, does: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            pin(0, &CoreSet::of(place.other)).context("pin the client")?;
            set_policy(0, Policy::Fifo(1)).context("the client's policy")?;
            does()
        });
        thread.join().map_err(|_| anyhow::anyhow!("the client panicked"))?
    })
}

/// What a client within a scheduler's loop left, once it is there.
fn left(file: &Path, time: Duration, stop: &Stop) -> Result<(Seen, Kept)> {
    let until = Instant::now() + time + PATIENCE;
    while !file.exists() {
        ensure!(Instant::now() < until, "the client in the scheduler's loop does not end");
        stop.sleep(Duration::from_millis(20))?;
    }
    serde_json::from_slice(&std::fs::read(file)?).context("what a client saw")
}

/// Ends the members, upon which a lane ends by itself. Others go first: the prototype may leave the members no time to end.
fn end(shared: Shared, members: Vec<Member>, stop: &Stop) -> Result<()> {
    if let Shared::Lane(lane) = shared {
        drop(members);
        lane.finish(stop)?;
        return Ok(());
    }
    drop(shared);
    drop(members);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stops;

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
        let seen = Seen {
            answered_rps: 3.0,
            count: 4,
            unanswered: 0,
            service_us: None,
            stopped_percent: 0.0,
        };
        let samples: Vec<Vec<Sample>> = cells
            .iter()
            .map(|cell| {
                let took = if cell.name == TABLES[1].0 { 50 } else { 100 };
                let done = Nanos::from_micros(took);
                let requests = vec![stops::Request { due: Nanos::ZERO, done }; 4];
                let kept = Kept { requests, from: Nanos::ZERO, to: done };
                let latencies = Latencies::of(&kept, &[]);
                vec![Sample { light: seen.clone(), latencies, full: None }]
            })
            .collect();
        compare_tables(&mut report, &cells, &samples);
        assert_eq!(report.ratios.len(), 8);
        let ratio = report.ratio("table", "A-B-A-C", "p99_us").unwrap();
        assert_eq!((ratio.against.as_str(), ratio.median), ("A-A-B-C", 0.5));
    }
}
