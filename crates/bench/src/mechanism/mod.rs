//! `quell bench mechanism`: what it costs to wake, idle, preempt and migrate a thread.
//!
//! Each case is a row of three quantiles of the *scheduler's work* (`call_ns_*`: the time of the
//! caller, for a batch of all its calls) and of the *delay until effective* (`delay_ns_*`: from the
//! start of the first call until the last target runs, stops or has moved). The system is the means:
//! a back end that acts through a kernel module or sched_ext becomes another system of the same case.
//! The floor under all of them, gaps in a loop that only reads the clock, is measured in the same run.

mod actors;
mod cases;
mod freezer;
mod signal;

use anyhow::{Context as _, Result};
use quell_load::now;
use quell_model::{CoreId, CoreSet, Nanos};

use self::actors::Call;
use self::cases::{Mechanism, Place, Sample};
use crate::host::{self, Policy, pin, set_policy};
use quell_report::BenchReport;
use quell_report::stats;
use quell_terminal::{Progress, Stop};

/// How long the floor is watched in each round. A FIFO loop may not hold a core for longer.
const FLOOR_TIME: Nanos = Nanos::from_millis(200);
/// Gaps from this on are counted as the floor's.
const FLOOR_GAP: Nanos = Nanos::from_micros(1);

/// A run of the mechanism benchmark.
#[derive(Clone, Debug)]
pub struct MechanismSpec {
    /// The command that makes the report again.
    pub command: String,
    /// Interleaved rounds.
    pub rounds: usize,
    /// Samples of each case in each round.
    pub samples: usize,
    /// Largest batch.
    pub batch_max: usize,
    /// The driver's core.
    pub driver: CoreId,
    /// The targets' cores.
    pub targets: CoreSet,
}

impl MechanismSpec {
    /// The cases: single acts, then batches of powers of two.
    fn cases(&self) -> Vec<Mechanism> {
        use Mechanism::*;
        let fifo = Policy::Fifo(10);
        let mut cases = vec![
            WakeIdle(Call::Futex),
            WakeIdle(Call::Eventfd),
            WakeOver(Call::Futex, fifo),
            WakeOver(Call::Eventfd, fifo),
            Raise(fifo),
            WakeOver(Call::Futex, Policy::Other),
            Raise(Policy::Other),
            WakeOver(Call::Futex, Policy::Idle),
            Lower,
            Signal,
            MoveRunning,
            MoveWaiting,
            Freeze,
            Thaw,
        ];
        let sizes = std::iter::successors(Some(2), |size| Some(size * 2));
        for size in sizes.take_while(|size| *size <= self.batch_max) {
            cases.extend([WakeBatch(size), RaiseBatch(size)]);
        }
        cases
    }
}

/// Runs the benchmark.
///
/// # Errors
/// When no thread can be elevated, or a stop was asked for. A case that this host cannot do becomes
/// a note.
pub fn run(spec: &MechanismSpec, progress: &mut dyn Progress, stop: &Stop) -> Result<BenchReport> {
    let _alone = host::alone(progress, stop)?;
    let mut report = BenchReport::new("mechanism", &spec.command);
    let cases = spec.cases();
    let mut taken: Vec<Taken> = cases.iter().map(|_| Taken::default()).collect();
    let mut floor = Vec::new();
    for round in 0..spec.rounds {
        for (at, (case, taken)) in cases.iter().zip(&mut taken).enumerate() {
            stop.check()?;
            let (name, means) = case.names();
            progress.step(
                round * cases.len() + at,
                spec.rounds * cases.len(),
                &format!("{name} by {means}"),
            );
            if taken.failed.is_some() {
                continue;
            }
            match on_driver(spec, |place| case.measure(place, spec.samples)) {
                Ok(samples) => taken.rounds.push(samples),
                Err(error) => taken.failed = Some(format!("{name} by {means}: {error:#}")),
            }
        }
        floor.push(on_driver(spec, watch_floor)?);
    }
    for (case, taken) in cases.iter().zip(taken) {
        let (name, means) = case.names();
        match taken.failed {
            Some(why) => report.notes.push(format!("not measured: {why}")),
            None => push(&mut report, &name, means, &taken.rounds),
        }
    }
    for (metric, pick) in Floor::METRICS {
        report.push("floor", "spinner", metric, floor.iter().map(pick).collect());
    }
    Ok(report)
}

#[derive(Default)]
struct Taken {
    rounds: Vec<Vec<Sample>>,
    failed: Option<String>,
}

