//! Frames on their way out of a channel: gathered under the endpoint's lock, sent without it.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_model::Nanos;
use quell_net_engine::{Body, Engine, Frame, Key};

use crate::memory::{Pool, Span, spans_of};
use crate::socket::Sockets;
use crate::stats::Carried;
use crate::transport::{Kept, Outgoing};

/// Bytes that are gathered at once.
const GATHER_BYTES: usize = 256 << 10;
/// Payload up to this is copied behind its header: one piece for the kernel instead of two.
const STAGE_BELOW: usize = 4 << 10;
/// Bytes of headers and small payloads that are gathered at once.
const STAGED_MAX: usize = 64 << 10;
/// Pieces of one system call: few enough for the stack.
const SLICES: usize = 64;
/// Pieces that are gathered at once.
const PIECES_MAX: usize = 4 * SLICES;

#[derive(Debug)]
enum Piece {
    Staged(Range<usize>),
    Shared(Span),
    /// Of the memory that the application writes from, while it does.
    Direct(Range<usize>),
}

impl Piece {
    /// Its memory, where that stays as it is.
    fn kept(&self) -> Kept {
        match self {
            Piece::Shared(span) => Kept(Some(span.clone())),
            Piece::Staged(_) | Piece::Direct(_) => Kept(None),
        }
    }
}

/// See the module.
pub(crate) struct Outbox {
    outgoing: Box<dyn Outgoing>,
    staged: Vec<u8>,
    pieces: Vec<Piece>,
    /// Bytes of all pieces.
    bytes: usize,
    /// How many of them are sent.
    sent: usize,
    /// The first piece that is not sent whole, and how much of it is.
    next: (usize, usize),
    carried: Carried,
    /// The time in its calls is measured.
    is_timed: bool,
}

/// How far sending came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    All,
    /// The transport has no room for the rest.
    Part,
}

impl Outbox {
    pub fn new(outgoing: Box<dyn Outgoing>, is_timed: bool) -> Outbox {
        Outbox {
            outgoing,
            staged: Vec::new(),
            pieces: Vec::new(),
            bytes: 0,
            sent: 0,
            next: (0, 0),
            carried: Carried::default(),
            is_timed,
        }
    }

    /// Whether all that was gathered is sent.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// What its transport has taken.
    pub fn carried(&self) -> Carried {
        self.carried
    }

    /// Bytes that were gathered and not sent.
    pub fn backlog(&self) -> u64 {
        (self.bytes - self.sent) as u64
    }

    /// Gathers the channel's next frames, once all before are sent.
    pub fn gather(&mut self, engine: &mut Engine, key: Key, sockets: &Sockets, now: Nanos) {
        if !self.is_empty() {
            return;
        }
        let max = engine.config().max_frame;
        while self.bytes < GATHER_BYTES
            && self.staged.len() < STAGED_MAX
            && self.pieces.len() < PIECES_MAX
        {
            let Some(frame) = engine.transmit(key, max, now) else { break };
            self.add_frame(&frame, sockets);
            if let Body::Data(socket) = frame.body {
                engine.taken(socket, now);
            }
        }
    }

    /// Gathers the channel's next frames, of which those of `socket` carry bytes of the application's memory, the first of
    /// which has the offset `start` in the stream. Returns up to which offset they
    /// reach.
    pub fn gather_direct(
        &mut self,
        engine: &mut Engine,
        key: Key,
        sockets: &Sockets,
        (socket, start): (Key, u64),
        now: Nanos,
    ) -> u64 {
        debug_assert!(self.is_empty(), "what was gathered before goes first");
        let (max, mut end) = (engine.config().max_frame, start);
        while let Some(frame) = engine.transmit(key, max, now) {
            if frame.body != Body::Data(socket) {
                debug_assert!(!matches!(frame.body, Body::Data(_)), "a socket that was not queued");
                self.add_frame(&frame, sockets);
                continue;
            }
            debug_assert_eq!(frame.header.offset, end, "bytes of a stream out of order");
            self.stage(&frame.header.encode());
            let from = (end - start) as usize;
            end = frame.header.end();
            let to = (end - start) as usize;
            self.bytes += to - from;
            self.pieces.push(Piece::Direct(from..to));
        }
        engine.taken(socket, now);
        end
    }

    fn add_frame(&mut self, frame: &Frame, sockets: &Sockets) {
        self.stage(&frame.header.encode());
        match frame.body {
            Body::Empty => {}
            Body::Open(open) => self.stage(&open),
            Body::Update(update) => self.stage(&update),
            Body::Data(socket) => {
                self.add(sockets, socket, frame.header.offset, frame.header.end());
            }
        }
    }

