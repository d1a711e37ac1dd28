//! Frames on their way into a channel: read without the endpoint's lock, taken apart under it.

use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_model::Nanos;
use quell_net_engine::wire::{FrameError, HEADER_BYTES, Header, OPEN_BYTES};
use quell_net_engine::{Delivery, Engine, FrameRefused, Key};

use crate::memory::{LARGE, Pool, Segment, Span};
use crate::socket::Sockets;
use crate::transport::{Filled, Incoming};

/// Pieces of memory of one read at most: what a core's cache holds beside other things.
const SEGMENTS_MAX: usize = 4;

/// The longest control frame.
const CONTROL_MAX: usize = HEADER_BYTES + OPEN_BYTES;

/// Why a channel is ended by what arrived.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Refused(#[from] FrameRefused),
}

/// A data frame whose payload has not come whole.
#[derive(Debug)]
struct OpenFrame {
    header: Header,
    delivery: Delivery,
    come: u64,
}

/// The first bytes of a frame, as far as they have come.
#[derive(Debug)]
struct Head {
    bytes: [u8; CONTROL_MAX],
    length: usize,
}

impl Head {
    /// Takes bytes until there are `wanted`. Returns how many it took.
    fn take(&mut self, bytes: &[u8], wanted: usize) -> usize {
        let taken = wanted.saturating_sub(self.length).min(bytes.len());
        self.bytes[self.length..self.length + taken].copy_from_slice(&bytes[..taken]);
        self.length += taken;
        taken
    }
}

/// See the module.
pub(crate) struct Inbox {
    incoming: Box<dyn Incoming>,
    pool: Arc<Pool>,
    /// Memory for the next read, and how many pieces of it are offered: more while reads fill them.
    segments: Vec<Arc<Segment>>,
    count: usize,
    is_bulk: bool,
    /// The time of reads is measured.
    is_timed: bool,
    /// The last read took all that had arrived: nothing has until `poll` says so.
    is_drained: bool,
    head: Head,
    open: Option<OpenFrame>,
}

/// What a read brought.
#[derive(Debug, Default)]
pub(crate) struct Input {
    spans: Vec<Span>,
    /// Time that it took.
    pub time: Duration,
    /// The channel has ended behind it.
    pub is_end: bool,
}

impl Input {
    /// Whether nothing has arrived.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty() && !self.is_end
    }

    /// Bytes that have.
    pub fn bytes(&self) -> usize {
        self.spans.iter().map(Span::len).sum()
    }
}

impl Inbox {
    pub fn new(incoming: Box<dyn Incoming>, pool: &Arc<Pool>, is_timed: bool) -> Inbox {
        Inbox {
            incoming,
            segments: Vec::new(),
            pool: Arc::clone(pool),
            count: 1,
            is_bulk: false,
            is_timed,
            is_drained: false,
            head: Head { bytes: [0; CONTROL_MAX], length: 0 },
            open: None,
        }
    }

    /// `poll` has said that something has arrived.
    pub fn woken(&mut self) {
        self.is_drained = false;
        self.incoming.woken();
    }

    /// Whether the last read that brought something brought much: the next bytes are near.
    pub fn is_bulk(&self) -> bool {
        self.is_bulk
    }

    /// Whether the rest of a data frame is on its way.
    pub fn expects_more(&self) -> bool {
        self.open.is_some()
    }

