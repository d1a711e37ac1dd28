//! A file of words that two programs share.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use quell_os::{MapAccess, SharedWords};

/// A file, mapped as words. Whoever made it keeps it at full length.
pub struct Words(SharedWords);

impl Words {
    /// Makes a file of so many words, all 0, and maps it.
    ///
    /// # Errors
    /// When it is there already, or cannot be made or mapped.
    pub fn create(path: &Path, count: usize) -> io::Result<Words> {
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        file.set_len(8 * count as u64)?;
        Words::map(&file, 0, count)
    }

    /// Maps a file that somebody made.
    ///
    /// # Errors
    /// When it cannot be mapped, or is not made of words.
    pub fn open(path: &Path) -> io::Result<Words> {
        Words::open_at(path, 0)
    }

    /// Maps a file that somebody made, from this byte on, where a page begins.
    ///
    /// # Errors
    /// As [`Words::open`].
    pub fn open_at(path: &Path, first: usize) -> io::Result<Words> {
        let file = File::options().read(true).write(true).open(path)?;
        let length = file.metadata()?.len().saturating_sub(first as u64);
        if length == 0 || length % 8 != 0 || length > 1 << 30 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a file of words"));
        }
        Words::map(&file, first, (length / 8) as usize)
    }

    fn map(file: &File, first: usize, count: usize) -> io::Result<Words> {
        // All pages are present from the start: nothing that is measured faults.
        SharedWords::map_at(file, first as u64, count, MapAccess::Populated).map(Words)
    }
}

impl std::ops::Deref for Words {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn what_one_side_writes_the_other_reads() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("words");
        let one = Words::create(&path, 1_024).unwrap();
        let other = Words::open(&path).unwrap();
        one[1_023].store(7, Relaxed);
        assert_eq!((other.len(), other[1_023].load(Relaxed)), (1_024, 7));
        let second_page = Words::open_at(&path, 4_096).unwrap();
        assert_eq!((second_page.len(), second_page[511].load(Relaxed)), (512, 7));
        assert!(Words::open_at(&path, 1_024 * 8).is_err(), "nothing is left there");
        assert!(Words::create(&path, 1).is_err(), "it is there already");
        std::fs::write(directory.path().join("odd"), "odd").unwrap();
        assert!(Words::open(&directory.path().join("odd")).is_err());
    }
}
