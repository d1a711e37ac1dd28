//! The report of all rounds.

use quell_report::BenchReport;

use super::arms::{Arm, Round};

/// The case of what each arm shows, and that of the differences.
const CASE: &str = "wake-up";
const PARTS_CASE: &str = "parts";
/// A single interrupt of the timer: its loss is not one of a wake-up.
const ONE_TIMER: &str = "one timer interrupt";

/// A metric of an arm.
type Metric = (&'static str, fn(&Round, Arm) -> Option<f64>);

/// Those of arms that wake somebody.
const OF_WAKES: [Metric; 7] = [
    ("loss_us_per_wake", Round::loss),
    ("thread_cpu_us_per_wake", Round::woken_cpu),
    ("overhead_us_per_wake", Round::overhead),
    ("wakes_per_s", |round, arm| Some(round.arms.get(&arm)?.events)),
    ("requests_per_wake", |round, arm| {
        round.arms.get(&arm).map(|seen| seen.requests / seen.events)
    }),
    ("preemptions_per_wake", |round, arm| {
        round.arms.get(&arm).map(|seen| seen.preemptions / seen.events)
    }),
    ("hog_cpu_share", |round, arm| Some(round.arms.get(&arm)?.hog_cpu)),
];
/// Those of arms that only interrupt.
const OF_INTERRUPTS: [Metric; 2] = [
    ("loss_us_per_interrupt", Round::loss),
    ("interrupts_per_s", |round, arm| Some(round.arms.get(&arm)?.events)),
];
const OF_ALL: [Metric; 3] = [
    ("hog_share_of_alone", Round::share),
    ("hog_speed_of_alone", Round::speed),
    ("stopped_share", |round, arm| round.arms.get(&arm)?.stopped_share),
];

/// Adds the rows of all rounds.
pub fn tell(report: &mut BenchReport, rounds: &[Round]) {
    for arm in Arm::ALL {
        let own: &[Metric] = match arm {
            Arm::Timer | Arm::Interrupt => &OF_INTERRUPTS,
            _ => &OF_WAKES,
        };
        for (metric, of) in own.iter().chain(&OF_ALL) {
            let raw = rounds.iter().filter_map(|round| of(round, arm)).collect();
            report.push(CASE, arm.name(), metric, raw);
        }
    }
    // Where memcached is missing there is nothing to explain.
    let has_memcached = |round: &&Round| round.arms.contains_key(&Arm::Memcached);
    let explained = rounds.iter().filter(has_memcached).map(Round::explained).collect();
    report.push(CASE, Arm::Memcached.name(), "explained_us", explained);
    parts(report, rounds);
}

fn parts(report: &mut BenchReport, rounds: &[Round]) {
    let one = rounds.iter().filter_map(|round| round.loss(Arm::Timer)).collect();
    report.push(PARTS_CASE, ONE_TIMER, "us_per_interrupt", one);
    let all = |round: &Round| {
        let mut parts = round.parts();
        parts.extend(round.rest().into_iter().flatten());
        parts
    };
    let rounds: Vec<Vec<(&str, f64)>> = rounds.iter().map(all).collect();
    for &(name, _) in rounds.first().into_iter().flatten() {
        let of =
            |parts: &Vec<(&str, f64)>| parts.iter().find(|part| part.0 == name).map(|part| part.1);
        report.push(PARTS_CASE, name, "us_per_wake", rounds.iter().filter_map(of).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::super::account::Seen;
    use super::*;

    #[test]
    fn each_arm_and_each_part_is_told() {
        let seen = Seen { ops: 500.0, hog_cpu: 0.5, events: 1e4, requests: 1e4, ..Seen::default() };
        let alone = Seen { ops: 1_000.0, hog_cpu: 1.0, ..Seen::default() };
        let of = |arm: Arm| {
            let stopped_share = arm.has_timer().then_some(0.0);
            (arm, Seen { stopped_share, ..seen })
        };
        let arms = Arm::ALL.into_iter().filter(|arm| *arm != Arm::Memcached).map(of).collect();
        let mut report = BenchReport::new("wake-cost", "quell bench wake-cost");
        tell(&mut report, &[Round { alone: [alone, alone], arms }]);
        let values = |metric: &str| report.rows.iter().filter(|row| row.metric == metric).count();
        assert_eq!((values("loss_us_per_wake"), values("loss_us_per_interrupt")), (6, 2));
        assert_eq!((values("hog_share_of_alone"), values("stopped_share")), (8, 2));
        assert_eq!((values("us_per_wake"), values("us_per_interrupt")), (7, 1));
        let loss = report.row(CASE, "packet", "loss_us_per_wake").unwrap();
        assert_eq!(loss.raw, [50.0]);
    }
}
