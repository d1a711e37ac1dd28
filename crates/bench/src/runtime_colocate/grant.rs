//! How long it takes until a core is granted: from making a uthread ready, by an ordinary thread, until it runs.

use std::ffi::OsStr;
use std::time::Duration;

use super::RuntimeColocateSpec;
use super::programs::{output, start};
use crate::daemon::{Daemon, DaemonSpec};
use crate::host;
use crate::runtime::Measured;
use anyhow::Result;
use quell_report::BenchReport;
use quell_terminal::{Progress, Stop};

/// How long a program may take beside its time.
const PATIENCE: Duration = Duration::from_secs(10);
/// Its name in reports.
pub const CASE: &str = "core-grant";
/// Its metrics.
pub const METRICS: [&str; 2] = ["latency_ns_p50", "latency_ns_p99"];

/// Who is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// A thread that is woken by a futex.
    Futex,
    /// The runtime without a daemon.
    Alone,
    /// The runtime under a daemon.
    Daemon,
}

/// The systems, and what each is.
pub const SYSTEMS: [(&str, System); 3] = [
    ("futex", System::Futex),
    ("runtime-alone", System::Alone),
    ("runtime-under-daemon", System::Daemon),
];

/// Measures the grant beside a futex's wake-up, and the runtime alone.
pub fn measure(
    spec: &RuntimeColocateSpec,
    report: &mut BenchReport,
    progress: &mut dyn Progress,
    stop: &Stop,
) -> Result<()> {
    let mut seen: [[Vec<f64>; METRICS.len()]; SYSTEMS.len()] = Default::default();
    for round in 0..spec.rounds {
        progress.step(round, spec.rounds, CASE);
        for (at, (_, system)) in SYSTEMS.iter().enumerate() {
            let measured = one(spec, *system, stop)?;
            for (values, metric) in seen[at].iter_mut().zip(METRICS) {
                values.push(measured.value(metric));
            }
        }
    }
    for (at, (name, _)) in SYSTEMS.iter().enumerate() {
        for (of, metric) in METRICS.iter().enumerate() {
            report.push(CASE, name, metric, seen[at][of].clone());
            if at > 0 {
                let futex = (SYSTEMS[0].0, seen[0][of].as_slice());
                report.compare(CASE, (name, &seen[at][of]), futex, metric);
            }
        }
    }
    Ok(())
}

fn one(spec: &RuntimeColocateSpec, system: System, stop: &Stop) -> Result<Measured> {
    stop.check()?;
    let directory = host::directory()?;
    let out = output(directory.path(), "grant");
    let time = spec.time.as_millis().to_string();
    let daemon = match system {
        System::Daemon => Some(Daemon::start(
            &DaemonSpec {
                program: spec.quell.clone(),
                managed: spec.managed,
                host: Vec::new(),
                tasks: Vec::new(),
            },
            stop,
        )?),
        _ => None,
    };
    let client = spec.client.to_string();
    // Who waits for the futex is on one core, who wakes it on the other.
    let (words, cores) = match system {
        System::Futex => {
            let mut both = spec.managed;
            both.insert(spec.client);
            (vec!["floor", "futex-wake", "2", "100", &time], both)
        }
        _ => (vec!["grant", &client, "1", "100", &time], spec.managed),
    };
    let args: Vec<&OsStr> = words.into_iter().map(OsStr::new).collect();
    let run = daemon.as_ref().map(Daemon::directory);
    let program = start("grant", &spec.peers, &args, &cores, run, &out)?;
    program.finish(spec.time + PATIENCE, stop)?;
    if let Some(daemon) = daemon {
        daemon.stop()?;
    }
    Measured::parse(&std::fs::read_to_string(&out)?)
}
