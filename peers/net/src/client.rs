//! The end that asks and counts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

use super::pattern::Pattern;
use super::{BoxedStream, CPU, MESSAGES, Measured, Opener, PING, SOCKET, STREAM, cpu_ns};

/// Round trips before those that count.
const WARM_UP: u64 = 200;

/// Runs a case against a server.
pub async fn run(opener: &Opener, case: &str, time: Duration) -> Result<Measured> {
    let control = opener.open().await?;
    let pattern = Arc::new(Pattern::new());
    let mut run = Run { opener, control, time, pattern };
    // The server takes the first stream that it sees for this one.
    run.server_cpu_ns().await?;
    match case {
        "pingpong-alone" => run.ping_pong(4_096).await,
        "messages-64b" => run.messages(64, 64).await,
        "stream-copying" => run.streams(1, 256 << 10).await,
        "eight-streams" => run.streams(8, 256 << 10).await,
        other => bail!("no case is called {other}"),
    }
}

struct Run<'a> {
    opener: &'a Opener,
    control: BoxedStream,
    time: Duration,
    pattern: Arc<Pattern>,
}

/// The start of the time that counts.
struct Start {
    at: Instant,
    client_cpu_ns: u64,
    server_cpu_ns: u64,
}

impl Run<'_> {
    async fn server_cpu_ns(&mut self) -> Result<u64> {
        let mut answer = [0; 8];
        self.control.write_all(&[CPU]).await?;
        self.control.flush().await?;
        self.control.read_exact(&mut answer).await?;
        Ok(u64::from_le_bytes(answer))
    }

    async fn start(&mut self) -> Result<Start> {
        let server_cpu_ns = self.server_cpu_ns().await?;
        Ok(Start { at: Instant::now(), client_cpu_ns: cpu_ns()?, server_cpu_ns })
    }

    async fn end(
        &mut self,
        start: &Start,
        bytes: u64,
        ops: u64,
        samples: Vec<u64>,
    ) -> Result<Measured> {
        let ns = nanos(start.at.elapsed());
        let client_cpu_ns = cpu_ns()? - start.client_cpu_ns;
        let server_cpu_ns = self.server_cpu_ns().await? - start.server_cpu_ns;
        Ok(Measured { bytes, ops, ns, client_cpu_ns, server_cpu_ns, samples })
    }

    async fn open(&self, kind: u8, number: u64) -> Result<BoxedStream> {
        let mut stream = self.opener.open().await?;
        let mut head = vec![kind];
        head.extend(number.to_le_bytes());
        stream.write_all(&head).await?;
        stream.flush().await?;
        Ok(stream)
    }

    async fn ping_pong(&mut self, bytes: usize) -> Result<Measured> {
        let mut stream = self.open(PING, bytes as u64).await?;
        let mut answer = vec![0; bytes];
        let pattern = Arc::clone(&self.pattern);
        for at in 0..WARM_UP {
            round_trip(&mut stream, &pattern, at, &mut answer).await?;
        }
        let start = self.start().await?;
        let mut samples = Vec::new();
        while start.at.elapsed() < self.time {
            let at = samples.len() as u64;
            samples.push(round_trip(&mut stream, &pattern, at, &mut answer).await?);
        }
        let ops = samples.len() as u64;
        self.end(&start, 2 * ops * bytes as u64, ops, samples).await
    }

    /// Streams to their ends: what counts is what the server has read.
    async fn streams(&mut self, count: usize, bytes: usize) -> Result<Measured> {
        let mut streams = Vec::new();
        for _ in 0..count {
            streams.push(self.open(STREAM, 0).await?);
        }
        let start = self.start().await?;
        let until = start.at + self.time;
        let mut writers = JoinSet::new();
        for stream in streams {
            writers.spawn(push(stream, Arc::clone(&self.pattern), bytes, until));
        }
        let mut total = 0;
        while let Some(sent) = writers.join_next().await {
            total += sent??;
        }
        self.end(&start, total, total / bytes as u64, Vec::new()).await
    }

    async fn messages(&mut self, sockets: usize, bytes: usize) -> Result<Measured> {
        let mut all = Vec::new();
        for _ in 0..sockets {
            all.push(self.open(SOCKET, 0).await?);
        }
        let mut control = self.open(MESSAGES, sockets as u64).await?;
        control.read_exact(&mut [0; 1]).await?;
        let start = self.start().await?;
        let (mut sent, mut rounds) = (0_u64, 0_u64);
        while sent == 0 || start.at.elapsed() < self.time {
            for stream in &mut all {
                stream.write_all(self.pattern.at(rounds * bytes as u64, bytes)).await?;
            }
            rounds += 1;
            sent += (sockets * bytes) as u64;
        }
        for stream in &mut all {
            stream.shutdown().await?;
        }
        let total = confirmed(&mut control, sent).await?;
        self.end(&start, total, total / bytes as u64, Vec::new()).await
    }
}

/// One request, and its answer.
async fn round_trip(
    stream: &mut BoxedStream,
    pattern: &Pattern,
    at: u64,
    answer: &mut [u8],
) -> Result<u64> {
    let start = Instant::now();
    stream.write_all(pattern.at(at, answer.len())).await?;
    stream.flush().await?;
    stream.read_exact(answer).await?;
    let ns = nanos(start.elapsed());
    pattern.check(at, answer)?;
    Ok(ns)
}

/// Writes a stream, ends it, and returns how many bytes the server has read.
async fn push(
    mut stream: BoxedStream,
    pattern: Arc<Pattern>,
    bytes: usize,
    until: Instant,
) -> Result<u64> {
    let mut sent = 0;
    while sent == 0 || Instant::now() < until {
        stream.write_all(pattern.at(sent, bytes)).await?;
        sent += bytes as u64;
    }
    stream.shutdown().await?;
    confirmed(&mut stream, sent).await
}

async fn confirmed(stream: &mut BoxedStream, sent: u64) -> Result<u64> {
    let mut total = [0; 8];
    stream.read_exact(&mut total).await?;
    let total = u64::from_le_bytes(total);
    ensure!(total == sent, "{sent} bytes were sent, the server has read {total}");
    Ok(total)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
