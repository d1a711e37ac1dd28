//! How fast a channel of bulk data sends over a link that is slower than the host.
//!
//! TCP fills the queue in front of the slowest link, and short messages wait in it: 9 ms at 1 Gbit/s on the development
//! machine. A channel whose round trips became longer sends a little less than what has arrived at the other end of late.
//! Its queue is then in its own process, where the latency class goes first.

use quell_model::Nanos;

/// What a transport knows of its path (`TCP_INFO`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathSample {
    /// Smoothed round-trip time.
    pub rtt: Nanos,
    /// The shortest of the last minutes.
    pub min_rtt: Nanos,
    /// Bytes that have arrived so far.
    pub delivered_bytes: u64,
    /// It has more to send than the network has taken.
    pub is_backlogged: bool,
}

/// Samples in a row of which the shortest counts: one that comes late is no queue.
const STANDING: usize = 4;
/// Samples over which the rate is taken of what arrives: it comes in bursts.
const WINDOW: usize = 8;
/// Samples that are further apart are not of one time: the channel had nothing to send meanwhile.
const GAP: Nanos = Nanos::from_millis(20);
/// The queue that is let stand, as time that a byte waits in it; a quarter of the shortest round trip where that is more.
const QUEUE_MAX: Nanos = Nanos::from_micros(500);
/// The same, as bytes: on slow links a few segments are no queue.
const QUEUE_MAX_BYTES: u64 = 8 * 1_500;
/// A sample is forgotten by this part of its rate with each later one.
const FORGETS_BY: u64 = 8_192;
/// A queue so many times longer is drained at half of the capacity, others at three quarters.
const DEEP: u64 = 8;
/// Time for the queue to go, and round trips that it takes at least.
const DRAIN_WITHIN: Nanos = Nanos::from_millis(20);
const DRAIN_ROUND_TRIPS: u64 = 8;
/// Times that the queue is drained in vain before it is taken for that of others.
const DRAINS_MAX: u32 = 4;
/// How long a channel does not look for a queue that is others'.
const GIVE_UP_FOR: Nanos = Nanos::from_secs(1);
/// How often a channel tries whether the link carries more, and where it has carried more of late.
const PROBE_EVERY: Nanos = Nanos::from_millis(200);
const PROBE_SOON: Nanos = Nanos::from_millis(25);
/// It goes a step faster after this time, or a round trip.
const STEP_AFTER: Nanos = Nanos::from_millis(4);
/// A step is the geometric mean of this many bytes per second and of the rate: it is a smaller part of a higher rate, so that
/// channels that share a link come to share it evenly.
const STEP_BASE: u64 = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// As fast as its transport sends. Queues do not matter before that time.
    Free { until: Nanos },
    /// So slowly that the queue goes.
    Drain(Drain),
    /// A little slower than the link.
    Cruise { capacity: u64, probe_at: Nanos },
    /// Ever faster, until there is a queue.
    Probe { capacity: u64, rate: u64, step_at: Nanos },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Drain {
    capacity: u64,
    since: Nanos,
    /// Bytes that had arrived then.
    delivered_bytes: u64,
    until: Nanos,
    times: u32,
}

/// The rate of one channel. See the module.
#[derive(Clone, Debug)]
pub struct Pacer {
    phase: Phase,
    /// The last samples, with their times.
    recent: [(Nanos, PathSample); WINDOW],
    /// Samples so far.
    seen: usize,
    /// Bytes per second that the link has carried at most, forgotten in the course of seconds.
    fastest: u64,
    /// It drains a queue that is far too long.
    is_deep: bool,
}

impl Default for Pacer {
    fn default() -> Pacer {
        let phase = Phase::Free { until: Nanos::ZERO };
        let none = PathSample {
            rtt: Nanos::ZERO,
            min_rtt: Nanos::ZERO,
            delivered_bytes: 0,
            is_backlogged: false,
        };
        Pacer { phase, recent: [(Nanos::ZERO, none); WINDOW], seen: 0, fastest: 0, is_deep: false }
    }
}

impl Pacer {
    /// Takes a sample of the path, a millisecond or so after the last. Returns bytes per second; `None`: no limit.
    pub fn sample(&mut self, now: Nanos, sample: &PathSample) -> Option<u64> {
        let last = self.recent[(self.seen + WINDOW - 1) % WINDOW].0;
        if now.since(last) > GAP {
            self.seen = 0;
        }
        self.recent[self.seen % WINDOW] = (now, *sample);
        self.seen += 1;
        if self.seen < WINDOW {
            return self.rate();
        }
        let last = (0..STANDING).map(|back| self.recent[(self.seen - 1 - back) % WINDOW].1.rtt);
        let queue = last.min().unwrap_or(sample.rtt).since(sample.min_rtt);
        let (from, oldest) = self.recent[self.seen % WINDOW];
        let delivered = rate_of(sample, oldest.delivered_bytes, now.since(from));
        self.fastest = delivered.max(self.fastest - self.fastest / FORGETS_BY);
        let segments = QUEUE_MAX_BYTES * 1_000_000_000 / self.fastest.max(STEP_BASE);
        let queue_max = QUEUE_MAX.0.max(sample.min_rtt.0 / 4).max(segments);
        let queue_max = Nanos(queue_max);
        self.is_deep = queue.0 >= queue_max.0.saturating_mul(DEEP);
        self.phase = self.next(now, sample, delivered, (queue, queue_max));
        self.rate()
    }

