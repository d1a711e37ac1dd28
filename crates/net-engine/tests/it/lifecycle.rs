//! Scripted lives of sockets: each defect of the authors' code (facts of the published prototype) is a case.

use quell_model::Nanos;
use quell_net_engine::flow::{Credit, MemoryLimits};
use quell_net_engine::scheduler::{ChannelChoice, RoundRobin};
use quell_net_engine::wire::{Features, Header, Hello, Kind, Open};
use quell_net_engine::{
    Body, ChannelCaps, ChannelId, Class, EndpointId, Engine, EngineConfig, Key, OpenRefusal,
    Policies, ResetReason, StreamFailure,
};

use super::link::LinkSpec;
use super::world::{BACKLOG, End, World, address};

const SPEC: LinkSpec = LinkSpec {
    delay: Nanos::from_micros(50),
    jitter: Nanos::from_micros(20),
    room: 16_384,
    lossy: None,
};

/// Two hosts with a channel of each class.
fn pair(spec: LinkSpec) -> World {
    let mut world = World::new(1, spec);
    for _ in 0..2 {
        world.add_host(|_| Policies::default());
    }
    world.connect(0, 1, Class::Latency);
    world.connect(0, 1, Class::Throughput);
    world
}

/// A stream of host 0 whose bytes stay unread: the opener's end.
fn unread_stream(world: &mut World) -> usize {
    let end = world.open(0, 1, Class::Throughput, [5_000_000, 0]).expect("open");
    while world.ends.len() < 2 {
        let next = Nanos(world.now.0 + 10_000);
        world.run(next);
    }
    world.ends[1].idle_until = Nanos::from_secs(60);
    let next = Nanos(world.now.0 + 2_000_000);
    world.run(next);
    assert!(!world.ends[end].is_closed);
    end
}

fn finish(world: &mut World) {
    let until = Nanos(world.now.0 + 30_000_000_000);
    world.run(until);
    assert!(world.is_done(), "{:?}", world.ends);
    world.assert_balanced();
}

#[test]
fn streams_of_both_classes_arrive_whole() {
    let mut world = pair(SPEC);
    for class in Class::ALL {
        world.open(0, 1, class, [300_000, 70_000]).expect("open");
        world.open(1, 0, class, [0, 50_000]).expect("open");
    }
    finish(&mut world);
    assert_eq!(world.ends.len(), 8);
    assert!(world.ends.iter().all(|end| end.saw_end && !end.failed));
}

#[test]
fn connect_without_listener_is_refused() {
    let mut world = pair(SPEC);
    let listener = world.listeners[&1];
    let now = world.now;
    world.hosts[1].engine.close_listener(listener, now);
    let end = world.open(0, 1, Class::Latency, [1_000, 0]).expect("open");
    let key = world.ends[end].key;
    world.ends[end].is_closed = true;
    world.run(Nanos(now.0 + 1_000_000));
    let status = world.hosts[0].engine.status(key).expect("held");
    assert_eq!(status.failure, Some(StreamFailure::Refused(OpenRefusal::NoListener)));
}

#[test]
fn connect_beyond_the_backlog_is_refused() {
    let mut world = pair(SPEC);
    world.deafen(1, Nanos::from_millis(5));
    let keys: Vec<_> = (0..40).filter_map(|_| world.open(0, 1, Class::Latency, [10, 10])).collect();
    assert_eq!(keys.len(), 40);
    finish(&mut world);
    let refused = world.ends.iter().filter(|end| end.failed).count();
    assert_eq!(refused, 40 - BACKLOG);
}

#[test]
fn channel_that_dies_loses_nothing() {
    let mut world = pair(SPEC);
    world.connect(0, 1, Class::Throughput);
    for _ in 0..4 {
        world.open(0, 1, Class::Throughput, [200_000, 100_000]).expect("open");
    }
    for millis in 2..20 {
        world.run(Nanos::from_millis(millis));
        world.cut(0);
        let class = if world.wires.iter().any(|wire| wire.class == Class::Latency) {
            Class::Throughput
        } else {
            Class::Latency
        };
        world.connect(1, 0, class);
    }
    finish(&mut world);
    assert!(world.ends.iter().all(|end| end.saw_end && !end.failed));
}

#[test]
fn peer_that_dies_resets_its_streams() {
    let mut world = pair(SPEC);
    let end = unread_stream(&mut world);
    world.restart(1, |_| Policies::default());
    finish(&mut world);
    assert!(world.ends[end].failed && !world.ends[end].saw_end);
}

#[test]
fn lost_peer_resets_after_the_grace_time() {
    let mut world = pair(SPEC);
    let end = unread_stream(&mut world);
    world.cut(0);
    world.cut(0);
    world.ends.iter_mut().for_each(End::expect_failure);
    let until = Nanos(world.now.0 + 4_000_000_000);
    world.run(until);
    assert!(!world.ends[end].failed);
    finish(&mut world);
    assert!(world.ends[end].failed);
}

#[test]
fn unread_socket_does_not_stop_its_neighbours() {
    let mut world = pair(SPEC);
    world.open(0, 1, Class::Throughput, [400_000, 0]).expect("open");
    world.run(Nanos::from_millis(2));
    let stalled = world.ends.len() - 1;
    world.ends[stalled].idle_until = Nanos::from_secs(20);
    let neighbours: Vec<usize> =
        (0..4).filter_map(|_| world.open(0, 1, Class::Throughput, [100_000, 0])).collect();
    world.run(Nanos::from_secs(1));
    assert!(neighbours.iter().all(|end| world.ends[*end].is_closed));
    assert!(!world.ends[stalled].is_closed);
    finish(&mut world);
}

