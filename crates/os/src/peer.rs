//! Who is at the other end of a Unix socket.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// Effective user and process of who connected, as of then. The process is 0 where it is of no number here:
/// in another pid namespace.
///
/// # Errors
/// Those of `getsockopt(2)`.
pub fn credentials(socket: BorrowedFd<'_>) -> io::Result<(u32, i32)> {
    // SAFETY: `ucred` is three numbers, of which all values are valid.
    let mut them: libc::ucred = unsafe { zeroed() };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: both pointers are to locals that outlive the call, and `length` is the size of the first.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            ptr::from_mut(&mut them).cast(),
            &mut length,
        )
    };
    if status != 0 || length as usize != size_of::<libc::ucred>() {
        return Err(io::Error::last_os_error());
    }
    Ok((them.uid, them.pid))
}
