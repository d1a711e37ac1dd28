//! The report: values, ratios within rounds, and a verdict for each service. Pure.

use std::collections::BTreeMap;

use quell_model::Nanos;
use quell_report::{BenchReport, LOAD_CASE, Ratio};

use super::{Arm, SERVICES, Values};

/// A tail is at most so many times what it is without batch work.
const TAIL_MAX: f64 = 2.0;
/// The tail that is judged.
const TAIL: &str = "p999_us";
const TAIL_RAW: &str = "p999_us_raw";
const MISSED: &str = "missed";

/// The values of each service, by arm.
pub type Round = BTreeMap<&'static str, Vec<Values>>;

/// Adds everything to a report.
pub fn fill(report: &mut BenchReport, costs: &[Nanos], rounds: &[Round]) {
    for (at, service) in SERVICES.into_iter().enumerate() {
        let of = |arm: Arm, metric: &str| -> Vec<f64> {
            let value = |round: &Round| round.get(arm.name())?.get(at)?.get(metric).copied();
            rounds.iter().map(|round| value(round).unwrap_or(f64::NAN)).collect()
        };
        let cost = costs.get(at).map(|cost| cost.0 as f64 / 1e3);
        report.push(LOAD_CASE, service, "request_cpu_us", cost.into_iter().collect());
        for arm in Arm::ALL {
            for metric in metrics(rounds, at) {
                report.push(service, arm.name(), &metric, of(arm, &metric));
            }
        }
        let quell = Arm::Quell;
        for base in [Arm::AloneIdlePoll, Arm::QuellWithoutBatch] {
            for metric in ["p99_us", "p99_us_raw", TAIL, TAIL_RAW] {
                let (own, without) = (of(quell, metric), of(base, metric));
                report.compare(service, (quell.name(), &own), (base.name(), &without), metric);
            }
            report.notes.push(verdict(report, service, base));
        }
    }
}

fn metrics(rounds: &[Round], at: usize) -> Vec<String> {
    let services = rounds.iter().flat_map(BTreeMap::values).filter_map(|all| all.get(at));
    let names: std::collections::BTreeSet<&String> = services.flat_map(Values::keys).collect();
    names.into_iter().cloned().collect()
}

fn verdict(report: &BenchReport, service: &str, base: Arm) -> String {
    let ratio = |metric| {
        let of = |ratio: &&Ratio| {
            (ratio.case.as_str(), ratio.metric.as_str()) == (service, metric)
                && ratio.against == base.name()
        };
        report.ratios.iter().find(of).map_or(f64::NAN, |ratio| ratio.median)
    };
    let (counted, raw) = (ratio(TAIL), ratio(TAIL_RAW));
    let met = if counted <= TAIL_MAX { "met" } else { MISSED };
    format!(
        "{service}: p99.9 beside batch work {counted:.2} times that of {} (raw {raw:.2}), goal at most {TAIL_MAX}: {met}",
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
            let tails = [TAIL, TAIL_RAW].map(|metric| (metric.to_owned(), alone * ratio));
            Values::from(tails)
        };
        let round = |alone: f64| {
            let of = |ratios: [f64; 3]| ratios.map(|ratio| values(ratio, alone)).to_vec();
            Round::from([
                (Arm::AloneIdlePoll.name(), of([1.0; 3])),
                (Arm::QuellWithoutBatch.name(), of([without; 3])),
                (Arm::Quell.name(), of(ratios)),
            ])
        };
        [100.0, 300.0].map(round).to_vec()
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
    fn a_tail_that_was_not_measured_is_a_miss() {
        let mut report = BenchReport::new(super::super::BENCH, "test");
        fill(&mut report, &[], &[]);
        assert!(goals_missed(&report));
    }
}
