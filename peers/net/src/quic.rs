//! QUIC, as a careful user of `quinn` sets it up: segmentation offload and MTU discovery as they are by default, windows
//! that no stream of the benchmark fills, socket buffers of megabytes, cubic.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::{io, net};

use anyhow::{Context as _, Result, bail};
use quinn::congestion::CubicConfig;
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, RecvStream, SendStream, ServerConfig,
    TokioRuntime, TransportConfig, VarInt,
};
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::BoxedStream;

/// The name in the server's certificate.
const NAME: &str = "quell-bench";
/// What a stream may be ahead of its reader, and all of them.
const STREAM_WINDOW: u32 = 8 << 20;
const WINDOW: u32 = 64 << 20;
/// Bytes of the socket's buffers.
const SOCKET_BYTES: usize = 8 << 20;
const STREAMS_MAX: u32 = 1_024;

fn transport() -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    config.stream_receive_window(VarInt::from_u32(STREAM_WINDOW));
    config.receive_window(VarInt::from_u32(WINDOW));
    config.send_window(u64::from(WINDOW));
    config.max_concurrent_bidi_streams(VarInt::from_u32(STREAMS_MAX));
    config.congestion_controller_factory(Arc::new(CubicConfig::default()));
    Arc::new(config)
}

fn endpoint(address: SocketAddr, server: Option<ServerConfig>) -> Result<Endpoint> {
    let socket = net::UdpSocket::bind(address).context("bind")?;
    // Root may have more than the host's limit; others have that.
    if sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BYTES).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BYTES)?;
    }
    sockopt::set_socket_send_buffer_size(&socket, SOCKET_BYTES)?;
    let runtime = Arc::new(TokioRuntime);
    Ok(Endpoint::new(EndpointConfig::default(), server, socket, runtime)?)
}

/// Waits for a client.
pub struct Listener(Endpoint);

/// A server's connection.
pub struct Acceptor {
    _endpoint: Endpoint,
    connection: Connection,
}

/// A client's connection.
pub struct Opener {
    endpoint: Endpoint,
    connection: Connection,
}

impl Listener {
    /// Listens; returns the address, and the certificate that clients have to trust.
    pub fn bind(address: SocketAddr) -> Result<(Listener, String)> {
        let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()])?;
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let text: String = certificate.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut config = ServerConfig::with_single_cert(vec![certificate], key)?;
        config.transport_config(transport());
        let endpoint = endpoint(address, Some(config))?;
        let own = endpoint.local_addr()?;
        Ok((Listener(endpoint), format!("{own}/{text}")))
    }

    /// The first client.
    pub async fn accept(self) -> Result<Acceptor> {
        let incoming = self.0.accept().await.context("the endpoint is closed")?;
        Ok(Acceptor { connection: incoming.await.context("accept")?, _endpoint: self.0 })
    }
}

impl Acceptor {
    /// The next stream; `None` when the client is gone.
    pub async fn accept(&mut self) -> Option<BoxedStream> {
        let (send, receive) = self.connection.accept_bi().await.ok()?;
        Some(Box::new(Duplex { send, receive }))
    }
}

impl Opener {
    /// Connects to what a [`Listener`] has printed.
    pub async fn connect(address: &str) -> Result<Opener> {
        let (address, certificate) = address.split_once('/').context("no certificate")?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(bytes_of(certificate)?))?;
        let mut config = ClientConfig::with_root_certificates(Arc::new(roots))?;
        config.transport_config(transport());
        let endpoint = endpoint(SocketAddr::from(([0, 0, 0, 0], 0)), None)?;
        let connecting = endpoint.connect_with(config, address.parse()?, NAME)?;
        let connection = connecting.await.context("connect")?;
        Ok(Opener { connection, endpoint })
    }

    /// A new stream.
    pub async fn open(&self) -> Result<BoxedStream> {
        let (send, receive) = self.connection.open_bi().await?;
        Ok(Box::new(Duplex { send, receive }))
    }
}

impl Opener {
    /// Ends the connection, so that the server need not wait for its time-out.
    pub async fn close(&self) {
        self.connection.close(VarInt::from_u32(0), b"done");
        self.endpoint.wait_idle().await;
    }
}

fn bytes_of(hexadecimal: &str) -> Result<Vec<u8>> {
    let digits = hexadecimal.as_bytes();
    if !hexadecimal.is_ascii() || digits.len() % 2 != 0 {
        bail!("no certificate");
    }
    let byte = |at: usize| Ok(u8::from_str_radix(&hexadecimal[at..at + 2], 16)?);
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// Both directions of a stream.
struct Duplex {
    send: SendStream,
    receive: RecvStream,
}

impl AsyncRead for Duplex {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.receive).poll_read(cx, into)
    }
}

impl AsyncWrite for Duplex {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.send), cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.send).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.send).poll_shutdown(cx)
    }
}
