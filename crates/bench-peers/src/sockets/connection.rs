//! Connections of all systems behind one type: the same buffers, and NODELAY where there is such a thing.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};

use anyhow::{Context as _, Result};
use quell_net::{Class, Endpoint, EndpointConfig, SameHost, Stream};

use super::System;

/// A connection of any system.
pub enum Connection {
    Tcp(TcpStream),
    Unix(UnixStream),
    Quell(Stream),
}

impl Connection {
    /// This side writes no more.
    pub fn end(&self) -> Result<()> {
        match self {
            Connection::Tcp(stream) => stream.shutdown(Shutdown::Write)?,
            Connection::Unix(stream) => stream.shutdown(Shutdown::Write)?,
            Connection::Quell(stream) => stream.shutdown(Shutdown::Write)?,
        }
        Ok(())
    }
}

impl Read for &Connection {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Connection::Tcp(stream) => (&mut &*stream).read(into),
            Connection::Unix(stream) => (&mut &*stream).read(into),
            Connection::Quell(stream) => Ok(stream.read(into)?),
        }
    }
}

impl Write for &Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Connection::Tcp(stream) => (&mut &*stream).write(bytes),
            Connection::Unix(stream) => (&mut &*stream).write(bytes),
            Connection::Quell(stream) => Ok(stream.write(bytes)?),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Connection::Quell(stream) => (&mut &*stream).flush(),
            Connection::Tcp(_) | Connection::Unix(_) => Ok(()),
        }
    }
}

/// Where connections come from.
pub enum Acceptor {
    Tcp(TcpListener),
    Unix(UnixListener),
    Quell(Endpoint, quell_net::Listener),
}

/// The same congestion control in all systems.
const CONGESTION: &str = "cubic";

fn unix_name(address: &str) -> io::Result<UnixAddr> {
    UnixAddr::from_abstract_name(format!("quell-bench-net/{address}"))
}

/// The virtual address: any, for it is the endpoint's own.
fn virtual_address() -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], 80))
}

fn endpoint(system: System) -> Result<Endpoint> {
    let mut config = EndpointConfig::default();
    if let System::Quell { channels, has_recovery } = system {
        (config.same_host, config.throughput_channels) = (SameHost::Tcp, channels);
        config.engine.has_recovery = has_recovery;
    }
    if system == System::QuellEarly {
        config.same_host = SameHost::Tcp;
    }
    config.congestion = CONGESTION.to_owned();
    // The namespaces are the benchmark's own.
    config.insecure = true;
    Ok(Endpoint::new(config)?)
}

impl Acceptor {
    /// Listens; returns the address with the port that was chosen.
    ///
    /// # Errors
    /// When it cannot.
    pub fn bind(system: System, address: &str) -> Result<(Acceptor, String)> {
        Ok(match system {
            System::Tcp => {
                let listener = TcpListener::bind(address).context("listen")?;
                let own = listener.local_addr()?.to_string();
                (Acceptor::Tcp(listener), own)
            }
            System::Unix => {
                let listener = UnixListener::bind_addr(&unix_name(address)?)?;
                (Acceptor::Unix(listener), address.to_owned())
            }
            System::Quell { .. } | System::QuellEarly | System::QuellShm => {
                let endpoint = endpoint(system)?;
                let own = endpoint.take_channels(address.parse()?)?;
                let listener = endpoint.listen(virtual_address())?;
                (Acceptor::Quell(endpoint, listener), own.to_string())
            }
        })
    }

    /// The next connection.
    ///
    /// # Errors
    /// When there is none.
    pub fn accept(&self) -> Result<Connection> {
        Ok(match self {
            Acceptor::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                prepare(&stream)?;
                Connection::Tcp(stream)
            }
            Acceptor::Unix(listener) => Connection::Unix(listener.accept()?.0),
            Acceptor::Quell(_, listener) => Connection::Quell(listener.accept()?),
        })
    }

    /// The endpoint, of virtual sockets.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        match self {
            Acceptor::Quell(endpoint, _) => Some(endpoint),
            Acceptor::Tcp(_) | Acceptor::Unix(_) => None,
        }
    }
}

fn prepare(stream: &TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    rustix::net::sockopt::set_tcp_congestion(stream, CONGESTION).context("set cubic")?;
    Ok(())
}

/// Opens connections to a server.
pub struct Connector {
    system: System,
    address: String,
    endpoint: Option<Endpoint>,
}

impl Connector {
    /// For the server at an address.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub fn new(system: System, address: &str) -> Result<Connector> {
        let endpoint = match system {
            System::Tcp | System::Unix => None,
            System::Quell { .. } | System::QuellEarly | System::QuellShm => {
                let endpoint = endpoint(system)?;
                endpoint.connect_peer(address.parse()?)?;
                Some(endpoint)
            }
        };
        Ok(Connector { system, address: address.to_owned(), endpoint })
    }

    /// A new connection.
    ///
    /// # Errors
    /// When it is refused.
    pub fn connect(&self, class: Class) -> Result<Connection> {
        if let Some(endpoint) = &self.endpoint {
            let ip = self.address.parse::<SocketAddr>()?.ip();
            let address = SocketAddr::new(ip, virtual_address().port());
            let stream = match self.system {
                System::QuellEarly => endpoint.connect_early(address, class)?,
                _ => endpoint.connect(address, class)?,
            };
            return Ok(Connection::Quell(stream));
        }
        if self.system == System::Unix {
            return Ok(Connection::Unix(UnixStream::connect_addr(&unix_name(&self.address)?)?));
        }
        let stream = TcpStream::connect(&self.address)?;
        prepare(&stream)?;
        Ok(Connection::Tcp(stream))
    }
}
