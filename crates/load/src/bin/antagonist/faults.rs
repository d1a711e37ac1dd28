//! Page faults: memory is mapped, touched page by page and unmapped, again and again. Each fault
//! zeroes a page in the kernel, and each unmapping frees them all in one system call.

use std::hint::black_box;

use anyhow::ensure;
use clap::Args;

use crate::work::Work;

/// glibc maps every allocation above this (DEFAULT_MMAP_THRESHOLD_MAX) and unmaps it when freed.
const MIB_MIN: usize = 33;
const PAGE: usize = 4_096;
/// Pages touched between two looks at the clock.
const PAGES: usize = 256;

#[derive(Args)]
pub struct Options {
    /// Threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Size of the mapping of each thread in MiB
    #[arg(long, default_value_t = 64)]
    mib: usize,
}

pub fn run(work: &Work, options: &Options) -> anyhow::Result<()> {
    let mibs = MIB_MIN..=65_536;
    ensure!(mibs.contains(&options.mib), "--mib {}: use {mibs:?}", options.mib);
    let bytes = options.mib << 20;
    let turn = |_| {
        let mut region: Vec<u8> = Vec::new();
        let mut next = 0;
        move || {
            if next >= region.len() {
                // The old mapping goes before the new one comes.
                region = Vec::new();
                region = black_box(vec![0; bytes]);
                next = 0;
            }
            let end = (next + PAGES * PAGE).min(region.len());
            let mut touched = 0;
            for page in region[next..end].chunks_mut(PAGE) {
                page[0] = black_box(1);
                touched += 1;
            }
            next = end;
            Ok(touched)
        }
    };
    work.run_threads("page fault", (0..options.threads).map(turn).collect())
}
