//! Page faults: memory is mapped, touched page by page and unmapped, again and again. Each fault
//! zeroes a page in the kernel, and each unmapping frees them all in one system call.

use std::fs::File;
use std::hint::black_box;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::Args;
use quell_load::now;
use quell_model::Nanos;

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
    /// Write to this file when each fault or unmapping of 100 us and more began and ended: a line
    /// each, in ns of CLOCK_MONOTONIC
    #[arg(long, value_name = "FILE")]
    long: Option<PathBuf>,
}

/// What is told of in the file of `--long`.
const LONG: Nanos = Nanos::from_micros(100);

/// Does some work, and writes down when if it took long.
fn told(mut log: Option<&File>, work: impl FnOnce()) -> anyhow::Result<()> {
    let Some(log) = &mut log else {
        work();
        return Ok(());
    };
    let from = now();
    work();
    let to = now();
    if to - from >= LONG {
        // In one call: threads share the file.
        log.write_all(format!("{} {}\n", from.0, to.0).as_bytes())?;
    }
    Ok(())
}

pub fn run(work: &Work, options: &Options) -> anyhow::Result<()> {
    let mibs = MIB_MIN..=65_536;
    ensure!(mibs.contains(&options.mib), "--mib {}: use {mibs:?}", options.mib);
    let bytes = options.mib << 20;
    let create = |path: &PathBuf| File::create(path).with_context(|| path.display().to_string());
    let log = options.long.as_ref().map(create).transpose()?;
    let turn = |_| {
        let log = log.as_ref();
        let mut region: Vec<u8> = Vec::new();
        let mut next = 0;
        move || {
            if next >= region.len() {
                // The old mapping goes before the new one comes.
                told(log, || region = Vec::new())?;
                region = black_box(vec![0; bytes]);
                next = 0;
            }
            let end = (next + PAGES * PAGE).min(region.len());
            let mut touched = 0;
            for page in region[next..end].chunks_mut(PAGE) {
                told(log, || page[0] = black_box(1))?;
                touched += 1;
            }
            next = end;
            Ok(touched)
        }
    };
    work.run_threads("page fault", (0..options.threads).map(turn).collect())
}
