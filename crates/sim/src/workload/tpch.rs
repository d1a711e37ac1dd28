//! The commercial database of "A Decade of Wasted Cores" (EuroSys'16, section 3.3) under TPC-H, from its structure.
//!
//! The paper has 64 workers, one for each core, in containers of different sizes; each container is a session. A query goes
//! through parts. In each part half of the workers produce pages and pass them to the others in turn, as joins do that
//! distribute rows by a hash; the part ends when all have done their share. So one worker that waits for a core stops all
//! producers after a while. Which containers there are, how parts divide and how many pages a consumer has room for is not
//! published: what is here is assumed. The time for a page is set so that queue sizes change some 60,200 times a second (section
//! 4.2), and the number of parts so that the queries take 43.3 and 465.6 s with both fixes (table 2). What a bug costs is in no
//! parameter.

use quell_model::{CoreId, Nanos};

use super::{Program, ProgramStep, Service, Sync, SyncKind, ThreadKind, Turns, Waiting};

/// One of the paper's two measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// Parts, one after the other.
    pub parts: u32,
    /// After each of them comes one that has work for half of the workers.
    pub has_small_parts: bool,
}

/// Query 18, which suffers most.
pub const Q18: Query = Query { parts: 156, has_small_parts: false };

/// All 22 queries.
pub const ALL: Query = Query { parts: 880, has_small_parts: true };

/// The query of a workload.
pub fn query_of(model: &str) -> Option<Query> {
    match model {
        "tpch" => Some(Q18),
        "tpch-all" => Some(ALL),
        _ => None,
    }
}

/// Shares of the workers that the containers have, in thirty-seconds.
const CONTAINERS: [u32; 4] = [4, 6, 10, 12];

/// What a worker does with a page.
const PAGE: Service = Service::Lognormal { mean: Nanos::from_micros(180), sigma: 500 };

/// Pages of a worker in a part, or a few more: all consumers get the same number.
const PAGES: u32 = 800;

/// Pages that a consumer has room for.
const AHEAD: u32 = 16;

/// The first sync: where parts end. After it come, by thread, the pages for it, and then the room that it has.
const PART_ENDS: u32 = 0;

/// What a worker does with pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Producer,
    Consumer,
}

impl Query {
    /// With so many workers, an even number, forked by one thread that starts on `core`; `permille` thousandths of its parts.
    pub fn program(&self, workers: u32, core: Option<CoreId>, permille: u32) -> Program {
        let pairs = (workers / 2).max(1);
        let threads = 2 * pairs + 1;
        let parts = (u64::from(self.parts) * u64::from(permille)).div_ceil(1_000).max(1) as u32;
        let mut kinds = vec![ThreadKind {
            name: "listener".to_owned(),
            count: 1,
            start_core: core,
            session: None,
            steps: Vec::new(),
        }];
        for container in 0..CONTAINERS.len() as u32 {
            for has_small_parts in [true, false] {
                for role in [Role::Producer, Role::Consumer] {
                    kinds.push(ThreadKind {
                        name: if role == Role::Producer { "producer" } else { "consumer" }
                            .to_owned(),
                        count: 0,
                        start_core: None,
                        session: Some(container),
                        steps: self.steps(role, has_small_parts, parts, threads),
                    });
                }
            }
        }
        // The two of a pair are forked one after the other, so that their numbers are neighbours.
        kinds[0].steps = (0..pairs)
            .flat_map(|pair| {
                let first = 1 + 4 * container_of(pair, pairs) + 2 * (pair % 2);
                [ProgramStep::Fork(first), ProgramStep::Fork(first + 1)]
            })
            .collect();
        let sync = |kind| Sync { kind, waits: Waiting::Sleep };
        let mut syncs = vec![sync(SyncKind::Barrier { parties: 2 * pairs })];
        for initial in [0, AHEAD] {
            let of_thread = sync(SyncKind::Tokens { initial });
            syncs.extend(std::iter::repeat_n(of_thread, threads as usize));
        }
        Program { kinds, syncs }
    }

    /// What a worker does, one of so many threads.
    fn steps(
        &self,
        role: Role,
        has_small_parts: bool,
        parts: u32,
        threads: u32,
    ) -> Vec<ProgramStep> {
        let (pages, room) = (PART_ENDS + 1, PART_ENDS + 1 + threads);
        let mut steps = Vec::new();
        // Of small parts every second pair is left out. Consumers have the even numbers from 2 on.
        let mut add_part = |has_work: bool, one_in: u32| {
            let consumers = (threads / 2).div_ceil(one_in);
            let turns =
                |first: u32| Turns { first: first + 2, count: consumers, stride: 2 * one_in };
            let page = match role {
                Role::Producer => [
                    ProgramStep::Compute(PAGE),
                    ProgramStep::TakeTurn(turns(room)),
                    ProgramStep::PostTurn(turns(pages)),
                ],
                Role::Consumer => [
                    ProgramStep::TakeOwn(pages),
                    ProgramStep::Compute(PAGE),
                    ProgramStep::PostOwn(room),
                ],
            };
            if has_work {
                let from = steps.len() as u32;
                steps.extend(page);
                steps.push(ProgramStep::Repeat { from, times: PAGES.next_multiple_of(consumers) });
            }
            steps.push(ProgramStep::Take(PART_ENDS));
        };
        add_part(true, 1);
        if self.has_small_parts {
            add_part(has_small_parts, 2);
        }
        steps.push(ProgramStep::Repeat { from: 0, times: parts });
        steps
    }
}

/// The container of a pair.
fn container_of(pair: u32, pairs: u32) -> u32 {
    let place = pair * CONTAINERS.iter().sum::<u32>() / pairs;
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
    fn pairs_fill_containers() {
        let sizes = |pairs: u32| {
            let mut sizes = [0; 4];
            (0..pairs).for_each(|pair| sizes[container_of(pair, pairs) as usize] += 1);
            sizes
        };
        assert_eq!(sizes(32), CONTAINERS);
        assert_eq!(sizes(16), [2, 3, 5, 6]);
        assert_eq!(sizes(1).iter().sum::<u32>(), 1);
    }

    #[test]
    fn queries_are_sound() {
        for query in [Q18, ALL] {
            let program = query.program(64, None, 20);
            assert_eq!(program.check(), Ok(()));
            assert_eq!(program.threads(), 1);
            let forks = program.kinds[0].steps.len();
            assert_eq!((forks, program.syncs.len()), (64, 1 + 2 * 65));
        }
    }
}
