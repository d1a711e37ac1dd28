//! Two rings in shared memory between a client and a server, which stand for a network stack without the kernel: the
//! layout of `examples/lanes/request_ring.h`, so that servers in C have it too.
//!
//! One producer and one consumer each. A head is written by the producer alone, a tail by the consumer alone; both
//! count on and on.

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use quell_model::Nanos;

use super::words::Words;

/// Words of a request and of a response; the last one is not used here.
const ENTRY: usize = 4;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its number.
    pub id: u64,
    /// When it was due: its latency counts from there.
    pub due: Nanos,
    /// How much work it is.
    pub service: Nanos,
}

/// A response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// The request's number.
    pub id: u64,
    /// When the request was due.
    pub due: Nanos,
    /// When it was done.
    pub done: Nanos,
}

/// The mapped rings.
pub struct Ring {
    words: Words,
    capacity: usize,
}

/// How the file begins.
const MAGIC: u64 = u64::from_le_bytes(*b"QUELLREQ");
/// The version of the layout: the low half of the second word.
const VERSION: u64 = 1;

/// Where things are, in words: each counter on a line of its own.
mod at {
    pub const MAGIC: usize = 0;
    /// The version in the low half, the capacity in the high one.
    pub const SHAPE: usize = 1;
    pub const REQUESTS_HEAD: usize = 8;
    pub const REQUESTS_TAIL: usize = 16;
    pub const RESPONSES_HEAD: usize = 24;
    pub const RESPONSES_TAIL: usize = 32;
    /// 1: the server is to end.
    pub const CLOSING: usize = 40;
    /// 1: the server serves.
    pub const SERVER: usize = 48;
    /// The server is about to sleep until its bell is rung. No part of the layout that the C examples know.
    pub const ASLEEP: usize = 56;
    /// What the shortest request took from being taken to its end, in ns. The server; the C examples do not know it, either.
    pub const SHORTEST: usize = 57;
    pub const ENTRIES: usize = 512;
}

/// Entries that a ring may have.
const CAPACITY_MAX: usize = 1 << 20;

/// How many words the rings are.
fn words(capacity: usize) -> usize {
    at::ENTRIES + 2 * ENTRY * capacity
}

