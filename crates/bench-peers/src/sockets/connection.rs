//! Connections of all systems behind one type: the same buffers, and NODELAY where there is such a thing.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};
use quell_model::Nanos;
use quell_net::flow::{Relief, StopResume};
use quell_net::scheduler::{Apart, ByUtilization, PerCoreCopy};
use quell_net::{Class, Endpoint, EndpointConfig, OtherHosts, SameHost, Stream};
use quell_os::{Tid, sched};
use quell_runtime::net::{TcpListener as UthreadListener, TcpStream as UthreadStream};
use rustix::net::{self, SendFlags, sockopt};

use super::gathering::{Gatherer, Gathering};
use super::kernel_io::{KernelIo, Place, Uring, ZeroCopy};
use super::options;
use super::uring::UringSocket;
use super::{Quell, System, Tcp};

/// A connection of any system.
pub enum Connection {
    Tcp(TcpStream),
    Gathering(Gathering),
    Kernel(Box<dyn KernelIo>),
    FastOpen(FastOpen),
    Uthread(UthreadStream),
    Unix(UnixStream),
    Uring(UringSocket),
    Quell(Stream),
}

impl Connection {
    /// This side writes no more.
    pub fn end(&self) -> Result<()> {
        match self {
            Connection::Tcp(stream) => stream.shutdown(Shutdown::Write)?,
            Connection::Gathering(gathering) => {
                gathering.flush()?;
                gathering.stream().shutdown(Shutdown::Write)?;
            }
            Connection::Kernel(it) => it.socket().shutdown(Shutdown::Write)?,
            Connection::FastOpen(opening) => opening.stream.shutdown(Shutdown::Write)?,
            Connection::Uthread(stream) => stream.shutdown(Shutdown::Write)?,
            Connection::Unix(stream) => stream.shutdown(Shutdown::Write)?,
            Connection::Uring(socket) => socket.end()?,
            Connection::Quell(stream) => stream.shutdown(Shutdown::Write)?,
        }
        Ok(())
    }

    /// See [`KernelIo::copied_share`].
    pub fn copied_share(&self) -> Option<f64> {
        match self {
            Connection::Kernel(it) => it.copied_share(),
            _ => None,
        }
    }

    /// Lets its packets go before others, where the system does so for its class.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn prioritise(&self, system: System, class: Class) -> Result<()> {
        match (self, system, class) {
            (Connection::Tcp(stream), System::Tcp(Tcp::Priority), Class::Latency) => {
                options::set_priority(stream, FIRST_BAND).context("set SO_PRIORITY")
            }
            _ => Ok(()),
        }
    }
}

/// `TC_PRIO_INTERACTIVE`: of `pfifo_fast` the first band.
const FIRST_BAND: i32 = 6;

impl Read for &Connection {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Connection::Tcp(stream) => read_tcp(stream, into),
            Connection::Gathering(gathering) => {
                gathering.flush()?;
                gathering.stream().read(into)
            }
            Connection::Kernel(it) => it.read(into),
            Connection::FastOpen(opening) => (&opening.stream).read(into),
            Connection::Uthread(stream) => (&mut &*stream).read(into),
            Connection::Unix(stream) => (&mut &*stream).read(into),
            Connection::Uring(socket) => socket.read(into),
            Connection::Quell(stream) => Ok(stream.read(into)?),
        }
    }
}

/// A read of a socket whose bytes a sockmap moves may find nothing although it waits (`tcp_bpf_recvmsg`).
fn read_tcp(mut stream: &TcpStream, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if rustix::fs::fcntl_getfl(stream)?.contains(rustix::fs::OFlags::NONBLOCK) {
                    return Err(error);
                }
            }
            read => return read,
        }
    }
}

impl Write for &Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Connection::Tcp(stream) => (&mut &*stream).write(bytes),
            Connection::Gathering(gathering) => gathering.write(bytes),
            Connection::Kernel(it) => it.write(bytes),
            Connection::FastOpen(opening) => opening.write(bytes),
            Connection::Uthread(stream) => (&mut &*stream).write(bytes),
            Connection::Unix(stream) => (&mut &*stream).write(bytes),
            Connection::Uring(socket) => socket.write(bytes),
            Connection::Quell(stream) => Ok(stream.write(bytes)?),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Connection::Quell(stream) => (&mut &*stream).flush(),
            Connection::Gathering(gathering) => gathering.flush(),
            Connection::Uring(socket) => socket.flush(),
            Connection::Tcp(_)
            | Connection::Kernel(_)
            | Connection::FastOpen(_)
            | Connection::Uthread(_)
            | Connection::Unix(_) => Ok(()),
        }
    }
}

