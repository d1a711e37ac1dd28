//! The end that serves.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use quell_net::{Class, Endpoint, Selector};
use rustix::event::epoll;

use super::connection::{Acceptor, Connection};
use super::pattern::Pattern;
use super::uring::UringSocket;
use super::watched::{LOG_MAX, RunDelay, peak_memory_bytes};
use super::{System, Tcp};

/// Bytes that a stream's reader takes at once.
const READ_BYTES: usize = 256 << 10;
/// Bytes that the reader of messages takes at once.
const MESSAGES_BYTES: usize = 64 << 10;

/// What a connection is for: its first byte, then what that needs.
pub const PING: u8 = 1;
/// See [`PING`].
pub const STREAM: u8 = 2;
/// See [`PING`].
pub const MESSAGES: u8 = 3;
/// See [`PING`]: the client asks for the server's processor time.
pub const CPU: u8 = 4;
/// See [`PING`]: one of the sockets of [`MESSAGES`].
pub const SOCKET: u8 = 6;
/// See [`PING`]: a stream that is read without copies where that can be done.
pub const ZERO_COPY: u8 = 5;

/// See [`PING`]: a stream that is never read.
pub const STALLED: u8 = 7;
/// See [`PING`]: what the thread waited for each request is kept.
pub const WATCHED: u8 = 8;
/// See [`CPU`]: the client asks for that.
pub const WAITS: u8 = 9;
/// See [`CPU`]: the client asks for the most memory that the process had.
pub const MEMORY: u8 = 10;

/// What the threads of a server share.
struct Server {
    system: System,
    acceptor: Acceptor,
    pattern: Pattern,
    /// Sockets of messages that wait for their reader.
    sockets: Mutex<Vec<Connection>>,
    changed: Condvar,
    /// Of a connection that is watched: what its thread waited for each request.
    waits_ns: Mutex<Vec<u64>>,
}

/// Serves one client, until it closes its first connection.
pub fn run(system: System, address: &str) -> Result<()> {
    let (acceptor, own) = Acceptor::bind(system, address)?;
    println!("port {own}");
    let control = acceptor.accept().context("accept")?;
    let (sockets, changed) = (Mutex::default(), Condvar::new());
    let (pattern, waits_ns) = (Pattern::new(), Mutex::default());
    let server = Arc::new(Server { system, acceptor, pattern, sockets, changed, waits_ns });
    let shared = Arc::clone(&server);
    // It ends with the process.
    system.spawn(move || {
        while let Ok(connection) = server.acceptor.accept() {
            let server = Arc::clone(&server);
            system.spawn(move || {
                if let Err(error) = server.serve(connection) {
                    eprintln!("error: {error:#}");
                    std::process::exit(1);
                }
            });
        }
    });
    serve_control(&control, &shared)
}

/// Answers questions about this process until the client is done.
fn serve_control(control: &Connection, server: &Server) -> Result<()> {
    let mut asked = [0];
    loop {
        match { control }.read(&mut asked)? {
            0 => return Ok(()),
            _ => match asked[0] {
                CPU => { control }.write_all(&super::client::cpu_ns()?.to_le_bytes())?,
                MEMORY => { control }.write_all(&peak_memory_bytes()?.to_le_bytes())?,
                WAITS => {
                    let waits = server.waits_ns.lock().unwrap_or_else(PoisonError::into_inner);
                    let count = (waits.len() as u64).to_le_bytes();
                    let all = waits.iter().flat_map(|ns| ns.to_le_bytes());
                    { control }.write_all(&count.into_iter().chain(all).collect::<Vec<u8>>())?;
                }
                other => bail!("an unknown question {other}"),
            },
        }
    }
}

