//! Listening sockets.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use rustix::net::{SocketFlags, acceptfrom_with};

use super::{TcpStream, first};
use crate::io::{Interest, Source};

/// Connections that the kernel keeps until they are accepted; the host's `net.core.somaxconn` may be less.
const BACKLOG: i32 = 4_096;

/// A socket that accepts connections. As [`std::net::TcpListener`], but `accept` parks the uthread.
#[derive(Debug)]
pub struct TcpListener {
    /// In the kernel's non-blocking mode, for there is no other way to try to accept.
    source: Source<std::net::TcpListener>,
}

impl TcpListener {
    /// Listens on the first of the addresses that will do.
    ///
    /// # Errors
    /// Those of [`std::net::TcpListener::bind`].
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<TcpListener> {
        first(address, |address| {
            let listener = std::net::TcpListener::bind(address)?;
            // Std keeps 128, which a storm of connections overruns.
            rustix::net::listen(&listener, BACKLOG)?;
            listener.try_into()
        })
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// Those of `accept4`: of the connection that is lost meanwhile, or for want of descriptors; the listener can be used on.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (socket, peer) = self.source.retry(Interest::Read, None, |listener| {
            Ok(acceptfrom_with(listener, SocketFlags::CLOEXEC)?)
        })?;
        let socket = std::net::TcpStream::from(socket);
        let peer = match peer.and_then(|peer| SocketAddr::try_from(peer).ok()) {
            Some(peer) => peer,
            None => socket.peer_addr()?,
        };
        Ok((TcpStream::wrap(socket), peer))
    }

    /// Connections one after the other, without end.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// Where it listens.
    ///
    /// # Errors
    /// Those of `getsockname`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.source.get().local_addr()
    }

    /// Another handle of the same listener.
    ///
    /// # Errors
    /// When there are no more descriptors.
    pub fn try_clone(&self) -> io::Result<TcpListener> {
        Ok(TcpListener { source: Source::new(self.source.get().try_clone()?) })
    }

    /// What went wrong since it was last asked.
    ///
    /// # Errors
    /// Those of `getsockopt`.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.source.get().take_error()
    }
}

/// Connections of a [`TcpListener`].
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a TcpListener,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<io::Result<TcpStream>> {
        Some(self.listener.accept().map(|(stream, _)| stream))
    }
}

impl AsFd for TcpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.source.get().as_fd()
    }
}

impl AsRawFd for TcpListener {
    fn as_raw_fd(&self) -> RawFd {
        self.source.get().as_raw_fd()
    }
}

/// Takes over a listener of std.
impl TryFrom<std::net::TcpListener> for TcpListener {
    type Error = io::Error;

    fn try_from(listener: std::net::TcpListener) -> io::Result<TcpListener> {
        listener.set_nonblocking(true)?;
        Ok(TcpListener { source: Source::new(listener) })
    }
}
