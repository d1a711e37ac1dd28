//! The key-value server on the runtime, alone and beside batch work: one on the runtime, one adopted.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use quell_load::be::{Progress as Counter, Reading};
use quell_load::protocol::keyvalue::KeyValueSpec;
use quell_load::{LoadSpec, ProtocolSpec};
use quell_model::{Class, Nanos};

use super::RuntimeColocateSpec;
use super::programs::{Server, output, start};
use crate::daemon::{Adopted, Adoptee, Daemon, DaemonSpec};
use crate::host::{self, Program};
use quell_report::BenchReport;
use quell_terminal::{Progress, Stop};

/// Its name in reports.
pub const CASE: &str = "key-value";
/// How long a program may take until it tells what it did.
const START_MAX: Duration = Duration::from_secs(15);
/// What all need until they work as they will.
const SETTLE: Duration = Duration::from_millis(500);

/// Who is there.
#[derive(Clone, Copy, PartialEq, Eq)]
struct System {
    name: &'static str,
    service: bool,
    batch: bool,
    daemon: bool,
}

const SYSTEMS: [System; 5] = [
    System { name: "alone", service: true, batch: false, daemon: false },
    System { name: "alone-under-daemon", service: true, batch: false, daemon: true },
    System { name: "batch-alone", service: false, batch: true, daemon: true },
    System { name: "linux-default", service: true, batch: true, daemon: false },
    System { name: "quell", service: true, batch: true, daemon: true },
];

/// The systems in which the server is measured.
pub fn systems() -> Vec<&'static str> {
    SYSTEMS.iter().filter(|system| system.service).map(|system| system.name).collect()
}

/// What a run showed.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    rps: f64,
    /// Of a core, over the managed ones.
    service_share: f64,
    /// Work a second: on the runtime, and adopted.
    batch: [f64; 2],
}

