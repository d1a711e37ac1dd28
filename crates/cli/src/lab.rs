//! `quell bench`, `load` and `sim`: executes the program `quell-lab`, which is installed apart.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};

/// The name of the program.
const LAB: &str = "quell-lab";
/// Where a package installs it, seen from the directory of `quell`.
const LIBEXEC: &str = "../libexec/quell";

/// The arguments of `quell-lab`, passed on as they are.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Passed on; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    args: Vec<OsString>,
}

/// Becomes `quell-lab SUBCOMMAND ARGS`.
pub fn run(subcommand: &str, args: Args) -> Result<ExitCode> {
    let program = find().with_context(|| format!("`quell {subcommand}` needs {LAB}"))?;
    require_commit(&program, quell_terminal::commit())?;
    let error = Command::new(&program).arg(subcommand).args(args.args).exec();
    Err(error).with_context(|| format!("execute {}", program.display()))
}

/// Refuses a `quell-lab` of another commit than this program's: a result names the commit of `quell-lab`, and what it
/// measures is this `quell`.
fn require_commit(program: &Path, own: &str) -> Result<()> {
    let name = program.display();
    let out = Command::new(program).arg("commit").output();
    let out = out.with_context(|| format!("execute {name}"))?;
    let answer = String::from_utf8_lossy(&out.stdout);
    let theirs = match answer.trim() {
        commit if out.status.success() && !commit.is_empty() => commit,
        _ => "older than any that can be asked for",
    };
    if theirs != own {
        bail!(
            "{name} is of another commit ({theirs}) than this `quell` ({own}); build both with `make build`, or install \
             both packages in one version"
        );
    }
    Ok(())
}

/// `quell-lab` beside this program, in the package's directory, or in PATH.
pub fn find() -> Result<PathBuf> {
    let own = std::env::current_exe().context("find this program")?;
    let directory = own.parent().unwrap_or(Path::new("/"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = [directory.to_owned(), directory.join(LIBEXEC)];
    let mut places = places.into_iter().chain(std::env::split_paths(&path));
    match places.find(|place| place.join(LAB).is_file()) {
        Some(place) => Ok(place.join(LAB)),
        None => bail!("{LAB} is not installed; install the package {LAB}"),
    }
}
