//! New channels that peers open: connections that have not said hello.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use quell_model::Nanos;
use quell_net_engine::wire::{HELLO_BYTES, Hello};

use crate::core::Addresses;
use crate::error::Error;
use crate::helper::Settings;
use crate::shared::Shared;
use crate::shm;
use crate::stats::Origin;
use crate::tcp;
use crate::transport::Transport;
use crate::udp;

/// Connections that have not said hello; further ones wait in the kernel's backlog.
pub(crate) const HANDSHAKES_MAX: usize = 64;

/// Where an endpoint takes channels.
pub(crate) enum Port {
    Tcp(TcpListener),
    /// For peers of this host; the address is that of the TCP port beside it.
    SharedMemory(UnixListener, SocketAddr),
    Udp(udp::Port),
}

/// A connection that has not said hello.
pub(crate) struct Handshake {
    connection: Connection,
    /// It is given up then.
    pub until: Nanos,
}

enum Connection {
    Tcp { stream: TcpStream, from: SocketAddr, bytes: [u8; HELLO_BYTES], filled: usize },
    SharedMemory { stream: UnixStream, port: SocketAddr, opening: Option<shm::Opening> },
    Udp(udp::Opening),
}

impl Port {
    /// The next connection, if one waits.
    pub fn accept(
        &mut self,
        until: Nanos,
        settings: &Settings,
    ) -> Result<Option<Handshake>, Error> {
        let failed = |source| Error::io("take a new channel", source);
        let connection = match self {
            Port::Tcp(listener) => {
                let Some((stream, from)) = waiting(listener.accept()).map_err(failed)? else {
                    return Ok(None);
                };
                if !settings.is_insecure && tcp::leaves_host(from.ip()) {
                    return Err(Error::Insecure(from));
                }
                tcp::prepare(&stream, &settings.congestion)?;
                stream.set_nonblocking(true).map_err(failed)?;
                Connection::Tcp { stream, from, bytes: [0; HELLO_BYTES], filled: 0 }
            }
            Port::SharedMemory(listener, port) => {
                let Some((stream, _)) = waiting(listener.accept()).map_err(failed)? else {
                    return Ok(None);
                };
                // Anybody can connect, and none but a peer is to have a place.
                shm::check_user(&stream).map_err(failed)?;
                stream.set_nonblocking(true).map_err(failed)?;
                Connection::SharedMemory { stream, port: *port, opening: None }
            }
            Port::Udp(port) => {
                let Some(opening) = port.accept().map_err(failed)? else { return Ok(None) };
                if !settings.is_insecure && tcp::leaves_host(opening.from.ip()) {
                    return Err(Error::Insecure(opening.from));
                }
                Connection::Udp(opening)
            }
        };
        Ok(Some(Handshake { connection, until }))
    }
}

/// A connection, or none where none waits, or the one that waited is gone again.
fn waiting<T>(accepted: io::Result<T>) -> io::Result<Option<T>> {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    match accepted {
        Ok(connection) => Ok(Some(connection)),
        Err(error) if matches!(error.kind(), WouldBlock | ConnectionAborted | Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Port::Tcp(listener) => listener.as_fd(),
            Port::SharedMemory(listener, _) => listener.as_fd(),
            Port::Udp(port) => port.as_fd(),
        }
    }
}

impl Handshake {
    /// What is readable when more of the hello has come; none where it came whole.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.connection {
            Connection::Tcp { stream, .. } => Some(stream.as_fd()),
            Connection::SharedMemory { stream, .. } => Some(stream.as_fd()),
            Connection::Udp(_) => None,
        }
    }

    /// Whether the hello came whole.
    pub fn is_whole(&self) -> bool {
        matches!(self.connection, Connection::Udp(_))
    }

    /// Where it comes from, for messages.
    pub fn from(&self) -> String {
        match &self.connection {
            Connection::Tcp { from, .. } | Connection::Udp(udp::Opening { from, .. }) => {
                from.to_string()
            }
            Connection::SharedMemory { .. } => "a process of this host".to_owned(),
        }
    }

    /// Reads more of the hello. Whether it is whole.
    pub fn proceed(&mut self) -> Result<bool, Error> {
        let failed = |source| Error::io("read the peer's hello", source);
        match &mut self.connection {
            Connection::Tcp { stream, bytes, filled, .. } => {
                match stream.read(&mut bytes[*filled..]) {
                    Ok(0) => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
                    Ok(read) => *filled += read,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(failed(error)),
                }
                Ok(*filled == HELLO_BYTES)
            }
            Connection::SharedMemory { stream, opening, .. } => {
                *opening = shm::opening(stream).map_err(failed)?;
                Ok(opening.is_some())
            }
            Connection::Udp(_) => Ok(true),
        }
    }

    /// Answers a whole hello, and takes the channel.
    pub fn answer(self, shared: &Shared, settings: &Settings) -> Result<(), Error> {
        let failed = |source| Error::io("answer a new channel", source);
        match self.connection {
            Connection::Tcp { mut stream, from, bytes, .. } => {
                let theirs = Hello::decode(&bytes)
                    .map_err(|source| Error::Hello { address: from, source })?;
                let own = stream.local_addr().map_err(failed)?.ip();
                // It is the first that is sent: the socket's buffer has room.
                stream.write_all(&hello(shared, &theirs).encode()).map_err(failed)?;
                let transport = settings.tcp_transport(stream, from.ip(), theirs.class);
                let transport = transport.map_err(failed)?;
                take(shared, &theirs, transport, (from, own))
            }
            Connection::SharedMemory { stream, port, opening } => {
                let opening = opening.ok_or(Error::Closed)?;
                let theirs = Hello::decode(&opening.hello)
                    .map_err(|source| Error::Hello { address: port, source })?;
                let transport =
                    shm::accept(stream, opening, &hello(shared, &theirs)).map_err(failed)?;
                let here = IpAddr::from(Ipv4Addr::LOCALHOST);
                take(shared, &theirs, transport, (SocketAddr::new(here, 0), port.ip()))
            }
            Connection::Udp(opening) => {
                let from = opening.from;
                let theirs = Hello::decode(&opening.hello)
                    .map_err(|source| Error::Hello { address: from, source })?;
                let hello = hello(shared, &theirs);
                let (transport, own) =
                    udp::accept(&opening, &hello, &settings.grants).map_err(failed)?;
                take(shared, &theirs, transport, (from, own))
            }
        }
    }
}

/// This side's answer to a hello.
fn hello(shared: &Shared, theirs: &Hello) -> Hello {
    shared.with(|core, _| core.engine.hello(theirs.channel, theirs.class)).0
}

fn take(
    shared: &Shared,
    theirs: &Hello,
    transport: Transport,
    (peer, own): (SocketAddr, IpAddr),
) -> Result<(), Error> {
    let addresses = Addresses { peer, rendezvous: None, own, origin: Origin::Peer };
    let added = shared.act(|core, now| core.add_channel(theirs, false, transport, addresses, now));
    added.map(|_| ())
}
