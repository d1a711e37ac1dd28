//! The commercial database of "A Decade of Wasted Cores" (EuroSys'16, section 3.3) under TPC-H, from its structure.
//!
//! The paper has 64 workers, one for each core, in containers of different sizes; each container is a session. Workers wait for
//! each other all the time. A query goes through parts, in which every worker has its own share of the work: it computes, and
//! takes a latch on shared data for each piece of it. The part ends when all are done. Which containers there are, how parts
//! divide and what latches protect is not published: what is here is assumed. The times are set so that queue sizes change some
//! 60,200 times a second (section 4.2), and the numbers of parts so that the queries take 43.3 and 465.6 s with both fixes (table
//! 2). What a bug costs is in no parameter.

use quell_model::{CoreId, Nanos};

use super::{Program, ProgramStep, Service, Sync, SyncKind, ThreadKind, Waiting};

/// One of the paper's two measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// Parts, one after the other.
    pub parts: u32,
    /// After each of them comes one that has work for half of the workers.
    pub has_small_parts: bool,
}

/// Query 18, which suffers most.
pub const Q18: Query = Query { parts: 135, has_small_parts: false };

/// All 22 queries.
pub const ALL: Query = Query { parts: 796, has_small_parts: true };

/// The query of a workload.
pub fn query_of(model: &str) -> Option<Query> {
    match model {
        "tpch" => Some(Q18),
        "tpch-all" => Some(ALL),
        _ => None,
    }
}

/// Shares of the workers that the containers have, in sixteenths.
const CONTAINERS: [u32; 4] = [2, 3, 5, 6];

/// What a worker computes for a piece of its work, without a latch and under one.
const COMPUTES: Service = Service::Lognormal { mean: Nanos::from_millis(1), sigma: 500 };
const HOLDS_LATCH: Service = Service::Fixed(Nanos::from_micros(80));

/// Pieces of a worker in a part.
const PIECES: u32 = 150;

/// Latches.
const LATCHES: u32 = 8;

/// The sync after the latches: where parts end.
const PART_ENDS: u32 = LATCHES;

impl Query {
    /// With so many workers, forked by one thread that starts on `core`; `permille` thousandths of its parts.
    pub fn program(&self, workers: u32, core: Option<CoreId>, permille: u32) -> Program {
        let parts = (u64::from(self.parts) * u64::from(permille)).div_ceil(1_000).max(1) as u32;
        let listener = ThreadKind {
            name: "listener".to_owned(),
            count: 1,
            start_core: core,
            session: None,
            steps: (1..=workers).map(ProgramStep::Fork).collect(),
        };
        let worker = |nth: u32| ThreadKind {
            name: "worker".to_owned(),
            count: 0,
            start_core: None,
            session: Some(container_of(nth, workers)),
            steps: self.steps(nth, parts),
        };
        let sync = |kind| Sync { kind, waits: Waiting::Sleep };
        let latch = sync(SyncKind::Tokens { initial: 1 });
        let mut syncs = vec![latch; LATCHES as usize];
        syncs.push(sync(SyncKind::Barrier { parties: workers }));
        Program {
            kinds: std::iter::once(listener).chain((0..workers).map(worker)).collect(),
            syncs,
            sync_names: Vec::new(),
        }
    }

    /// What the n-th worker does.
    fn steps(&self, nth: u32, parts: u32) -> Vec<ProgramStep> {
        let latch = nth % LATCHES;
        let piece = [
            ProgramStep::Compute(COMPUTES),
            ProgramStep::Take(latch),
            ProgramStep::Compute(HOLDS_LATCH),
            ProgramStep::Post(latch),
        ];
        let mut steps = Vec::new();
        let mut add_part = |has_work: bool| {
            if has_work {
                let from = steps.len() as u32;
                steps.extend(piece);
                steps.push(ProgramStep::Repeat { from, times: PIECES });
            }
            steps.push(ProgramStep::Take(PART_ENDS));
        };
        add_part(true);
        if self.has_small_parts {
            // Half of those that share a latch.
            add_part((nth / LATCHES).is_multiple_of(2));
        }
        steps.push(ProgramStep::Repeat { from: 0, times: parts });
        steps
    }
}

/// The container of a worker.
fn container_of(nth: u32, workers: u32) -> u32 {
    let place = nth * CONTAINERS.iter().sum::<u32>() / workers;
    let ends = CONTAINERS.iter().scan(0, |end, share| {
        *end += share;
        Some(*end)
    });
    ends.take_while(|end| *end <= place).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_fill_containers() {
        let sizes = |workers: u32| {
            let mut sizes = [0; 4];
            (0..workers).for_each(|nth| sizes[container_of(nth, workers) as usize] += 1);
            sizes
        };
        assert_eq!(sizes(64), [8, 12, 20, 24]);
        assert_eq!(sizes(16), CONTAINERS);
        assert_eq!(sizes(1).iter().sum::<u32>(), 1);
    }

    #[test]
    fn queries_are_sound_with_any_number_of_workers() {
        for query in [Q18, ALL] {
            for workers in [1, 7, 64] {
                let program = query.program(workers, None, 20);
                assert_eq!(program.check(), Ok(()));
                assert_eq!(program.threads(), 1);
                assert_eq!(program.kinds.len() as u32, 1 + workers);
            }
        }
    }
}
