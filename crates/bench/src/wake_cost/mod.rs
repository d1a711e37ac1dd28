//! `quell bench wake-cost`: what of batch work is lost with each wake-up of a service beside it, part by part.
//!
//! Each arm wakes something on the hog's core, and each has one thing more than the arm before. In each round all have
//! their turn, in an order drawn anew, and the hog is measured alone at both ends. What a part costs is the
//! difference of two neighbours within a round. memcached comes last: the sum of the parts stands beside its loss.

mod account;
mod arms;
mod hog;
mod memcached;
mod tell;
mod waker;
mod watch;
mod woken;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quell_model::{CoreId, CoreSet, Nanos};
use quell_os::{Tid, clock};
use quell_report::BenchReport;
use quell_terminal::{Progress, Stop};
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use self::account::{Account, Seen, Used, switches};
use self::arms::{Arm, Round, SPACES};
use self::hog::{Hog, Space};
use self::memcached::Memcached;
use self::tell::tell;
use self::waker::{Call, Schedule, drive};
use self::watch::{Timer, observe};
use self::woken::{Table, Way, Woken};
use crate::host;

/// The benchmark's name.
pub const BENCH: &str = "wake-cost";

/// A run.
#[derive(Clone, Debug)]
pub struct WakeCostSpec {
    /// The command that makes the report again.
    pub command: String,
    /// Rounds; in each every arm has its turn.
    pub rounds: usize,
    /// What a turn counts, after its warm-up.
    pub time: Duration,
    /// Wake-ups a second that are asked for.
    pub rate: f64,
    /// Seed of the times and the orders.
    pub seed: u64,
    /// The core of the hog and of what is woken.
    pub managed: CoreId,
    /// The core of the waker and of memcached's client.
    pub client: CoreId,
    /// Whether memcached has its turns too.
    pub memcached: bool,
    /// The peak of memcached, which is asked half of; absent: searched for.
    pub peak_rps: Option<f64>,
}

impl WakeCostSpec {
    fn warmup(&self) -> Duration {
        (self.time / 5).max(Duration::from_millis(20))
    }
}

/// Measures all arms in all rounds.
///
/// # Errors
/// Without the right to real-time threads, perf events and BPF; when memcached fails after it has started, or a stop was
/// asked for. All that was started is ended in each case.
pub fn run(spec: &WakeCostSpec, progress: &mut dyn Progress, stop: &Stop) -> Result<BenchReport> {
    let _alone = host::alone(progress, stop)?;
    let mut quiet = host::Quiet::keep()?;
    quiet.allow_real_time()?;
    let own = host::affinity(0).context("read the own affinity")?;
    host::pin(0, &CoreSet::of(spec.client)).context("leave the managed core")?;
    let mut report = BenchReport::new(BENCH, &spec.command);
    let measured = measure(spec, &mut report, progress, stop);
    host::pin(0, &own).context("take back the own affinity")?;
    tell(&mut report, &measured?);
    Ok(report)
}

fn measure(
    spec: &WakeCostSpec,
    report: &mut BenchReport,
    progress: &mut dyn Progress,
    stop: &Stop,
) -> Result<Vec<Round>> {
    let mut session = Session {
        spec,
        table: Arc::new(Table::new()),
        timer: Timer::new(spec.managed)?,
        memcached: None,
    };
    if spec.memcached {
        match Memcached::start(spec.managed, spec.client, spec.peak_rps, progress, stop) {
            Ok(memcached) => {
                let rate_rps = memcached.rate_rps;
                report.notes.push(format!("memcached was asked for {rate_rps:.0} requests/s"));
                session.memcached = Some(memcached);
            }
            Err(err) => {
                stop.check()?;
                report.notes.push(format!("left out: memcached: {err:#}"));
            }
        }
    }
    let mut rounds = Vec::new();
    for round in 0..spec.rounds {
        rounds.push(session.round(round, progress, stop)?);
    }
    Ok(rounds)
}

/// What lives through all rounds.
struct Session<'a> {
    spec: &'a WakeCostSpec,
    table: Arc<Table>,
    timer: Timer,
    memcached: Option<Memcached>,
}

