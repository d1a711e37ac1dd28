//! The hardware: what cores share, and how they slow each other down.
//!
//! Everything is integer arithmetic in 1/1,024ths, so that every platform computes the same. Each running thread has a
//! *stretch*: how many times as long it takes as it would alone on an idle host. It is a product of what its
//! sibling does ([`smt`]) and of what its memory accesses wait for ([`hardware`]): the node's bandwidth, its share of the
//! last-level cache, and the clock rate, which follows from how many physical cores are at work.

pub(crate) mod hardware;
mod presets;
pub(crate) mod smt;

use quell_model::{Bytes, BytesPerSec, Nanos};

pub use presets::{PRESETS, Preset, preset};
pub use smt::Kind;

/// One, in the fixed-point numbers of the model.
pub const ONE: u64 = 1_024;

/// What the cores of a host share besides what its topology says. The default shares nothing: cores differ in nothing
/// but their number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Whether siblings slow each other down.
    pub smt: bool,
    /// The memory of each node; `None`: it never holds anybody up.
    pub memory: Option<Memory>,
    /// The size of each last-level cache; `None`: large enough for everything.
    pub cache: Option<Bytes>,
    /// The clock rate by active physical cores of a node, ascending; empty: always nominal.
    pub turbo: Vec<Turbo>,
}

/// The memory of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// What sequential reads of all cores reach together.
    pub capacity: BytesPerSec,
}

impl Memory {
    /// How fast latency grows with utilisation, in thousandths: L(u) = L0 (1 + k u / (1 - u)).
    pub const KNEE: u64 = 200;
    /// Latency grows to this many times that of an idle memory; beyond, streams are held back instead.
    pub const WORST: u64 = 5;
    /// How long after a change of demand latencies follow (measured: 2 to 4 us).
    pub const REACTION: Nanos = Nanos::from_micros(4);
}

/// A step of the clock rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turbo {
    /// Up to so many physical cores of the node at work.
    pub active: u16,
    /// The clock rate in thousandths of the nominal one.
    pub permille: u16,
}

/// How a thread uses the machine, alone on an idle host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// What it does to a sibling, and suffers from one.
    pub kind: Kind,
    /// Thousandths of its time that wait for memory.
    pub memory: u16,
    /// Memory traffic of one thread, in megabytes (10^6) a second.
    pub traffic_mb: u32,
    /// What a byte of it costs the memory, in thousandths of one of a sequential read: random reads some 1,700,
    /// writes past the cache 2,000.
    pub weight: u16,
    /// Its traffic is prefetched streams: bound by bandwidth, not by the latency of one access.
    pub streams: bool,
    /// What its task keeps using again, in bytes of last-level cache.
    pub working_set: Bytes,
    /// What happens when it gets less cache than that.
    pub reuse: Reuse,
}

/// How misses grow with the cache that is lacking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reuse {
    /// Not at all: it never uses anything twice, or fits the caches of its core.
    None,
    /// With the root of the share that is lacking (general code).
    Root,
    /// Steeply below its working set, up to eightfold (instructions, small tables).
    Knee,
}

impl Profile {
    /// Computes in registers and the caches of its core: shares nothing but the physical core.
    pub const COMPUTE: Profile = Profile {
        kind: Kind::Compute,
        memory: 0,
        traffic_mb: 0,
        weight: 1_000,
        streams: false,
        working_set: Bytes(0),
        reuse: Reuse::None,
    };

    /// How many times as many misses as with its whole working set in the cache, in 1/1,024ths.
    pub(crate) fn misses(&self, occupied: u64) -> u64 {
        let (wanted, has) = (self.working_set.0, occupied.max(1));
        if has >= wanted {
            return ONE;
        }
        match self.reuse {
            Reuse::None => ONE,
            // 1 / sqrt(has / wanted); the operands stay far below 2^64 (caches below 2^40 bytes).
            Reuse::Root => (wanted * ONE / has * ONE).isqrt().min(8 * ONE),
            Reuse::Knee => ONE + 7 * ONE * (wanted - has) / wanted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_grow_as_the_cache_shrinks() {
        let sized = |reuse| Profile { working_set: Bytes(4 << 20), reuse, ..Profile::COMPUTE };
        assert_eq!(sized(Reuse::Root).misses(4 << 20), ONE);
        assert_eq!(sized(Reuse::Root).misses(1 << 20), 2 * ONE);
        assert_eq!(sized(Reuse::Knee).misses(0).div_ceil(ONE), 8);
        assert_eq!(sized(Reuse::None).misses(0), ONE);
    }
}