    /// What it allows now.
    pub fn rate(&self) -> Option<u64> {
        let rate = match self.phase {
            Phase::Free { .. } => return None,
            Phase::Drain(drain) if self.is_deep => drain.capacity / 2,
            Phase::Drain(drain) => drain.capacity / 4 * 3,
            Phase::Cruise { capacity, .. } => capacity / 32 * 31,
            Phase::Probe { rate, .. } => rate,
        };
        // A channel that sends nothing would learn nothing.
        Some(rate.max(STEP_BASE))
    }

    fn next(
        &self,
        now: Nanos,
        sample: &PathSample,
        delivered: u64,
        (queue, queue_max): (Nanos, Nanos),
    ) -> Phase {
        // Nothing is known of a link over which nothing has come.
        let has_queue = queue >= queue_max && delivered > 0;
        let reduced = |capacity: u64| {
            // What a program sends that has no more is not what the link carries.
            if sample.is_backlogged { capacity.min(delivered) } else { capacity }
        };
        let (from, _) = self.recent[self.seen % WINDOW];
        let drain = |capacity, times| {
            let time = DRAIN_WITHIN.0.max(sample.rtt.0.saturating_mul(DRAIN_ROUND_TRIPS));
            let (delivered_bytes, until) = (sample.delivered_bytes, after(now, Nanos(time)));
            let capacity = STEP_BASE.max(capacity);
            Phase::Drain(Drain { capacity, since: now, delivered_bytes, until, times })
        };
        let cruise = |capacity: u64| {
            let has_carried_more = capacity < self.fastest / 8 * 7;
            let probe_at = after(now, if has_carried_more { PROBE_SOON } else { PROBE_EVERY });
            Phase::Cruise { capacity, probe_at }
        };
        let step_at = after(now, STEP_AFTER.max(sample.rtt));
        match self.phase {
            Phase::Free { until } if now >= until && has_queue && sample.is_backlogged => {
                drain(delivered, 1)
            }
            Phase::Drain(it) if queue.0 < queue_max.0 / 2 => cruise(it.capacity),
            Phase::Drain(it) if now >= it.until && it.times >= DRAINS_MAX => {
                Phase::Free { until: after(now, GIVE_UP_FOR) }
            }
            Phase::Drain(it) if now >= it.until => drain(reduced(it.capacity), it.times + 1),
            // While its queue stands the link carries what it can.
            Phase::Drain(it) if from >= it.since => {
                let carried = rate_of(sample, it.delivered_bytes, now.since(it.since));
                Phase::Drain(Drain { capacity: it.capacity.max(carried), ..it })
            }
            Phase::Cruise { capacity, .. } if has_queue => drain(reduced(capacity), 1),
            Phase::Cruise { capacity, probe_at } if now >= probe_at => match sample.is_backlogged {
                true => Phase::Probe { capacity, rate: capacity, step_at },
                false => cruise(capacity),
            },
            Phase::Probe { capacity, rate, .. } if has_queue => {
                drain(delivered.clamp(capacity / 8 * 7, rate), 1)
            }
            Phase::Probe { rate, .. } if rate / 2 > self.fastest => {
                // Something else limits it now: its peer, or this host.
                Phase::Free { until: now }
            }
            Phase::Probe { capacity, .. } if !sample.is_backlogged => {
                cruise(capacity.max(delivered))
            }
            Phase::Probe { capacity, rate, step_at: at } if now >= at => {
                let step = (rate.saturating_mul(STEP_BASE)).isqrt();
                Phase::Probe { capacity, rate: rate.saturating_add(step), step_at }
            }
            phase => phase,
        }
    }
}

/// Bytes per second that have arrived in so much time, since so many had.
fn rate_of(sample: &PathSample, before: u64, time: Nanos) -> u64 {
    let bytes = u128::from(sample.delivered_bytes.saturating_sub(before));
    u64::try_from(bytes * 1_000_000_000 / u128::from(time.0.max(1))).unwrap_or(u64::MAX)
}

fn after(now: Nanos, time: Nanos) -> Nanos {
    Nanos(now.0.saturating_add(time.0))
}
