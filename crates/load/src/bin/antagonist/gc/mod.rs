//! Garbage collection: a Monte-Carlo simulation on a Boehm-collected heap whose live part is sized so
//! that each collection stops it for 100 to 200 ms, marking all the while. Caladan (OSDI'20, Fig. 5)
//! uses such an antagonist: its demand for memory bandwidth comes in bursts.

#[cfg(have_libgc)]
mod boehm;
#[cfg(have_libgc)]
mod swaptions;

use clap::Args;

use crate::work::Work;

#[derive(Args)]
pub struct Options {
    /// Length of a pause to size the heap for, in ms of CPU time
    #[arg(long, default_value_t = 150)]
    pause_ms: u64,
    /// Threads that mark during a collection
    #[arg(long, default_value_t = 1)]
    markers: u32,
}

#[cfg(have_libgc)]
pub fn run(work: &Work, options: &Options) -> anyhow::Result<()> {
    swaptions::run(work, options)
}

#[cfg(not(have_libgc))]
pub fn run(_work: &Work, options: &Options) -> anyhow::Result<()> {
    anyhow::bail!(
        "gc (pauses of {} ms, {} markers): built without the Boehm collector; on Debian: \
         apt-get install libgc-dev, then build again",
        options.pause_ms,
        options.markers
    )
}
