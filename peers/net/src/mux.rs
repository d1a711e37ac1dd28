//! Streams multiplexed over one TCP connection by `yamux`: NODELAY, cubic, its own windows, which grow by themselves.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::Poll;

use anyhow::{Context as _, Result};
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio_util::compat::{FuturesAsyncReadCompatExt as _, TokioAsyncReadCompatExt as _};
use yamux::{Config, Connection, Mode};

use super::BoxedStream;

/// What all streams may be ahead of their readers.
const WINDOW: usize = 1 << 30;
const STREAMS_MAX: usize = 1_024;
/// Largest payload of a frame.
const FRAME_BYTES: usize = 64 << 10;

fn connection(
    stream: TcpStream,
    mode: Mode,
) -> Result<Connection<tokio_util::compat::Compat<TcpStream>>> {
    stream.set_nodelay(true)?;
    sockopt::set_tcp_congestion(&stream, "cubic").context("set cubic")?;
    let mut config = Config::default();
    config.set_max_num_streams(STREAMS_MAX);
    config.set_max_connection_receive_window(Some(WINDOW));
    config.set_split_send_size(FRAME_BYTES);
    Ok(Connection::new(stream.compat(), config, mode))
}

/// Waits for a client.
pub struct Listener(TcpListener);

impl Listener {
    /// Listens; returns the address.
    pub async fn bind(address: SocketAddr) -> Result<(Listener, String)> {
        let listener = TcpListener::bind(address).await.context("listen")?;
        let own = listener.local_addr()?.to_string();
        Ok((Listener(listener), own))
    }

    /// The first client.
    pub async fn accept(self) -> Result<Acceptor> {
        let (stream, _) = self.0.accept().await.context("accept")?;
        let mut connection = connection(stream, Mode::Server)?;
        let (sender, streams) = mpsc::unbounded_channel();
        // It moves the bytes of all streams, until the connection ends.
        tokio::spawn(async move {
            while let Some(Ok(stream)) = poll_fn(|cx| connection.poll_next_inbound(cx)).await {
                let stream: BoxedStream = Box::new(stream.compat());
                if sender.send(stream).is_err() {
                    return;
                }
            }
        });
        Ok(Acceptor(streams))
    }
}

/// A server's connection.
pub struct Acceptor(mpsc::UnboundedReceiver<BoxedStream>);

impl Acceptor {
    /// The next stream; `None` when the client is gone.
    pub async fn accept(&mut self) -> Option<BoxedStream> {
        self.0.recv().await
    }
}

type Wanted = oneshot::Sender<Result<yamux::Stream, yamux::ConnectionError>>;

/// A client's connection.
pub struct Opener(mpsc::UnboundedSender<Wanted>);

impl Opener {
    /// Connects.
    pub async fn connect(address: &str) -> Result<Opener> {
        let stream = TcpStream::connect(address).await.context("connect")?;
        let mut connection = connection(stream, Mode::Client)?;
        let (sender, mut wanted) = mpsc::unbounded_channel::<Wanted>();
        // It moves the bytes of all streams, and opens them.
        tokio::spawn(async move {
            let mut opening: Option<Wanted> = None;
            poll_fn(|cx| {
                loop {
                    if opening.is_none()
                        && let Poll::Ready(Some(next)) = wanted.poll_recv(cx)
                    {
                        opening = Some(next);
                    }
                    if opening.is_some()
                        && let Poll::Ready(opened) = connection.poll_new_outbound(cx)
                    {
                        if let Some(wanted) = opening.take() {
                            // One that waits no longer needs none.
                            let _ = wanted.send(opened);
                        }
                        continue;
                    }
                    return match connection.poll_next_inbound(cx) {
                        Poll::Ready(Some(Ok(_))) => continue,
                        Poll::Ready(_) => Poll::Ready(()),
                        Poll::Pending => Poll::Pending,
                    };
                }
            })
            .await;
        });
        Ok(Opener(sender))
    }

    /// A new stream.
    pub async fn open(&self) -> Result<BoxedStream> {
        let (sender, receiver) = oneshot::channel();
        self.0.send(sender).ok().context("the connection has ended")?;
        let stream = receiver.await.context("the connection has ended")??;
        Ok(Box::new(stream.compat()))
    }
}
