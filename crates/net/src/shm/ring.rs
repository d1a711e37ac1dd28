//! A byte stream through memory that two processes share: each side writes its own memory and only reads the other's.
//!
//! The bytes are in records of whole words, so that they can be copied by atomic loads and stores of words: the other
//! process may be hostile, and may write while this one reads.
//!
//! ```text
//! word 0        magic and version
//! word 8        bytes produced into the ring (only its owner writes)
//! word 16       bytes of the other's ring consumed
//! word 24       number of the sleep for data, or 0: awake
//! word 32       number of the sleep for room, or 0: awake
//! word 40       core on which this side was last
//! word 512..    the ring: records of one word of length, and their bytes
//! ```

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quell_os::{MapAccess, SharedWords};
use rustix::fs::{MemfdFlags, SealFlags};

use crate::meet::{acquire, store_and_look};

/// Bytes of a ring: small enough to stay in a core's cache (larger ones are slower).
pub(super) const RING_BYTES: u64 = 256 << 10;
const WORD: u64 = 8;
const HEAD_WORDS: usize = 512;
const RING_WORDS: usize = (RING_BYTES / WORD) as usize;
const WORDS: usize = HEAD_WORDS + RING_WORDS;
/// Unit of the block count of a file (stat(2)).
const BLOCK: u64 = 512;
const MAGIC: u64 = u64::from_le_bytes(*b"\x89QUELLr\x01");

const PRODUCED: usize = 8;
const CONSUMED: usize = 16;
const ASLEEP_FOR_DATA: usize = 24;
const ASLEEP_FOR_ROOM: usize = 32;
const CORE: usize = 40;

/// No process changes its length, nor maps it writable after its owner.
const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// The memory of one side.
pub(super) struct Side(SharedWords);

impl Side {
    /// Creates this side's memory. The descriptor is for the other.
    pub fn create() -> io::Result<(Side, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create(c"quell-net", flags)?);
        file.set_len(WORDS as u64 * WORD)?;
        // All of it is there from the start: no access fails later for want of memory.
        let none = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, none, 0, WORDS as u64 * WORD)?;
        let words = SharedWords::map(&file, WORDS)?;
        // After the writable mapping, which FUTURE_WRITE lets stay.
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        words[0].store(MAGIC, Ordering::Relaxed);
        Ok((Side(words), file.into()))
    }

    /// Maps the other side's memory, after a look at what it is.
    pub fn open(file: OwnedFd) -> io::Result<Side> {
        let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let file = File::from(file);
        let seals = rustix::fs::fcntl_get_seals(file.as_fd())
            .map_err(|_| invalid("the peer's memory is no memfd"))?;
        if !seals.contains(SEALS) {
            return Err(invalid("the peer's memory is not sealed"));
        }
        let metadata = file.metadata()?;
        let expected = WORDS as u64 * WORD;
        if metadata.len() != expected || metadata.blocks() * BLOCK < expected {
            return Err(invalid("the peer's memory is not of the expected size, or not there"));
        }
        let words = SharedWords::map_at(&file, 0, WORDS, MapAccess::Read)?;
        if words[0].load(Ordering::Relaxed) != MAGIC {
            return Err(invalid("the peer's memory has another layout"));
        }
        Ok(Side(words))
    }

    fn ring(&self) -> &[AtomicU64] {
        &self.0[HEAD_WORDS..]
    }

    /// On which core this side is now, for the other to know whether waiting awake is of use.
    pub fn note_core(&self) {
        let core = rustix::thread::sched_getcpu() as u64;
        if self.0[CORE].load(Ordering::Relaxed) != core {
            self.0[CORE].store(core, Ordering::Relaxed);
        }
    }

    /// Whether this side was last on another core, and sleeps neither for data nor for room, or was woken from that sleep:
    /// the numbers of the sleeps that were ended by a wake-up.
    pub fn is_awake_elsewhere(&self, woken: [u64; 2]) -> bool {
        let is_awake = |word: usize, woken: u64| {
            let asleep = self.0[word].load(Ordering::Relaxed);
            asleep == 0 || asleep == woken
        };
        is_awake(ASLEEP_FOR_DATA, woken[0])
            && is_awake(ASLEEP_FOR_ROOM, woken[1])
            && self.0[CORE].load(Ordering::Relaxed) != rustix::thread::sched_getcpu() as u64
    }
}

