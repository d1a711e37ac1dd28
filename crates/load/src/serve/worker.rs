//! One worker: an epoll, the connections handed to it, and the work that they ask for.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use quell_model::Nanos;
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::fd::OwnedFd;

use super::burn::Calibration;
use super::{ServeReport, new_eventfd, ring};
use crate::clock::now;
use crate::error::LoadError;
use crate::protocol::Malformed;
use crate::protocol::synthetic::{FRAME_BYTES, Op, Reply, Request};

/// Bytes read at once.
const READ_BYTES: usize = 4_096;
/// Replies that may wait for a client which does not read; then its requests are left unread.
const UNREAD_BYTES_MAX: usize = 1 << 20;
/// Sockets served in one turn.
const EVENTS_MAX: usize = 64;
/// Key of the inbox in the epoll; connections count from 1.
const INBOX: u64 = 0;

/// Where a worker gets its connections from.
#[derive(Clone)]
pub(super) struct Inbox {
    streams: Arc<Mutex<Vec<TcpStream>>>,
    bell: Arc<OwnedFd>,
}

impl Inbox {
    /// Gives a connection to the worker.
    pub fn hand(&self, stream: TcpStream) {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        self.ring();
    }

    /// Wakes the worker.
    pub fn ring(&self) {
        ring(&self.bell);
    }
}

struct Client {
    stream: TcpStream,
    /// Bytes that are not yet a whole frame.
    input: Vec<u8>,
    /// Bytes that the client has not taken.
    output: Vec<u8>,
    /// The poller watches for room to write instead of requests.
    full: bool,
}

/// Why a client is let go.
enum Gone {
    Closed,
    Malformed,
}

impl From<Malformed> for Gone {
    fn from(_: Malformed) -> Gone {
        Gone::Malformed
    }
}

impl From<std::io::Error> for Gone {
    fn from(_: std::io::Error) -> Gone {
        Gone::Closed
    }
}

pub(super) struct Worker {
    poller: OwnedFd,
    inbox: Inbox,
    clients: HashMap<u64, Client>,
    next_key: u64,
    calibration: Calibration,
    allow_runaway: bool,
    stop: Arc<AtomicBool>,
    report: ServeReport,
}

impl Worker {
    pub fn new(
        calibration: Calibration,
        allow_runaway: bool,
        stop: Arc<AtomicBool>,
    ) -> Result<Worker, LoadError> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(LoadError::system("epoll_create"))?;
        let inbox = Inbox { streams: Arc::default(), bell: Arc::new(new_eventfd()?) };
        epoll::add(&poller, &*inbox.bell, epoll::EventData::new_u64(INBOX), epoll::EventFlags::IN)
            .map_err(LoadError::system("epoll_ctl"))?;
        Ok(Worker {
            poller,
            inbox,
            clients: HashMap::new(),
            next_key: INBOX + 1,
            calibration,
            allow_runaway,
            stop,
            report: ServeReport::default(),
        })
    }

    pub fn inbox(&self) -> Inbox {
        self.inbox.clone()
    }

    /// Serves until told to stop.
    pub fn run(mut self) -> ServeReport {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS_MAX);
        while !self.stopped() {
            events.clear();
            if epoll::wait(&self.poller, spare_capacity(&mut events), None).is_err() {
                continue;
            }
            for event in &events {
                match event.data.u64() {
                    INBOX => self.take_in(),
                    key => self.attend(key),
                }
            }
        }
        self.report
    }

    fn stopped(&self) -> bool {
        // Relaxed: the flag publishes nothing but itself.
        self.stop.load(Ordering::Relaxed)
    }

    fn take_in(&mut self) {
        let mut count = [0; 8];
        // Empty where another ring was taken together with this one.
        let _ = rustix::io::read(&*self.inbox.bell, &mut count);
        let streams =
            std::mem::take(&mut *self.inbox.streams.lock().unwrap_or_else(PoisonError::into_inner));
        for stream in streams {
            let key = self.next_key;
            self.next_key += 1;
            let ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
            let data = epoll::EventData::new_u64(key);
            let watched = epoll::add(&self.poller, &stream, data, epoll::EventFlags::IN);
            // A client that cannot be watched is closed by dropping it.
            if ready.is_ok() && watched.is_ok() {
                let client = Client { stream, input: Vec::new(), output: Vec::new(), full: false };
                self.clients.insert(key, client);
            }
        }
    }

    fn attend(&mut self, key: u64) {
        let Some(mut client) = self.clients.remove(&key) else { return };
        match self.serve(key, &mut client) {
            Ok(()) => {
                self.clients.insert(key, client);
            }
            Err(Gone::Closed) => {}
            Err(Gone::Malformed) => self.report.malformed += 1,
        }
    }

    fn serve(&mut self, key: u64, client: &mut Client) -> Result<(), Gone> {
        if !client.full {
            read(client)?;
            self.answer(client)?;
        }
        flush(client)?;
        // A client that was full may have sent whole requests that were left aside meanwhile.
        if client.full && client.output.is_empty() {
            self.answer(client)?;
            flush(client)?;
        }
        let full = !client.output.is_empty();
        if full != client.full {
            client.full = full;
            let flags = if full { epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
            let data = epoll::EventData::new_u64(key);
            epoll::modify(&self.poller, &client.stream, data, flags).map_err(|_| Gone::Closed)?;
        }
        Ok(())
    }

    /// Does what the whole frames of the input ask for. Each reply leaves at once, as from a service
    /// that knows nothing of the next request.
    fn answer(&mut self, client: &mut Client) -> Result<(), Gone> {
        let mut taken = 0;
        while let Some(frame) = client.input[taken..].first_chunk::<FRAME_BYTES>()
            && client.output.len() < UNREAD_BYTES_MAX
            && !self.stopped()
        {
            let request = Request::from_bytes(frame)?;
            taken += FRAME_BYTES;
            let begun = now();
            let done = match request.op {
                Op::Work { work_ns } => {
                    self.calibration.work(work_ns);
                    self.report.served += 1;
                    true
                }
                Op::Runaway { .. } => self.allow_runaway,
            };
            let spent_ns = now().since(begun).0;
            let reply = Reply { id: request.id, done, spent_ns };
            client.output.extend_from_slice(&reply.to_bytes());
            flush(client)?;
            match request.op {
                Op::Runaway { spin_ns } if done => self.run_away(spin_ns),
                Op::Runaway { .. } => self.report.refused += 1,
                Op::Work { .. } => {}
            }
        }
        client.input.drain(..taken);
        Ok(())
    }

    /// Spins without serving anybody.
    fn run_away(&mut self, spin_ns: Option<u64>) {
        self.report.runaways += 1;
        let deadline = spin_ns.map_or(Nanos::MAX, |spin_ns| now() + Nanos(spin_ns));
        while now() < deadline && !self.stopped() {
            self.calibration.work(1_000);
        }
    }
}

/// Reads once; what does not come now comes with the next event.
fn read(client: &mut Client) -> Result<(), Gone> {
    let mut bytes = [0; READ_BYTES];
    match (&client.stream).read(&mut bytes) {
        Ok(0) => Err(Gone::Closed),
        Ok(count) => {
            client.input.extend_from_slice(&bytes[..count]);
            Ok(())
        }
        Err(error) if would_wait(&error) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Writes as much as the client takes.
fn flush(client: &mut Client) -> Result<(), Gone> {
    while !client.output.is_empty() {
        match (&client.stream).write(&client.output) {
            Ok(count) => drop(client.output.drain(..count)),
            Err(error) if would_wait(&error) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn would_wait(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
