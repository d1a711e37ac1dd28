//! One pipelined connection: bytes out, bytes in, and the requests that wait for a reply.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use quell_model::Nanos;

use crate::carrier::{Carrier, Target};
use crate::error::LoadError;
use crate::protocol::{Malformed, Parsed, Protocol, Status, Token};
use crate::stamps;

/// First size of the input buffer; it grows as far as the protocol's longest reply needs.
const INPUT_BYTES: usize = 16 << 10;
/// Requests waiting on one connection before memory is allocated during the run.
const PENDING_ROOM: usize = 4_096;
/// Bytes that may wait for the server to read, a connection. Beyond this, requests are not encoded
/// but counted as unsent.
const UNWRITTEN_BYTES_MAX: usize = 16 << 20;

/// Connections in a row that may be lost without a reply before the server counts as unwilling.
const FRUITLESS_MAX: u32 = 4;

/// A request without a reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    /// Intended send time.
    pub due: Nanos,
    /// Whose reply it waits for.
    pub token: Token,
    /// The account (warm-up or step) that it belongs to.
    pub account: u32,
    /// One of the long ones of a workload that has such.
    pub is_long: bool,
    /// How many of its steps were answered, where it takes several, and whether one was refused.
    step: u32,
    failed: bool,
    /// Where its last byte stands in the stream of all bytes ever queued.
    end: u64,
}

#[cfg(test)]
impl Pending {
    /// A request of an account that was due at this time.
    pub fn due(due: Nanos, account: u32) -> Pending {
        Pending { due, token: Token(0), account, is_long: false, step: 0, failed: false, end: 0 }
    }
}

/// Why a connection is of no use any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Lost {
    #[error("closed by the server")]
    Closed,
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Malformed(#[from] Malformed),
}

/// Whether all bytes found room in the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    All,
    Blocked,
}

pub(crate) struct Connection {
    carrier: Carrier,
    /// Bytes to write; those before `out_start` are written.
    out: Vec<u8>,
    out_start: usize,
    /// Bytes ever queued and ever written.
    queued: u64,
    written: u64,
    /// Bytes that wait for a whole reply are `input[in_start..in_end]`.
    input: Vec<u8>,
    in_start: usize,
    in_end: usize,
    pending: VecDeque<Pending>,
    /// A reply has come.
    answered: bool,
    /// How often in a row it was lost without a reply.
    fruitless: u32,
    /// The socket took less than was there; the poller tells when it has room again.
    pub blocked: bool,
    /// The kernel stamps what it receives.
    stamps: bool,
}

impl Lost {
    /// Whether the server ended the connection, as it may between two requests.
    fn is_closed(&self) -> bool {
        use ErrorKind::{BrokenPipe, ConnectionReset};
        match self {
            Lost::Closed => true,
            Lost::Io(error) => matches!(error.kind(), BrokenPipe | ConnectionReset),
            Lost::Malformed(_) => false,
        }
    }
}

impl Connection {
    /// Connects, greets, and makes the socket nonblocking and undelayed.
    pub fn open(target: &Target, protocol: &dyn Protocol) -> Result<Connection, LoadError> {
        let addr = target.addr;
        let carrier = target.connect()?;
        if let Some(stream) = carrier.kernel() {
            let refused = |reason| LoadError::Refused { addr, reason };
            protocol.greet(stream).map_err(refused)?;
            let failed = |source| LoadError::Connect { addr, source };
            stream.set_nonblocking(true).map_err(failed)?;
        }
        Ok(Connection {
            carrier,
            out: Vec::with_capacity(INPUT_BYTES),
            out_start: 0,
            queued: 0,
            written: 0,
            input: vec![0; INPUT_BYTES],
            in_start: 0,
            in_end: 0,
            pending: VecDeque::with_capacity(PENDING_ROOM),
            answered: false,
            fruitless: 0,
            blocked: false,
            stamps: false,
        })
    }