#[test]
fn close_with_unsent_data_delivers_it() {
    let mut world = pair(SPEC);
    let end = world.open(0, 1, Class::Throughput, [20_000, 0]).expect("open");
    let (key, now) = (world.ends[end].key, world.now);
    let host = &mut world.hosts[0];
    host.engine.written(key, 20_000, now);
    host.engine.close(key, now);
    world.ends[end].is_closed = true;
    world.run(Nanos::from_secs(10));
    let other = world.ends.iter().find(|end| end.host == 1).expect("accepted");
    assert_eq!((other.read, other.saw_end), (20_000, true));
    world.assert_balanced();
}

#[test]
fn close_with_unread_data_resets() {
    let mut world = pair(SPEC);
    let end = world.open(0, 1, Class::Throughput, [0, 30_000]).expect("open");
    world.ends[end].idle_until = Nanos::from_secs(100);
    world.run(Nanos::from_millis(5));
    let (key, now) = (world.ends[end].key, world.now);
    world.hosts[0].engine.close(key, now);
    world.hosts[0].forget(key);
    world.ends[end].is_closed = true;
    finish(&mut world);
    let other = world.ends.iter().find(|end| end.host == 1).expect("accepted");
    assert!(other.failed || other.saw_end);
}

#[test]
fn memory_for_few_streams_refuses_more() {
    let mut world = World::new(1, SPEC);
    let limits = MemoryLimits {
        endpoint: 64 << 10,
        peer: 64 << 10,
        stream_max: 32 << 10,
        stream_min: 16 << 10,
        working_set: 128 << 10,
    };
    for _ in 0..2 {
        world.add_host(|_| Policies {
            flow: Box::new(Credit::new(limits)),
            first_window: 16 << 10,
            ..Policies::default()
        });
    }
    world.connect(0, 1, Class::Latency);
    world.connect(0, 1, Class::Throughput);
    let open: Vec<_> =
        (0..6).filter_map(|_| world.open(0, 1, Class::Throughput, [50_000, 0])).collect();
    assert_eq!(open.len(), 4, "the opener's own memory is limited as well");
    finish(&mut world);
    // Streams that are there may have grown into the memory of one that came later: it is refused.
    let failed = world.ends.iter().filter(|end| end.failed).count();
    assert!(failed <= 2 && world.ends.iter().all(|end| end.saw_end || end.failed));
}

#[test]
fn second_channel_of_a_number_and_the_own_endpoint_are_refused() {
    let mut world = pair(SPEC);
    let caps = ChannelCaps { is_lossy: false, max_frame: 4_096 };
    let hello = world.hosts[1].engine.hello(ChannelId(1), Class::Latency);
    let now = world.now;
    assert!(world.hosts[0].engine.channel_up(&hello, true, caps, now).is_err());
    let own = world.hosts[0].engine.hello(ChannelId(9), Class::Latency);
    assert!(world.hosts[0].engine.channel_up(&own, true, caps, now).is_err());
    assert_eq!(ResetReason::from_code(0), ResetReason::Closed);
}

#[test]
fn stream_without_recovery_ends_with_any_channel_that_carried_it() {
    let mut config = EngineConfig::new(EndpointId(1));
    config.has_recovery = false;
    let choice: [Box<dyn ChannelChoice>; 2] =
        [Box::new(RoundRobin { run_bytes: 1 }), Box::new(RoundRobin { run_bytes: 1 })];
    let mut engine = Engine::new(config, Policies { choice, ..Policies::default() });
    let caps = ChannelCaps { is_lossy: false, max_frame: 4_096 };
    let now = Nanos::ZERO;
    let up = |engine: &mut Engine, number| {
        let hello = Hello {
            endpoint: EndpointId(2),
            channel: ChannelId(number),
            class: Class::Throughput,
            features: Features::default(),
            max_frame: 4_096,
            first_window: 1 << 20,
        };
        engine.channel_up(&hello, true, caps, now).expect("a new one")
    };
    let channels = [1, 2, 3].map(|number| up(&mut engine, number));
    let peer = engine.peer(EndpointId(2)).expect("it is up");
    let open = Open { source: address(0), destination: address(1), class: Class::Throughput };
    let key = engine.open(peer, open, now).expect("room");
    let opened = channels.iter().find_map(|channel| engine.transmit(*channel, 4_096, now));
    let id = opened.expect("the open frame").header.stream;
    let accept = Header::control(Kind::Accept, id, 1 << 20);
    engine.frame(channels[0], &accept, &[], now).expect("valid");
    let mut used: Vec<Key> = Vec::new();
    while used.len() < 2 {
        engine.written(key, 1_000, now);
        for channel in channels {
            while let Some(frame) = engine.transmit(channel, 4_096, now) {
                if frame.body == Body::Data(key) && !used.contains(&channel) {
                    used.push(channel);
                }
            }
        }
    }
    // Not the one of the last chunk alone: any of them may have bytes on their way.
    engine.channel_down(used[0], now);
    assert!(engine.status(key).expect("held").failure.is_some());
}
