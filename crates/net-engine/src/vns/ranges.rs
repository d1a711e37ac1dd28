//! Sets of offsets, as few ranges: what arrived beyond a gap, what has to be sent again.

/// Disjoint ranges `start..end` in ascending order, none of which touches the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet(Vec<(u64, u64)>);

impl RangeSet {
    /// An empty set. It allocates when the first range is inserted.
    pub const fn new() -> RangeSet {
        RangeSet(Vec::new())
    }

    /// Whether it has no offset.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many ranges it has.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The lowest range.
    pub fn first(&self) -> Option<(u64, u64)> {
        self.0.first().copied()
    }

    /// All ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().copied()
    }

    /// How many offsets it has.
    pub fn total(&self) -> u64 {
        self.iter().map(|(start, end)| end - start).sum()
    }

    /// Whether it has this offset.
    pub fn contains(&self, offset: u64) -> bool {
        let index = self.0.partition_point(|(_, end)| *end <= offset);
        self.0.get(index).is_some_and(|(start, _)| *start <= offset)
    }

    /// Whether some offset of a range is not in the set.
    pub fn has_gap(&self, start: u64, end: u64) -> bool {
        let index = self.0.partition_point(|(_, known)| *known <= start);
        let covers = |(from, to): &(u64, u64)| *from <= start && end <= *to;
        start < end && !self.0.get(index).is_some_and(covers)
    }

    /// Whether inserting a range would make more than `max` of them: a peer that sends every other byte must not make the
    /// set grow without bound.
    pub fn would_exceed(&self, start: u64, end: u64, max: usize) -> bool {
        let first = self.0.partition_point(|(_, known)| *known < start);
        let merges = self.0.get(first).is_some_and(|(known, _)| *known <= end);
        !merges && self.0.len() >= max
    }

    /// Adds `start..end`.
    pub fn insert(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let first = self.0.partition_point(|(_, known)| *known < start);
        let last = self.0.partition_point(|(known, _)| *known <= end);
        if first == last {
            self.0.insert(first, (start, end));
            return;
        }
        let merged = (start.min(self.0[first].0), end.max(self.0[last - 1].1));
        self.0[first] = merged;
        self.0.drain(first + 1..last);
    }

    /// Takes `start..end` out.
    pub fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let first = self.0.partition_point(|(_, known)| *known <= start);
        let last = self.0.partition_point(|(known, _)| *known < end);
        if first >= last {
            return;
        }
        let (before, after) = (self.0[first].0, self.0[last - 1].1);
        let left = [(before, start), (end, after)];
        let left = left.into_iter().filter(|(start, end)| start < end);
        self.0.splice(first..last, left);
    }

    /// Takes the offsets below `offset` out.
    pub fn remove_below(&mut self, offset: u64) {
        self.remove(0, offset);
    }

    /// Frees its memory once it is empty.
    pub fn shrink(&mut self) {
        if self.0.is_empty() {
            self.0 = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn ranges_of(offsets: &BTreeSet<u64>) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for offset in offsets {
            match ranges.last_mut() {
                Some((_, end)) if *end == *offset => *end += 1,
                _ => ranges.push((*offset, offset + 1)),
            }
        }
        ranges
    }

    proptest! {
        #[test]
        fn range_set_is_a_set_of_offsets(
            steps in proptest::collection::vec((any::<bool>(), 0u64..64, 0u64..16), 0..40),
        ) {
            let (mut set, mut expected) = (RangeSet::new(), BTreeSet::new());
            for (inserts, start, length) in steps {
                let end = start + length;
                let before = set.len();
                let exceeds = set.would_exceed(start, end, before);
                if inserts {
                    set.insert(start, end);
                    expected.extend(start..end);
                    prop_assert!(length == 0 || exceeds == (set.len() > before));
                } else {
                    set.remove(start, end);
                    expected.retain(|offset| !(start..end).contains(offset));
                }
                prop_assert_eq!(set.iter().collect::<Vec<_>>(), ranges_of(&expected));
                prop_assert_eq!(set.total(), expected.len() as u64);
                prop_assert!((0..80).all(|at| set.contains(at) == expected.contains(&at)));
            }
        }
    }
}
