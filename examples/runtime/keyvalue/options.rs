//! What both programs are told.

use std::net::SocketAddr;

/// A key-value server in the text protocol of memcached.
#[derive(clap::Parser)]
pub struct Options {
    /// Where to listen; port 0: any
    #[arg(long, default_value = "127.0.0.1:11211")]
    pub listen: SocketAddr,
    /// MiB of items that are kept; the least recently used go first
    #[arg(long, default_value_t = 64)]
    pub memory_mib: usize,
    /// Connections at once; more are turned away
    #[arg(long, default_value_t = 1_024)]
    pub connections: usize,
}
