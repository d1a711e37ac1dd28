//! Causes of delay that are planted on purpose, at known times.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use quell_load::now;
use quell_model::{CoreId, CoreSet, Nanos};
use quell_testkit::SoftirqBurner;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::NamedTempFile;

use super::WhySpec;
use crate::host::{PauseLoop, Policy, Program, pin, set_policy};

/// How long each plant lasts, and how long nothing is planted after it.
const LENGTH: Duration = Duration::from_millis(5);
const PAUSE: Duration = Duration::from_millis(45);
/// Above the service.
const PRIORITY: i32 = 60;

/// Begin and end of each plant.
pub type Windows = Vec<(Nanos, Nanos)>;

/// What is planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// A SCHED_FIFO thread above the service spins on its core.
    FifoHog,
    /// Batch work beneath the service faults pages in and frees them, some of which takes the kernel long.
    Faults,
    /// A softirq takes milliseconds on the service's core.
    SoftirqStorm,
    /// The service is stopped by a signal.
    Stopped,
    /// Nothing: stalls of the hypervisor, as the load generator's spinning loop sees them.
    Stall,
}

impl Plant {
    /// All of them.
    pub const ALL: [Plant; 5] =
        [Plant::FifoHog, Plant::Faults, Plant::SoftirqStorm, Plant::Stopped, Plant::Stall];

    /// The name of its case.
    pub fn name(self) -> &'static str {
        match self {
            Plant::FifoHog => "fifo-hog",
            Plant::Faults => "faults",
            Plant::SoftirqStorm => "softirq-storm",
            Plant::Stopped => "stopped",
            Plant::Stall => "stall",
        }
    }

    /// The kind of cause that it has to be found as.
    pub fn kind(self) -> &'static str {
        match self {
            Plant::FifoHog => "behind",
            Plant::Faults => "kernel section",
            Plant::SoftirqStorm => "softirq",
            Plant::Stopped => "stopped",
            Plant::Stall => "hypervisor",
        }
    }

    /// Requests that were in flight meanwhile count if they took this long.
    pub fn bound(self) -> Nanos {
        match self {
            Plant::Faults | Plant::Stall => Nanos::from_micros(200),
            _ => Nanos::from_millis(1),
        }
    }
}

/// Planted until [`Planted::end`].
pub struct Planted {
    stop: Arc<AtomicBool>,
    planter: Option<JoinHandle<Result<Windows>>>,
    batch: Option<(Program, NamedTempFile)>,
    _pause: Option<PauseLoop>,
}

impl Planted {
    /// Begins to plant beside the service.
    ///
    /// # Errors
    /// When the kernel refuses what it takes.
    pub fn begin(plant: Plant, spec: &WhySpec, service: i32) -> Result<Planted> {
        let core = spec.managed.first().context("no core is managed")?;
        let (mut batch, mut pause) = (None, None);
        match plant {
            Plant::Faults => {
                let times = NamedTempFile::new().context("a file for its times")?;
                let mut command = Command::new(&spec.antagonist);
                command.args(["faults", "--long"]).arg(times.path());
                command.stdout(Stdio::null()).stderr(Stdio::null());
                let program = Program::start("quell-antagonist", &mut command)?;
                program.pin(&spec.managed)?;
                program.set_policy(Policy::Idle, 0)?;
                batch = Some((program, times));
            }
            // Stalls come when all cores are busy.
            Plant::Stall => pause = Some(PauseLoop::start(core)?),
            _ => {}
        }
        let stop = Arc::new(AtomicBool::new(false));
        let planter = match plant {
            Plant::Faults | Plant::Stall => None,
            _ => Some(planter(plant, core, service, Arc::clone(&stop))?),
        };
        Ok(Planted { stop, planter, batch, _pause: pause })
    }

    /// Ends it. When something was planted; `None`: all the time.
    ///
    /// # Errors
    /// When planting failed.
    pub fn end(mut self) -> Result<Option<Windows>> {
        // Relaxed: a flag alone; the windows come through the thread's end.
        self.stop.store(true, Ordering::Relaxed);
        if let Some((program, times)) = self.batch.take() {
            drop(program);
            let text = std::fs::read_to_string(times.path()).context("read the times")?;
            return windows(&text).context("times of the batch work").map(Some);
        }
        let Some(planter) = self.planter.take() else { return Ok(None) };
        planter.join().map_err(|_| anyhow!("the planting thread panicked"))?.map(Some)
    }
}

/// Begin and end by line, as the batch work writes them. It was killed maybe amid the last line.
fn windows(text: &str) -> Result<Windows> {
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let window = |line: &str| {
        let (from, to) = line.split_once(' ').context("a line without two times")?;
        Ok((Nanos(from.parse()?), Nanos(to.parse()?)))
    };
    whole.lines().map(window).collect()
}

fn planter(
    plant: Plant,
    core: CoreId,
    service: i32,
    stop: Arc<AtomicBool>,
) -> Result<JoinHandle<Result<Windows>>> {
    let burner = match plant {
        Plant::SoftirqStorm => Some(SoftirqBurner::new(LENGTH)?),
        _ => None,
    };
    let service = Pid::from_raw(service).context("the service has a number")?;
    let thread = std::thread::Builder::new().name("quell-plant".into());
    let planter = thread.spawn(move || {
        pin(0, &CoreSet::of(core)).context("go to the service's core")?;
        set_policy(0, Policy::Fifo(PRIORITY)).context("rise above the service")?;
        let mut windows = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(PAUSE);
            let from = now();
            match &burner {
                Some(burner) => burner.burn().context("send a packet")?,
                None if plant == Plant::Stopped => {
                    kill_process(service, Signal::STOP).context("stop the service")?;
                    std::thread::sleep(LENGTH);
                    kill_process(service, Signal::CONT).context("let the service go on")?;
                }
                None => while now().since(from).0 < LENGTH.as_nanos() as u64 {},
            }
            windows.push((from, now()));
        }
        Ok(windows)
    });
    planter.context("start the planting thread")
}
