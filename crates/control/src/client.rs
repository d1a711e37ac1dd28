//! A client of the control socket.

use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::protocol::{self, Method, PROTOCOL, Reply, Request, Response};

/// How long a reply may take: launching tasks and restoring thousands of threads is part of some.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection to a daemon.
#[derive(Debug)]
pub struct Client {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
    id: u64,
}

/// Why a call had no reply.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens there.
    #[error("no Quell daemon listens on {}; start one with `quell run FILE.toml`", .0.display())]
    NotRunning(PathBuf),
    /// The socket is there but may not be used.
    #[error("{} may not be used: {source}; try as root, or have an administrator add you to the `control_group`", path.display())]
    Denied {
        /// The socket.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The connection broke.
    #[error("the daemon did not answer: {0}")]
    Io(#[from] io::Error),
    /// The answer does not parse.
    #[error("the daemon's answer does not read as protocol version {PROTOCOL}: {0}")]
    Format(#[from] serde_json::Error),
    /// A line of a subscription is not valid.
    #[error(
        "line {line} of the subscription: {why}; use a quell client of the same release as the daemon"
    )]
    Line {
        /// Its number, from 1.
        line: u64,
        /// What is wrong with it.
        why: String,
    },
    /// The daemon refused; nothing was changed.
    #[error("{0}")]
    Refused(String),
}

/// Connects to a daemon's socket.
pub(crate) fn connect(path: &Path) -> Result<UnixStream, ClientError> {
    UnixStream::connect(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            ClientError::NotRunning(path.to_owned())
        }
        _ => ClientError::Denied { path: path.to_owned(), source },
    })
}

impl Client {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// [`ClientError::NotRunning`] where nobody listens, [`ClientError::Denied`] without the right to.
    pub fn connect(path: &Path) -> Result<Client, ClientError> {
        let writer = connect(path)?;
        writer.set_read_timeout(Some(REPLY_TIMEOUT))?;
        Ok(Client { reader: BufReader::new(writer.try_clone()?), writer, id: 0 })
    }

    /// The same connection, which gives an answer up after this long.
    ///
    /// # Errors
    /// When the kernel refuses the time.
    pub fn with_patience(self, patience: Duration) -> Result<Client, ClientError> {
        self.writer.set_read_timeout(Some(patience))?;
        self.writer.set_write_timeout(Some(patience))?;
        Ok(self)
    }

    /// Makes one call and waits for its reply.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the daemon's words, or what broke on the way.
    pub fn call(&mut self, call: Method) -> Result<Reply, ClientError> {
        self.id += 1;
        protocol::send(&mut self.writer, &Request { v: PROTOCOL, id: self.id, call })?;
        let line = protocol::read_line(&mut self.reader)?.ok_or_else(|| {
            io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection")
        })?;
        let response: Response = serde_json::from_str(&line)?;
        match response.reply {
            Reply::Error(why) => Err(ClientError::Refused(why)),
            reply => Ok(reply),
        }
    }
}
