//! A scenario file whose keys can be changed before it is simulated, and a fingerprint of what came of it.

use std::cell::RefCell;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use quell_sim::file::{FileError, Files, Simulation};
use quell_sim::{Recording, Window};
use quell_trace::import::Options;
use quell_trace::perfetto;

use super::overlay::set;

/// A scenario file.
pub struct Source {
    file: String,
    stem: String,
    folder: PathBuf,
    text: String,
    table: toml::Table,
}

/// A key of the file and its new value.
pub type Setting<'a> = (&'a str, &'a toml::Value);

/// What came of a file and its changed keys.
pub struct Resolved {
    /// What is simulated.
    pub simulation: Simulation,
    /// Of the whole scenario, the files that it names, and the model; in hexadecimal. Two cases with the same one have the
    /// same results.
    pub fingerprint: String,
}

/// Reads a parameter: `KEY=VALUE,VALUE...`. Values are TOML, so a list of steps is one value; what is none is a text.
///
/// # Errors
/// When there is no key or no value, or one twice.
pub fn parameter(text: &str) -> Result<(String, Vec<toml::Value>)> {
    let (key, typed) =
        text.split_once('=').context("write it like task.cache.rate=100000,200000")?;
    let value = |text: &str| {
        let typed = text.parse::<toml::Value>();
        typed.unwrap_or_else(|_| toml::Value::String(text.to_owned()))
    };
    let values = match format!("[{typed}]").parse::<toml::Value>() {
        Ok(toml::Value::Array(values)) => values,
        _ => typed.split(',').map(str::trim).filter(|text| !text.is_empty()).map(value).collect(),
    };
    if key.is_empty() || values.is_empty() {
        bail!("`{text}` names no key or no value; write it like task.cache.rate=100000,200000");
    }
    if let Some(at) = (1..values.len()).find(|at| values[..*at].contains(&values[*at])) {
        bail!("`{text}` has {} twice", shown(&values[at]));
    }
    Ok((key.to_owned(), values))
}

/// A value as typed.
pub(super) fn shown(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

impl Source {
    /// Reads the file.
    ///
    /// # Errors
    /// When it cannot be read, or is no TOML.
    pub fn open(path: &Path) -> Result<Source> {
        let file = path.display().to_string();
        let text = quell_sim::file::read(path)?;
        let stem = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into());
        let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
        let mut source = Source { file, stem, folder, text, table: toml::Table::new() };
        // What is wrong with the file is said with its line: before any key is changed only its syntax counts.
        match toml::from_str(&source.text) {
            Ok(table) => source.table = table,
            Err(_) => source.resolve(&[]).map(drop)?,
        }
        Ok(source)
    }

    /// The file as named.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The seed of the file.
    ///
    /// # Errors
    /// When what the file has is none.
    pub fn seed(&self) -> Result<u64> {
        match self.table.get("seed") {
            None => Ok(1),
            Some(toml::Value::Integer(seed)) if *seed >= 0 => Ok(seed.unsigned_abs()),
            // The parser of scenarios says what is wrong with it, and where.
            Some(_) => Ok(self.resolve(&[])?.simulation.scenario.seed),
        }
    }

    /// The scenario as it is with another seed.
    ///
    /// # Errors
    /// With the line of what is wrong.
    pub fn seeded(&self, seed: u64) -> Result<Resolved> {
        let mut resolved = self.resolve(&[])?;
        resolved.simulation.scenario.seed = seed;
        resolved.fingerprint += &format!("-{seed}");
        Ok(resolved)
    }

    /// The scenario with some keys changed.
    ///
    /// # Errors
    /// When there is no such key, or what came of it is no scenario: with the line of the file where no key was changed,
    /// else with the keys.
    pub fn resolve(&self, settings: &[Setting]) -> Result<Resolved> {
        if settings.is_empty() {
            return Ok(self.parse(&self.text)?);
        }
        let with = described(settings);
        let mut table = self.table.clone();
        for (key, value) in settings {
            set(&mut table, key, (*value).clone()).with_context(|| self.file.clone())?;
        }
        let mut resolved = self.parse(&toml::to_string(&table)?).map_err(|err| {
            // Lines of the changed text mean nothing to who wrote the file.
            let line = None;
            anyhow!(FileError { line, what: format!("with {with}: {}", err.what), ..err })
        })?;
        let simulation = &mut resolved.simulation;
        let by = settings.iter().rev().find(|(key, _)| *key == "host.policy");
        let by = by.map_or(format!("policy = \"{}\"", simulation.policy), |(key, value)| {
            format!("{key}={}", shown(value))
        });
        simulation.choose(simulation.policy.clone(), &by);
        Ok(resolved)
    }

    fn parse(&self, text: &str) -> Result<Resolved, FileError> {
        let mut sum = Sum::new();
        [env!("CARGO_PKG_VERSION"), quell_sim::MODEL, text].into_iter().for_each(|it| sum.add(it));
        let named = Named { folder: &self.folder, sum: RefCell::new(sum) };
        let simulation = Simulation::parse_with(text, &self.file, &self.stem, &named)?;
        let fingerprint = format!("{:016x}", named.sum.borrow().0);
        Ok(Resolved { simulation, fingerprint })
    }
}

