//! The end that serves.

use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

use super::pattern::Pattern;
use super::{Acceptor, BoxedStream, CPU, MESSAGES, PING, SOCKET, STREAM, cpu_ns};

/// Bytes that a stream's reader takes at once, and a reader of messages.
const READ_BYTES: usize = 256 << 10;
const MESSAGES_BYTES: usize = 64 << 10;

struct Server {
    pattern: Pattern,
    arrived: mpsc::UnboundedSender<BoxedStream>,
    sockets: Mutex<mpsc::UnboundedReceiver<BoxedStream>>,
}

/// Serves one client, until it ends its first stream.
pub async fn serve(mut acceptor: Acceptor) -> Result<()> {
    let Some(mut control) = acceptor.accept().await else { bail!("the client is gone") };
    let (arrived, sockets) = mpsc::unbounded_channel();
    let server =
        Arc::new(Server { pattern: Pattern::new(), arrived, sockets: Mutex::new(sockets) });
    tokio::spawn(async move {
        while let Some(stream) = acceptor.accept().await {
            let server = Arc::clone(&server);
            tokio::spawn(async move {
                if let Err(error) = server.stream(stream).await {
                    eprintln!("error: {error:#}");
                    std::process::exit(1);
                }
            });
        }
    });
    let mut asked = [0];
    while control.read(&mut asked).await.unwrap_or(0) > 0 {
        ensure!(asked[0] == CPU, "an unknown question");
        control.write_all(&cpu_ns()?.to_le_bytes()).await?;
        control.flush().await?;
    }
    Ok(())
}

impl Server {
    async fn stream(&self, mut stream: BoxedStream) -> Result<()> {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let [kind, number @ ..] = head;
        let number = u64::from_le_bytes(number);
        match kind {
            PING => ping(stream, usize::try_from(number)?).await,
            STREAM => {
                let total = read_all(&mut stream, &self.pattern, READ_BYTES).await?;
                answer(&mut stream, total).await
            }
            SOCKET => match self.arrived.send(stream) {
                Ok(()) => Ok(()),
                Err(_) => bail!("the server is ending"),
            },
            MESSAGES => self.messages(stream, number).await,
            other => bail!("an unknown kind {other} of stream"),
        }
    }

    /// Reads messages from so many streams until all have ended; answers with how many bytes there were.
    async fn messages(&self, mut stream: BoxedStream, sockets: u64) -> Result<()> {
        ensure!((1..=1_024).contains(&sockets), "{sockets} sockets");
        let mut arrived = self.sockets.lock().await;
        let mut all = Vec::new();
        while (all.len() as u64) < sockets {
            all.extend(arrived.recv().await);
        }
        stream.write_all(&[1]).await?;
        stream.flush().await?;
        let mut readers = JoinSet::new();
        for mut socket in all {
            readers
                .spawn(async move { read_all(&mut socket, &Pattern::new(), MESSAGES_BYTES).await });
        }
        let mut total = 0;
        while let Some(read) = readers.join_next().await {
            total += read??;
        }
        answer(&mut stream, total).await
    }
}

async fn answer(stream: &mut BoxedStream, total: u64) -> Result<()> {
    stream.write_all(&total.to_le_bytes()).await?;
    Ok(stream.shutdown().await?)
}

/// Reads a stream to its end, and compares every byte.
async fn read_all(stream: &mut BoxedStream, pattern: &Pattern, at_once: usize) -> Result<u64> {
    let mut memory = vec![0; at_once];
    let mut total = 0;
    loop {
        let read = stream.read(&mut memory).await?;
        if read == 0 {
            return Ok(total);
        }
        pattern.check(total, &memory[..read])?;
        total += read as u64;
    }
}

/// Answers each request with its own bytes.
async fn ping(mut stream: BoxedStream, bytes: usize) -> Result<()> {
    ensure!((1..=1 << 20).contains(&bytes), "a request of {bytes} bytes");
    let mut request = vec![0; bytes];
    loop {
        let first = stream.read(&mut request).await.unwrap_or(0);
        if first == 0 {
            return Ok(());
        }
        stream.read_exact(&mut request[first..]).await?;
        stream.write_all(&request).await?;
        stream.flush().await?;
    }
}
