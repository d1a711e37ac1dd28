//! What is measured: cells, systems, and how often. Pure.

use std::collections::BTreeMap;

use quell_model::Nanos;
use quell_report::stats;

use super::batch::Kind;
use super::bursts::Bursts;
use super::log::{Cell, Run};
use super::loop_case::LoopCase;
use super::system::System;

/// How far an interval may reach where a sentence is built on it.
pub const WITHIN_HEADLINE: f64 = 0.10;
/// And elsewhere.
pub const WITHIN_ELSEWHERE: f64 = 0.25;
/// Fewest rounds of a cell.
pub const ROUNDS_MIN: usize = 10;
/// And most: beyond that its variance has to fall first.
pub const ROUNDS_MAX: usize = 60;
/// A rival leaves batch work at least this part of what Quell does.
pub const BATCH_PART: f64 = 0.9;
/// What is added to the name of batch work that rests.
const RESTING: &str = "-rests";
/// Services of which every rival is measured, beside these kinds of batch work.
const ALL_RIVALS: [&str; 2] = ["memcached", "java"];
const HEADLINE: [Kind; 2] = [Kind::Hog, Kind::Make];
/// Loads in percent of the peak, of every service and of two of them.
const HALF: u32 = 50;
const LOADS: [u32; 2] = [20, 80];

/// A cell with all that is measured in each of its rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// Which.
    pub cell: Cell,
    /// The batch work of it.
    pub kind: Kind,
    /// Systems, the denominator among them.
    pub systems: Vec<System>,
    /// Whether a sentence is built on it.
    pub headline: bool,
    /// Two services at once.
    pub case: Option<LoopCase>,
    /// Whether batch work and the loop that keeps the core awake rest ([`quell_load::rests`]).
    pub rests: bool,
}

/// What a run is asked for.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Only these kinds of batch work, if any.
    pub batch: Vec<Kind>,
    /// Only these systems, if any.
    pub systems: Vec<System>,
    /// Only these loads in percent, if any.
    pub loads: Vec<u32>,
    /// Which cases of two services.
    pub cases: Vec<LoopCase>,
}

/// The cells of one service. `rivals` are the best two of elsewhere, if a pilot chose them.
pub fn cells(service: &str, wanted: &Wanted, rivals: &[System]) -> Vec<Planned> {
    let every = ALL_RIVALS.contains(&service);
    let mut loads = vec![HALF];
    loads.extend(LOADS.iter().filter(|_| every));
    if !wanted.loads.is_empty() {
        loads.clone_from(&wanted.loads);
    }
    let kinds = [Kind::Hog, Kind::Gc, Kind::Faults, Kind::GoGc, Kind::Make];
    let kinds = if wanted.batch.is_empty() { kinds.to_vec() } else { wanted.batch.clone() };
    let mut planned = Vec::new();
    for &load in &loads {
        for &kind in &kinds {
            let headline = HEADLINE.contains(&kind);
            if wanted.loads.is_empty() && load != HALF && !headline {
                continue;
            }
            let is_first = headline && load == HALF;
            let systems = match (&wanted.systems[..], every && is_first) {
                ([], true) => System::ALL.to_vec(),
                ([], false) => with_rivals(rivals, is_first),
                (systems, _) => with_base(systems),
            };
            let cell = Cell { service: service.to_owned(), load, batch: kind.name().to_owned() };
            let planned_cell =
                Planned { cell, kind, systems, headline: is_first, case: None, rests: false };
            if every && is_first && kind != Kind::Make && wanted.batch.is_empty() {
                planned.push(resting(&planned_cell, wanted, rivals));
            }
            planned.push(planned_cell);
        }
    }
    planned.extend(wanted.cases.iter().map(|case| of_case(service, wanted, rivals, *case)));
    planned
}

/// A cell once more with batch work that rests: where its ratios differ from those without rests, the latter count.
fn resting(planned: &Planned, wanted: &Wanted, rivals: &[System]) -> Planned {
    let systems = match &wanted.systems[..] {
        [] => with_rivals(rivals, true),
        systems => with_base(systems),
    };
    let batch = format!("{}{RESTING}", planned.cell.batch);
    let cell = Cell { batch, ..planned.cell.clone() };
    Planned { cell, systems, headline: false, rests: true, ..planned.clone() }
}

