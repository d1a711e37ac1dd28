//! What the kernel's own numbers mean, as tracepoints print them.

use quell_model::Rank;

/// The rank of a thread whose `prio` (`task_struct::prio`, as `sched_switch` has it) is this: negative for a
/// deadline, 0 to 98 for real-time priorities 99 to 1, above for everybody else. It does not tell SCHED_IDLE from
/// SCHED_OTHER.
pub fn rank(prio: i32, thread: i32) -> Rank {
    match prio {
        _ if thread == 0 => Rank::NOBODY,
        ..=-1 => Rank::DEADLINE,
        0..=98 => Rank::realtime((99 - prio) as u8),
        _ => Rank::FAIR,
    }
}

/// A `prio` of threads of this rank: of fair ones that of nice 0.
pub fn prio(rank: Rank) -> i32 {
    match rank.number() {
        0 => -1,
        number @ 1..=99 => i32::from(number) - 1,
        _ => 120,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_found_again_by_its_priority() {
        for rank in [Rank::DEADLINE, Rank::realtime(99), Rank::realtime(1), Rank::FAIR] {
            assert_eq!(super::rank(prio(rank), 7), rank);
        }
        assert_eq!(super::rank(prio(Rank::NOBODY), 0), Rank::NOBODY);
    }
}