/// A TCP connection that its first bytes open: used by one thread at a time.
pub struct FastOpen {
    stream: TcpStream,
    /// Where to, until then.
    address: Mutex<Option<SocketAddr>>,
}

/// `MSG_FASTOPEN` of `linux/socket.h`.
const MSG_FASTOPEN: u32 = 0x2000_0000;

impl FastOpen {
    fn new(address: SocketAddr) -> Result<FastOpen> {
        Ok(FastOpen { stream: unconnected(None)?.into(), address: Mutex::new(Some(address)) })
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.address.lock().unwrap_or_else(PoisonError::into_inner).take() {
            None => (&self.stream).write(bytes),
            Some(address) => {
                let flags = SendFlags::from_bits_retain(MSG_FASTOPEN);
                Ok(net::sendto(&self.stream, bytes, flags, &address)?)
            }
        }
    }
}

/// Where connections come from.
pub enum Acceptor {
    Tcp(TcpListener, Tcp, Option<Gatherer>),
    Uthread(UthreadListener),
    Unix(UnixListener),
    Quell(Endpoint, quell_net::Listener),
}

/// Channels of the throughput class at most.
const CHANNELS_MAX: usize = 8;
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
    if let System::Quell(kind) = system {
        config.same_host = SameHost::Tcp;
        config.engine.has_recovery = kind != Quell::NoRecovery;
        config.paces = kind != Quell::Unpaced;
        match kind {
            Quell::Channels(count) => config.throughput_channels = count,
            Quell::NoRelief => relieve(&mut config, Nanos::MAX),
            Quell::StopResume => relieve(&mut config, STOP_AFTER),
            Quell::Placed => {
                config.throughput_channels = 2;
                config.placement = Some(Box::new(Apart));
            }
            Quell::Workers => {
                let cores = sched::affinity(Tid(0)).context("read this thread's cores")?;
                config.copying = Box::new(PerCoreCopy::new(cores));
            }
            Quell::Counted => {
                config.channel_count =
                    Some(Arc::new(|| Box::new(ByUtilization::new(CHANNELS_MAX))));
            }
            Quell::Udp => {
                (config.same_host, config.other_hosts) = (SameHost::Udp, OtherHosts::Udp);
            }
            Quell::Uring => {
                (config.same_host, config.other_hosts) = (SameHost::TcpUring, OtherHosts::TcpUring);
            }
            Quell::Plain | Quell::NoRecovery | Quell::Unpaced | Quell::Early => {}
        }
    }
    config.congestion = CONGESTION.to_owned();
    // The namespaces are the benchmark's own.
    config.insecure = true;
    Ok(Endpoint::new(config)?)
}

/// As much as credit gives a stream at most.
const STREAM_BYTES: u32 = 1 << 20;
/// How long a response queue may hold bytes before the peer is asked to stop: the published one's time.
const STOP_AFTER: Nanos = Nanos::from_millis(1);

/// Streams have no credit; their peers are asked to stop where they are not read for so long.
fn relieve(config: &mut EndpointConfig, stop_after: Nanos) {
    let (buffer, channel_budget) = (u64::from(STREAM_BYTES), u64::from(STREAM_BYTES));
    let relief = Relief { buffer, channel_budget, stop_after };
    let streams_max = config.engine.streams_max as u64;
    config.policies.flow = Box::new(StopResume::new(relief, streams_max));
    config.policies.first_window = STREAM_BYTES;
}

impl Acceptor {
    /// Listens; returns the address with the port that was chosen.
    ///
    /// # Errors
    /// When it cannot.
    pub fn bind(system: System, address: &str) -> Result<(Acceptor, String)> {
        Ok(match system {
            System::Tcp(kind) => {
                let socket = unconnected(protocol_of(kind))?;
                net::bind(&socket, &address.parse::<SocketAddr>()?).context("bind")?;
                net::listen(&socket, BACKLOG).context("listen")?;
                let listener = TcpListener::from(socket);
                let own = listener.local_addr()?.to_string();
                (Acceptor::Tcp(listener, kind, gatherer_of(kind)), own)
            }
            System::Unix => {
                let listener = UnixListener::bind_addr(&unix_name(address)?)?;
                (Acceptor::Unix(listener), address.to_owned())
            }
            System::UthreadsTcp => {
                let listener = UthreadListener::bind(address).context("listen")?;
                let own = listener.local_addr()?.to_string();
                (Acceptor::Uthread(listener), own)
            }
            System::Quell(_) | System::QuellShm | System::UthreadsShm => {
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
            // It has what was set for its listener.
            Acceptor::Tcp(listener, kind, gatherer) => {
                tcp(listener.accept()?.0, *kind, gatherer.as_ref())?
            }
            Acceptor::Uthread(listener) => Connection::Uthread(green(listener.accept()?.0)?),
            Acceptor::Unix(listener) => Connection::Unix(listener.accept()?.0),
            Acceptor::Quell(_, listener) => Connection::Quell(listener.accept()?),
        })
    }

    /// The endpoint, of virtual sockets.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        match self {
            Acceptor::Quell(endpoint, _) => Some(endpoint),
            Acceptor::Tcp(..) | Acceptor::Uthread(_) | Acceptor::Unix(_) => None,
        }
    }
}

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

