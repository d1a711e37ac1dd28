//! The mutator: prices an option by Monte-Carlo paths, each with fresh matrices, in the manner of
//! PARSEC's swaptions (its own code: geometric paths of several factors).

use quell_load::Recorder;
use quell_model::Nanos;

use super::Options;
use super::boehm::{Heap, Live, Pause, Rows};
use crate::work::Work;

/// Factors and time steps of a path.
const FACTORS: usize = 16;
const STEPS: usize = 64;
/// Nodes of 32 bytes in a chain: about half a millisecond of a pause.
const CHAIN_NODES: usize = 20_000;
/// At most so many chains: 32 GB.
const CHAINS_MAX: usize = 50_000;
/// Collections before the work counts.
const WARM_CYCLES: usize = 2;
/// Chains before the first measurement.
const CHAINS_FIRST: usize = 64;

pub fn run(work: &Work, options: &Options) -> anyhow::Result<()> {
    anyhow::ensure!(
        (1..=2_000).contains(&options.pause_ms),
        "--pause-ms {}: use 1 to 2000",
        options.pause_ms
    );
    let heap = Heap::start(options.markers)?;
    let mut live = Live::new(&heap, CHAINS_MAX)?;
    let pause = size_heap(work, &heap, &mut live, Nanos::from_millis(options.pause_ms))?;
    println!("heap of {} MiB, pauses of {pause} of CPU time", heap.bytes() >> 20);
    let mut seed = 1;
    let mut sum = 0.0;
    heap.take_pauses();
    // The first cycles fault their memory in; a benchmark takes the file's appearance for the start.
    while heap.pauses() < WARM_CYCLES && !work.over() {
        heap.with_rows(FACTORS, STEPS, |rows| trial(rows, &mut seed))?;
    }
    heap.take_pauses();
    let publisher = work.publish(1, "Monte-Carlo trial")?;
    let Some(mut slot) = publisher.slot(0) else { return Ok(()) };
    let mut pauses = 0;
    // The CPU time that sizing the heap took is none of the work's.
    slot.publish();
    while !work.over() {
        sum += heap.with_rows(FACTORS, STEPS, |rows| trial(rows, &mut seed))?;
        slot.count(1);
        // Published are whole cycles, trials with their collection: work per CPU time then does not
        // depend on whether a pause happened to be within what was watched.
        if heap.pauses() > pauses {
            pauses = heap.pauses();
            slot.publish();
        }
    }
    let mean = sum / slot.ops().max(1) as f64;
    let pauses = shown(&heap.take_pauses());
    println!("{} ops (Monte-Carlo trial), mean {mean:.4}; {pauses}", slot.ops());
    Ok(())
}

/// Grows the live data until a collection takes as long as wanted; the pause that it takes then.
fn size_heap(
    work: &Work,
    heap: &Heap,
    live: &mut Live<'_>,
    wanted: Nanos,
) -> anyhow::Result<Nanos> {
    let mut chains = CHAINS_FIRST;
    loop {
        let grown = live.grow(chains, CHAIN_NODES)?;
        heap.take_pauses();
        heap.collect();
        // CPU time, so that a busy neighbour does not make the heap smaller.
        let pause = heap.take_pauses().last().map_or(Nanos::ZERO, |pause| pause.cpu);
        if pause >= wanted || !grown || work.over() {
            return Ok(pause);
        }
        // Marking is linear in the live data; stop short of the goal, as measurements scatter.
        let missing = wanted.since(pause).0 as f64 / pause.0.max(1) as f64;
        chains = ((live.chains() as f64 * missing * 0.8) as usize).max(CHAINS_FIRST / 8);
    }
}

/// One path of each factor; what the option pays.
fn trial(rows: &mut Rows, seed: &mut u64) -> f64 {
    let mut paid = 0.0;
    for factor in 0..FACTORS {
        let path = rows.row(factor);
        let mut price = 1.0;
        for cell in path.iter_mut() {
            price *= (0.0005 + 0.02 * noise(seed)).exp();
            *cell = price;
        }
        let mean = path.iter().sum::<f64>() / STEPS as f64;
        paid += f64::max(mean - 1.0, 0.0);
    }
    paid / FACTORS as f64
}

/// Roughly normal noise of variance 1: the sum of three uniform numbers, by xorshift64.
fn noise(state: &mut u64) -> f64 {
    let mut uniform = || {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 11) as f64 / (1u64 << 53) as f64
    };
    (uniform() + uniform() + uniform() - 1.5) * 2.0
}

fn shown(pauses: &[Pause]) -> String {
    let wall: Recorder = pauses.iter().map(|pause| pause.wall).collect();
    let cpu: Recorder = pauses.iter().map(|pause| pause.cpu).collect();
    format!(
        "{} pauses, wall p50 {} max {}, CPU p50 {}",
        pauses.len(),
        wall.at(0.5),
        wall.at(1.0),
        cpu.at(0.5)
    )
}
