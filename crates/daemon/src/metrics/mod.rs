//! The metrics endpoint: what `quell status` knows, for Prometheus and its like.
//!
//! * `GET /metrics`: OpenMetrics 1.0 where the client accepts it, else Prometheus' text format 0.0.4;
//! * `GET /schema`: name, type, unit, help and labels of every metric as JSON;
//! * `GET /healthz`: 200 while the scheduler thread answers.
//!
//! A few threads of normal priority on the unmanaged cores accept connections and serve one request each.
//! The scheduler thread is asked as `quell status` asks it, through the manager, and at most once in
//! [`FRESH`], however many scrape.

mod http;
mod table;
#[cfg(test)]
mod tests;
mod text;

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};
use quell_control::protocol::{Method, Reply, Status};

use crate::access::Peer;
use crate::server::Incoming;
use http::{Answer, Request};
use text::Format;

/// Connections served at once; the kernel keeps a short queue of more.
const WORKERS: usize = 4;
/// An answer of the daemon serves all scrapes for this long.
const FRESH: Duration = Duration::from_millis(200);
/// How long the daemon may take to answer; Prometheus gives up after ten seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may take to send its request, and again to read the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
/// What is read of a client that was refused, so that it gets to see why.
const DRAINED_BYTES_MAX: u64 = 64 << 10;

/// A bound endpoint that does not serve yet: an address in use is found before anything changes.
pub struct Endpoint {
    listener: TcpListener,
}

/// What one answer is made of.
struct Scrape {
    status: Status,
    /// Resident memory of the daemon, in bytes; `None` if /proc does not tell.
    resident: Option<u64>,
}

/// The daemon, asked seldom.
struct Source {
    manager: Sender<Incoming>,
    last: Mutex<Option<(Instant, Scraped)>>,
}

type Scraped = Result<Arc<Scrape>, &'static str>;

impl Endpoint {
    /// Takes the address.
    ///
    /// # Errors
    /// When it is in use, or not this host's.
    pub fn bind(address: SocketAddr) -> io::Result<Endpoint> {
        Ok(Endpoint { listener: TcpListener::bind(address)? })
    }

    /// Serves until the program ends, from threads that stay where the caller is.
    ///
    /// # Errors
    /// When there are no threads left.
    pub fn serve(self, manager: Sender<Incoming>) -> io::Result<()> {
        let source = Arc::new(Source { manager, last: Mutex::default() });
        let listener = Arc::new(self.listener);
        for _ in 0..WORKERS {
            let (listener, source) = (Arc::clone(&listener), Arc::clone(&source));
            std::thread::Builder::new().name("quell-metrics".into()).spawn(move || {
                loop {
                    match listener.accept() {
                        // A client that is gone, or too slow, ends its own connection only.
                        Ok((stream, _)) => {
                            let _ = converse(&stream, &source);
                        }
                        // Out of file numbers or memory: those pass; a busy loop would not help.
                        Err(_) => std::thread::sleep(Duration::from_millis(50)),
                    }
                }
            })?;
        }
        Ok(())
    }
}

/// One request, one answer.
fn converse(stream: &TcpStream, source: &Source) -> io::Result<()> {
    let answer = match http::read(&mut Timed::new(stream))? {
        Ok(request) => answer(&request, source),
        Err(refusal) => refusal,
    };
    let mut client = Timed::new(stream);
    client.write_all(&answer.to_bytes())?;
    if !answer.is_ok() {
        // Closing with bytes unread would reset the connection, and the client might not see the answer.
        stream.shutdown(Shutdown::Write)?;
        io::copy(&mut client.take(DRAINED_BYTES_MAX), &mut io::sink())?;
    }
    Ok(())
}

fn answer(request: &Request, source: &Source) -> Answer {
    match request.path.as_str() {
        "/metrics" => match source.scrape() {
            Ok(scrape) => {
                let format = Format::accepted(&request.accept);
                Answer::ok(format.content_type(), text::render(&scrape, format))
            }
            Err(why) => Answer::unavailable(why),
        },
        "/healthz" => match source.scrape() {
            Ok(_) => Answer::ok("text/plain; charset=utf-8", "ok\n".to_owned()),
            Err(why) => Answer::unavailable(why),
        },
        "/schema" => Answer::ok("application/json", table::schema().to_string()),
        _ => Answer::not_found(),
    }
}

impl Source {
    /// The daemon's answer, no older than [`FRESH`]. Who comes while it is asked waits for the same answer.
    fn scrape(&self) -> Scraped {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, scraped)) = &*last
            && at.elapsed() < FRESH
        {
            return scraped.clone();
        }
        let scraped =
            self.ask().map(|status| Arc::new(Scrape { status, resident: resident_bytes() }));
        *last = Some((Instant::now(), scraped.clone()));
        scraped
    }

    fn ask(&self) -> Result<Status, &'static str> {
        let (reply, answer) = bounded(1);
        let call = Incoming { peer: Peer::own(), connection: 0, call: Method::Status, reply };
        self.manager.send_timeout(call, ANSWER_TIMEOUT).map_err(|_| "the daemon is ending")?;
        match answer.recv_timeout(ANSWER_TIMEOUT) {
            Ok(Reply::Status(status)) => Ok(*status),
            Ok(_) => Err("the scheduler thread does not answer"),
            Err(_) => Err("the daemon does not answer"),
        }
    }
}

/// Resident memory of this process: the second number of /proc/self/statm, in pages (proc(5)).
fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// A client with a deadline for all that is said in one direction, however slowly.
struct Timed<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Timed<'_> {
    fn new(stream: &TcpStream) -> Timed<'_> {
        Timed { stream, deadline: Instant::now() + CLIENT_TIMEOUT }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(into)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
