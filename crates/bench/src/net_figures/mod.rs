//! `quell bench net-figures`: the experiments of the NetChannel paper (SIGCOMM'22), with the paper's figures beside ours.
//!
//! Each run of an arm has two network namespaces of its own, in which everything that it changes lives: offloads, frames,
//! queueing disciplines, the core of received packets. They go with the two processes that hold them. An arm that cannot be
//! run is tried, and its row says `n/a` with the command and what it printed.

mod arms;
mod attribution;
mod figure2;
mod figure3;
mod figure4;
mod figure5;
mod figure6;
mod link;
mod tables;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use quell_report::BenchReport;
use quell_terminal::{Progress, Stop};

use crate::host::{self, Quiet};
use crate::net::Measured;
use crate::net::namespaces::ADDRESSES;
use crate::net::pair::{Pair, path_text};

pub use arms::{Arm, Figure};
pub use tables::sections;

use attribution::Tail;
use link::Qdisc;
use watch::{Canaries, Watched, watch};

/// The name of the benchmark in reports.
pub const BENCH: &str = "net-figures";

/// All figures.
pub const FIGURES: &[Figure] = &[
    figure2::FIGURE_2,
    figure3::FIGURE_3,
    figure4::FIGURE_4,
    figure4::FIGURE_4_SLOW,
    figure5::FIGURE_5,
    figure6::FIGURE_6A,
    figure6::FIGURE_6C,
    figure6::FIGURE_6D,
    figure6::FIGURE_8A,
];

/// How often an arm is tried before it counts as one that cannot be run here.
const TRIES: usize = 2;

/// A run.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The command that makes the report again.
    pub command: String,
    /// Only figures whose names begin so; all if empty.
    pub only: Vec<String>,
    /// Interleaved rounds.
    pub rounds: usize,
    /// The time that counts in each.
    pub time: Duration,
    /// The `quell-bench-peers` program.
    pub peers: PathBuf,
}

/// The figures whose names begin with one of these; all if there is none.
///
/// # Errors
/// When no figure is left.
pub fn chosen(only: &[String]) -> Result<Vec<&'static Figure>> {
    let has = |figure: &&Figure| {
        only.is_empty() || only.iter().any(|only| figure.name.starts_with(only.as_str()))
    };
    let figures: Vec<&Figure> = FIGURES.iter().filter(has).collect();
    ensure!(!figures.is_empty(), "no figure begins with {}", only.join(" or "));
    Ok(figures)
}

/// Values by figure, arm and metric, one a round: `NaN` where a run failed.
type Values = BTreeMap<(&'static str, &'static str, &'static str), Vec<f64>>;

/// What a run needs.
struct Runner<'a> {
    spec: &'a Spec,
    directory: &'a Path,
    canaries: Option<Canaries>,
    values: Values,
    unavailable: BTreeSet<(&'static str, &'static str)>,
    notes: Vec<String>,
}

/// Runs the benchmark.
///
/// # Errors
/// When there is no such figure, or a stop was asked for.
pub fn run(spec: &Spec, progress: &mut dyn Progress, stop: &Stop) -> Result<BenchReport> {
    let _alone = host::alone(progress, stop)?;
    let _quiet = Quiet::keep()?;
    let figures = chosen(&spec.only)?;
    let mut report = BenchReport::new(BENCH, &spec.command);
    let directory = host::directory()?;
    let mut notes = Vec::new();
    let is_watched = figures.iter().any(|figure| figure.is_watched);
    let canaries = is_watched.then(Canaries::start).transpose().unwrap_or_else(|error| {
        notes.push(format!("n/a: hypervisor_share: {error:#}"));
        None
    });
    let mut runner = Runner {
        spec,
        directory: directory.path(),
        canaries,
        values: Values::new(),
        unavailable: BTreeSet::new(),
        notes,
    };
    for round in 0..spec.rounds {
        for (at, figure) in figures.iter().enumerate() {
            let step = round * figures.len() + at;
            let text = format!("{}, round {}", figure.name, round + 1);
            progress.step(step, spec.rounds * figures.len(), &text);
            for arm in figure.order(round) {
                runner.round(figure, arm, round, stop)?;
            }
        }
    }
    progress.step(1, 1, "done");
    figures.iter().for_each(|figure| conclude(figure, &runner.values, &mut report));
    report.notes = runner.notes;
    Ok(report)
}

