//! The sending half of a stream: what was written, what is on its way over which channel, what has arrived.
//!
//! Offsets count bytes since the stream began. The end of the stream takes the offset behind the last byte, as a FIN does
//! in TCP (RFC 9293, 3.4), so that its arrival is acknowledged like that of a byte.

use super::ranges::RangeSet;
use crate::ids::ChannelId;

/// Flights remembered apart; beyond that neighbours are merged, and count as lost with either channel.
const FLIGHTS_MAX: usize = 64;
/// Flights and lost ranges together, beyond which a peer's report of a part counts for the whole.
const PIECES_MAX: usize = 4 * FLIGHTS_MAX;

/// A part of the stream for one data frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Offset of its first byte.
    pub start: u64,
    /// Bytes.
    pub length: u32,
    /// The stream ends behind them.
    pub is_last: bool,
}

impl Chunk {
    /// The offset behind it; the end of the stream counts.
    fn end(&self) -> u64 {
        self.start + u64::from(self.length) + u64::from(self.is_last)
    }
}

/// Bytes that a channel took and that are not known to have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flight {
    start: u64,
    end: u64,
    /// `None`: several.
    channel: Option<ChannelId>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct SendHalf {
    /// Bytes that the application has written.
    written: u64,
    /// Whether it writes no more.
    ended: bool,
    /// The first offset that was never sent.
    next: u64,
    /// Everything below needs no memory: it has arrived, or is not kept.
    acked: u64,
    /// Everything below has arrived, as the peer says.
    confirmed: u64,
    /// The peer accepts bytes below this offset.
    limit: u64,
    /// The peer asked for a pause.
    stopped: bool,
    /// To be sent again.
    lost: RangeSet,
    /// Ascending and disjoint.
    flights: Vec<Flight>,
}

/// An acknowledgement of something that was never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckOfNothing;

impl SendHalf {
    /// Bytes that the application has written.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Everything below this offset has arrived; its memory is free.
    pub fn acked(&self) -> u64 {
        self.acked.min(self.written)
    }

    /// Bytes that the peer has not acknowledged.
    pub fn outstanding(&self) -> u64 {
        self.written - self.acked()
    }

    /// Bytes that wait for a channel, whether the peer's limit lets them go or not.
    pub fn unsent(&self) -> u64 {
        self.written - self.next.min(self.written) + self.lost.total()
    }

    /// Whether the application has ended it.
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// Whether all has arrived, the end of the stream included.
    pub fn is_finished(&self) -> bool {
        self.ended && self.confirmed > self.written
    }

    /// The application has written `bytes` more.
    pub fn write(&mut self, bytes: u64) {
        debug_assert!(!self.ended, "written after the end");
        self.written += bytes;
    }

    /// The application writes no more.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// The peer accepts bytes below this offset. Limits that come out of order do not lower it. Whether it rose.
    pub fn set_limit(&mut self, limit: u64) -> bool {
        let rose = limit > self.limit;
        self.limit = self.limit.max(limit);
        rose
    }

    /// Bytes that the peer would accept beyond what was sent.
    pub fn credit(&self) -> u64 {
        self.limit.saturating_sub(self.next)
    }

    /// The peer asks for a pause, or ends it.
    pub fn set_stopped(&mut self, stopped: bool) {
        self.stopped = stopped;
    }

    /// Whether the peer asked for a pause.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// The first offset that was never sent.
    pub fn next(&self) -> u64 {
        self.next.min(self.written)
    }

    /// Whether it has something that a channel may take now.
    pub fn is_ready(&self) -> bool {
        self.chunk(1).is_some()
    }

    /// Whether the peer's limit alone keeps bytes back.
    pub fn is_blocked(&self) -> bool {
        self.lost.is_empty()
            && self.next < self.written
            && (self.next >= self.limit || self.stopped)
    }

    /// What to send next, of at most `max` bytes: first what was lost.
    pub fn chunk(&self, max: u32) -> Option<Chunk> {
        let end = self.written + u64::from(self.ended);
        let (start, end) = match self.lost.first() {
            Some((start, lost)) => (start, lost.min(end)),
            None if self.stopped => return None,
            // The end of the stream needs no credit.
            None if self.next >= self.limit.min(self.written) && self.next < self.written => {
                return None;
            }
            None => (self.next, if self.limit < self.written { self.limit } else { end }),
        };
        let bytes = end.min(self.written).saturating_sub(start).min(u64::from(max));
        let is_last = end > self.written && start + bytes == self.written;
        (bytes > 0 || is_last).then_some(Chunk { start, length: bytes as u32, is_last })
    }

