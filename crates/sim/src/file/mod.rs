//! Scenarios as TOML files.
//!
//! A file is hostile until it is parsed: every key is known, every number has bounds, and what is wrong is said
//! with file, line and remedy. `docs/lab/sim.md` is the reference.

mod build;
mod costs;
mod driver;
mod helpers;
mod kernel;
mod machine;
mod program;
mod raw;
mod recording;
#[cfg(test)]
mod recording_tests;
#[cfg(test)]
mod tests;

use std::path::Path;

pub use quell_model::FileError;
use quell_policy::Config;

use crate::scenario::Scenario;
use crate::workload::{Recording, Window};

/// The largest file that is read.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads the files that a scenario file names, relative to it.
pub trait Files {
    /// The text of a file; of a recorded host its topology as JSON.
    ///
    /// # Errors
    /// When it cannot be read.
    fn text(&self, name: &str) -> Result<String, FileError>;

    /// What the threads of a recorded host did in a part of its trace.
    ///
    /// # Errors
    /// When it cannot be read, or says too little.
    fn recording(&self, name: &str, window: Window) -> Result<Recording, FileError>;
}

/// Texts alone.
struct Texts<'a>(&'a dyn Fn(&str) -> Result<String, FileError>);

impl Files for Texts<'_> {
    fn text(&self, name: &str) -> Result<String, FileError> {
        (self.0)(name)
    }

    fn recording(&self, name: &str, _: Window) -> Result<Recording, FileError> {
        Err(FileError {
            file: name.to_owned(),
            line: None,
            what: "a trace is not read here".to_owned(),
            remedy: "replay it with `quell sim FILE` or `quell sim sweep FILE`".to_owned(),
        })
    }
}

/// A scenario and who decides in it.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// What is simulated.
    pub scenario: Scenario,
    /// The policy by name.
    pub policy: String,
    /// What is set about it.
    pub config: Config,
    /// Who named the policy where, for messages.
    named: driver::Named,
}

impl Simulation {
    /// Reads a scenario file, and the report of `quell bench mechanism` if it names one.
    ///
    /// # Errors
    /// Names the file, the line and the remedy of the first thing that is wrong.
    pub fn load(path: &Path) -> Result<Simulation, FileError> {
        let file = path.display().to_string();
        let text = read(path)?;
        let stem = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into());
        let folder = path.parent().unwrap_or(Path::new("."));
        Simulation::parse(&text, &file, &stem, &|name| read(&folder.join(name)))
    }

    /// Reads a scenario from TOML. `file` is for messages, `stem` the name unless it has one, and `other` reads a file
    /// that it names, relative to it.
    ///
    /// # Errors
    /// As [`Simulation::load`].
    pub fn parse(
        text: &str,
        file: &str,
        stem: &str,
        other: &dyn Fn(&str) -> Result<String, FileError>,
    ) -> Result<Simulation, FileError> {
        Simulation::parse_with(text, file, stem, &Texts(other))
    }

    /// As [`Simulation::parse`], for files that name traces too.
    ///
    /// # Errors
    /// As [`Simulation::load`].
    pub fn parse_with(
        text: &str,
        file: &str,
        stem: &str,
        files: &dyn Files,
    ) -> Result<Simulation, FileError> {
        let place = raw::Place { text, file };
        build::build(raw::parse(&place)?, &place, stem, files)
    }
}

/// The text of a scenario file, or of one that it names, if that has a sane size.
///
/// # Errors
/// When it cannot be read, is larger than [`FILE_BYTES_MAX`], or is no text.
pub fn read(path: &Path) -> Result<String, FileError> {
    use std::io::Read;
    let error = |what: String, remedy: &str| FileError {
        file: path.display().to_string(),
        line: None,
        what,
        remedy: remedy.to_owned(),
    };
    let opened = std::fs::File::open(path)
        .map_err(|err| error(err.to_string(), "name a scenario file, see examples/sim"))?;
    let mut text = String::new();
    opened
        .take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|err| error(err.to_string(), "it has to be text"))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(error("it is larger than 1 MiB".to_owned(), "make it smaller"));
    }
    Ok(text)
}
