//! The synthetic LC server: it works exactly as long as each request asks for.
//!
//! One thread accepts and hands connections to the workers in turn; each worker is a thread with an
//! epoll of its own and answers its connections' requests in their order. Work is a calibrated amount
//! of computation, not a length of wall time: a worker that is preempted still owes the rest, as a
//! real service would.
//!
//! For tests of runaway LC threads, a worker can be told to spin for ever, if the server allows it.

mod burn;
mod worker;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use quell_model::Nanos;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::error::LoadError;
use crate::protocol::synthetic::{FRAME_BYTES, Op, Reply, Request};
pub use burn::Calibration;
use worker::{Inbox, Worker};

/// Most workers.
const WORKERS_MAX: usize = 1_024;
/// How long a server may take to answer a command.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// How to serve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServeSpec {
    /// Where to listen; port 0 for any free one.
    pub addr: SocketAddr,
    /// Worker threads.
    pub workers: usize,
    /// Whether `runaway` requests are obeyed; refused otherwise.
    pub allow_runaway: bool,
    /// Speed of this machine, to make several servers or runs alike; measured if absent.
    pub calibration: Option<Calibration>,
}

impl ServeSpec {
    /// One worker, no runaways, speed measured at start.
    pub fn new(addr: SocketAddr) -> ServeSpec {
        ServeSpec { addr, workers: 1, allow_runaway: false, calibration: None }
    }
}

/// Requests that a server handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServeReport {
    /// Work done and answered.
    pub served: u64,
    /// Refused: runaways where they are not allowed.
    pub refused: u64,
    /// Runaways begun.
    pub runaways: u64,
    /// Connections closed because of bytes that are no request.
    pub malformed: u64,
}

impl ServeReport {
    fn add(&mut self, other: ServeReport) {
        self.served += other.served;
        self.refused += other.refused;
        self.runaways += other.runaways;
        self.malformed += other.malformed;
    }
}

/// A running server; stops when dropped.
pub struct Server {
    addr: SocketAddr,
    calibration: Calibration,
    stop: Arc<AtomicBool>,
    /// Wakes the accepting thread.
    wake: Arc<OwnedFd>,
    acceptor: Option<JoinHandle<ServeReport>>,
}

impl Server {
    /// Listens, calibrates and starts all threads.
    ///
    /// # Errors
    /// An address that is taken, a worker count out of range, or no threads or descriptors left.
    pub fn start(spec: &ServeSpec) -> Result<Server, LoadError> {
        if !(1..=WORKERS_MAX).contains(&spec.workers) {
            let reason = format!("{} workers; use 1 to {WORKERS_MAX}", spec.workers);
            return Err(LoadError::Spec(reason));
        }
        let listen = |source| LoadError::Listen { addr: spec.addr, source };
        let listener = TcpListener::bind(spec.addr).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let addr = listener.local_addr().map_err(listen)?;
        let calibration = spec.calibration.unwrap_or_else(Calibration::measure);
        let stop = Arc::new(AtomicBool::new(false));
        let wake = Arc::new(new_eventfd()?);
        let mut workers = Vec::new();
        for index in 0..spec.workers {
            let worker = Worker::new(calibration, spec.allow_runaway, stop.clone())?;
            let inbox = worker.inbox();
            let thread = std::thread::Builder::new()
                .name(format!("lc-{index}"))
                .spawn(move || worker.run())
                .map_err(LoadError::system("start a worker thread"))?;
            workers.push((inbox, thread));
        }
        let (stopping, waking) = (stop.clone(), wake.clone());
        let acceptor = std::thread::Builder::new()
            .name("lc-accept".into())
            .spawn(move || accept(&listener, workers, &stopping, &waking))
            .map_err(LoadError::system("start the accepting thread"))?;
        Ok(Server { addr, calibration, stop, wake, acceptor: Some(acceptor) })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The speed that work is measured by.
    pub fn calibration(&self) -> Calibration {
        self.calibration
    }

    /// Ends all threads, runaways too, and says what they did.
    pub fn stop(mut self) -> ServeReport {
        self.end()
    }

    fn end(&mut self) -> ServeReport {
        let Some(acceptor) = self.acceptor.take() else { return ServeReport::default() };
        // Relaxed: the eventfd's write and read order what follows.
        self.stop.store(true, Ordering::Relaxed);
        ring(&self.wake);
        acceptor.join().unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Serves until SIGTERM or SIGINT. `on_ready` hears where, and by which calibration.
///
/// # Errors
/// As [`Server::start`].
pub fn serve(spec: &ServeSpec, on_ready: impl FnOnce(&Server)) -> Result<ServeReport, LoadError> {
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT])
        .map_err(LoadError::system("catch SIGTERM"))?;
    let server = Server::start(spec)?;
    on_ready(&server);
    signals.forever().next();
    Ok(server.stop())
}

/// Makes one worker of a server at `addr` spin for `spin`, for ever if `None`; whether it does.
///
/// # Errors
/// No server there, or not one of this kind.
pub fn send_runaway(addr: SocketAddr, spin: Option<Nanos>) -> Result<bool, LoadError> {
    let op = Op::Runaway { spin_ns: spin.map(|spin| spin.0) };
    let frame = Request { id: 0, op }.to_bytes();
    let exchange = || {
        let mut stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.write_all(&frame)?;
        let mut reply = [0; FRAME_BYTES];
        stream.read_exact(&mut reply)?;
        Reply::from_bytes(&reply).map_err(std::io::Error::other)
    };
    let reply = exchange().map_err(|source| LoadError::Connect { addr, source })?;
    Ok(reply.done)
}

/// Hands new connections to the workers in turn, until told to stop; then joins them.
fn accept(
    listener: &TcpListener,
    workers: Vec<(Inbox, JoinHandle<ServeReport>)>,
    stop: &AtomicBool,
    wake: &OwnedFd,
) -> ServeReport {
    let mut turn = workers.iter().map(|(inbox, _)| inbox).cycle();
    // Relaxed: see `Server::end`.
    while !stop.load(Ordering::Relaxed) {
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(wake, PollFlags::IN)];
        // An interrupted poll is followed by another.
        let _ = poll(&mut fds, None);
        while let Ok((stream, _)) = listener.accept() {
            if let Some(inbox) = turn.next() {
                inbox.hand(stream);
            }
        }
    }
    let mut report = ServeReport::default();
    for (inbox, thread) in workers {
        inbox.ring();
        report.add(thread.join().unwrap_or_default());
    }
    report
}

fn new_eventfd() -> Result<OwnedFd, LoadError> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(LoadError::system("eventfd"))
}

/// Makes an eventfd readable.
fn ring(fd: &OwnedFd) {
    // It fails only where the counter is full, and then it is readable already.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}
