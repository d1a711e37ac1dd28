//! From the rounds of a co-location to its report. Pure.

use std::collections::BTreeMap;

use quell_load::Recorder;
use quell_model::Nanos;

use super::cast::Rates;
use super::spec::System;
use crate::stall::{self, Filtered};
use quell_report::stats;
use quell_report::{BenchReport, Curve};

/// Above this share of the leftover the measurement contradicts itself, and its round is void.
pub const BE_SHARE_MAX: f64 = 1.02;
/// Below this share of the leftover the report accounts for the switches.
const BE_SHARE_EXPLAINED: f64 = 0.9;
/// Above this ratio of the tails the report tells how long the service waits for its core.
const TAIL_EXPLAINED: f64 = 1.5;
/// From this number of rounds on, void ones are made up for, and stalls have to be alike.
pub const MANY: usize = 5;
/// The denominator of every latency ratio.
const BASE: System = System::AloneWarm;
/// The name of batch work without load on the service, among the systems.
const BE_ALONE: &str = "be-alone";
/// Distance of the points of a curve, in decades of rarity.
const CURVE_STEP: f64 = 0.05;

const QUANTILES: [(&str, f64); 6] = [
    ("lc_p50_us", 0.5),
    ("lc_p90_us", 0.9),
    ("lc_p99_us", 0.99),
    ("lc_p999_us", 0.999),
    ("lc_p9999_us", 0.9999),
    ("lc_max_us", 1.0),
];
/// What is compared with the base: latencies, and the CPU time that the service needs.
const COMPARED: [&str; 6] =
    ["lc_p50_us", "lc_p99_us", "lc_p999_us", "lc_p9999_us", "lc_p999_us_raw", "lc_cpu_share"];

/// One measurement of one system.
#[derive(Clone, Debug)]
pub struct Run {
    /// Whose.
    pub system: System,
    /// Everything but latencies and derived shares, by metric.
    pub values: BTreeMap<&'static str, f64>,
    /// Quantiles of the latencies in microseconds, by metric, with and without the stall rule.
    pub quantiles: BTreeMap<String, f64>,
    /// Latencies by the stall rule, for the curve.
    pub kept: Recorder,
    /// Share of the requests that the stall rule removed.
    pub removed: f64,
    /// Share of the time that stalls cover.
    pub covered: f64,
    /// The service's part of the managed cores' time (0 to 1).
    pub lc_share: f64,
    /// Share of the time in which Quell or softirqs had the client's core for long: part of what is
    /// measured.
    pub client_lost: f64,
    /// Work of the batch programs.
    pub be_rates: Option<Rates>,
    /// Turns a second of the PAUSE loop beneath the service, where there is one.
    pub pause_turns: Option<f64>,
}

impl Run {
    /// A measurement from its latencies.
    pub fn new(system: System, latencies: &Filtered) -> Run {
        let mut quantiles = BTreeMap::new();
        for (metric, quantile) in QUANTILES {
            let mut put = |name: String, latencies: &[Nanos]| {
                if let Some(at) = stats::quantile(latencies, quantile) {
                    quantiles.insert(name, at.0 as f64 / 1e3);
                }
            };
            put(metric.to_owned(), &latencies.kept);
            put(format!("{metric}_raw"), &latencies.raw);
        }
        Run {
            system,
            values: BTreeMap::new(),
            quantiles,
            kept: latencies.kept.iter().copied().collect(),
            removed: latencies.removed_requests_share(),
            covered: 0.0,
            lc_share: 0.0,
            client_lost: 0.0,
            be_rates: None,
            pause_turns: None,
        }
    }

    /// Whether stalls cover too much of it to count.
    pub fn is_stalled(&self) -> bool {
        self.covered > stall::COVERED_MAX || self.removed > stall::REMOVED_MAX
    }
}

/// All measurements of one case in one round.
#[derive(Clone, Debug)]
pub struct Round {
    /// The case.
    pub case: String,
    /// Work of the batch programs when the service gets no load, in this round.
    pub be_alone: Rates,
    /// Turns a second of the PAUSE loop when the service gets no load, in this round.
    pub pause_alone: Option<f64>,
    /// The systems, in the order in which they ran.
    pub runs: Vec<Run>,
}

impl Round {
    fn run(&self, system: System) -> Option<&Run> {
        self.runs.iter().find(|run| run.system == system)
    }

    /// Batch work of a run as a share of batch work alone.
    fn be_of_alone(&self, run: &Run) -> Option<f64> {
        run.be_rates.as_ref()?.share_of(&self.be_alone)
    }

    /// Batch work of a run as a share of what the service leaves: of batch work alone times the part
    /// of the cores that the service does not use meanwhile. Whether it uses more than in the base is
    /// compared apart (`lc_cpu_share`).
    fn be_of_leftover(&self, run: &Run) -> Option<f64> {
        let left = (1.0 - run.lc_share) * self.unaccounted();
        (left > 0.0).then_some(self.be_of_alone(run)? / left)
    }