    /// A channel took a chunk. With `keeps`, it is remembered until it is acknowledged; without it counts as arrived.
    pub fn sent(&mut self, chunk: Chunk, channel: ChannelId, keeps: bool) {
        let (start, end) = (chunk.start, chunk.end());
        debug_assert!(start < end && end <= self.written + u64::from(self.ended));
        self.lost.remove(start, end);
        self.next = self.next.max(end);
        match keeps {
            true => self.take_off(Flight { start, end, channel: Some(channel) }),
            // Nothing is sent twice, so it is the next one.
            false => self.acked = self.acked.max(end),
        }
    }

    fn take_off(&mut self, flight: Flight) {
        let index = self.flights.partition_point(|known| known.start < flight.start);
        let previous = index.checked_sub(1).map(|previous| &mut self.flights[previous]);
        match previous.filter(|known| known.end == flight.start && known.channel == flight.channel)
        {
            Some(known) => known.end = flight.end,
            None => self.flights.insert(index, flight),
        }
        if self.flights.len() > FLIGHTS_MAX {
            self.merge_first();
        }
    }

    /// Makes one of the first two flights that touch.
    fn merge_first(&mut self) {
        let touch = self.flights.windows(2).position(|pair| pair[0].end == pair[1].start);
        let Some(index) = touch else { return };
        let second = self.flights.remove(index + 1);
        let first = &mut self.flights[index];
        first.channel = first.channel.filter(|channel| Some(*channel) == second.channel);
        first.end = second.end;
    }

    /// Whether a peer's reports have cut the stream in so many pieces that it gets no finer ones.
    fn is_shredded(&self) -> bool {
        self.flights.len() + self.lost.len() > PIECES_MAX
    }

    /// All bytes below `offset` have arrived, and those of `beyond`. Returns how many bytes became free.
    ///
    /// # Errors
    /// When the peer acknowledges what was not sent.
    pub fn ack(&mut self, offset: u64, beyond: Option<(u64, u64)>) -> Result<u64, AckOfNothing> {
        if offset.max(beyond.map_or(0, |(_, end)| end)) > self.next {
            return Err(AckOfNothing);
        }
        let before = self.acked();
        self.acked = self.acked.max(offset);
        self.confirmed = self.confirmed.max(offset);
        self.arrived(0, self.acked);
        if let Some((start, end)) = beyond.filter(|_| !self.is_shredded()) {
            self.arrived(start, end);
        }
        Ok(self.acked() - before)
    }

    fn arrived(&mut self, start: u64, end: u64) {
        self.lost.remove(start, end);
        if self.lost.is_empty() {
            self.lost.shrink();
        }
        let mut index = 0;
        while let Some(flight) = self.flights.get_mut(index).filter(|flight| flight.start < end) {
            let whole = *flight;
            if whole.end <= start {
                index += 1;
            } else if start <= whole.start && whole.end <= end {
                self.flights.remove(index);
            } else if start <= whole.start {
                flight.start = end;
            } else {
                flight.end = start;
                index += 1;
                if end < whole.end {
                    self.flights.insert(index, Flight { start: end, ..whole });
                }
            }
        }
        if self.flights.is_empty() {
            self.flights = Vec::new();
        }
    }

    /// A channel is gone with all that it carried. Whether something has to be sent again.
    pub fn channel_lost(&mut self, channel: ChannelId) -> bool {
        let lost = &mut self.lost;
        self.flights.retain(|flight| {
            let survives = flight.channel.is_some_and(|own| own != channel);
            if !survives {
                lost.insert(flight.start, flight.end);
            }
            survives
        });
        !self.lost.is_empty()
    }

    /// The peer misses these bytes: what is on its way of them counts as lost.
    pub fn missing(&mut self, start: u64, end: u64) {
        let (start, end) = match self.is_shredded() {
            true => (self.acked, self.next),
            false => (start.max(self.acked), end.min(self.next)),
        };
        let mut index = 0;
        while let Some(flight) = self.flights.get(index).copied().filter(|it| it.start < end) {
            let (from, to) = (start.max(flight.start), end.min(flight.end));
            if from >= to {
                index += 1;
                continue;
            }
            self.lost.insert(from, to);
            let rest = [(flight.start, from), (to, flight.end)];
            let rest = rest.into_iter().filter(|(start, end)| start < end);
            let rest: Vec<Flight> =
                rest.map(|(start, end)| Flight { start, end, ..flight }).collect();
            let kept = rest.len();
            self.flights.splice(index..=index, rest);
            index += kept;
        }
    }

    /// All that is on its way counts as lost: the peer said nothing for too long.
    pub fn all_missing(&mut self) {
        self.missing(self.acked, self.next);
    }

