//! How much memory of this endpoint its peers may fill: flow control of streams.

use quell_model::Nanos;

/// Memory of an endpoint for what it receives, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Of all streams together.
    pub endpoint: u64,
    /// Of the streams of one peer.
    pub peer: u64,
    /// Of one stream at most.
    pub stream_max: u64,
    /// Of one stream at least: it has this whatever others use.
    pub stream_min: u64,
    /// Of the streams of one peer together, as far as they are read so fast that memory would be the limit: what a core's cache
    /// holds. More would leave it before it is read.
    pub working_set: u64,
}

impl Default for MemoryLimits {
    fn default() -> MemoryLimits {
        MemoryLimits {
            endpoint: 512 << 20,
            peer: 256 << 20,
            stream_max: 1 << 20,
            stream_min: 16 << 10,
            working_set: 2 << 20,
        }
    }
}

/// What a stream may fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Bytes that may be unread.
    size: u64,
    /// Bytes that are spoken for: the window, or what was promised beyond it before it shrank.
    reserved: u64,
    /// What was read, and when, the last time that the window was looked at.
    mark: (u64, Nanos),
    /// Since then the peer has said that it keeps the peer from sending.
    is_limiting: bool,
    /// The period in which it was last read whole.
    period: u64,
}

impl Window {
    /// Bytes that may be unread.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The peer would send more, and may not.
    pub fn note_limiting(&mut self) {
        self.is_limiting = true;
    }

    /// Whether it has said so since the window was last looked at.
    pub fn is_limiting(&self) -> bool {
        self.is_limiting
    }
}

/// What a stream has received and its application has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Bytes that have arrived in order.
    pub arrived: u64,
    /// Bytes that were read.
    pub read: u64,
    /// The limit that the peer has.
    pub limit: u64,
    /// Now.
    pub now: Nanos,
}

/// Bytes of all streams of a peer, and of all peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    bytes: u64,
    readers: Readers,
}

impl Reserved {
    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Streams of a peer that are read: those whose windows were read whole in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Readers {
    /// The period, and when it began.
    period: u64,
    since: Nanos,
    /// In it, and in the one before.
    now: u64,
    before: u64,
}

impl Readers {
    /// A window was read whole. How many are in these times, this one included.
    fn count(&mut self, window: &mut Window, now: Nanos) -> u64 {
        let time = now.since(self.since);
        if time >= PERIOD || self.period == 0 {
            let is_next = time.0 < 2 * PERIOD.0;
            self.before = if is_next { self.now } else { 0 };
            (self.period, self.since, self.now) = (self.period + 1, now, 0);
        }
        if window.period != self.period {
            window.period = self.period;
            self.now += 1;
        }
        self.now.max(self.before)
    }
}

/// Decides how much each stream may receive.
pub trait FlowControl: Send {
    /// Makes room for a stream. `None` where the memory is spoken for.
    fn admit(&mut self, peer: &mut Reserved, now: Nanos) -> Option<Window>;
    /// The limit that a stream's peer is to have now; never below the one that it has.
    fn limit(&mut self, peer: &mut Reserved, window: &mut Window, reading: &Reading) -> u64;
    /// A stream is over.
    fn release(&mut self, peer: &mut Reserved, window: Window);
    /// Memory of this endpoint that is spoken for.
    fn reserved(&self) -> Reserved;
    /// Whether streams are stopped and resumed, rather than given credit.
    fn relief(&self) -> Option<Relief> {
        None
    }
}

/// Figure 5 of the paper: what arrives moves at once to the socket's response queue and is charged to its channel, until
/// the socket's buffer has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relief {
    /// Bytes of a socket's buffer.
    pub buffer: u64,
    /// Bytes that may be charged to a channel: beyond that it is not read, so that its transport's window closes.
    pub channel_budget: u64,
    /// How long a response queue may hold bytes before the peer is asked to stop.
    pub stop_after: Nanos,
}

/// Byte credit: each stream has a window beyond what was read. The windows of all streams stay below the memory limit, so
/// that whatever arrives has its place.
///
/// A window begins at the least. It doubles when it keeps the peer from sending what the application would read, and halves
/// when the memory is mostly spoken for and it reads nothing. Windows that are read faster than memory is share the working
/// set.
#[derive(Clone, Debug)]
pub struct Credit {
    limits: MemoryLimits,
    total: Reserved,
}

/// A window of which less than its size was read within this time is larger than its application needs.
const SHRINK_AFTER: Nanos = Nanos::from_millis(10);
/// A part of the working set that is read within this time is limited by this host, and not by the network.
const FAST: Nanos = Nanos::from_millis(2);
/// The time over which it is counted how many streams are read.
const PERIOD: Nanos = Nanos::from_millis(5);

impl Credit {
    /// With these limits.
    pub fn new(limits: MemoryLimits) -> Credit {
        Credit { limits, total: Reserved::default() }
    }

