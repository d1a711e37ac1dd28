//! What is watched of the host while requests are on their way: stops of cores, ticks, and queueing disciplines.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use quell_model::{CoreId, Nanos};

use super::attribution::{HostTicks, backlog_bytes};
use crate::host::{Canary, Standstill};
use crate::net::namespaces::{ENDS, Namespaces};

/// How often a timer interrupts each core: rarely, since each interrupt takes microseconds of a virtual machine.
const PERIOD: Nanos = Nanos::from_millis(1);
/// A timer that is late by so much shows a stop.
const STOP_MIN: Nanos = Nanos::from_millis(1);
/// Between two looks at a queueing discipline: each starts a program.
const LOOK_EVERY: Duration = Duration::from_millis(150);

/// Timers on all cores.
pub struct Canaries(Vec<Canary>);

impl Canaries {
    /// Starts them; they rest.
    ///
    /// # Errors
    /// Where perf events are not allowed.
    pub fn start() -> Result<Canaries> {
        let cores = thread::available_parallelism().context("count the cores")?.get();
        let start = |core| {
            let core = CoreId(u16::try_from(core)?);
            Canary::start(core, PERIOD).with_context(|| format!("start a timer on core {core}"))
        };
        Ok(Canaries((0..cores).map(start).collect::<Result<_>>()?))
    }

    fn begin(&mut self) -> Result<()> {
        Ok(self.0.iter_mut().try_for_each(Canary::begin)?)
    }

    fn end(&mut self) -> Result<Vec<Standstill>> {
        let mut stops = Vec::new();
        for canary in &mut self.0 {
            stops.extend(canary.end(STOP_MIN)?);
        }
        Ok(stops)
    }
}

/// What was seen during a run of two programs.
#[derive(Debug, Default)]
pub struct Watched {
    /// Stops of cores; `None` without timers.
    pub stops: Option<Vec<Standstill>>,
    /// The parts of the host's time that softirqs had, and that the hypervisor took.
    pub host_shares: Option<[f64; 2]>,
    /// The mean of what waited in the client's queueing discipline.
    pub backlog_bytes: Option<f64>,
}

/// Runs two programs and watches the host.
///
/// # Errors
/// When the run fails.
pub fn watch<T>(
    canaries: Option<&mut Canaries>,
    namespaces: Option<&Namespaces>,
    run: impl FnOnce() -> Result<T>,
) -> Result<(T, Watched)> {
    let ticks = || HostTicks::parse(&fs::read_to_string("/proc/stat").ok()?);
    let before = ticks();
    let mut canaries = canaries;
    if let Some(canaries) = &mut canaries {
        canaries.begin()?;
    }
    let is_over = AtomicBool::new(false);
    let (result, backlog_bytes) = thread::scope(|scope| {
        let looks = namespaces.map(|it| scope.spawn(|| look_at_queue(it, &is_over)));
        let result = run();
        // Relaxed: one look more does no harm.
        is_over.store(true, Ordering::Relaxed);
        let backlog = looks.and_then(|it| it.join().ok().flatten());
        (result, backlog)
    });
    let stops = canaries.map(Canaries::end).transpose()?;
    let host_shares = before.zip(ticks()).map(|(before, now)| now.shares_since(&before));
    Ok((result?, Watched { stops, host_shares, backlog_bytes }))
}

/// The mean backlog of the client's end: most data leaves there.
fn look_at_queue(namespaces: &Namespaces, is_over: &AtomicBool) -> Option<f64> {
    let mut seen = Vec::new();
    // The programs start first.
    thread::sleep(LOOK_EVERY);
    // Relaxed: see above.
    while !is_over.load(Ordering::Relaxed) {
        let mut command = namespaces.command(1, "tc".as_ref());
        let output = command.args(["-s", "-j", "qdisc", "show", "dev", ENDS[1]]).output().ok()?;
        seen.push(backlog_bytes(&String::from_utf8_lossy(&output.stdout))? as f64);
        thread::sleep(LOOK_EVERY);
    }
    (!seen.is_empty()).then(|| seen.iter().sum::<f64>() / seen.len() as f64)
}
