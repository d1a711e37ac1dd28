//! When the kernel received what a socket holds: its own time stamps, which no delay of this program changes.

use std::io;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;

use quell_model::Nanos;

use crate::clock::now;

/// Room for one control message with a time stamp, and one to spare.
const CONTROL_BYTES: usize = 128;

/// Control messages, aligned as the kernel writes them.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Has the kernel keep a time stamp with what it receives on a socket.
///
/// # Errors
/// When the kernel refuses the option.
pub(crate) fn ask_for(stream: &TcpStream) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the pointer is valid for reads of the length given, and the descriptor is open.
    let failed = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPNS,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads as [`io::Read::read`] does. Beside the count: when the last of these bytes came, as CLOCK_MONOTONIC has it.
///
/// # Errors
/// As `read`.
pub(crate) fn read(stream: &TcpStream, room: &mut [u8]) -> io::Result<(usize, Option<Nanos>)> {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut part = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    // SAFETY: a header of zeros is valid: no name, no parts, no control messages.
    let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = CONTROL_BYTES as _;
    // SAFETY: all that the header points to outlives the call and is valid for writes of the stated lengths.
    let count = unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut header, 0) };
    if count < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((count as usize, stamp(&header).map(monotonic)))
}

/// The time stamp among the control messages, as CLOCK_REALTIME has it.
fn stamp(header: &libc::msghdr) -> Option<Nanos> {
    // SAFETY: the kernel filled the header, whose control messages are still there.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !message.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return messages that lie wholly within the buffer, or null.
        let (level, kind) = unsafe { ((*message).cmsg_level, (*message).cmsg_type) };
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
            // SAFETY: a message of this type holds a timespec, which may lie unaligned.
            let time: libc::timespec =
                unsafe { libc::CMSG_DATA(message).cast::<libc::timespec>().read_unaligned() };
            return Some(Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64));
        }
        // SAFETY: as for CMSG_FIRSTHDR; `message` is one of this header.
        message = unsafe { libc::CMSG_NXTHDR(header, message) };
    }
    None
}

/// A time of CLOCK_REALTIME as CLOCK_MONOTONIC has it, by reading both now.
fn monotonic(real: Nanos) -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let passed = Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64).since(real);
    now() - passed
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::net::TcpListener;
    use std::time::Duration;

    #[test]
    fn a_stamp_is_of_the_arrival_not_of_the_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        ask_for(&server).unwrap();
        let mut room = [0; 16];
        // The kernel begins to stamp a moment after the first socket asks.
        std::thread::sleep(Duration::from_millis(50));
        let before = now();
        client.write_all(b"hello").unwrap();
        let written = now();
        std::thread::sleep(Duration::from_millis(30));
        let (count, stamp) = read(&server, &mut room).unwrap();
        assert_eq!(&room[..count], b"hello");
        // Both clocks are read one after the other: a little slack.
        let slack = Nanos::from_millis(5);
        let stamp = stamp.unwrap();
        assert!(stamp + slack >= before && stamp <= written + slack, "{before} {stamp} {written}");
    }

    #[test]
    fn the_end_of_a_connection_reads_as_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        drop(client);
        assert_eq!(read(&server, &mut [0; 4]).unwrap().0, 0);
    }
}
