//! The end that asks and counts.

use std::io::{Read as _, Write as _};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use quell_net::{Class, Stream};
use quell_os::clock;

use super::connection::{Connection, Connector};
use super::pattern::Pattern;
use super::server::{
    CPU, MEMORY, MESSAGES, PING, SOCKET, STALLED, STREAM, WAITS, WATCHED, ZERO_COPY,
};
use super::watched::{LOG_MAX, Request, Watch, slowest};
use super::{Case, Measured, System};

/// Round trips before those that count.
const WARM_UP: usize = 200;
/// Between two requests beside bulk streams.
const PAUSE: Duration = Duration::from_micros(200);
/// Before a case beside bulk streams counts, so that those are at their rate.
const BULK_WARM_UP: Duration = Duration::from_millis(200);

/// What is written at once where a stream without copies is compared with one that has them.
const COPIED_AT_ONCE: usize = 256 << 10;
/// What is written to a stream that nothing reads: more than any buffer holds.
const STALLED_BYTES: usize = 1 << 20;
/// Streams that have not ended so long after their time have stopped.
const STALL_TIMEOUT: Duration = Duration::from_secs(3);

/// Processor time of this process.
///
/// # Errors
/// When the kernel does not tell.
pub fn cpu_ns() -> Result<u64> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Ok(u64::try_from(time.tv_sec)? * 1_000_000_000 + u64::try_from(time.tv_nsec)?)
}

/// Runs a case against a server.
///
/// # Errors
/// When it fails, or other bytes arrive than were sent.
pub fn run(system: System, address: &str, case: Case, time: Duration) -> Result<Measured> {
    let connector = Connector::new(system, address)?;
    let control = connector.connect(Class::Latency).context("connect")?;
    let pattern = match case {
        Case::Streams { bytes, .. } => Pattern::of_pieces(bytes),
        _ => Pattern::new(),
    };
    let run = Run { connector: &connector, control: &control, time, pattern };
    // A connection that is opened by its first bytes has to be the server's first.
    run.server_cpu_ns()?;
    match case {
        Case::PingPong { bytes } => run.ping_pong(bytes),
        Case::Streams { count, bytes } => run.streams(count, bytes, false, run.time),
        Case::ZeroCopy { bytes } => run.streams(1, bytes, true, run.time),
        Case::Messages { sockets, bytes } => run.messages(sockets, bytes),
        Case::Beside { streams, bytes } => run.beside(streams, bytes, false),
        Case::Watched { streams, bytes } => run.beside(streams, bytes, true),
        Case::Connect { bytes } => run.connects(bytes),
        Case::Stalled { streams, bytes } => run.beside_stalled(streams, bytes),
    }
}

struct Run<'a> {
    connector: &'a Connector,
    control: &'a Connection,
    time: Duration,
    pattern: Pattern,
}

/// The start of the time that counts.
struct Start {
    at: Instant,
    client_cpu_ns: u64,
    server_cpu_ns: u64,
}

