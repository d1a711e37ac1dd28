//! One journalled attribute of one object.
//!
//! A slot holds identity, the original value and the last two values that Quell wrote. Each value is an
//! entry of its own with sequence number and checksum. An entry is invalidated, filled, and made valid by its
//! sequence number, in this order, and never the one that still counts: whoever reads after the writer died
//! between any two stores finds all values that the host may show.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release, fence};

use super::layout::{NAME_BYTES, NAME_WORDS, VALUE_BYTES, VALUE_WORDS, checksum, slot};
use super::value::{self, Value};
use crate::Subject;
use crate::setting::is_kernel_path;
use quell_os::{ThreadRef, Tid};

/// What attribute a slot is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub(crate) enum Kind {
    Sched = 1,
    Affinity = 2,
    Setting = 3,
    Group = 4,
    Member = 5,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Sched, Kind::Affinity, Kind::Setting, Kind::Group, Kind::Member];
}

/// Upper half of the state word of a slot in use.
const LIVE: u64 = 0x51AB_11FE << 32;

/// Identity of a journalled object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) subject: Subject,
    /// Inode of the thread's `PIDFD_THREAD` handle; 0 where the kernel has none.
    pub(crate) pidfd_inode: u64,
}

/// A slot as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotView {
    pub(crate) kind: Kind,
    pub(crate) order: u64,
    /// When it was made, in clock ticks since boot.
    pub(crate) created: u64,
    /// When it was given back, if it stays for heirs alone.
    pub(crate) returned: Option<u64>,
    pub(crate) identity: Identity,
    pub(crate) original: Value,
    pub(crate) wrote: [Option<Value>; 2],
}

/// Why a slot could not be filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooLong {
    Name,
    Value,
}

/// The words of one slot.
pub(crate) struct Slot<'m>(pub(crate) &'m [AtomicU64]);

