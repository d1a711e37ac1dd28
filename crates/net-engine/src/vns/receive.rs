//! The receiving half of a stream: what has arrived, what may be sent, what was read.

use super::ranges::RangeSet;

/// Ranges beyond the first gap that are remembered; data that would make one more is dropped, and asked for later.
const GAPS_MAX: usize = 64;

/// A stream whose peer broke the protocol: it is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// Data beyond the limit that the peer was given.
    #[error("data up to offset {end} passes the limit {limit}")]
    Limit {
        /// Offset behind the data.
        end: u64,
        /// As announced.
        limit: u64,
    },
    /// Two different ends, or data behind the end.
    #[error("the stream ends at offset {known}, and at {end}")]
    End {
        /// As first said.
        known: u64,
        /// As said now.
        end: u64,
    },
    /// An acknowledgement of what was never sent.
    #[error("offset {0} is acknowledged, which was never sent")]
    Ack(u64),
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct ReceiveHalf {
    /// Everything below has arrived.
    arrived: u64,
    /// What arrived beyond the first gap.
    beyond: RangeSet,
    /// Ranges whose bytes a channel is bringing: nothing else writes there meanwhile.
    claims: Vec<(u64, u64)>,
    /// Bytes of frames that were dropped, from the first to the last: their sender counts them as on their way.
    wanted: Option<(u64, u64)>,
    /// They may be asked for (again): something has changed since.
    may_ask: bool,
    /// Bytes that the application has read.
    read: u64,
    /// The peer may send bytes below this offset.
    limit: u64,
    /// Where the stream ends, once known.
    end: Option<u64>,
    /// The acknowledgement that was last sent.
    reported: u64,
    /// The limit that was last sent.
    announced: u64,
    /// The peer has to be answered, whatever has changed.
    must_report: bool,
}

impl ReceiveHalf {
    /// Bytes that can be read.
    pub fn readable(&self) -> u64 {
        self.arrived - self.read
    }

    /// Everything below this offset has arrived.
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Bytes that the application has read.
    pub fn read_offset(&self) -> u64 {
        self.read
    }

    /// The peer may send bytes below this offset.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes of memory that the peer may fill: read ones are free.
    pub fn promised(&self) -> u64 {
        self.limit.max(self.arrived) - self.read
    }

    /// Whether all was read and nothing follows.
    pub fn is_at_end(&self) -> bool {
        self.end == Some(self.read)
    }

    /// Whether everything has arrived, its end included.
    pub fn is_finished(&self) -> bool {
        self.end == Some(self.arrived)
    }

    /// Lets the peer send up to an offset. Limits never fall.
    pub fn raise_limit(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }

    /// Checks a data frame. Returns the part of it that is new: `start..end`, empty for a repeated one.
    ///
    /// # Errors
    /// When the peer broke the protocol.
    pub fn check(
        &mut self,
        offset: u64,
        length: u32,
        is_last: bool,
    ) -> Result<(u64, u64), StreamError> {
        let end = offset.saturating_add(u64::from(length));
        if end > self.limit {
            return Err(StreamError::Limit { end, limit: self.limit });
        }
        let claimed = self.claims.iter().map(|(_, end)| *end).max().unwrap_or_default();
        let highest = self.beyond.iter().last().map_or(self.arrived, |(_, end)| end).max(claimed);
        let is_new_end = is_last && self.end.is_none();
        match self.end {
            Some(known) if end > known || (is_last && end != known) => {
                return Err(StreamError::End { known, end });
            }
            None if is_last && end < highest => {
                return Err(StreamError::End { known: highest, end });
            }
            None if is_last => self.end = Some(end),
            _ => {}
        }
        // A repeated frame means that the peer has not seen the last report; an empty one asks for it.
        self.must_report |= end <= self.arrived && !is_new_end;
        let (start, until) = self.fresh(offset.max(self.arrived).min(end), end);
        if until < end && self.beyond.has_gap(until, end) {
            self.want(until, end);
        }
        // Each claim may become a range of its own.
        let most = GAPS_MAX.saturating_sub(self.claims.len());
        if start > self.arrived && start < until && self.beyond.would_exceed(start, until, most) {
            self.want(start, until);
            return Ok((until, until));
        }
        Ok((start, until))
    }

