//! A BPF array, mapped.

use std::io;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::abi::Shared;

/// The elements of a BPF array, shared with the kernel.
pub(super) struct Table<T: Shared> {
    start: NonNull<T>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, and `Shared` data consists of atomics.
unsafe impl<T: Shared> Send for Table<T> {}
// SAFETY: as above.
unsafe impl<T: Shared> Sync for Table<T> {}

impl<T: Shared> Table<T> {
    /// Maps a BPF array with `len` elements of this type, which the caller has checked. The kernel refuses
    /// a mapping longer than the array, and the array stays as long as the mapping.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    pub fn map(fd: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<Table<T>> {
        const { assert!(size_of::<T>() > 0 && size_of::<T>().is_multiple_of(8)) };
        let access = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe {
            mmap(std::ptr::null_mut(), bytes::<T>(len), access, MapFlags::SHARED, fd, 0)?
        };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Table { start, len })
    }
}

fn bytes<T>(len: usize) -> usize {
    (len * size_of::<T>()).next_multiple_of(rustix::param::page_size())
}

impl<T: Shared> Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping is page-aligned, holds `len` elements and lives as long as `self`; any bit
        // pattern is a valid `T`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Shared> Drop for Table<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `map` with this length, and nothing borrows from it any more.
        // An error leaves it mapped, which harms nobody.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), bytes::<T>(self.len)) };
    }
}
