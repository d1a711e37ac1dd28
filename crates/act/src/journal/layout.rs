//! Where what stands in the journal file. One header page, then slots of one size.
//!
//! All is 64-bit words in the host's byte order: a journal never leaves its host, nor outlives its boot.

/// Bytes of a value: a mask of [`quell_model::CORES_MAX`] cores and a flag word fit, and so do cgroup paths of
/// container managers.
pub(crate) const VALUE_BYTES: usize = 256;
pub(crate) const VALUE_WORDS: usize = VALUE_BYTES / 8;
/// Bytes of the name of a setting or cgroup.
pub(crate) const NAME_BYTES: usize = 320;
pub(crate) const NAME_WORDS: usize = NAME_BYTES / 8;

/// Words of the header page.
pub(crate) const HEADER_WORDS: usize = 512;
/// Words of the palette: the distinct thread values that Quell wrote lately.
pub(crate) const PALETTE_WORDS: usize = 2048;
/// Where slots begin.
pub(crate) const SLOTS_AT: usize = HEADER_WORDS + PALETTE_WORDS;
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"QUELLJNL");
/// Raised with each change of layout or meaning: another version's journal is not read.
pub(crate) const VERSION: u64 = 2;

/// Words of the header.
pub(crate) mod header {
    pub(crate) const MAGIC: usize = 0;
    /// Version in the upper half, words of a slot in the lower.
    pub(crate) const LAYOUT: usize = 1;
    pub(crate) const CAPACITY: usize = 2;
    pub(crate) const DAEMON_PID: usize = 3;
    pub(crate) const DAEMON_START: usize = 4;
    /// Hash of the boot's id.
    pub(crate) const BOOT: usize = 5;
    /// Checksum of the words before it, which never change.
    pub(crate) const CHECK: usize = 6;
    pub(crate) const HEARTBEAT: usize = 16;
    pub(crate) const STATE: usize = 17;
    /// Slots at and after this one were never used.
    pub(crate) const USED: usize = 18;
    /// Who restores, so that a restorer that hangs can be ended.
    pub(crate) const RESTORER_PID: usize = 19;
    pub(crate) const RESTORER_START: usize = 20;
}

/// Words of a slot.
pub(crate) mod slot {
    use super::{NAME_WORDS, VALUE_WORDS};

    /// Kind and state; written last.
    pub(crate) const STATE: usize = 0;
    /// Order of creation: restore goes newest first.
    pub(crate) const ORDER: usize = 1;
    /// Thread in the upper half, process in the lower.
    pub(crate) const TID: usize = 2;
    pub(crate) const START: usize = 3;
    pub(crate) const PIDFD_INODE: usize = 4;
    /// When the slot was made, in clock ticks since boot: threads that are older inherited nothing.
    pub(crate) const CREATED: usize = 5;
    pub(crate) const NAME_LEN: usize = 6;
    /// Checksum of kind, the words before it and the name.
    pub(crate) const CHECK: usize = 7;
    /// When it was given back before its time, in clock ticks since boot; 0: not yet. It stays as a bequest to
    /// children that were born before and are not known yet.
    pub(crate) const RETURNED: usize = 8;
    /// Four entries: two for the original, two for what Quell wrote.
    pub(crate) const ENTRIES: usize = 10;
    /// An entry: sequence and length, checksum, value.
    pub(crate) const ENTRY_WORDS: usize = 2 + VALUE_WORDS;
    pub(crate) const NAME: usize = ENTRIES + 4 * ENTRY_WORDS;
    pub(crate) const WORDS: usize = (NAME + NAME_WORDS).next_multiple_of(64);
}

/// An entry of the palette.
pub(crate) mod palette {
    use quell_model::CORES_MAX;

    /// Kind and length; written last.
    pub(crate) const HEAD: usize = 0;
    pub(crate) const CHECK: usize = 1;
    pub(crate) const VALUE: usize = 2;
    /// A flag word and a mask.
    pub(crate) const VALUE_WORDS: usize = 1 + CORES_MAX / 64;
    pub(crate) const WORDS: usize = VALUE + VALUE_WORDS;
    pub(crate) const ENTRIES: usize = super::PALETTE_WORDS / WORDS;
}

/// FNV-1a over 64-bit words: finds torn and stray writes. Forgery is kept out by the file's owner and mode.
pub(crate) fn checksum(seed: u64, words: impl IntoIterator<Item = u64>) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ seed;
    words.into_iter().fold(start, |hash, word| {
        let mixed = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        mixed ^ mixed >> 29
    })
}
