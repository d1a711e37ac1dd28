//! A file of JSON lines, one for each thing that is done, with which a later run goes on.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The file, open at its end.
pub(super) struct Lines(File);

impl Lines {
    /// Opens the file, or begins it, and reads what it has. A last line that was cut short is taken out.
    ///
    /// # Errors
    /// When the file cannot be read, or a line of it is not one of `what`.
    pub fn open<T: DeserializeOwned>(path: &Path, what: &str) -> Result<(Lines, Vec<T>)> {
        let file = OpenOptions::new().create(true).read(true).append(true).open(path);
        let mut file = file.with_context(|| format!("write {}", path.display()))?;
        let mut text = String::new();
        file.read_to_string(&mut text).with_context(|| format!("read {}", path.display()))?;
        let whole = text.rfind('\n').map_or(0, |last| last + 1);
        if whole < text.len() {
            file.set_len(whole as u64).with_context(|| format!("mend {}", path.display()))?;
        }
        let known = text[..whole].lines().enumerate().map(|(at, line)| {
            serde_json::from_str(line).with_context(|| {
                format!("{}:{}: no line of {what} (name another file)", path.display(), at + 1)
            })
        });
        Ok((Lines(file), known.collect::<Result<_>>()?))
    }

    /// Adds a line.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn add(&mut self, done: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_string(done)?;
        line.push('\n');
        self.0.write_all(line.as_bytes()).context("write the results")
    }
}
