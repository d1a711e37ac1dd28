//! A virtual socket: a byte stream over the channels to a peer.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use quell_model::Nanos;
use quell_net_engine::{Class, Key, SocketStatus};

use crate::batch;
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::leading::Interest;
use crate::memory::{LARGE, Segment, Span};
use crate::shared::Shared;

/// Writes up to this are copied under the endpoint's lock.
const COPY_LOCKED: usize = 16 << 10;
/// Bytes of a large write that are copied at once: sending begins meanwhile.
pub(crate) const WRITE_MAX: usize = 256 << 10;
/// Small writes of the throughput class gather up to this.
const GATHER_BYTES: u64 = 64 << 10;

/// See the module. Reading and writing may happen on two threads at once. Dropped, it is closed: what was written is still
/// sent, unread bytes reset it.
pub struct Stream {
    endpoint: Endpoint,
    key: Key,
    peer: Key,
    class: Class,
    local: SocketAddr,
    remote: SocketAddr,
    read_timeout: Timeout,
    write_timeout: Timeout,
    /// Bytes that workers copy now.
    in_flight: AtomicU64,
}

/// Nanoseconds; none for zero.
#[derive(Debug, Default)]
struct Timeout(AtomicU64);

impl Timeout {
    fn set(&self, timeout: Option<Duration>) {
        let nanos = timeout.map_or(0, |it| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX).max(1));
        // Relaxed: a number of its own.
        self.0.store(nanos, Ordering::Relaxed);
    }

    fn until(&self) -> Option<Instant> {
        let nanos = self.0.load(Ordering::Relaxed);
        (nanos > 0).then(|| Instant::now() + Duration::from_nanos(nanos))
    }
}

impl Stream {
    pub(crate) fn new(
        endpoint: Endpoint,
        key: Key,
        peer: Key,
        class: Class,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Stream {
        let (read_timeout, write_timeout, in_flight) = Default::default();
        Stream { endpoint, key, peer, class, local, remote, read_timeout, write_timeout, in_flight }
    }

    /// This end's address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The other end's address: what the peer says, no more.
    pub fn peer_addr(&self) -> SocketAddr {
        self.remote
    }

    /// Its class.
    pub fn class(&self) -> Class {
        self.class
    }

    /// Reads that wait longer fail with [`Error::TimedOut`].
    pub fn set_read_timeout(&self, timeout: Option<Duration>) {
        self.read_timeout.set(timeout);
    }

    /// Writes that wait longer fail with [`Error::TimedOut`].
    pub fn set_write_timeout(&self, timeout: Option<Duration>) {
        self.write_timeout.set(timeout);
    }

    /// The endpoint whose channels carry it.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(crate) fn write_until(&self) -> Option<Instant> {
        self.write_timeout.until()
    }

    pub(crate) fn key(&self) -> Key {
        self.key
    }

    pub(crate) fn interest(&self, wants_control: bool) -> Interest {
        Interest { peer: self.peer, class: self.class, wants_control, is_weak: false }
    }

    pub(crate) fn wait_connected(&self) -> Result<(), Error> {
        let key = self.key;
        let check = |core: &mut Core, _: Nanos| match status(core, key) {
            Err(error) => Some(Err(error)),
            Ok(status) => status.is_connected.then_some(Ok(())),
        };
        self.endpoint.shared().wait(&[self.interest(true)], None, check, |core, waker, waits| {
            register_writer(core, key, waker, waits);
        })?
    }

    /// Reads what has arrived, at most as much as fits; waits for the first byte. Zero at the end of the stream.
    ///
    /// # Errors
    /// When the stream has failed, or the time is over.
    pub fn read(&self, into: &mut [u8]) -> Result<usize, Error> {
        if into.is_empty() {
            return Ok(0);
        }
        let most = into.len() as u64;
        let shared = self.endpoint.shared();
        let spans = self.wait_readable(|core, key, now| {
            batch::note(shared, now);
            take(core, key, most, now)
        })?;
        Ok(self.copy_out(&spans, into))
    }

    fn copy_out(&self, spans: &[Span], into: &mut [u8]) -> usize {
        self.endpoint.copying().copy_out(&self.in_flight, spans, into)
    }

    fn wait_readable<T>(
        &self,
        mut take: impl FnMut(&mut Core, Key, Nanos) -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        let key = self.key;
        self.endpoint.shared().wait(
            &[self.interest(false)],
            self.read_timeout.until(),
            |core, now| take(core, key, now).transpose(),
            |core, waker, waits| register_reader(core, key, waker, waits),
        )?
    }

