//! The items: a map in shards, each under a lock and with its share of the memory, the least recently used item goes first.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::super::Mutex;

/// A power of two, well above the cores of a host.
const SHARDS: usize = 64;
/// What an item costs beside its key and its value.
const OVERHEAD: usize = 96;
/// No item.
const NONE: u32 = u32::MAX;
/// An expiry that is greater is a date.
const MONTH_SECONDS: i64 = 60 * 60 * 24 * 30;

/// An item, as it was when it was found.
pub struct Found<'a> {
    pub flags: u32,
    pub value: &'a [u8],
    pub cas: u64,
}

/// When an item is to be stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum When {
    Always,
    Absent,
    Present,
    /// And nobody stored it since it had this number.
    Unchanged(u64),
}

/// What of an item that is there is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Join {
    Replace,
    Append,
    Prepend,
}

/// What came of storing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Stored,
    NotStored,
    Exists,
    NotFound,
    TooLarge,
}

/// What came of counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    Now(u64),
    NotFound,
    NotANumber,
}

#[derive(Default)]
struct Item {
    key: Box<[u8]>,
    value: Vec<u8>,
    flags: u32,
    cas: u64,
    /// When it was stored, and when it ends.
    stored: Option<Instant>,
    expires: Option<Instant>,
    /// Neighbours in the order of use.
    newer: u32,
    older: u32,
}

/// One part of the map.
#[derive(Default)]
struct Shard {
    index: HashMap<Box<[u8]>, u32>,
    items: Vec<Item>,
    free: Vec<u32>,
    newest: Option<u32>,
    oldest: Option<u32>,
    bytes: usize,
    evicted: u64,
}

/// What the server holds.
pub struct Store {
    shards: Vec<Mutex<Shard>>,
    hasher: RandomState,
    bytes_a_shard: usize,
    item_bytes_max: usize,
    next_cas: AtomicU64,
    /// From then on, in nanoseconds since it began, what was stored before is gone; 0: no such time.
    flushed_ns: AtomicU64,
    began: Instant,
}

/// What it says of itself.
pub struct Totals {
    pub items: usize,
    pub bytes: usize,
    pub evictions: u64,
    pub limit_bytes: usize,
    pub uptime: Duration,
}

/// What an expiry of the protocol means; `Err`: it is over.
pub fn expiry(seconds: i64) -> Result<Option<Instant>, ()> {
    let left = match seconds {
        0 => return Ok(None),
        ..0 => return Err(()),
        1..=MONTH_SECONDS => seconds,
        date => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            date.saturating_sub_unsigned(now)
        }
    };
    let left = u64::try_from(left).ok().filter(|&left| left > 0).ok_or(())?;
    // A time beyond the clock's end is none.
    Ok(Instant::now().checked_add(Duration::from_secs(left)))
}

