//! What carries a connection: a kernel socket, or a virtual one.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use quell_net::{Class, Endpoint, EndpointConfig, Selector, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::LoadError;
use crate::spec::LoadSpec;

/// How long a connection attempt may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval of looks for room in a virtual socket.
const ROOM_LOOK: Duration = Duration::from_millis(1);

/// A server, and how it is reached.
#[derive(Clone)]
pub(crate) struct Target {
    pub addr: SocketAddr,
    /// Of virtual sockets.
    endpoint: Option<Endpoint>,
}

/// See the module. Calls on it do not wait.
pub(crate) enum Carrier {
    Kernel(TcpStream),
    Virtual(Box<Stream>),
}

impl Target {
    /// That of a run: opens the channels of virtual sockets.
    ///
    /// # Errors
    /// When the server's endpoint cannot be reached.
    pub fn of(spec: &LoadSpec) -> Result<Target, LoadError> {
        let Some(channels) = spec.channels else {
            return Ok(Target { addr: spec.addr, endpoint: None });
        };
        let failed =
            |error: quell_net::Error| LoadError::Connect { addr: channels, source: error.into() };
        // Load says nothing that another host may not read, and believes nothing.
        let config = EndpointConfig { insecure: true, ..EndpointConfig::default() };
        let endpoint = Endpoint::new(config).map_err(failed)?;
        endpoint.connect_peer(channels).map_err(failed)?;
        Ok(Target { addr: spec.addr, endpoint: Some(endpoint) })
    }

    /// One that is reached by kernel sockets.
    #[cfg(test)]
    pub fn kernel(addr: SocketAddr) -> Target {
        Target { addr, endpoint: None }
    }

    /// A connection, which waits still if it is the kernel's.
    pub fn connect(&self) -> Result<Carrier, LoadError> {
        let failed = |source| LoadError::Connect { addr: self.addr, source };
        let Some(endpoint) = &self.endpoint else {
            let stream = TcpStream::connect_timeout(&self.addr, CONNECT_TIMEOUT).map_err(failed)?;
            stream.set_nodelay(true).map_err(failed)?;
            return Ok(Carrier::Kernel(stream));
        };
        let stream = endpoint.connect(self.addr, Class::Latency);
        Ok(Carrier::Virtual(Box::new(stream.map_err(|error| failed(error.into()))?)))
    }
}

impl Carrier {
    pub fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Carrier::Kernel(stream) => (&mut &*stream).read(into),
            Carrier::Virtual(stream) => stream.try_read(into)?.ok_or(ErrorKind::WouldBlock.into()),
        }
    }

    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Carrier::Kernel(stream) => (&mut &*stream).write(bytes),
            Carrier::Virtual(stream) => {
                stream.try_write(bytes)?.ok_or(ErrorKind::WouldBlock.into())
            }
        }
    }

    /// The kernel's socket, if it is one.
    pub fn kernel(&self) -> Option<&TcpStream> {
        match self {
            Carrier::Kernel(stream) => Some(stream),
            Carrier::Virtual(_) => None,
        }
    }

    /// What a poller can watch: virtual sockets are looked at instead.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.kernel().map(|stream| stream.as_fd())
    }

    /// Waits until something has come, or for a kernel socket that is to be written until there is room; false after too long.
    ///
    /// # Errors
    /// When the connection cannot be waited for.
    pub fn wait(&self, for_room: bool, patience: Duration) -> Result<bool, LoadError> {
        match self {
            Carrier::Kernel(stream) => {
                let mut flags = PollFlags::IN;
                flags.set(PollFlags::OUT, for_room);
                let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: 0 };
                poll(&mut [PollFd::new(stream, flags)], Some(&timeout))
                    .map(|ready| ready > 0)
                    .map_err(LoadError::system("poll"))
            }
            Carrier::Virtual(stream) => {
                let failed = |error: quell_net::Error| {
                    LoadError::system("wait for a virtual socket")(io::Error::from(error))
                };
                let mut selector = Selector::new(stream.endpoint());
                selector.add(0, stream);
                let until = Instant::now() + patience;
                loop {
                    // Of room it does not tell.
                    let soon = if for_room { Instant::now() + ROOM_LOOK } else { until };
                    match selector.wait(Some(soon.min(until))) {
                        Ok(_) => return Ok(true),
                        Err(quell_net::Error::TimedOut) => {}
                        Err(error) => return Err(failed(error)),
                    }
                    if for_room && stream.status().map_err(failed)?.writable > 0 {
                        return Ok(true);
                    }
                    if Instant::now() >= until {
                        return Ok(false);
                    }
                }
            }
        }
    }
}
