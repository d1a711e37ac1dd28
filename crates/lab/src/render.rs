//! `quell-lab render`: the PNG of an SVG, for `quell view -o FILE.png`.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use quell_report::plot::to_png;

/// The largest SVG that is read.
const SVG_MAX: u64 = 1 << 30;

/// Read an SVG from standard input and write it as PNG, with two pixels for each of its units
#[derive(clap::Args)]
pub struct Args {
    /// The file to write
    file: PathBuf,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let mut svg = String::new();
    std::io::stdin().lock().take(SVG_MAX).read_to_string(&mut svg).context("read the SVG")?;
    std::fs::write(&args.file, to_png(&svg)?).with_context(|| args.file.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}