impl Slot<'_> {
    /// Fills a free slot; it counts once all is there.
    pub(crate) fn create(
        &self,
        order: u64,
        identity: &Identity,
        original: &Value,
        wrote: &Value,
    ) -> Result<(), TooLong> {
        let (kind, thread, name) = parts(&identity.subject);
        let mut name_words = [0; NAME_WORDS];
        let name_len = value::text_to_words(name.to_str().ok_or(TooLong::Name)?, &mut name_words)
            .ok_or(TooLong::Name)?;
        self.0[slot::STATE].store(0, Relaxed);
        fence(Release);
        let thread = thread.unwrap_or(ThreadRef { tid: Tid(0), tgid: Tid(0), start_ticks: 0 });
        let tids = u64::from(thread.tid.0 as u32) << 32 | u64::from(thread.tgid.0 as u32);
        let created = boot_ticks();
        let head =
            [order, tids, thread.start_ticks, identity.pidfd_inode, created, name_len as u64];
        for (at, word) in head.into_iter().enumerate() {
            self.0[slot::ORDER + at].store(word, Relaxed);
        }
        if name_len > 0 {
            for (to, word) in self.0[slot::NAME..].iter().zip(name_words) {
                to.store(word, Relaxed);
            }
        }
        self.0[slot::RETURNED].store(0, Relaxed);
        for entry in 0..4 {
            self.0[entry_at(entry)].store(0, Relaxed);
        }
        self.write_entry(0, original)?;
        self.write_entry(2, wrote)?;
        self.0[slot::CHECK].store(self.head_checksum(kind), Relaxed);
        // Pairs with nothing in this process: it orders the stores for a reader after this process died.
        self.0[slot::STATE].store(LIVE | kind as u64, Release);
        Ok(())
    }

    /// Records a value that is about to be written, in entry 0 or 1.
    pub(crate) fn record(&self, entry: usize, value: &Value) -> Result<(), TooLong> {
        debug_assert!(self.is_live(), "a value is recorded in a slot that is free");
        self.write_entry(2 + (entry & 1), value)
    }

    /// Replaces the original.
    pub(crate) fn rebase(&self, value: &Value) -> Result<(), TooLong> {
        debug_assert!(self.is_live(), "a free slot gets another original");
        let newer = self.sequence(0).0 >= self.sequence(1).0;
        self.write_entry(usize::from(newer), value)
    }

    /// Notes that its value was given back; it stays as a bequest.
    pub(crate) fn give_back(&self) {
        debug_assert!(self.is_live(), "a free slot stays for descendants");
        self.0[slot::RETURNED].store(boot_ticks(), Release);
    }

    /// Whether it is in use, damaged or not.
    pub(super) fn is_live(&self) -> bool {
        self.0[slot::STATE].load(Relaxed) != 0
    }

    /// Whether a written value was recorded in entry 0 or 1.
    pub(super) fn has_written(&self, entry: usize) -> bool {
        self.sequence(2 + (entry & 1)).0 != 0
    }

    /// Frees the slot.
    pub(crate) fn release(&self) {
        self.0[slot::STATE].store(0, Release);
    }

    /// Reads the slot: `Ok(None)` if it is free, `Err` if it is damaged.
    pub(crate) fn read(&self) -> Result<Option<SlotView>, Damaged> {
        let state = self.0[slot::STATE].load(Relaxed);
        if state == 0 {
            return Ok(None);
        }
        let kind =
            Kind::ALL.into_iter().find(|&kind| LIVE | kind as u64 == state).ok_or(Damaged)?;
        let word = |at: usize| self.0[at].load(Relaxed);
        if word(slot::NAME_LEN) > NAME_BYTES as u64 || word(slot::CHECK) != self.head_checksum(kind)
        {
            return Err(Damaged);
        }
        let original = match (self.sequence(0), self.sequence(1)) {
            (older, newer) if older.0 > newer.0 => {
                self.read_entry(kind, 0).or_else(|| self.read_entry(kind, 1))
            }
            _ => self.read_entry(kind, 1).or_else(|| self.read_entry(kind, 0)),
        };
        Ok(Some(SlotView {
            kind,
            order: word(slot::ORDER),
            created: word(slot::CREATED),
            returned: Some(word(slot::RETURNED)).filter(|ticks| *ticks != 0),
            identity: self.identity(kind).ok_or(Damaged)?,
            original: original.ok_or(Damaged)?,
            wrote: [self.read_entry(kind, 2), self.read_entry(kind, 3)],
        }))
    }

    fn identity(&self, kind: Kind) -> Option<Identity> {
        let word = |at: usize| self.0[at].load(Relaxed);
        let thread = ThreadRef {
            tid: Tid((word(slot::TID) >> 32) as i32),
            tgid: Tid(word(slot::TID) as i32),
            start_ticks: word(slot::START),
        };
        let words: Vec<u64> = (0..NAME_WORDS).map(|at| word(slot::NAME + at)).collect();
        let name = PathBuf::from(value::words_to_text(&words, word(slot::NAME_LEN) as usize)?);
        let is_thread = thread.tid.0 > 0 && thread.tgid.0 > 0;
        let subject = match kind {
            Kind::Sched if is_thread => Subject::Sched(thread),
            Kind::Affinity if is_thread => Subject::Affinity(thread),
            Kind::Setting if is_kernel_path(&name) => Subject::Setting(name),
            Kind::Group if is_kernel_path(&name) => Subject::Group(name),
            Kind::Member if is_thread && is_kernel_path(&name) => {
                Subject::Member { process: thread, hierarchy: name }
            }
            _ => return None,
        };
        Some(Identity { subject, pidfd_inode: word(slot::PIDFD_INODE) })
    }

    fn head_checksum(&self, kind: Kind) -> u64 {
        let head = slot::ORDER..slot::CHECK;
        let name_len = self.0[slot::NAME_LEN].load(Relaxed).min(NAME_BYTES as u64) as usize;
        let name = slot::NAME..slot::NAME + name_len.div_ceil(8);
        checksum(kind as u64, head.chain(name).map(|at| self.0[at].load(Relaxed)))
    }

    /// Sequence and length of an entry.
    fn sequence(&self, entry: usize) -> (u32, u32) {
        let word = self.0[entry_at(entry)].load(Relaxed);
        ((word >> 32) as u32, word as u32)
    }

    fn write_entry(&self, entry: usize, value: &Value) -> Result<(), TooLong> {
        let mut words = [0; VALUE_WORDS];
        let bytes = value::encode(value, &mut words).ok_or(TooLong::Value)?;
        let sequence =
            self.sequence(entry).0.max(self.sequence(entry ^ 1).0).wrapping_add(1).max(1);
        let at = entry_at(entry);
        self.0[at].store(0, Relaxed);
        fence(Release);
        let words = &words[..bytes.div_ceil(8)];
        for (to, word) in self.0[at + 2..].iter().zip(words) {
            to.store(*word, Relaxed);
        }
        let head = u64::from(sequence) << 32 | bytes as u64;
        self.0[at + 1].store(checksum(head, words.iter().copied()), Relaxed);
        // As in `create`: for a reader after this process died.
        self.0[at].store(head, Release);
        Ok(())
    }

    fn read_entry(&self, kind: Kind, entry: usize) -> Option<Value> {
        let (sequence, bytes) = self.sequence(entry);
        if sequence == 0 || bytes as usize > VALUE_BYTES {
            return None;
        }
        let at = entry_at(entry);
        let mut words = [0; VALUE_WORDS];
        let used = (bytes as usize).div_ceil(8);
        for (word, from) in words[..used].iter_mut().zip(&self.0[at + 2..]) {
            *word = from.load(Relaxed);
        }
        let head = u64::from(sequence) << 32 | u64::from(bytes);
        let valid = self.0[at + 1].load(Relaxed) == checksum(head, words[..used].iter().copied());
        valid.then(|| value::decode(kind, &words, bytes as usize))?
    }
}

/// A slot that is neither free nor whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

/// The time in the unit of a thread's start time: 100 ticks a second (`USER_HZ`) of CLOCK_BOOTTIME.
pub(crate) fn boot_ticks() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 100 + now.tv_nsec as u64 / 10_000_000
}

const fn entry_at(entry: usize) -> usize {
    slot::ENTRIES + entry * slot::ENTRY_WORDS
}

fn parts(subject: &Subject) -> (Kind, Option<ThreadRef>, &Path) {
    let no_name = Path::new("");
    match subject {
        Subject::Sched(thread) => (Kind::Sched, Some(*thread), no_name),
        Subject::Affinity(thread) => (Kind::Affinity, Some(*thread), no_name),
        Subject::Setting(file) => (Kind::Setting, None, file),
        Subject::Group(dir) => (Kind::Group, None, dir),
        Subject::Member { process, hierarchy } => (Kind::Member, Some(*process), hierarchy),
    }
}