    /// The bytes that can be read, without copying and without taking them: waits for the first. None at the end of the
    /// stream. [`Stream::consume`] takes them.
    ///
    /// # Errors
    /// As [`Stream::read`].
    pub fn chunks(&self, most: usize) -> Result<Chunks, Error> {
        let spans = self.wait_readable(|core, key, now| peek(core, key, most as u64, now))?;
        Ok(Chunks { spans })
    }

    /// Takes the first bytes of [`Stream::chunks`]. More than those that can be read are not taken.
    pub fn consume(&self, bytes: usize) {
        let key = self.key;
        let taken = self.endpoint.shared().act(|core, now| {
            let taken = take(core, key, bytes as u64, now);
            taken.ok().flatten()
        });
        // Their memory is freed without the lock.
        drop(taken);
    }

    /// Writes as much as there is room for; waits for the first byte.
    ///
    /// # Errors
    /// When the stream has failed, or the time is over.
    pub fn write(&self, bytes: &[u8]) -> Result<usize, Error> {
        if bytes.len() <= COPY_LOCKED {
            return self.write_small(bytes);
        }
        if let Some(written) = self.write_directly(bytes)? {
            return Ok(written);
        }
        let room = self.wait_room(|_, _, room, _| room)?;
        let most = usize::try_from(room).unwrap_or(usize::MAX).min(WRITE_MAX);
        let bytes = &bytes[..bytes.len().min(most)];
        let (pool, _) = self.endpoint.shared().with(|core, _| core.pool.clone());
        self.put(self.endpoint.copying().spans_of(&self.in_flight, &pool, bytes))?;
        Ok(bytes.len())
    }