    /// The first part of a range that has not arrived: what has may be read at any time, so nothing writes there again.
    fn fresh(&self, mut start: u64, end: u64) -> (u64, u64) {
        for (from, to) in self.beyond.iter() {
            if to <= start {
                continue;
            }
            if from > start {
                return (start, end.min(from).max(start));
            }
            start = to.min(end);
        }
        (start, end)
    }

    fn want(&mut self, start: u64, end: u64) {
        let (from, to) = self.wanted.unwrap_or((start, end));
        self.wanted = Some((from.min(start), to.max(end)));
    }

    /// Bytes that have to be asked for, if some are: from, to.
    pub fn wanted(&self) -> Option<(u64, u64)> {
        let (start, end) = self.wanted?;
        (self.arrived < end).then_some((start.max(self.arrived), end))
    }

    /// Whether to ask for them now. No channel is bringing anything, and something has changed since they were last asked for.
    pub fn must_ask(&mut self) -> bool {
        if self.wanted().is_none() {
            self.wanted = None;
        }
        self.wanted.is_some() && self.claims.is_empty() && std::mem::take(&mut self.may_ask)
    }

    /// What was asked for may be lost.
    pub fn ask_again(&mut self) {
        self.may_ask = true;
    }

    /// Lets one channel bring the bytes of a checked range, piece by piece. False where another one is at it: the frame is
    /// dropped, and asked for again if that channel does not finish.
    pub fn claim(&mut self, start: u64, end: u64) -> bool {
        let overlaps = |&(from, to): &(u64, u64)| start < to && from < end;
        if self.claims.iter().any(overlaps) {
            self.want(start, end);
            return false;
        }
        self.claims.push((start, end));
        true
    }

    /// The channel is done with a range, or gone.
    pub fn unclaim(&mut self, start: u64, end: u64) {
        self.claims.retain(|claim| *claim != (start, end));
        if self.claims.is_empty() {
            self.claims = Vec::new();
        }
        // The sender may count its bytes as brought by the channel whose frame was dropped.
        if self.wanted.is_some() {
            self.want(start, end);
        }
        self.may_ask = true;
    }

    /// Bytes of a checked range are in their places.
    pub fn arrive(&mut self, start: u64, end: u64) {
        debug_assert!(start <= end && end <= self.limit);
        let before = self.arrived;
        self.beyond.insert(start, end);
        match self.beyond.first() {
            Some((first, end)) if first <= self.arrived => {
                self.arrived = end.max(self.arrived);
                self.beyond.remove_below(self.arrived);
            }
            // The peer learns of a gap at once: it may have lost a channel.
            Some(_) => self.must_report = true,
            None => {}
        }
        if self.beyond.is_empty() {
            self.beyond.shrink();
        }
        self.may_ask |= self.arrived > before;
    }

