//! Memory for bytes on their way: segments that one owner fills, and that are read by reference from then on.
//!
//! A segment goes back to its pool with its last reference, so that a busy endpoint neither allocates nor touches new
//! pages. All of it is safe code: a segment that is shared is never written again.

use std::sync::{Arc, Mutex, PoisonError};

use crate::threads;

/// Bytes of a segment for small messages.
pub(crate) const SMALL: usize = 4 << 10;
/// Bytes of a segment for bulk data: the frames of a channel are read and sent in pieces of it.
pub(crate) const LARGE: usize = 64 << 10;

/// Free bytes that a pool keeps of each size; what is beyond goes back to the system.
const KEPT_BYTES: usize = 32 << 20;

/// Free segments of both sizes.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    small: Mutex<Vec<Box<[u8]>>>,
    large: Mutex<Vec<Box<[u8]>>>,
}

impl Pool {
    /// An empty segment with room for `bytes`, if that is not more than [`LARGE`].
    pub fn segment(self: &Arc<Pool>, bytes: usize) -> Segment {
        let size = if bytes <= SMALL { SMALL } else { LARGE };
        let free =
            threads::hold(|| self.free(size).lock().unwrap_or_else(PoisonError::into_inner).pop());
        let bytes = free.unwrap_or_else(|| vec![0; size].into_boxed_slice());
        Segment { bytes, filled: 0, pool: Arc::clone(self) }
    }

    fn free(&self, size: usize) -> &Mutex<Vec<Box<[u8]>>> {
        if size == SMALL { &self.small } else { &self.large }
    }

    fn put_back(&self, bytes: Box<[u8]>) {
        let size = bytes.len();
        threads::hold(|| {
            let mut free = self.free(size).lock().unwrap_or_else(PoisonError::into_inner);
            if (free.len() + 1) * size <= KEPT_BYTES {
                free.push(bytes);
            }
        });
    }
}

/// Memory that is filled from its start.
#[derive(Debug)]
pub(crate) struct Segment {
    bytes: Box<[u8]>,
    filled: usize,
    pool: Arc<Pool>,
}

impl Segment {
    /// Bytes that can still be filled.
    pub fn room(&self) -> usize {
        self.bytes.len() - self.filled
    }

    /// The part that is not filled.
    pub fn free_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    /// The first `bytes` of [`Segment::free_mut`] are filled now.
    pub fn fill(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.room());
        self.filled = (self.filled + bytes).min(self.bytes.len());
    }

    /// Copies as much as has room; returns how much.
    pub fn append(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room());
        self.free_mut()[..taken].copy_from_slice(&bytes[..taken]);
        self.fill(taken);
        taken
    }

    /// Empties it: nothing refers to what it held.
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// All that is filled, to be shared.
    pub fn into_span(self) -> Span {
        let end = self.filled;
        Span { segment: Arc::new(self), start: 0, end }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.pool.put_back(std::mem::take(&mut self.bytes));
    }
}

/// A filled part of a segment.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    segment: Arc<Segment>,
    start: usize,
    end: usize,
}

impl Span {
    /// A part of a shared segment.
    pub fn new(segment: &Arc<Segment>, start: usize, end: usize) -> Span {
        debug_assert!(start <= end && end <= segment.filled);
        Span { segment: Arc::clone(segment), start, end }
    }

    pub fn len(&self) -> usize {
        self.end - self.start
    }

    pub fn bytes(&self) -> &[u8] {
        &self.segment.bytes[self.start..self.end]
    }

    /// The bytes `from..to` of it.
    pub fn slice(&self, from: usize, to: usize) -> Span {
        debug_assert!(from <= to && to <= self.len());
        Span { segment: Arc::clone(&self.segment), start: self.start + from, end: self.start + to }
    }

    /// Takes the first `bytes` out.
    pub fn split_to(&mut self, bytes: usize) -> Span {
        let first = self.slice(0, bytes);
        self.start += bytes;
        first
    }

    /// Copies bytes behind it, if nothing else refers to its segment and that ends with it. Returns how many.
    pub fn grow(&mut self, bytes: &[u8]) -> usize {
        let Some(segment) = Arc::get_mut(&mut self.segment) else { return 0 };
        if segment.filled != self.end {
            return 0;
        }
        let taken = segment.append(bytes);
        self.end += taken;
        taken
    }
}

/// Copies bytes into segments of their own.
pub(crate) fn spans_of(pool: &Arc<Pool>, mut bytes: &[u8]) -> Vec<Span> {
    let mut spans = Vec::with_capacity(bytes.len().div_ceil(LARGE));
    while !bytes.is_empty() {
        let mut segment = pool.segment(bytes.len());
        bytes = &bytes[segment.append(bytes)..];
        spans.push(segment.into_span());
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_returns_to_its_pool_with_its_last_reference() {
        let pool = Arc::new(Pool::default());
        let spans = spans_of(&pool, &[7; LARGE + 10]);
        assert_eq!(spans.iter().map(Span::len).collect::<Vec<_>>(), [LARGE, 10]);
        let part = spans[0].slice(100, 200);
        drop(spans);
        assert_eq!((pool.small.lock().unwrap().len(), pool.large.lock().unwrap().len()), (1, 0));
        assert_eq!(part.bytes(), [7; 100]);
        drop(part);
        assert_eq!(pool.large.lock().unwrap().len(), 1);
        let again = pool.segment(LARGE);
        assert_eq!((again.room(), pool.large.lock().unwrap().len()), (LARGE, 0));
    }

    #[test]
    fn span_grows_only_while_nobody_else_sees_its_segment() {
        let pool = Arc::new(Pool::default());
        let mut span = spans_of(&pool, b"ab").remove(0);
        assert_eq!(span.grow(b"cd"), 2);
        let seen = span.slice(1, 3);
        assert_eq!((span.grow(b"ef"), seen.bytes()), (0, &b"bc"[..]));
        drop(seen);
        assert_eq!((span.grow(&[0; 2 * SMALL]), span.len()), (SMALL - 4, SMALL));
    }
}
