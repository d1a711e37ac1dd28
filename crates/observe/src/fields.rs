//! Native-endian fields of the records that BPF programs write, at offsets that are within `bytes`.

use quell_model::CoreSet;

/// `QUELL_MASK_WORDS`: words of the largest set of cores.
pub(super) const MASK_WORDS: usize = 16;

pub(super) fn half(bytes: &[u8], at: usize) -> u16 {
    bytes[at..].first_chunk().map_or(0, |half| u16::from_ne_bytes(*half))
}

pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |word| u32::from_ne_bytes(*word))
}

pub(super) fn wide(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word))
}

/// All of `mask`, as a kernel's set of cores.
pub(super) fn cores(mask: &[u8]) -> CoreSet {
    let mut words = [0; MASK_WORDS];
    for (word, bytes) in words.iter_mut().zip(mask.chunks_exact(8)) {
        *word = wide(bytes, 0);
    }
    CoreSet::from_words(&words)
}
