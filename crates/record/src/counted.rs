//! How much was written.

use std::io::{self, Write};

/// Counts the bytes that go through.
pub(crate) struct Counted<W> {
    inner: W,
    bytes: u64,
}

impl<W: Write> Counted<W> {
    pub fn new(inner: W) -> Counted<W> {
        Counted { inner, bytes: 0 }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
