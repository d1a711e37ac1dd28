//! The mapping of a page by who writes it. All access is atomic: other threads and processes write as well.

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags};

/// A page of the writer's own, which it keeps at its length: an access past the end would be a SIGBUS.
pub(crate) struct Map {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is reached through atomics only.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps the first `bytes` bytes of a file that is at least that long.
    pub fn new(file: &File, bytes: usize) -> io::Result<Map> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Map { start, bytes })
    }

    /// The 32-bit word at this offset.
    pub fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.bytes, "within the page");
        // SAFETY: within the mapping, which is page-aligned, lives as long as `self`, and is only accessed
        // atomically; any bits are a valid word.
        unsafe { &*self.start.as_ptr().add(at).cast() }
    }

    /// The 64-bit word at this offset.
    pub fn wide(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.bytes, "within the page");
        // SAFETY: as for `word`.
        unsafe { &*self.start.as_ptr().add(at).cast() }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: nothing can refer to the mapping any more: borrows of its words borrow `self`.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
