//! A uthread whose stack overflows is named before the process ends. All of the signal handling that this takes.

use std::io::Write;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

use crate::kthread::local::Local;

/// Bytes of the stack that the handler runs on; the kernel's frame alone may take 11 KiB with AMX.
const HANDLER_STACK: usize = 64 << 10;

/// What handled the signals before.
static BEFORE: OnceLock<[(i32, libc::sigaction); 2]> = OnceLock::new();

/// Reports overflows in uthreads from now on; the first call counts.
pub(crate) fn report() {
    BEFORE.get_or_init(|| [libc::SIGSEGV, libc::SIGBUS].map(|signal| (signal, install(signal))));
}

fn install(signal: i32) -> libc::sigaction {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zero is a valid `sigaction`; the handler touches only what a handler may.
    unsafe {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(signal, &raw const action, before.as_mut_ptr());
        before.assume_init()
    }
}

/// Gives the calling thread a stack for the handler, if it has none. It is never freed: the thread is a kthread.
pub(crate) fn watch_this_thread() {
    // SAFETY: reads this thread's setting; then names memory that stays.
    unsafe {
        let mut stack = MaybeUninit::<libc::stack_t>::zeroed().assume_init();
        if libc::sigaltstack(ptr::null(), &raw mut stack) == 0
            && stack.ss_flags & libc::SS_DISABLE == 0
        {
            return;
        }
        stack.ss_sp = Box::leak(vec![0u8; HANDLER_STACK].into_boxed_slice()).as_mut_ptr().cast();
        stack.ss_size = HANDLER_STACK;
        stack.ss_flags = 0;
        libc::sigaltstack(&raw const stack, ptr::null_mut());
    }
}

extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes it.
    let address = unsafe { (*info).si_addr() }.addr();
    Local::with(|local| {
        let Some(task) = local.and_then(Local::task) else { return };
        let bottom = task.bottom.get();
        if !(bottom.saturating_sub(crate::stack::guard_bytes())..bottom).contains(&address) {
            return;
        }
        // Formats into memory of its own: the allocator may be in use.
        let mut text = [0u8; 256];
        let mut rest = &mut text[..];
        let _ = write!(
            rest,
            "\nuthread {} ({}) has overflowed its stack\n",
            task.id,
            task.name().unwrap_or("<unnamed>")
        );
        let written = 256 - rest.len();
        // SAFETY: the text is valid for so many bytes.
        unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), written) };
        std::process::abort();
    });
    pass_on(signal);
}

/// No uthread's overflow: as if this handler were not there. The instruction faults again.
fn pass_on(signal: i32) {
    let before = BEFORE.get().into_iter().flatten().find(|(of, _)| *of == signal);
    if let Some((_, before)) = before {
        // SAFETY: it was the handler before.
        unsafe { libc::sigaction(signal, before, ptr::null_mut()) };
    } else {
        // SAFETY: the default ends the process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}
