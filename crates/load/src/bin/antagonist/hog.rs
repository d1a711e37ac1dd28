//! CPU alone: registers, no memory, no system calls.

use std::hint::black_box;

use clap::Args;

use crate::work::Work;

/// Steps of an op: about a microsecond.
const STEPS: u32 = 1_024;
/// Ops between two looks at the clock.
const OPS: u64 = 16;

#[derive(Args)]
pub struct Options {
    /// Threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

pub fn run(work: &Work, options: &Options) -> anyhow::Result<()> {
    let turn = |seed: usize| {
        let mut state = seed as u64 + 1;
        move || {
            for _ in 0..OPS {
                state = black_box(compute(state));
            }
            Ok(OPS)
        }
    };
    work.run_threads("1,024 random steps", (0..options.threads).map(turn).collect())
}

/// Steps of xorshift64 (Marsaglia 2003), each of which needs the last.
fn compute(mut state: u64) -> u64 {
    for _ in 0..STEPS {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    state
}
