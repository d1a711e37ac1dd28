//! The report: values, ratios within rounds, and a verdict for each service. Pure.

use std::collections::BTreeMap;

use quell_model::Nanos;
use quell_report::{BenchReport, LOAD_CASE, stats};

use super::{Arm, Measured, SERVICES};

/// A tail is at most so many times what it is without batch work.
const TAIL_MAX: f64 = 2.0;
/// Fewer answers than that: the tail grows with the length of the run.
const SERVED_MIN: f64 = 0.98;
/// The tails that are judged: of the requests of all rounds together.
const POOLED: &str = "p999_us_of_all";
const POOLED_RAW: &str = "p999_us_of_all_raw";
const MISSED: &str = "missed";

/// What each service showed, by arm.
pub type Round = BTreeMap<&'static str, Vec<Measured>>;

/// Adds everything to a report.
pub fn fill(report: &mut BenchReport, costs: &[Nanos], rounds: &[Round]) {
    for (at, service) in SERVICES.into_iter().enumerate() {
        let cost = costs.get(at).map(|cost| cost.0 as f64 / 1e3);
        report.push(LOAD_CASE, service, "request_cpu_us", cost.into_iter().collect());
        let of = |arm: Arm, metric: &str| -> Vec<f64> {
            let value = |round: &Round| round.get(arm.name())?.get(at)?.values.get(metric).copied();
            rounds.iter().map(|round| value(round).unwrap_or(f64::NAN)).collect()
        };
        for arm in Arm::ALL {
            for metric in metrics(rounds, at) {
                report.push(service, arm.name(), &metric, of(arm, &metric));
            }
            let counted = pooled(rounds, arm, at, |one| &one.counted);
            let raw = pooled(rounds, arm, at, |one| &one.raw);
            for (metric, value) in [(POOLED, counted), (POOLED_RAW, raw)] {
                report.push(service, arm.name(), metric, value.into_iter().collect());
            }
        }
        let quell = Arm::Quell;
        for base in [Arm::AloneIdlePoll, Arm::QuellWithoutBatch] {
            for metric in ["p99_us", "p99_us_raw", "p999_us", "p999_us_raw"] {
                let (own, without) = (of(quell, metric), of(base, metric));
                report.compare(service, (quell.name(), &own), (base.name(), &without), metric);
            }
            report.notes.push(verdict(report, service, base));
        }
    }
}

fn metrics(rounds: &[Round], at: usize) -> Vec<String> {
    let services = rounds.iter().flat_map(BTreeMap::values).filter_map(|all| all.get(at));
    let names: std::collections::BTreeSet<&String> =
        services.flat_map(|one| one.values.keys()).collect();
    names.into_iter().cloned().collect()
}

/// The tail of all requests of all rounds, in microseconds; `None` where a round has none.
fn pooled(
    rounds: &[Round],
    arm: Arm,
    at: usize,
    latencies: fn(&Measured) -> &Vec<Nanos>,
) -> Option<f64> {
    let of = |round: &Round| round.get(arm.name())?.get(at).map(|one| latencies(one).clone());
    let all = rounds.iter().map(of).collect::<Option<Vec<_>>>()?;
    let mut all = all.concat();
    all.sort_unstable();
    stats::quantile(&all, 0.999).map(|tail| tail.0 as f64 / 1e3)
}

/// A goal is for all requests of the run, so that no round is out of it.
fn verdict(report: &BenchReport, service: &str, base: Arm) -> String {
    let value = |arm: Arm, metric| {
        report.row(service, arm.name(), metric).map_or(f64::NAN, |row| row.median)
    };
    let ratio = |metric| value(Arm::Quell, metric) / value(base, metric);
    let worst = report.row(service, Arm::Quell.name(), "served_share");
    let served = worst.is_some_and(|row| row.raw.iter().all(|share| *share >= SERVED_MIN));
    let (counted, raw) = (ratio(POOLED), ratio(POOLED_RAW));
    let met = if counted <= TAIL_MAX && served { "met" } else { MISSED };
    format!(
        "{service}: p99.9 beside batch work {counted:.2} times that of {} (raw {raw:.2}), goal at most {TAIL_MAX} and all answered: {met}",
        base.name()
    )
}

/// Whether a verdict says that a goal was missed.
pub fn goals_missed(report: &BenchReport) -> bool {
    report.notes.iter().any(|note| note.ends_with(MISSED))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each service's tail beside batch work, as a multiple of that alone, and that of Quell without batch work.
    fn rounds(ratios: [f64; 3], without: f64) -> Vec<Round> {
        let values = |ratio: f64, alone: f64| {
            let latencies = vec![Nanos((alone * ratio * 1e3) as u64); 10];
            let values = [("served_share".to_owned(), 1.0)].into();
            Measured { values, counted: latencies.clone(), raw: latencies }
        };
        let round = |alone: f64| {
            let of = |ratios: [f64; 3]| ratios.map(|ratio| values(ratio, alone)).into();
            Round::from([
                (Arm::AloneIdlePoll.name(), of([1.0; 3])),
                (Arm::QuellWithoutBatch.name(), of([without; 3])),
                (Arm::Quell.name(), of(ratios)),
            ])
        };
        [100.0, 300.0].map(round).into()
    }

    fn report(ratios: [f64; 3], without: f64) -> BenchReport {
        let mut report = BenchReport::new(super::super::BENCH, "test");
        fill(&mut report, &[Nanos(1); 3], &rounds(ratios, without));
        report
    }

    fn missed(report: &BenchReport) -> Vec<&String> {
        report.notes.iter().filter(|note| note.ends_with(MISSED)).collect()
    }

    #[test]
    fn each_service_is_judged_by_its_own_tail() {
        let met = report([1.1, 2.0, 1.9], 1.0);
        assert!(!goals_missed(&met), "{:?}", met.notes);
        let missed_one = report([1.1, 1.2, 2.1], 1.1);
        let missed = missed(&missed_one);
        assert!(missed.len() == 1 && missed[0].starts_with("go"), "{:?}", missed_one.notes);
        assert!(goals_missed(&missed_one));
    }

    #[test]
    fn a_shorter_tail_than_alone_may_still_be_lengthened_by_batch_work() {
        let report = report([0.9; 3], 0.3);
        assert_eq!(missed(&report).len(), 3, "{:?}", report.notes);
    }

    #[test]
    fn one_bad_round_and_one_that_was_not_answered_are_misses() {
        let judged = |change: fn(&mut Vec<Round>)| {
            let mut rounds = rounds([1.0; 3], 1.0);
            change(&mut rounds);
            let mut report = BenchReport::new(super::super::BENCH, "test");
            fill(&mut report, &[Nanos(1); 3], &rounds);
            missed(&report).len()
        };
        assert_eq!(judged(|_| {}), 0);
        assert_eq!(
            judged(|rounds| {
                let one = &mut rounds[0].get_mut(Arm::Quell.name()).unwrap()[1];
                one.counted = vec![Nanos::from_secs(1); 10];
            }),
            2
        );
        assert_eq!(
            judged(|rounds| {
                let one = &mut rounds[1].get_mut(Arm::Quell.name()).unwrap()[0];
                one.values.insert("served_share".to_owned(), 0.9);
            }),
            2
        );
        assert_eq!(judged(|rounds| _ = rounds[1].remove(Arm::AloneIdlePoll.name())), 3);
    }

    #[test]
    fn a_tail_that_was_not_measured_is_a_miss() {
        let mut report = BenchReport::new(super::super::BENCH, "test");
        fill(&mut report, &[], &[]);
        assert!(goals_missed(&report));
    }
}
