//! Programs of "A Decade of Wasted Cores" (EuroSys'16), from their structure.
//!
//! Iterations and barriers are those of the programs (NAS parallel benchmarks 3.3, class C, OpenMP); run times without a bug
//! are the paper's tables, quoted from memory. What a bug costs is in no parameter. Barriers wait as
//! those of libgomp do; the spread of compute times is assumed.

use quell_model::Nanos;

use super::{Program, ProgramStep, Service, Sync, SyncKind, ThreadKind, Waiting};
use crate::machine::{Kind, ONE, smt};

/// A program of the NAS parallel benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nas {
    /// Its name.
    pub name: &'static str,
    /// Iterations of its outer loop.
    pub iterations: u32,
    /// Barriers in each: parallel loops that end with one.
    pub barriers: u32,
    /// Planes of each of the two pipelines of an iteration, which each thread passes on to the next one; zero for most.
    pub planes: u32,
    /// Run time with 16 threads on 16 cores (table 1).
    pub on_16: Nanos,
    /// Run time with 64 threads on 64 cores (table 3).
    pub on_64: Nanos,
}

const fn nas(
    name: &'static str,
    iterations: u32,
    barriers: u32,
    planes: u32,
    seconds: (u64, u64),
) -> Nas {
    // In tenths of seconds.
    let [on_16, on_64] = [Nanos(seconds.0 * 100_000_000), Nanos(seconds.1 * 100_000_000)];
    Nas { name, iterations, barriers, planes, on_16, on_64 }
}

/// All nine.
pub const NAS: [Nas; 9] = [
    nas("bt", 200, 18, 0, (560, 230)),
    // 25 steps of conjugate gradients in each, of four loops.
    nas("cg", 75, 104, 0, (150, 54)),
    nas("ep", 1, 1, 0, (360, 180)),
    nas("ft", 20, 6, 0, (500, 140)),
    nas("is", 10, 6, 0, (2_020, 530)),
    // Two sweeps over 160 planes; a thread polls a flag of its neighbour for each.
    nas("lu", 250, 8, 160, (380, 160)),
    // Up and down eight levels, four loops on each.
    nas("mg", 20, 64, 0, (240, 90)),
    nas("sp", 400, 20, 0, (140, 120)),
    nas("ua", 200, 120, 0, (560, 140)),
];

/// A program of that name.
pub fn nas_of(name: &str) -> Option<&'static Nas> {
    NAS.iter().find(|nas| nas.name == name)
}

impl Nas {
    /// With so many threads, forked beside the first one on `core`; `permille` thousandths of its iterations.
    pub fn program(
        &self,
        threads: u32,
        core: Option<quell_model::CoreId>,
        permille: u32,
    ) -> Program {
        let iterations = (self.iterations * permille).div_ceil(1_000).max(1);
        let whole = if threads > 16 { self.on_64 } else { self.on_16 };
        // A run with fewer iterations is shorter by as much; one that has only one by its length.
        let whole = Nanos(whole.0 * u64::from(permille) / 1_000);
        // The tables are of pairs of cores that both compute; a step is what it takes on an idle host.
        let whole = Nanos(whole.0 * ONE / smt::stretch(Kind::Compute, Kind::Compute));
        let each = whole.0 / u64::from(iterations);
        // A pipeline is full after as many planes as it has threads.
        let sweep = if self.planes > 0 { 2 * (self.planes + threads - 1) } else { 0 };
        let phases = u64::from(self.barriers + sweep);
        let mean = Nanos(each / phases.max(1));
        // The thousands of batches between the start and the end of `ep` average out.
        let compute = match phases * u64::from(self.iterations) {
            1 => Service::Fixed(mean),
            _ => Service::Lognormal { mean, sigma: 50 },
        };
        let mut steps = Vec::new();
        if self.planes > 0 {
            // Thread n takes the plane of thread n - 1, which leaves room for one more, and posts its own where there is
            // room: `isync` in syncs.f. The first one has all planes, and the last one room for all.
            let (planes, room) = (1, 2 + threads);
            steps.extend([
                ProgramStep::TakeOwn(planes),
                ProgramStep::PostOwn(room),
                ProgramStep::Compute(compute),
                ProgramStep::TakeNext(room),
                ProgramStep::PostNext(planes),
                ProgramStep::Repeat { from: 0, times: self.planes },
                ProgramStep::Take(0),
                ProgramStep::Repeat { from: 0, times: 2 },
            ]);
        }
        let from = steps.len() as u32;
        steps.extend([
            ProgramStep::Compute(compute),
            ProgramStep::Take(0),
            ProgramStep::Repeat { from, times: self.barriers },
            ProgramStep::Repeat { from: 0, times: iterations },
        ]);
        let barrier = SyncKind::Barrier { parties: threads };
        let mut syncs = vec![Sync { kind: barrier, waits: Waiting::SpinThenSleep }];
        if self.planes > 0 {
            let flag = |initial| Sync { kind: SyncKind::Tokens { initial }, waits: Waiting::Spin };
            syncs.extend((0..=threads).map(|nth| flag(if nth == 0 { u32::MAX } else { 0 })));
            syncs.extend((0..=threads).map(|nth| flag(if nth == threads { u32::MAX } else { 1 })));
        }
        let worker = ThreadKind {
            name: self.name.to_owned(),
            count: 1,
            start_core: core,
            session: None,
            steps: with_forks(&steps, threads - 1),
        };
        let others = ThreadKind { count: 0, start_core: None, steps, ..worker.clone() };
        Program { kinds: vec![worker, others], syncs, sync_names: Vec::new() }
    }
}

