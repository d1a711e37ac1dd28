//! A handle on one thread, to signal it and no other.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::{ThreadRef, pidfd};

/// A handle on a thread that outlives its number: a signal never reaches another one that got it.
#[derive(Debug)]
pub struct ThreadHandle(OwnedFd);

impl ThreadHandle {
    /// A handle on this thread.
    ///
    /// # Errors
    /// `NotFound` where the number is another thread's by now; `EINVAL` where the kernel is older than 6.9 and has
    /// handles on processes only.
    pub fn open(thread: &ThreadRef) -> io::Result<ThreadHandle> {
        let handle = pidfd::open_thread(thread.tid)?;
        // The number is pinned now: what is read here is of the thread behind the handle, or it is gone.
        let found = ThreadRef::of(thread.tgid, thread.tid)?;
        match found == *thread {
            true => Ok(ThreadHandle(handle)),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Sends it a signal. Nothing waits for it to be taken.
    ///
    /// # Errors
    /// `ESRCH` where it is gone, `EPERM` where it may not be signalled, `EAGAIN` where too many wait.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        pidfd::signal(self.0.as_fd(), signal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_on_the_thread_that_was_meant_and_tells_when_it_is_gone() {
        let (tell, told) = std::sync::mpsc::channel();
        let (leave, left) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(ThreadRef::current().unwrap()).unwrap();
            left.recv().ok();
        });
        let it = told.recv().unwrap();
        let Ok(handle) = ThreadHandle::open(&it) else { return };
        handle.signal(0).unwrap();
        let another = ThreadRef { start_ticks: it.start_ticks + 1, ..it };
        assert!(ThreadHandle::open(&another).is_err());
        drop(leave);
        thread.join().unwrap();
        // The kernel removes a thread a moment after its last user instruction.
        while handle.signal(0).is_ok() {
            std::thread::yield_now();
        }
    }
}
