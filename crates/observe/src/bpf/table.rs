//! A BPF array, mapped.

use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::BorrowedFd;

use quell_os::{MapAccess, SharedMap};

use super::abi::Shared;

/// The elements of a BPF array, shared with the kernel.
pub(super) struct Table<T: Shared> {
    map: SharedMap,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Shared> Table<T> {
    /// Maps a BPF array with `len` elements of this type, which the caller has checked. The kernel refuses
    /// a mapping longer than the array, and the array stays as long as the mapping.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    pub fn map(fd: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<Table<T>> {
        const { assert!(size_of::<T>() > 0 && size_of::<T>().is_multiple_of(8)) };
        let access = if writable { MapAccess::ReadWrite } else { MapAccess::Read };
        let map = SharedMap::new(fd, 0, bytes::<T>(len), access)?;
        Ok(Table { map, len, elements: PhantomData })
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
        unsafe { std::slice::from_raw_parts(self.map.start().as_ptr().cast(), self.len) }
    }
}
