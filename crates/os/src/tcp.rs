//! What the kernel knows of the path of a TCP connection, and how fast it may send on it.

use std::io;
use std::mem::{offset_of, size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// A part of `TCP_INFO` (`include/uapi/linux/tcp.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpPath {
    /// Smoothed round-trip time in microseconds.
    pub rtt_us: u32,
    /// The shortest of the last minutes; `None` before the first.
    pub min_rtt_us: Option<u32>,
    /// Bytes that have arrived so far.
    pub acked_bytes: u64,
    /// Bytes that the program has written and the kernel has not sent.
    pub unsent_bytes: u32,
}

/// Asks for the path of a connection.
///
/// # Errors
/// Those of `getsockopt(2)`, and [`io::ErrorKind::Unsupported`] where the kernel does not know all of it (before 4.6).
pub fn path(socket: BorrowedFd<'_>) -> io::Result<TcpPath> {
    // SAFETY: `tcp_info` is numbers, of which all values are valid.
    let mut info: libc::tcp_info = unsafe { zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: both pointers are to locals that outlive the call, and `length` is the size of the first.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            ptr::from_mut(&mut info).cast(),
            &mut length,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    // The kernel fills what it has: each version has appended fields.
    if (length as usize) < offset_of!(libc::tcp_info, tcpi_min_rtt) + size_of::<u32>() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(TcpPath {
        rtt_us: info.tcpi_rtt,
        min_rtt_us: Some(info.tcpi_min_rtt).filter(|us| *us != u32::MAX),
        acked_bytes: info.tcpi_bytes_acked,
        unsent_bytes: info.tcpi_notsent_bytes,
    })
}

/// Has a socket send at most so many bytes per second, evenly; without a limit if `None`. TCP paces by itself where the
/// network interface has no `fq` (`net/ipv4/tcp_output.c`).
///
/// # Errors
/// Those of `setsockopt(2)`.
pub fn set_max_pacing_rate(
    socket: BorrowedFd<'_>,
    bytes_per_second: Option<u64>,
) -> io::Result<()> {
    let rate = bytes_per_second.unwrap_or(u64::MAX);
    // SAFETY: the pointer is to a local of the given size that outlives the call.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            ptr::from_ref(&rate).cast(),
            size_of::<u64>() as libc::socklen_t,
        )
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn connection_that_has_carried_something_knows_its_path() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut client = TcpStream::connect(listener.local_addr().expect("bound")).expect("up");
        let (mut server, _) = listener.accept().expect("a connection");
        client.write_all(&[7; 4_096]).expect("room");
        server.read_exact(&mut [0; 4_096]).expect("it arrives");
        server.write_all(b"seen").expect("room");
        client.read_exact(&mut [0; 4]).expect("the answer, and with it the acknowledgement");
        let path = path(client.as_fd()).expect("a TCP connection");
        assert!(path.min_rtt_us.is_some_and(|least| least <= path.rtt_us), "{path:?}");
        assert_eq!(path.unsent_bytes, 0, "{path:?}");
    }

    #[test]
    fn rate_is_taken_and_taken_back() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("up");
        for rate in [Some(125_000_000), Some(20_000_000_000), None] {
            set_max_pacing_rate(client.as_fd(), rate).expect("a socket");
        }
        let pipe = io::pipe().expect("a pipe").0;
        assert!(path(pipe.as_fd()).is_err() && set_max_pacing_rate(pipe.as_fd(), None).is_err());
    }
}
