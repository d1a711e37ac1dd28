//! File writes: blocks go to an unlinked temporary file, each followed by fsync.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Args;

use crate::work::Work;

#[derive(Args)]
pub struct Options {
    /// Threads, each with a file of its own
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Directory of the files, which have no name and vanish with the process; put it on a disk
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// Size of a block in KiB
    #[arg(long, default_value_t = 64)]
    block_kib: usize,
    /// Size of each file in MiB; blocks are overwritten in turn
    #[arg(long, default_value_t = 64)]
    mib: usize,
}

pub fn run(work: &Work, options: &Options) -> anyhow::Result<()> {
    let block_bytes = options.block_kib << 10;
    let file_bytes = options.mib << 20;
    ensure!((4..=65_536).contains(&options.block_kib), "--block-kib: use 4 to 65536");
    ensure!(file_bytes >= block_bytes, "--mib: the file must hold a block");
    let mut turns = Vec::new();
    for _ in 0..options.threads {
        let file = tempfile::tempfile_in(&options.dir)
            .with_context(|| format!("temporary file in {}", options.dir.display()))?;
        let block = vec![0x5a; block_bytes];
        let blocks = (file_bytes / block_bytes) as u64;
        let mut next = 0;
        turns.push(move || {
            file.write_all_at(&block, next * block.len() as u64).context("write")?;
            file.sync_all().context("fsync")?;
            next = (next + 1) % blocks;
            Ok(1)
        });
    }
    work.run_threads("block synced", turns)
}
