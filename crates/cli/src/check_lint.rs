//! `quell check --lint`: the static lint of scheduling domains.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use quell_model::DomainTrees;
use quell_observe::domains;
use quell_trace::lint::{Inspection, Verdict, dump};

/// Judges dumps of scheduling domains, or this host's, which are then saved as well where that is wanted.
pub fn run(dumps: &[PathBuf], save: Option<&Path>, json: bool) -> Result<ExitCode> {
    if !dumps.is_empty() && save.is_some() {
        bail!("--save saves the domains of this host: give no dumps with it");
    }
    let dumps = match dumps {
        [] => vec![("this host".to_owned(), this_host(save)?)],
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
