//! One stream in the order of time out of what each core recorded and what the reader adds.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use quell_model::{Certainty, CoreId, CoreSet, Event, Nanos, Search, What};

/// Orders events. Within a core the numbers of its records decide, between cores the clock.
///
/// Records are numbered by their core, so that a gap is a loss. Events go out with numbers of their own, since
/// the reader adds events; what was lost keeps as many numbers as it had.
pub(super) struct Merge {
    cores: Vec<Core>,
    /// The reader's own, in the order of time.
    added: VecDeque<Event>,
    /// Where the stream begins: what was recorded before is left out.
    begin: Nanos,
    /// The time of the latest record so far.
    newest: Nanos,
    /// The time of the last event that went out.
    last: Nanos,
    /// The cores that balance with each core, where passes of the balancer shall tell what they considered.
    spans: Option<Vec<CoreSet>>,
    counts: Counts,
}

/// What went through a [`Merge`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Events that went out.
    pub events: u64,
    /// Records that found no room.
    pub lost: u64,
    /// Events that came too late for their place and were moved to the time of the last that went out.
    pub late: u64,
}

#[derive(Default)]
struct Core {
    /// Recorded and not yet out, by number.
    waiting: VecDeque<Event>,
    /// The number that its next record should have.
    expected: u64,
    /// The number of the next event that goes out.
    number: u64,
}