    /// Whether something is on its way that was not acknowledged.
    pub fn is_in_flight(&self) -> bool {
        !self.flights.is_empty()
    }

    /// The state's own invariants, for tests and `debug_assert!`.
    pub fn is_consistent(&self) -> bool {
        let flights = self.flights.windows(2).all(|pair| pair[0].end <= pair[1].start);
        let bounds = self.acked <= self.next && self.next <= self.written + u64::from(self.ended);
        let above = self.lost.first().is_none_or(|(start, _)| start >= self.acked);
        flights && bounds && above
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ChannelId = ChannelId(1);
    const B: ChannelId = ChannelId(2);

    fn half(written: u64, limit: u64) -> SendHalf {
        let mut half = SendHalf::default();
        half.write(written);
        half.set_limit(limit);
        half
    }

    fn send(half: &mut SendHalf, max: u32, channel: ChannelId) -> Chunk {
        let chunk = half.chunk(max).expect("a chunk is ready");
        half.sent(chunk, channel, true);
        assert!(half.is_consistent());
        chunk
    }

    #[test]
    fn chunks_end_at_the_limit_and_the_end_needs_no_credit() {
        let mut half = half(100, 60);
        half.end();
        assert_eq!(send(&mut half, 40, A), Chunk { start: 0, length: 40, is_last: false });
        assert_eq!(send(&mut half, 40, A), Chunk { start: 40, length: 20, is_last: false });
        assert!(half.is_blocked() && half.chunk(40).is_none());
        half.set_limit(100);
        assert_eq!(send(&mut half, 64, A), Chunk { start: 60, length: 40, is_last: true });
        assert!(!half.is_ready());
        assert_eq!(half.ack(100, None), Ok(100));
        assert!(!half.is_finished(), "its end has not arrived");
        assert_eq!(half.ack(101, None), Ok(0));
        assert!(half.is_finished() && half.ack(102, None) == Err(AckOfNothing));
    }

    #[test]
    fn end_after_all_was_sent_goes_alone() {
        let mut half = half(10, 10);
        send(&mut half, 64, A);
        half.end();
        assert_eq!(send(&mut half, 64, A), Chunk { start: 10, length: 0, is_last: true });
    }

    #[test]
    fn what_a_lost_channel_carried_is_sent_again_unless_it_arrived() {
        let mut half = half(100, 100);
        for channel in [A, B, A, B] {
            send(&mut half, 25, channel);
        }
        assert_eq!(half.ack(25, Some((50, 60))), Ok(25));
        assert!(half.channel_lost(A));
        assert_eq!(send(&mut half, 64, B), Chunk { start: 60, length: 15, is_last: false });
        assert!(!half.is_ready());
        // What was sent again is on the other channel now.
        assert!(half.channel_lost(B));
        assert_eq!(send(&mut half, 64, A), Chunk { start: 25, length: 25, is_last: false });
        assert_eq!(send(&mut half, 64, A), Chunk { start: 60, length: 40, is_last: false });
        assert_eq!(half.ack(100, None), Ok(75));
        assert!(!half.is_in_flight());
    }

    #[test]
    fn missing_bytes_are_sent_again_once() {
        let mut half = half(100, 100);
        send(&mut half, 100, A);
        half.missing(10, 20);
        assert_eq!(half.unsent(), 10);
        assert_eq!(send(&mut half, 64, A), Chunk { start: 10, length: 10, is_last: false });
        half.missing(0, 5);
        half.all_missing();
        assert_eq!(half.unsent(), 100);
        assert_eq!(send(&mut half, 200, A), Chunk { start: 0, length: 100, is_last: false });
    }

    #[test]
    fn many_flights_are_merged_and_lost_with_either_channel() {
        let mut half = half(1_000, 1_000);
        for index in 0..500 {
            send(&mut half, 2, if index % 2 == 0 { A } else { B });
        }
        assert!(half.flights.len() <= FLIGHTS_MAX);
        assert!(half.channel_lost(A));
        let lost = half.unsent();
        assert!((500..1_000).contains(&lost), "{lost}");
    }

    #[test]
    fn without_recovery_what_a_channel_took_is_free_but_not_finished() {
        let mut half = half(10, 10);
        half.end();
        let chunk = half.chunk(64).expect("a chunk is ready");
        half.sent(chunk, A, false);
        assert!(half.outstanding() == 0 && !half.channel_lost(A));
        // The channel may lose it, and then the peer has to learn that.
        assert!(!half.is_finished());
        assert_eq!(half.ack(11, None), Ok(0));
        assert!(half.is_finished());
    }
}