impl Server {
    fn serve(&self, connection: Connection) -> Result<()> {
        let mut head = [0; 9];
        (&connection).read_exact(&mut head)?;
        let [kind, number @ ..] = head;
        let number = u64::from_le_bytes(number);
        match kind {
            PING => {
                self.system.prioritise(Class::Latency)?;
                connection.prioritise(self.system, Class::Latency)?;
                ping(&connection, number as usize, || Ok(()))
            }
            WATCHED => {
                self.system.prioritise(Class::Latency)?;
                connection.prioritise(self.system, Class::Latency)?;
                self.watched(&connection, number as usize)
            }
            STREAM => {
                self.system.prioritise(Class::Throughput)?;
                stream(&connection, &self.pattern)
            }
            // Until the process ends.
            STALLED => loop {
                thread::park();
            },
            ZERO_COPY => zero_copy(&connection, &self.pattern),
            MESSAGES => self.messages(&connection, number),
            SOCKET => {
                self.sockets.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
                self.changed.notify_all();
                Ok(())
            }
            other => bail!("an unknown kind {other} of connection"),
        }
    }

    /// Answers requests, and keeps what this thread waited for each.
    fn watched(&self, connection: &Connection, bytes: usize) -> Result<()> {
        let delay = RunDelay::own()?;
        let mut last = delay.ns()?;
        ping(connection, bytes, || {
            let now = delay.ns()?;
            let mut waits = self.waits_ns.lock().unwrap_or_else(PoisonError::into_inner);
            if waits.len() < LOG_MAX {
                waits.push(now - last);
            }
            last = now;
            Ok(())
        })
    }

    /// Reads messages from so many sockets on one thread, in whatever order they come, until all have ended; answers over
    /// this connection with how many bytes there were.
    fn messages(&self, mut connection: &Connection, sockets: u64) -> Result<()> {
        ensure!((1..=1_024).contains(&sockets), "{sockets} sockets");
        let waiting = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let enough = |waiting: &mut Vec<Connection>| (waiting.len() as u64) < sockets;
        let all = self.changed.wait_while(waiting, enough);
        let all = std::mem::take(&mut *all.unwrap_or_else(PoisonError::into_inner));
        let open: BTreeMap<u64, (Connection, u64)> =
            (0..).zip(all.into_iter().map(|socket| (socket, 0))).collect();
        for (socket, _) in open.values() {
            nonblocking(socket)?;
        }
        connection.write_all(&[1])?;
        let total = match self.acceptor.endpoint() {
            Some(endpoint) => select_virtual(endpoint, open, &self.pattern)?,
            None if self.system == System::Tcp(Tcp::Uring) => {
                super::uring::read_messages(sockets_of(open)?, &self.pattern)?
            }
            None => select_kernel(open, &self.pattern)?,
        };
        connection.write_all(&total.to_le_bytes())?;
        connection.end()
    }
}

fn sockets_of(open: BTreeMap<u64, (Connection, u64)>) -> Result<Vec<UringSocket>> {
    let sockets = open.into_values().map(|(connection, _)| match connection {
        Connection::Uring(socket) => Ok(socket),
        _ => bail!("a connection of another system"),
    });
    sockets.collect()
}

fn select_virtual(
    endpoint: &Endpoint,
    open: BTreeMap<u64, (Connection, u64)>,
    pattern: &Pattern,
) -> Result<u64> {
    let mut selector = Selector::new(endpoint);
    for (token, (socket, _)) in &open {
        if let Connection::Quell(stream) = socket {
            selector.add(*token, stream);
        }
    }
    read_messages(open, pattern, |ended| {
        ended.iter().for_each(|token| selector.remove(*token));
        Ok(selector.wait(None)?)
    })
}

fn select_kernel(open: BTreeMap<u64, (Connection, u64)>, pattern: &Pattern) -> Result<u64> {
    let queue = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (token, (socket, _)) in &open {
        let data = epoll::EventData::new_u64(*token);
        epoll::add(&queue, descriptor(socket)?, data, epoll::EventFlags::IN)?;
    }
    let mut events = Vec::with_capacity(open.len());
    read_messages(open, pattern, |_| {
        events.clear();
        epoll::wait(&queue, rustix::buffer::spare_capacity(&mut events), None)?;
        Ok(events.iter().map(|event: &epoll::Event| event.data.u64()).collect())
    })
}