    /// Reads what has arrived, at most the memory for one read.
    pub fn read(&mut self) -> Input {
        if self.is_drained {
            return Input::default();
        }
        let start = self.is_timed.then(Instant::now);
        if let Some(result) = self.incoming.take_filled() {
            return self.filled_before(result, start);
        }
        let count = self.count;
        for segment in &mut self.segments {
            match Arc::get_mut(segment) {
                Some(own) => own.clear(),
                // Sockets hold a part of it.
                None => *segment = Arc::new(self.pool.segment(LARGE)),
            }
        }
        self.segments.truncate(count);
        let pool = &self.pool;
        self.segments.resize_with(count, || Arc::new(pool.segment(LARGE)));
        let result = loop {
            let mut slices: [IoSliceMut<'_>; SEGMENTS_MAX] =
                std::array::from_fn(|_| IoSliceMut::new(&mut []));
            // All were made ours above, and nothing was shared since.
            for (slice, segment) in slices.iter_mut().zip(&mut self.segments) {
                *slice =
                    IoSliceMut::new(Arc::get_mut(segment).map_or(&mut [][..], Segment::free_mut));
            }
            match self.incoming.dequeue(&mut slices[..count]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        let time = start.map_or(Duration::ZERO, |start| start.elapsed());
        let left_room = match &result {
            Ok(bytes) => (1..count * LARGE).contains(bytes),
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        let asks_poll = self.incoming.is_asked_by_poll();
        self.is_drained = left_room && asks_poll;
        self.is_bulk = asks_poll && matches!(&result, Ok(LARGE..));
        match result {
            Ok(0) => Input { is_end: true, ..Input::default() },
            Ok(bytes) => Input { spans: self.filled(bytes), time, is_end: false },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Input::default(),
            Err(_) => Input { is_end: true, ..Input::default() },
        }
    }

    /// What a transport had filled before it was asked.
    fn filled_before(&mut self, result: io::Result<Filled>, start: Option<Instant>) -> Input {
        let spans = match result {
            Ok(Filled(spans)) => spans,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Input::default(),
            Err(_) => Vec::new(),
        };
        let time = start.map_or(Duration::ZERO, |start| start.elapsed());
        let is_end = spans.is_empty();
        let input = Input { spans, time, is_end };
        self.is_bulk = input.bytes() >= LARGE;
        input
    }

    fn filled(&mut self, mut bytes: usize) -> Vec<Span> {
        let mut spans = Vec::with_capacity(bytes.div_ceil(LARGE));
        self.count = match bytes.div_ceil(LARGE) {
            used if used == self.count && bytes == used * LARGE => (2 * used).min(SEGMENTS_MAX),
            used => used.min(SEGMENTS_MAX),
        };
        for segment in &mut self.segments {
            let Some(own) = Arc::get_mut(segment).filter(|_| bytes > 0) else { break };
            let length = bytes.min(own.room());
            own.fill(length);
            bytes -= length;
            spans.push(Span::new(segment, 0, length));
        }
        debug_assert_eq!(bytes, 0, "a transport read more than it was given memory for");
        spans
    }

    /// Takes apart what a read brought.
    pub fn parse(
        &mut self,
        input: Input,
        engine: &mut Engine,
        key: Key,
        sockets: &mut Sockets,
        now: Nanos,
    ) -> Result<(), Broken> {
        for span in input.spans {
            let mut at = 0;
            while at < span.len() || self.open.as_ref().is_some_and(OpenFrame::is_whole) {
                at += match self.open.take() {
                    Some(open) => self.payload(open, &span, at, engine, key, sockets, now),
                    None => self.head(&span.bytes()[at..], engine, key, now)?,
                };
            }
        }
        Ok(())
    }

    /// More of a data frame.
    #[expect(clippy::too_many_arguments, reason = "the parts of a core, borrowed apart")]
    fn payload(
        &mut self,
        mut open: OpenFrame,
        span: &Span,
        at: usize,
        engine: &mut Engine,
        key: Key,
        sockets: &mut Sockets,
        now: Nanos,
    ) -> usize {
        let left = u64::from(open.header.length) - open.come;
        let length = left.min((span.len() - at) as u64);
        let first = open.header.offset + open.come;
        if let Delivery::Into { socket, start, end } = open.delivery {
            let (from, to) = (first.max(start), (first + length).min(end));
            // A socket that failed meanwhile takes nothing.
            if from < to && engine.receive_range(socket).is_some() {
                let skip = at + (from - first) as usize;
                let part = span.slice(skip, skip + (to - from) as usize);
                sockets.of(socket).received.put(&self.pool, from, part);
                engine.arrived(key, socket, from, to, now);
            }
        }
        open.come += length;
        if open.is_whole() {
            finish(engine, &open.delivery);
        } else {
            self.open = Some(open);
        }
        length as usize
    }

    /// More of the head of a frame. Returns how many bytes belong to it.
    fn head(
        &mut self,
        bytes: &[u8],
        engine: &mut Engine,
        key: Key,
        now: Nanos,
    ) -> Result<usize, Broken> {
        let mut taken = self.head.take(bytes, HEADER_BYTES);
        if self.head.length < HEADER_BYTES {
            return Ok(taken);
        }
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&self.head.bytes[..HEADER_BYTES]);
        let header = Header::decode(&header, engine.config().max_frame)?;
        let control = if header.kind.is_data() { 0 } else { header.length as usize };
        let whole = HEADER_BYTES + control;
        debug_assert!(whole <= CONTROL_MAX, "a control frame of {whole} bytes");
        taken += self.head.take(&bytes[taken..], whole);
        if self.head.length < whole {
            return Ok(taken);
        }
        let payload = &self.head.bytes[HEADER_BYTES..whole];
        let delivery = engine.frame(key, &header, payload, now)?;
        self.head.length = 0;
        if header.kind.is_data() {
            self.open = Some(OpenFrame { header, delivery, come: 0 });
        }
        Ok(taken)
    }

    /// The channel is gone: what it was bringing does not come.
    pub fn end(&mut self, engine: &mut Engine) {
        if let Some(open) = self.open.take() {
            finish(engine, &open.delivery);
        }
    }
}

impl OpenFrame {
    fn is_whole(&self) -> bool {
        self.come == u64::from(self.header.length)
    }
}

fn finish(engine: &mut Engine, delivery: &Delivery) {
    if let Delivery::Into { socket, start, end } = *delivery {
        engine.finished(socket, start, end);
    }
}