/// The same steps after forks of so many threads of kind 1.
fn with_forks(steps: &[ProgramStep], forks: u32) -> Vec<ProgramStep> {
    let begins = std::iter::repeat_n(ProgramStep::Fork(1), forks as usize);
    let shifted = steps.iter().map(|step| match *step {
        ProgramStep::Repeat { from, times } => ProgramStep::Repeat { from: from + forks, times },
        step => step,
    });
    begins.chain(shifted).collect()
}

/// `make` with so many jobs at once: a thread that forks compilations, and between stages of them links alone.
pub fn make(jobs: u32, stages: u32, core: Option<quell_model::CoreId>) -> Program {
    // Assumed: compilations of C files take 0.5 s on average, after a shell and a driver; each stage has ten a job.
    let compile = Service::Lognormal { mean: Nanos::from_millis(500), sigma: 800 };
    let ms =
        |ms| ProgramStep::Compute(Service::Lognormal { mean: Nanos::from_millis(ms), sigma: 300 });
    let per_stage = jobs * 10;
    let coordinator = vec![
        // A slot of -j, some parsing of the makefile, a job.
        ProgramStep::Take(0),
        ms(1),
        ProgramStep::Fork(1),
        ProgramStep::Repeat { from: 0, times: per_stage },
        // All of the stage have ended.
        ProgramStep::Take(1),
        ProgramStep::Repeat { from: 4, times: per_stage },
        ms(1_000),
        ProgramStep::Repeat { from: 0, times: stages },
    ];
    let job = vec![
        ProgramStep::Exec,
        ms(4),
        ProgramStep::Exec,
        ProgramStep::Compute(compile),
        ProgramStep::Exec,
        ms(40),
        ProgramStep::Post(0),
        ProgramStep::Post(1),
    ];
    let kind = |name: &str, count, start_core, steps| ThreadKind {
        name: name.to_owned(),
        count,
        start_core,
        session: None,
        steps,
    };
    let tokens = |initial| Sync { kind: SyncKind::Tokens { initial }, waits: Waiting::Sleep };
    Program {
        kinds: vec![kind("make", 1, core, coordinator), kind("cc", 0, None, job)],
        syncs: vec![tokens(jobs), tokens(0)],
        sync_names: ["slots", "ended"].map(str::to_owned).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_programs_are_sound() {
        for nas in &NAS {
            for threads in [1, 16, 64] {
                assert_eq!(nas.program(threads, None, 100).check(), Ok(()), "{}", nas.name);
            }
        }
        assert_eq!(make(64, 2, None).check(), Ok(()));
        assert_eq!(nas_of("lu").map(|nas| nas.planes), Some(160));
    }
}