    /// Has the kernel stamp what it receives from now on, on this socket; one that takes its place has none.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn stamp(&mut self) -> Result<(), LoadError> {
        if let Some(stream) = self.carrier.kernel() {
            stamps::ask_for(stream)
                .map_err(LoadError::system("ask for the kernel's time stamps"))?;
            self.stamps = true;
        }
        Ok(())
    }

    /// Begins to connect anew in the place of a connection that was `lost`, and queues what waits for a
    /// reply once more: blocked until the poller tells that the socket can be written. `false` where
    /// that cannot be: the server did not end it, gave no reply on the last few (it would do so again, without
    /// end), or the protocol cannot ask again. One without a reply says little: a server that closes with requests
    /// unread resets the connection, and the kernel drops replies that the client has not read (RFC 1122, 4.2.2.13).
    pub fn reopen(&mut self, addr: SocketAddr, lost: &Lost, protocol: &dyn Protocol) -> bool {
        self.fruitless = if self.answered { 0 } else { self.fruitless + 1 };
        // A greeting would block the loop.
        let is_lost = !lost.is_closed() || self.fruitless > FRUITLESS_MAX;
        if is_lost || !protocol.pipelines() || self.carrier.kernel().is_none() {
            return false;
        }
        let Ok(stream) = connect_later(addr) else { return false };
        self.out.clear();
        for pending in &mut self.pending {
            if !protocol.encode_again(pending.token, &mut self.out) {
                return false;
            }
            pending.end = self.out.len() as u64;
        }
        self.carrier = Carrier::Kernel(stream);
        (self.out_start, self.in_start, self.in_end) = (0, 0, 0);
        (self.queued, self.written) = (self.out.len() as u64, 0);
        (self.answered, self.blocked, self.stamps) = (false, true, false);
        true
    }

    /// What a poller can watch.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.carrier.fd()
    }

    /// Waits as [`Carrier::wait`] does.
    ///
    /// # Errors
    /// Its errors.
    pub fn wait(&self, for_room: bool, patience: Duration) -> Result<bool, LoadError> {
        self.carrier.wait(for_room, patience)
    }

    /// Requests without a reply.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Queues one request; `false` if too much waits already. `encode` appends it, and says whether it is a long one.
    pub fn queue(
        &mut self,
        due: Nanos,
        account: u32,
        encode: impl FnOnce(&mut Vec<u8>) -> (Token, bool),
    ) -> bool {
        if self.out.len() - self.out_start > UNWRITTEN_BYTES_MAX {
            return false;
        }
        let before = self.out.len();
        let (token, is_long) = encode(&mut self.out);
        self.queued += (self.out.len() - before) as u64;
        let (step, failed, end) = (0, false, self.queued);
        self.pending.push_back(Pending { due, token, account, is_long, step, failed, end });
        true
    }

    /// Writes what is queued, as far as the socket takes it.
    pub fn flush(&mut self) -> Result<Flushed, Lost> {
        while self.out_start < self.out.len() {
            match self.carrier.write(&self.out[self.out_start..]) {
                Ok(count) => {
                    self.out_start += count;
                    self.written += count as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.forget_written();
                    return Ok(Flushed::Blocked);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.out.clear();
        self.out_start = 0;
        Ok(Flushed::All)
    }

    /// Moves the rest to the front once most of the buffer is behind it, so that it stays bounded
    /// and the moves cost less than the writes.
    fn forget_written(&mut self) {
        if self.out_start > self.out.len() / 2 {
            self.out.drain(..self.out_start);
            self.out_start = 0;
        }
    }

    /// Reads once, and hands every whole reply to `on_reply`, with the time at which the kernel received it where it
    /// keeps such. Bytes that came before the connection
    /// broke are handed over by earlier calls.
    pub fn receive(
        &mut self,
        protocol: &dyn Protocol,
        mut on_reply: impl FnMut(Pending, Status, Option<Nanos>),
    ) -> Result<(), Lost> {
        self.make_room(protocol.reply_bytes_max())?;
        let room = &mut self.input[self.in_end..];
        let read = match self.carrier.kernel().filter(|_| self.stamps) {
            Some(stream) => stamps::read(stream, room),
            None => self.carrier.read(room).map(|count| (count, None)),
        };
        let stamp = match read {
            Ok((0, _)) => return Err(Lost::Closed),
            Ok((count, stamp)) => {
                self.in_end += count;
                stamp
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted => return Ok(()),
                _ => return Err(error.into()),
            },
        };
        while self.in_start < self.in_end {
            let Some(first) = self.pending.front() else {
                return Err(Malformed("bytes that nothing was asked for").into());
            };
            match protocol.parse(&self.input[self.in_start..self.in_end], first.token)? {
                Parsed::Incomplete => break,
                Parsed::Reply { len, status } => {
                    self.in_start += len;
                    self.answered = true;
                    if !self.go_on(protocol, status)
                        && let Some(done) = self.pending.pop_front()
                    {
                        on_reply(done, if done.failed { Status::Error } else { status }, stamp);
                    }
                }
            }
        }
        Ok(())
    }

    /// Queues the next step of the request that was answered, if it has one.
    fn go_on(&mut self, protocol: &dyn Protocol, status: Status) -> bool {
        let Some(first) = self.pending.front_mut() else { return false };
        let before = self.out.len();
        // After a refusal there is one step more at most, which puts the connection in order.
        let is_over = first.failed;
        first.failed |= status == Status::Error;
        if is_over || !protocol.encode_next(first.token, first.step, first.failed, &mut self.out) {
            return false;
        }
        first.step += 1;
        self.queued += (self.out.len() - before) as u64;
        first.end = self.queued;
        true
    }

    /// Whether something waits to be written.
    pub fn has_output(&self) -> bool {
        self.out_start < self.out.len()
    }

    fn make_room(&mut self, reply_bytes_max: usize) -> Result<(), Lost> {
        if self.in_start == self.in_end {
            (self.in_start, self.in_end) = (0, 0);
        } else if self.in_end == self.input.len() {
            self.input.copy_within(self.in_start..self.in_end, 0);
            self.in_end -= self.in_start;
            self.in_start = 0;
        }
        if self.in_end == self.input.len() {
            if self.in_end >= reply_bytes_max {
                return Err(Malformed("reply longer than any of the protocol").into());
            }
            self.input.resize(self.input.len() * 2, 0);
        }
        Ok(())
    }

    /// Ends the wait for all replies: each request without one, and whether it was wholly sent.
    pub fn abandon(&mut self) -> impl Iterator<Item = (Pending, bool)> + '_ {
        let written = self.written;
        self.pending.drain(..).map(move |pending| (pending, pending.end <= written))
    }
}

/// A nonblocking socket on its way to `addr`.
fn connect_later(addr: SocketAddr) -> std::io::Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let stream = TcpStream::from(socket_with(family, SocketType::STREAM, flags, None)?);
    stream.set_nodelay(true)?;
    match connect(&stream, &addr) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(stream),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{keyvalue::KeyValueSpec, memcached::Memcached};
    use proptest::prelude::*;
    use std::io::Write as _;
    use std::net::TcpListener;

    const HIT: &[u8] = b"VALUE k 0 13\r\nabc\r\nEND\r\nabc\r\nEND\r\n";
    const MISS: &[u8] = b"END\r\n";
    const REFUSED: &[u8] = b"SERVER_ERROR x\r\n";

    fn pair() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = Target::kernel(listener.local_addr().unwrap());
        let connection = Connection::open(&target, &get_only()).unwrap();
        (connection, listener.accept().unwrap().0)
    }

    fn ask(connection: &mut Connection, count: usize) {
        for _ in 0..count {
            assert!(connection.queue(Nanos(1), 0, |out| {
                out.extend_from_slice(b"get k\r\n");
                (Token(0), false)
            }));
        }
        assert_eq!(connection.flush().unwrap(), Flushed::All);
    }

    fn get_only() -> Memcached {
        Memcached::new(&KeyValueSpec { get_permille: 1_000, ..KeyValueSpec::default() }).unwrap()
    }

    /// Receives until the server's side is closed; the replies, and why it ended.
    fn receive_all(connection: &mut Connection) -> (Vec<Status>, Lost) {
        let mut replies = Vec::new();
        loop {
            let end = connection.receive(&get_only(), |_, status, _| replies.push(status));
            if let Err(lost) = end {
                return (replies, lost);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn replies_are_found_however_the_stream_is_split(
            kinds in proptest::collection::vec(0..3usize, 1..20),
            cuts in proptest::collection::vec(1..40usize, 1..40),
        ) {
            let (mut connection, mut server) = pair();
            ask(&mut connection, kinds.len());
            let bytes: Vec<u8> =
                kinds.iter().flat_map(|&k| [HIT, MISS, REFUSED][k].iter().copied()).collect();
            let mut replies = Vec::new();
            let mut rest = &bytes[..];
            for cut in cuts.iter().cycle() {
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                server.write_all(now).unwrap();
                connection.receive(&get_only(), |_, status, _| replies.push(status)).unwrap();
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            drop(server);
            replies.extend(receive_all(&mut connection).0);
            let expected: Vec<Status> =
                kinds.iter().map(|&k| [Status::Ok, Status::Miss, Status::Error][k]).collect();
            prop_assert_eq!(replies, expected);
        }

        #[test]
        fn garbage_from_the_server_costs_the_connection_and_never_panics(
            garbage in proptest::collection::vec(any::<u8>(), 1..5_000),
        ) {
            let (mut connection, mut server) = pair();
            ask(&mut connection, 3);
            server.write_all(&garbage).unwrap();
            drop(server);
            let (replies, _lost) = receive_all(&mut connection);
            prop_assert_eq!(replies.len() + connection.pending(), 3);
        }
    }

    #[test]
    fn bytes_that_nothing_was_asked_for_cost_the_connection() {
        let (mut connection, mut server) = pair();
        server.write_all(MISS).unwrap();
        assert!(
            matches!(receive_all(&mut connection), (replies, Lost::Malformed(_)) if replies.is_empty())
        );
    }

    #[test]
    fn a_reply_that_never_ends_is_cut_off_at_the_protocols_bound() {
        let (mut connection, mut server) = pair();
        ask(&mut connection, 1);
        let writer = std::thread::spawn(move || {
            let _ = server.write_all(b"VALUE k 0 1048576\r\n");
            while server.write_all(&[b'x'; 4_096]).is_ok() {}
        });
        assert!(matches!(receive_all(&mut connection), (_, Lost::Malformed(_))));
        assert!(connection.input.len() <= 4 << 20);
        drop(connection);
        writer.join().unwrap();
    }

    #[test]
    fn a_server_that_does_not_read_blocks_the_connection_and_the_rest_counts_as_unsent() {
        let (mut connection, _server) = pair();
        let mut queued = 0usize;
        while connection.queue(Nanos(1), 0, |out| {
            out.resize(out.len() + 65_536, b'x');
            (Token(0), false)
        }) {
            queued += 1;
        }
        assert_eq!(connection.flush().unwrap(), Flushed::Blocked);
        let (sent, unsent): (Vec<_>, Vec<_>) = connection.abandon().partition(|&(_, sent)| sent);
        assert_eq!(sent.len() + unsent.len(), queued);
        assert!(!sent.is_empty() && !unsent.is_empty());
    }
}