    fn fits(&self, peer: &Reserved, more: u64) -> bool {
        self.total.bytes + more <= self.limits.endpoint && peer.bytes + more <= self.limits.peer
    }

    /// The largest window for a stream that has just read all of its own.
    fn most(&self, peer: &mut Reserved, window: &mut Window, now: Nanos) -> u64 {
        let MemoryLimits { stream_max, stream_min, working_set, .. } = self.limits;
        let readers = peer.readers.count(window, now);
        let part = working_set / readers.max(1) / stream_min.max(1) * stream_min;
        let part = part.min(stream_max).max(stream_min);
        let time = now.since(window.mark.1);
        // The time that it takes to read its part.
        let is_fast =
            u128::from(time.0) * u128::from(part) <= u128::from(FAST.0) * u128::from(window.size);
        if is_fast { part } else { stream_max }
    }

    fn reserve(&mut self, peer: &mut Reserved, window: &mut Window, bytes: u64) {
        self.total.bytes = self.total.bytes - window.reserved + bytes;
        peer.bytes = peer.bytes - window.reserved + bytes;
        window.reserved = bytes;
    }
}

impl FlowControl for Credit {
    fn admit(&mut self, peer: &mut Reserved, now: Nanos) -> Option<Window> {
        let size = self.limits.stream_min;
        if !self.fits(peer, size) {
            return None;
        }
        let mut window =
            Window { size, reserved: 0, mark: (0, now), is_limiting: false, period: 0 };
        self.reserve(peer, &mut window, size);
        Some(window)
    }

    fn limit(&mut self, peer: &mut Reserved, window: &mut Window, reading: &Reading) -> u64 {
        let Reading { arrived, read, limit, now } = *reading;
        let (read_then, then) = window.mark;
        let is_tight = self.total.bytes > self.limits.endpoint / 4 * 3;
        if read - read_then >= window.size {
            let most = self.most(peer, window, now);
            window.size = window.size.min(most);
            let doubled = (window.size * 2).min(most);
            let more = doubled - window.size;
            let keeps_up = arrived - read <= window.size / 2;
            let is_limiting = std::mem::take(&mut window.is_limiting);
            if is_limiting && keeps_up && !is_tight && self.fits(peer, more) {
                window.size = doubled;
            }
            window.mark = (read, now);
        } else if is_tight && now.since(then) > SHRINK_AFTER {
            window.size = (window.size / 2).max(self.limits.stream_min);
            window.mark = (read, now);
        }
        let limit = limit.max(read + window.size);
        self.reserve(peer, window, limit - read);
        limit
    }

    fn release(&mut self, peer: &mut Reserved, mut window: Window) {
        self.reserve(peer, &mut window, 0);
    }

    fn reserved(&self) -> Reserved {
        self.total
    }
}

/// Figure 5 as published: no credit, but [`Relief`].
#[derive(Clone, Debug)]
pub struct StopResume {
    relief: Relief,
    streams_max: u64,
    total: Reserved,
}

/// Far beyond what is ever sent.
const NO_LIMIT: u64 = u64::MAX / 2;

impl StopResume {
    /// With these constants, for at most so many streams.
    pub fn new(relief: Relief, streams_max: u64) -> StopResume {
        StopResume { relief, streams_max, total: Reserved::default() }
    }
}

impl FlowControl for StopResume {
    fn admit(&mut self, peer: &mut Reserved, now: Nanos) -> Option<Window> {
        let size = self.relief.buffer;
        if self.total.bytes >= self.streams_max.saturating_mul(size) {
            return None;
        }
        self.total.bytes += size;
        peer.bytes += size;
        Some(Window { size, reserved: size, mark: (0, now), is_limiting: false, period: 0 })
    }

    fn limit(&mut self, _peer: &mut Reserved, _window: &mut Window, _reading: &Reading) -> u64 {
        NO_LIMIT
    }

    fn release(&mut self, peer: &mut Reserved, window: Window) {
        self.total.bytes -= window.reserved;
        peer.bytes -= window.reserved;
    }

    fn reserved(&self) -> Reserved {
        self.total
    }