impl Run<'_> {
    fn server_cpu_ns(&self) -> Result<u64> {
        self.ask(CPU)
    }

    /// Asks for a number.
    fn ask(&self, question: u8) -> Result<u64> {
        let mut answer = [0; 8];
        { self.control }.write_all(&[question])?;
        { self.control }.read_exact(&mut answer)?;
        Ok(u64::from_le_bytes(answer))
    }

    /// What the server's thread waited for each request of a connection that is watched.
    fn server_waits_ns(&self) -> Result<Vec<u64>> {
        let count = usize::try_from(self.ask(WAITS)?)?;
        ensure!(count <= LOG_MAX, "{count} requests");
        let mut bytes = vec![0; count * 8];
        { self.control }.read_exact(&mut bytes)?;
        let (words, _) = bytes.as_chunks();
        Ok(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }

    fn start(&self) -> Result<Start> {
        let server_cpu_ns = self.server_cpu_ns()?;
        Ok(Start { at: Instant::now(), client_cpu_ns: cpu_ns()?, server_cpu_ns })
    }

    fn end(&self, start: &Start, bytes: u64, ops: u64, samples: Vec<u64>) -> Result<Measured> {
        let ns = nanos(start.at.elapsed());
        let client_cpu_ns = cpu_ns()? - start.client_cpu_ns;
        let server_cpu_ns = self.server_cpu_ns()? - start.server_cpu_ns;
        let measured = Measured {
            bytes,
            ops,
            ns,
            client_cpu_ns,
            server_cpu_ns,
            samples,
            ..Measured::default()
        };
        Ok(measured)
    }

    fn open(&self, kind: u8, number: u64, class: Class) -> Result<Connection> {
        self.open_with(kind, number, class, &[])
    }

    /// With its first bytes in one write, so that a connection that is opened by its first bytes has them all.
    fn open_with(&self, kind: u8, number: u64, class: Class, first: &[u8]) -> Result<Connection> {
        let connection = self.connector.connect(class)?;
        let mut head = vec![kind];
        head.extend(number.to_le_bytes());
        head.extend(first);
        (&connection).write_all(&head)?;
        Ok(connection)
    }

    /// One request, and its answer.
    fn round_trip(&self, connection: &Connection, at: u64, answer: &mut [u8]) -> Result<Duration> {
        let start = Instant::now();
        { connection }.write_all(self.pattern.at(at, answer.len()))?;
        { connection }.read_exact(answer)?;
        let time = start.elapsed();
        self.pattern.check(at, answer)?;
        Ok(time)
    }

    fn ping_pong(&self, bytes: usize) -> Result<Measured> {
        let connection = self.open(PING, bytes as u64, Class::Latency)?;
        let mut answer = vec![0; bytes];
        for at in 0..WARM_UP {
            self.round_trip(&connection, at as u64, &mut answer)?;
        }
        let start = self.start()?;
        let mut samples = Vec::new();
        while start.at.elapsed() < self.time {
            let time = self.round_trip(&connection, samples.len() as u64, &mut answer)?;
            samples.push(nanos(time));
        }
        let ops = samples.len() as u64;
        self.end(&start, 2 * ops * bytes as u64, ops, samples)
    }

    /// A new connection for each request.
    fn connects(&self, bytes: usize) -> Result<Measured> {
        let mut answer = vec![0; bytes];
        let mut once = |at: u64| -> Result<u64> {
            let start = Instant::now();
            let request = self.pattern.at(at, bytes);
            let connection = self.open_with(PING, bytes as u64, Class::Latency, request)?;
            (&connection).read_exact(&mut answer)?;
            self.pattern.check(at, &answer)?;
            connection.end()?;
            Ok(nanos(start.elapsed()))
        };
        for at in 0..20 {
            once(at)?;
        }
        let start = self.start()?;
        let mut samples = Vec::new();
        while start.at.elapsed() < self.time {
            samples.push(once(samples.len() as u64)?);
        }
        let ops = samples.len() as u64;
        self.end(&start, 2 * ops * bytes as u64, ops, samples)
    }

    /// Streams to their ends: what counts is what the server has read.
    fn streams(
        &self,
        count: usize,
        bytes: usize,
        without_copies: bool,
        time: Duration,
    ) -> Result<Measured> {
        let kind = if without_copies { ZERO_COPY } else { STREAM };
        let connections = (0..count).map(|_| self.open(kind, 0, Class::Throughput));
        let connections: Vec<Connection> = connections.collect::<Result<_>>()?;
        let start = self.start()?;
        let until = start.at + time;
        let total = thread::scope(|scope| {
            let writers: Vec<_> = connections
                .iter()
                .map(|connection| {
                    scope.spawn(move || match connection {
                        Connection::Quell(stream) if without_copies => {
                            self.push_in_place(stream, bytes, until)
                        }
                        // The best size for each that copies.
                        other if without_copies && bytes >= COPIED_AT_ONCE / 4 => {
                            self.push(other, COPIED_AT_ONCE, || Instant::now() < until)
                        }
                        other => self.push(other, bytes, || Instant::now() < until),
                    })
                })
                .collect();
            join_all(writers)
        })?;
        let copied: Vec<f64> = connections.iter().filter_map(Connection::copied_share).collect();
        let copied_share =
            (!copied.is_empty()).then(|| copied.iter().sum::<f64>() / copied.len() as f64);
        let measured = self.end(&start, total, total / bytes as u64, Vec::new())?;
        Ok(Measured { copied_share, ..measured })
    }

    /// Writes a stream, ends it, and returns how many bytes the server has read.
    fn push(
        &self,
        mut connection: &Connection,
        bytes: usize,
        goes_on: impl Fn() -> bool,
    ) -> Result<u64> {
        let mut sent = 0;
        // One at least: on a busy host the time may be over before the thread runs.
        while sent == 0 || goes_on() {
            connection.write_all(self.pattern.at(sent, bytes))?;
            sent += bytes as u64;
        }
        confirmed(connection, sent)
    }

    fn push_in_place(&self, stream: &Stream, bytes: usize, until: Instant) -> Result<u64> {
        let mut sent = 0;
        while sent == 0 || Instant::now() < until {
            let mut place = stream.reserve(bytes)?;
            let memory = place.bytes_mut();
            let length = memory.len();
            // A program that has no copy to save makes its bytes in place.
            memory.copy_from_slice(self.pattern.at(sent, length));
            place.commit(length)?;
            sent += length as u64;
        }
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut total = [0; 8];
        (&mut &*stream).read_exact(&mut total)?;
        ensure!(u64::from_le_bytes(total) == sent, "the server has read another number of bytes");
        Ok(sent)
    }

    /// Streams alone, then beside one that is never read, through the same channels where there are such.
    fn beside_stalled(&self, streams: usize, bytes: usize) -> Result<Measured> {
        self.streams(streams, bytes, false, BULK_WARM_UP)?;
        let alone = self.streams(streams, bytes, false, self.time)?;
        let stalled = self.open(STALLED, 0, Class::Throughput)?;
        // It waits for ever, and ends with the process.
        thread::spawn(move || {
            let memory = vec![0; STALLED_BYTES];
            while (&stalled).write_all(&memory).is_ok() {}
        });
        thread::sleep(BULK_WARM_UP);
        self.give_up_later();
        let beside = self.streams(streams, bytes, false, self.time)?;
        let rate = |measured: &Measured| measured.bytes as f64 / measured.ns as f64;
        let part = Some(rate(&beside) / rate(&alone));
        let server_peak_bytes = Some(self.ask(MEMORY)?);
        Ok(Measured { part, server_peak_bytes, ..beside })
    }

    /// Streams that the stalled one stops stop for ever: answers then that nothing went on, and ends the process.
    fn give_up_later(&self) {
        let limit = self.time + STALL_TIMEOUT;
        thread::spawn(move || {
            thread::sleep(limit);
            // The one that was tried.
            let nothing =
                Measured { ops: 1, ns: nanos(limit), part: Some(0.0), ..Measured::default() };
            if let Ok(answer) = serde_json::to_string(&nothing) {
                println!("{answer}");
                std::process::exit(0);
            }
        });
    }

    fn messages(&self, sockets: usize, bytes: usize) -> Result<Measured> {
        let all = (0..sockets).map(|_| self.open(SOCKET, 0, Class::Throughput));
        let all: Vec<Connection> = all.collect::<Result<_>>()?;
        let control = self.open(MESSAGES, sockets as u64, Class::Latency)?;
        (&control).read_exact(&mut [0; 1])?;
        let start = self.start()?;
        let (mut sent, mut rounds) = (0_u64, 0_u64);
        while sent == 0 || start.at.elapsed() < self.time {
            for socket in &all {
                (&*socket).write_all(self.pattern.at(rounds * bytes as u64, bytes))?;
            }
            rounds += 1;
            sent += (sockets * bytes) as u64;
        }
        for socket in &all {
            (&*socket).flush()?;
            socket.end()?;
        }
        let total = confirmed_by(&control, sent)?;
        self.end(&start, total, total / bytes as u64, Vec::new())
    }

    /// Requests at intervals beside streams in the same two processes.
    fn beside(&self, streams: usize, bytes: usize, is_watched: bool) -> Result<Measured> {
        let bulk = (0..streams).map(|_| self.open(STREAM, 0, Class::Throughput));
        let bulk: Vec<Connection> = bulk.collect::<Result<_>>()?;
        let kind = if is_watched { WATCHED } else { PING };
        let connection = self.open(kind, bytes as u64, Class::Latency)?;
        let (stops, ready) = (AtomicBool::new(false), Barrier::new(streams + 1));
        thread::scope(|scope| {
            let writers: Vec<_> = bulk
                .iter()
                .map(|stream| {
                    let (stops, ready) = (&stops, &ready);
                    scope.spawn(move || {
                        ready.wait();
                        self.connector.system().prioritise(Class::Throughput)?;
                        // Relaxed: one end of the time is as good as another.
                        self.push(stream, 256 << 10, || !stops.load(Ordering::Relaxed))
                    })
                })
                .collect();
            ready.wait();
            let prioritised = self.connector.system().prioritise(Class::Latency);
            let asked = prioritised.and_then(|()| match is_watched {
                true => self.ask_watched(&connection, streams, bytes),
                false => self.ask_at_intervals(&connection, streams, bytes),
            });
            stops.store(true, Ordering::Relaxed);
            let total = join_all(writers)?;
            let Asked { start, samples, requests } = asked?;
            // The streams began before the time that counts, and end after it: their rate is that of all of it.
            let ops = samples.len() as u64;
            let measured = self.end(&start, total, ops, samples)?;
            let waits = if is_watched { self.server_waits_ns()? } else { Vec::new() };
            Ok(Measured { slowest: slowest(requests, &waits), ..measured })
        })
    }

    fn ask_at_intervals(
        &self,
        connection: &Connection,
        streams: usize,
        bytes: usize,
    ) -> Result<Asked> {
        let start = self.start()?;
        let warm_until = start.at + if streams > 0 { BULK_WARM_UP } else { Duration::ZERO };
        let mut answer = vec![0; bytes];
        let mut samples = Vec::new();
        let mut asked = 0;
        while samples.is_empty() || Instant::now() < warm_until + self.time {
            let time = self.round_trip(connection, asked, &mut answer)?;
            asked += 1;
            if Instant::now() >= warm_until {
                samples.push(nanos(time));
            }
            thread::sleep(PAUSE);
        }
        Ok(Asked { start, samples, requests: Vec::new() })
    }

    /// One request after the other, each with what it waited for.
    fn ask_watched(&self, connection: &Connection, streams: usize, bytes: usize) -> Result<Asked> {
        let watch = Watch::start()?;
        let start = self.start()?;
        let warm_until = start.at + if streams > 0 { BULK_WARM_UP } else { Duration::ZERO };
        let mut answer = vec![0; bytes];
        let (mut samples, mut requests, mut asked) = (Vec::new(), Vec::new(), 0);
        while samples.is_empty() || Instant::now() < warm_until + self.time {
            let (before, at) = (watch.read()?, clock::now());
            let ns = nanos(self.round_trip(connection, asked, &mut answer)?);
            if Instant::now() >= warm_until {
                samples.push(ns);
                requests.push(Request::new(asked as usize, at.0, ns, before, watch.read()?));
            }
            asked += 1;
        }
        Ok(Asked { start, samples, requests })
    }
}

/// What was asked.
struct Asked {
    start: Start,
    samples: Vec<u64>,
    requests: Vec<Request>,
}

fn confirmed(connection: &Connection, sent: u64) -> Result<u64> {
    connection.end()?;
    confirmed_by(connection, sent)
}

fn confirmed_by(mut connection: &Connection, sent: u64) -> Result<u64> {
    let mut total = [0; 8];
    connection.read_exact(&mut total)?;
    let total = u64::from_le_bytes(total);
    ensure!(total == sent, "{sent} bytes were sent, the server has read {total}");
    Ok(total)
}

fn join_all(writers: Vec<thread::ScopedJoinHandle<'_, Result<u64>>>) -> Result<u64> {
    let mut total = 0;
    for writer in writers {
        total += writer.join().map_err(|_| anyhow!("a writer panicked"))??;
    }
    Ok(total)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
