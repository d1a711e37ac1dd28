//! Channels that are given up while streams use them.

use quell_model::Nanos;
use quell_net_engine::{Class, Policies};

use super::link::LinkSpec;
use super::world::{Wire, World};

const SPEC: LinkSpec = LinkSpec {
    delay: Nanos::from_micros(50),
    jitter: Nanos::from_micros(20),
    room: 16_384,
    lossy: None,
};

/// Bytes of a stream, each way: some milliseconds on its links.
const BYTES: u64 = 600_000;

/// Two hosts with a channel for latency and so many for throughput, between which nothing is sent again.
fn pair(throughput: usize) -> World {
    let mut world = World::new(1, SPEC);
    world.has_recovery = false;
    for _ in 0..2 {
        world.add_host(|config| {
            config.has_recovery = false;
            Policies::default()
        });
    }
    world.connect(0, 1, Class::Latency);
    (0..throughput).for_each(|_| world.connect(0, 1, Class::Throughput));
    world
}

/// Streams both ways, in the middle of what they carry.
fn busy(throughput: usize) -> World {
    let mut world = pair(throughput);
    for _ in 0..4 {
        world.open(0, 1, Class::Throughput, [BYTES, BYTES]).expect("a channel");
        world.open(1, 0, Class::Throughput, [BYTES, 0]).expect("a channel");
    }
    world.run(Nanos(world.now.0 + 1_000_000));
    assert!(world.ends.iter().any(|end| end.read > 0 && !end.is_closed), "it is in the middle");
    world
}

fn channels(world: &World) -> usize {
    world.wires.iter().filter(|wire| wire.class == Class::Throughput).count()
}

fn finish(world: &mut World) {
    world.run(Nanos(world.now.0 + 30_000_000_000));
    assert!(world.is_done() && world.ends.iter().all(|end| end.saw_end && !end.failed));
    world.assert_balanced();
}

#[test]
fn streams_go_on_over_the_others_and_lose_nothing() {
    let mut world = busy(3);
    world.retire(1, 0);
    world.run(Nanos(world.now.0 + 3_000_000));
    assert_eq!(channels(&world), 2, "it is closed while streams run");
    assert!(!world.is_done());
    finish(&mut world);
}

#[test]
fn both_sides_may_begin_at_once() {
    let mut world = busy(2);
    let (first, second) = (world.wires[1].ends[0], world.wires[1].ends[1]);
    for (host, key) in [first, second] {
        assert!(world.hosts[host].engine.retire(key));
    }
    world.run(Nanos(world.now.0 + 3_000_000));
    assert_eq!(channels(&world), 1);
    finish(&mut world);
}

#[test]
fn last_channel_of_a_class_stays() {
    let mut world = busy(2);
    for side in 0..2 {
        world.retire(0, side);
        world.retire(1, side);
        world.retire(2, side);
    }
    world.run(Nanos(world.now.0 + 3_000_000));
    assert_eq!((channels(&world), world.wires.len()), (1, 2));
    finish(&mut world);
}

#[test]
fn channel_that_breaks_before_it_is_given_up_is_lost_as_any_other() {
    let mut world = World::new(1, SPEC);
    (0..2).for_each(|_| _ = world.add_host(|_| Policies::default()));
    world.connect(0, 1, Class::Latency);
    (0..2).for_each(|_| world.connect(0, 1, Class::Throughput));
    world.open(0, 1, Class::Throughput, [BYTES, BYTES]).expect("a channel");
    world.run(Nanos(world.now.0 + 1_000_000));
    world.retire(1, 0);
    // Its last word is on its way.
    world.run(Nanos(world.now.0 + 10_000));
    world.cut(1);
    finish(&mut world);
}

#[test]
fn stream_that_is_being_opened_on_it_goes_on_once_it_is_closed() {
    let mut world = pair(2);
    let end = world.open(0, 1, Class::Throughput, [20_000, 0]).expect("a channel");
    // The test is its application.
    world.ends[end].is_closed = true;
    let key = world.ends[end].key;
    let write = |world: &mut World, bytes| {
        let now = world.now;
        world.hosts[0].engine.written(key, bytes, now);
        world.run(Nanos(now.0 + 10_000));
    };
    write(&mut world, 1_000);
    let engine = &world.hosts[0].engine;
    let (carrier, _) = engine.carrier(key).expect("its open frame is on its way");
    let is_carrier = |wire: &Wire| engine.channel_id(wire.ends[0].1) == Some(carrier);
    let index = world.wires.iter().position(is_carrier).expect("it is there");
    world.retire(index, 0);
    world.run(Nanos(world.now.0 + 10_000));
    write(&mut world, 19_000);
    assert_eq!(world.ends.len(), 1, "nothing has arrived yet");
    let now = world.now;
    world.hosts[0].engine.close(key, now);
    world.run(Nanos(now.0 + 10_000_000_000));
    assert_eq!(channels(&world), 1);
    let other = world.ends.iter().find(|end| end.host == 1).expect("it is accepted");
    assert_eq!((other.read, other.saw_end), (20_000, true));
    world.assert_balanced();
}
