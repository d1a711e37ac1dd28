//! Both ends of QUIC streams (`quinn`) and of streams multiplexed over TCP (`yamux`), with the words, the cases and the way of
//! counting of `quell-bench-peers sockets`: every byte that arrives is compared, and counts once the server has said so.

mod client;
mod mux;
#[path = "../../../crates/bench-peers/src/sockets/pattern.rs"]
mod pattern;
mod quic;
mod server;

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};

/// A stream of either system.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Any stream. A call through a pointer costs nanoseconds.
pub type BoxedStream = Box<dyn Stream>;

/// What a stream is for: its first byte, then a number.
pub const PING: u8 = 1;
/// See [`PING`].
pub const STREAM: u8 = 2;
/// See [`PING`].
pub const MESSAGES: u8 = 3;
/// A question on the first stream: the server's processor time.
pub const CPU: u8 = 4;
/// See [`PING`].
pub const SOCKET: u8 = 6;

/// What is answered, as one line of JSON.
#[derive(Debug, Default, Serialize)]
pub struct Measured {
    pub bytes: u64,
    pub ops: u64,
    pub ns: u64,
    pub client_cpu_ns: u64,
    pub server_cpu_ns: u64,
    pub samples: Vec<u64>,
}

/// A connection to a server: where streams come from.
pub enum Opener {
    Quic(quic::Opener),
    Mux(mux::Opener),
}

impl Opener {
    async fn connect(system: &str, address: &str) -> Result<Opener> {
        Ok(match system {
            "quinn" => Opener::Quic(quic::Opener::connect(address).await?),
            "yamux" => Opener::Mux(mux::Opener::connect(address).await?),
            other => bail!("no system is called {other}"),
        })
    }

    /// A new stream.
    pub async fn open(&self) -> Result<BoxedStream> {
        match self {
            Opener::Quic(opener) => opener.open().await,
            Opener::Mux(opener) => opener.open().await,
        }
    }

    /// Ends the connection. One of TCP ends with the process.
    async fn close(&self) {
        if let Opener::Quic(opener) = self {
            opener.close().await;
        }
    }
}

/// One client's connection at the server.
pub enum Acceptor {
    Quic(quic::Acceptor),
    Mux(mux::Acceptor),
}

impl Acceptor {
    /// The next stream; `None` when the client is gone.
    pub async fn accept(&mut self) -> Option<BoxedStream> {
        match self {
            Acceptor::Quic(acceptor) => acceptor.accept().await,
            Acceptor::Mux(acceptor) => acceptor.accept().await,
        }
    }
}

/// Processor time of this process.
pub fn cpu_ns() -> Result<u64> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Ok(u64::try_from(time.tv_sec)? * 1_000_000_000 + u64::try_from(time.tv_nsec)?)
}

async fn serve(system: &str, address: &str) -> Result<()> {
    let address = address.parse().context("the address to listen on")?;
    match system {
        "quinn" => {
            let (listener, own) = quic::Listener::bind(address)?;
            println!("port {own}");
            server::serve(Acceptor::Quic(listener.accept().await?)).await
        }
        "yamux" => {
            let (listener, own) = mux::Listener::bind(address).await?;
            println!("port {own}");
            server::serve(Acceptor::Mux(listener.accept().await?)).await
        }
        other => bail!("no system is called {other}"),
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match *words {
        ["server", system, address] => serve(system, address).await,
        ["client", system, address, case, millis] => {
            let millis: u64 = millis.parse().context("the time in milliseconds")?;
            let opener = Opener::connect(system, address).await?;
            let time = Duration::from_millis(millis.min(60_000));
            let measured = client::run(&opener, case, time).await?;
            opener.close().await;
            println!("{}", serde_json::to_string(&measured)?);
            Ok(())
        }
        _ => bail!("usage: server SYSTEM ADDRESS | client SYSTEM ADDRESS CASE TIME_MS"),
    }
}
