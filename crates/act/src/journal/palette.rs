//! The distinct values that Quell wrote to threads lately, whatever threads these were.
//!
//! A slot remembers two values; a child that was born earlier and is not known yet may show an older one. It
//! is told as Quell's by the palette. There are few: the rungs, and the sets of cores that occurred.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release, fence};

use super::layout::{VALUE_WORDS, checksum, palette};
use super::slot::Kind;
use super::value::{self, Value};

/// The writer's copy.
#[derive(Default)]
pub(super) struct Palette {
    values: Vec<Value>,
    /// The oldest, once all places are taken.
    next: usize,
}

impl Palette {
    /// Adds a value before it is written; the oldest goes where there is no room.
    pub(super) fn add(&mut self, value: &Value, words: &[AtomicU64]) {
        let kind = match value {
            Value::Sched(_) => Kind::Sched,
            Value::Cores(_) => Kind::Affinity,
            Value::Text(_) => return,
        };
        if self.values.contains(value) {
            return;
        }
        let at = self.next;
        match self.values.get_mut(at) {
            Some(place) => place.clone_from(value),
            None => self.values.push(value.clone()),
        }
        self.next = (at + 1) % palette::ENTRIES;
        write(&words[at * palette::WORDS..][..palette::WORDS], kind, value);
    }

    /// Whether it has such a value.
    pub(super) fn has(&self, same: impl Fn(&Value) -> bool) -> bool {
        self.values.iter().any(same)
    }
}

fn write(words: &[AtomicU64], kind: Kind, value: &Value) {
    let mut encoded = [0; VALUE_WORDS];
    // Values of threads always fit.
    let Some(bytes) = value::encode(value, &mut encoded) else { return };
    let used = bytes.div_ceil(8).min(palette::VALUE_WORDS);
    words[palette::HEAD].store(0, Relaxed);
    fence(Release);
    for (to, word) in words[palette::VALUE..].iter().zip(&encoded[..used]) {
        to.store(*word, Relaxed);
    }
    let head = (kind as u64) << 32 | bytes as u64;
    words[palette::CHECK].store(checksum(head, encoded[..used].iter().copied()), Relaxed);
    // For a reader after this process died, as in a slot.
    words[palette::HEAD].store(head, Release);
}

/// Reads the palette of a journal; what is damaged is left out.
pub(super) fn read(words: &[AtomicU64]) -> Vec<Value> {
    words.chunks_exact(palette::WORDS).filter_map(read_entry).collect()
}

fn read_entry(words: &[AtomicU64]) -> Option<Value> {
    let head = words[palette::HEAD].load(Relaxed);
    let kind = [Kind::Sched, Kind::Affinity].into_iter().find(|kind| *kind as u64 == head >> 32)?;
    let bytes = head as u32 as usize;
    let used = bytes.div_ceil(8);
    if used > palette::VALUE_WORDS {
        return None;
    }
    let mut encoded = [0; VALUE_WORDS];
    for (word, from) in encoded[..used].iter_mut().zip(&words[palette::VALUE..]) {
        *word = from.load(Relaxed);
    }
    let check = checksum(head, encoded[..used].iter().copied());
    (check == words[palette::CHECK].load(Relaxed)).then(|| value::decode(kind, &encoded, bytes))?
}
