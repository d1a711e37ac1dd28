//! A peer that sends anything: it may lose its channel and its streams, and nothing else happens.

use std::net::SocketAddr;

use proptest::prelude::*;
use quell_model::Nanos;
use quell_net_engine::flow::{Credit, MemoryLimits, Relief, StopResume};
use quell_net_engine::wire::{
    Features, Header, Hello, Kind, OPEN_BYTES, Open, UPDATE_BYTES, Update,
};
use quell_net_engine::{
    ChannelCaps, ChannelId, Class, Delivery, EndpointId, Engine, EngineConfig, Key, Notice,
    Policies, StreamId,
};

const MEMORY: u64 = 256 << 10;

#[derive(Clone, Debug)]
enum Step {
    Frame { channel: usize, header: Header, payload: Vec<u8>, come: u32, finishes: bool },
    Accept,
    Open,
    Read { socket: usize, bytes: u64 },
    Write { socket: usize, bytes: u64 },
    End { socket: usize },
    Close { socket: usize },
    Transmit { channel: usize },
    Later { nanos: u64 },
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Offsets near those that are in use, and far from them.
fn offsets() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..40_000u64, 1 => any::<u64>(), 1 => (0..3u64).prop_map(|it| u64::MAX - it)]
}

fn payloads(kind: Kind) -> BoxedStrategy<Vec<u8>> {
    match kind {
        Kind::Open => (any::<bool>(), 79u16..82)
            .prop_map(|(latency, port)| {
                let class = Class::ALL[usize::from(!latency)];
                let open = Open { source: address(1), destination: address(port), class };
                open.encode().to_vec()
            })
            .boxed(),
        Kind::Update | Kind::Resend => (offsets(), offsets(), offsets())
            .prop_map(|(limit, a, b)| {
                let beyond = (a != b).then_some((a.min(b), a.max(b)));
                Update { limit, beyond }.encode().to_vec()
            })
            .boxed(),
        _ => Just(Vec::new()).boxed(),
    }
}

fn frames() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![3 => Just(Kind::Data), 2 => Just(Kind::Open), 2 => Just(Kind::Update),
        4 => proptest::sample::select(&Kind::ALL[..])];
    kind.prop_flat_map(|kind| {
        let numbers = (0..2usize, 1..14u64, offsets(), 0..6_000u32, 0..4u8);
        (Just(kind), numbers, payloads(kind), 0..6_000u32, any::<bool>())
    })
    .prop_map(|(kind, (channel, stream, offset, length, flags), payload, come, finishes)| {
        let length = match kind {
            Kind::Data => length,
            Kind::Open => OPEN_BYTES as u32,
            Kind::Update | Kind::Resend => UPDATE_BYTES as u32,
            _ => 0,
        };
        let flags = match kind {
            Kind::Data => flags & (Header::FIN | Header::BLOCKED),
            Kind::Update => flags & Header::FIN,
            Kind::Open => Header::EARLY & (flags << 2),
            _ => 0,
        };
        let stream = if kind.is_of_stream() { StreamId(stream) } else { StreamId::NONE };
        let header = Header { kind, flags, length, stream, offset };
        Step::Frame { channel, header, payload, come, finishes }
    })
}

fn steps() -> impl Strategy<Value = Step> {
    let socket = 0..8usize;
    prop_oneof![
        12 => frames(),
        2 => Just(Step::Accept),
        1 => Just(Step::Open),
        2 => (socket.clone(), 0..20_000u64).prop_map(|(socket, bytes)| Step::Read { socket, bytes }),
        2 => (socket.clone(), 1..20_000u64).prop_map(|(socket, bytes)| Step::Write { socket, bytes }),
        1 => socket.clone().prop_map(|socket| Step::End { socket }),
        1 => socket.prop_map(|socket| Step::Close { socket }),
        3 => (0..2usize).prop_map(|channel| Step::Transmit { channel }),
        1 => (0..3_000_000_000u64).prop_map(|nanos| Step::Later { nanos }),
    ]
}

struct Scene {
    engine: Engine,
    peer: Key,
    listener: Key,
    channels: [Option<Key>; 2],
    sockets: Vec<Key>,
    /// Ranges that a channel is bringing: to be finished at its end.
    open: Vec<(Key, Key, u64, u64)>,
    now: Nanos,
}

