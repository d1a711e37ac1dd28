//! Traffic as a file tells it, for hosts without monitors and for tests: whoever can measure it writes it there.
//!
//! ```text
//! # bytes so far, from any fixed time on
//! total 73014444032
//! core 2 9663676416
//! core 3 12884901888
//! ```
//!
//! `total` and `core N` in any order, each at most once; what is not named is not known. Counters only grow. The
//! file is written anew for each reading, best beside and then renamed over the old one, so that no
//! half of it is ever read. It counts as a new reading when it was written to, even with the same numbers.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use quell_model::{Bytes, CORES_MAX};

use super::{Traffic, read_bounded};
use quell_os::clock;

/// The longest file that is read: a line for each of the most cores fits.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// A file that is read again and again.
#[derive(Debug)]
pub struct Scripted {
    path: PathBuf,
    /// Device, inode, time of change and length of what was read last.
    written: Option<[i64; 5]>,
    last: Traffic,
}

impl Scripted {
    /// The file at this path, which need not be there yet.
    pub fn new(path: &Path) -> Scripted {
        Scripted { path: path.to_owned(), written: None, last: Traffic::default() }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file.
    ///
    /// # Errors
    /// When it is not there, or is none of the format.
    pub fn read(&mut self, into: &mut Traffic) -> io::Result<()> {
        let found = fs::metadata(&self.path)?;
        let written = [
            found.dev() as i64,
            found.ino() as i64,
            found.mtime(),
            found.mtime_nsec(),
            found.len() as i64,
        ];
        let text = read_bounded(&self.path, FILE_BYTES_MAX)?;
        let mut new = Traffic { by_core: vec![None; into.by_core.len()], ..Traffic::default() };
        parse(&text, &mut new).map_err(|what| io::Error::new(io::ErrorKind::InvalidData, what))?;
        // The kernel's time of change has some milliseconds, so two writes may share one.
        let same = (&new.total, &new.by_core) == (&self.last.total, &self.last.by_core);
        new.at = if same && self.written == Some(written) { self.last.at } else { clock::now() };
        self.written = Some(written);
        into.clone_from(&new);
        self.last = new;
        Ok(())
    }
}

/// Reads a whole file into `into`, whose `by_core` bounds the cores that are kept.
///
/// # Errors
/// A sentence with the line.
pub fn parse(text: &str, into: &mut Traffic) -> Result<(), String> {
    let mut seen = vec![false; CORES_MAX];
    for (at, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().take(4).collect();
        let wrong = |what: &str| Err(format!("line {}: {what}", at + 1));
        match words[..] {
            [] => {}
            [first, ..] if first.starts_with('#') => {}
            ["total", bytes] => match bytes.parse() {
                Ok(_) if into.total.is_some() => return wrong("a second total"),
                Ok(bytes) => into.total = Some(Bytes(bytes)),
                Err(_) => return wrong("no number of bytes"),
            },
            ["core", core, bytes] => match (core.parse::<usize>(), bytes.parse()) {
                (Ok(core), Ok(bytes)) if core < CORES_MAX => {
                    if std::mem::replace(&mut seen[core], true) {
                        return wrong("a core that came before");
                    }
                    // A core that this host does not have is nobody's.
                    if let Some(part) = into.by_core.get_mut(core) {
                        *part = Some(Bytes(bytes));
                    }
                }
                _ => return wrong("no core and number of bytes"),
            },
            _ => return wrong("neither `total BYTES` nor `core N BYTES`"),
        }
    }
    match into.total {
        Some(_) => Ok(()),
        None => Err("it has no total".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn blank() -> Traffic {
        Traffic { by_core: vec![None; 4], ..Traffic::default() }
    }

    #[test]
    fn a_file_is_read_and_read_again_when_it_was_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("traffic");
        let (mut source, mut seen) = (Scripted::new(&path), blank());
        assert!(source.read(&mut seen).is_err(), "not there yet");
        fs::write(&path, "# now\ntotal 100\ncore 2 40\n\ncore 900 1\n").unwrap();
        source.read(&mut seen).unwrap();
        assert_eq!(seen.total, Some(Bytes(100)));
        assert_eq!(seen.by_core, [None, None, Some(Bytes(40)), None]);
        let first = seen.at;
        source.read(&mut seen).unwrap();
        assert_eq!(seen.at, first, "the same reading");
        let beside = dir.path().join("new");
        fs::write(&beside, "total 100\ncore 2 40\n").unwrap();
        fs::rename(&beside, &path).unwrap();
        source.read(&mut seen).unwrap();
        assert!(seen.at > first, "the same numbers, read anew");
        let kept = seen.clone();
        fs::write(&path, "total 2\ncore 1\n").unwrap();
        let wrong = source.read(&mut seen).unwrap_err();
        assert!(wrong.to_string().contains("line 2"), "{wrong}");
        assert_eq!(seen, kept);
    }

    #[test]
    fn what_is_no_reading_is_refused_with_its_line() {
        for (text, why) in [
            ("", "no total"),
            ("core 1 5\n", "no total"),
            ("total x\n", "line 1"),
            ("total -1\n", "line 1"),
            ("total 1\ntotal 2\n", "line 2: a second total"),
            ("total 1\ncore 1 5\ncore 1 6\n", "line 3: a core that came before"),
            ("total 1\ncore 99999 5\n", "line 2"),
            ("total 1 2\n", "neither"),
            ("bytes 1\n", "neither"),
        ] {
            let wrong = parse(text, &mut blank()).unwrap_err();
            assert!(wrong.contains(why), "{text:?}: {wrong}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("traffic");
        fs::write(&path, "# ".repeat(FILE_BYTES_MAX as usize)).unwrap();
        assert!(Scripted::new(&path).read(&mut blank()).is_err(), "too long");
        assert!(Scripted::new(dir.path()).read(&mut blank()).is_err(), "a directory");
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_fail_otherwise_than_by_refusing(
            text in "(total|core|[0-9]{1,21}|-|#|\\PC{0,3}| |\n){0,60}",
        ) {
            let mut seen = blank();
            if parse(&text, &mut seen).is_ok() {
                prop_assert!(seen.total.is_some());
            }
        }
    }
}
