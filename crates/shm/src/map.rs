//! The mapping of a page by who writes it. All access is atomic: other threads and processes write as well.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU32, AtomicU64};

use quell_os::{MapAccess, SharedMap};

/// A page of the writer's own, which it keeps at its length: an access past the end would be a SIGBUS.
pub(crate) struct Map(SharedMap);

impl Map {
    /// Maps the first `bytes` bytes of a file that is at least that long.
    pub fn new(file: &File, bytes: usize) -> io::Result<Map> {
        Ok(Map(SharedMap::new(file.as_fd(), 0, bytes, MapAccess::ReadWrite)?))
    }

    /// The 32-bit word at this offset.
    pub fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.0.bytes(), "within the page");
        // SAFETY: within the mapping, which is page-aligned, lives as long as `self`, and is only accessed
        // atomically; any bits are a valid word.
        unsafe { &*self.0.start().as_ptr().add(at).cast() }
    }

    /// The 64-bit word at this offset.
    pub fn wide(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.0.bytes(), "within the page");
        // SAFETY: as for `word`.
        unsafe { &*self.0.start().as_ptr().add(at).cast() }
    }
}