    /// Small writes of the throughput class leave together: at the latest when the helper looks, which is soon.
    fn write_small(&self, bytes: &[u8]) -> Result<usize, Error> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let (key, class) = (self.key, self.class);
        let shared = self.endpoint.shared();
        let ((written, gathers), has_frames) = shared.with(|core, now| {
            let written = match room(core, key) {
                Ok(Some(room)) => Some(Ok(append(core, key, bytes, room, now))),
                Ok(None) => None,
                Err(error) => Some(Err(error)),
            };
            let is_held = match class {
                Class::Throughput => {
                    core.leave_to_helper(now);
                    Shared::may_gather(core, now)
                }
                Class::Latency => batch::may_hold(shared, now) && Shared::may_gather(core, now),
            };
            let few = core.engine.status(key).is_some_and(|it| it.unsent < GATHER_BYTES);
            (written, few && is_held)
        });
        match class {
            _ if gathers || !has_frames => {}
            Class::Latency => shared.flush_latency(),
            Class::Throughput => shared.flush(),
        }
        match written {
            Some(written) => written,
            None => self.wait_room(|core, key, room, now| append(core, key, bytes, room, now)),
        }
    }

    /// Waits for room, and uses it.
    fn wait_room<T>(
        &self,
        mut act: impl FnMut(&mut Core, Key, u64, Nanos) -> T,
    ) -> Result<T, Error> {
        let key = self.key;
        self.endpoint.shared().wait(
            &[self.interest(true)],
            self.write_timeout.until(),
            |core, now| {
                let room = room(core, key).transpose()?;
                Some(room.map(|room| act(core, key, room, now)))
            },
            |core, waker, waits| register_writer(core, key, waker, waits),
        )?
    }

    /// Appends bytes that are in memory.
    fn put(&self, spans: Vec<Span>) -> Result<(), Error> {
        let key = self.key;
        self.endpoint.shared().act(|core, now| {
            let is_ended = status(core, key)?.is_ended;
            let range = core.engine.send_range(key).filter(|_| !is_ended);
            let Some((_, mut end)) = range else { return Err(Error::Closed) };
            for span in spans {
                let length = span.len() as u64;
                core.sockets.of(key).written.insert(end, span);
                core.engine.written(key, length, now);
                end += length;
            }
            Ok(())
        })
    }

    /// Memory of at most [`Stream::RESERVE_MAX`] bytes to write into without copying; waits for room.
    /// [`Reservation::commit`] sends it.
    ///
    /// # Errors
    /// As [`Stream::write`].
    pub fn reserve(&self, bytes: usize) -> Result<Reservation<'_>, Error> {
        let room = self.wait_room(|_, _, room, _| room)?;
        let bytes = bytes.min(LARGE).min(usize::try_from(room).unwrap_or(usize::MAX));
        let (pool, _) = self.endpoint.shared().with(|core, _| core.pool.clone());
        Ok(Reservation { stream: self, segment: pool.segment(bytes), bytes })
    }

    /// The most that [`Stream::reserve`] gives at once.
    pub const RESERVE_MAX: usize = LARGE;

    /// Writes everything.
    ///
    /// # Errors
    /// As [`Stream::write`]; how much was written before is unknown.
    pub fn write_all(&self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            bytes = &bytes[self.write(bytes)?..];
        }
        Ok(())
    }

    /// Ends writing: the end of the stream for the peer, once it has read what was written. `Shutdown::Read` alone has no
    /// effect: reading ends when the stream is dropped.
    ///
    /// # Errors
    /// When the stream has failed.
    pub fn shutdown(&self, how: Shutdown) -> Result<(), Error> {
        let key = self.key;
        self.endpoint.shared().act(|core, now| {
            status(core, key)?;
            if matches!(how, Shutdown::Write | Shutdown::Both) {
                core.engine.end_writing(key, now);
            }
            Ok(())
        })
    }

    /// What can be read and written now, and what waits.
    ///
    /// # Errors
    /// When the stream has failed.
    pub fn status(&self) -> Result<SocketStatus, Error> {
        let key = self.key;
        self.endpoint.shared().with(|core, _| status(core, key)).0
    }

    /// Reads what has arrived, without waiting: none if nothing has. Reads the stream's channels first, as a thread does that
    /// waits.
    ///
    /// # Errors
    /// As [`Stream::read`].
    pub fn try_read(&self, into: &mut [u8]) -> Result<Option<usize>, Error> {
        if into.is_empty() {
            return Ok(Some(0));
        }
        let (key, most) = (self.key, into.len() as u64);
        let check = |core: &mut Core, now| take(core, key, most, now).transpose();
        let spans = self.endpoint.shared().look(&[self.interest(false)], check)?.transpose()?;
        Ok(spans.map(|spans| self.copy_out(&spans, into)))
    }

    /// Writes as much as there is room for, up to 16 KB, without waiting: none if there is no room. It is sent at once.
    ///
    /// # Errors
    /// As [`Stream::write`].
    pub fn try_write(&self, bytes: &[u8]) -> Result<Option<usize>, Error> {
        if bytes.is_empty() {
            return Ok(Some(0));
        }
        let key = self.key;
        let check = |core: &mut Core, now| {
            let room = room(core, key).transpose()?;
            Some(room.map(|room| append(core, key, bytes, room.min(COPY_LOCKED as u64), now)))
        };
        self.endpoint.shared().look(&[self.interest(true)], check)?.transpose()
    }

    /// Reads for a task, which is woken when there is something.
    ///
    /// # Errors
    /// As [`Stream::read`].
    pub fn poll_read(&self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<Result<usize, Error>> {
        if into.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let (key, most) = (self.key, into.len() as u64);
        let spans = self.endpoint.shared().act(|core, now| {
            let taken = take(core, key, most, now).transpose();
            if taken.is_none() {
                core.has_tasks = true;
                register_reader(core, key, cx.waker(), true);
            }
            taken
        });
        match spans {
            None => Poll::Pending,
            Some(spans) => Poll::Ready(spans.map(|spans| self.copy_out(&spans, into))),
        }
    }

    /// Writes for a task, which is woken when there is room.
    ///
    /// # Errors
    /// As [`Stream::write`].
    pub fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize, Error>> {
        let key = self.key;
        let found = self.endpoint.shared().act(|core, _| {
            let found = room(core, key).transpose();
            if found.is_none() {
                core.has_tasks = true;
                register_writer(core, key, cx.waker(), true);
            }
            found
        });
        let room = match found {
            None => return Poll::Pending,
            Some(room) => room?,
        };
        let most = usize::try_from(room).unwrap_or(usize::MAX).min(WRITE_MAX);
        let bytes = &bytes[..bytes.len().min(most)];
        let (pool, _) = self.endpoint.shared().with(|core, _| core.pool.clone());
        let spans = self.endpoint.copying().spans_of(&self.in_flight, &pool, bytes);
        Poll::Ready(self.put(spans).map(|()| bytes.len()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let (key, peer) = (self.key, self.peer);
        self.endpoint.shared().act(|core, now| {
            core.engine.close(key, now);
            core.offer(peer);
        });
    }
}

fn status(core: &Core, key: Key) -> Result<SocketStatus, Error> {
    let status = core.engine.status(key).ok_or(Error::Closed)?;
    match status.failure {
        Some(failure) => Err(failure.into()),
        None => Ok(status),
    }
}

/// The status of a socket that can be read, or may be later: one whose peer is gone may have bytes left.
fn readable(core: &Core, key: Key) -> Result<SocketStatus, Error> {
    let known = core.engine.status(key).ok_or(Error::Closed)?;
    let drains = known.readable > 0 || known.is_at_end;
    if drains { Ok(known) } else { status(core, key) }
}

/// The status of a socket that was not ended on this side.
pub(crate) fn writable(core: &Core, key: Key) -> Result<SocketStatus, Error> {
    let known = status(core, key)?;
    if known.is_ended { Err(Error::Closed) } else { Ok(known) }
}

/// Bytes that can be written, if some can.
fn room(core: &mut Core, key: Key) -> Result<Option<u64>, Error> {
    let status = writable(core, key)?;
    if status.writable == 0 {
        core.engine.wants_room(key);
        return Ok(None);
    }
    Ok(Some(status.writable))
}

/// Copies as many bytes as there is room for.
fn append(core: &mut Core, key: Key, bytes: &[u8], room: u64, now: Nanos) -> usize {
    let taken = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
    let Some((_, end)) = core.engine.send_range(key) else { return 0 };
    core.sockets.of(key).written.copy(&core.pool, end, &bytes[..taken]);
    core.engine.written(key, taken as u64, now);
    taken
}

/// Takes what can be read. Nothing at the end of the stream.
fn take(core: &mut Core, key: Key, most: u64, now: Nanos) -> Result<Option<Vec<Span>>, Error> {
    let status = readable(core, key)?;
    let bytes = status.readable.min(most);
    let spans = core.sockets.of(key).received.take(bytes);
    core.engine.read(key, bytes, now);
    Ok((bytes > 0 || status.is_at_end).then_some(spans))
}

/// What can be read.
fn peek(core: &mut Core, key: Key, most: u64, now: Nanos) -> Result<Option<Vec<Span>>, Error> {
    let status = readable(core, key)?;
    let bytes = status.readable.min(most.max(1));
    let mut spans = Vec::new();
    if bytes == 0 {
        core.engine.read(key, 0, now);
        return Ok(status.is_at_end.then_some(spans));
    }
    let start = core.engine.receive_range(key).map_or(0, |(start, _)| start);
    let received = &core.sockets.of(key).received;
    received.for_each(start, start + bytes, |span, from, to| spans.push(span.slice(from, to)));
    Ok(Some(spans))
}

pub(crate) fn register_reader(core: &mut Core, key: Key, waker: &Waker, waits: bool) {
    let Some(socket) = core.sockets.get_mut(key) else { return };
    match waits {
        true => socket.readers.add(waker),
        false => socket.readers.remove(waker),
    }
}

pub(crate) fn register_writer(core: &mut Core, key: Key, waker: &Waker, waits: bool) {
    let Some(socket) = core.sockets.get_mut(key) else { return };
    match waits {
        true => socket.writers.add(waker),
        false => socket.writers.remove(waker),
    }
}

impl io::Read for &Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(Stream::read(self, into)?)
    }
}

impl io::Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(Stream::read(self, into)?)
    }
}

impl io::Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(Stream::write(self, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.endpoint.shared().flush();
        Ok(())
    }
}

impl io::Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(Stream::write(self, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.endpoint.shared().flush();
        Ok(())
    }
}

/// Bytes of a stream where they are in memory.
pub struct Chunks {
    spans: Vec<Span>,
}

impl Chunks {
    /// The bytes, in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.spans.iter().map(Span::bytes)
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.spans.iter().map(Span::len).sum()
    }

    /// Whether the stream has ended.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }
}

/// Memory that is sent when it is committed.
pub struct Reservation<'a> {
    stream: &'a Stream,
    segment: Segment,
    bytes: usize,
}

impl Reservation<'_> {
    /// The memory. Its first contents are of no meaning.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = self.bytes;
        &mut self.segment.free_mut()[..bytes]
    }

    /// Sends the first `bytes` of it.
    ///
    /// # Errors
    /// When the stream has failed.
    pub fn commit(mut self, bytes: usize) -> Result<(), Error> {
        self.segment.fill(bytes.min(self.bytes));
        let span = self.segment.into_span();
        if span.len() == 0 {
            return Ok(());
        }
        self.stream.put(vec![span])
    }
}
