//! What fuzz targets feed with bytes of a hostile peer: the parsers of this crate as they are used, without a kernel between.

use std::io::{self, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use quell_model::Nanos;
use quell_net_engine::wire::{
    Features, Header, Hello, Kind, OPEN_BYTES, PAYLOAD_MAX, UPDATE_BYTES,
};
use quell_net_engine::{
    Body, ChannelCaps, ChannelId, Class, EndpointId, Engine, EngineConfig, Key, Notice, Policies,
    StreamId,
};

use crate::inbox::Inbox;
use crate::memory::Pool;
use crate::socket::Sockets;
use crate::transport::Incoming;

/// A peer that has sent some bytes, which come in pieces.
struct Feed {
    bytes: Vec<u8>,
    at: usize,
    piece: usize,
}

impl Incoming for Feed {
    fn dequeue(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let left = &self.bytes[self.at..];
        let most = into.first().map_or(0, |first| first.len());
        let taken = left.len().min(most).min(self.piece);
        if let Some(first) = into.first_mut() {
            first[..taken].copy_from_slice(&left[..taken]);
        }
        self.at += taken;
        Ok(taken)
    }
}

/// Memory that a hostile process shares: see there.
pub fn ring(bytes: &[u8]) {
    crate::shm::write_anything(bytes);
}

/// Datagrams that come to a channel over UDP.
pub fn packets(bytes: &[u8]) -> usize {
    crate::udp::take_anything(bytes)
}

/// Frames of a channel. The first byte says in how large pieces the others come, and whether their heads are made valid:
/// no random bytes pass a check value.
pub fn frames(bytes: &[u8]) {
    let Some((first, bytes)) = bytes.split_first() else { return };
    let bytes = if first % 8 == 7 { bytes.to_vec() } else { forged(bytes) };
    let mut engine = Engine::new(EngineConfig::new(EndpointId(1)), Policies::default());
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 80));
    let Ok(listener) = engine.listen(any, 8) else { return };
    let hello = Hello {
        endpoint: EndpointId(2),
        channel: ChannelId(1),
        class: if first % 2 == 0 { Class::Latency } else { Class::Throughput },
        features: Features::RECOVERY,
        max_frame: PAYLOAD_MAX,
        first_window: 16 << 10,
    };
    let caps = ChannelCaps { is_lossy: first % 4 > 1, max_frame: PAYLOAD_MAX };
    let Ok(key) = engine.channel_up(&hello, false, caps, Nanos::ZERO) else { return };
    let (pool, mut sockets) = (Arc::new(Pool::default()), Sockets::default());
    let feed = Feed { bytes, at: 0, piece: 1 + usize::from(*first) * 37 };
    let mut inbox = Inbox::new(Box::new(feed), &pool, false);
    for step in 0_u64.. {
        let now = Nanos::from_micros(100 * step);
        let input = inbox.read();
        let is_end = input.is_end;
        let result = inbox.parse(input, &mut engine, key, &mut sockets, now);
        act(&mut engine, &mut sockets, listener, now);
        let sent = std::iter::from_fn(|| engine.transmit(key, PAYLOAD_MAX, now));
        // Nothing was written.
        sent.for_each(|frame| assert!(!matches!(frame.body, Body::Data(_))));
        if is_end || result.is_err() {
            break;
        }
    }
    inbox.end(&mut engine);
    engine.channel_down(key, Nanos::from_secs(1));
    engine.timers(Nanos::from_secs(60));
    assert_eq!(engine.receive_reserved(), 0, "memory of a peer that is gone");
}

/// Frames with valid heads: sixteen bytes say what is in each, and what follows is its payload.
fn forged(mut bytes: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<16>() {
        let kind = Kind::ALL[usize::from(head[0]) % Kind::ALL.len()];
        let most = match kind {
            Kind::Data => usize::from(u16::from_le_bytes([head[2], head[3]])),
            Kind::Open => OPEN_BYTES,
            Kind::Update | Kind::Resend => UPDATE_BYTES,
            _ => 0,
        };
        let (payload, rest) = rest.split_at(most.min(rest.len()));
        let mut offset = [0; 8];
        offset.copy_from_slice(&head[8..]);
        let offset = u64::from_le_bytes(offset) >> (head[5] % 64);
        let stream = StreamId(u64::from(head[4] % 16));
        let length = payload.len() as u32;
        all.extend(Header { kind, flags: head[1] % 8, length, stream, offset }.encode());
        all.extend_from_slice(payload);
        bytes = rest;
    }
    all
}

/// An application that accepts everything, reads half of it, and closes some.
fn act(engine: &mut Engine, sockets: &mut Sockets, listener: Key, now: Nanos) {
    let mut open = Vec::new();
    while let Some((key, _)) = engine.accept(listener) {
        open.push(key);
    }
    while let Some(notice) = engine.notice() {
        match notice {
            Notice::Readable(key) => open.push(key),
            Notice::Gone(key) => sockets.remove(key),
            _ => {}
        }
    }
    for (index, key) in open.into_iter().enumerate() {
        let Some(status) = engine.status(key) else { continue };
        let read = sockets.of(key).received.take(status.readable.div_ceil(2));
        let bytes: usize = read.iter().map(|span| span.len()).sum();
        engine.read(key, bytes as u64, now);
        if index % 3 == 2 {
            engine.close(key, now);
        }
    }
    engine.timers(now);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quell_net_engine::wire::Open;

    use super::*;

    /// A stream that is opened and written, as its frames.
    fn stream(bytes: &[u8]) -> Vec<u8> {
        let id = StreamId::first(EndpointId(2), EndpointId(1));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 80));
        let open = Open { source: address, destination: address, class: Class::Latency }.encode();
        let head = |kind, length: usize| {
            let length = length as u32;
            Header { kind, flags: 0, length, stream: id, offset: 0 }.encode()
        };
        let mut all = head(Kind::Open, open.len()).to_vec();
        all.extend(open);
        all.extend(head(Kind::Data, bytes.len()));
        all.extend(bytes);
        all
    }

    proptest! {
        #[test]
        fn bytes_of_a_hostile_peer_end_the_channel_and_nothing_else(
            piece: u8,
            payload in proptest::collection::vec(any::<u8>(), 0..300),
            changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..4),
        ) {
            let mut bytes = stream(&payload);
            for (at, byte) in changes {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            // As it is, and as what is in frames.
            for first in [piece | 7, piece & !1] {
                bytes.insert(0, first);
                frames(&bytes);
                bytes.remove(0);
            }
            ring(&bytes);
        }
    }
}
