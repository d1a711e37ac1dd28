//! What the BPF programs take from each wake-up and switch, and how much of that roles and lock relief are.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use quell_model::{Children, CoreId, CoreSet, TaskId};
use quell_observe::bpf::{BpfConfig, BpfObserver};
use quell_observe::{Observer, procs};
use quell_report::{BenchReport, stats};
use quell_terminal::Stop;
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;

use crate::{host, switch_cost};

/// Measurements of an arm in a round; their median counts, so that a stop of the hypervisor does not.
const TRIES: usize = 5;

/// Which programs are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Arm {
    None,
    WithoutRoles,
    All,
}

impl Arm {
    const ALL: [Arm; 3] = [Arm::None, Arm::WithoutRoles, Arm::All];

    fn name(self) -> &'static str {
        match self {
            Arm::None => "no programs",
            Arm::WithoutRoles => "without roles",
            Arm::All => "quell",
        }
    }
}

/// What one arm measured, a value for each round.
#[derive(Default)]
struct Measured {
    switch_us: Vec<f64>,
    /// Time for an event, by the program's tracepoint.
    event_ns: BTreeMap<String, Vec<f64>>,
}

/// Measures all arms in each round, in an order drawn anew.
pub fn run(report: &mut BenchReport, rounds: usize, core: CoreId, stop: &Stop) -> Result<()> {
    let mut measured = BTreeMap::from(Arm::ALL.map(|arm| (arm, Measured::default())));
    for round in 0..rounds {
        let mut order = Arm::ALL;
        order.shuffle(&mut ChaCha8Rng::seed_from_u64(round as u64));
        for arm in order {
            stop.check()?;
            measure(arm, core, measured.entry(arm).or_default())?;
        }
    }
    tell(report, &measured);
    Ok(())
}

fn measure(arm: Arm, core: CoreId, into: &mut Measured) -> Result<()> {
    if arm == Arm::None {
        into.switch_us.push(typical_switch(core)?);
        return Ok(());
    }
    let config = BpfConfig { roles: arm == Arm::All, ..BpfConfig::default() };
    let mut observer = BpfObserver::new(&config).context("load the BPF observer")?;
    observer.manage(&CoreSet::of(core));
    let own = procs::thread(host::this_thread()).context("find the own thread")?;
    // Threads that this one starts belong to the task.
    let task = TaskId { index: 0, generation: 0 };
    observer.watch(own, task, true, Children::Adopt)?;
    into.switch_us.push(typical_switch(core)?);
    let before = observer.cost();
    let measuring = observer.measure().context("measure BPF programs")?;
    switch_cost::measure(core)?;
    drop(measuring);
    for (now, before) in observer.cost().iter().zip(&before) {
        let runs = now.runs - before.runs;
        let time = now.time.saturating_sub(before.time);
        if runs > 0 {
            let each = time.as_nanos() as f64 / runs as f64;
            into.event_ns.entry(now.event.clone()).or_default().push(each);
        }
    }
    Ok(())
}

fn typical_switch(core: CoreId) -> Result<f64> {
    let mut tries = Vec::new();
    for _ in 0..TRIES {
        tries.push(switch_cost::measure(core)?);
    }
    stats::median(&tries).context("no measurement")
}

fn tell(report: &mut BenchReport, measured: &BTreeMap<Arm, Measured>) {
    for (arm, of) in measured {
        report.push("switch", arm.name(), "switch_us", of.switch_us.clone());
        let metric = match arm {
            Arm::All => "ns_per_event",
            _ => "ns_per_event_without_roles",
        };
        for (event, values) in &of.event_ns {
            report.push("bpf", event, metric, values.clone());
        }
    }
    let [without, all] = [&measured[&Arm::WithoutRoles], &measured[&Arm::All]];
    // A hand-over of the word and back is two wake-ups, each with a switch.
    let added = differences(&all.switch_us, &without.switch_us, 1e3 / 2.0);
    report.push("switch", Arm::All.name(), "added_ns", added);
    for (event, values) in &all.event_ns {
        if let Some(without) = without.event_ns.get(event) {
            report.push("bpf", event, "added_ns", differences(values, without, 1.0));
        }
    }
}

/// By rounds, so that what changes from round to round counts in neither.
fn differences(values: &[f64], without: &[f64], scale: f64) -> Vec<f64> {
    values.iter().zip(without).map(|(value, without)| (value - without) * scale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_time_is_that_of_each_round_and_each_wake_up() {
        let mut report = BenchReport::new("overhead", "test");
        let with = |switch_us: &[f64], event_ns: &[f64]| Measured {
            switch_us: switch_us.to_vec(),
            event_ns: BTreeMap::from([("sched_switch".to_owned(), event_ns.to_vec())]),
        };
        let measured = BTreeMap::from([
            (Arm::None, Measured { switch_us: vec![2.0, 4.0], ..Measured::default() }),
            (Arm::WithoutRoles, with(&[3.0, 5.0], &[200.0, 300.0])),
            (Arm::All, with(&[3.1, 5.3], &[240.0, 320.0])),
        ]);
        tell(&mut report, &measured);
        let raw = |case, system, metric| -> Vec<i64> {
            let row = report.row(case, system, metric).unwrap();
            row.raw.iter().map(|value| value.round() as i64).collect()
        };
        assert_eq!(raw("switch", "quell", "added_ns"), [50, 150]);
        assert_eq!(raw("bpf", "sched_switch", "added_ns"), [40, 20]);
        assert_eq!(raw("switch", "no programs", "switch_us"), [2, 4]);
    }
}