/// The files that a scenario file names, and a sum over what they say.
struct Named<'a> {
    folder: &'a Path,
    sum: RefCell<Sum>,
}

impl Files for Named<'_> {
    fn text(&self, name: &str) -> Result<String, FileError> {
        let path = self.folder.join(name);
        let text = match topology_of(&path) {
            Some(topology) => topology,
            None => quell_sim::file::read(&path)?,
        };
        self.sum.borrow_mut().add(&text);
        Ok(text)
    }

    fn recording(&self, name: &str, window: Window) -> Result<Recording, FileError> {
        let path = self.folder.join(name);
        let recording = crate::replayed::load(&path, window)?;
        // It was read a moment ago.
        let bytes = File::open(&path).map(|file| BufReader::new(file).bytes());
        self.sum.borrow_mut().add_bytes(bytes.into_iter().flatten().map_while(Result::ok));
        Ok(recording)
    }
}

/// The topology of a recorded host as JSON, if the file is a trace.
fn topology_of(path: &Path) -> Option<String> {
    let mut input = BufReader::new(File::open(path).ok()?);
    if !perfetto::is_perfetto(input.fill_buf().ok()?) {
        return None;
    }
    let trace = quell_trace::open(input, Options::default()).ok()?;
    serde_json::to_string(&trace.meta().topology).ok()
}

/// Changed keys, as typed.
pub(super) fn described(settings: &[Setting]) -> String {
    let typed = settings.iter().map(|(key, value)| format!("{key}={}", shown(value)));
    typed.collect::<Vec<_>>().join(" ")
}

/// FNV-1a, the same on every machine: for telling files apart, not against malice.
pub(super) struct Sum(pub u64);

impl Sum {
    pub fn new() -> Sum {
        Sum(0xcbf2_9ce4_8422_2325)
    }

    /// Texts end where they end: `ab`, `c` is not `a`, `bc`.
    pub fn add(&mut self, text: &str) {
        self.add_bytes(text.bytes());
    }

    fn add_bytes(&mut self, bytes: impl Iterator<Item = u8>) {
        for byte in bytes.chain([0xff]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_may_have_commas_of_its_own() {
        let values = |text: &str| {
            parameter(text).unwrap().1.iter().map(shown).collect::<Vec<_>>().join(" | ")
        };
        assert_eq!(values("a=1, 2"), "1 | 2");
        assert_eq!(values("a=quell,static"), "quell | static");
        assert_eq!(values("task.a.load=[[0, 1], [5, 2]],[[0, 7]]"), "[[0, 1], [5, 2]] | [[0, 7]]");
        assert_eq!(values("a=\"x,y\""), "x,y");
        assert!(parameter("rate").is_err() && parameter("=1").is_err() && parameter("a=").is_err());
        assert!(parameter("a=20,20").unwrap_err().to_string().contains("20 twice"));
    }

    #[test]
    fn fingerprint_changes_with_file_keys_and_named_files() {
        let folder = tempfile::tempdir().unwrap();
        let [file, costs] = ["x.toml", "costs.json"].map(|name| folder.path().join(name));
        let text = "version = 1\nlength_ms = 2\n[machine]\nphysical = 3\n[host]\ncosts = { mechanism = \"costs.json\" }\n\
                    [[task]]\nname = \"a\"\nmodel = \"hog\"\n";
        let report = |rows: &str| {
            std::fs::write(&costs, format!("{{\"bench\": \"mechanism\", \"rows\": [{rows}]}}"))
        };
        std::fs::write(&file, text).unwrap();
        report("").unwrap();
        let sum = |settings: &[Setting]| {
            Source::open(&file).unwrap().resolve(settings).unwrap().fingerprint
        };
        let first = sum(&[]);
        assert_eq!(first, sum(&[]));
        let length = toml::Value::Integer(3);
        assert_ne!(first, sum(&[("length_ms", &length)]));
        report(" ").unwrap();
        let second = sum(&[]);
        assert_ne!(first, second);
        std::fs::write(&file, text.replace("length_ms = 2", "length_ms = 4")).unwrap();
        assert!(![first, second].contains(&sum(&[])));
    }
}