    /// How much more a thread beneath the service gets than the kernel's account of the service
    /// leaves, in the base of this round. The kernel charges a thread from its wake-up on
    /// (`rq_clock_skip_update` in kernel/sched/core.c), while the one beneath goes on until the interrupt
    /// is delivered: microseconds in a virtual machine, thousands of times a second.
    fn unaccounted(&self) -> f64 {
        let base = self.run(BASE);
        let turns = base.and_then(|base| base.pause_turns).zip(self.pause_alone);
        turns.zip(base).map_or(1.0, |((beneath, alone), base)| {
            let ratio = beneath / alone / (1.0 - base.lc_share);
            if ratio.is_finite() { ratio.max(1.0) } else { 1.0 }
        })
    }

    /// Why the round does not count; `None` if it does.
    ///
    /// Only Quell is held to [`BE_SHARE_MAX`], because only its share is claimed.
    pub fn void(&self) -> Option<String> {
        let case = &self.case;
        for run in &self.runs {
            let system = run.system.name();
            if run.is_stalled() {
                let (time, requests) = (run.covered * 100.0, run.removed * 100.0);
                return Some(format!(
                    "{case}: hypervisor stalls cover {time:.1} % of the time of {system} and hit \
                     {requests:.1} % of its requests"
                ));
            }
            let share = self.be_of_leftover(run).filter(|_| run.system == System::Quell);
            if let Some(share) = share.filter(|share| *share > BE_SHARE_MAX) {
                return Some(format!(
                    "{case}: batch work of {system} got {share:.3} of the leftover"
                ));
            }
        }
        None
    }

    fn value(&self, system: System, metric: &str) -> f64 {
        let Some(run) = self.run(system) else { return f64::NAN };
        let value = match metric {
            "be_share_of_alone" => self.be_of_alone(run),
            "be_share_of_leftover" => self.be_of_leftover(run),
            "be_ops_per_s" => run.be_rates.as_ref().map(Rates::ops),
            "be_cpu_s_per_s" => run.be_rates.as_ref().map(Rates::cpu),
            "unaccounted_ratio" => run.pause_turns.map(|_| self.unaccounted()),
            "lc_cpu_share" => Some(run.lc_share),
            "client_preempted_share" => Some(run.client_lost),
            "removed_requests_share" => Some(run.removed),
            "stalled_time_share" => Some(run.covered),
            _ => run.quantiles.get(metric).or_else(|| run.values.get(metric)).copied(),
        };
        value.unwrap_or(f64::NAN)
    }
}

/// Fills the report with the rows, ratios, curves and notes of the rounds that count.
/// `switch_us` is what a switch to the service and back cost in this run.
pub fn fill(report: &mut BenchReport, rounds: &[Round], systems: &[System], switch_us: f64) {
    let mut cases: Vec<&str> = Vec::new();
    for round in rounds {
        if !cases.contains(&round.case.as_str()) {
            cases.push(&round.case);
        }
    }
    for case in cases {
        let rounds: Vec<&Round> = rounds.iter().filter(|round| round.case == case).collect();
        rows(report, &rounds, systems);
        for &system in systems.iter().filter(|system| **system != BASE) {
            compare(report, &rounds, system, BASE, &COMPARED);
        }
        explain_share(report, case, switch_us);
        explain_tail(report, case);
    }
}

/// The rows and curves of the rounds of one case, and whether stalls spoiled it.
pub fn rows(report: &mut BenchReport, rounds: &[&Round], systems: &[System]) {
    let Some(case) = rounds.first().map(|round| round.case.as_str()) else { return };
    for &system in systems {
        for metric in metrics(rounds) {
            report.push(case, system.name(), &metric, series(rounds, system, &metric));
        }
        curve(report, case, system, rounds);
    }
    let alone = |of: fn(&Rates) -> f64| rounds.iter().map(|round| of(&round.be_alone)).collect();
    report.push(case, BE_ALONE, "be_ops_per_s", alone(Rates::ops));
    report.push(case, BE_ALONE, "be_cpu_s_per_s", alone(Rates::cpu));
    check_covered(report, case, systems);
}

/// The ratios of two systems over the rounds of one case.
pub fn compare(
    report: &mut BenchReport,
    rounds: &[&Round],
    system: System,
    against: System,
    metrics: &[&str],
) {
    let Some(case) = rounds.first().map(|round| round.case.as_str()) else { return };
    for metric in metrics {
        let (upper, lower) = (series(rounds, system, metric), series(rounds, against, metric));
        report.compare(case, (system.name(), &upper), (against.name(), &lower), metric);
    }
}