impl Scene {
    fn new(kind: usize) -> Scene {
        let mut config = EngineConfig::new(EndpointId(5));
        config.streams_max = 16;
        config.has_recovery = kind != 2;
        let limits = MemoryLimits {
            endpoint: MEMORY,
            peer: MEMORY,
            stream_max: 64 << 10,
            stream_min: 16 << 10,
            working_set: 128 << 10,
        };
        let relief = Relief {
            buffer: 16 << 10,
            channel_budget: 32 << 10,
            stop_after: Nanos::from_millis(1),
        };
        let policies = Policies {
            flow: match kind {
                1 => Box::new(StopResume::new(relief, 16)),
                _ => Box::new(Credit::new(limits)),
            },
            first_window: 16 << 10,
            ..Policies::default()
        };
        let mut engine = Engine::new(config, policies);
        let listener = engine.listen(address(80), 4).expect("free");
        let is_lossy = kind == 3;
        let channels = [(Class::Latency, 1), (Class::Throughput, 2)].map(|(class, number)| {
            let hello = Hello {
                endpoint: EndpointId(6),
                channel: ChannelId(number),
                class,
                features: Features::RECOVERY,
                max_frame: 8_192,
                first_window: 16 << 10,
            };
            let caps = ChannelCaps { is_lossy, max_frame: 8_192 };
            Some(engine.channel_up(&hello, false, caps, Nanos::ZERO).expect("taken"))
        });
        let peer = engine.peer(EndpointId(6)).expect("known");
        let (sockets, open) = (Vec::new(), Vec::new());
        Scene { engine, peer, listener, channels, sockets, open, now: Nanos::ZERO }
    }

    fn lose(&mut self, index: usize) {
        let Some(channel) = self.channels[index].take() else { return };
        self.engine.channel_down(channel, self.now);
        self.finish(channel);
    }

    fn finish(&mut self, channel: Key) {
        for (_, socket, start, end) in self.open.extract_if(.., |open| open.0 == channel) {
            self.engine.finished(socket, start, end);
        }
    }

    fn step(&mut self, step: Step) {
        let now = self.now;
        let socket = |socket: usize| self.sockets.get(socket).copied();
        match step {
            Step::Frame { channel: index, header, payload, come, finishes } => {
                let Some(channel) = self.channels[index] else { return };
                // A frame comes after the one before it on the same channel.
                self.finish(channel);
                match self.engine.frame(channel, &header, &payload, now) {
                    Err(_) => self.lose(index),
                    Ok(Delivery::Into { socket, start, end }) => {
                        assert!(start < end && header.offset <= start && end <= header.end());
                        let until = end.min(start + u64::from(come));
                        if start < until {
                            self.engine.arrived(channel, socket, start, until, now);
                        }
                        self.open.push((channel, socket, start, end));
                        if finishes {
                            self.finish(channel);
                        }
                    }
                    Ok(Delivery::Done | Delivery::Nowhere) => {}
                }
            }
            Step::Accept => {
                let accepted = self.engine.accept(self.listener);
                self.sockets.extend(accepted.map(|(key, _)| key));
            }
            Step::Open => {
                let open =
                    Open { source: address(2), destination: address(9), class: Class::Latency };
                self.sockets.extend(self.engine.open(self.peer, open, now));
            }
            Step::Read { socket: at, bytes } => {
                let Some(key) = socket(at) else { return };
                let readable = self.engine.status(key).map_or(0, |status| status.readable);
                self.engine.read(key, bytes.min(readable), now);
            }
            Step::Write { socket: at, bytes } => {
                let Some(key) = socket(at) else { return };
                let writable = self.engine.status(key).map_or(0, |status| status.writable);
                if writable > 0 {
                    self.engine.written(key, bytes.min(writable), now);
                }
            }
            Step::End { socket: at } => {
                socket(at).into_iter().for_each(|key| self.engine.end_writing(key, now));
            }
            Step::Close { socket: at } if at < self.sockets.len() => {
                let key = self.sockets.swap_remove(at);
                self.engine.close(key, now);
            }
            Step::Close { .. } => {}
            Step::Transmit { channel } => {
                let Some(channel) = self.channels[channel] else { return };
                for _ in 0..64 {
                    let Some(frame) = self.engine.transmit(channel, 4_096, now) else { break };
                    assert!(frame.header.length <= 8_192);
                }
            }
            Step::Later { nanos } => {
                self.now = Nanos(now.0 + nanos);
                self.engine.timers(self.now);
            }
        }
        self.notices();
    }

    fn notices(&mut self) {
        while let Some(notice) = self.engine.notice() {
            if let Notice::Close(channel) = notice {
                self.channels
                    .iter_mut()
                    .filter(|it| **it == Some(channel))
                    .for_each(|it| *it = None);
                self.finish(channel);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn peer_that_sends_anything_costs_its_own_channels_and_streams_alone(
        kind in 0..4usize,
        steps in proptest::collection::vec(steps(), 1..120),
    ) {
        let mut scene = Scene::new(kind);
        for step in steps {
            scene.step(step);
            prop_assert!(scene.engine.stream_count() <= 16);
            prop_assert!(scene.engine.receive_reserved() <= MEMORY);
        }
        (0..2).for_each(|index| scene.lose(index));
        let now = scene.now;
        std::mem::take(&mut scene.sockets).into_iter().for_each(|key| scene.engine.close(key, now));
        scene.engine.close_listener(scene.listener, now);
        for _ in 0..20 {
            scene.now = Nanos(scene.now.0 + 1_000_000_000);
            scene.engine.timers(scene.now);
            scene.notices();
        }
        prop_assert_eq!(scene.engine.stream_count(), 0);
        prop_assert_eq!(scene.engine.receive_reserved(), 0);
        prop_assert_eq!(scene.engine.send_used(), 0);
    }
}