impl Runner<'_> {
    /// Runs an arm once, unless it has turned out to be impossible here.
    fn round(
        &mut self,
        figure: &'static Figure,
        arm: &'static Arm,
        round: usize,
        stop: &Stop,
    ) -> Result<()> {
        let key = (figure.name, arm.name);
        if self.unavailable.contains(&key) {
            return Ok(());
        }
        let is_first = !self.values.contains_key(&(figure.name, arm.name, figure.metrics[0]));
        let mut measured = self.measure(figure, arm, stop);
        stop.check()?;
        for _ in 1..TRIES {
            if is_first && measured.is_err() {
                measured = self.measure(figure, arm, stop);
                stop.check()?;
            }
        }
        match &measured {
            Ok(_) => {}
            Err(error) if is_first => {
                self.notes.push(tables::unavailable(figure.name, arm.name, error));
                self.unavailable.insert(key);
                return Ok(());
            }
            Err(error) => {
                let what = format!("{} in {}, round {}", arm.name, figure.name, round + 1);
                self.notes.push(format!("left out: {what}: {error:#}"));
            }
        }
        for metric in figure.metrics {
            let value = measured.as_ref().map_or(f64::NAN, |values| values.value(metric));
            self.values.entry((figure.name, arm.name, metric)).or_default().push(value);
        }
        Ok(())
    }

    fn measure(&mut self, figure: &Figure, arm: &Arm, stop: &Stop) -> Result<Seen> {
        let namespaces = arm.link.make()?;
        let program = [path_text(&self.spec.peers)?, "sockets"];
        let pair = Pair {
            program: &program,
            directory: self.directory,
            namespaces: &namespaces,
            client_side: 1,
            address: ADDRESSES[0],
            cores: arm.cores,
            // Where streams have stopped for ever, the client goes without a word.
            server_ends: arm.case != "stalled-reader",
        };
        let run = || pair.run(arm.system, arm.case, self.spec.time, stop);
        let (answer, watched) = if figure.is_watched {
            let has_queue = arm.link.qdisc != Qdisc::None;
            watch(self.canaries.as_mut(), has_queue.then_some(&namespaces), run)?
        } else {
            (run()?, Watched::default())
        };
        let measured = Measured::parse(&answer)
            .with_context(|| format!("the client's answer: {}", answer.trim()))?;
        Ok(Seen { measured, watched, has_queue: arm.link.qdisc != Qdisc::None })
    }
}

/// What was seen of an arm in a round.
struct Seen {
    measured: Measured,
    watched: Watched,
    has_queue: bool,
}

impl Seen {
    /// A metric of it; `NaN` where it has none.
    fn value(&self, metric: &str) -> f64 {
        let tail = || Tail::of(&self.measured.slowest, self.watched.stops.as_deref());
        let of_tail = |value: fn(&Tail) -> f64| tail().as_ref().map_or(f64::NAN, value);
        let host = |at: usize| self.watched.host_shares.map_or(f64::NAN, |shares| shares[at]);
        match metric {
            "tail_us" => of_tail(|tail| tail.us),
            "run_queue_share" => of_tail(|tail| tail.run_queue_share),
            "softirq_share" => of_tail(|tail| tail.softirq_share),
            "hypervisor_share" => of_tail(|tail| tail.hypervisor_share),
            "rest_share" => of_tail(|tail| tail.rest_share),
            "host_softirq_share" => host(0),
            "host_steal_share" => host(1),
            // Links without a discipline queue nothing.
            "qdisc_us" if !self.has_queue => 0.0,
            "qdisc_us" => {
                self.watched.backlog_bytes.map_or(f64::NAN, |bytes| self.queueing_us(bytes))
            }
            other => self.measured.value(other),
        }
    }