/// Something that the other side has written makes no sense: the channel ends.
fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// This side's ring: bytes for the other.
pub(super) struct Producer {
    own: Arc<Side>,
    peer: Arc<Side>,
    produced: u64,
    /// As last seen.
    consumed: u64,
    /// The sleep for which the other was last woken.
    rung: u64,
}

/// The other side's ring.
pub(super) struct Consumer {
    own: Arc<Side>,
    peer: Arc<Side>,
    consumed: u64,
    /// As last seen: it never falls, so that an open record stays covered.
    produced: u64,
    /// What the other side knows to be read: a carried word is not.
    published: u64,
    /// Bytes of the present record that were not read.
    left: u64,
    /// Bytes of a word that had no room whole.
    carry: Carry,
    rung: u64,
}

/// See [`Consumer::carry`].
#[derive(Debug, Default)]
struct Carry {
    bytes: [u8; WORD as usize],
    start: usize,
    end: usize,
}

/// Whether the other side has to be woken.
pub(super) type MustWake = bool;

impl Producer {
    pub fn new(own: Arc<Side>, peer: Arc<Side>) -> Producer {
        Producer { own, peer, produced: 0, consumed: 0, rung: 0 }
    }

    /// Free bytes of the ring.
    fn room(&mut self) -> io::Result<u64> {
        // Acquire: pairs with the consumer's release, so that what it has read is not overwritten before.
        let consumed = acquire(&self.peer.0[CONSUMED]);
        let is_whole = consumed.is_multiple_of(WORD);
        if consumed < self.consumed || consumed > self.produced || !is_whole {
            return Err(broken("the peer has read what was not written"));
        }
        self.consumed = consumed;
        Ok(RING_BYTES - (self.produced - consumed))
    }

    /// Copies as much as has room. Nothing if there is none.
    pub fn push(&mut self, slices: &[IoSlice<'_>]) -> io::Result<(usize, MustWake)> {
        let mut room = self.room()?;
        let mut taken = 0;
        for slice in slices.iter().filter(|slice| !slice.is_empty()) {
            // One word of length, and at least one of bytes.
            if room < 2 * WORD {
                break;
            }
            let length = (slice.len() as u64).min(room - WORD);
            self.record(&slice[..length as usize]);
            room -= WORD + length.next_multiple_of(WORD);
            taken += length as usize;
            if length < slice.len() as u64 {
                break;
            }
        }
        if taken == 0 {
            return Ok((0, false));
        }
        self.own.note_core();
        // Either the consumer sees the bytes before it sleeps, or this sees that it sleeps.
        let asleep =
            store_and_look(&self.own.0[PRODUCED], self.produced, &self.peer.0[ASLEEP_FOR_DATA]);
        let must_wake = asleep != 0 && asleep != self.rung;
        self.rung = asleep;
        Ok((taken, must_wake))
    }

    fn record(&mut self, bytes: &[u8]) {
        let ring = self.own.ring();
        let mut at = (self.produced / WORD) as usize;
        // Relaxed: `PRODUCED` is stored after.
        ring[at % RING_WORDS].store(bytes.len() as u64, Ordering::Relaxed);
        at += 1;
        let words = bytes.len().div_ceil(WORD as usize);
        let start = at % RING_WORDS;
        let first = words.min(RING_WORDS - start);
        let (head, tail) = bytes.split_at(bytes.len().min(first * WORD as usize));
        store_words(&ring[start..], head);
        store_words(ring, tail);
        self.produced += WORD * (1 + words as u64);
    }

    /// A thread is about to sleep until there is room. True if there is some already.
    pub fn arm(own: &Side, peer: &Side, number: u64) -> bool {
        let consumed = store_and_look(&own.0[ASLEEP_FOR_ROOM], number, &peer.0[CONSUMED]);
        Producer::is_roomy(own, consumed)
    }

    /// Whether so much is free that it is worth going on.
    pub fn has_room(own: &Side, peer: &Side) -> bool {
        Producer::is_roomy(own, acquire(&peer.0[CONSUMED]))
    }

    fn is_roomy(own: &Side, consumed: u64) -> bool {
        let produced = own.0[PRODUCED].load(Ordering::Relaxed);
        produced.wrapping_sub(consumed) <= RING_BYTES / 2
    }

    /// The number of the sleep for data from which the other was last woken.
    pub fn rung(&self) -> u64 {
        self.rung
    }
}

impl Consumer {
    pub fn new(own: Arc<Side>, peer: Arc<Side>) -> Consumer {
        Consumer {
            own,
            peer,
            consumed: 0,
            produced: 0,
            published: 0,
            left: 0,
            carry: Carry::default(),
            rung: 0,
        }
    }

