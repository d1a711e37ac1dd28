//! Memory that is shared with another process or with the kernel, mapped.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags};

/// How a file is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapAccess {
    /// Read only.
    Read,
    /// Read and written.
    ReadWrite,
    /// Read and written, and all pages present from the start: no access faults later.
    Populated,
}

/// A mapping of a file, shared with everything else that maps it. Other threads and processes may write at any time, so it
/// is to be accessed by atomics only. It is unmapped when dropped.
#[derive(Debug)]
pub struct SharedMap {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; this type gives access to an address alone.
unsafe impl Send for SharedMap {}
// SAFETY: as above.
unsafe impl Sync for SharedMap {}

impl SharedMap {
    /// Maps `bytes` bytes of a file from `offset` on, a multiple of the page size. The file has to be that long and to stay so:
    /// an access past its end raises SIGBUS.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    pub fn new(
        file: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        access: MapAccess,
    ) -> io::Result<SharedMap> {
        let (protection, flags) = match access {
            MapAccess::Read => (ProtFlags::READ, MapFlags::SHARED),
            MapAccess::ReadWrite => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED),
            MapAccess::Populated => {
                (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE)
            }
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, flags, file, offset)?
        };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(SharedMap { start, bytes })
    }

    /// The first byte, aligned to a page; valid as long as `self`.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; what refers to the mapping borrows `self`.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// A file's content as shared words. All access is atomic, so that another process may write at any time.
#[derive(Debug)]
pub struct SharedWords {
    map: SharedMap,
    words: usize,
}

impl SharedWords {
    /// Maps the first `words` words of the file, which must be at least that long and stay so: reading past
    /// a file's end raises SIGBUS.
    ///
    /// # Errors
    /// `InvalidData` for a file that is too short, else those of `mmap(2)`.
    pub fn map(file: &File, words: usize) -> io::Result<SharedWords> {
        SharedWords::map_at(file, 0, words, MapAccess::ReadWrite)
    }

    /// As [`SharedWords::map`], from `offset` on, a multiple of the page size.
    ///
    /// # Errors
    /// As [`SharedWords::map`].
    pub fn map_at(
        file: &File,
        offset: u64,
        words: usize,
        access: MapAccess,
    ) -> io::Result<SharedWords> {
        let end = (words as u64).checked_mul(8).and_then(|bytes| bytes.checked_add(offset));
        if words == 0 || end.is_none_or(|end| file.metadata().map_or(0, |meta| meta.len()) < end) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is too short"));
        }
        let map = SharedMap::new(file.as_fd(), offset, words * 8, access)?;
        Ok(SharedWords { map, words })
    }
}

impl Deref for SharedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, `words` long, lives as long as `self`, and any bit pattern
        // is a valid word.
        unsafe { std::slice::from_raw_parts(self.map.start().as_ptr().cast(), self.words) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn words_are_shared_between_mappings() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let all = SharedWords::map(&file, 1024).unwrap();
        let second_page = SharedWords::map_at(&file, 4096, 512, MapAccess::Populated).unwrap();
        second_page[511].store(7, Relaxed);
        assert_eq!(all[1023].load(Relaxed), 7);
    }

    #[test]
    fn file_shorter_than_the_mapping_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        for (offset, words) in [(0, 0), (0, 1025), (4096, 513), (u64::MAX, 1)] {
            let refused = SharedWords::map_at(&file, offset, words, MapAccess::Read).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData, "{offset} {words}");
        }
    }
}
