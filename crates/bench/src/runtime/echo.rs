//! The client of the echo servers. It never sleeps, so that its own wake-ups are no part of what it measures.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::RuntimeSpec;
use super::cases::Measured;
use crate::host::Program;
use quell_terminal::Stop;

/// Bytes of a message.
const MESSAGE: usize = 64;
/// Latencies that are kept at most.
const SAMPLES_MAX: usize = 100_000;
/// How long nothing may come back.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection with one message on its way.
struct Connection {
    stream: TcpStream,
    sent: Instant,
    /// Bytes of the answer that are there.
    taken: usize,
}

impl Connection {
    fn open(port: u16) -> Result<Connection> {
        let stream = TcpStream::connect(("127.0.0.1", port)).context("connect to the server")?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut connection = Connection { stream, sent: Instant::now(), taken: 0 };
        connection.send()?;
        Ok(connection)
    }

    fn send(&mut self) -> Result<()> {
        self.sent = Instant::now();
        self.taken = 0;
        // 64 bytes fit: nothing else is on its way.
        Ok(self.stream.write_all(&[7; MESSAGE])?)
    }

    /// How long the answer took, if all of it is there; then the next message is on its way.
    fn poll(&mut self) -> Result<Option<Duration>> {
        let mut buffer = [0; MESSAGE];
        match self.stream.read(&mut buffer[self.taken..]) {
            Ok(0) => bail!("the server hung up"),
            Ok(some) => self.taken += some,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        if self.taken < MESSAGE {
            return Ok(None);
        }
        let took = self.sent.elapsed();
        self.send()?;
        Ok(Some(took))
    }
}

/// Keeps a message on its way on each connection: first for nothing, then for the time asked.
///
/// # Errors
/// When the server hangs up, does not answer, or a stop was asked for.
pub fn measure(
    port: u16,
    connections: usize,
    spec: &RuntimeSpec,
    server: &Program,
    stop: &Stop,
) -> Result<Measured> {
    let open = (0..connections).map(|_| Connection::open(port));
    let mut open: Vec<Connection> = open.collect::<Result<_>>()?;
    exchange(&mut open, spec.warm_up, &mut Vec::new(), stop)?;
    let (before, since) = (server.usage()?, Instant::now());
    let mut samples = Vec::with_capacity(SAMPLES_MAX);
    let ops = exchange(&mut open, spec.time, &mut samples, stop)?;
    let (ns, after) = (since.elapsed().as_nanos() as u64, server.usage()?);
    samples.sort_unstable();
    Ok(Measured { ops, ns, cpu_ns: after.cpu.since(before.cpu).0, samples })
}

fn exchange(
    open: &mut [Connection],
    time: Duration,
    samples: &mut Vec<u64>,
    stop: &Stop,
) -> Result<u64> {
    let (since, mut last, mut ops) = (Instant::now(), Instant::now(), 0);
    // Longer where a hypervisor stopped a core all that time.
    while since.elapsed() < time || ops == 0 {
        stop.check()?;
        for connection in &mut *open {
            let Some(took) = connection.poll()? else { continue };
            ops += 1;
            last = connection.sent;
            if samples.len() < SAMPLES_MAX {
                samples.push(took.as_nanos() as u64);
            }
        }
        ensure!(last.elapsed() < PATIENCE, "nothing came back for 5 s");
    }
    Ok(ops)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::process::Command;

    use quell_model::CoreId;

    use super::*;

    #[test]
    fn what_comes_back_in_pieces_is_one_answer() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_nodelay(true).unwrap();
            let mut message = [0; MESSAGE];
            let mut answers = 0u64;
            while stream.read_exact(&mut message).is_ok() {
                for piece in message.chunks(40) {
                    if stream.write_all(piece).is_err() {
                        return answers;
                    }
                }
                answers += 1;
            }
            answers
        });
        let spec = RuntimeSpec {
            command: "test".into(),
            only: Vec::new(),
            rounds: 1,
            warm_up: Duration::from_millis(5),
            time: Duration::from_millis(50),
            work: CoreId(0),
            other: CoreId(0),
            peers: "none".into(),
        };
        let program = Program::start("sleep", Command::new("sleep").arg("60")).unwrap();
        let measured = measure(port, 1, &spec, &program, &Stop::default()).unwrap();
        assert!(measured.ops <= server.join().unwrap());
        assert_eq!(measured.samples.len() as u64, measured.ops.min(SAMPLES_MAX as u64));
        assert!(measured.ns >= 50_000_000);
    }
}
