//! Lines of a text, one at a time and of bounded length.

use std::io::{self, BufRead, Read};

use crate::stream::ReadError;

/// Bytes of a line at most. The widest format has 20 a core.
const LINE_MAX: usize = 64 << 10;

#[derive(Debug)]
pub struct Lines<R> {
    input: R,
    /// Lines read so far.
    number: u64,
    bytes: u64,
    line: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    pub fn new(input: R) -> Lines<R> {
        Lines { input, number: 0, bytes: 0, line: Vec::new() }
    }

    /// Reads the next line; `false` at the end.
    pub fn advance(&mut self) -> Result<bool, ReadError> {
        self.line.clear();
        let bounded = (&mut self.input).take(LINE_MAX as u64 + 1).read_until(b'\n', &mut self.line);
        let read =
            bounded.map_err(|source: io::Error| ReadError::Io { offset: self.bytes, source })?;
        self.bytes += read as u64;
        self.number += u64::from(read > 0);
        if read > LINE_MAX {
            return Err(self.wrong(format!("longer than {LINE_MAX} bytes, as no trace's line is")));
        }
        Ok(read > 0)
    }

    /// The line without its end. What is no UTF-8 becomes a replacement character, as in names that a program
    /// gave itself.
    pub fn line(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(self.line.trim_ascii_end())
    }

    /// An error of this line.
    pub fn wrong(&self, what: String) -> ReadError {
        ReadError::Line { line: self.number, what }
    }
}
