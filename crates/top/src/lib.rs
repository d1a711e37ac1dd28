//! `quell top`: what a running daemon does and why, live in a terminal.
//!
//! The parts that decide anything are pure: [`state`] takes keys and news of the daemon and says what is to be
//! done, [`view`] draws a state. [`screen`] has the terminal, [`feed`] the control socket; both only carry.

mod decisions;
mod explain;
mod feed;
mod header;
mod keys;
mod panes;
mod sample;
mod screen;
mod state;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod view;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use quell_control::client::ClientError;

pub use screen::{once, run};

/// How it runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// The daemon's control socket.
    pub socket: PathBuf,
    /// Between two samples; brought within 100 ms and a minute.
    pub interval: Duration,
    /// Whether colours may be used.
    pub colours: bool,
}

/// Why it ended.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    /// The daemon cannot be asked.
    #[error(transparent)]
    Daemon(#[from] ClientError),
    /// There is nobody to look at it.
    #[error(
        "standard input and output have to be a terminal; `--once` prints one frame to anything else"
    )]
    NoTerminal,
    /// The terminal does not do what it should.
    #[error("the terminal: {0}")]
    Terminal(#[from] io::Error),
}