/// Answers each request with its own bytes.
fn ping(
    mut connection: &Connection,
    bytes: usize,
    mut answered: impl FnMut() -> Result<()>,
) -> Result<()> {
    ensure!(bytes <= 1 << 20, "a request of {bytes} bytes");
    let mut request = vec![0; bytes];
    loop {
        let first = connection.read(&mut request)?;
        if first == 0 {
            return Ok(());
        }
        connection.read_exact(&mut request[first..])?;
        connection.write_all(&request)?;
        answered()?;
    }
}

/// Reads a stream to its end, and answers with how many bytes it had.
fn stream(mut connection: &Connection, pattern: &Pattern) -> Result<()> {
    let mut memory = vec![0; READ_BYTES];
    let mut total = 0;
    loop {
        let read = connection.read(&mut memory)?;
        if read == 0 {
            break;
        }
        pattern.check(total, &memory[..read])?;
        total += read as u64;
    }
    connection.write_all(&total.to_le_bytes())?;
    connection.end()
}

fn zero_copy(connection: &Connection, pattern: &Pattern) -> Result<()> {
    let Connection::Quell(virtual_stream) = connection else { return stream(connection, pattern) };
    let mut total = 0;
    loop {
        let chunks = virtual_stream.chunks(READ_BYTES)?;
        if chunks.is_empty() {
            break;
        }
        let mut at = total;
        for chunk in chunks.iter() {
            pattern.check(at, chunk)?;
            at += chunk.len() as u64;
        }
        virtual_stream.consume(chunks.len());
        total = at;
    }
    virtual_stream.write_all(&total.to_le_bytes())?;
    connection.end()
}

fn read_messages(
    mut open: BTreeMap<u64, (Connection, u64)>,
    pattern: &Pattern,
    mut wait: impl FnMut(&[u64]) -> Result<Vec<u64>>,
) -> Result<u64> {
    let mut memory = vec![0; MESSAGES_BYTES];
    let (mut total, mut ended) = (0, Vec::new());
    while !open.is_empty() {
        let ready = wait(&ended)?;
        ended.clear();
        for token in ready {
            let Some((socket, offset)) = open.get_mut(&token) else { continue };
            match { &*socket }.read(&mut memory) {
                Ok(0) => {
                    open.remove(&token);
                    ended.push(token);
                }
                Ok(read) => {
                    pattern.check(*offset, &memory[..read])?;
                    *offset += read as u64;
                    total += read as u64;
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(total)
}

fn nonblocking(socket: &Connection) -> Result<()> {
    match socket {
        Connection::Tcp(stream) => stream.set_nonblocking(true)?,
        Connection::Gathering(gathering) => gathering.stream().set_nonblocking(true)?,
        Connection::Unix(stream) => stream.set_nonblocking(true)?,
        Connection::Kernel(it) => it.socket().set_nonblocking(true)?,
        Connection::Quell(_)
        | Connection::FastOpen(_)
        | Connection::Uthread(_)
        | Connection::Uring(_) => {}
    }
    Ok(())
}

fn descriptor(socket: &Connection) -> Result<BorrowedFd<'_>> {
    match socket {
        Connection::Tcp(stream) => Ok(stream.as_fd()),
        Connection::Gathering(gathering) => Ok(gathering.stream().as_fd()),
        Connection::Unix(stream) => Ok(stream.as_fd()),
        Connection::Kernel(it) => Ok(it.socket().as_fd()),
        Connection::Quell(_)
        | Connection::FastOpen(_)
        | Connection::Uthread(_)
        | Connection::Uring(_) => {
            bail!("it has no descriptor to wait for")
        }
    }
}