/// Runs `work` on a thread of its own: pinned, and above everything that it drives.
fn on_driver<T: Send>(
    spec: &MechanismSpec,
    work: impl FnOnce(&Place) -> Result<T> + Send,
) -> Result<T> {
    let place = Place { driver: spec.driver, targets: spec.targets.iter().collect() };
    std::thread::scope(|scope| {
        let driver = scope.spawn(|| {
            pin(0, &CoreSet::of(place.driver)).context("pin the driver")?;
            set_policy(0, Policy::Fifo(cases::DRIVER))
                .context("elevate the driver; are you root?")?;
            work(&place)
        });
        driver.join().map_err(|_| anyhow::anyhow!("the driver thread panicked"))?
    })
}

/// Quantiles within each round, and the rare one over all rounds together.
fn push(report: &mut BenchReport, case: &str, means: &str, rounds: &[Vec<Sample>]) {
    let kinds: [(&str, Pick<Sample, Nanos>); 2] =
        [("call_ns", |one| one.call), ("delay_ns", |one| one.delay)];
    for (kind, pick) in kinds {
        let ascending = |samples: &mut dyn Iterator<Item = &Sample>| {
            let mut times: Vec<u64> = samples.map(|one| pick(one).0).collect();
            times.sort_unstable();
            times
        };
        let rounds_sorted: Vec<Vec<u64>> =
            rounds.iter().map(|round| ascending(&mut round.iter())).collect();
        let all = ascending(&mut rounds.iter().flatten());
        for (name, quantile) in [("p50", 0.5), ("p99", 0.99)] {
            let each = rounds_sorted.iter().filter_map(|round| stats::quantile(round, quantile));
            report.push(case, means, &format!("{kind}_{name}"), each.map(|ns| ns as f64).collect());
        }
        let rare = stats::quantile(&all, 0.999).map(|ns| ns as f64);
        report.push(case, means, &format!("{kind}_p999"), rare.into_iter().collect());
    }
}

/// Takes a value out of a measurement.
type Pick<From, To> = fn(&From) -> To;

/// What an undisturbed FIFO loop on a target's core sees of the machine.
struct Floor {
    p999_ns: f64,
    max_ns: f64,
    gaps_per_s: f64,
    lost_share: f64,
}

impl Floor {
    const METRICS: [(&'static str, Pick<Floor, f64>); 4] = [
        ("gap_ns_p999", |floor| floor.p999_ns),
        ("gap_ns_max", |floor| floor.max_ns),
        ("gaps_over_1us_per_s", |floor| floor.gaps_per_s),
        ("lost_share", |floor| floor.lost_share),
    ];
}

fn watch_floor(place: &Place) -> Result<Floor> {
    let core = place.targets.first().context("no target core")?;
    pin(0, &CoreSet::of(*core)).context("pin the floor's loop")?;
    let (start, mut gaps) = (now(), Vec::with_capacity(100_000));
    let mut last = start;
    while last - start < FLOOR_TIME {
        let at = now();
        if at - last >= FLOOR_GAP {
            gaps.push((at - last).0);
        }
        last = at;
    }
    gaps.sort_unstable();
    let lost: u64 = gaps.iter().sum();
    let seconds = (last - start).0 as f64 / 1e9;
    Ok(Floor {
        p999_ns: stats::quantile(&gaps, 0.999).unwrap_or(0) as f64,
        max_ns: gaps.last().copied().unwrap_or(0) as f64,
        gaps_per_s: gaps.len() as f64 / seconds,
        lost_share: lost as f64 / (last - start).0 as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostSnapshot;
    use quell_terminal::Silent;

    #[test]
    fn every_case_is_measured_or_says_why_not_and_nothing_stays_changed() {
        let spec = MechanismSpec {
            command: "test".into(),
            rounds: 1,
            samples: 5,
            batch_max: 2,
            driver: CoreId(0),
            targets: CoreSet::of(CoreId(1)),
        };
        let before = HostSnapshot::take();
        let report = run(&spec, &mut Silent, &Stop::default()).unwrap();
        assert!(before.setting_differences(&HostSnapshot::take()).is_empty());
        for case in spec.cases() {
            let (name, means) = case.names();
            let noted =
                report.notes.iter().any(|note| note.contains(&name) && note.contains(means));
            let measured =
                report.row(&name, means, "delay_ns_p50").is_some_and(|row| row.median > 0.0);
            assert!(noted || measured, "{name} by {means}");
        }
        assert!(report.row("floor", "spinner", "lost_share").is_some());
        let left = std::path::PathBuf::from(format!(
            "/sys/fs/cgroup/freezer/quell-bench-{}",
            std::process::id()
        ));
        assert!(!left.exists());
    }
}
