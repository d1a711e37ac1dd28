//! The bytes of one direction of a stream that are in memory, by their offsets.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::memory::{Pool, Span, spans_of};

/// Bytes below this are copied into memory of their stream, so that a small message does not hold a large segment.
const COPY_BELOW: usize = 16 << 10;

#[derive(Debug)]
struct Piece {
    offset: u64,
    span: Span,
}

impl Piece {
    fn end(&self) -> u64 {
        self.offset + self.span.len() as u64
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Store {
    /// Ascending and disjoint.
    pieces: VecDeque<Piece>,
}

impl Store {
    /// Copies bytes to an offset at which there are none.
    pub fn copy(&mut self, pool: &Arc<Pool>, offset: u64, bytes: &[u8]) {
        let index = self.pieces.partition_point(|piece| piece.offset < offset);
        let before = index.checked_sub(1).map(|before| &mut self.pieces[before]);
        let grown =
            before.filter(|piece| piece.end() == offset).map_or(0, |it| it.span.grow(bytes));
        let mut at = offset + grown as u64;
        for span in spans_of(pool, &bytes[grown..]) {
            let length = span.len() as u64;
            self.insert(at, span);
            at += length;
        }
    }

    /// Puts bytes at an offset at which there are none: large ones by reference.
    pub fn put(&mut self, pool: &Arc<Pool>, offset: u64, span: Span) {
        if span.len() < COPY_BELOW {
            return self.copy(pool, offset, span.bytes());
        }
        self.insert(offset, span);
    }

    /// The same, always by reference.
    pub fn insert(&mut self, offset: u64, span: Span) {
        let piece = Piece { offset, span };
        let index = self.pieces.partition_point(|known| known.offset < offset);
        debug_assert!(index == 0 || self.pieces[index - 1].end() <= offset, "bytes come twice");
        debug_assert!(self.pieces.get(index).is_none_or(|next| piece.end() <= next.offset));
        self.pieces.insert(index, piece);
    }

    /// Takes the first bytes out, of at most `most`: they are in a row.
    pub fn take(&mut self, mut most: u64) -> Vec<Span> {
        let mut taken = Vec::new();
        while most > 0 {
            let Some(first) = self.pieces.front_mut() else { break };
            if first.span.len() as u64 > most {
                first.offset += most;
                taken.push(first.span.split_to(most as usize));
                break;
            }
            most -= first.span.len() as u64;
            taken.extend(self.pieces.pop_front().map(|piece| piece.span));
        }
        taken
    }

    /// Gives the parts of `start..end`, all of which is there, in order.
    pub fn for_each(&self, start: u64, end: u64, mut part: impl FnMut(&Span, usize, usize)) {
        let first = self.pieces.partition_point(|piece| piece.end() <= start);
        let mut at = start;
        for piece in self.pieces.range(first..).take_while(|piece| piece.offset < end) {
            debug_assert!(piece.offset <= at, "bytes are missing");
            let (from, to) = (at.saturating_sub(piece.offset), end.min(piece.end()) - piece.offset);
            part(&piece.span, from as usize, to as usize);
            at = piece.end();
        }
        debug_assert!(at >= end, "bytes are missing");
    }

    /// Frees all below an offset.
    pub fn free_below(&mut self, offset: u64) {
        while self.pieces.front().is_some_and(|piece| piece.end() <= offset) {
            self.pieces.pop_front();
        }
        if self.pieces.is_empty() {
            self.pieces = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::LARGE;

    fn bytes_of(spans: &[Span]) -> Vec<u8> {
        spans.iter().flat_map(|span| span.bytes().iter().copied()).collect()
    }

    #[test]
    fn bytes_come_out_in_order_whatever_their_way_in() {
        let pool = Arc::new(Pool::default());
        let mut store = Store::default();
        let large = spans_of(&pool, &[3; LARGE]).remove(0);
        store.put(&pool, 30, large);
        store.copy(&pool, 10, &[2; 20]);
        store.copy(&pool, 0, &[1; 10]);
        store.copy(&pool, 30 + LARGE as u64, &[4; 5]);
        let mut seen = Vec::new();
        store.for_each(5, 35, |span, from, to| seen.extend_from_slice(&span.bytes()[from..to]));
        assert_eq!(seen, [vec![1; 5], vec![2; 20], vec![3; 5]].concat());
        assert_eq!(bytes_of(&store.take(15)), [vec![1; 10], vec![2; 5]].concat());
        assert_eq!(bytes_of(&store.take(u64::MAX)).len(), 15 + LARGE + 5);
        assert!(store.take(1).is_empty());
    }

    #[test]
    fn small_writes_share_a_segment_and_are_freed_together() {
        let pool = Arc::new(Pool::default());
        let mut store = Store::default();
        for index in 0..64 {
            store.copy(&pool, index * 64, &[index as u8; 64]);
        }
        assert_eq!(store.pieces.len(), 1);
        store.free_below(4_095);
        assert_eq!(store.pieces.len(), 1);
        store.free_below(4_096);
        assert!(store.pieces.is_empty());
    }
}
