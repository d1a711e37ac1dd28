//! Mappings of stacks. All of it that is unsafe.

use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// `madvise`: the pages become guards, without a mapping of their own (Linux 6.13, `mm/madvise.c`).
const MADV_GUARD_INSTALL: i32 = 102;

/// Set once the kernel refused such a guard.
static NO_LIGHT_GUARDS: AtomicBool = AtomicBool::new(false);

/// Bytes of a page.
pub(crate) fn page() -> usize {
    static PAGE: OnceLock<usize> = OnceLock::new();
    *PAGE.get_or_init(rustix::param::page_size)
}

/// A mapping of stacks that lie one after the other, each with a guard page beneath.
#[derive(Debug)]
pub(super) struct Slab {
    at: *mut c_void,
    each: usize,
    count: usize,
}

// SAFETY: it only names the mapping, which belongs to no thread.
unsafe impl Send for Slab {}

impl Slab {
    /// Maps `count` stacks of so many bytes.
    ///
    /// # Errors
    /// When there is no room for them: before Linux 6.13 each guard splits the mapping in two, and `vm.max_map_count` limits how many
    /// there may be (65,530 by default: 32,753 stacks).
    pub(super) fn new(bytes: usize, count: usize) -> io::Result<Slab> {
        let each = bytes + page();
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::STACK;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe {
            mmap_anonymous(ptr::null_mut(), each * count, ProtFlags::READ | ProtFlags::WRITE, flags)
        }?;
        let slab = Slab { at, each, count };
        // A huge page would back many stacks at the first touch of one. Kernels without huge pages refuse: as well.
        // SAFETY: the range is the mapping's own.
        unsafe { libc::madvise(at, each * count, libc::MADV_NOHUGEPAGE) };
        for stack in 0..count {
            slab.guard(stack)?;
        }
        Ok(slab)
    }

    fn guard(&self, stack: usize) -> io::Result<()> {
        let at = self.at.wrapping_byte_add(stack * self.each);
        // Relaxed: at worst the kernel refuses once more.
        if !NO_LIGHT_GUARDS.load(Ordering::Relaxed) {
            // SAFETY: the page is the mapping's own, and nothing is stored in it.
            if unsafe { libc::madvise(at, page(), MADV_GUARD_INSTALL) } == 0 {
                return Ok(());
            }
            NO_LIGHT_GUARDS.store(true, Ordering::Relaxed);
        }
        // SAFETY: as above.
        Ok(unsafe { mprotect(at, page(), MprotectFlags::empty()) }?)
    }

    /// The highest addresses of its stacks.
    pub(super) fn bases(&self) -> impl DoubleEndedIterator<Item = NonZeroUsize> + use<> {
        let (at, each) = (self.at.expose_provenance(), self.each);
        (1..=self.count).filter_map(move |stack| NonZeroUsize::new(at + stack * each))
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: the pool is dropped once no uthread lives, so no stack is in use.
        let _ = unsafe { munmap(self.at, self.each * self.count) };
    }
}

/// Gives the pages of a stack that nothing runs on back to the kernel; it reads as zero then.
pub(super) fn give_pages_back(base: NonZeroUsize, bytes: usize) {
    let at = ptr::with_exposed_provenance_mut(base.get() - bytes);
    // SAFETY: the range is that of a stack that the caller alone holds, above its guard.
    unsafe { libc::madvise(at, bytes, libc::MADV_DONTNEED) };
}