fn series(rounds: &[&Round], system: System, metric: &str) -> Vec<f64> {
    rounds.iter().map(|round| round.value(system, metric)).collect()
}

/// Every metric that some run has, latencies first.
fn metrics(rounds: &[&Round]) -> Vec<String> {
    let mut names: Vec<String> = QUANTILES.iter().map(|(name, _)| (*name).to_owned()).collect();
    names.extend(QUANTILES.iter().map(|(name, _)| format!("{name}_raw")));
    let derived = [
        "be_share_of_leftover",
        "be_share_of_alone",
        "be_ops_per_s",
        "be_cpu_s_per_s",
        "unaccounted_ratio",
        "lc_cpu_share",
        "removed_requests_share",
        "stalled_time_share",
        "client_preempted_share",
    ];
    names.extend(derived.map(str::to_owned));
    for run in rounds.iter().flat_map(|round| &round.runs) {
        for name in run.values.keys() {
            if !names.iter().any(|known| known == name) {
                names.push((*name).to_owned());
            }
        }
    }
    names
}

fn curve(report: &mut BenchReport, case: &str, system: System, rounds: &[&Round]) {
    let mut all = Recorder::new();
    for run in rounds.iter().filter_map(|round| round.run(system)) {
        all.merge(&run.kept);
    }
    // A quantile needs a few requests beyond it to mean something.
    let rarest = (all.count() as f64 / 5.0).log10();
    let positions = (0..).map(|at| f64::from(at) * CURVE_STEP).take_while(|at| *at <= rarest);
    let points: Vec<(f64, f64)> = positions
        .map(|at| 1.0 - 10f64.powf(-at))
        .map(|quantile| (stats::rounded(quantile), stats::rounded(all.at(quantile).0 as f64 / 1e3)))
        .collect();
    if !points.is_empty() {
        report.curves.push(Curve {
            case: case.to_owned(),
            system: system.name().to_owned(),
            points,
        });
    }
}

fn check_covered(report: &mut BenchReport, case: &str, systems: &[System]) {
    let covered: Vec<(&str, f64)> = systems
        .iter()
        .filter_map(|system| {
            // Alone, the managed core idles, and only the client's is watched.
            let is_watched = *system != System::Alone;
            let row =
                report.row(case, system.name(), "stalled_time_share").filter(|_| is_watched)?;
            Some((system.name(), row.raw.iter().sum::<f64>() / row.raw.len() as f64))
        })
        .collect();
    let few =
        report.row(case, BASE.name(), "stalled_time_share").is_none_or(|row| row.raw.len() < MANY);
    if few {
        return;
    }
    if let Some(why) = stall::invalid(&covered) {
        report.notes.push(format!("INVALID: {case}: {why}"));
    }
}

/// What the switches cost batch work, where it got less than nine tenths of the leftover.
fn explain_share(report: &mut BenchReport, case: &str, switch_us: f64) {
    let mut notes = Vec::new();
    for system in [System::Static, System::Quell, System::SchedRr] {
        let row = |metric| report.row(case, system.name(), metric);
        let Some(share) = row("be_share_of_leftover") else { continue };
        let Some(wakes) = row("wakes_per_s") else { continue };
        if share.median < BE_SHARE_EXPLAINED {
            notes.push(format!(
                "{case}: batch work of {} got {:.0} % of the leftover; {:.0} wake-ups of the service a \
                 second x {switch_us:.1} us a switch = {:.1} % of a core",
                system.name(),
                share.median * 100.0,
                wakes.median,
                wakes.median * switch_us / 1e4
            ));
        }
    }
    report.notes.extend(notes);
}

