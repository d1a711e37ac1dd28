//! What can go wrong before or while load is offered.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Why a run, a server or an antagonist's progress file failed.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The specification makes no sense; nothing was sent.
    #[error("load specification: {0}")]
    Spec(String),
    /// The server does not want this client.
    #[error("{addr}: {reason}")]
    Refused {
        /// The server's address.
        addr: SocketAddr,
        /// Why.
        reason: String,
    },
    /// The server could not be reached.
    #[error("connect to {addr}: {source}; is the server up and listening there?")]
    Connect {
        /// The server's address.
        addr: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// The server's state could not be prepared.
    #[error("preload of {addr}: {reason}")]
    Preload {
        /// The server's address.
        addr: SocketAddr,
        /// What went wrong.
        reason: String,
    },
    /// A file of arrivals cannot be used.
    #[error("{}: {reason}", place(path, *line))]
    Trace {
        /// The file.
        path: PathBuf,
        /// The line at fault, counted from 1; 0 where it is the file as a whole.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// The synthetic server could not listen.
    #[error("listen on {addr}: {source}; choose a free port, or 0 for any")]
    Listen {
        /// The address asked for.
        addr: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file that an antagonist publishes its work in cannot be used.
    #[error("progress file {path}: {reason}")]
    ProgressFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A program that an antagonist needs is missing or failed.
    #[error("{program}: {reason}")]
    Program {
        /// The program.
        program: &'static str,
        /// What went wrong and what helps.
        reason: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// `file:line`
fn place(path: &Path, line: usize) -> String {
    let path = path.display();
    if line == 0 { path.to_string() } else { format!("{path}:{line}") }
}

impl LoadError {
    /// For `map_err` on a call that does `what`.
    pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> LoadError {
        move |source| LoadError::System { what, source: source.into() }
    }
}
