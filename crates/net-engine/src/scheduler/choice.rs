//! Which channel carries a socket's next chunk.

use quell_model::Nanos;

/// What a socket asks a channel for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The stream's number, and so the same for all its chunks.
    pub stream: u64,
    /// Bytes of this socket that wait for a channel.
    pub remaining: u64,
    /// The channel of its last chunk, as an index into the list.
    pub last: Option<usize>,
    /// Bytes in a row on that one.
    pub run_bytes: u64,
}

/// A channel that may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelLoad {
    /// Bytes that wait for it: sockets' chunks that were assigned, and what its transport has not sent.
    pub backlog_bytes: u64,
    /// It takes nothing now.
    pub is_full: bool,
    /// Time that a byte needs to the peer and back, as far as the transport knows.
    pub rtt: Nanos,
}

/// The first decision of the scheduler.
pub trait ChannelChoice: Send {
    /// The channel for the socket's next chunk, as an index into `channels`, which has at least one entry.
    fn choose(&mut self, demand: &Demand, channels: &[ChannelLoad]) -> usize;

    /// Why a socket has its channel, for statistics.
    fn reason(&self) -> &'static str {
        "the program's own policy chose it"
    }
}

/// A socket stays on one channel, which its number decides: nothing is reordered. The default of the authors' code.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hash;

impl ChannelChoice for Hash {
    fn choose(&mut self, demand: &Demand, channels: &[ChannelLoad]) -> usize {
        // Fibonacci hashing: numbers of one opener are two apart.
        let mixed = demand.stream.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        ((mixed * channels.len() as u64) >> 32) as usize
    }

    fn reason(&self) -> &'static str {
        "its number decides"
    }
}

/// A socket goes on to the next channel that takes more after this many bytes. The authors' code does so after six chunks.
#[derive(Clone, Copy, Debug)]
pub struct RoundRobin {
    /// Bytes in a row.
    pub run_bytes: u64,
}

impl Default for RoundRobin {
    fn default() -> RoundRobin {
        RoundRobin { run_bytes: 6 * 64 * 1024 }
    }
}

impl ChannelChoice for RoundRobin {
    fn choose(&mut self, demand: &Demand, channels: &[ChannelLoad]) -> usize {
        let count = channels.len();
        let last = match demand.last {
            Some(last) if last < count => last,
            _ => return Hash.choose(demand, channels),
        };
        if demand.run_bytes < self.run_bytes && !channels[last].is_full {
            return last;
        }
        let others = (1..=count).map(|step| (last + step) % count);
        others.into_iter().find(|index| !channels[*index].is_full).unwrap_or(last)
    }

    fn reason(&self) -> &'static str {
        "channels take turns"
    }
}

/// The channel with the fewest bytes that wait for it; a socket stays where it is unless another has less by `margin`.
#[derive(Clone, Copy, Debug)]
pub struct LeastBacklog {
    /// Bytes.
    pub margin: u64,
}

impl Default for LeastBacklog {
    fn default() -> LeastBacklog {
        LeastBacklog { margin: 128 * 1024 }
    }
}

impl ChannelChoice for LeastBacklog {
    fn choose(&mut self, demand: &Demand, channels: &[ChannelLoad]) -> usize {
        let key = |index: usize| (channels[index].is_full, channels[index].backlog_bytes);
        let least = (0..channels.len()).min_by_key(|index| key(*index)).unwrap_or_default();
        match demand.last.filter(|last| *last < channels.len()) {
            Some(last)
                if channels[last].is_full == channels[least].is_full
                    && channels[last].backlog_bytes
                        <= channels[least].backlog_bytes.saturating_add(self.margin) =>
            {
                last
            }
            _ => least,
        }
    }

    fn reason(&self) -> &'static str {
        "the fewest bytes waited for it"
    }
}

/// Sockets with little left take the channel with the least backlog, those with much the one with the most: short
/// transfers do not wait behind long ones.
#[derive(Clone, Copy, Debug)]
pub struct ShortestRemaining {
    /// Bytes up to which a socket has little left.
    pub short_bytes: u64,
}

