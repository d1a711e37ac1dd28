//! An allocator that is not preempted.

use std::alloc::{GlobalAlloc, Layout, System};

use crate::kthread::local;

/// An allocator within which no uthread is preempted: another uthread of the same kernel thread would re-enter what the first
/// left half done. Programs that turn the asynchronous quantum on need it as their global allocator.
///
/// ```
/// use quell_runtime::preempt::Allocator;
///
/// #[global_allocator]
/// static ALLOCATOR: Allocator = Allocator::SYSTEM;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocator<A = System>(A);

impl Allocator<System> {
    /// Around the allocator of the system.
    pub const SYSTEM: Allocator<System> = Allocator(System);
}

impl<A> Allocator<A> {
    /// Around another allocator.
    pub const fn new(inner: A) -> Allocator<A> {
        Allocator(inner)
    }
}

// SAFETY: each call is passed on as it is.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Allocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _still = local::hold();
        // SAFETY: as the caller says.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let _still = local::hold();
        // SAFETY: as the caller says.
        unsafe { self.0.dealloc(at, layout) };
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let _still = local::hold();
        // SAFETY: as the caller says.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _still = local::hold();
        // SAFETY: as the caller says.
        unsafe { self.0.realloc(at, layout, size) }
    }
}
