//! The writer: an application's own page.

use std::fs::{File, OpenOptions};
use std::io;
use std::marker::PhantomData;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use quell_model::Nanos;
use quell_os::clock;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::layout::{
    Header, LINE_BYTES, Line, MAGIC, SLOTS_MAX, VERSION, header, page_bytes, slot,
};
use crate::map::Map;

/// A page of hints that this process writes. Several processes of one service may share one.
#[derive(Clone)]
pub struct Page {
    map: Arc<Map>,
    slots: u32,
}

/// A thread's own slot; given back when it is dropped.
pub struct Slot {
    map: Arc<Map>,
    at: usize,
    /// It belongs to the thread that registered.
    _of_thread: PhantomData<*const ()>,
}

impl Page {
    /// Opens the page at `path`, which is created with room for `slots` threads (64 are plenty; at most
    /// [`SLOTS_MAX`]) if it is not there. A file of a tmpfs, best below `/dev/shm`.
    ///
    /// # Errors
    /// Those of the file, and `InvalidData` for a file that is something else.
    pub fn open(path: &Path, slots: u32) -> io::Result<Page> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .custom_flags(open_flags())
            .open(path)?;
        // Whoever comes first sets the page up.
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        let slots = Page::prepare(&file, slots);
        // A mapping would hold the lock beyond the file's end.
        rustix::fs::flock(&file, FlockOperation::Unlock)?;
        let slots = slots?;
        Ok(Page { map: Arc::new(Map::new(&file, page_bytes(slots))?), slots })
    }

    /// Under the file's lock: sets an empty file up, or takes the page that it is. Its slots.
    fn prepare(file: &File, slots: u32) -> io::Result<u32> {
        match file.metadata()?.len() {
            0 => set_up(file, slots.clamp(1, SLOTS_MAX)),
            length => {
                let mut line: Line = [0; LINE_BYTES];
                std::os::unix::fs::FileExt::read_exact_at(file, &mut line, 0)?;
                let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
                let header = Header::read(&line).map_err(invalid)?;
                if length < page_bytes(header.slots) as u64 {
                    return Err(invalid(crate::Malformed::Short));
                }
                Ok(header.slots)
            }
        }
    }

    /// The page that the environment names for a program that Quell launched; `None` without one.
    ///
    /// # Errors
    /// As [`Page::open`].
    pub fn from_environment(slots: u32) -> io::Result<Option<Page>> {
        let path = std::env::var_os(crate::PATH_VARIABLE);
        path.map(|path| Page::open(path.as_ref(), slots)).transpose()
    }

    /// Takes a slot for the calling thread: the one that it has, else a free one, or one of a thread that is
    /// gone. `None` where all are taken. A thread has one slot: what it had in it is blank then, and the first
    /// of two handles to be dropped gives it back.
    pub fn register(&self) -> Option<Slot> {
        let me = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        for index in 0..self.slots {
            let at = LINE_BYTES * (index as usize + 1);
            let thread = self.map.word(at + slot::THREAD);
            let holder = thread.load(Ordering::Relaxed);
            if holder != me && holder != 0 && is_there(holder) {
                continue;
            }
            // Acquire: pairs with the release in `Slot::drop`, so that what we store comes after what the
            // holder before us did.
            let taken =
                thread.compare_exchange(holder, me, Ordering::Acquire, Ordering::Relaxed).is_ok();
            if taken {
                let slot = Slot { map: Arc::clone(&self.map), at, _of_thread: PhantomData };
                slot.blank();
                // Relaxed: a bound alone; whoever reads the old one misses this slot for a moment.
                self.map.word(header::USED).fetch_max(index + 1, Ordering::Relaxed);
                return Some(slot);
            }
        }
        None
    }
}

/// Writes the header of an empty file; its slots are blank.
fn set_up(file: &File, slots: u32) -> io::Result<u32> {
    let bytes = page_bytes(slots);
    // Allocated, not only sized: a tmpfs that is full is an error here rather than a SIGBUS later.
    rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes as u64)?;
    let map = Map::new(file, bytes)?;
    map.word(header::VERSION).store(VERSION, Ordering::Relaxed);
    map.word(header::SLOTS).store(slots, Ordering::Relaxed);
    map.word(header::SLOT_BYTES).store(LINE_BYTES as u32, Ordering::Relaxed);
    map.wide(header::SIZE).store(bytes as u64, Ordering::Relaxed);
    // Release: whoever maps the page and sees the magic (an acquire load in C's `quell_hints_open`) sees the rest.
    map.wide(header::MAGIC).store(MAGIC, Ordering::Release);
    Ok(slots)
}

/// Whether a thread with this number exists, whoever's it is.
fn is_there(thread: u32) -> bool {
    let Some(pid) = i32::try_from(thread).ok().and_then(Pid::from_raw) else { return false };
    !matches!(test_kill_process(pid), Err(Errno::SRCH))
}

fn open_flags() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.union(rustix::fs::OFlags::CLOEXEC).bits() as i32
}

// All stores below are relaxed: the page publishes nothing but these words, and the reader copies it
// without any order. What belongs together is checked by value (`crate::layout`).
impl Slot {
    /// The thread begins to serve a request.
    pub fn begin(&self) {
        self.begin_at(clock::now());
    }

    /// The thread serves a request that began then.
    pub fn begin_at(&self, start: Nanos) {
        self.start(start.0);
        let requests = self.map.wide(self.at + slot::REQUESTS);
        requests.store(requests.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The request is served.
    pub fn end(&self) {
        self.start(0);
    }

    /// So many requests wait for this thread, the oldest since then.
    pub fn queue(&self, depth: u32, oldest: Option<Nanos>) {
        self.map.word(self.at + slot::QUEUE_DEPTH).store(depth, Ordering::Relaxed);
        let oldest = oldest.map_or(0, |oldest| oldest.0);
        self.map.wide(self.at + slot::OLDEST_QUEUED).store(oldest, Ordering::Relaxed);
    }

    fn start(&self, start: u64) {
        self.map.wide(self.at + slot::REQUEST_START).store(start, Ordering::Relaxed);
        self.map.wide(self.at + slot::REQUEST_CHECK).store(!start, Ordering::Relaxed);
    }

    fn blank(&self) {
        self.end();
        self.queue(0, None);
        self.map.wide(self.at + slot::REQUESTS).store(0, Ordering::Relaxed);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.blank();
        // Release: pairs with the acquire in `Page::register`.
        self.map.word(self.at + slot::THREAD).store(0, Ordering::Release);
    }
}