impl Merge {
    pub fn new(cores: usize, begin: Nanos) -> Merge {
        Merge {
            cores: (0..cores).map(|_| Core::default()).collect(),
            added: VecDeque::new(),
            begin,
            newest: begin,
            last: begin,
            spans: None,
            counts: Counts::default(),
        }
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The time of the latest record so far.
    pub fn newest(&self) -> Nanos {
        self.newest
    }

    /// From now on each pass of the balancer tells that it considered its core's span.
    pub fn consider(&mut self, spans: impl Iterator<Item = (CoreId, CoreSet)>) {
        let mut by_core = vec![CoreSet::EMPTY; self.cores.len()];
        for (core, span) in spans {
            if let Some(entry) = by_core.get_mut(core.index()) {
                *entry = span;
            }
        }
        self.spans = Some(by_core);
    }

    /// Takes a record, in the order of the ring: nearly that of its core's numbers.
    pub fn push(&mut self, mut event: Event) {
        let Some(core) = self.cores.get_mut(event.core.index()) else { return };
        let mut at = core.waiting.len();
        while at > 0 && core.waiting[at - 1].sequence > event.sequence {
            at -= 1;
        }
        // Where an interrupt came between number and clock, the numbers are right.
        if at > 0 {
            event.at = event.at.max(core.waiting[at - 1].at);
        }
        let from = event.at;
        self.newest = self.newest.max(from);
        core.waiting.insert(at, event);
        for later in core.waiting.iter_mut().skip(at + 1) {
            later.at = later.at.max(from);
        }
    }

    /// Takes an event of the reader itself.
    pub fn add(&mut self, at: Nanos, core: CoreId, what: What) {
        let place = self.added.partition_point(|event| event.at <= at);
        self.added.insert(place, Event { at, core, sequence: 0, what });
    }

    /// Puts out what happened until then, in the order of time.
    pub fn release(&mut self, until: Nanos, out: &mut Vec<Event>) {
        // The reader's own events come first among those of one instant: a keyframe opens what follows.
        let own = self.cores.len();
        let mut heads: BinaryHeap<Reverse<(Nanos, bool, usize)>> = (0..=own)
            .filter_map(|queue| Some(Reverse((self.head(queue)?, queue != own, queue))))
            .collect();
        while let Some(Reverse((at, _, queue))) = heads.pop() {
            if at > until {
                break;
            }
            self.put_out(queue, out);
            heads.extend(self.head(queue).map(|at| Reverse((at, queue != own, queue))));
        }
    }

    /// Tells what a core had lost when it had given so many numbers, where nothing that went out shows it.
    pub fn end(&mut self, core: CoreId, numbers: u64, at: Nanos, out: &mut Vec<Event>) {
        let Some(entry) = self.cores.get_mut(core.index()) else { return };
        let kept = entry.waiting.iter().filter(|event| event.sequence < numbers).count() as u64;
        let missing = numbers.saturating_sub(entry.expected + kept);
        entry.expected = entry.expected.max(numbers);
        self.tell_lost(core, missing, at, out);
    }

    fn head(&self, queue: usize) -> Option<Nanos> {
        let waiting = self.cores.get(queue).map_or(&self.added, |core| &core.waiting);
        waiting.front().map(|event| event.at)
    }

    fn put_out(&mut self, queue: usize, out: &mut Vec<Event>) {
        let Some(core) = self.cores.get_mut(queue) else {
            match self.added.pop_front() {
                Some(Event { at, core, what: What::Lost { count }, .. }) => {
                    self.tell_lost(core, count, at, out);
                }
                Some(Event { at, core, what, .. }) => self.give(at, core, what, out),
                None => {}
            }
            return;
        };
        let Some(event) = core.waiting.pop_front() else { return };
        let missing = event.sequence.saturating_sub(core.expected);
        core.expected = core.expected.max(event.sequence + 1);
        if event.at < self.begin {
            return;
        }
        self.tell_lost(event.core, missing, event.at, out);
        let balances = event.what == What::Softirq { vector: What::BALANCER, begins: true };
        self.give(event.at, event.core, event.what, out);
        if balances {
            self.tell_considered(event.core, event.at, out);
        }
    }

    fn tell_lost(&mut self, core: CoreId, count: u64, at: Nanos, out: &mut Vec<Event>) {
        if count == 0 {
            return;
        }
        self.counts.lost += count;
        self.give(at, core, What::Lost { count }, out);
        // One number is that of the event which tells it.
        if let Some(core) = self.cores.get_mut(core.index()) {
            core.number += count - 1;
        }
    }

    fn tell_considered(&mut self, by: CoreId, at: Nanos, out: &mut Vec<Event>) {
        let span = self.spans.as_ref().and_then(|spans| spans.get(by.index()));
        let Some(&cores) = span.filter(|span| !span.is_empty()) else { return };
        let (search, certainty) = (Search::GroupStatistics, Certainty::Inferred);
        self.give(at, by, What::Considered { by, search, cores: cores.into(), certainty }, out);
    }

    fn give(&mut self, at: Nanos, core: CoreId, what: What, out: &mut Vec<Event>) {
        let Some(entry) = self.cores.get_mut(core.index()) else { return };
        let sequence = entry.number;
        entry.number += 1;
        if at < self.last {
            self.counts.late += 1;
        }
        self.last = self.last.max(at);
        self.counts.events += 1;
        out.push(Event { at: self.last, core, sequence, what });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(core: u16, sequence: u64, at: u64) -> Event {
        let thread = (core as i32) * 1_000 + sequence as i32;
        Event { at: Nanos(at), core: CoreId(core), sequence, what: What::Exit { thread } }
    }

    fn merged(cores: usize, records: &[Event]) -> (Vec<Event>, Counts) {
        let mut merge = Merge::new(cores, Nanos::ZERO);
        records.iter().cloned().for_each(|event| merge.push(event));
        let mut out = Vec::new();
        merge.release(Nanos::MAX, &mut out);
        (out, merge.counts())
    }

    #[test]
    fn a_gap_is_told_with_its_size_before_what_follows_it() {
        let (out, counts) = merged(1, &[record(0, 0, 10), record(0, 4, 20)]);
        assert_eq!(out[1].what, What::Lost { count: 3 });
        assert_eq!(out.iter().map(|event| event.sequence).collect::<Vec<_>>(), [0, 1, 4]);
        assert_eq!(counts, Counts { events: 3, lost: 3, late: 0 });
    }

    #[test]
    fn a_loss_at_the_end_is_told_too() {
        let mut merge = Merge::new(2, Nanos::ZERO);
        merge.push(record(1, 0, 10));
        let mut out = Vec::new();
        merge.release(Nanos::MAX, &mut out);
        merge.end(CoreId(0), 0, Nanos(30), &mut out);
        merge.end(CoreId(1), 6, Nanos(30), &mut out);
        assert_eq!(out.len(), 2);
        assert_eq!((out[1].core, &out[1].what), (CoreId(1), &What::Lost { count: 5 }));
    }

    #[test]
    fn what_comes_after_the_end_is_no_loss() {
        let mut merge = Merge::new(1, Nanos::ZERO);
        for (number, at) in [(0, 10), (3, 30), (4, 31)] {
            merge.push(record(0, number, at));
        }
        let mut out = Vec::new();
        merge.release(Nanos(20), &mut out);
        merge.end(CoreId(0), 4, Nanos(20), &mut out);
        assert_eq!(
            out[1..].iter().map(|event| &event.what).collect::<Vec<_>>(),
            [&What::Lost { count: 2 }]
        );
    }

    #[test]
    fn a_record_that_interrupted_another_one_is_no_loss() {
        let (out, counts) = merged(1, &[record(0, 0, 5), record(0, 2, 12), record(0, 1, 14)]);
        let threads: Vec<What> = (0..3).map(|thread| What::Exit { thread }).collect();
        assert_eq!(out.iter().map(|event| event.what.clone()).collect::<Vec<_>>(), threads);
        assert_eq!(out.iter().map(|event| event.at.0).collect::<Vec<_>>(), [5, 14, 14]);
        assert_eq!(counts.lost, 0);
    }

    #[test]
    fn what_was_recorded_before_the_begin_is_left_out_and_is_no_loss() {
        let mut merge = Merge::new(1, Nanos(100));
        merge.push(record(0, 7, 90));
        merge.push(record(0, 8, 110));
        merge.add(Nanos(100), CoreId(0), What::Online { of: CoreId(0), online: true });
        let mut out = Vec::new();
        merge.release(Nanos::MAX, &mut out);
        assert_eq!(
            out.iter().map(|event| (event.at.0, event.sequence)).collect::<Vec<_>>(),
            [(100, 0), (110, 1)]
        );
        assert_eq!(merge.counts().lost, 0);
    }

    #[test]
    fn nothing_goes_out_before_its_window_is_over() {
        let mut merge = Merge::new(2, Nanos::ZERO);
        merge.push(record(0, 0, 50));
        let mut out = Vec::new();
        merge.release(Nanos(40), &mut out);
        assert!(out.is_empty());
        merge.push(record(1, 0, 45));
        merge.release(Nanos(60), &mut out);
        assert_eq!(out.iter().map(|event| event.at.0).collect::<Vec<_>>(), [45, 50]);
        merge.push(record(1, 1, 48));
        merge.release(Nanos(70), &mut out);
        assert_eq!((out[2].at, merge.counts().late), (Nanos(50), 1));
    }

    #[test]
    fn a_pass_of_the_balancer_considers_the_span_of_its_core() {
        let mut merge = Merge::new(2, Nanos::ZERO);
        let span = CoreSet::from_iter([CoreId(0), CoreId(1)]);
        merge.consider([(CoreId(1), span)].into_iter());
        for core in [0, 1] {
            merge.push(Event {
                what: What::Softirq { vector: What::BALANCER, begins: true },
                ..record(core, 0, 5)
            });
        }
        let mut out = Vec::new();
        merge.release(Nanos::MAX, &mut out);
        assert_eq!(out.len(), 3);
        let (by, search, certainty) = (CoreId(1), Search::GroupStatistics, Certainty::Inferred);
        assert_eq!(out[2].what, What::Considered { by, search, cores: span.into(), certainty });
    }

    proptest! {
        /// Any cores, any losses, any batches within the window: the stream is in the order of time, the
        /// numbers of a core have no gap but those that a loss tells, and nothing is lost or made up.
        #[test]
        fn the_stream_is_ordered_and_complete(
            steps in proptest::collection::vec((0u16..3, 0u64..20, any::<bool>(), any::<bool>()), 0..200),
        ) {
            let mut merge = Merge::new(3, Nanos::ZERO);
            let (mut out, mut now) = (Vec::new(), 0);
            let (mut sequence, mut kept, mut lost) = ([0; 3], 0, 0);
            for (core, pause, is_lost, releases) in steps {
                now += pause;
                let place = usize::from(core);
                if is_lost {
                    lost += 1;
                } else {
                    merge.push(record(core, sequence[place], now));
                    kept += 1;
                }
                sequence[place] += 1;
                if releases {
                    merge.release(Nanos(now.saturating_sub(30)), &mut out);
                }
            }
            merge.release(Nanos::MAX, &mut out);
            for (core, numbers) in sequence.into_iter().enumerate() {
                merge.end(CoreId(core as u16), numbers, Nanos(now), &mut out);
            }
            prop_assert!(out.is_sorted_by_key(|event| event.at));
            let mut next = [0; 3];
            let mut told = 0;
            for event in &out {
                let next = &mut next[event.core.index()];
                prop_assert_eq!(event.sequence, *next);
                let count = match event.what { What::Lost { count } => count, _ => 1 };
                told += if matches!(event.what, What::Lost { .. }) { count } else { 0 };
                *next += count;
            }
            prop_assert_eq!(told, lost);
            prop_assert_eq!(out.iter().filter(|event| !matches!(event.what, What::Lost { .. })).count(), kept);
            prop_assert_eq!(merge.counts(), Counts { events: out.len() as u64, lost, late: 0 });
        }
    }
}
