//! The layout of a page, version 1; `include/quell_hints.h` is its mirror in C.
//!
//! ```text
//! header, 64 bytes      magic  version  slots  slot_bytes  used  size
//! slot 0, 64 bytes      thread  queue_depth  request_start  request_check  oldest_queued  requests
//! slot 1 ..
//! ```
//!
//! All words have the byte order of the machine: a page never leaves it. Each word is written and read by itself,
//! since nothing else is published through it; all stores to a slot are relaxed. What has to fit together is
//! the start of a request: it is there twice, the second time inverted, so that a copy taken between the two
//! stores, a torn one, and a page of garbage are all told from a start.

use quell_model::Nanos;

/// `QUELLHNT`.
pub const MAGIC: u64 = u64::from_ne_bytes(*b"QUELLHNT");
/// The version of this layout.
pub const VERSION: u32 = 1;
/// Bytes of the header and of each slot: a cache line.
pub const LINE_BYTES: usize = 64;
/// Slots that a page may have at most.
pub const SLOTS_MAX: u32 = 1_024;

/// Offsets in the header.
pub(crate) mod header {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 8;
    pub const SLOTS: usize = 12;
    pub const SLOT_BYTES: usize = 16;
    pub const USED: usize = 20;
    pub const SIZE: usize = 24;
}

/// Offsets in a slot.
pub(crate) mod slot {
    pub const THREAD: usize = 0;
    pub const QUEUE_DEPTH: usize = 4;
    pub const REQUEST_START: usize = 8;
    pub const REQUEST_CHECK: usize = 16;
    pub const OLDEST_QUEUED: usize = 24;
    pub const REQUESTS: usize = 32;
}

/// One line of a page as bytes.
pub type Line = [u8; LINE_BYTES];

/// Bytes of a page with so many slots.
pub fn page_bytes(slots: u32) -> usize {
    LINE_BYTES * (slots as usize + 1)
}

/// Why a file is no page of hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Something else, or not set up yet.
    #[error("it does not begin as a page of hints does")]
    Magic,
    /// A layout that this program does not know.
    #[error("its layout has version {0}, this program reads version {VERSION}")]
    Version(u32),
    /// Slots that cannot be.
    #[error("it names {0} slots; 1 to {SLOTS_MAX} are possible")]
    Slots(u32),
    /// Slots of another size, or a size that does not follow from the slots.
    #[error("its sizes contradict each other")]
    Size,
    /// The file ends before its last slot.
    #[error("the file is shorter than it says")]
    Short,
}

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Slots of the page.
    pub slots: u32,
    /// Slots that were ever in use: those behind them are blank. At most `slots`.
    pub used: u32,
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// When it is not that of a page of this layout.
    pub fn read(line: &Line) -> Result<Header, Malformed> {
        if u64_at(line, header::MAGIC) != MAGIC {
            return Err(Malformed::Magic);
        }
        match u32_at(line, header::VERSION) {
            VERSION => {}
            other => return Err(Malformed::Version(other)),
        }
        let slots = u32_at(line, header::SLOTS);
        if !(1..=SLOTS_MAX).contains(&slots) {
            return Err(Malformed::Slots(slots));
        }
        let slot_bytes = u32_at(line, header::SLOT_BYTES) as usize;
        if slot_bytes != LINE_BYTES || u64_at(line, header::SIZE) != page_bytes(slots) as u64 {
            return Err(Malformed::Size);
        }
        Ok(Header { slots, used: u32_at(line, header::USED).min(slots) })
    }
}

/// What a thread hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The thread, by the kernel's number.
    pub thread: i32,
    /// When the request that it serves began; `None`: it serves none.
    pub request_start: Option<Nanos>,
    /// Requests that wait for it.
    pub queue_depth: u32,
    /// Since when the oldest of them waits; `None`: none does, or it is not told.
    pub oldest_queued: Option<Nanos>,
    /// Requests that it began so far.
    pub requests: u64,
}

/// A slot as copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotCopy {
    /// No thread has it.
    Free,
    /// Copied while a request began or ended, or torn, or garbage: the next copy tells.
    Unsettled,
    /// A thread's.
    Of(Hint),
}