type Pick = (&'static str, fn(&Seen) -> f64);
const LATENCIES: [Pick; 4] = [
    ("p50_us", |seen| seen.p50_us),
    ("p99_us", |seen| seen.p99_us),
    ("p999_us", |seen| seen.p999_us),
    ("rps", |seen| seen.rps),
];

/// Measures all systems in each round.
pub fn measure(
    spec: &RuntimeColocateSpec,
    report: &mut BenchReport,
    progress: &mut dyn Progress,
    stop: &Stop,
) -> Result<()> {
    let Some(server) = &spec.server else {
        report.notes.push(
            "key-value server: n/a: no --server PROGRAM was given, and none is beside quell \
             (`cargo build --release -p quell-runtime --examples`)"
                .to_owned(),
        );
        return Ok(());
    };
    let mut seen: [Vec<Seen>; SYSTEMS.len()] = Default::default();
    for round in 0..spec.rounds {
        for (at, system) in SYSTEMS.iter().enumerate() {
            let done = round * SYSTEMS.len() + at;
            progress.step(done, spec.rounds * SYSTEMS.len(), &format!("{CASE}: {}", system.name));
            seen[at].push(one(spec, server, system, round as u64, stop)?);
        }
    }
    fill(report, &seen);
    Ok(())
}

fn fill(report: &mut BenchReport, seen: &[Vec<Seen>; SYSTEMS.len()]) {
    let alone_at = 0;
    let batch_alone = SYSTEMS.iter().position(|system| system.name == "batch-alone");
    for (at, system) in SYSTEMS.iter().enumerate() {
        let values = |pick: &dyn Fn(&Seen) -> f64| seen[at].iter().map(pick).collect::<Vec<f64>>();
        if system.service {
            for (metric, pick) in LATENCIES {
                report.push(CASE, system.name, metric, values(&pick));
            }
        }
        let Some(alone) = batch_alone.filter(|_| system.batch) else { continue };
        // Of the two programs each counts half; what the service took is not theirs to have.
        let share = |(now, alone): (&Seen, &Seen)| {
            let parts = now.batch.iter().zip(&alone.batch);
            let sum: f64 = parts.map(|(now, alone)| now / alone.max(1e-9)).sum();
            sum / 2.0 / (1.0 - now.service_share).max(0.01)
        };
        let shares = seen[at].iter().zip(&seen[alone]).map(share).collect();
        report.push(CASE, system.name, "be_share_of_leftover", shares);
    }
    for (metric, pick) in &LATENCIES[..3] {
        let of = |at: usize| seen[at].iter().map(pick).collect::<Vec<f64>>();
        let alone = of(alone_at);
        for (at, system) in SYSTEMS.iter().enumerate().skip(1).filter(|(_, one)| one.service) {
            let against = (SYSTEMS[alone_at].name, alone.as_slice());
            report.compare(CASE, (system.name, &of(at)), against, metric);
        }
    }
}

/// The batch programs, and the files in which they count.
struct Batch {
    programs: Vec<Program>,
    counters: Vec<Counter>,
}

impl Batch {
    fn rates(&self, since: &[Reading]) -> Result<[f64; 2]> {
        let now = self.read()?;
        let mut rates = now.iter().zip(since).map(|(now, since)| now.ops_per_sec_since(since));
        Ok([rates.next().unwrap_or(0.0), rates.next().unwrap_or(0.0)])
    }

    fn read(&self) -> Result<Vec<Reading>> {
        Ok(self.counters.iter().map(Counter::read).collect::<Result<_, _>>()?)
    }
}

fn one(
    spec: &RuntimeColocateSpec,
    server: &Path,
    system: &System,
    seed: u64,
    stop: &Stop,
) -> Result<Seen> {
    stop.check()?;
    let directory = host::directory()?;
    // The adopted one first: the daemon is told of it. Those on the runtime find the daemon.
    let mut batch = Batch { programs: Vec::new(), counters: Vec::new() };
    if system.batch {
        add_batch(spec, &mut batch, &spec.antagonist, "hog", directory.path(), None)?;
    }
    let daemon = system.daemon.then(|| daemon(spec, &batch, stop)).transpose()?;
    let run = daemon.as_ref().map(Daemon::directory);
    if system.batch {
        add_batch(spec, &mut batch, &spec.peers, "batch", directory.path(), run)?;
        // On the runtime first, adopted second: as `Seen::batch` says.
        batch.programs.reverse();
        batch.counters.reverse();
    }
    let mut seen = Seen::default();
    if system.service {
        let out = output(directory.path(), "keyvalue");
        let args = ["--listen", "127.0.0.1:0", "--guaranteed", "1", "--max-cores", "1"];
        let args = args.map(OsStr::new);
        let program = start("keyvalue", server, &args, &spec.managed, run, &out)?;
        let server = Server::listening(program, &out, stop, |line| {
            line.rsplit(' ').next()?.parse::<SocketAddr>().ok()
        })?;
        stop.sleep(SETTLE)?;
        let protocol = ProtocolSpec::Memcached(KeyValueSpec::default());
        let time = Nanos(spec.time.as_nanos() as u64);
        let mut load = LoadSpec::new(server.addr, protocol, spec.rate_rps, time);
        load.core = Some(spec.client);
        load.seed = seed;
        let (before, since, used) = (batch.read()?, Instant::now(), server.program.usage()?.cpu);
        let offered = server.offer(&load)?.overall;
        let passed = since.elapsed().as_nanos() as f64 * spec.managed.len() as f64;
        let latency = offered.latency;
        seen = Seen {
            p50_us: latency.p50_us,
            p99_us: latency.p99_us,
            p999_us: latency.p999_us,
            rps: offered.achieved_rps,
            service_share: (server.program.usage()?.cpu - used).0 as f64 / passed,
            batch: batch.rates(&before)?,
        };
    } else {
        stop.sleep(SETTLE)?;
        let before = batch.read()?;
        stop.sleep(spec.time)?;
        seen.batch = batch.rates(&before)?;
    }
    drop(batch);
    if let Some(daemon) = daemon {
        daemon.stop()?;
    }
    Ok(seen)
}

fn add_batch(
    spec: &RuntimeColocateSpec,
    batch: &mut Batch,
    program: &Path,
    word: &'static str,
    directory: &Path,
    run: Option<&Path>,
) -> Result<()> {
    let file = directory.join(format!("progress-{word}"));
    let args: [&OsStr; 3] = [word.as_ref(), "--progress".as_ref(), file.as_os_str()];
    // The program on the runtime takes the file alone.
    let args: Vec<&OsStr> =
        args.into_iter().filter(|arg| word == "hog" || *arg != "--progress").collect();
    let out = output(directory, word);
    batch.programs.push(start(word, program, &args, &spec.managed, run, &out)?);
    let counter =
        Counter::wait(&file, START_MAX).with_context(|| format!("{word} tells no work"))?;
    batch.counters.push(counter);
    Ok(())
}

fn daemon(spec: &RuntimeColocateSpec, batch: &Batch, stop: &Stop) -> Result<Daemon> {
    let tasks = batch.programs.iter().map(|program| Adopted {
        name: "adopted".into(),
        class: Class::BestEffort,
        what: Adoptee::Process(program.pid()),
        guaranteed: 0,
        max: spec.managed.len() as u32,
        runaway: None,
    });
    let daemon = DaemonSpec {
        program: spec.quell.clone(),
        managed: spec.managed,
        // Threads of a latency-critical runtime have no roles: at its peak they fill their cores.
        host: vec!["rt_throttling = \"off\"".to_owned()],
        tasks: tasks.collect(),
    };
    Daemon::start(&daemon, stop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_of_what_the_service_leaves() {
        let of =
            |service_share, batch| Seen { service_share, batch, p999_us: 1.0, ..Seen::default() };
        let mut seen: [Vec<Seen>; SYSTEMS.len()] = Default::default();
        for (at, system) in SYSTEMS.iter().enumerate() {
            seen[at].push(match (system.service, system.batch) {
                (true, true) => of(0.5, [10.0, 1.0]),
                (false, true) => of(0.0, [20.0, 4.0]),
                _ => of(0.5, [0.0; 2]),
            });
        }
        let mut report = BenchReport::new(super::super::BENCH, "test");
        fill(&mut report, &seen);
        let share = report.row(CASE, "quell", "be_share_of_leftover").unwrap().median;
        assert!((share - 0.75).abs() < 1e-9, "{share}");
        assert!(report.row(CASE, "alone", "be_share_of_leftover").is_none());
        assert_eq!(report.ratio(CASE, "quell", "p999_us").unwrap().median, 1.0);
    }
}
