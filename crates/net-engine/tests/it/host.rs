//! A simulated endpoint: the engine, the bytes of its sockets, and a driver that moves them.

use std::collections::{BTreeMap, VecDeque};

use quell_model::Nanos;
use quell_net_engine::wire::{HEADER_BYTES, Header};
use quell_net_engine::{
    Body, Delivery, EndpointId, Engine, EngineConfig, FrameRefused, Key, Notice, Policies,
};

/// What byte a socket writes at an offset: another for each socket and place.
pub fn byte_of(writer: u64, offset: u64) -> u8 {
    let mixed =
        (writer ^ offset.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 56) as u8
}

/// Received bytes of a socket, by their offsets.
#[derive(Debug, Default)]
struct Memory {
    /// Offset of the first byte.
    base: u64,
    bytes: VecDeque<Option<u8>>,
}

impl Memory {
    fn put(&mut self, offset: u64, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            let at = offset + index as u64;
            assert!(at >= self.base, "bytes arrive that were read");
            let at = (at - self.base) as usize;
            if self.bytes.len() <= at {
                self.bytes.resize(at + 1, None);
            }
            self.bytes[at] = Some(*byte);
        }
    }

    fn take(&mut self, bytes: u64) -> Vec<u8> {
        self.base += bytes;
        let all = self.bytes.drain(..bytes as usize);
        all.map(|byte| byte.expect("readable bytes are there")).collect()
    }
}

/// Reassembles frames from the pieces of a channel.
#[derive(Debug, Default)]
pub struct Parser {
    buffer: Vec<u8>,
    /// A data frame whose payload has not arrived whole: where it goes, and how much of it has come.
    open: Option<(Header, Delivery, u64)>,
}

/// See the module.
pub struct Host {
    pub engine: Engine,
    pub id: EndpointId,
    memory: BTreeMap<Key, Memory>,
    /// The number that decides what a socket writes.
    pub writers: BTreeMap<Key, u64>,
    pub parsers: BTreeMap<Key, Parser>,
    pub max_frame: u32,
}

impl Host {
    pub fn new(config: EngineConfig, policies: Policies) -> Host {
        let (id, max_frame) = (config.id, config.max_frame);
        Host {
            engine: Engine::new(config, policies),
            id,
            memory: BTreeMap::new(),
            writers: BTreeMap::new(),
            parsers: BTreeMap::new(),
            max_frame,
        }
    }

    /// The bytes of a channel's next frame.
    pub fn transmit(&mut self, channel: Key, max: u32, now: Nanos) -> Option<Vec<u8>> {
        let frame = self.engine.transmit(channel, max, now)?;
        let mut bytes = frame.header.encode().to_vec();
        match frame.body {
            Body::Empty => {}
            Body::Open(open) => bytes.extend(open),
            Body::Update(update) => bytes.extend(update),
            Body::Data(socket) => {
                let writer = self.writers[&socket];
                let (start, end) = (frame.header.offset, frame.header.end());
                bytes.extend((start..end).map(|offset| byte_of(writer, offset)));
                self.engine.taken(socket, now);
            }
        }
        assert_eq!(bytes.len(), HEADER_BYTES + frame.header.length as usize);
        Some(bytes)
    }

    /// Bytes of a channel arrived. False if the channel is to be ended.
    pub fn receive(&mut self, channel: Key, bytes: &[u8], now: Nanos) -> bool {
        let mut parser = self.parsers.remove(&channel).unwrap_or_default();
        parser.buffer.extend(bytes);
        let is_good = self.parse(channel, &mut parser, now);
        self.parsers.insert(channel, parser);
        is_good
    }