impl Session<'_> {
    /// The hog alone, all arms in an order of their own, the hog alone again.
    fn round(&mut self, round: usize, progress: &mut dyn Progress, stop: &Stop) -> Result<Round> {
        let seed = self.spec.seed.wrapping_add((round as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut order = Arm::ALL.to_vec();
        order.retain(|arm| *arm != Arm::Memcached || self.memcached.is_some());
        order.shuffle(&mut random);
        let before = self.alone()?;
        let mut arms = BTreeMap::new();
        let total = self.spec.rounds * order.len();
        for (at, arm) in order.iter().enumerate() {
            stop.check()?;
            progress.step(round * order.len() + at, total, arm.name());
            let seen = self.arm(*arm, random.random()).with_context(|| arm.name())?;
            arms.insert(*arm, seen);
        }
        let after = self.alone()?;
        let mean = |at: usize| Seen {
            ops: (before[at].ops + after[at].ops) / 2.0,
            hog_cpu: (before[at].hog_cpu + after[at].hog_cpu) / 2.0,
            ..before[at]
        };
        let alone = [mean(0), mean(1)];
        if alone.iter().any(|seen| seen.ops == 0.0) {
            let core = self.spec.managed;
            bail!("other programs keep core {core} busy: the hog got none of it; stop them");
        }
        Ok(Round { alone, arms })
    }

    fn alone(&mut self) -> Result<[Seen; 2]> {
        let [shared, own] = SPACES;
        Ok([self.hog_alone(shared)?, self.hog_alone(own)?])
    }

    fn hog_alone(&self, space: Space) -> Result<Seen> {
        let hog = Hog::start(self.spec.managed, space)?;
        let account = || Account::read(&hog, || Ok(Used::default()));
        let driven = drive(&self.schedule(0), Call::Nothing, &account)?;
        let [before, after] = &driven.accounts;
        Ok(Seen::between(before, after))
    }

    fn schedule(&self, seed: u64) -> Schedule {
        let spec = self.spec;
        Schedule {
            core: spec.client,
            rate: spec.rate,
            seed,
            warmup: spec.warmup(),
            time: spec.time,
        }
    }

    /// One arm for one turn. The hog comes first: a forked one must not hold what the arm opens.
    fn arm(&mut self, arm: Arm, seed: u64) -> Result<Seen> {
        let hog = Hog::start(self.spec.managed, arm.space())?;
        let woken = self.way(arm).map(|way| Woken::start(self.spec.managed, way)).transpose()?;
        let mut tids: Vec<i32> = woken.iter().map(Woken::tid).collect();
        if let (Arm::Memcached, Some(memcached)) = (arm, &self.memcached) {
            tids = memcached.threads()?;
        }
        let observed = arm.has_observer();
        let _observer =
            observed.then(|| observe(self.spec.managed, tids.into_iter())).transpose()?;
        if arm.has_timer() {
            self.timer.begin()?;
        }
        let measured = match arm {
            Arm::Memcached => self.memcached(&hog, seed),
            _ => self.driven(arm, &hog, woken.as_ref(), seed),
        };
        if arm.has_timer() {
            let ticks = self.timer.end()?;
            let (mut seen, [from, to]) = measured?;
            ticks.note(&mut seen, from, to);
            if arm == Arm::Timer {
                seen.events = ticks.per_s;
            }
            return Ok(seen);
        }
        Ok(measured?.0)
    }

    fn way(&self, arm: Arm) -> Option<Way> {
        match arm {
            Arm::Timer | Arm::Interrupt | Arm::Memcached => None,
            Arm::Wake | Arm::Process => Some(Way::Event),
            Arm::Packet => Some(Way::Packet(None)),
            Arm::Work | Arm::Observed | Arm::Timed => Some(Way::Packet(Some(self.table.clone()))),
        }
    }

    fn driven(&self, arm: Arm, hog: &Hog, woken: Option<&Woken>, seed: u64) -> Result<Measured> {
        let call = match (arm, woken) {
            (Arm::Interrupt, _) => Call::Interrupt,
            (_, Some(woken)) => Call::Wake(woken),
            _ => Call::Nothing,
        };
        let used = || -> Result<Used> {
            let Some(woken) = woken else { return Ok(Used::default()) };
            let cpu = clock::thread_cpu_of(Tid(woken.tid()))
                .context("read the woken thread's CPU time")?;
            Ok(Used { cpu, sleeps: switches(woken.tid())?.0 })
        };
        let driven = drive(&self.schedule(seed), call, &|| Account::read(hog, used))?;
        let [before, after] = &driven.accounts;
        let mut seen = Seen::between(before, after);
        let seconds = (after.at - before.at).0.max(1) as f64 / 1e9;
        let calls = driven.calls as f64 / seconds;
        match arm {
            Arm::Interrupt => seen.events = calls,
            _ => seen.requests = calls,
        }
        Ok((seen, [before.at, after.at]))
    }

    fn memcached(&mut self, hog: &Hog, seed: u64) -> Result<Measured> {
        let (warmup, time) = (self.spec.warmup(), self.spec.time);
        let memcached = self.memcached.as_mut().context("memcached does not run")?;
        memcached.measure(hog, warmup, time, seed)
    }
}

/// What a turn showed, and from when to when.
type Measured = (Seen, [Nanos; 2]);

#[cfg(test)]
mod tests {
    use quell_terminal::Silent;

    use super::*;

    #[test]
    fn each_arm_and_each_part_is_measured() {
        let spec = WakeCostSpec {
            command: "quell bench wake-cost".to_owned(),
            rounds: 1,
            time: Duration::from_millis(50),
            rate: 2_000.0,
            seed: 1,
            managed: CoreId(1),
            client: CoreId(0),
            memcached: false,
            peak_rps: None,
        };
        let own = host::affinity(0).unwrap();
        let measured = run(&spec, &mut Silent, &Stop::default());
        assert_eq!(host::affinity(0).unwrap(), own);
        let report = match measured {
            Ok(report) => report,
            // The hog is at SCHED_IDLE; what the report has then is tested in `tell`.
            Err(err) => return assert!(err.to_string().contains("keep core 1 busy"), "{err:#}"),
        };
        let values = |metric: &str| report.rows.iter().filter(|row| row.metric == metric).count();
        assert_eq!((values("loss_us_per_wake"), values("loss_us_per_interrupt")), (6, 2));
        assert_eq!((values("hog_share_of_alone"), values("stopped_share")), (8, 2));
        assert_eq!((values("us_per_wake"), values("us_per_interrupt")), (7, 1));
        assert!(report.rows.iter().all(|row| row.raw.len() == 1));
        let wakes = report.row("wake-up", "packet", "wakes_per_s").unwrap();
        assert!(wakes.median > 0.0);
    }
}
