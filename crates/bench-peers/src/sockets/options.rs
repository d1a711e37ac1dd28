//! Socket options and messages that `rustix` does not have.

use std::io;
use std::mem::{MaybeUninit, size_of, size_of_val};
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;

/// Makes `MSG_ZEROCOPY` mean something.
pub fn set_zero_copy(stream: &TcpStream) -> io::Result<()> {
    set(stream, libc::SO_ZEROCOPY, 1)
}

/// The priority by which queueing disciplines order a socket's packets.
pub fn set_priority(stream: &TcpStream, priority: i32) -> io::Result<()> {
    set(stream, libc::SO_PRIORITY, priority)
}

/// The cores that the calling thread may use, as io_uring takes them.
pub fn own_cores() -> io::Result<libc::cpu_set_t> {
    // SAFETY: all bytes zero is a valid, empty set.
    let mut set: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the kernel writes at most as many bytes as are passed, all of them to `set`.
    let result = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    if result == 0 { Ok(set) } else { Err(io::Error::last_os_error()) }
}

fn set(stream: &TcpStream, name: i32, value: i32) -> io::Result<()> {
    let (fd, size) = (stream.as_raw_fd(), size_of::<i32>() as libc::socklen_t);
    // SAFETY: the kernel only reads `value`, which has the size that is passed.
    let result =
        unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, name, (&raw const value).cast(), size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Writes without a copy that are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// How many.
    pub writes: u64,
    /// The kernel copied their bytes nevertheless.
    pub is_copied: bool,
}

/// Room for a message of the error queue: its head, an error and an address.
#[repr(C, align(8))]
struct Control([u8; 128]);

/// The next message of a socket's error queue.
///
/// # Errors
/// When the socket has failed, or the message is another one.
pub fn zero_copy_completion(stream: &TcpStream) -> io::Result<Option<Completion>> {
    let mut control = Control([0; 128]);
    // SAFETY: all bytes zero is a valid message head: no name, no data, no control memory.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control.0);
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the kernel writes to `message` and the control memory, both of which live until it returns.
    if unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, flags) } < 0 {
        let error = io::Error::last_os_error();
        let is_empty = error.kind() == io::ErrorKind::WouldBlock;
        return if is_empty { Ok(None) } else { Err(error) };
    }
    let length = message.msg_controllen.min(control.0.len());
    completion(&control.0[..length]).map(Some)
}

/// Reads a control message: its length (8 bytes), level and type (4 each), then `struct sock_extended_err`.
fn completion(control: &[u8]) -> io::Result<Completion> {
    let word = |at: usize| Some(u32::from_ne_bytes(control.get(at..at + 4)?.try_into().ok()?));
    let read = || {
        let head = size_of::<libc::cmsghdr>();
        let (level, kind) = (word(head - 8)?, word(head - 4)?);
        let is_error = (level, kind) == (libc::SOL_IP as u32, libc::IP_RECVERR as u32);
        let (errno, origin) = (word(head)?, *control.get(head + 4)?);
        let is_completion = errno == 0 && origin == ORIGIN_ZEROCOPY;
        let (first, last) = (word(head + 8)?, word(head + 12)?);
        let writes = u64::from(last.wrapping_sub(first)) + 1;
        let is_copied = *control.get(head + 6)? & COPIED != 0;
        (is_error && is_completion).then_some(Completion { writes, is_copied })
    };
    read().ok_or_else(|| io::Error::other("an unknown message in the socket's error queue"))
}

/// `SO_EE_ORIGIN_ZEROCOPY` and `SO_EE_CODE_ZEROCOPY_COPIED` of `linux/errqueue.h`.
const ORIGIN_ZEROCOPY: u8 = 5;
const COPIED: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn message(origin: u8, code: u8, first: u32, last: u32) -> Vec<u8> {
        let mut bytes = 32_u64.to_ne_bytes().to_vec();
        bytes.extend((libc::SOL_IP as u32).to_ne_bytes());
        bytes.extend((libc::IP_RECVERR as u32).to_ne_bytes());
        bytes.extend([0, 0, 0, 0, origin, 0, code, 0]);
        bytes.extend(first.to_ne_bytes());
        bytes.extend(last.to_ne_bytes());
        bytes
    }

    #[test]
    fn completion_counts_a_range_of_writes() {
        let origin = ORIGIN_ZEROCOPY;
        let done = completion(&message(origin, 1, 3, 6)).expect("a completion");
        assert_eq!(done, Completion { writes: 4, is_copied: true });
        let wrapped = completion(&message(origin, 0, u32::MAX, 0)).expect("a completion");
        assert_eq!(wrapped, Completion { writes: 2, is_copied: false });
    }

    #[test]
    fn other_messages_and_short_ones_are_refused() {
        assert!(completion(&message(2, 0, 0, 0)).is_err());
        assert!(completion(&message(ORIGIN_ZEROCOPY, 0, 0, 0)[..20]).is_err());
    }
}
