//! `quell check --lint`: the static lint of scheduling domains.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use quell_model::DomainTrees;
use quell_observe::domains;
use quell_trace::lint::{Dump, Inspection, Verdict, dump, traced};
use quell_trace::perfetto::{self, Reader};

/// Judges dumps of scheduling domains and those in traces, or this host's, which are then saved as well where that is wanted.
pub fn run(dumps: &[PathBuf], save: Option<&Path>, json: bool) -> Result<ExitCode> {
    if !dumps.is_empty() && save.is_some() {
        bail!("--save saves the domains of this host: give no dumps with it");
    }
    let dumps = match dumps {
        [] => {
            vec![Dump { name: "this host".to_owned(), trees: this_host(save)?, is_traced: false }]
        }
        paths => paths.iter().map(|path| read(path)).collect::<Result<Vec<_>>>()?.concat(),
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

/// The domains in a file: one dump, or as many as a trace has.
fn read(path: &Path) -> Result<Vec<Dump>> {
    let name = path.display().to_string();
    read_named(path, &name).context(name)
}

fn read_named(path: &Path, name: &str) -> Result<Vec<Dump>> {
    let mut file = BufReader::new(File::open(path)?);
    if perfetto::is_perfetto(file.fill_buf()?) {
        return Ok(traced::read(&mut Reader::new(file)?, name)?);
    }
    Ok(vec![Dump { name: name.to_owned(), trees: dump::read(file)?, is_traced: false }])
}