impl Ring {
    /// Makes the file, with room for so many requests, and as many responses.
    ///
    /// # Errors
    /// When it cannot be made, or the capacity is no power of two.
    pub fn create(path: &Path, capacity: usize) -> io::Result<Ring> {
        if !capacity.is_power_of_two() || capacity > CAPACITY_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "capacity of a ring"));
        }
        Ok(Ring::shaped(Words::create(path, words(capacity))?, capacity))
    }

    /// Makes rings within a file that is there, from this byte on: in a guest's memory.
    ///
    /// # Errors
    /// As [`Ring::create`], and where the file has no room for it.
    pub fn create_at(path: &Path, first: usize, capacity: usize) -> io::Result<Ring> {
        let room = Words::open_at(path, first)?;
        if !capacity.is_power_of_two() || capacity > CAPACITY_MAX || room.len() < words(capacity) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "capacity of a ring"));
        }
        Ok(Ring::shaped(room, capacity))
    }

    fn shaped(words: Words, capacity: usize) -> Ring {
        words[at::SHAPE].store(VERSION | (capacity as u64) << 32, Relaxed);
        words[at::SHORTEST].store(u64::MAX, Relaxed);
        // Release: whoever sees the magic number sees the capacity.
        words[at::MAGIC].store(MAGIC, Release);
        Ring { words, capacity }
    }

    /// Maps a ring that somebody made.
    ///
    /// # Errors
    /// When it is none.
    pub fn open(path: &Path) -> io::Result<Ring> {
        Ring::open_at(path, 0)
    }

    /// Maps rings that somebody made within a file, from this byte on.
    ///
    /// # Errors
    /// As [`Ring::open`].
    pub fn open_at(path: &Path, first: usize) -> io::Result<Ring> {
        let words = Words::open_at(path, first)?;
        // Acquire: pairs with the Release in `shaped`.
        let is_ring = words.len() > at::ENTRIES && words[at::MAGIC].load(Acquire) == MAGIC;
        let shape = words.get(at::SHAPE).map_or(0, |word| word.load(Relaxed));
        let capacity = (shape >> 32) as usize;
        if !is_ring
            || shape & u64::from(u32::MAX) != VERSION
            || capacity > CAPACITY_MAX
            || !capacity.is_power_of_two()
            || words.len() < self::words(capacity)
        {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a ring of requests"));
        }
        Ok(Ring { words, capacity })
    }

    /// Entries that each of them has room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// A request took so long, from being taken to its end.
    pub fn took(&self, time: Nanos) {
        // One writer, so a load and a store are enough.
        if time.0 < self.words[at::SHORTEST].load(Relaxed) {
            self.words[at::SHORTEST].store(time.0, Relaxed);
        }
    }

    /// What the shortest request took, where the server says so.
    pub fn shortest(&self) -> Option<Nanos> {
        let shortest = self.words[at::SHORTEST].load(Relaxed);
        Some(Nanos(shortest)).filter(|time| *time != Nanos::MAX)
    }

    /// Puts a request in. `false`: there is no room.
    pub fn ask(&self, request: &Request) -> bool {
        let entry = [request.id, request.due.0, request.service.0, 0];
        self.put(at::REQUESTS_HEAD, at::REQUESTS_TAIL, 0, entry)
    }

    /// Takes the oldest request.
    pub fn next(&self) -> Option<Request> {
        let [id, due, service, _] = self.take(at::REQUESTS_HEAD, at::REQUESTS_TAIL, 0)?;
        Some(Request { id, due: Nanos(due), service: Nanos(service) })
    }

    /// Puts a response in. `false`: there is no room.
    pub fn answer(&self, response: &Response) -> bool {
        let entry = [response.id, response.due.0, response.done.0, 0];
        self.put(at::RESPONSES_HEAD, at::RESPONSES_TAIL, self.capacity, entry)
    }

    /// Takes the oldest response.
    pub fn answered(&self) -> Option<Response> {
        let [id, due, done, _] =
            self.take(at::RESPONSES_HEAD, at::RESPONSES_TAIL, self.capacity)?;
        Some(Response { id, due: Nanos(due), done: Nanos(done) })
    }

    fn put(&self, head: usize, tail: usize, first: usize, entry: [u64; ENTRY]) -> bool {
        // Relaxed: the producer alone writes its head.
        let at = self.words[head].load(Relaxed);
        // Acquire pairs with the Release in `take`: what the consumer read from the entry is read before it is written again.
        if at.wrapping_sub(self.words[tail].load(Acquire)) >= self.capacity as u64 {
            return false;
        }
        for (word, value) in self.entry(first, at).iter().zip(entry) {
            word.store(value, Relaxed);
        }
        // Release pairs with the consumer's Acquire of the head: it sees the entry.
        self.words[head].store(at.wrapping_add(1), Release);
        true
    }

    fn take(&self, head: usize, tail: usize, first: usize) -> Option<[u64; ENTRY]> {
        // Relaxed: the consumer alone writes its tail. Acquire pairs with the Release in `put`: the entry is seen.
        let at = self.words[tail].load(Relaxed);
        if self.words[head].load(Acquire) == at {
            return None;
        }
        let entry = self.entry(first, at);
        let copy = std::array::from_fn(|word| entry[word].load(Relaxed));
        // Release pairs with the producer's Acquire of the tail: the entry was read before it is written again.
        self.words[tail].store(at.wrapping_add(1), Release);
        Some(copy)
    }

    fn entry(&self, first: usize, at: u64) -> &[std::sync::atomic::AtomicU64] {
        let place = first + (at % self.capacity as u64) as usize;
        &self.words[at::ENTRIES + ENTRY * place..][..ENTRY]
    }

    /// The server serves from now on.
    pub fn is_ready(&self) -> bool {
        // Acquire: pairs with the Release in `ready`.
        self.words[at::SERVER].load(Acquire) & 1 != 0
    }

    /// Tells that the server serves.
    pub fn ready(&self) {
        self.words[at::SERVER].store(1, Release);
    }

    /// Whether the server is to end.
    pub fn is_stopped(&self) -> bool {
        // Relaxed, as in `stop`: nothing else is published by it.
        self.words[at::CLOSING].load(Relaxed) != 0
    }

    /// Has the server end, once it looks.
    pub fn stop(&self) {
        self.words[at::CLOSING].store(1, Relaxed);
    }

    /// The server is about to sleep. `false`: it must not, for there is a request.
    pub fn may_sleep(&self) -> bool {
        // Sequentially consistent, as the look in `must_ring`: either the client sees it asleep, or it sees the request.
        self.words[at::ASLEEP].store(1, SeqCst);
        let head = self.words[at::REQUESTS_HEAD].load(SeqCst);
        let empty = head == self.words[at::REQUESTS_TAIL].load(Relaxed);
        if !empty {
            self.words[at::ASLEEP].store(0, Relaxed);
        }
        empty
    }

    /// Whether the server sleeps and has to be woken; told once for each sleep.
    pub fn must_ring(&self) -> bool {
        std::sync::atomic::fence(SeqCst);
        self.words[at::ASLEEP].load(SeqCst) != 0 && self.words[at::ASLEEP].swap(0, SeqCst) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rings() -> (tempfile::TempDir, Ring, Ring) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ring");
        let client = Ring::create(&path, 4).unwrap();
        let server = Ring::open(&path).unwrap();
        (directory, client, server)
    }

    fn request(id: u64) -> Request {
        Request { id, due: Nanos(id + 1), service: Nanos(id + 2) }
    }

    #[test]
    fn requests_come_in_order_and_no_more_than_there_is_room_for() {
        let (_folder, client, server) = rings();
        assert_eq!(server.next(), None);
        let mut next = 0;
        for round in 0..10 {
            let put = (0..6).take_while(|at| client.ask(&request(round * 4 + at))).count();
            assert_eq!(put, 4);
            while let Some(found) = server.next() {
                assert_eq!(found, request(next));
                next += 1;
            }
        }
        assert_eq!(next, 40);
        let response = Response { id: 1, due: Nanos(2), done: Nanos(3) };
        assert!(server.answer(&response));
        assert_eq!((client.answered(), client.answered()), (Some(response), None));
    }

    #[test]
    fn between_two_threads_nothing_is_lost_and_nothing_is_read_half_written() {
        let (_folder, client, server) = rings();
        let count = 20_000;
        let serves = std::thread::spawn(move || {
            for _ in 0..count {
                let found = loop {
                    match server.next() {
                        Some(found) => break found,
                        None => std::thread::yield_now(),
                    }
                };
                let done = Response { id: found.id, due: found.due, done: found.service };
                while !server.answer(&done) {
                    std::thread::yield_now();
                }
            }
        });
        let (mut asked, mut answered) = (0, 0);
        while answered < count {
            if asked < count && client.ask(&request(asked)) {
                asked += 1;
            }
            if let Some(found) = client.answered() {
                assert_eq!((found.id, found.done), (answered, Nanos(answered + 2)));
                answered += 1;
            }
        }
        serves.join().unwrap();
    }

    #[test]
    fn a_server_does_not_sleep_beside_a_request_and_is_woken_once() {
        let (_folder, client, server) = rings();
        assert!(!client.must_ring());
        assert!(server.may_sleep());
        assert!(client.ask(&request(1)));
        assert!(client.must_ring() && !client.must_ring());
        assert!(!server.may_sleep());
        assert!(!client.must_ring(), "it did not go to sleep");
    }

    #[test]
    fn rings_may_lie_within_another_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("memory");
        drop(Words::create(&path, 512 + words(8)).unwrap());
        assert!(Ring::create_at(&path, 4_096, 16).is_err(), "there is no room");
        let client = Ring::create_at(&path, 4_096, 8).unwrap();
        assert!(Ring::open(&path).is_err());
        let server = Ring::open_at(&path, 4_096).unwrap();
        assert!(client.ask(&request(3)));
        assert_eq!((server.capacity(), server.next()), (8, Some(request(3))));
        assert_eq!(client.shortest(), None);
        [7, 5, 6].into_iter().for_each(|ns| server.took(Nanos(ns)));
        assert_eq!(client.shortest(), Some(Nanos(5)));
    }

    #[test]
    fn other_files_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("words");
        let shape = |capacity: u64| VERSION | capacity << 32;
        let wrong = [
            (0, shape(4)),
            (MAGIC, shape(3)),
            (MAGIC, shape(8)),
            (MAGIC, u64::MAX),
            (MAGIC, 2 | 4 << 32),
        ];
        for (magic, shape) in wrong {
            let _ = std::fs::remove_file(&path);
            let words = Words::create(&path, words(4)).unwrap();
            words[at::MAGIC].store(magic, Relaxed);
            words[at::SHAPE].store(shape, Relaxed);
            assert!(Ring::open(&path).is_err(), "{magic:x} {shape:x}");
        }
    }
}
