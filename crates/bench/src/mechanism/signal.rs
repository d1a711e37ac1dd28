//! A signal whose handler stamps the clock.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering::*};

use quell_load::now;
use quell_model::Nanos;

/// When the handler was last entered; zero before. `Release` in the handler pairs with `Acquire` in
/// [`StampingSignal::stamp`].
static STAMP: AtomicU64 = AtomicU64::new(0);

extern "C" fn stamp(_: libc::c_int) {
    STAMP.store(now().0, Release);
}

/// The handler, installed until this is dropped. There is one stamp, so one at a time.
pub struct StampingSignal {
    number: libc::c_int,
    before: libc::sigaction,
}

impl StampingSignal {
    /// Installs the handler on a real-time signal that nothing else here uses.
    ///
    /// # Errors
    /// The kernel's.
    pub fn install() -> io::Result<StampingSignal> {
        let number = libc::SIGRTMIN() + 5;
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: all zeroes is a valid sigaction; both pointers are valid for the call, and the
        // handler does only what is async-signal-safe: it reads the clock and stores to an atomic.
        let done = unsafe {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
            action.sa_sigaction = stamp as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(number, &action, before.as_mut_ptr())
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: zeroed before, and filled by the successful call.
        Ok(StampingSignal { number, before: unsafe { before.assume_init() } })
    }

    /// Forgets the last stamp.
    pub fn arm(&self) {
        STAMP.store(0, Release);
    }

    /// Sends the signal to a thread of this process.
    ///
    /// # Errors
    /// The kernel's: no such thread.
    pub fn send(&self, tid: i32) -> io::Result<()> {
        // SAFETY: the call takes numbers only.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, self.number) };
        if sent == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// When the handler was entered since [`StampingSignal::arm`].
    pub fn stamp(&self) -> Option<Nanos> {
        match STAMP.load(Acquire) {
            0 => None,
            at => Some(Nanos(at)),
        }
    }
}

impl Drop for StampingSignal {
    fn drop(&mut self) {
        // SAFETY: `before` is what the kernel gave for this signal.
        unsafe { libc::sigaction(self.number, &self.before, std::ptr::null_mut()) };
    }
}