    fn parse(&mut self, channel: Key, parser: &mut Parser, now: Nanos) -> bool {
        loop {
            if let Some((header, delivery, come)) = parser.open.take() {
                let left = u64::from(header.length) - come;
                let take = left.min(parser.buffer.len() as u64);
                let part: Vec<u8> = parser.buffer.drain(..take as usize).collect();
                self.place(channel, &header, delivery, come, &part, now);
                if take < left {
                    parser.open = Some((header, delivery, come + take));
                    return true;
                }
                self.finish(delivery);
                continue;
            }
            if parser.buffer.len() < HEADER_BYTES {
                return true;
            }
            let mut head = [0; HEADER_BYTES];
            head.copy_from_slice(&parser.buffer[..HEADER_BYTES]);
            let header = Header::decode(&head, self.max_frame);
            let header = header.expect("honest peers send headers that can be read");
            let control = if header.kind.is_data() { 0 } else { header.length as usize };
            if parser.buffer.len() < HEADER_BYTES + control {
                return true;
            }
            let rest = parser.buffer.split_off(HEADER_BYTES + control);
            let payload = std::mem::replace(&mut parser.buffer, rest);
            match self.engine.frame(channel, &header, &payload[HEADER_BYTES..], now) {
                Ok(_) if !header.kind.is_data() => {}
                Ok(delivery) => {
                    self.assert_alone(delivery);
                    parser.open = Some((header, delivery, 0));
                }
                Err(FrameRefused::NoChannel) => return false,
                Err(refused) => panic!("an honest peer's frame is refused: {refused}"),
            }
        }
    }

    /// No other channel writes the same bytes of a socket's memory meanwhile.
    fn assert_alone(&self, delivery: Delivery) {
        let Delivery::Into { socket, start, end } = delivery else { return };
        for (_, other, _) in self.parsers.values().filter_map(|parser| parser.open.as_ref()) {
            let is_apart = match *other {
                Delivery::Into { socket: of, start: from, end: to } => {
                    of != socket || to <= start || end <= from
                }
                _ => true,
            };
            assert!(is_apart, "two channels write the same bytes: {other:?}, {delivery:?}");
        }
    }

    fn place(
        &mut self,
        channel: Key,
        header: &Header,
        delivery: Delivery,
        come: u64,
        part: &[u8],
        now: Nanos,
    ) {
        let Delivery::Into { socket, start, end } = delivery else { return };
        let first = header.offset + come;
        let (from, to) = (first.max(start), (first + part.len() as u64).min(end));
        if from >= to || self.engine.receive_range(socket).is_none() {
            return;
        }
        let bytes = &part[(from - first) as usize..(to - first) as usize];
        self.memory.entry(socket).or_default().put(from, bytes);
        self.engine.arrived(channel, socket, from, to, now);
    }

    /// A frame's payload has come, or will not.
    fn finish(&mut self, delivery: Delivery) {
        if let Delivery::Into { socket, start, end } = delivery {
            self.engine.finished(socket, start, end);
        }
    }

    /// A channel is gone, in the middle of a frame perhaps.
    pub fn lose(&mut self, channel: Key, now: Nanos) {
        self.engine.channel_down(channel, now);
        let parser = self.parsers.remove(&channel).unwrap_or_default();
        if let Some((_, delivery, _)) = parser.open {
            self.finish(delivery);
        }
    }

    /// Reads at most so many bytes; returns them with the offset of the first.
    pub fn read(&mut self, socket: Key, most: u64, now: Nanos) -> (u64, Vec<u8>) {
        let Some(status) = self.engine.status(socket) else { return (0, Vec::new()) };
        let bytes = status.readable.min(most);
        let start = self.engine.receive_range(socket).map_or(0, |(read, _)| read);
        let taken =
            if bytes > 0 { self.memory.entry(socket).or_default().take(bytes) } else { Vec::new() };
        self.engine.read(socket, bytes, now);
        (start, taken)
    }

    /// Everything that happened since the last call.
    pub fn notices(&mut self) -> Vec<Notice> {
        std::iter::from_fn(|| self.engine.notice()).collect()
    }

    /// Bytes that are in memory for sockets.
    pub fn held(&self) -> u64 {
        self.memory.values().map(|memory| memory.bytes.len() as u64).sum()
    }

    /// The socket was closed: its memory is free.
    pub fn forget(&mut self, socket: Key) {
        self.memory.remove(&socket);
    }
}
