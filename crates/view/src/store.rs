//! Packed pieces of a picture, in a file without a name: a recording may be larger than memory.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use flate2::Compression;
use flate2::write::DeflateEncoder;
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create};

/// Blobs by number, each raw deflate.
pub(crate) struct Store {
    file: File,
    blobs: Vec<(u64, usize)>,
    end: u64,
}

impl Store {
    pub fn new() -> io::Result<Store> {
        Ok(Store { file: unnamed_file()?, blobs: Vec::new(), end: 0 })
    }

    /// Packs and keeps a blob, and tells its number.
    pub fn add(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut packer = DeflateEncoder::new(Vec::new(), Compression::default());
        packer.write_all(bytes)?;
        let packed = packer.finish()?;
        self.file.write_all_at(&packed, self.end)?;
        self.blobs.push((self.end, packed.len()));
        self.end += packed.len() as u64;
        Ok(self.blobs.len() - 1)
    }

    /// The packed blob of this number.
    pub fn read(&self, number: usize) -> io::Result<Option<Vec<u8>>> {
        let Some(&(at, length)) = self.blobs.get(number) else { return Ok(None) };
        let mut packed = vec![0; length];
        self.file.read_exact_at(&mut packed, at)?;
        Ok(Some(packed))
    }
}

/// A file without a name in the directory of temporary files, or in memory where its file system has none.
fn unnamed_file() -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let opened = rustix::fs::open(std::env::temp_dir(), flags, Mode::RUSR | Mode::WUSR);
    let opened = opened.or_else(|_| memfd_create(c"quell-view", MemfdFlags::CLOEXEC));
    Ok(File::from(opened?))
}
