//! The two ends that `quell bench net` puts into two network namespaces, or onto one host: `quell-bench-peers sockets`.
//!
//! `server SYSTEM ADDRESS` prints `port ADDRESS` and serves one client, which says what it wants on its first connection;
//! `client SYSTEM ADDRESS CASE TIME_MS` runs one case and prints one line of JSON. Every byte that arrives is compared with
//! what was sent.

mod client;
mod connection;
mod pattern;
mod server;

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// Kernel TCP, cubic.
    Tcp,
    /// A Unix socket.
    Unix,
    /// Virtual sockets over channels of kernel TCP.
    Quell {
        /// Channels of the throughput class.
        channels: usize,
        /// What is sent is kept until it has arrived, so that a lost channel loses nothing.
        has_recovery: bool,
    },
    /// The same; connections are opened together with their first bytes.
    QuellEarly,
    /// Virtual sockets through shared memory.
    QuellShm,
}

impl System {
    fn parse(name: &str) -> Result<System> {
        Ok(match name {
            "tcp" => System::Tcp,
            "unix" => System::Unix,
            "quell" => System::Quell { channels: 1, has_recovery: true },
            "quell-2" => System::Quell { channels: 2, has_recovery: true },
            "quell-no-recovery" => System::Quell { channels: 1, has_recovery: false },
            "quell-early" => System::QuellEarly,
            "quell-shm" => System::QuellShm,
            other => bail!("no system is called {other}"),
        })
    }
}

/// What a case does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// Requests and answers of so many bytes, one after the other.
    PingPong { bytes: usize },
    /// So many streams, each written in pieces of so many bytes.
    Streams { count: usize, bytes: usize },
    /// One stream without copies on the side of virtual sockets.
    ZeroCopy { bytes: usize },
    /// Messages of so many bytes over so many sockets in turn.
    Messages { sockets: usize, bytes: usize },
    /// Requests and answers, one each 200 us, beside so many streams in the same two processes.
    Beside { streams: usize, bytes: usize },
    /// A new connection for each request.
    Connect { bytes: usize },
}

impl Case {
    /// By its name.
    ///
    /// # Errors
    /// When there is none of the name.
    pub fn parse(name: &str) -> Result<Case> {
        Ok(match name {
            "pingpong-alone" | "same-host-rtt" => Case::PingPong { bytes: 4_096 },
            "writes-4k" | "same-host-4k" => Case::Streams { count: 1, bytes: 4_096 },
            "messages-64b" => Case::Messages { sockets: 64, bytes: 64 },
            "stream-copying" | "same-host-bulk" => Case::Streams { count: 1, bytes: 256 << 10 },
            "stream-zero-copy" => Case::ZeroCopy { bytes: 64 << 10 },
            "eight-streams" => Case::Streams { count: 8, bytes: 256 << 10 },
            "latency-alone" => Case::Beside { streams: 0, bytes: 4_096 },
            "bulk-beside-latency" => Case::Beside { streams: 8, bytes: 4_096 },
            "connect-request" => Case::Connect { bytes: 64 },
            other => bail!("no case is called {other}"),
        })
    }
}

/// What is answered, as one line of JSON.
#[derive(Debug, Default, Serialize)]
pub struct Measured {
    /// Bytes that arrived at the other end, were compared, and acknowledged by it.
    pub bytes: u64,
    /// Round trips, messages or connections.
    pub ops: u64,
    /// The time of both.
    pub ns: u64,
    /// Processor time of this process in it.
    pub client_cpu_ns: u64,
    /// The same, of the other.
    pub server_cpu_ns: u64,
    /// Times of round trips.
    pub samples: Vec<u64>,
}

/// Runs one end.
///
/// # Errors
/// When the words name none, or it fails.
pub fn run(words: &[&str]) -> Result<()> {
    match *words {
        ["server", system, address] => server::run(System::parse(system)?, address),
        ["client", system, address, case, millis] => {
            let millis: u64 = millis.parse().context("the time in milliseconds")?;
            let time = Duration::from_millis(millis.min(60_000));
            let measured = client::run(System::parse(system)?, address, Case::parse(case)?, time)?;
            println!("{}", serde_json::to_string(&measured)?);
            Ok(())
        }
        _ => bail!("usage: sockets server SYSTEM ADDRESS | client SYSTEM ADDRESS CASE TIME_MS"),
    }
}