    /// Whether there is something to read.
    fn available(&mut self) -> io::Result<u64> {
        // Acquire: pairs with the producer's store, so that the bytes are there.
        let produced = acquire(&self.peer.0[PRODUCED]);
        let bytes = produced.wrapping_sub(self.consumed);
        let is_past = produced < self.produced || produced < self.consumed;
        if is_past || bytes > RING_BYTES || !bytes.is_multiple_of(WORD) {
            return Err(broken(
                "the peer has written more than there is room for, or less than before",
            ));
        }
        self.produced = produced;
        Ok(bytes)
    }

    /// Copies what has arrived. Nothing if nothing has.
    pub fn pull(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<(usize, MustWake)> {
        let mut available = self.available()?;
        let mut taken = 0;
        for slice in into.iter_mut() {
            let mut free: &mut [u8] = slice;
            while !free.is_empty() {
                let copied = match self.carry.take(free) {
                    0 if available == 0 => break,
                    0 => self.step(free, &mut available)?,
                    carried => carried,
                };
                free = &mut std::mem::take(&mut free)[copied..];
                taken += copied;
            }
        }
        let held = if self.carry.is_empty() { 0 } else { WORD };
        if self.consumed - held == self.published {
            return Ok((taken, false));
        }
        self.published = self.consumed - held;
        self.own.note_core();
        // Either the producer sees the room before it sleeps, or this sees that it sleeps.
        let asleep =
            store_and_look(&self.own.0[CONSUMED], self.published, &self.peer.0[ASLEEP_FOR_ROOM]);
        let must_wake = asleep != 0 && asleep != self.rung;
        self.rung = asleep;
        Ok((taken, must_wake))
    }

    /// Copies a part of a record, or carries its next word. Returns how many bytes were copied.
    fn step(&mut self, free: &mut [u8], available: &mut u64) -> io::Result<usize> {
        if self.left == 0 {
            self.left = self.length(*available)?;
            *available -= WORD;
            self.consumed += WORD;
        }
        // Whole words, but for the last of a record.
        let whole = free.len() as u64 / WORD * WORD;
        let length = if self.left <= free.len() as u64 { self.left } else { whole };
        if length > 0 {
            self.copy(&mut free[..length as usize]);
        } else {
            let end = self.left.min(WORD) as usize;
            let mut bytes = [0; WORD as usize];
            self.copy(&mut bytes[..end]);
            self.carry = Carry { bytes, start: 0, end };
        }
        let read = if length > 0 { length } else { self.left.min(WORD) };
        let words = read.next_multiple_of(WORD);
        debug_assert!(words <= *available, "a record was checked to be there whole");
        *available = available.saturating_sub(words);
        self.consumed += words;
        self.left -= read;
        Ok(length as usize)
    }

    /// The length of the next record: never beyond what is there.
    fn length(&self, available: u64) -> io::Result<u64> {
        let at = (self.consumed / WORD) as usize % RING_WORDS;
        let length = self.peer.ring()[at].load(Ordering::Relaxed);
        let rest = available - WORD;
        match length > 0 && length <= rest && length.next_multiple_of(WORD) <= rest {
            true => Ok(length),
            false => Err(broken("a record of a length that is not there")),
        }
    }

    fn copy(&self, into: &mut [u8]) {
        let ring = self.peer.ring();
        let start = (self.consumed / WORD) as usize % RING_WORDS;
        let first = into.len().min((RING_WORDS - start) * WORD as usize);
        let (head, tail) = into.split_at_mut(first);
        load_words(&ring[start..], head);
        load_words(ring, tail);
    }

    /// The number of the sleep for room from which the other was last woken.
    pub fn rung(&self) -> u64 {
        self.rung
    }

    /// A thread is about to sleep until there is something. True if there is something already.
    pub fn arm(own: &Side, peer: &Side, number: u64) -> bool {
        let produced = store_and_look(&own.0[ASLEEP_FOR_DATA], number, &peer.0[PRODUCED]);
        produced != own.0[CONSUMED].load(Ordering::Relaxed)
    }
}

impl Carry {
    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    fn take(&mut self, into: &mut [u8]) -> usize {
        let length = into.len().min(self.end - self.start);
        into[..length].copy_from_slice(&self.bytes[self.start..self.start + length]);
        self.start += length;
        length
    }
}

impl Side {
    /// No thread of this side sleeps for data.
    pub fn disarm_data(&self) {
        self.0[ASLEEP_FOR_DATA].store(0, Ordering::Relaxed);
    }