impl Store {
    /// A store of at most about this many bytes, with items of at most so many.
    pub fn new(bytes: usize, item_bytes_max: usize) -> Store {
        Store {
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::default())).collect(),
            hasher: RandomState::new(),
            bytes_a_shard: (bytes / SHARDS).max(item_bytes_max + 512),
            item_bytes_max,
            next_cas: AtomicU64::new(1),
            flushed_ns: AtomicU64::new(0),
            began: Instant::now(),
        }
    }

    /// The greatest value.
    pub fn value_bytes_max(&self) -> usize {
        self.item_bytes_max
    }

    /// Calls `f` with the item of this key, if there is one, and makes it the newest; `touch` changes its expiry.
    pub fn get<R>(
        &self,
        key: &[u8],
        touch: Option<Result<Option<Instant>, ()>>,
        f: impl FnOnce(Found<'_>) -> R,
    ) -> Option<R> {
        self.with(key, |shard, at| {
            let item = &mut shard.items[at as usize];
            let found = f(Found { flags: item.flags, value: &item.value, cas: item.cas });
            match touch {
                Some(Ok(expires)) => item.expires = expires,
                Some(Err(())) => shard.remove(at),
                None => shard.renew(at),
            }
            found
        })
    }

    /// Stores an item.
    pub fn set(
        &self,
        key: &[u8],
        value: &[u8],
        (flags, expires): (u32, Result<Option<Instant>, ()>),
        when: When,
        join: Join,
    ) -> Outcome {
        let now = Instant::now();
        let flushed = self.flushed_at(now);
        let mut shard = lock(&self.shards[self.shard_of(key)]);
        let there = shard.find(key, now, flushed);
        match (when, there) {
            (When::Absent, Some(at)) => {
                shard.renew(at);
                return Outcome::NotStored;
            }
            (When::Present, None) => return Outcome::NotStored,
            (When::Unchanged(_), None) => return Outcome::NotFound,
            (When::Unchanged(cas), Some(at)) if shard.items[at as usize].cas != cas => {
                return Outcome::Exists;
            }
            _ => {}
        }
        let mut item = Item { flags, expires: expires.unwrap_or(None), ..Item::default() };
        item.value = match (join, there) {
            (Join::Replace, _) | (_, None) => value.to_vec(),
            (Join::Append, Some(at)) => [&shard.items[at as usize].value, value].concat(),
            (Join::Prepend, Some(at)) => [value, &shard.items[at as usize].value].concat(),
        };
        if item.value.len() > self.item_bytes_max {
            return Outcome::TooLarge;
        }
        if let Some(at) = there {
            if join != Join::Replace {
                (item.flags, item.expires) =
                    (shard.items[at as usize].flags, shard.items[at as usize].expires);
            }
            shard.remove(at);
        }
        // What is over at once is stored, and not there.
        if expires.is_ok() || join != Join::Replace {
            item.key = key.into();
            item.cas = self.next_cas.fetch_add(1, Ordering::Relaxed);
            item.stored = Some(now);
            shard.insert(item, self.bytes_a_shard);
        }
        Outcome::Stored
    }

    /// Adds to a number, and wraps; or takes from it, down to 0.
    pub fn count(&self, key: &[u8], delta: u64, up: bool) -> Counted {
        let counted = self.with(key, |shard, at| {
            let item = &mut shard.items[at as usize];
            let Some(number) = number(&item.value) else { return Counted::NotANumber };
            let number = if up { number.wrapping_add(delta) } else { number.saturating_sub(delta) };
            let (before, mut text) = (item.value.len(), number.to_string().into_bytes());
            // A shorter number keeps the length of the value, as memcached has it.
            text.resize(text.len().max(before), b' ');
            item.cas = self.next_cas.fetch_add(1, Ordering::Relaxed);
            shard.bytes += text.len() - before;
            shard.items[at as usize].value = text;
            shard.renew(at);
            Counted::Now(number)
        });
        counted.unwrap_or(Counted::NotFound)
    }

    /// Removes an item; whether there was one.
    pub fn delete(&self, key: &[u8]) -> bool {
        self.with(key, |shard, at| shard.remove(at)).is_some()
    }

    /// Changes an item's expiry; whether there was one.
    pub fn touch(&self, key: &[u8], expires: Result<Option<Instant>, ()>) -> bool {
        self.get(key, Some(expires), |_| ()).is_some()
    }

    /// Forgets an item that something too large was to replace.
    pub fn forget(&self, key: &[u8]) {
        self.delete(key);
    }

    /// What is stored before that time is gone from then on.
    pub fn flush(&self, delay: Duration) {
        if delay.is_zero() {
            self.flushed_ns.store(0, Ordering::Relaxed);
            self.shards.iter().for_each(|shard| lock(shard).clear());
        } else {
            let at = self.began.elapsed().saturating_add(delay).as_nanos();
            self.flushed_ns.store(u64::try_from(at).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// Sums.
    pub fn totals(&self) -> Totals {
        let limit_bytes = self.bytes_a_shard * SHARDS;
        let uptime = self.began.elapsed();
        let mut totals = Totals { items: 0, bytes: 0, evictions: 0, limit_bytes, uptime };
        for shard in &self.shards {
            let shard = lock(shard);
            totals.items += shard.index.len();
            totals.bytes += shard.bytes;
            totals.evictions += shard.evicted;
        }
        totals
    }

    fn shard_of(&self, key: &[u8]) -> usize {
        self.hasher.hash_one(key) as usize % SHARDS
    }

    /// The last flush, if its time has come.
    fn flushed_at(&self, now: Instant) -> Option<Instant> {
        let ns = Some(self.flushed_ns.load(Ordering::Relaxed)).filter(|&ns| ns != 0)?;
        let at = self.began.checked_add(Duration::from_nanos(ns))?;
        (at <= now).then_some(at)
    }

    fn with<R>(&self, key: &[u8], f: impl FnOnce(&mut Shard, u32) -> R) -> Option<R> {
        let now = Instant::now();
        let flushed = self.flushed_at(now);
        let mut shard = lock(&self.shards[self.shard_of(key)]);
        let at = shard.find(key, now, flushed)?;
        Some(f(&mut shard, at))
    }
}

impl Shard {
    fn find(&mut self, key: &[u8], now: Instant, flushed: Option<Instant>) -> Option<u32> {
        let at = *self.index.get(key)?;
        let item = &self.items[at as usize];
        let expired = item.expires.is_some_and(|expires| expires <= now);
        if expired || (flushed.is_some() && item.stored <= flushed) {
            self.remove(at);
            return None;
        }
        Some(at)
    }

    fn insert(&mut self, item: Item, limit: usize) {
        self.bytes += cost(&item);
        let at = self.free.pop().unwrap_or_else(|| {
            self.items.push(Item::default());
            (self.items.len() - 1) as u32
        });
        self.index.insert(item.key.clone(), at);
        self.items[at as usize] = item;
        self.link(at);
        while self.bytes > limit
            && let Some(oldest) = self.oldest.filter(|&oldest| oldest != at)
        {
            self.remove(oldest);
            self.evicted += 1;
        }
    }

    fn remove(&mut self, at: u32) {
        self.unlink(at);
        let item = std::mem::take(&mut self.items[at as usize]);
        self.index.remove(&item.key);
        self.bytes -= cost(&item);
        self.free.push(at);
    }

    fn clear(&mut self) {
        *self = Shard { evicted: self.evicted, ..Shard::default() };
    }

    /// Makes it the newest.
    fn renew(&mut self, at: u32) {
        if self.newest != Some(at) {
            self.unlink(at);
            self.link(at);
        }
    }

    fn link(&mut self, at: u32) {
        let before = self.newest.replace(at);
        self.items[at as usize].newer = NONE;
        self.items[at as usize].older = before.unwrap_or(NONE);
        match before {
            Some(before) => self.items[before as usize].newer = at,
            None => self.oldest = Some(at),
        }
    }

    fn unlink(&mut self, at: u32) {
        let (newer, older) = (self.items[at as usize].newer, self.items[at as usize].older);
        match self.items.get_mut(newer as usize) {
            Some(newer) => newer.older = older,
            None => self.newest = Some(older).filter(|&older| older != NONE),
        }
        match self.items.get_mut(older as usize) {
            Some(older) => older.newer = newer,
            None => self.oldest = Some(newer).filter(|&newer| newer != NONE),
        }
    }
}

fn cost(item: &Item) -> usize {
    2 * item.key.len() + item.value.len() + OVERHEAD
}

/// A value that is a number: digits, and spaces around them.
fn number(value: &[u8]) -> Option<u64> {
    let digits = value.trim_ascii();
    let all = digits.len() <= 20 && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| all)?.parse().ok()
}

/// A lock's holder that panicked left nothing half done that matters to a cache.
pub fn lock<T>(mutex: &Mutex<T>) -> super::super::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
