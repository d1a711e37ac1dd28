//! `quell sim oracle`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use quell_study::simulate::oracle::{self, OracleSpec, WHOLE};
use quell_study::simulate::source::Source;
use quell_terminal::{Live, Stop};

/// Search the best division of a scenario's cores (and cache ways) that never changes, on all cores of this machine
///
/// Each candidate is simulated on the whole scenario: no policy could know so much, so this bounds what static partitioning can
/// reach. Worth is batch work where every service meets its target, else minus how far tails exceed theirs. The file's policy
/// is shown beside it. Small spaces are searched whole, larger ones by steepest ascent. When it is interrupted (exit status 2) it
/// prints the best so far.
#[derive(clap::Args)]
pub struct Args {
    /// The scenario, in TOML
    file: PathBuf,
    /// Use this seed instead of the file's
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// What the 99.9th percentile of a service shall not exceed, in microseconds; may be repeated [default: 1.5 times that of the
    /// service alone on the host]
    #[arg(long = "target", value_name = "TASK=US")]
    targets: Vec<String>,
    /// Write the result as JSON; `-` prints it instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep what each division was worth here, as lines of JSON, and try none again that is there
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Simulations at one time [default: as many as this machine has cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let source = Source::open(&args.file)?;
    let resolved = match args.seed {
        Some(seed) => source.seeded(seed)?,
        None => source.resolve(&[])?,
    };
    let targets = args.targets.iter().map(|text| oracle::target(text).context("--target"));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let spec = OracleSpec {
        resolved,
        targets: targets.collect::<Result<_>>()?,
        whole_below: WHOLE,
        threads: args.threads.unwrap_or(cores),
        out: args.out,
    };
    let found = oracle::run(&spec, &mut Live::new(), &Stop::on_signals()?)?;
    let mut out = std::io::stdout().lock();
    match &args.json {
        Some(path) if path == Path::new("-") => write!(out, "{}", found.to_json()?)?,
        Some(path) => {
            std::fs::write(path, found.to_json()?)
                .with_context(|| format!("write {}", path.display()))?;
            writeln!(out, "{}wrote {}", found.text(), path.display())?;
        }
        None => write!(out, "{}", found.text())?,
    }
    if !found.finished {
        bail!("interrupted; the search did not come to its end");
    }
    Ok(ExitCode::SUCCESS)
}
