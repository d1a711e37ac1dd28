//! What can go wrong.

use std::io;
use std::net::SocketAddr;

use quell_net_engine::wire::{HelloError, Refusal};
use quell_net_engine::{ConnectError, ListenError, StreamFailure};

/// An error of an endpoint or of one of its sockets.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused something of this process.
    #[error("cannot {what}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A peer could not be reached.
    #[error("peer {address}: cannot {what}")]
    Peer {
        /// Its channel port.
        address: SocketAddr,
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A peer that speaks something else.
    #[error("peer {address}")]
    Hello {
        /// Its channel port.
        address: SocketAddr,
        /// What is wrong with its first bytes.
        source: HelloError,
    },
    /// This endpoint does not take the channel.
    #[error("peer {address}")]
    Refused {
        /// Its channel port.
        address: SocketAddr,
        /// Why not.
        source: Refusal,
    },
    /// Channels that leave the host are neither encrypted nor authenticated.
    #[error(
        "{0} is not a loopback address, and channels are neither encrypted nor authenticated yet: \
         set `insecure` if any host on that network may read and change what is sent"
    )]
    Insecure(SocketAddr),
    /// A name that the kernel does not take.
    #[error("congestion control `{name}` is not available here, these are: {available}")]
    Congestion {
        /// As configured.
        name: String,
        /// What the kernel offers.
        available: String,
        /// Its answer.
        source: io::Error,
    },
    /// The kernel has no io_uring for this process.
    #[error("cannot set io_uring up, which `TcpUring` needs; {remedy}")]
    Uring {
        /// What helps.
        remedy: &'static str,
        /// Its answer.
        source: io::Error,
    },
    /// A configuration that cannot work.
    #[error("{0}")]
    Config(String),
    /// No peer is known that has the address.
    #[error("no peer is known for {0}: connect its endpoint first")]
    NoRoute(SocketAddr),
    /// No stream could be opened.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// An address is taken.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The stream is over before its time.
    #[error(transparent)]
    Stream(#[from] StreamFailure),
    /// The time for an operation is over.
    #[error("the time for it is over")]
    TimedOut,
    /// The socket, or its endpoint, was closed on this side.
    #[error("it was closed on this side")]
    Closed,
}

impl Error {
    /// Why there is no ring, and what helps.
    pub(crate) fn uring(source: io::Error) -> Error {
        use rustix::io::Errno;
        let remedy = match Errno::from_io_error(&source) {
            Some(Errno::PERM | Errno::ACCESS) => {
                "set the sysctl kernel.io_uring_disabled to 0, or have the container's seccomp filter \
                 allow io_uring_setup, io_uring_enter and io_uring_register, or use `Tcp`"
            }
            Some(Errno::NOSYS | Errno::INVAL) => {
                "it takes Linux 6.1, built with CONFIG_IO_URING, and no seccomp filter that hides it; \
                 use `Tcp` elsewhere"
            }
            Some(Errno::NOMEM | Errno::MFILE | Errno::NFILE) => {
                "raise the limits of locked memory and of descriptors (`ulimit -l`, `ulimit -n`)"
            }
            _ => "use `Tcp` instead",
        };
        Error::Uring { remedy, source }
    }

    pub(crate) fn io(what: &'static str, source: io::Error) -> Error {
        Error::Io { what, source }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        use io::ErrorKind;
        let kind = match &error {
            Error::Io { source, .. }
            | Error::Peer { source, .. }
            | Error::Uring { source, .. }
            | Error::Congestion { source, .. } => source.kind(),
            Error::Hello { .. } | Error::Refused { .. } => ErrorKind::InvalidData,
            Error::Insecure(_) => ErrorKind::PermissionDenied,
            Error::Config(_) => ErrorKind::InvalidInput,
            Error::NoRoute(_) => ErrorKind::HostUnreachable,
            Error::Connect(ConnectError::NoPeer) => ErrorKind::HostUnreachable,
            Error::Connect(ConnectError::Closing) => ErrorKind::ConnectionRefused,
            Error::Connect(ConnectError::TooMany(_)) => ErrorKind::QuotaExceeded,
            Error::Connect(ConnectError::Memory) => ErrorKind::OutOfMemory,
            Error::Listen(_) => ErrorKind::AddrInUse,
            Error::Stream(StreamFailure::Refused(_)) => ErrorKind::ConnectionRefused,
            Error::Stream(StreamFailure::TimedOut) | Error::TimedOut => ErrorKind::TimedOut,
            Error::Stream(StreamFailure::Reset(_)) => ErrorKind::ConnectionReset,
            Error::Stream(StreamFailure::Aborted(_)) => ErrorKind::ConnectionAborted,
            Error::Closed => ErrorKind::NotConnected,
        };
        io::Error::new(kind, error)
    }
}