    /// How long so many bytes take to leave at the rate of the streams.
    fn queueing_us(&self, bytes: f64) -> f64 {
        let bits_per_us = self.measured.value("gbit_per_s") * 1e3;
        if bytes == 0.0 { 0.0 } else { bytes * 8.0 / bits_per_us }
    }
}

/// Rows, and the ratios of a figure's first metric to its base.
fn conclude(figure: &Figure, values: &Values, report: &mut BenchReport) {
    let of = |arm: &str, metric: &str| {
        let found = values.iter().find(|(key, _)| **key == (figure.name, arm, metric));
        found.map(|(_, values)| values.as_slice()).unwrap_or_default()
    };
    for metric in figure.metrics {
        for arm in figure.arms {
            report.push(figure.name, arm.name, metric, of(arm.name, metric).to_vec());
        }
    }
    let metric = figure.metrics[0];
    for arm in figure.arms.iter().filter(|arm| arm.name != figure.base) {
        let (ours, base) = (of(arm.name, metric), of(figure.base, metric));
        report.compare(figure.name, (arm.name, ours), (figure.base, base), metric);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_unique_arms_and_a_base() {
        for figure in FIGURES {
            let names: BTreeSet<&str> = figure.arms.iter().map(|arm| arm.name).collect();
            assert_eq!(names.len(), figure.arms.len(), "{}", figure.name);
            assert!(names.contains(figure.base), "{}", figure.name);
        }
    }

    #[test]
    fn each_arm_begins_as_often_as_the_others() {
        let figure = &FIGURES[0];
        assert_eq!(figure.order(0)[0].name, "tcp, no offloads");
        assert_eq!(figure.order(1)[0].name, "tcp, TSO and GRO");
        assert_eq!(figure.order(1).len(), figure.arms.len());
    }

    #[test]
    fn figures_are_chosen_by_the_beginning_of_their_names() {
        assert_eq!(chosen(&["figure-4".to_owned()]).expect("some").len(), 2);
        assert_eq!(chosen(&[]).expect("all").len(), FIGURES.len());
        let error = chosen(&["figure-9".to_owned()]).expect_err("there is none");
        assert!(error.to_string().contains("figure-9"));
    }

    #[test]
    fn ratio_is_of_the_first_metric_to_the_base() {
        let figure = &figure4::FIGURE_4;
        let mut values = Values::new();
        values.insert(("figure-4", "tcp, isolated", "p999_us"), vec![50.0, 40.0, 50.0]);
        values.insert(("figure-4", "tcp", "p999_us"), vec![2_000.0, f64::NAN, 1_500.0]);
        let mut report = BenchReport::new(BENCH, "test");
        conclude(figure, &values, &mut report);
        assert_eq!(report.ratios.len(), 1);
        assert_eq!(report.ratio("figure-4", "tcp", "p999_us").expect("a ratio").median, 35.0);
        assert_eq!(report.row("figure-4", "tcp", "p999_us").expect("a row").raw.len(), 2);
    }

    #[test]
    fn queue_is_as_long_as_its_bytes_take_to_leave() {
        let text = r#"{"bytes":125000,"ops":1,"ns":1000000,"client_cpu_ns":1,"server_cpu_ns":1,"samples":[1]}"#;
        let measured = Measured::parse(text).expect("an answer");
        let watched = Watched { backlog_bytes: Some(12_500.0), ..Watched::default() };
        let seen = Seen { measured, watched, has_queue: true };
        // At 1 Gbit/s.
        assert_eq!(seen.value("qdisc_us"), 100.0);
        assert!(seen.value("tail_us").is_nan());
        assert_eq!(Seen { has_queue: false, ..seen }.value("qdisc_us"), 0.0);
    }
}
