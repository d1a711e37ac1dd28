//! What `quell bench runtime-colocate` puts on the runtime: batch work, and a task that nobody expects.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;

use anyhow::{Context as _, Result};
use quell_load::be::Publisher;
use quell_load::serve::Calibration;
use quell_model::Nanos;
use quell_runtime::{Builder, Class, Daemon, Runtime, thread};
use rustix::thread::CpuSet;

use crate::protocol::{GAP_PARKED, Measured, Meter, Request, compute, now};

/// Work of a batch task between two calls of the runtime.
const BATCH_NS: u64 = 20_000;
/// Uthreads of the batch work.
const BATCH: usize = 8;
/// How often the batch work tells what it did.
const TELL_EVERY: Duration = Duration::from_millis(2);

fn under_the_daemon(name: &str, class: Class) -> Builder {
    Runtime::builder().name(name).class(class).daemon(Daemon::IfThere)
}

/// Batch work on the runtime, which counts what it does: `batch FILE`.
///
/// # Errors
/// When the runtime cannot be built, or the file.
pub fn batch(file: &Path) -> Result<()> {
    let publisher = Publisher::create(Some(file), 1, "20 us of work")?;
    let mut slot = publisher.slot(0).context("no slot")?;
    let runtime = under_the_daemon("batch", Class::BestEffort).build().context("build")?;
    let speed = Calibration::measure();
    let done = Arc::new(AtomicU64::new(0));
    for _ in 0..BATCH {
        let counts = done.clone();
        drop(runtime.handle().spawn(move || {
            loop {
                speed.work(BATCH_NS);
                // Relaxed: a count and nothing else.
                counts.fetch_add(1, Relaxed);
                thread::yield_now();
            }
        }));
    }
    let mut told = 0;
    loop {
        std::thread::sleep(TELL_EVERY);
        let now = done.load(Relaxed);
        slot.count(now - told);
        slot.publish();
        told = now;
    }
}

/// From making a uthread ready in a runtime that sleeps until it runs: `grant CORE WORKERS WARM_UP_MS TIME_MS`. The caller is an
/// ordinary thread on CORE. The runtime has a core only when the daemon, if there is one, grants it.
///
/// # Errors
/// When the runtime cannot be built, or the caller not placed.
pub fn grant(core: &str, request: &Request) -> Result<()> {
    let builder = under_the_daemon("grant", Class::LatencyCritical);
    let runtime = builder.guaranteed(1).max_cores(1).build().context("build the runtime")?;
    let mut set = CpuSet::new();
    set.set(core.parse::<usize>().ok().filter(|at| *at < CpuSet::MAX_CPU).context("no core")?);
    rustix::thread::sched_setaffinity(None, &set).context("place the caller")?;
    let (handle, mut meter) = (runtime.handle(), Meter::start(request));
    let ran = Arc::new(AtomicU64::new(0));
    while meter.goes_on(1) {
        compute(GAP_PARKED);
        ran.store(0, Relaxed);
        let (ready, tells) = (now(), ran.clone());
        // Relaxed: the time alone is passed.
        drop(handle.spawn(move || tells.store(now().0, Relaxed)));
        while ran.load(Relaxed) == 0 {
            std::hint::spin_loop();
        }
        meter.sample(Nanos(ran.load(Relaxed)).since(ready));
    }
    let measured: Measured = meter.finish();
    measured.print()
}
