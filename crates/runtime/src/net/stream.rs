//! Connections.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use quell_model::Nanos;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, ipproto,
};

use super::{Timeout, first};
use crate::io::{Interest, Source, deadline_of};

/// A TCP connection. As [`std::net::TcpStream`], but reads and writes park the uthread.
#[derive(Debug)]
pub struct TcpStream {
    /// In the kernel's blocking mode: a ring waits only for such. All calls here say that they do not wait.
    source: Source<std::net::TcpStream>,
    read_timeout: Timeout,
    write_timeout: Timeout,
}

const SEND: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

impl TcpStream {
    /// Connects to the first of the addresses that answers.
    ///
    /// # Errors
    /// Those of [`std::net::TcpStream::connect`].
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<TcpStream> {
        first(address, |address| TcpStream::connect_until(&address, None))
    }

    /// Connects, and gives up after so long.
    ///
    /// # Errors
    /// Those of [`std::net::TcpStream::connect_timeout`]; `TimedOut` when the time is over.
    pub fn connect_timeout(address: &SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
        if timeout.is_zero() {
            let what = "a time-out of zero would connect to nothing";
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        }
        TcpStream::connect_until(address, deadline_of(Some(timeout)))
    }

    fn connect_until(address: &SocketAddr, deadline: Option<Nanos>) -> io::Result<TcpStream> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let tcp = Some(ipproto::TCP);
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, tcp)?;
        let connected = rustix::net::connect(&socket, address);
        let stream = TcpStream::wrap(std::net::TcpStream::from(socket));
        match connected {
            Ok(()) => {}
            Err(Errno::INPROGRESS | Errno::INTR) => {
                stream.connected(deadline).map_err(|error| match error.kind() {
                    ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
                    _ => error,
                })?;
            }
            Err(error) => return Err(error.into()),
        }
        stream.source.get().set_nonblocking(false)?;
        Ok(stream)
    }

    /// Waits until the connection is made.
    fn connected(&self, deadline: Option<Nanos>) -> io::Result<()> {
        self.source.retry(Interest::Write, deadline, |socket| {
            if let Some(error) = socket.take_error()? {
                return Err(error);
            }
            match rustix::net::getpeername(socket) {
                Ok(_) => Ok(()),
                // Neither made nor refused.
                Err(Errno::NOTCONN) => Err(ErrorKind::WouldBlock.into()),
                Err(error) => Err(error.into()),
            }
        })
    }

    pub(super) fn wrap(socket: std::net::TcpStream) -> TcpStream {
        let source = Source::new(socket);
        TcpStream { source, read_timeout: Timeout::default(), write_timeout: Timeout::default() }
    }

    /// Another handle of the same connection, as [`std::net::TcpStream::try_clone`], but its time-outs are its own.
    ///
    /// # Errors
    /// When there are no more descriptors.
    pub fn try_clone(&self) -> io::Result<TcpStream> {
        Ok(TcpStream {
            source: Source::new(self.source.get().try_clone()?),
            read_timeout: self.read_timeout.copy(),
            write_timeout: self.write_timeout.copy(),
        })
    }

    /// Receives what is there and leaves it there.
    ///
    /// # Errors
    /// Those of `recv`; `WouldBlock` when the time is over.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let deadline = deadline_of(self.read_timeout.get());
        self.source.retry(Interest::Read, deadline, |socket| {
            Ok(rustix::net::recv(socket, &mut *buffer, RecvFlags::PEEK | RecvFlags::DONTWAIT)?.0)
        })
    }

    /// Ends reading, writing or both. Uthreads that wait for it are woken.
    ///
    /// # Errors
    /// When it is not connected.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.source.get().shutdown(how)
    }

    /// The other end's address.
    ///
    /// # Errors
    /// When it is not connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.source.get().peer_addr()
    }

    /// This end's address.
    ///
    /// # Errors
    /// Those of `getsockname`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.source.get().local_addr()
    }

    /// Whether small writes are sent at once (`TCP_NODELAY`).
    ///
    /// # Errors
    /// Those of `setsockopt`.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.source.get().set_nodelay(nodelay)
    }

    /// Whether small writes are sent at once.
    ///
    /// # Errors
    /// Those of `getsockopt`.
    pub fn nodelay(&self) -> io::Result<bool> {
        self.source.get().nodelay()
    }

    /// Sets the hops that its packets may take.
    ///
    /// # Errors
    /// Those of `setsockopt`.
    pub fn set_ttl(&self, hops: u32) -> io::Result<()> {
        self.source.get().set_ttl(hops)
    }

    /// The hops that its packets may take.
    ///
    /// # Errors
    /// Those of `getsockopt`.
    pub fn ttl(&self) -> io::Result<u32> {
        self.source.get().ttl()
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

    /// How long a read waits.
    ///
    /// # Errors
    /// None.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.read_timeout.get())
    }

    /// How long a write waits.
    ///
    /// # Errors
    /// None.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.write_timeout.get())
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.source.receive(buffer, self.read_timeout.get(), |socket, buffer| {
            Ok(rustix::net::recv(socket, buffer, RecvFlags::DONTWAIT)?.0)
        })
    }

    fn send(
        &self,
        attempt: impl FnMut(&std::net::TcpStream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let deadline = deadline_of(self.write_timeout.get());
        self.source.retry(Interest::Write, deadline, attempt)
    }
}

impl Read for &TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive(buffer)
    }
}

impl Write for &TcpStream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.send(|socket| Ok(rustix::net::send(socket, buffer, SEND)?))
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        // As many as `sendmsg` takes.
        let buffers = &buffers[..buffers.len().min(1_024)];
        self.send(|socket| {
            let mut control = SendAncillaryBuffer::default();
            Ok(rustix::net::sendmsg(socket, buffers, &mut control, SEND)?)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }
}

impl Write for TcpStream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        (&*self).write(buffer)
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(buffers)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for TcpStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.source.get().as_fd()
    }
}

impl AsRawFd for TcpStream {
    fn as_raw_fd(&self) -> RawFd {
        self.source.get().as_raw_fd()
    }
}

/// Takes over a connection of std, with its time-outs.
impl TryFrom<std::net::TcpStream> for TcpStream {
    type Error = io::Error;

    fn try_from(socket: std::net::TcpStream) -> io::Result<TcpStream> {
        socket.set_nonblocking(false)?;
        let (read, write) = (socket.read_timeout()?, socket.write_timeout()?);
        // A time-out in the kernel would end a ring's wait as well.
        socket.set_read_timeout(None)?;
        socket.set_write_timeout(None)?;
        let stream = TcpStream::wrap(socket);
        stream.read_timeout.set(read)?;
        stream.write_timeout.set(write)?;
        Ok(stream)
    }
}

impl TryFrom<OwnedFd> for TcpStream {
    type Error = io::Error;

    fn try_from(socket: OwnedFd) -> io::Result<TcpStream> {
        std::net::TcpStream::from(socket).try_into()
    }
}
