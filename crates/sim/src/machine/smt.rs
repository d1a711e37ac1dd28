//! Siblings: what sharing a physical core costs.

use super::ONE;

/// What a core's execution units are busy with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Nothing.
    #[default]
    Idle,
    /// A runtime that looks for work.
    Poll,
    /// Arithmetic.
    Compute,
    /// Streams through the caches of its core.
    CoreCache,
    /// Mostly waits for memory.
    Memory,
    /// A service: short requests, large code, kernel or packet work.
    Service,
}

/// Time multipliers in thousandths: a row is who is slowed, a column what its sibling does, in the order of
/// [`Kind`]. Estimates, anchored on PARTIES' sibling row, Caladan's 30 % more throughput of two lanes, and Heracles'
/// spin loop as the lower bound; the row `CoreCache` is assumed.
const TABLE: [[u64; 6]; 6] = [
    [1_000, 1_000, 1_000, 1_000, 1_000, 1_000],
    [1_000, 1_000, 1_000, 1_000, 1_000, 1_000],
    [1_000, 1_100, 1_750, 1_500, 1_200, 1_500],
    [1_000, 1_050, 1_500, 1_600, 1_300, 1_500],
    [1_000, 1_020, 1_150, 1_300, 1_300, 1_200],
    [1_000, 1_050, 1_500, 1_800, 1_350, 1_500],
];

/// How many times as long `own` takes beside `sibling`, in 1/1,024ths.
pub(crate) fn stretch(own: Kind, sibling: Kind) -> u64 {
    TABLE[own as usize][sibling as usize] * ONE / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_equal_services_do_a_third_more_than_one() {
        let each = stretch(Kind::Service, Kind::Service);
        assert_eq!(2 * ONE * 100 / each, 133);
    }

    #[test]
    fn an_idle_sibling_costs_nothing() {
        let kinds = [Kind::Poll, Kind::Compute, Kind::CoreCache, Kind::Memory, Kind::Service];
        assert!(kinds.iter().all(|own| stretch(*own, Kind::Idle) == ONE));
    }
}
