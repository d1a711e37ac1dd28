//! Time of one decision, over tasks and cores: `cargo run --release -p quell-policy --example tick_time`.

use std::time::Instant;

use quell_model::*;
use quell_policy::{Config, Host, by_name};

const TICKS: u64 = 2_000;

fn host(cores: u16, shares_cores: bool) -> Host {
    let caps = HostCaps {
        shares_cores,
        idles_cores: true,
        places_threads: true,
        freezes_tasks: true,
        per_thread_state: true,
        actuation_delay: Nanos::from_micros(100),
        ..HostCaps::default()
    };
    let physical = (cores / 2).max(1);
    #[expect(
        clippy::expect_used,
        reason = "one node with at least one physical core is a topology"
    )]
    let topology = Topology::regular(1, physical, cores / physical).expect("a regular topology");
    Host { managed: topology.all(), topology, caps }
}

fn task(index: u32, host: &Host) -> TaskView {
    let lc = index.is_multiple_of(4);
    TaskView {
        sleeping: 4,
        ..TaskView::new(
            TaskId { index, generation: 0 },
            Limits {
                class: if lc { Class::LatencyCritical } else { Class::BestEffort },
                scheduler: TaskScheduler::Kernel,
                guaranteed: u32::from(lc && index < 400),
                max: 8,
                times: TimeLimits {
                    runaway_after: Nanos::from_millis(100),
                    quantum: Nanos::ZERO,
                    ..TimeLimits::default()
                },
                allowed: host.topology.all(),
                ..Limits::NONE
            },
        )
    }
}

fn core(id: CoreId) -> CoreView {
    CoreView {
        idle_since: Some(Nanos::ZERO),
        lc_busy: Signal::Measured(Permille(300)),
        ..CoreView::new(id)
    }
}

fn main() {
    println!(
        "{:>6} {:>6} {:>10} {:>10} {:>12} {:>12}",
        "tasks", "cores", "cores are", "host is", "p50 ns", "p99 ns"
    );
    for (tasks, cores) in [(2, 2), (10, 8), (100, 64), (1_000, 256)] {
        for (shares, calm) in [(true, true), (false, true), (true, false), (false, false)] {
            let host = host(cores, shares);
            let mut seen = Snapshot {
                cores: host.topology.cores().iter().map(|known| core(known.id)).collect(),
                tasks: (0..tasks).map(|index| task(index, &host)).collect(),
                ..Snapshot::default()
            };
            let Ok(mut policy) = by_name("quell", host, Config::default()) else { return };
            let mut plan = Plan::default();
            let mut times = Vec::with_capacity(TICKS as usize);
            for tick in 1..=TICKS {
                seen.now = Nanos::from_micros(tick * 100);
                // A few tasks change in each tick, as they do at a real tick rate.
                for nth in 0..4u64 {
                    let at = ((tick * 31 + nth * 17) % u64::from(tasks)) as usize;
                    let task = &mut seen.tasks[at];
                    task.running = (tick % 3) as u32;
                    task.waiting = ((tick + nth) % 2) as u32;
                    task.queueing_delay = Signal::Measured(Nanos::from_micros(20));
                    // And those of the last tick but three sleep again, unless the host is to be saturated.
                    if calm {
                        let before =
                            ((tick.saturating_sub(3) * 31 + nth * 17) % u64::from(tasks)) as usize;
                        (seen.tasks[before].running, seen.tasks[before].waiting) = (0, 0);
                    }
                }
                let start = Instant::now();
                policy.decide(seen.now, &seen, &mut plan);
                times.push(start.elapsed().as_nanos());
            }
            times.sort_unstable();
            let at = |permille: usize| times[times.len() * permille / 1_000];
            let kind = if shares { "shared" } else { "exclusive" };
            let load = if calm { "calm" } else { "saturated" };
            println!("{tasks:>6} {cores:>6} {kind:>10} {load:>10} {:>12} {:>12}", at(500), at(990));
        }
    }
}
