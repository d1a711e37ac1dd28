//! How many channels of the throughput class a peer has: a policy decides, and the side that has opened them opens further
//! ones, or gives some up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quell_model::Nanos;
use quell_net_engine::scheduler::{ChannelCount, PeerLoad, Target};
use quell_net_engine::{Class, Key};

use crate::channel::Channel;
use crate::core::Core;
use crate::endpoint::Peer;
use crate::stats::{Origin, PeerStats};

/// Makes a policy for a peer.
pub type NewCount = Arc<dyn Fn() -> Box<dyn ChannelCount> + Send + Sync>;

/// The interval of decisions while channels are in use.
const DECIDE_EVERY: Nanos = Nanos::from_millis(10);
/// The same while none is, and a peer has more than one.
const DECIDE_IDLE: Nanos = Nanos::from_millis(100);

/// The decisions of an endpoint.
pub(crate) struct Counts {
    new_policy: Option<NewCount>,
    peers: BTreeMap<Key, Decider>,
    last: Option<Nanos>,
    cores: usize,
}

/// Of one peer.
struct Decider {
    policy: Box<dyn ChannelCount>,
    /// Time in each channel's transport up to the last decision.
    busy: BTreeMap<Key, Duration>,
}

impl Counts {
    /// Peers get such a policy; none decides if `None`.
    pub fn new(new_policy: Option<NewCount>) -> Counts {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Counts { new_policy, peers: BTreeMap::new(), last: None, cores }
    }

    /// Whether it is time for decisions.
    pub fn is_due(&self, now: Nanos) -> bool {
        let is_over = self.last.is_none_or(|last| now.since(last) >= DECIDE_EVERY);
        self.new_policy.is_some() && is_over
    }

    /// When to look next for the sake of decisions.
    pub fn next_look(&self, is_busy: bool, now: Nanos) -> Option<Nanos> {
        let has_several = self.peers.values().any(|peer| peer.busy.len() > 1);
        let every = if is_busy { DECIDE_EVERY } else { DECIDE_IDLE };
        has_several.then(|| Nanos(now.0.saturating_add(every.0)))
    }

    /// Decides for all peers. Channels that are too many are given up. Returns the peers that have too few.
    pub fn look(&mut self, core: &mut Core, now: Nanos) -> Vec<Key> {
        let Some(new_policy) = &self.new_policy else { return Vec::new() };
        let time = self.last.replace(now).map_or(Nanos::ZERO, |last| now.since(last));
        let opened = core.routes.values().flatten().filter(|route| route.rendezvous.is_some());
        let mut peers: Vec<Key> = opened.map(|route| route.peer).collect();
        // One may be reached by several addresses.
        peers.sort_unstable();
        peers.dedup();
        self.peers.retain(|peer, _| peers.contains(peer));
        let mut lacking = Vec::new();
        for peer in peers {
            let decider = self
                .peers
                .entry(peer)
                .or_insert_with(|| Decider { policy: new_policy(), busy: BTreeMap::new() });
            let load = PeerLoad { cores: self.cores, ..decider.load(core, peer, time, now) };
            let mut target = decider.policy.target(now, &load);
            if let Some(wanted) = core.targets.get(&peer)
                && core.reopening.contains(&peer)
                && wanted.channels > load.channels
                && target.channels >= load.channels
            {
                // The thread that opens channels has not come to it yet.
                target = *wanted;
            }
            core.targets.insert(peer, target);
            if target.channels > load.channels {
                lacking.push(peer);
            }
            core.give_up_channels(peer, target.channels);
        }
        lacking
    }
}

impl Decider {
    /// What a peer's channels have done in so much time.
    fn load(&mut self, core: &Core, peer: Key, time: Nanos, now: Nanos) -> PeerLoad {
        let staying: Vec<(Key, &Channel)> =
            core.opened(peer).filter_map(|key| Some((key, core.channels.get(key)?))).collect();
        let busy = staying.iter().map(|(key, it)| (*key, it.sent.time + it.received.time));
        let busy: BTreeMap<Key, Duration> = busy.collect();
        let share = |(key, busy): (&Key, &Duration)| {
            let spent = busy.saturating_sub(self.busy.get(key).copied().unwrap_or(*busy));
            if time > Nanos::ZERO { spent.as_nanos() as f64 / time.0 as f64 } else { 0.0 }
        };
        let shares: Vec<f64> = busy.iter().map(share).collect();
        self.busy = busy;
        let ages =
            staying.iter().filter_map(|(_, it)| it.waits_since).map(|since| now.since(since));
        PeerLoad {
            channels: staying.len(),
            busiest_share: shares.iter().copied().fold(0.0, f64::max),
            total_share: shares.iter().sum(),
            backlog_age: ages.max().unwrap_or(Nanos::ZERO),
            // Its queue is in this process because a link carries no more.
            is_network_limited: staying.iter().any(|(_, it)| it.pace.is_some()),
            cores: 0,
        }
    }
}

impl Core {
    /// The channels of a class that are not being given up.
    pub fn staying(&self, peer: Key, class: Class) -> impl Iterator<Item = Key> {
        let of_class = self.engine.channels(peer).filter(move |(_, of)| *of == class);
        of_class.map(|(key, _)| key).filter(|key| !self.engine.is_leaving(*key))
    }

    /// Those of the throughput class that this side has opened: the other side decides about its own.
    fn opened(&self, peer: Key) -> impl Iterator<Item = Key> {
        let is_ours = |key: &Key| {
            self.channels.get(*key).is_some_and(|channel| channel.origin == Origin::Configured)
        };
        self.staying(peer, Class::Throughput).filter(is_ours)
    }

    /// Whether this side is to open a channel of a class: by policy, or because there are fewer than are configured.
    pub fn lacks_channel(&self, peer: Key, class: Class, configured: usize) -> bool {
        match self.targets.get(&peer) {
            Some(target) if class == Class::Throughput => {
                self.opened(peer).count() < target.channels
            }
            _ => self.staying(peer, class).count() < configured,
        }
    }

    /// Gives up the youngest channels of the throughput class beyond so many.
    fn give_up_channels(&mut self, peer: Key, wanted: usize) {
        let opened: Vec<Key> = self.opened(peer).collect();
        for key in opened.into_iter().skip(wanted.max(1)) {
            self.engine.retire(key);
        }
    }

    /// What was decided for each peer.
    pub fn peer_stats(&self) -> Vec<PeerStats> {
        let stats = |peer: Key| {
            let there = self.staying(peer, Class::Throughput).count();
            let target = self.targets.get(&peer).copied().unwrap_or(Target {
                channels: there,
                reason: "as many as were opened: no policy decides it here",
            });
            let (throughput_channels, reason) = (target.channels, target.reason);
            PeerStats { peer: Peer(peer), throughput_channels, reason }
        };
        let mut peers: Vec<Key> = self.routes.values().flatten().map(|route| route.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        peers.into_iter().map(stats).collect()
    }
}