/// A case of two services beside busy loops.
fn of_case(service: &str, wanted: &Wanted, rivals: &[System], case: LoopCase) -> Planned {
    let systems = match &wanted.systems[..] {
        [] if ALL_RIVALS.contains(&service) => {
            let every = System::ALL.into_iter();
            every
                .filter(|system| {
                    !matches!(system, System::Null | System::Bursts | System::QuellMoved)
                })
                .collect()
        }
        [] => with_rivals(rivals, false),
        systems => with_base(systems),
    };
    let (load, batch) = (case.load_percent(), case.name().to_owned());
    let cell = Cell { service: service.to_owned(), load, batch };
    let case = Some(case);
    Planned { cell, kind: Kind::Hog, systems, headline: false, case, rests: false }
}

/// The null arm stands where sentences are built, the planted fault where every rival is.
fn with_rivals(rivals: &[System], null: bool) -> Vec<System> {
    let left_out = |system: &System| match system {
        System::Null => !null,
        System::Bursts | System::QuellMoved => true,
        other => other.is_rival(),
    };
    let fixed = System::ALL.into_iter().filter(|system| !left_out(system));
    fixed.chain(rivals.iter().copied()).collect()
}

fn with_base(systems: &[System]) -> Vec<System> {
    let mut all = systems.to_vec();
    if !all.contains(&System::AloneIdlePoll) {
        all.insert(0, System::AloneIdlePoll);
    }
    all
}

/// The best two rivals of a service: the lowest tails among those that leave batch work about what Quell does. All
/// rivals, lowest tail first, if no two leave so much.
pub fn best_rivals(service: &str, pilot: &[&Run]) -> Vec<System> {
    let tails = means(service, pilot, "tail_us_raw");
    let shares = means(service, pilot, "batch_of_alone");
    let least = shares.get("quell").copied().unwrap_or_default() * BATCH_PART;
    let mut rivals: Vec<(bool, f64, System)> = tails
        .iter()
        .filter_map(|(name, tail)| {
            let system = System::named(name).filter(|system| system.is_rival())?;
            let starves = shares.get(name).copied().unwrap_or_default() < least;
            Some((starves, *tail, system))
        })
        .collect();
    rivals.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    rivals.into_iter().map(|(_, _, system)| system).take(2).collect()
}

/// Rounds of a cell by the spread of its pilot: the most that one of its systems needs.
pub fn rounds(planned: &Planned, pilot: &[&Run]) -> usize {
    let within = if planned.headline { WITHIN_HEADLINE } else { WITHIN_ELSEWHERE };
    let needed = planned.systems.iter().filter_map(|system| {
        let ratios = ratios(&planned.cell, system.name(), "tail_us", pilot);
        Some(stats::pairs_needed(stats::paired_ratio(&ratios)?.log_sd, within))
    });
    needed.max().unwrap_or(ROUNDS_MIN).clamp(ROUNDS_MIN, ROUNDS_MAX)
}

/// Ratios of a system to the base, one for each round that has both.
pub fn ratios(cell: &Cell, system: &str, metric: &str, runs: &[&Run]) -> Vec<f64> {
    let of = |name: &str| -> BTreeMap<usize, f64> {
        let own = runs.iter().filter(|run| run.cell == *cell && run.system == name);
        own.filter_map(|run| Some((run.round, *run.values.get(metric)?))).collect()
    };
    let (systems, bases) = (of(system), of(System::AloneIdlePoll.name()));
    let pairs = systems.iter().filter_map(|(round, value)| Some((*value, *bases.get(round)?)));
    pairs.filter(|(_, base)| *base > 0.0).map(|(value, base)| value / base).collect()
}

