//! Cases in which priorities given once are not enough: two services whose load moves, and a service
//! whose thread runs away. Systems that set priorities once, by Quell's rules or by hand, are the
//! rivals of the loop.

use std::time::Duration;

use anyhow::{Context as _, Result};
use quell_load::{LoadSpec, Step};
use quell_model::Nanos;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::analysis::{self, Round, Run};
use super::cast::BatchWork;
use super::companion::{Companion, Script};
use super::measure::{Scene, measure};
use super::spec::{ColocateSpec, Mix, System};
use super::system::{self, Service};
use super::{SETTLE, Session};
use quell_report::BenchReport;

/// Who is compared.
pub const SYSTEMS: [System; 3] = [System::Static, System::SchedRr, System::Quell];
/// What is compared: the tail of the first service, and what batch work gets.
const COMPARED: [&str; 2] = ["lc_p999_us", "be_share_of_alone"];
/// Parts of half the core's capacity that each service is offered, one after the other.
const STEPS: [f64; 3] = [0.2, 0.8, 0.2];
/// Work of one request to the second service.
const WORK: Nanos = Nanos::from_micros(500);
/// A thread of the second service that runs for so long without sleeping has run away.
const RUNAWAY_AFTER: Nanos = Nanos::from_millis(50);
/// Rounds at most: the differences are large.
const ROUNDS_MAX: usize = 5;
/// Measurements here are longer: they have three phases.
const LONGER: u32 = 2;

/// The cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopCase {
    /// Load steps of 20, 80, 20 % for the service and the synthetic server.
    TwoLcSteps,
    /// A worker of the synthetic server spins for most of the time.
    Runaway,
}

impl LoopCase {
    /// Both.
    pub const ALL: [LoopCase; 2] = [LoopCase::TwoLcSteps, LoopCase::Runaway];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            LoopCase::TwoLcSteps => "two-lc-steps",
            LoopCase::Runaway => "runaway",
        }
    }

    fn script(self, measured: Duration) -> Script {
        match self {
            LoopCase::TwoLcSteps => Script::Steps {
                work: WORK,
                rates_rps: STEPS.map(|part| part * 0.5 * 1e9 / WORK.0 as f64),
                step: measured / 3,
            },
            LoopCase::Runaway => Script::Runaway { after: measured / 6, spin: measured / 3 * 2 },
        }
    }

    /// Rates of the service, of half its peak.
    fn rates(self, peak_rps: f64) -> [f64; 3] {
        match self {
            LoopCase::TwoLcSteps => STEPS.map(|part| part * 0.5 * peak_rps),
            LoopCase::Runaway => [0.2 * peak_rps; 3],
        }
    }
}

/// How many rounds of each case a run collects.
pub fn rounds(spec: &ColocateSpec) -> usize {
    spec.rounds.min(ROUNDS_MAX)
}

impl Session<'_> {
    /// Rounds of a case, and their rows and ratios.
    pub(super) fn loop_case(&mut self, case: LoopCase, report: &mut BenchReport) -> Result<()> {
        let round = |session: &mut Session, attempt| session.loop_round(case, attempt);
        let rounds = self.rounds(case.name(), rounds(self.spec), &mut report.notes, round)?;
        let rounds: Vec<&Round> = rounds.iter().collect();
        analysis::rows(report, &rounds, &SYSTEMS);
        for against in [System::Static, System::SchedRr] {
            analysis::compare(report, &rounds, System::Quell, against, &COMPARED);
        }
        Ok(())
    }

    fn loop_round(&mut self, case: LoopCase, attempt: usize) -> Result<Round> {
        let spec = self.spec;
        let mut rng = ChaCha8Rng::seed_from_u64(spec.seed.wrapping_add(attempt as u64));
        let seed = rng.random();
        let mut order = SYSTEMS;
        order.shuffle(&mut rng);
        let measured = spec.duration * LONGER;
        let mut load = self.load.clone();
        load.seed = seed;
        load.steps = case
            .rates(self.load.steps[0].rate_rps / spec.load)
            .map(|rate_rps| Step { rate_rps, duration: Nanos(measured.as_nanos() as u64 / 3) })
            .to_vec();
        let be = BatchWork::start(&spec.antagonist, &spec.managed, Mix::Hog, None)?;
        self.stop.sleep(SETTLE)?;
        let be_alone = self.be_alone(&be)?;
        let mut runs = Vec::new();
        for system in order {
            let what = format!("round {}, {}: {}", attempt + 1, case.name(), system.name());
            self.steps.show(self.progress, &what);
            let run = self.until_quiet(|session| {
                session.loop_run(case, system, &be, &load, seed).with_context(|| what.clone())
            })?;
            self.stop.check()?;
            self.steps.done += 1;
            runs.push(run);
        }
        Ok(Round { case: case.name().to_owned(), be_alone, pause_alone: None, runs })
    }

    fn loop_run(
        &mut self,
        case: LoopCase,
        system: System,
        be: &BatchWork,
        load: &LoadSpec,
        seed: u64,
    ) -> Result<Run> {
        let spec = self.spec;
        // A new server each time: a worker that ran away may still spin.
        let companion = Companion::start(spec)?;
        let service =
            |name, program, guaranteed, runaway| Service { name, program, guaranteed, runaway };
        let services = [
            service("service", &self.lc.program, 1, None),
            service("second", &companion.program, 0, Some(RUNAWAY_AFTER)),
        ];
        let entered = system::enter(system, spec, &services, be, self.stop)?;
        let script = case.script(spec.duration * LONGER);
        let following = companion.follow(script, spec.warmup, seed)?;
        let scene = Scene {
            lc: self.lc,
            be,
            load,
            cores: spec.managed.len(),
            watch: self.watch.as_mut(),
            stalls: self.stalls.as_mut(),
            pause: entered.pause(),
            quell: entered.quell_processes(),
        };
        let run = measure(system, scene);
        let second_us = following.finish();
        let left = entered.leave(&services, be);
        let mut run = run?;
        if let Some(p999_us) = second_us? {
            run.values.insert("second_lc_p999_us_raw", p999_us);
        }
        left?;
        Ok(run)
    }
}