    fn stage(&mut self, bytes: &[u8]) {
        let start = self.staged.len();
        self.staged.extend_from_slice(bytes);
        let end = self.staged.len();
        self.bytes += bytes.len();
        match self.pieces.last_mut() {
            Some(Piece::Staged(last)) if last.end == start => last.end = end,
            _ => self.pieces.push(Piece::Staged(start..end)),
        }
    }

    fn add(&mut self, sockets: &Sockets, socket: Key, start: u64, end: u64) {
        let Some(socket) = sockets.get(socket) else {
            debug_assert!(false, "a frame of a socket without memory");
            return;
        };
        let is_small = end - start <= STAGE_BELOW as u64;
        socket.written.for_each(start, end, |span, from, to| {
            if is_small {
                return self.stage(&span.bytes()[from..to]);
            }
            self.bytes += to - from;
            self.pieces.push(Piece::Shared(span.slice(from, to)));
        });
    }

    /// Sends what was gathered, as far as there is room.
    pub fn send(&mut self) -> io::Result<Sent> {
        self.send_with(&[])
    }

    /// The same after [`Outbox::gather_direct`]. What there is no room for is copied.
    pub fn send_direct(&mut self, direct: &[u8], pool: &Arc<Pool>) -> io::Result<Sent> {
        let result = self.send_with(direct);
        if !matches!(result, Ok(Sent::All)) {
            self.keep(direct, pool);
        }
        result
    }

    /// Copies what is not sent of the application's memory.
    fn keep(&mut self, direct: &[u8], pool: &Arc<Pool>) {
        let (first, done) = self.next;
        let mut kept = Vec::new();
        for (index, piece) in self.pieces.drain(first..).enumerate() {
            let skip = if index == 0 { done } else { 0 };
            match piece {
                Piece::Direct(range) => {
                    let spans = spans_of(pool, &direct[range.start + skip..range.end]);
                    kept.extend(spans.into_iter().map(Piece::Shared));
                }
                Piece::Staged(range) => kept.push(Piece::Staged(range.start + skip..range.end)),
                Piece::Shared(span) => kept.push(Piece::Shared(span.slice(skip, span.len()))),
            }
        }
        self.bytes -= self.sent;
        (self.pieces, self.sent, self.next) = (kept, 0, (0, 0));
    }

    fn send_with(&mut self, direct: &[u8]) -> io::Result<Sent> {
        while self.sent < self.bytes {
            let start = self.is_timed.then(Instant::now);
            let result = self.send_some(direct);
            let time = start.map_or(Duration::ZERO, |start| start.elapsed());
            match result {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => self.advance(sent, time, direct),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Sent::Part),
                Err(error) => return Err(error),
            }
        }
        self.staged.clear();
        self.pieces.clear();
        (self.bytes, self.sent, self.next) = (0, 0, (0, 0));
        Ok(Sent::All)
    }

    fn send_some(&mut self, direct: &[u8]) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let (first, done) = self.next;
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(&self.pieces[first..]) {
            let bytes = piece_bytes(&self.staged, direct, piece);
            *slice = IoSlice::new(if count == 0 { &bytes[done..] } else { bytes });
            count += 1;
        }
        if self.outgoing.takes_kept() {
            let kept: Vec<Kept> =
                self.pieces[first..first + count].iter().map(Piece::kept).collect();
            return self.outgoing.enqueue_kept(&slices[..count], &kept);
        }
        self.outgoing.enqueue(&slices[..count])
    }

    fn advance(&mut self, sent: usize, time: Duration, direct: &[u8]) {
        self.sent += sent;
        self.carried.count(sent, time);
        let (mut piece, mut done) = (self.next.0, self.next.1 + sent);
        while let Some(it) = self.pieces.get(piece) {
            let length = piece_bytes(&self.staged, direct, it).len();
            if done < length {
                break;
            }
            done -= length;
            piece += 1;
        }
        debug_assert!(done == 0 || piece < self.pieces.len(), "more is sent than was gathered");
        self.next = (piece, done);
    }
}

fn piece_bytes<'a>(staged: &'a [u8], direct: &'a [u8], piece: &'a Piece) -> &'a [u8] {
    match piece {
        Piece::Staged(range) => &staged[range.clone()],
        Piece::Shared(span) => span.bytes(),
        Piece::Direct(range) => &direct[range.clone()],
    }
}
