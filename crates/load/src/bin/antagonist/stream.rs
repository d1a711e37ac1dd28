//! Memory bandwidth: the triad of STREAM (McCalpin), in arrays far larger than any cache.

use std::hint::black_box;

use anyhow::ensure;
use clap::Args;

use crate::work::Work;

/// Elements between two looks at the clock: STREAM counts 24 bytes each, so a turn moves 1 MiB.
const ELEMENTS: usize = (1 << 20) / 24;

#[derive(Args)]
pub struct Options {
    /// Threads, each with arrays of its own
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Size of each of the three arrays of a thread, in MiB
    #[arg(long, default_value_t = 64)]
    mib: usize,
}

struct Arrays {
    a: Vec<f64>,
    b: Vec<f64>,
    c: Vec<f64>,
    next: usize,
}

impl Arrays {
    /// Whole turns only, so that each moves as much.
    fn new(mib: usize) -> Arrays {
        let elements = (((mib << 20) / 8) / ELEMENTS) * ELEMENTS;
        Arrays { a: vec![1.0; elements], b: vec![2.0; elements], c: vec![3.0; elements], next: 0 }
    }

    /// a = b + scalar * c over the next part of the arrays.
    fn triad(&mut self) {
        let part = self.next..self.next + ELEMENTS;
        self.next = if part.end == self.a.len() { 0 } else { part.end };
        let sources = self.b[part.clone()].iter().zip(&self.c[part.clone()]);
        for (a, (b, c)) in self.a[part].iter_mut().zip(sources) {
            *a = b + 0.5 * c;
        }
        black_box(&mut self.a);
    }
}

pub fn run(work: &Work, options: &Options) -> anyhow::Result<()> {
    ensure!((1..=65_536).contains(&options.mib), "--mib {}: use 1 to 65536", options.mib);
    let turn = |_| {
        let mut arrays = Arrays::new(options.mib);
        move || {
            arrays.triad();
            Ok(1)
        }
    };
    work.run_threads("MiB moved", (0..options.threads).map(turn).collect())
}
