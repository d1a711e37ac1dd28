//! Datagrams.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use super::{Timeout, first, resolve};
use crate::io::{Interest, Source, deadline_of};

/// A UDP socket. As [`std::net::UdpSocket`], but waiting parks the uthread.
#[derive(Debug)]
pub struct UdpSocket {
    /// In the kernel's non-blocking mode.
    source: Source<std::net::UdpSocket>,
    read_timeout: Timeout,
    write_timeout: Timeout,
}

impl UdpSocket {
    /// A socket at the first of the addresses that will do.
    ///
    /// # Errors
    /// Those of [`std::net::UdpSocket::bind`].
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        first(address, |address| std::net::UdpSocket::bind(address)?.try_into())
    }

    /// From now on datagrams go to, and come from, the first of these addresses that will do.
    ///
    /// # Errors
    /// Those of [`std::net::UdpSocket::connect`].
    pub fn connect(&self, address: impl ToSocketAddrs) -> io::Result<()> {
        first(address, |address| self.source.get().connect(address))
    }

    /// Waits for a datagram; what does not fit is lost.
    ///
    /// # Errors
    /// Those of `recvfrom`; `WouldBlock` when the time is over.
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.read(|socket| socket.recv_from(buffer))
    }

    /// As [`recv_from`](UdpSocket::recv_from), and leaves the datagram there.
    ///
    /// # Errors
    /// As `recv_from`.
    pub fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.read(|socket| socket.peek_from(buffer))
    }

    /// Waits for a datagram of the address that it is connected to.
    ///
    /// # Errors
    /// Those of `recv`; `WouldBlock` when the time is over.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read(|socket| socket.recv(buffer))
    }

    /// As [`recv`](UdpSocket::recv), and leaves the datagram there.
    ///
    /// # Errors
    /// As `recv`.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read(|socket| socket.peek(buffer))
    }

    /// Sends a datagram to the first of these addresses.
    ///
    /// # Errors
    /// Those of `sendto`; `WouldBlock` when the time is over.
    pub fn send_to(&self, datagram: &[u8], address: impl ToSocketAddrs) -> io::Result<usize> {
        let Some(&address) = resolve(address)?.first() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no address to send to"));
        };
        self.write(|socket| socket.send_to(datagram, address))
    }

    /// Sends a datagram to the address that it is connected to.
    ///
    /// # Errors
    /// Those of `send`; `WouldBlock` when the time is over.
    pub fn send(&self, datagram: &[u8]) -> io::Result<usize> {
        self.write(|socket| socket.send(datagram))
    }

    /// Another handle of the same socket; its time-outs are its own.
    ///
    /// # Errors
    /// When there are no more descriptors.
    pub fn try_clone(&self) -> io::Result<UdpSocket> {
        Ok(UdpSocket {
            source: Source::new(self.source.get().try_clone()?),
            read_timeout: self.read_timeout.copy(),
            write_timeout: self.write_timeout.copy(),
        })
    }

    /// This end's address.
    ///
    /// # Errors
    /// Those of `getsockname`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.source.get().local_addr()
    }

    /// The address that it is connected to.
    ///
    /// # Errors
    /// When it is not connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.source.get().peer_addr()
    }

    /// Whether it may send to broadcast addresses.
    ///
    /// # Errors
    /// Those of `setsockopt`.
    pub fn set_broadcast(&self, broadcast: bool) -> io::Result<()> {
        self.source.get().set_broadcast(broadcast)
    }

    /// What went wrong since it was last asked.
    ///
    /// # Errors
    /// Those of `getsockopt`.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.source.get().take_error()
    }

    /// How long a read waits; `None`: as long as it takes.
    ///
    /// # Errors
    /// `InvalidInput` for zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.read_timeout.set(timeout)
    }

    /// How long a write waits; `None`: as long as it takes.
    ///
    /// # Errors
    /// `InvalidInput` for zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.write_timeout.set(timeout)
    }

    fn read<R>(&self, attempt: impl FnMut(&std::net::UdpSocket) -> io::Result<R>) -> io::Result<R> {
        self.source.retry(Interest::Read, deadline_of(self.read_timeout.get()), attempt)
    }

    fn write<R>(
        &self,
        attempt: impl FnMut(&std::net::UdpSocket) -> io::Result<R>,
    ) -> io::Result<R> {
        self.source.retry(Interest::Write, deadline_of(self.write_timeout.get()), attempt)
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.source.get().as_fd()
    }
}

impl AsRawFd for UdpSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.source.get().as_raw_fd()
    }
}

/// Takes over a socket of std.
impl TryFrom<std::net::UdpSocket> for UdpSocket {
    type Error = io::Error;

    fn try_from(socket: std::net::UdpSocket) -> io::Result<UdpSocket> {
        socket.set_nonblocking(true)?;
        let source = Source::new(socket);
        Ok(UdpSocket {
            source,
            read_timeout: Timeout::default(),
            write_timeout: Timeout::default(),
        })
    }
}