    fn relief(&self) -> Option<Relief> {
        Some(self.relief)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: MemoryLimits = MemoryLimits {
        endpoint: 10_000,
        peer: 6_000,
        stream_max: 3_000,
        stream_min: 500,
        working_set: 4_000,
    };

    /// A stream of a test, with what it has received.
    struct Stream {
        peer: usize,
        window: Window,
        reading: Reading,
    }

    #[test]
    fn window_grows_where_it_limits_a_peer_whose_data_is_read() {
        let mut credit = Credit::new(LIMITS);
        let mut peer = Reserved::default();
        let mut window = credit.admit(&mut peer, Nanos::ZERO).expect("room");
        let mut reading = Reading { arrived: 0, read: 0, limit: 500, now: Nanos::ZERO };
        for step in 1..20 {
            reading = Reading {
                arrived: reading.limit,
                read: reading.limit,
                now: Nanos::from_millis(step),
                ..reading
            };
            window.note_limiting();
            reading.limit = credit.limit(&mut peer, &mut window, &reading);
        }
        assert_eq!(window.size(), 3_000);
        let mut other = credit.admit(&mut peer, Nanos::ZERO).expect("room");
        let reading = Reading { arrived: 500, read: 500, limit: 500, now: Nanos::from_millis(1) };
        assert_eq!(credit.limit(&mut peer, &mut other, &reading), 1_000, "it limits no peer");
        other.note_limiting();
        let reading = Reading { arrived: 1_400, read: 1_000, limit: 1_500, ..reading };
        assert_eq!(credit.limit(&mut peer, &mut other, &reading), 1_500, "much is unread");
    }

    /// Streams that are read as fast as they are filled, each window in so much time. Their windows afterwards.
    fn read_at_once(streams: usize, time: Nanos) -> Vec<u64> {
        let limits = MemoryLimits { endpoint: 1 << 20, peer: 1 << 20, ..LIMITS };
        let (mut credit, mut peer) = (Credit::new(limits), Reserved::default());
        let mut now = Nanos::from_millis(1);
        let admit = |_| (credit.admit(&mut peer, now).expect("room"), 500);
        let mut all: Vec<(Window, u64)> = (0..streams).map(admit).collect();
        for _ in 0..40 {
            now = Nanos(now.0 + time.0);
            for (window, limit) in &mut all {
                window.note_limiting();
                let reading = Reading { arrived: *limit, read: *limit, limit: *limit, now };
                *limit = credit.limit(&mut peer, window, &reading);
            }
        }
        all.iter().map(|(window, _)| window.size()).collect()
    }

    #[test]
    fn windows_that_are_read_fast_share_the_working_set() {
        let fast = Nanos::from_micros(500);
        assert_eq!(read_at_once(1, fast), [3_000], "one has as much as it may have");
        assert_eq!(read_at_once(4, fast), [1_000; 4]);
        assert_eq!(read_at_once(20, fast), [500; 20], "and never less than the least");
        // Where the network is the limit, windows cover its delay.
        assert_eq!(read_at_once(4, Nanos::from_millis(40)), [3_000; 4]);
    }

    proptest! {
        #[test]
        fn credit_never_exceeds_the_limits_and_comes_back(
            steps in proptest::collection::vec((0u8..4, any::<u16>(), any::<u16>()), 1..200),
        ) {
            let mut credit = Credit::new(LIMITS);
            let mut peers = [Reserved::default(); 3];
            let mut streams: Vec<Stream> = Vec::new();
            let mut now = Nanos::ZERO;
            for (step, which, amount) in steps {
                now = Nanos(now.0 + u64::from(amount) * 1_000);
                let peer = usize::from(which) % 3;
                let index = usize::from(which) % streams.len().max(1);
                match (step, streams.get_mut(index)) {
                    (0, _) => {
                        let room = LIMITS.endpoint - credit.reserved().bytes() >= 500
                            && LIMITS.peer - peers[peer].bytes() >= 500;
                        let window = credit.admit(&mut peers[peer], now);
                        prop_assert_eq!(window.is_some(), room);
                        let reading = Reading { arrived: 0, read: 0, limit: 500, now };
                        streams.extend(window.map(|window| Stream { peer, window, reading }));
                    }
                    (1, Some(_)) => {
                        let gone = streams.swap_remove(index);
                        credit.release(&mut peers[gone.peer], gone.window);
                    }
                    (_, Some(stream)) => {
                        let reading = &mut stream.reading;
                        let room = reading.limit - reading.arrived;
                        reading.arrived += u64::from(amount) % (room + 1);
                        let unread = reading.arrived - reading.read;
                        reading.read += if step == 2 { unread } else { unread / 3 };
                        reading.now = now;
                        let before = reading.limit;
                        let peer = &mut peers[stream.peer];
                        reading.limit = credit.limit(peer, &mut stream.window, reading);
                        prop_assert!(reading.limit >= before);
                        // It can always receive its least beyond what was read.
                        prop_assert!(reading.limit >= reading.read + LIMITS.stream_min);
                    }
                    _ => {}
                }
                prop_assert!(credit.reserved().bytes() <= LIMITS.endpoint);
                prop_assert!(peers.iter().all(|peer| peer.bytes() <= LIMITS.peer));
                let promised = streams.iter().map(|it| it.reading.limit - it.reading.read).sum::<u64>();
                prop_assert_eq!(promised, credit.reserved().bytes());
            }
            for stream in streams {
                credit.release(&mut peers[stream.peer], stream.window);
            }
            prop_assert_eq!(credit.reserved().bytes(), 0);
            prop_assert!(peers.iter().all(|peer| peer.bytes() == 0));
        }
    }
}
