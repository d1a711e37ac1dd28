//! A neighbour that keeps the core awake and disturbs nothing, and sees when it did not run.
//!
//! Run at SCHED_IDLE beside a latency-critical thread, it takes the cost of waking a halted virtual
//! CPU out of a measurement, and its gaps without a context switch are the hypervisor's.

use std::fs::File;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use quell_load::{Activity, StallClock};

use crate::work::Work;

/// PAUSEs between two looks at the clock: under 2 us, so that a gap is seen as soon as it counts.
const PAUSES_A_LOOK: u32 = 20;
/// Looks of an op.
const LOOKS: u32 = 50;

#[derive(Args)]
pub struct Options {
    /// At the end, write the gaps above 100 us there as JSON (`windows` of start_ns, end_ns, switched)
    #[arg(long, value_name = "FILE")]
    gaps: Option<PathBuf>,
}

pub fn run(work: &Work, options: &Options) -> anyhow::Result<()> {
    let publisher = work.publish(1, "1,000 PAUSEs")?;
    let slot = publisher.slot(0).context("a slot for the thread")?;
    let mut clock = StallClock::start();
    let ops = work.repeat(slot, || {
        for _ in 0..LOOKS {
            for _ in 0..PAUSES_A_LOOK {
                std::hint::spin_loop();
            }
            clock.tick(Activity::Spin);
        }
        Ok(1)
    })?;
    let stalls = clock.finish();
    let foreign = stalls.windows.iter().filter(|stall| !stall.switched).count();
    println!(
        "{ops} ops (1,000 PAUSEs), {} gaps above {}, {foreign} of them without a context switch ({})",
        stalls.windows.len(),
        stalls.threshold_ns,
        stalls.unswitched(),
    );
    let Some(path) = &options.gaps else { return Ok(()) };
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    serde_json::to_writer(file, &stalls).with_context(|| format!("write {}", path.display()))
}