fn protocol_of(kind: Tcp) -> Option<net::Protocol> {
    (kind == Tcp::Multipath).then_some(net::ipproto::MPTCP)
}

fn gatherer_of(kind: Tcp) -> Option<Gatherer> {
    (kind == Tcp::Buffered).then(Gatherer::start)
}

fn tcp(stream: TcpStream, kind: Tcp, gatherer: Option<&Gatherer>) -> Result<Connection> {
    Ok(match (kind, gatherer) {
        (_, Some(gatherer)) => Connection::Gathering(gatherer.gather(stream)),
        (Tcp::Uring, None) => Connection::Uring(UringSocket::new(stream)),
        (Tcp::UringInline, None) => {
            Connection::Kernel(Box::new(Uring::new(stream, Place::Inline)?))
        }
        (Tcp::UringWorkers, None) => {
            Connection::Kernel(Box::new(Uring::new(stream, Place::Worker)?))
        }
        (Tcp::ZeroCopy, None) => Connection::Kernel(Box::new(ZeroCopy::new(stream)?)),
        (_, None) => Connection::Tcp(stream),
    })
}

/// What all of them have.
fn green(stream: UthreadStream) -> Result<UthreadStream> {
    stream.set_nodelay(true)?;
    sockopt::set_tcp_congestion(&stream, CONGESTION).context("set cubic")?;
    Ok(stream)
}

/// A socket with what all of them have.
fn unconnected(protocol: Option<net::Protocol>) -> Result<OwnedFd> {
    let (family, flags) = (net::AddressFamily::INET, net::SocketFlags::CLOEXEC);
    let socket = net::socket_with(family, net::SocketType::STREAM, flags, protocol);
    let socket = socket.context("make a socket")?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_tcp_congestion(&socket, CONGESTION).context("set cubic")?;
    Ok(socket)
}

/// Opens connections to a server.
pub struct Connector {
    system: System,
    address: String,
    endpoint: Option<Endpoint>,
    gatherer: Option<Gatherer>,
}

impl Connector {
    /// For the server at an address.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub fn new(system: System, address: &str) -> Result<Connector> {
        let endpoint = match system {
            System::Tcp(_) | System::UthreadsTcp | System::Unix => None,
            System::Quell(_) | System::QuellShm | System::UthreadsShm => {
                let endpoint = endpoint(system)?;
                endpoint.connect_peer(address.parse()?)?;
                Some(endpoint)
            }
        };
        let gatherer = match system {
            System::Tcp(kind) => gatherer_of(kind),
            _ => None,
        };
        Ok(Connector { system, address: address.to_owned(), endpoint, gatherer })
    }

    /// What carries the bytes.
    pub fn system(&self) -> System {
        self.system
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
                System::Quell(Quell::Early) => endpoint.connect_early(address, class)?,
                _ => endpoint.connect(address, class)?,
            };
            return Ok(Connection::Quell(stream));
        }
        if self.system == System::Unix {
            return Ok(Connection::Unix(UnixStream::connect_addr(&unix_name(&self.address)?)?));
        }
        let address = self.address.parse::<SocketAddr>()?;
        if self.system == System::UthreadsTcp {
            return Ok(Connection::Uthread(green(UthreadStream::connect(address)?)?));
        }
        let System::Tcp(kind) = self.system else { bail!("{:?} has no endpoint", self.system) };
        if kind == Tcp::FastOpen {
            return Ok(Connection::FastOpen(FastOpen::new(address)?));
        }
        let socket = unconnected(protocol_of(kind))?;
        net::connect(&socket, &address).context("connect")?;
        let connection = tcp(socket.into(), kind, self.gatherer.as_ref())?;
        connection.prioritise(self.system, class)?;
        Ok(connection)
    }
}
