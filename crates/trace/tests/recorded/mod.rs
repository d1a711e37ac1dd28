//! The recordings in `crates/trace/tests/recordings`, and the reports that are expected of them.
//!
//! Tests of several crates include this file by its path.
#![allow(clippy::unwrap_used, dead_code, reason = "tests may panic, and not each uses everything")]

use std::fs::{self, File};
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use quell_trace::import::Options;
use quell_trace::perfetto::Reader;
use quell_trace::stream::Source;
use serde::Serialize;

/// Set to 1, it makes [`expect`] write the expected reports instead of comparing with them.
const UPDATE: &str = "QUELL_UPDATE_EXPECTED";

/// A compressed trace: a Perfetto file or a text of another program.
pub struct Recording {
    /// The file's name without its suffixes.
    pub name: String,
    path: PathBuf,
}

/// Where the recordings are.
pub fn directory() -> PathBuf {
    // The same from each crate that includes this file.
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/recordings")
}

/// All recordings, ordered by name.
pub fn all() -> Vec<Recording> {
    let files = fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path());
    let compressed = files.filter(|path| path.extension().is_some_and(|suffix| suffix == "gz"));
    let mut recordings: Vec<Recording> = compressed
        .map(|path| {
            let file = path.file_name().unwrap().to_str().unwrap();
            Recording { name: file.split('.').next().unwrap().to_owned(), path }
        })
        .collect();
    recordings.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(!recordings.is_empty(), "no recordings in {}", directory().display());
    recordings
}

/// The recording of this name.
pub fn named(name: &str) -> Recording {
    let found = all().into_iter().find(|recording| recording.name == name);
    found.unwrap_or_else(|| panic!("no recording {name} in {}", directory().display()))
}

impl Recording {
    /// Reads it as every command reads a trace.
    pub fn open(&self) -> Box<dyn Source> {
        let file = BufReader::new(GzDecoder::new(File::open(&self.path).unwrap()));
        quell_trace::open(file, Options::default()).unwrap()
    }

    /// The trace without compression.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        GzDecoder::new(File::open(&self.path).unwrap()).read_to_end(&mut bytes).unwrap();
        bytes
    }

    /// Bytes of the compressed file.
    pub fn compressed_size(&self) -> u64 {
        fs::metadata(&self.path).unwrap().len()
    }
}

/// Compares a report of each recording with the file NAME.KIND.json, byte for byte.
///
/// # Panics
/// At the end, if any differs; names the first line that does in each of them.
pub fn expect<T: Serialize>(kind: &str, mut report: impl FnMut(&Recording) -> T) {
    let update = is_update();
    let mut differences = Vec::new();
    for recording in all() {
        let found = serde_json::to_string_pretty(&report(&recording)).unwrap() + "\n";
        let path = directory().join(format!("{}.{kind}.json", recording.name));
        if update {
            fs::write(&path, &found).unwrap();
            continue;
        }
        let expected = fs::read_to_string(&path).unwrap_or_default();
        if expected != found {
            differences.push(format!(
                "{}: {}",
                path.display(),
                first_difference(&expected, &found)
            ));
        }
    }
    assert!(
        differences.is_empty(),
        "{}\nA change that is meant: {UPDATE}=1 writes these files; the commit explains each difference",
        differences.join("\n")
    );
}

/// Compares a recording with the Perfetto trace that a test made.
///
/// # Panics
/// If any event differs; names the first.
pub fn expect_trace(name: &str, made: &[u8]) {
    let path = directory().join(format!("{name}.perfetto.gz"));
    if is_update() {
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        packer.write_all(made).unwrap();
        fs::write(path, packer.finish().unwrap()).unwrap();
        return;
    }
    let mut made = Reader::new(made).unwrap();
    let recorded = named(name).open();
    assert_eq!(recorded.meta(), made.meta(), "{name}");
    for (number, event) in recorded.enumerate() {
        let made = made.next().map(Result::unwrap);
        assert_eq!(Some(event.unwrap()), made, "{name}: event {number}");
    }
    assert!(made.next().is_none(), "{name}: events are missing at the end");
}

fn is_update() -> bool {
    std::env::var_os(UPDATE).is_some_and(|value| value == "1")
}

fn first_difference(expected: &str, found: &str) -> String {
    let (mut expected, mut found) = (expected.lines(), found.lines());
    let mut line = 1;
    loop {
        let (wanted, got) = (expected.next(), found.next());
        if wanted != got || wanted.is_none() {
            let show = |line: Option<&str>| {
                line.map_or("the end".to_owned(), |line| format!("`{}`", line.trim()))
            };
            return format!("line {line}: expected {}, found {}", show(wanted), show(got));
        }
        line += 1;
    }
}
