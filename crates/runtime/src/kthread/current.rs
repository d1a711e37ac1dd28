//! The word in which a thread has its kthread.
//!
//! A compiler believes that a function stays on its thread, so it may keep the address of a thread-local in a register. A uthread
//! may be on another thread after it left its stack: what reads the word must find its address anew each time. On x86_64 two
//! instructions do so, which the compiler neither merges nor moves over others like them; elsewhere a function that is not inlined.

use super::local::Local;

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
mod word {
    use super::Local;

    // The word, in the block of thread-locals that each thread has from its start. Named by the version, as a program may have two.
    macro_rules! name {
        () => {
            concat!(
                "quell_runtime_kthread_",
                env!("CARGO_PKG_VERSION_MAJOR"),
                "_",
                env!("CARGO_PKG_VERSION_MINOR"),
                "_",
                env!("CARGO_PKG_VERSION_PATCH")
            )
        };
    }

    core::arch::global_asm!(
        ".pushsection .tbss.quell_runtime, \"awT\", @nobits",
        ".balign 8",
        concat!(".globl ", name!()),
        concat!(".hidden ", name!()),
        concat!(".type ", name!(), ", @object"),
        concat!(".size ", name!(), ", 8"),
        concat!(name!(), ":"),
        ".zero 8",
        ".popsection",
    );

    #[inline(always)]
    pub(super) fn get() -> *const Local {
        let local;
        // SAFETY: reads the calling thread's word. Not `pure`: it is read wherever this stands.
        unsafe {
            core::arch::asm!(
                concat!("mov {local}, qword ptr [rip + ", name!(), "@GOTTPOFF]"),
                "mov {local}, qword ptr fs:[{local}]",
                local = out(reg) local,
                options(nostack, preserves_flags, readonly),
            );
        }
        local
    }

    pub(super) fn set(local: *const Local) {
        // SAFETY: writes the calling thread's word, which nothing else is told of.
        unsafe {
            core::arch::asm!(
                concat!("mov {at}, qword ptr [rip + ", name!(), "@GOTTPOFF]"),
                "mov qword ptr fs:[{at}], {local}",
                at = out(reg) _,
                local = in(reg) local,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
mod word {
    use std::cell::Cell;
    use std::ptr;

    use super::Local;

    thread_local! {
        static LOCAL: Cell<*const Local> = const { Cell::new(ptr::null()) };
    }

    #[inline(never)]
    pub(super) fn get() -> *const Local {
        LOCAL.with(Cell::get)
    }

    pub(super) fn set(local: *const Local) {
        LOCAL.with(|cell| cell.set(local));
    }
}

/// The kthread that runs this; null on an ordinary thread.
#[inline(always)]
pub(super) fn get() -> *const Local {
    word::get()
}

/// Makes this the kthread that runs here, or none.
pub(super) fn set(local: *const Local) {
    word::set(local);
}
