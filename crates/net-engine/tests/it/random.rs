//! Random lives with random faults. Each seed is one life: `QUELL_NET_SEED=7 cargo test` repeats that one alone.

use quell_model::Nanos;
use quell_net_engine::flow::{Credit, MemoryLimits, Relief, StopResume};
use quell_net_engine::scheduler::{Hash, LeastBacklog, RoundRobin, ShortestRemaining};
use quell_net_engine::{Class, EngineConfig, Policies};
use rand::RngExt as _;

use super::link::{LinkSpec, Loss};
use super::world::World;

/// Lives in `make test`; `make soak` asks for more.
const SEEDS: u64 = 200;

#[test]
fn random_lives_end_and_balance() {
    let of = |name| std::env::var(name).ok().and_then(|value: String| value.parse().ok());
    if let Some(seed) = of("QUELL_NET_SEED") {
        return live(seed);
    }
    (0..of("QUELL_NET_SEEDS").unwrap_or(SEEDS)).for_each(|seed| {
        let outcome = std::panic::catch_unwind(|| live(seed));
        assert!(outcome.is_ok(), "seed {seed}: run it alone by QUELL_NET_SEED={seed}");
    });
}

fn policies(kind: u32, has_recovery: bool, config: &mut EngineConfig) -> Policies {
    config.has_recovery = has_recovery;
    config.max_frame = 4_096;
    config.quantum = 4_096;
    config.send_buffer = 24 << 10;
    config.unsent_max = 16 << 10;
    config.send_memory = 128 << 10;
    let limits = MemoryLimits {
        endpoint: 512 << 10,
        peer: 256 << 10,
        stream_max: 64 << 10,
        stream_min: 8 << 10,
        working_set: 128 << 10,
    };
    let relief =
        Relief { buffer: 4 << 10, channel_budget: 8 << 10, stop_after: Nanos::from_millis(1) };
    Policies {
        choice: match kind % 4 {
            0 => [Box::new(Hash), Box::new(LeastBacklog { margin: 4_096 })],
            1 => [Box::new(Hash), Box::new(RoundRobin { run_bytes: 3 * 4_096 })],
            2 => [Box::new(Hash), Box::new(ShortestRemaining { short_bytes: 4_096 })],
            _ => [Box::new(LeastBacklog { margin: 0 }), Box::new(Hash)],
        },
        flow: match kind / 4 % 4 {
            0 => Box::new(StopResume::new(relief, 64)),
            _ => Box::new(Credit::new(limits)),
        },
        first_window: 8 << 10,
    }
}

fn live(seed: u64) {
    let lossy = (seed % 5 == 4).then_some(Loss { lost: 50, twice: 20, late: 100 });
    let spec = LinkSpec {
        delay: Nanos::from_micros(50),
        jitter: Nanos::from_micros(if seed.is_multiple_of(3) { 2_000 } else { 30 }),
        room: 16_384,
        lossy,
    };
    let mut world = World::new(seed, spec);
    let hosts = world.rng.random_range(2..=4);
    // Stop and resume is for transports that lose nothing.
    let kind = world.rng.random_range(if lossy.is_some() { 4..16 } else { 0..16 });
    // Nothing is sent again: a channel that breaks ends the streams that used it.
    let has_recovery = lossy.is_some() || !seed.is_multiple_of(4);
    world.has_recovery = has_recovery;
    for _ in 0..hosts {
        world.add_host(|config| policies(kind, has_recovery, config));
    }
    for from in 0..hosts {
        for to in from + 1..hosts {
            world.connect(from, to, Class::Latency);
            for _ in 0..world.rng.random_range(1..=3) {
                world.connect(from, to, Class::Throughput);
            }
        }
    }
    let faults_until = Nanos::from_millis(200);
    while world.now < faults_until {
        let next = Nanos(world.now.0 + world.rng.random_range(10_000..4_000_000));
        world.run(next.min(faults_until));
        disturb(&mut world, hosts, kind, has_recovery);
    }
    // After the last fault there is a channel of each class again.
    for from in 0..hosts {
        for to in from + 1..hosts {
            Class::ALL.into_iter().for_each(|class| reconnect(&mut world, from, to, class));
        }
    }
    let end = Nanos(world.now.0 + 60_000_000_000);
    world.run(end);
    let open: Vec<_> = world.ends.iter().filter(|end| !end.is_closed).collect();
    assert!(open.is_empty(), "open after the last fault: {open:?}");
    world.assert_balanced();
    // And goes on as if nothing had been.
    for (from, to) in (0..hosts).flat_map(|from| (0..hosts).map(move |to| (from, to))) {
        if from != to {
            let end = world.open(from, to, Class::Throughput, [9_000, 9_000]).expect("a channel");
            let until = Nanos(world.now.0 + 1_000_000_000);
            world.run(until);
            assert!(world.ends[end].saw_end, "{:?}", world.ends[end]);
        }
    }
}

fn reconnect(world: &mut World, from: usize, to: usize, class: Class) {
    let is_there = world.wires.iter().any(|wire| {
        let hosts = wire.ends.map(|(host, _)| host);
        let stays = wire.dead.is_none() && !world.is_leaving(wire);
        wire.class == class && stays && (hosts == [from, to] || hosts == [to, from])
    });
    if !is_there {
        world.connect(from, to, class);
    }
}

/// One of the ends that are open.
fn open_end(world: &mut World) -> Option<usize> {
    let is_open = |index: &usize| !world.ends[*index].is_closed;
    let open: Vec<usize> = (0..world.ends.len()).filter(is_open).collect();
    (!open.is_empty()).then(|| open[world.rng.random_range(0..open.len())])
}

/// Something happens: sockets open more often than channels break, and peers seldom die.
fn disturb(world: &mut World, hosts: usize, kind: u32, has_recovery: bool) {
    let (from, to) = (world.rng.random_range(0..hosts), world.rng.random_range(0..hosts));
    let class = Class::ALL[world.rng.random_range(0..2)];
    match world.rng.random_range(0..40) {
        0..=15 if from != to => {
            let bytes = [world.rng.random_range(0..60_000), world.rng.random_range(0..20_000)];
            world.open(from, to, class, bytes);
        }
        16..=19 if !world.wires.is_empty() => {
            let index = world.rng.random_range(0..world.wires.len());
            match world.rng.random_range(0..3) {
                0 => world.cut(index),
                _ => {
                    let delay = Nanos(world.rng.random_range(0..5_000_000));
                    let side = world.rng.random_range(0..2);
                    world.cut_one_side(index, side, delay);
                }
            }
        }
        20..=24 if from != to => reconnect(world, from.min(to), from.max(to), class),
        25..=28 if !world.wires.is_empty() => {
            let index = world.rng.random_range(0..world.wires.len());
            let until = Nanos(world.now.0 + world.rng.random_range(0..20_000_000));
            world.wires[index].links[0].stall(until);
        }
        29..=32 => {
            let idle = world.rng.random_range(0..50_000_000);
            if let Some(index) = open_end(world) {
                world.ends[index].idle_until = Nanos(world.now.0 + idle);
            }
        }
        33 => world.restart(from, |config| policies(kind, has_recovery, config)),
        35 => {
            let time = Nanos(world.rng.random_range(0..20_000_000));
            world.deafen(to, time);
        }
        36..=38 if !world.wires.is_empty() => {
            let index = world.rng.random_range(0..world.wires.len());
            let side = world.rng.random_range(0..2);
            world.retire(index, side);
        }
        34 => open_end(world).into_iter().for_each(|index| world.abort(index)),
        _ => {}
    }
}
