//! How many channels a peer has.

use quell_model::Nanos;

/// What a decision about the number of channels rests on: one class of one peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeerLoad {
    /// Channels that are up.
    pub channels: usize,
    /// CPU time of the busiest channel's worker since the last decision, as a share of one core.
    pub busiest_share: f64,
    /// The same, of all workers together: at most `channels`.
    pub total_share: f64,
    /// Age of the oldest byte that waits for a channel.
    pub backlog_age: Nanos,
    /// The transport itself waits: for its congestion window or the peer's window (TCP_INFO's `tcpi_busy_time` parts), so
    /// that one channel more would only share the same network.
    pub is_network_limited: bool,
    /// Cores that may run workers.
    pub cores: usize,
}

/// A decision, with its reason for `stats()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Channels that the peer should have.
    pub channels: usize,
    /// Why.
    pub reason: &'static str,
}

/// The second decision of the scheduler, on a coarse timescale.
pub trait ChannelCount: Send {
    /// How many channels there should be.
    fn target(&mut self, now: Nanos, load: &PeerLoad) -> Target;
}

/// Always the same number.
#[derive(Clone, Copy, Debug)]
pub struct Fixed(pub usize);

impl ChannelCount for Fixed {
    fn target(&mut self, _now: Nanos, _load: &PeerLoad) -> Target {
        Target { channels: self.0.max(1), reason: "fixed by configuration" }
    }
}

/// One more where a worker has used most of its core for a time while bytes waited, and the network is not the limit; one
/// fewer where the rest could carry all for a longer time.
#[derive(Clone, Copy, Debug)]
pub struct ByUtilization {
    /// Share of a core above which a worker is the limit.
    pub high: f64,
    /// Share of each core that the rest would use at most, for one channel to go.
    pub low: f64,
    /// Age of the backlog below which nothing waits.
    pub age: Nanos,
    /// How long the need for one more has to last.
    pub grow_after: Nanos,
    /// How long the need for one fewer has to last.
    pub shrink_after: Nanos,
    /// Channels at most.
    pub max: usize,
    since: Option<(Change, Nanos)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Grow,
    Shrink,
}

impl ByUtilization {
    /// At most `max` channels.
    pub fn new(max: usize) -> ByUtilization {
        ByUtilization {
            high: 0.85,
            low: 0.6,
            age: Nanos::from_micros(200),
            grow_after: Nanos::from_millis(20),
            shrink_after: Nanos::from_millis(500),
            max: max.max(1),
            since: None,
        }
    }

    fn wish(&self, load: &PeerLoad) -> (Option<Change>, &'static str) {
        let most = self.max.min(load.cores.max(1));
        if load.channels < 1 {
            return (Some(Change::Grow), "a peer has at least one channel");
        }
        if load.channels > most {
            return (Some(Change::Shrink), "more channels than cores, or than the maximum");
        }
        let rest = load.channels.saturating_sub(1);
        if rest > 0 && load.total_share <= self.low * rest as f64 {
            return (Some(Change::Shrink), "the others can carry all");
        }
        if load.busiest_share < self.high || load.backlog_age < self.age {
            return (None, "its workers keep up");
        }
        if load.is_network_limited {
            return (None, "the network is the limit, not a worker's core");
        }
        if load.channels >= most {
            return (None, "its workers are busy, but there is no core for one more");
        }
        (Some(Change::Grow), "a worker's core is the limit")
    }
}

impl ChannelCount for ByUtilization {
    fn target(&mut self, now: Nanos, load: &PeerLoad) -> Target {
        let (wish, reason) = self.wish(load);
        let stay = Target { channels: load.channels.max(1), reason };
        let Some(change) = wish else {
            self.since = None;
            return stay;
        };
        let since = match self.since {
            Some((known, since)) if known == change => since,
            _ => now,
        };
        self.since = Some((change, since));
        let (after, channels) = match change {
            Change::Grow => (self.grow_after, load.channels + 1),
            Change::Shrink => (self.shrink_after, load.channels.saturating_sub(1).max(1)),
        };
        if now.since(since) < after && load.channels > 0 {
            return stay;
        }
        self.since = None;
        Target { channels, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: PeerLoad = PeerLoad {
        channels: 1,
        busiest_share: 0.95,
        total_share: 0.95,
        backlog_age: Nanos::from_millis(1),
        is_network_limited: false,
        cores: 4,
    };

    /// The number of channels after `millis` of a load, asked each 10 ms.
    fn after(policy: &mut ByUtilization, from: u64, millis: u64, load: PeerLoad) -> usize {
        let mut channels = load.channels;
        for at in (from..from + millis).step_by(10) {
            let share = load.total_share / channels as f64;
            let load = PeerLoad { channels, busiest_share: load.busiest_share.min(share), ..load };
            channels = policy.target(Nanos::from_millis(at), &load).channels;
        }
        channels
    }

    #[test]
    fn channels_go_from_one_to_many_and_back() {
        let mut policy = ByUtilization::new(8);
        let many = PeerLoad { total_share: 3.6, busiest_share: 1.0, ..BUSY };
        assert_eq!(after(&mut policy, 0, 1_000, many), 4);
        let idle = PeerLoad {
            channels: 4,
            total_share: 0.1,
            busiest_share: 0.1,
            backlog_age: Nanos::ZERO,
            ..BUSY
        };
        assert_eq!(after(&mut policy, 1_000, 3_000, idle), 1);
    }

    #[test]
    fn short_bursts_and_a_full_network_open_no_channel() {
        let mut policy = ByUtilization::new(8);
        assert_eq!(after(&mut policy, 0, 20, BUSY), 1);
        let quiet = PeerLoad { backlog_age: Nanos::ZERO, ..BUSY };
        assert_eq!(after(&mut policy, 20, 20, quiet), 1);
        assert_eq!(after(&mut policy, 40, 20, BUSY), 1);
        let limited = PeerLoad { is_network_limited: true, ..BUSY };
        assert_eq!(after(&mut policy, 60, 5_000, limited), 1);
        assert!(policy.target(Nanos::from_secs(9), &limited).reason.contains("network"));
    }

    #[test]
    fn load_between_the_two_bounds_changes_nothing() {
        let mut policy = ByUtilization::new(8);
        let steady = PeerLoad { channels: 2, total_share: 1.3, busiest_share: 0.65, ..BUSY };
        assert_eq!(after(&mut policy, 0, 10_000, steady), 2);
    }

    #[test]
    fn two_cores_have_two_channels_at_most() {
        let mut policy = ByUtilization::new(8);
        let load = PeerLoad { cores: 2, total_share: 8.0, busiest_share: 1.0, ..BUSY };
        assert_eq!(after(&mut policy, 0, 5_000, load), 2);
    }
}
