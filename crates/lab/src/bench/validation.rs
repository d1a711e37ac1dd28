//! `quell bench validation`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use quell_report::plot;
use quell_study::validation::{self, ValidationSpec};
use quell_terminal::{Live, Stop};

/// Caladan's published figures, made again in the simulator, each beside the paper's numbers
///
/// Prints paper, here and verdict for each target. With --json, `quell bench report` makes docs/results/validation.md of it. Needs no
/// root, and any machine gives the same figures.
#[derive(clap::Args)]
pub struct Args {
    /// Only this figure; may be repeated [default: all]
    #[arg(long = "figure", value_name = "NAME")]
    figures: Vec<String>,
    /// Short simulations and few points, for a first look; leaves out PARTIES*, which takes seconds to converge
    #[arg(long)]
    quick: bool,
    /// How many seeds [default: 3, quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// Simulations at one time [default: as many as this machine has cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw each figure as SVG and PNG into this folder
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let spec = ValidationSpec {
        command: super::command_line(),
        figures: args.figures,
        short: args.quick,
        seeds: args.seeds.unwrap_or(if args.quick { 1 } else { 3 }),
        threads: args.threads.unwrap_or(cores),
    };
    let report = validation::run(&spec, &mut Live::new(), &Stop::on_signals()?)?;
    print!("{}", validation::text(&report));
    if let Some(path) = &args.json {
        report.write(path)?;
        println!("wrote {}", path.display());
    }
    if let Some(folder) = &args.plots {
        std::fs::create_dir_all(folder)?;
        for picture in &report.plots {
            plot::panels(picture, folder)?;
            println!("wrote {}", folder.join(format!("{}.svg", picture.name)).display());
        }
    }
    Ok(ExitCode::SUCCESS)
}