    /// The application has read bytes.
    pub fn read(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.readable());
        self.read += bytes;
    }

    /// The acknowledgement: everything below has arrived, and the end of the stream counts.
    pub fn ack(&self) -> u64 {
        self.arrived + u64::from(self.is_finished())
    }

    /// What arrived beyond the first gap.
    pub fn beyond(&self) -> Option<(u64, u64)> {
        self.beyond.first()
    }

    /// Whether a report is due: the limit has risen by a quarter of the window, or half of a window has arrived that is
    /// not read, or the peer has to be answered.
    pub fn is_report_due(&self, window: u64) -> bool {
        self.must_report
            || self.ack() - self.reported >= (window / 2).max(1)
            || self.limit.saturating_sub(self.announced) >= (window / 4).max(1)
    }

    /// Whether a report that is due may wait a little for data that goes the same way.
    pub fn may_report_late(&self, window: u64) -> bool {
        !self.must_report && self.limit.saturating_sub(self.announced) < (window / 2).max(1)
    }

    /// Whether a report would say anything new.
    pub fn has_news(&self) -> bool {
        self.must_report || self.ack() != self.reported || self.limit != self.announced
    }

    /// The peer has to be answered, whatever has changed.
    pub fn must_report(&mut self) {
        self.must_report = true;
    }

    /// A report is on its way.
    pub fn reported(&mut self) {
        self.reported = self.ack();
        self.announced = self.limit;
        self.must_report = false;
    }

    /// The limit is on its way, and no acknowledgement.
    pub fn announce(&mut self) {
        self.announced = self.limit;
    }

    /// Reports may have been lost.
    pub fn report_again(&mut self) {
        self.must_report |= self.reported > 0 || self.announced > 0;
    }

    /// The first bytes that are missing below what has arrived: from, to.
    pub fn gap(&self) -> Option<(u64, u64)> {
        self.beyond.first().map(|(start, _)| (self.arrived, start))
    }

    /// The state's own invariants, for tests and `debug_assert!`.
    pub fn is_consistent(&self) -> bool {
        self.read <= self.arrived
            && self.arrived <= self.limit.max(self.arrived)
            && self.beyond.first().is_none_or(|(start, _)| start > self.arrived)
            && self.beyond.len() <= GAPS_MAX
            && self.end.is_none_or(|end| end >= self.arrived)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn half(limit: u64) -> ReceiveHalf {
        let mut half = ReceiveHalf::default();
        half.raise_limit(limit);
        half
    }

    /// A data frame with its payload.
    fn take(half: &mut ReceiveHalf, offset: u64, length: u32) -> Result<(u64, u64), StreamError> {
        let (start, end) = half.check(offset, length, false)?;
        half.arrive(start, end);
        assert!(half.is_consistent());
        Ok((start, end))
    }

    #[test]
    fn bytes_out_of_order_are_readable_once_the_gap_is_filled() {
        let mut half = half(100);
        assert_eq!(take(&mut half, 50, 10), Ok((50, 60)));
        assert_eq!(
            (half.readable(), half.gap(), half.beyond()),
            (0, Some((0, 50)), Some((50, 60)))
        );
        assert!(half.is_report_due(1_000), "a gap is reported at once");
        half.reported();
        // Overlaps both.
        assert_eq!(take(&mut half, 0, 55), Ok((0, 50)));
        assert_eq!((half.readable(), half.gap()), (60, None));
        half.read(60);
        // Repeated: nothing new, but the peer is answered.
        half.reported();
        assert_eq!(take(&mut half, 40, 20), Ok((60, 60)));
        assert!(half.is_report_due(1_000));
    }

    #[test]
    fn end_is_acknowledged_and_reached_after_the_last_byte() {
        let mut half = half(10);
        assert_eq!(half.check(4, 4, true), Ok((4, 8)));
        half.arrive(4, 8);
        assert_eq!((half.ack(), half.is_finished()), (0, false));
        take(&mut half, 0, 4).unwrap();
        assert_eq!((half.ack(), half.is_finished(), half.is_at_end()), (9, true, false));
        half.read(8);
        assert!(half.is_at_end());
    }

    #[test]
    fn peers_that_break_the_protocol_are_errors() {
        let mut limited = half(10);
        assert_eq!(limited.check(0, 11, false), Err(StreamError::Limit { end: 11, limit: 10 }));
        assert!(limited.check(u64::MAX, 5, false).is_err());
        assert_eq!(limited.check(0, 5, true), Ok((0, 5)));
        assert_eq!(limited.check(5, 1, false), Err(StreamError::End { known: 5, end: 6 }));
        assert_eq!(limited.check(0, 4, true), Err(StreamError::End { known: 5, end: 4 }));
        let mut late = half(10);
        take(&mut late, 6, 4).unwrap();
        assert_eq!(late.check(0, 2, true), Err(StreamError::End { known: 10, end: 2 }));
    }

    #[test]
    fn bytes_that_two_channels_bring_are_asked_for_when_the_first_fails() {
        let mut half = half(100);
        assert_eq!(half.check(0, 50, false), Ok((0, 50)));
        assert!(half.claim(0, 50));
        half.arrive(0, 10);
        assert_eq!(half.check(5, 50, false), Ok((10, 55)));
        assert!(!half.claim(10, 55) && !half.must_ask());
        half.unclaim(0, 50);
        // Once, until something changes.
        assert!(half.must_ask() && !half.must_ask());
        assert_eq!(half.wanted(), Some((10, 55)));
        assert!(half.claim(10, 55));
        half.arrive(10, 55);
        half.unclaim(10, 55);
        assert!(!half.must_ask() && half.wanted().is_none());
    }

    #[test]
    fn bytes_that_have_arrived_are_not_written_again() {
        let mut half = half(100);
        take(&mut half, 50, 10).unwrap();
        assert_eq!(half.check(0, 70, false), Ok((0, 50)));
        half.arrive(0, 50);
        assert!(half.must_ask());
        assert_eq!(half.wanted(), Some((60, 70)));
        assert_eq!(half.check(55, 15, false), Ok((60, 70)));
    }

    #[test]
    fn end_that_came_before_the_rest_is_news() {
        let mut half = half(100);
        half.check(50, 50, true).unwrap();
        half.arrive(50, 60);
        half.reported();
        half.arrive(0, 50);
        half.reported();
        half.arrive(60, 100);
        assert!(half.has_news());
    }

    #[test]
    fn peer_that_leaves_many_gaps_does_not_fill_memory() {
        let mut half = half(10_000);
        for index in 0..1_000 {
            take(&mut half, index * 2 + 1, 1).unwrap();
        }
        assert!(half.beyond.len() <= GAPS_MAX);
        // What was dropped is asked for; the sender cuts it as it likes.
        while let (Some((start, end)), true) = (half.wanted(), half.readable() < 2_000) {
            take(&mut half, 0, start as u32).unwrap();
            take(&mut half, start, (end - start) as u32).unwrap();
        }
        assert_eq!(half.readable(), 2_000);
    }

    #[test]
    fn report_is_due_after_a_quarter_of_the_window_or_half_of_it_unread() {
        let mut half = half(1_000);
        half.reported();
        take(&mut half, 0, 499).unwrap();
        assert!(!half.is_report_due(1_000) && half.has_news());
        take(&mut half, 499, 1).unwrap();
        assert!(half.is_report_due(1_000) && half.may_report_late(1_000));
        half.reported();
        assert!(!half.has_news());
        half.read(250);
        half.raise_limit(1_250);
        assert!(half.is_report_due(1_000) && half.may_report_late(1_000));
        half.read(250);
        half.raise_limit(1_500);
        assert!(!half.may_report_late(1_000));
    }

    proptest! {
        #[test]
        fn any_order_of_frames_delivers_each_byte_once(
            mut cuts in proptest::collection::btree_set(1u64..200, 0..12),
            order in proptest::collection::vec(any::<u32>(), 40),
        ) {
            cuts.insert(200);
            let mut start = 0;
            let mut frames = Vec::new();
            for end in cuts {
                frames.push((start, end));
                start = end;
            }
            let mut half = half(200);
            let mut fresh = 0;
            let count = frames.len();
            let picks = order.into_iter().map(|pick| pick as usize % count).chain(0..count);
            for (from, to) in picks.map(|pick| frames[pick]) {
                let before = half.arrived() + half.beyond.total();
                let (start, end) = half.check(from, (to - from) as u32, to == 200).unwrap();
                half.arrive(start, end);
                prop_assert!(half.is_consistent());
                fresh += half.arrived() + half.beyond.total() - before;
            }
            prop_assert_eq!((fresh, half.readable(), half.is_finished()), (200, 200, true));
        }
    }
}