/// What stands in the way where Quell's tail is not close to the base's: how long the service's threads
/// wait from a wake-up until they run.
fn explain_tail(report: &mut BenchReport, case: &str) {
    let ratio = report.ratio(case, System::Quell.name(), "lc_p999_us").map(|ratio| ratio.median);
    let Some(ratio) = ratio.filter(|ratio| *ratio > TAIL_EXPLAINED) else { return };
    let wait = |system: System| report.row(case, system.name(), "wakeup_latency_p999_us");
    let (Some(quell), Some(base)) = (wait(System::Quell), wait(BASE)) else { return };
    let note = format!(
        "{case}: p99.9 of quell is {ratio:.2} times that of {}; from a wake-up until it runs a thread of the \
         service waits {:.0} us (99.9 %) instead of {:.0} us",
        BASE.name(),
        quell.median,
        base.median
    );
    report.notes.push(note);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::colocate::cast::Rate;

    fn rates(ops: f64) -> Rates {
        Rates(vec![Rate { ops, cpu: 1.0 }])
    }

    fn run(system: System, p999_us: u64, lc_share: f64, be_ops: Option<f64>) -> Run {
        let mut latencies = vec![Nanos::from_micros(10); 9_980];
        latencies.extend([Nanos::from_micros(p999_us); 20]);
        let filtered = Filtered { raw: latencies.clone(), kept: latencies };
        Run { lc_share, be_rates: be_ops.map(rates), ..Run::new(system, &filtered) }
    }

    fn round(base_us: u64, quell_us: u64) -> Round {
        Round {
            case: "stream".into(),
            be_alone: rates(1_000.0),
            pause_alone: None,
            runs: vec![
                run(System::AloneWarm, base_us, 0.4, None),
                run(System::Quell, quell_us, 0.4, Some(570.0)),
            ],
        }
    }

    #[test]
    fn ratios_are_paired_and_shares_are_of_the_leftover() {
        let mut report = BenchReport::new("colocate", "quell bench colocate");
        // The second round ran on a machine twice as slow: the ratio is the same.
        let rounds = [round(100, 110), round(200, 220), round(100, 110)];
        fill(&mut report, &rounds, &[System::AloneWarm, System::Quell], 2.0);
        let ratio = report.ratio("stream", "quell", "lc_p999_us").unwrap();
        assert_eq!((ratio.median, ratio.against.as_str()), (1.1, "alone-idle-poll"));
        let share = report.row("stream", "quell", "be_share_of_leftover").unwrap();
        assert!((share.median - 0.95).abs() < 1e-9, "570 of 1,000 x (1 - 0.4)");
        assert_eq!(report.row("stream", "quell", "be_share_of_alone").unwrap().median, 0.57);
        assert!(report.row("stream", "alone-idle-poll", "be_share_of_leftover").is_none());
        assert_eq!(report.curves.len(), 2);
        assert!(report.notes.is_empty(), "{:?}", report.notes);
    }

    #[test]
    fn what_the_kernel_does_not_account_for_is_part_of_the_leftover() {
        let mut round = round(100, 110);
        let share = |round: &Round| round.be_of_leftover(&round.runs[1]).unwrap();
        let uncorrected = share(&round);
        (round.pause_alone, round.runs[0].pause_turns) = (Some(1e6), Some(0.66e6));
        assert!((share(&round) * 1.1 - uncorrected).abs() < 1e-9, "0.66 where 0.6 are accounted");
        round.runs[0].pause_turns = Some(0.5e6);
        assert_eq!(share(&round), uncorrected, "never less than the account");
    }

    #[test]
    fn a_share_above_the_leftover_voids_the_round() {
        let mut round = round(100, 110);
        assert_eq!(round.void(), None);
        round.runs[1].be_rates = Some(rates(650.0));
        assert!(round.void().is_some_and(|why| why.contains("quell got 1.083 of the leftover")));
        round.runs[1].system = System::LinuxDefault;
        assert_eq!(round.void(), None, "nobody claims the share of a rival");
    }

    #[test]
    fn too_many_stalls_void_the_round() {
        let mut round = round(100, 110);
        round.runs[0].covered = 0.06;
        assert!(
            round.void().is_some_and(|why| why.contains("6.0 % of the time of alone-idle-poll"))
        );
    }

    #[test]
    fn a_low_share_is_accounted_for() {
        let mut low = round(100, 110);
        low.runs[1].be_rates = Some(rates(480.0));
        low.runs[1].values.insert("wakes_per_s", 20_000.0);
        let mut report = BenchReport::new("colocate", "quell bench colocate");
        fill(&mut report, &[low], &[System::AloneWarm, System::Quell], 2.5);
        let note = report.notes.join("\n");
        assert!(
            note.contains("80 % of the leftover") && note.contains("= 5.0 % of a core"),
            "{note}"
        );
    }

    #[test]
    fn a_long_tail_is_accounted_for() {
        let mut long = round(100, 200);
        long.runs[0].values.insert("wakeup_latency_p999_us", 41.0);
        long.runs[1].values.insert("wakeup_latency_p999_us", 106.0);
        let mut report = BenchReport::new("colocate", "quell bench colocate");
        fill(&mut report, &[long], &[System::AloneWarm, System::Quell], 2.5);
        let note = report.notes.join("\n");
        assert!(note.contains("2.00 times") && note.contains("106 us (99.9 %)"), "{note}");
    }

    #[test]
    fn unequal_stalls_are_marked_invalid() {
        let mut round = round(100, 110);
        round.runs[0].covered = 0.004;
        round.runs[1].covered = 0.018;
        let mut report = BenchReport::new("colocate", "quell bench colocate");
        let rounds = vec![round; MANY];
        fill(&mut report, &rounds, &[System::AloneWarm, System::Quell], 2.0);
        assert!(report.notes[0].starts_with("INVALID: stream"), "{:?}", report.notes);
    }
}
