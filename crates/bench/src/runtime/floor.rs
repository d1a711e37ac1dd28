//! The floor of a case: the sum of the primitives that no runtime can avoid in it, measured in the same rounds.

use anyhow::Result;

use super::RuntimeSpec;
use super::cases::{CPU_PER_OP, Case, NS_PER_OP, P50, Seen};
use super::programs::{Programs, System};
use quell_report::BenchReport;
use quell_terminal::Stop;

/// A primitive of `quell-bench-peers floor`, as a case of its own.
const fn primitive(name: &'static str, operation: &'static str, workers: usize) -> Case {
    Case { name, operation, workers, connections: 0, metrics: &[NS_PER_OP] }
}

/// They are measured once a round.
const PRIMITIVES: [Case; 7] = [
    primitive(
        "lock-pair",
        "a compare-exchange and an exchange of a word that nobody else wants",
        1,
    ),
    primitive("switch-pair", "a coroutine (corosensei) suspends and is resumed", 1),
    primitive("coroutine-life", "a coroutine is made on a used stack, runs and ends", 1),
    Case {
        metrics: &[P50],
        ..primitive("line-transfer", "a store on one core is seen by a loop on another", 2)
    },
    Case {
        metrics: &[P50],
        ..primitive("futex-wake", "a thread that sleeps on another core is woken and runs", 2)
    },
    Case {
        metrics: &[P50, CPU_PER_OP],
        ..primitive("nanosleep", "a thread sleeps for 100 us with the least slack", 1)
    },
    primitive("send-receive", "64 bytes go through loopback, both ends on one core", 1),
];

/// A part of a floor: so many of a primitive's metric.
type Part = (f64, &'static str, &'static str);

/// What a metric of a case cannot avoid. `echo` is measured as such, by a server that never sleeps.
const FLOORS: [(&str, &str, &[Part]); 13] = [
    ("mutex", NS_PER_OP, &[(1.0, "lock-pair", NS_PER_OP)]),
    ("yield", NS_PER_OP, &[(1.0, "switch-pair", NS_PER_OP)]),
    ("condvar", NS_PER_OP, &[(1.0, "lock-pair", NS_PER_OP), (1.0, "switch-pair", NS_PER_OP)]),
    ("spawn-join", NS_PER_OP, &[(1.0, "coroutine-life", NS_PER_OP)]),
    (
        "channel-stream",
        NS_PER_OP,
        &[(1.0, "lock-pair", NS_PER_OP), (2.0 / 128.0, "switch-pair", NS_PER_OP)],
    ),
    (
        "channel-ping-pong",
        NS_PER_OP,
        &[(1.0, "lock-pair", NS_PER_OP), (1.0, "switch-pair", NS_PER_OP)],
    ),
    ("park", NS_PER_OP, &[(1.0, "lock-pair", NS_PER_OP), (1.0, "switch-pair", NS_PER_OP)]),
    ("timer", P50, &[(1.0, "nanosleep", P50)]),
    ("timer", CPU_PER_OP, &[(1.0, "nanosleep", CPU_PER_OP)]),
    ("sleepers", P50, &[(1.0, "nanosleep", P50)]),
    ("steal-polling", P50, &[(1.0, "coroutine-life", NS_PER_OP), (2.0, "line-transfer", P50)]),
    ("steal-parked", P50, &[(1.0, "coroutine-life", NS_PER_OP), (1.0, "futex-wake", P50)]),
    ("echo-64", CPU_PER_OP, &[(1.0, "send-receive", NS_PER_OP)]),
];

/// Measures the primitives of a round, and adds them up.
///
/// # Errors
/// When a stop was asked for.
pub fn measure(
    programs: &mut Programs,
    spec: &RuntimeSpec,
    cases: &[&Case],
    round: usize,
    seen: &mut Seen,
    stop: &Stop,
) -> Result<()> {
    let floors = FLOORS.iter().filter(|(name, ..)| cases.iter().any(|case| case.name == *name));
    let floors: Vec<_> = floors.collect();
    for primitive in &PRIMITIVES {
        let is_part = |parts: &[Part]| parts.iter().any(|(_, name, _)| *name == primitive.name);
        if floors.iter().any(|(_, _, parts)| is_part(parts)) {
            programs.one(spec, primitive, System::Floor, round, seen, stop)?;
        }
    }
    for (case, metric, parts) in floors {
        // Of the echoes only the processor time: a server that never sleeps is no floor of that.
        let sum: Option<f64> = parts
            .iter()
            .map(|(times, name, of)| Some(times * seen.value(name, System::Floor, of, round)?))
            .sum();
        if let Some(sum) = sum {
            seen.note(case, System::Floor, metric, round, sum);
        }
    }
    Ok(())
}

/// Puts the primitives into the report, and what each floor is the sum of.
pub fn report(seen: &Seen, report: &mut BenchReport) {
    for primitive in &PRIMITIVES {
        for metric in primitive.metrics {
            let values = seen.values(primitive.name, System::Floor, metric).to_vec();
            report.push(&case(primitive.name), System::Floor.name(), metric, values);
        }
    }
    for primitive in &PRIMITIVES {
        if report.cases().contains(&case(primitive.name).as_str()) {
            report.notes.push(format!("floor: {}: {}", primitive.name, primitive.operation));
        }
    }
    for (name, metric, parts) in FLOORS {
        if report.row(name, System::Floor.name(), metric).is_some() {
            report.notes.push(format!("floor of {name}, {metric}: {}", sum(parts)));
        }
    }
    if report.row("echo-1", System::Floor.name(), P50).is_some() {
        let text = "floor of echo-1 and of the time of echo-64: measured as such, with a server that asks each connection in turn and never sleeps";
        report.notes.push(text.to_owned());
    }
}

/// How the cases of primitives begin in the report.
const PREFIX: &str = "floor: ";

/// Whether a case of the report is a primitive.
pub fn is_primitive(case: &str) -> bool {
    case.starts_with(PREFIX)
}

fn case(primitive: &str) -> String {
    format!("{PREFIX}{primitive}")
}

fn sum(parts: &[Part]) -> String {
    let text = |(times, name, _): &Part| match *times {
        1.0 => (*name).to_owned(),
        times if times < 1.0 => format!("{name} / {:.0}", 1.0 / times),
        times => format!("{times} x {name}"),
    };
    parts.iter().map(text).collect::<Vec<_>>().join(" + ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::CASES;

    #[test]
    fn every_case_has_a_floor_of_what_it_is_judged_by() {
        for case in CASES.iter().filter(|case| !case.name.starts_with("echo")) {
            let has =
                FLOORS.iter().any(|(name, of, _)| *name == case.name && *of == case.metrics[0]);
            assert!(has, "{}", case.name);
        }
    }

    #[test]
    fn a_floor_is_made_of_primitives_that_report_those_metrics() {
        for (_, _, parts) in FLOORS {
            for (_, name, metric) in parts {
                let primitive = PRIMITIVES.iter().find(|primitive| primitive.name == *name);
                assert!(primitive.unwrap().metrics.contains(metric), "{name} {metric}");
            }
        }
        let parts = FLOORS.iter().find(|(name, ..)| *name == "channel-stream").unwrap().2;
        assert_eq!(sum(parts), "lock-pair + switch-pair / 64");
    }
}