/// The bursts that make the tail of a cell's service so many times as long, by its pilot.
pub fn bursts(cell: &Cell, pilot: &[&Run], times: f64) -> Option<Bursts> {
    let base = System::AloneIdlePoll.name();
    let runs = pilot.iter().filter(|run| run.cell == *cell && run.system == base);
    let runs: Vec<&Run> = runs.copied().collect();
    let of = |metric| Some(Nanos((means(&cell.service, &runs, metric).get(base)? * 1e3) as u64));
    Some(Bursts::for_tail(of("tail_us")?, of("p50_us")?, times))
}

/// Geometric means of a metric over all cells of a service, by system.
fn means<'a>(service: &str, runs: &[&'a Run], metric: &str) -> BTreeMap<&'a str, f64> {
    let mut logs: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for run in runs.iter().filter(|run| run.cell.service == service) {
        if let Some(value) = run.values.get(metric).filter(|value| **value > 0.0) {
            logs.entry(&run.system).or_default().push(value.ln());
        }
    }
    let mean = |logs: Vec<f64>| (logs.iter().sum::<f64>() / logs.len() as f64).exp();
    logs.into_iter().map(|(system, logs)| (system, mean(logs))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::log::Phase;

    fn run(system: &str, round: usize, tail: f64, share: f64) -> Run {
        let values = [("tail_us", tail), ("tail_us_raw", tail), ("batch_of_alone", share)];
        Run {
            phase: Phase::Pilot,
            cell: Cell { service: "redis".into(), load: 50, batch: "hog".into() },
            round,
            place: 0,
            system: system.into(),
            values: values.map(|(name, value)| (name.to_owned(), value)).into(),
        }
    }

    #[test]
    fn a_rival_that_starves_batch_work_is_no_rival() {
        let runs = [
            run("partition", 0, 50.0, 0.0),
            run("rr", 0, 100.0, 0.5),
            run("nice", 0, 300.0, 0.48),
            run("sched-idle", 0, 200.0, 0.5),
            run("quell", 0, 90.0, 0.5),
            run("linux-default", 0, 10.0, 0.9),
        ];
        let runs: Vec<&Run> = runs.iter().collect();
        assert_eq!(best_rivals("redis", &runs), [System::RoundRobin, System::SchedIdle]);
        assert!(best_rivals("go", &runs).is_empty());
    }

    #[test]
    fn noisy_cells_get_more_rounds_within_bounds() {
        let planned = &cells("redis", &Wanted::default(), &[])[0];
        let pilot = |tails: &[f64]| -> Vec<Run> {
            let of = |(round, tail): (usize, &f64)| {
                [run("alone-idle-poll", round, 100.0, 0.0), run("quell", round, *tail, 0.5)]
            };
            tails.iter().enumerate().flat_map(of).collect()
        };
        let count = |tails: &[f64]| {
            let runs = pilot(tails);
            rounds(planned, &runs.iter().collect::<Vec<_>>())
        };
        assert_eq!(count(&[100.0, 101.0, 99.0, 100.0, 100.5]), ROUNDS_MIN);
        assert_eq!(count(&[50.0, 200.0, 100.0, 400.0, 30.0]), ROUNDS_MAX);
        let some = count(&[100.0, 130.0, 80.0, 90.0, 120.0]);
        assert!((ROUNDS_MIN + 1..ROUNDS_MAX).contains(&some), "{some}");
    }

    #[test]
    fn all_rivals_are_measured_where_it_counts() {
        let of = |service| cells(service, &Wanted::default(), &[System::Fifo]);
        let memcached = of("memcached");
        assert_eq!(memcached.len(), 5 + 2 * 2 + 1);
        assert_eq!(memcached.iter().filter(|planned| planned.rests).count(), 1);
        let full = memcached.iter().filter(|planned| planned.systems.len() == System::ALL.len());
        assert_eq!(full.count(), 2);
        assert_eq!(of("redis").len(), 5);
        assert!(of("redis").iter().all(|planned| planned.systems.contains(&System::Fifo)));
        let only = Wanted { systems: vec![System::Quell], loads: vec![80], ..Wanted::default() };
        let only = cells("redis", &only, &[]);
        assert!(
            only.iter().all(|planned| planned.systems == [System::AloneIdlePoll, System::Quell])
        );
        assert!(only.iter().all(|planned| planned.cell.load == 80 && !planned.headline));
    }
}
