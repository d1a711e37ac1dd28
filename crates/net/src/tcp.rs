//! Channels over kernel TCP.

use std::io::{self, IoSlice, IoSliceMut, Read as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use quell_model::Nanos;
use quell_net_engine::ChannelCaps;
use quell_net_engine::wire::PAYLOAD_MAX;
use rustix::event::PollFlags;

use crate::error::Error;
use crate::transport::{Incoming, Outgoing, Path, PathSample, Readiness, Transport};

/// Time for the two hellos.
pub(crate) const HANDSHAKE_TIME: Duration = Duration::from_secs(5);

/// Sets what a channel's connection needs, whatever the host's defaults are.
pub(crate) fn prepare(connection: &TcpStream, congestion: &str) -> Result<(), Error> {
    // Frames are gathered before they are sent; the kernel must not wait for more.
    connection.set_nodelay(true).map_err(|source| Error::io("set TCP_NODELAY", source))?;
    rustix::net::sockopt::set_tcp_congestion(connection, congestion).map_err(|source| {
        let available = available_congestion();
        Error::Congestion { name: congestion.to_owned(), available, source: source.into() }
    })
}

/// The names that the kernel would take.
fn available_congestion() -> String {
    std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")
        .map_or_else(|_| "unknown".to_owned(), |names| names.trim().replace(' ', ", "))
}

/// Whether bytes between two addresses leave this host, where others may read or change them.
pub(crate) fn leaves_host(peer: IpAddr) -> bool {
    !peer.to_canonical().is_loopback()
}

/// Opens a connection.
pub(crate) fn connect(address: SocketAddr, congestion: &str) -> Result<TcpStream, Error> {
    let what = "connect to the peer's channel port";
    let connection = TcpStream::connect_timeout(&address, HANDSHAKE_TIME)
        .map_err(|source| Error::Peer { address, what, source })?;
    prepare(&connection, congestion)?;
    Ok(connection)
}

/// A connection as a transport. `paces`: it is slowed down where it fills the queue of a link.
pub(crate) fn transport(connection: TcpStream, paces: bool) -> io::Result<Transport> {
    connection.set_nonblocking(true)?;
    let connection = Arc::new(connection);
    let path = path(&connection, paces)?;
    let outgoing = Box::new(TcpOutgoing(Arc::clone(&connection)));
    let incoming = Box::new(TcpIncoming(Arc::clone(&connection)));
    let readiness = Arc::new(TcpReadiness(connection));
    let caps = ChannelCaps { is_lossy: false, max_frame: PAYLOAD_MAX };
    Ok(Transport { outgoing, incoming, readiness, path, caps, name: "tcp" })
}

/// The path of a connection, if it is slowed down.
pub(crate) fn path(connection: &Arc<TcpStream>, paces: bool) -> io::Result<Option<Arc<dyn Path>>> {
    // There is no link between two programs of one host.
    let paces = paces && leaves_host(connection.peer_addr()?.ip());
    Ok(paces.then(|| Arc::new(TcpPath(Arc::clone(connection))) as Arc<dyn Path>))
}

struct TcpOutgoing(Arc<TcpStream>);

struct TcpIncoming(Arc<TcpStream>);

struct TcpReadiness(Arc<TcpStream>);

struct TcpPath(Arc<TcpStream>);

impl Outgoing for TcpOutgoing {
    fn enqueue(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        // Not `writev`, which raises SIGPIPE in programs that do not ignore it.
        let flags = rustix::net::SendFlags::NOSIGNAL;
        let sent = rustix::net::sendmsg(&*self.0, bytes, &mut Default::default(), flags)?;
        Ok(sent)
    }
}

impl Incoming for TcpIncoming {
    fn dequeue(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self.0).read_vectored(into)
    }

    fn is_asked_by_poll(&self) -> bool {
        true
    }
}

impl Readiness for TcpReadiness {
    fn readable(&self) -> (BorrowedFd<'_>, PollFlags) {
        (self.0.as_fd(), PollFlags::IN)
    }

    fn writable(&self) -> (BorrowedFd<'_>, PollFlags) {
        (self.0.as_fd(), PollFlags::OUT)
    }

    fn end(&self) {
        // It fails where the connection has ended already.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl Path for TcpPath {
    fn sample(&self) -> io::Result<Option<PathSample>> {
        let path = quell_os::tcp::path(self.0.as_fd())?;
        let micros = |us: u32| Nanos::from_micros(us.into());
        Ok(path.min_rtt_us.map(|least| PathSample {
            rtt: micros(path.rtt_us),
            min_rtt: micros(least),
            delivered_bytes: path.acked_bytes,
            is_backlogged: path.unsent_bytes > 0,
        }))
    }

    fn pace(&self, bytes_per_second: Option<u64>) -> io::Result<()> {
        quell_os::tcp::set_max_pacing_rate(self.0.as_fd(), bytes_per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_stays_on_the_host() {
        for (address, leaves) in
            [("127.0.0.9", false), ("::1", false), ("::ffff:127.0.0.1", false), ("10.0.0.1", true)]
        {
            assert_eq!(leaves_host(address.parse().expect("an address")), leaves, "{address}");
        }
    }

    #[test]
    fn unknown_congestion_control_is_refused_with_those_that_there_are() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let connection = TcpStream::connect(listener.local_addr().expect("bound")).expect("up");
        let error = prepare(&connection, "fastest").expect_err("there is none");
        let text = error.to_string();
        assert!(text.contains("fastest") && text.contains("cubic"), "{text}");
    }
}