    /// No thread of this side sleeps for room.
    pub fn disarm_room(&self) {
        self.0[ASLEEP_FOR_ROOM].store(0, Ordering::Relaxed);
    }
}

/// Stores bytes as words; the last is filled up with zeros.
fn store_words(words: &[AtomicU64], bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<{ WORD as usize }>();
    for (word, bytes) in words.iter().zip(whole) {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
    if !rest.is_empty() {
        let mut last = [0; WORD as usize];
        last[..rest.len()].copy_from_slice(rest);
        words[whole.len()].store(u64::from_ne_bytes(last), Ordering::Relaxed);
    }
}

fn load_words(words: &[AtomicU64], bytes: &mut [u8]) {
    let (whole, rest) = bytes.as_chunks_mut::<{ WORD as usize }>();
    for (word, bytes) in words.iter().zip(whole.iter_mut()) {
        *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    if !rest.is_empty() {
        let last = words[whole.len()].load(Ordering::Relaxed).to_ne_bytes();
        let length = rest.len();
        rest.copy_from_slice(&last[..length]);
    }
}

/// Both ends of a ring, one of whose processes writes what `bytes` say, eleven of them a step.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn write_anything(bytes: &[u8]) {
    let Ok((own, peer)) = Side::create().and_then(|a| Ok((a, Side::create()?))) else { return };
    // The hostile process's memory, as it has it and as the other one sees it.
    let theirs = Arc::new(peer.0);
    let Ok(seen) = Side::open(peer.1).map(Arc::new) else { return };
    let own = Arc::new(own.0);
    let mut consumer = Consumer::new(Arc::clone(&own), Arc::clone(&seen));
    let mut producer = Producer::new(own, seen);
    let mut memory = vec![0; 1 << 16];
    for step in bytes.as_chunks::<11>().0 {
        let at = usize::from(u16::from_le_bytes([step[1], step[2]]));
        let mut value = [0; 8];
        value.copy_from_slice(&step[3..]);
        let value = u64::from_le_bytes(value);
        match step[0] % 5 {
            0 => theirs.0[PRODUCED].store(value, Ordering::Relaxed),
            1 => theirs.0[CONSUMED].store(value, Ordering::Relaxed),
            2 => theirs.ring()[at % RING_WORDS].store(value, Ordering::Relaxed),
            // An error ends the channel; a peer may go on all the same.
            3 => _ = consumer.pull(&mut [IoSliceMut::new(&mut memory[..at])]),
            _ => _ = producer.push(&[IoSlice::new(&memory[..at])]),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pair() -> (Producer, Consumer) {
        let (a, a_file) = Side::create().expect("a memfd");
        let (b, b_file) = Side::create().expect("a memfd");
        let a_seen = Side::open(a_file).expect("it is one");
        let b_seen = Side::open(b_file).expect("it is one");
        (Producer::new(Arc::new(a), Arc::new(b_seen)), Consumer::new(Arc::new(b), Arc::new(a_seen)))
    }

    proptest! {
        // Each moves megabytes.
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn bytes_arrive_in_order_through_a_ring_of_any_fill(
            steps in proptest::collection::vec((1usize..90_000, 1usize..70_000, 0usize..60_000), 1..60),
        ) {
            let (mut producer, mut consumer) = pair();
            let (mut sent, mut received) = (Vec::new(), Vec::new());
            let mut number = 0_u8;
            for (first, second, read) in steps {
                let bytes: Vec<u8> = (0..first + second).map(|_| { number = number.wrapping_add(7); number }).collect();
                let slices = [IoSlice::new(&bytes[..first]), IoSlice::new(&bytes[first..])];
                let (taken, _) = producer.push(&slices).expect("good peer");
                sent.extend_from_slice(&bytes[..taken]);
                number = sent.last().copied().unwrap_or_default();
                let (mut a, mut b) = (vec![0; read / 3], vec![0; read]);
                let mut into = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
                let (got, _) = consumer.pull(&mut into).expect("good peer");
                received.extend(a.into_iter().chain(b).take(got));
            }
            let mut rest = vec![0; RING_BYTES as usize];
            let (got, _) = consumer.pull(&mut [IoSliceMut::new(&mut rest)]).expect("good peer");
            received.extend_from_slice(&rest[..got]);
            prop_assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
        }

        #[test]
        fn hostile_words_end_the_channel_and_nothing_else(
            pushed in 1usize..RING_BYTES as usize,
            read in 1usize..5_000,
            changes in proptest::collection::vec(
                (hostile(), hostile(), proptest::collection::vec((0..RING_WORDS, 0..600u64), 0..40)),
                1..8,
            ),
        ) {
            let (mut producer, mut consumer) = pair();
            let (mut back, _unread) = (
                Producer::new(Arc::clone(&consumer.own), Arc::clone(&producer.own)),
                producer.push(&[IoSlice::new(&vec![3; pushed])]).expect("good peer"),
            );
            let _ = consumer.pull(&mut [IoSliceMut::new(&mut vec![0; read])]).expect("good peer");
            for (produced, consumed, words) in changes {
                // The test has the peer's memory writable: `own` of the other half.
                producer.own.0[PRODUCED].store(produced, Ordering::SeqCst);
                producer.own.0[CONSUMED].store(consumed, Ordering::SeqCst);
                for (at, word) in words {
                    producer.own.ring()[at].store(word, Ordering::SeqCst);
                }
                for length in [1, 7, 9, 1_000] {
                    let mut memory = vec![0; length];
                    let _ = consumer.pull(&mut [IoSliceMut::new(&mut memory)]);
                    let _ = back.push(&[IoSlice::new(&memory)]);
                }
            }
        }
    }

    /// Offsets that are nearly right.
    fn hostile() -> impl Strategy<Value = u64> {
        prop_oneof![
            any::<u64>(),
            0..=RING_BYTES + 64,
            (0..=RING_BYTES / WORD).prop_map(|word| word * WORD),
        ]
    }

    #[test]
    fn carried_bytes_keep_a_thread_awake() {
        let (mut producer, mut consumer) = pair();
        producer.push(&[IoSlice::new(b"0123456789")]).expect("good peer");
        let mut memory = [0; 9];
        assert_eq!(consumer.pull(&mut [IoSliceMut::new(&mut memory)]).expect("good peer").0, 9);
        assert!(Consumer::arm(&consumer.own, &consumer.peer, 1));
        assert_eq!(consumer.pull(&mut [IoSliceMut::new(&mut memory)]).expect("good peer").0, 1);
        assert!(!Consumer::arm(&consumer.own, &consumer.peer, 2));
    }

    #[test]
    fn consumer_that_sleeps_is_woken_once() {
        let (mut producer, mut consumer) = pair();
        let some = [IoSlice::new(b"some")];
        assert_eq!(producer.push(&some).expect("good peer"), (4, false));
        assert!(Consumer::arm(&consumer.own, &consumer.peer, 1));
        let mut memory = [0; 100];
        assert_eq!(consumer.pull(&mut [IoSliceMut::new(&mut memory)]).expect("good peer").0, 4);
        assert!(!Consumer::arm(&consumer.own, &consumer.peer, 2));
        assert_eq!(producer.push(&some).expect("good peer"), (4, true));
        assert_eq!(producer.push(&some).expect("good peer"), (4, false));
        consumer.own.disarm_data();
        assert_eq!(producer.push(&some).expect("good peer"), (4, false));
    }

    #[test]
    fn memory_that_is_not_sealed_is_refused() {
        let file = rustix::fs::memfd_create("plain", MemfdFlags::ALLOW_SEALING).expect("a memfd");
        let error = Side::open(file).err().expect("refused");
        assert!(error.to_string().contains("not sealed"), "{error}");
        let (_own, file) = Side::create().expect("a memfd");
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        let file = File::from(file);
        assert!(SharedWords::map_at(&file, 0, WORDS, MapAccess::ReadWrite).is_err());
    }
}
