//! `quell check --lint`: the static lint of scheduling domains.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use quell_linux::observe::domains;
use quell_model::DomainTrees;
use quell_trace::lint::{Inspection, Verdict, dump};

/// Flags of `quell check`.
#[derive(clap::Args)]
pub struct Lint {
    /// Judge the scheduling domains instead, by the rules L1 to L5; needs no load
    #[arg(long)]
    pub lint: bool,
    /// Judge these dumps instead of this host: what --save wrote, or a kernel log with `sched_verbose`. Each is
    /// also compared with the one before (L5)
    #[arg(value_name = "DUMP", requires = "lint")]
    dumps: Vec<PathBuf>,
    /// Also write the scheduling domains of this host to this file, as JSON
    #[arg(long, value_name = "FILE", requires = "lint", conflicts_with = "dumps")]
    save: Option<PathBuf>,
}

pub fn run(args: &Lint, json: bool) -> Result<ExitCode> {
    let dumps = match args.dumps.as_slice() {
        [] => vec![("this host".to_owned(), this_host(args.save.as_deref())?)],
        paths => paths.iter().map(|path| read(path)).collect::<Result<_>>()?,
    };
    let inspection = Inspection::new(&dumps);
    match json {
        true => println!("{}", serde_json::to_string_pretty(&inspection)?),
        false => print!("{inspection}"),
    }
    Ok(match inspection.verdict {
        Verdict::Clean => ExitCode::SUCCESS,
        Verdict::Violated => ExitCode::from(1),
        Verdict::CouldNotTell => ExitCode::from(2),
    })
}

fn this_host(save: Option<&Path>) -> Result<DomainTrees> {
    let trees = domains::read()?;
    if let Some(path) = save {
        let text = serde_json::to_string_pretty(&trees)?;
        fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    Ok(trees)
}

fn read(path: &Path) -> Result<(String, DomainTrees)> {
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| name.clone())?;
    let trees = dump::read(file).with_context(|| name.clone())?;
    Ok((name, trees))
}