impl SlotCopy {
    /// Reads a slot. Any bytes are a slot; nothing in it is believed yet: the thread may not exist, and times may
    /// be in the future.
    pub fn read(line: &Line) -> SlotCopy {
        let thread = match i32::try_from(u32_at(line, slot::THREAD)) {
            Ok(0) => return SlotCopy::Free,
            Ok(thread) => thread,
            Err(_) => return SlotCopy::Unsettled,
        };
        let start = u64_at(line, slot::REQUEST_START);
        // A slot that was never written to holds zeroes only.
        if start != 0 && u64_at(line, slot::REQUEST_CHECK) != !start {
            return SlotCopy::Unsettled;
        }
        let time = |at: u64| (at != 0).then_some(Nanos(at));
        SlotCopy::Of(Hint {
            thread,
            request_start: time(start),
            queue_depth: u32_at(line, slot::QUEUE_DEPTH),
            oldest_queued: time(u64_at(line, slot::OLDEST_QUEUED)),
            requests: u64_at(line, slot::REQUESTS),
        })
    }
}

fn u32_at(line: &Line, at: usize) -> u32 {
    u32::from_ne_bytes([line[at], line[at + 1], line[at + 2], line[at + 3]])
}

fn u64_at(line: &Line, at: usize) -> u64 {
    u64::from(u32_at(line, at)) << low_shift() | u64::from(u32_at(line, at + 4)) << high_shift()
}

/// How far the first half of a word goes up: nowhere, where the low half comes first.
const fn low_shift() -> u32 {
    if cfg!(target_endian = "little") { 0 } else { 32 }
}

const fn high_shift() -> u32 {
    32 - low_shift()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header_of(slots: u32) -> Line {
        let mut line = [0; LINE_BYTES];
        line[header::MAGIC..][..8].copy_from_slice(&MAGIC.to_ne_bytes());
        line[header::VERSION..][..4].copy_from_slice(&VERSION.to_ne_bytes());
        line[header::SLOTS..][..4].copy_from_slice(&slots.to_ne_bytes());
        line[header::SLOT_BYTES..][..4].copy_from_slice(&64u32.to_ne_bytes());
        line[header::SIZE..][..8].copy_from_slice(&(page_bytes(slots) as u64).to_ne_bytes());
        line
    }

    #[test]
    fn a_header_reads_back_and_each_of_its_words_counts() {
        let mut line = header_of(8);
        line[header::USED] = 200;
        assert_eq!(Header::read(&line), Ok(Header { slots: 8, used: 8 }), "bounded by the slots");
        for (at, why) in [
            (header::MAGIC, Malformed::Magic),
            (header::VERSION, Malformed::Version(3)),
            (header::SLOTS + 1, Malformed::Slots(0x208 + 0x400)),
            (header::SLOT_BYTES, Malformed::Size),
            (header::SIZE, Malformed::Size),
        ] {
            let mut line = header_of(8);
            line[at] ^= if at == header::SLOTS + 1 { 6 } else { 2 };
            assert_eq!(Header::read(&line), Err(why));
        }
        assert_eq!(Header::read(&header_of(0)), Err(Malformed::Slots(0)));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_fail_nor_give_a_start_without_its_check(
            bytes in proptest::array::uniform32(any::<u64>()),
            thread in 1..i32::MAX,
        ) {
            let mut line: Line = [0; LINE_BYTES];
            for (to, word) in line.chunks_exact_mut(8).zip(bytes) {
                to.copy_from_slice(&word.to_ne_bytes());
            }
            let _ = Header::read(&line);
            let _ = SlotCopy::read(&line);
            line[slot::THREAD..][..4].copy_from_slice(&thread.to_ne_bytes());
            if bytes[1] != 0 && bytes[2] != !bytes[1] {
                prop_assert_eq!(SlotCopy::read(&line), SlotCopy::Unsettled);
            }
            line[slot::REQUEST_CHECK..][..8].copy_from_slice(&(!bytes[1]).to_ne_bytes());
            let SlotCopy::Of(hint) = SlotCopy::read(&line) else { panic!("not a hint") };
            prop_assert_eq!(hint.thread, thread);
            prop_assert_eq!(hint.request_start.map_or(0, |start| start.0), bytes[1]);
        }
    }
}
