//! The instruments that cost something themselves: the BPF observer and the timer that sees stops of the hypervisor.

use anyhow::{Context as _, Result};
use quell_model::{Children, CoreId, CoreSet, Nanos};
use quell_observe::bpf::BpfObserver;
use quell_observe::{Observer as _, procs};

use super::account::Seen;
use crate::host::Canary;
use crate::services::{SERVICE, passive_observer};
use crate::stops::{CoreStop, STOP_MIN, stopped_share};

/// As in `quell bench services`.
const PERIOD: Nanos = Nanos::from_millis(1);

/// A passive observer of these threads, until dropped: as `quell bench services` has one.
///
/// # Errors
/// Without the right to load BPF programs, or where the kernel lacks what they need.
pub fn observe(core: CoreId, tids: impl Iterator<Item = i32>) -> Result<BpfObserver> {
    let mut observer = passive_observer(&CoreSet::of(core))?;
    for tid in tids {
        let thread = procs::thread(tid).with_context(|| format!("find thread {tid}"))?;
        observer.watch(thread, SERVICE, true, Children::Adopt).context("watch a thread")?;
    }
    Ok(observer)
}

/// A timer on the core.
pub struct Timer {
    core: CoreId,
    canary: Canary,
}

/// What it saw.
pub struct Ticks {
    /// Stops of the hypervisor.
    stops: Vec<CoreStop>,
    /// Interrupts a second.
    pub per_s: f64,
}

impl Timer {
    /// Puts it there; it rests.
    ///
    /// # Errors
    /// Where perf events are not allowed.
    pub fn new(core: CoreId) -> Result<Timer> {
        let canary = Canary::start(core, PERIOD);
        Ok(Timer { core, canary: canary.context("start a timer (perf_event_open)")? })
    }

    /// Interrupts come from now on.
    ///
    /// # Errors
    /// When the kernel takes the perf event away.
    pub fn begin(&mut self) -> Result<()> {
        self.canary.begin().context("start the timer")
    }

    /// They come no more.
    ///
    /// # Errors
    /// When the kernel takes the perf event away.
    pub fn end(&mut self) -> Result<Ticks> {
        // Without a least delay each interrupt ends a span of its own.
        let spans = self.canary.end(Nanos::ZERO).context("stop the timer")?;
        let time = spans.iter().fold(Nanos::ZERO, |sum, span| sum + (span.to - span.from));
        let late =
            spans.iter().filter(|span| !span.idle && span.to - span.from >= PERIOD + STOP_MIN);
        let stop = |span: &crate::host::Standstill| CoreStop {
            core: self.core,
            start: span.from,
            end: span.to,
        };
        let per_s = spans.len() as f64 / (time.0.max(1) as f64 / 1e9);
        Ok(Ticks { stops: late.map(stop).collect(), per_s })
    }
}

impl Ticks {
    /// Notes in `seen` what share of the time between two moments the core was stopped.
    pub fn note(&self, seen: &mut Seen, from: Nanos, to: Nanos) {
        seen.stopped_share = Some(stopped_share(&self.stops, from, to));
    }
}
