//! Handles on threads and processes that outlive their numbers.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::process::{Pid, PidfdFlags};

use crate::Tid;

/// `PIDFD_THREAD` (`include/uapi/linux/pidfd.h`, kernel 6.9): one thread rather than a process.
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL as u32);

/// A handle on one thread.
///
/// # Errors
/// `ESRCH` for no such thread, `EINVAL` where the kernel is older than 6.9, `EMFILE` for too many.
pub fn open_thread(tid: Tid) -> io::Result<OwnedFd> {
    open(tid, PIDFD_THREAD)
}

/// A handle on a process.
///
/// # Errors
/// `ESRCH` for no such process, `EMFILE` for too many.
pub fn open_process(tgid: Tid) -> io::Result<OwnedFd> {
    open(tgid, PidfdFlags::empty())
}

fn open(tid: Tid, flags: PidfdFlags) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(tid.0).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    Ok(rustix::process::pidfd_open(pid, flags)?)
}

/// Whether the thread or process behind a handle is still there: signal 0, which checks and sends nothing.
///
/// # Errors
/// Anything but `ESRCH`.
pub fn is_alive(handle: BorrowedFd<'_>) -> io::Result<bool> {
    match signal(handle, 0) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Sends a signal to the thread or process behind a handle, and to no other.
///
/// # Errors
/// Those of `pidfd_send_signal(2)`.
pub fn signal(handle: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: no pointer but null is passed, and the descriptor is borrowed for the call.
    let status = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            handle.as_raw_fd(),
            signal,
            ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The inode of a handle: unique for a thread or process until the next boot since kernel 6.9, where
/// handles have a file system of their own; `None` before.
pub fn inode(handle: BorrowedFd<'_>) -> Option<u64> {
    /// `PID_FS_MAGIC` of `include/uapi/linux/magic.h`.
    const PID_FS_MAGIC: i64 = 0x5049_4446;
    let on_pidfs = rustix::fs::fstatfs(handle).ok()?.f_type == PID_FS_MAGIC;
    on_pidfs.then(|| rustix::fs::fstat(handle).ok().map(|stat| stat.st_ino))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::sync::mpsc;

    #[test]
    fn a_handle_tells_when_its_thread_is_gone() {
        let (tell, told) = mpsc::channel();
        let (leave, left) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(Tid(rustix::thread::gettid().as_raw_nonzero().get())).unwrap();
            left.recv().ok();
        });
        let tid = told.recv().unwrap();
        let Ok(handle) = open_thread(tid) else { return };
        assert!(is_alive(handle.as_fd()).unwrap());
        let again = open_thread(tid).unwrap();
        assert_eq!(inode(handle.as_fd()), inode(again.as_fd()));
        drop((again, leave));
        thread.join().unwrap();
        // The kernel removes a thread a moment after its last user instruction.
        while is_alive(handle.as_fd()).unwrap() {
            std::thread::yield_now();
        }
    }
}