impl Default for ShortestRemaining {
    fn default() -> ShortestRemaining {
        ShortestRemaining { short_bytes: 128 * 1024 }
    }
}

impl ChannelChoice for ShortestRemaining {
    fn choose(&mut self, demand: &Demand, channels: &[ChannelLoad]) -> usize {
        let backlog = |index: &usize| channels[*index].backlog_bytes;
        let open = || (0..channels.len()).filter(|index| !channels[*index].is_full);
        let chosen = match demand.remaining <= self.short_bytes {
            true => open().min_by_key(backlog),
            false => open().max_by_key(backlog),
        };
        chosen.unwrap_or_else(|| LeastBacklog { margin: 0 }.choose(demand, channels))
    }

    fn reason(&self) -> &'static str {
        "sockets that have little left to send are kept apart from others"
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn load(backlog_bytes: u64, is_full: bool) -> ChannelLoad {
        ChannelLoad { backlog_bytes, is_full, rtt: Nanos::ZERO }
    }

    fn demand(remaining: u64, last: Option<usize>, run_bytes: u64) -> Demand {
        Demand { stream: 41, remaining, last, run_bytes }
    }

    #[test]
    fn hash_spreads_sockets_and_keeps_each_on_its_channel() {
        let channels = [load(0, false), load(0, false), load(0, false)];
        let mut counts = [0; 3];
        for stream in (1..2_000).step_by(2) {
            let demand = Demand { stream, ..demand(1, None, 0) };
            let first = Hash.choose(&demand, &channels);
            assert_eq!(Hash.choose(&Demand { last: Some(2), ..demand }, &channels), first);
            counts[first] += 1;
        }
        assert!(counts.iter().all(|count| (200..500).contains(count)), "{counts:?}");
    }

    #[test]
    fn round_robin_moves_on_after_its_run_and_past_full_channels() {
        let mut policy = RoundRobin { run_bytes: 100 };
        let channels = [load(0, false), load(0, true), load(0, false)];
        assert_eq!(policy.choose(&demand(1, Some(0), 99), &channels), 0);
        assert_eq!(policy.choose(&demand(1, Some(0), 100), &channels), 2);
        let full = [load(0, true); 3];
        assert_eq!(policy.choose(&demand(1, Some(1), 100), &full), 1);
    }

    #[test]
    fn least_backlog_moves_only_for_a_margin() {
        let mut policy = LeastBacklog { margin: 50 };
        let channels = [load(150, false), load(100, false)];
        assert_eq!(policy.choose(&demand(1, Some(0), 0), &channels), 0);
        assert_eq!(policy.choose(&demand(1, None, 0), &channels), 1);
        let channels = [load(151, false), load(100, false)];
        assert_eq!(policy.choose(&demand(1, Some(0), 0), &channels), 1);
        let channels = [load(10, true), load(100, false)];
        assert_eq!(policy.choose(&demand(1, Some(0), 0), &channels), 1);
    }

    #[test]
    fn short_transfers_do_not_wait_behind_long_ones() {
        let mut policy = ShortestRemaining { short_bytes: 100 };
        let channels = [load(500, false), load(10, false)];
        assert_eq!(policy.choose(&demand(100, None, 0), &channels), 1);
        assert_eq!(policy.choose(&demand(101, None, 0), &channels), 0);
    }

    proptest! {
        #[test]
        fn every_policy_chooses_a_channel_that_exists(
            stream: u64,
            remaining: u64,
            last in proptest::option::of(0usize..9),
            run_bytes: u64,
            channels in proptest::collection::vec((any::<u64>(), any::<bool>()), 1..6),
        ) {
            let channels: Vec<_> =
                channels.into_iter().map(|(backlog, full)| load(backlog, full)).collect();
            let demand = Demand { stream, remaining, last, run_bytes };
            let policies: [&mut dyn ChannelChoice; 4] = [
                &mut Hash,
                &mut RoundRobin::default(),
                &mut LeastBacklog::default(),
                &mut ShortestRemaining::default(),
            ];
            for policy in policies {
                let chosen = policy.choose(&demand, &channels);
                prop_assert!(chosen < channels.len());
            }
        }
    }
}
