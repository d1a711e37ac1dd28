//! The write-ahead journal: what Quell changed on this host, and what it found.
//!
//! A file of fixed size in the run directory (a tmpfs), mapped by the daemon, which alone writes to it
//! while it lives, and by both guardians. One slot per object and attribute, updated in place, so that it is
//! bounded however often cores move. See [`slot`] for why it is whole between any two stores.
//!
//! Locking: `journal.lock` is held by the daemon as long as it lives, so that there is one. The journal file's
//! own lock (`flock`, a file description of its own for each holder) is held by whoever restores.

pub(crate) mod layout;
pub(crate) mod palette;
pub(crate) mod slot;
pub(crate) mod value;

#[cfg(test)]
mod tests;

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use quell_model::Nanos;
use rustix::fs::FallocateFlags;

use self::layout::{HEADER_WORDS, MAGIC, SLOTS_AT, VERSION, checksum, header, slot as slot_words};
use self::palette::Palette;
use self::slot::{Damaged, Identity, Slot, SlotView, TooLong};
use self::value::Value;
use crate::Subject;
use quell_os::SharedWords;
use quell_os::{ThreadRef, Tid};

/// Attributes that a journal holds at most: two each for 10,000 threads, and room for settings.
pub const CAPACITY: u32 = 24_576;
/// Slots whose memory is reserved at once, so that a full tmpfs is an error and not a SIGBUS.
const CHUNK: u32 = 128;

const JOURNAL: &str = "journal";
const WRITER_LOCK: &str = "journal.lock";

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another daemon runs.
    #[error("another Quell daemon runs on this host (it holds {path}); stop it with `quell stop`")]
    Busy {
        /// The lock that it holds.
        path: PathBuf,
    },
    /// A daemon ended without restoring.
    #[error("{path} is left of a daemon that ended without restoring; run `quell restore`")]
    Stale {
        /// The journal.
        path: PathBuf,
    },
    /// The file is not a journal of this version and boot.
    #[error("{path} is not a journal that this version of Quell can read: {why}")]
    Foreign {
        /// The journal.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Every slot is in use.
    #[error("the journal is full: {CAPACITY} attributes of threads are managed already")]
    Full,
    /// A name or value is longer than a slot can hold.
    #[error("the {0} is longer than the journal can hold")]
    TooLong(&'static str),
    /// The file cannot be used.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
}

impl JournalError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> JournalError + '_ {
        move |source| JournalError::Io { path: path.to_owned(), source }
    }
}

impl From<TooLong> for JournalError {
    fn from(what: TooLong) -> Self {
        JournalError::TooLong(match what {
            TooLong::Name => "name",
            TooLong::Value => "value",
        })
    }
}

/// What stage a journal is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its daemon may change the host.
    Open,
    /// Somebody restores.
    Restoring,
    /// All is restored.
    Closed,
}

/// The mapped file, shared by all who read or write it.
pub struct JournalFile {
    words: SharedWords,
    file: File,
    path: PathBuf,
    capacity: u32,
}

impl JournalFile {
    /// The file of a run directory.
    pub fn path_in(run_dir: &Path) -> PathBuf {
        run_dir.join(JOURNAL)
    }

    /// Maps an open journal, and checks that it is one.
    ///
    /// # Errors
    /// [`JournalError::Foreign`] where it is not.
    pub fn map(file: File, path: &Path) -> Result<JournalFile, JournalError> {
        let foreign = |why| JournalError::Foreign { path: path.to_owned(), why };
        let words =
            SharedWords::map(&file, HEADER_WORDS).map_err(|_| foreign("it is too short"))?;
        let word = |at: usize| words[at].load(Acquire);
        if word(header::MAGIC) != MAGIC {
            return Err(foreign("it does not begin like one"));
        }
        if word(header::LAYOUT) != VERSION << 32 | slot_words::WORDS as u64 {
            return Err(foreign("another version wrote it"));
        }
        if word(header::CHECK) != checksum(0, (0..header::CHECK).map(word)) {
            return Err(foreign("its header is damaged"));
        }
        let capacity = u32::try_from(word(header::CAPACITY))
            .ok()
            .filter(|capacity| *capacity <= CAPACITY)
            .ok_or_else(|| foreign("its size is out of range"))?;
        let words = SharedWords::map(&file, SLOTS_AT + capacity as usize * slot_words::WORDS)
            .map_err(|_| foreign("it is shorter than its header says"))?;
        Ok(JournalFile { words, file, path: path.to_owned(), capacity })
    }

    /// Opens the journal of a run directory; `None` if there is none.
    ///
    /// # Errors
    /// [`JournalError::Foreign`] where the file is not a journal or belongs to somebody else.
    pub fn open(run_dir: &Path) -> Result<Option<JournalFile>, JournalError> {
        let path = JournalFile::path_in(run_dir);
        let flags = libc::O_NOFOLLOW;
        let file = match OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(JournalError::io(&path))?,
        };
        let meta = file.metadata().map_err(JournalError::io(&path))?;
        let own = rustix::process::geteuid().as_raw();
        if !meta.is_file() || meta.uid() != own || meta.mode() & 0o022 != 0 {
            let why = "it belongs to somebody else, or others may write to it";
            return Err(JournalError::Foreign { path, why });
        }
        JournalFile::map(file, &path).map(Some)
    }

    /// A file description of its own on the same file, for a lock of its own.
    ///
    /// # Errors
    /// When /proc is not mounted.
    pub fn reopen(&self) -> io::Result<File> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        OpenOptions::new().read(true).write(true).open(path)
    }

    /// The descriptor to hand to a guardian.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where the journal is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The process whose journal it is: its first thread.
    pub fn daemon(&self) -> ThreadRef {
        let tid = Tid(self.word(header::DAEMON_PID) as i32);
        ThreadRef { tid, tgid: tid, start_ticks: self.word(header::DAEMON_START) }
    }

    /// Whether it was written since this boot.
    pub fn is_of_this_boot(&self) -> bool {
        boot_hash().is_ok_and(|boot| boot == self.word(header::BOOT))
    }

    /// Tells the guardians that the writer is well.
    pub fn beat(&self, now: Nanos) {
        // Pairs with `last_beat` of another process; nothing else is published by it.
        self.words[header::HEARTBEAT].store(now.0, Relaxed);
    }

    /// When the writer last was well.
    pub fn last_beat(&self) -> Nanos {
        Nanos(self.word(header::HEARTBEAT))
    }

    /// What stage it is in.
    pub fn stage(&self) -> Stage {
        match self.word(header::STATE) {
            2 => Stage::Restoring,
            3 => Stage::Closed,
            _ => Stage::Open,
        }
    }

    /// Sets the stage; for whoever holds the lock.
    pub fn set_stage(&self, stage: Stage) {
        let word = match stage {
            Stage::Open => 1,
            Stage::Restoring => 2,
            Stage::Closed => 3,
        };
        // Pairs with the load in `word`: whoever sees Closed sees all slots released.
        self.words[header::STATE].store(word, Release);
    }

    /// Says who restores.
    pub(crate) fn set_restorer(&self, who: ThreadRef) {
        self.words[header::RESTORER_PID].store(0, Release);
        self.words[header::RESTORER_START].store(who.start_ticks, Release);
        self.words[header::RESTORER_PID].store(who.tgid.0 as u64, Release);
    }

    /// Who restores, as far as said.
    pub(crate) fn restorer(&self) -> Option<ThreadRef> {
        let tid = Tid(self.word(header::RESTORER_PID) as i32);
        (tid.0 > 0).then(|| ThreadRef {
            tid,
            tgid: tid,
            start_ticks: self.word(header::RESTORER_START),
        })
    }

    /// All slots in use, oldest first, with their place; and how many are damaged.
    pub(crate) fn slots(&self) -> (Vec<(u32, SlotView)>, usize) {
        let used = (self.word(header::USED) as u32).min(self.capacity);
        let (mut whole, mut damaged) = (Vec::new(), 0);
        for at in 0..used {
            match self.slot(at).read() {
                Ok(Some(view)) => whole.push((at, view)),
                Ok(None) => {}
                Err(Damaged) => damaged += 1,
            }
        }
        whole.sort_by_key(|(_, view)| view.order);
        (whole, damaged)
    }

    /// The threads that have something to be given back.
    pub fn threads(&self) -> Vec<ThreadRef> {
        let changed = self.slots().0.into_iter().filter(|(_, view)| view.returned.is_none());
        let threads = changed.filter_map(|(_, view)| match view.identity.subject {
            Subject::Sched(thread) | Subject::Affinity(thread) => Some(thread),
            _ => None,
        });
        threads.collect()
    }

    /// Closes and removes a journal in which nothing is left to give back.
    ///
    /// # Errors
    /// When it cannot be locked, or something is left.
    pub fn close_if_empty(&self) -> io::Result<()> {
        let lock = self.reopen()?;
        lock.lock()?;
        if self.slots() != (Vec::new(), 0) {
            return Err(io::Error::other("not everything was given back"));
        }
        self.set_stage(Stage::Closed);
        self.remove()
    }

    /// Removes the file, if its name still means this journal.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let named = std::fs::symlink_metadata(&self.path);
        let own = self.file.metadata()?;
        match named {
            Ok(named) if (named.dev(), named.ino()) == (own.dev(), own.ino()) => {
                match std::fs::remove_file(&self.path) {
                    // Somebody else was quicker.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                    removed => removed,
                }
            }
            _ => Ok(()),
        }
    }

    /// The distinct thread values that Quell wrote lately.
    pub(crate) fn palette(&self) -> Vec<Value> {
        palette::read(&self.words[HEADER_WORDS..SLOTS_AT])
    }

    pub(crate) fn slot(&self, at: u32) -> Slot<'_> {
        let start = SLOTS_AT + at as usize * slot_words::WORDS;
        Slot(&self.words[start..start + slot_words::WORDS])
    }

    fn word(&self, at: usize) -> u64 {
        self.words[at].load(Acquire)
    }
}

/// The writer's side of a journal.
pub struct Journal {
    file: Arc<JournalFile>,
    free: Vec<u32>,
    used: u32,
    reserved: u32,
    order: u64,
    palette: Palette,
    _daemon_lock: Option<File>,
}

impl Journal {
    /// Creates the journal of a run directory, which is created too.
    ///
    /// # Errors
    /// [`JournalError::Busy`] while another daemon runs, [`JournalError::Stale`] where
    /// [`super::recover_stale`] has work to do first.
    pub fn create(run_dir: &Path) -> Result<Journal, JournalError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(run_dir)
            .map_err(JournalError::io(run_dir))?;
        let lock = lock_daemon(run_dir)?;
        let path = JournalFile::path_in(run_dir);
        if path.symlink_metadata().is_ok() {
            return Err(JournalError::Stale { path });
        }
        // Under another name until it is whole: a guardian or a command never sees half a header.
        let new = run_dir.join("journal.new");
        let _ = std::fs::remove_file(&new);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)
            .map_err(JournalError::io(&new))?;
        let mut journal = Journal::fill(file, &path).map_err(JournalError::io(&new))?;
        journal._daemon_lock = Some(lock);
        std::fs::rename(&new, &path).map_err(JournalError::io(&path))?;
        Ok(journal)
    }

    /// A journal without a name, for dry runs: nobody else reads it.
    ///
    /// # Errors
    /// When the kernel has no memory for it.
    pub fn scratch() -> Result<Journal, JournalError> {
        let path = Path::new("(scratch)");
        let memory = rustix::fs::memfd_create("quell-journal", rustix::fs::MemfdFlags::CLOEXEC)
            .map_err(|errno| JournalError::io(path)(errno.into()))?;
        Journal::fill(memory.into(), path).map_err(JournalError::io(path))
    }

    fn fill(file: File, path: &Path) -> io::Result<Journal> {
        let words = SLOTS_AT + CAPACITY as usize * slot_words::WORDS;
        file.set_len(words as u64 * 8)?;
        reserve(&file, 0, SLOTS_AT)?;
        let mapped = SharedWords::map(&file, words)?;
        let me = ThreadRef::current()?;
        let first = ThreadRef::of(me.tgid, me.tgid)?;
        let head = [
            MAGIC,
            VERSION << 32 | slot_words::WORDS as u64,
            u64::from(CAPACITY),
            first.tgid.0 as u64,
            first.start_ticks,
            boot_hash()?,
        ];
        for (at, word) in head.into_iter().enumerate() {
            mapped[at].store(word, Relaxed);
        }
        mapped[header::CHECK].store(checksum(0, head), Release);
        let file = JournalFile { words: mapped, file, path: path.to_owned(), capacity: CAPACITY };
        file.beat(quell_os::clock::now());
        file.set_stage(Stage::Open);
        Ok(Journal {
            file: Arc::new(file),
            free: Vec::new(),
            used: 0,
            reserved: 0,
            order: 0,
            palette: Palette::default(),
            _daemon_lock: None,
        })
    }

    /// The mapped file: heartbeat, stage, and what guardians are given.
    pub fn shared(&self) -> &Arc<JournalFile> {
        &self.file
    }

    /// Records a new object before its first change.
    pub(crate) fn insert(
        &mut self,
        identity: &Identity,
        original: &Value,
        next: &Value,
    ) -> Result<u32, JournalError> {
        let at = match self.free.pop() {
            Some(at) => at,
            None => self.extend()?,
        };
        debug_assert!(at < self.used, "slot {at} of {} in use", self.used);
        debug_assert!(!self.file.slot(at).is_live(), "slot {at} is filled a second time");
        self.paint(next);
        self.order += 1;
        if let Err(too_long) = self.file.slot(at).create(self.order, identity, original, next) {
            self.free.push(at);
            return Err(too_long.into());
        }
        // Pairs with `slots` of a reader: a slot counts only once it is whole.
        self.file.words[header::USED].store(u64::from(self.used), Release);
        Ok(at)
    }

    /// Records a value that is about to be written.
    pub(crate) fn record(
        &mut self,
        at: u32,
        entry: usize,
        next: &Value,
    ) -> Result<(), JournalError> {
        self.paint(next);
        Ok(self.file.slot(at).record(entry, next)?)
    }

    fn paint(&mut self, value: &Value) {
        self.palette.add(value, &self.file.words[HEADER_WORDS..SLOTS_AT]);
    }

    /// Whether Quell gave any thread this value, as far as the palette reaches back.
    pub(crate) fn ever_wrote(&self, same: impl Fn(&Value) -> bool) -> bool {
        self.palette.has(same)
    }

    /// Keeps a slot whose value was given back, as a bequest to children that are not known yet.
    /// Whether a slot has a written value in this entry. For assertions.
    pub(crate) fn has_written(&self, at: u32, entry: usize) -> bool {
        let slot = self.file.slot(at);
        slot.is_live() && slot.has_written(entry)
    }

    pub(crate) fn keep_as_bequest(&self, at: u32) {
        self.file.slot(at).give_back();
    }

    /// Replaces the value to give back.
    pub(crate) fn rebase(&self, at: u32, original: &Value) -> Result<(), JournalError> {
        Ok(self.file.slot(at).rebase(original)?)
    }

    /// Frees a slot whose object is gone or restored.
    pub(crate) fn release(&mut self, at: u32) {
        debug_assert!(!self.free.contains(&at), "slot {at} is released twice");
        self.file.slot(at).release();
        self.free.push(at);
    }

    /// Frees all slots, after all was given back.
    pub(crate) fn reset(&mut self) {
        for at in 0..self.used {
            self.file.slot(at).release();
        }
        self.free.clear();
        self.used = 0;
        self.file.words[header::USED].store(0, Release);
    }

    fn extend(&mut self) -> Result<u32, JournalError> {
        if self.used >= CAPACITY {
            return Err(JournalError::Full);
        }
        if self.used >= self.reserved {
            let start = SLOTS_AT + self.reserved as usize * slot_words::WORDS;
            reserve(&self.file.file, start, CHUNK as usize * slot_words::WORDS)
                .map_err(JournalError::io(&self.file.path))?;
            self.reserved += CHUNK;
        }
        debug_assert!(self.used < self.reserved, "slot {} has no memory", self.used);
        self.used += 1;
        Ok(self.used - 1)
    }
}

fn reserve(file: &File, start: usize, words: usize) -> io::Result<()> {
    let bytes = |words: usize| words as u64 * 8;
    Ok(rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, bytes(start), bytes(words))?)
}

/// Takes the lock that says that a daemon runs; it is held until the file is dropped.
pub(crate) fn lock_daemon(run_dir: &Path) -> Result<File, JournalError> {
    let path = run_dir.join(WRITER_LOCK);
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&path)
        .map_err(JournalError::io(&path))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(JournalError::Busy { path }),
        Err(TryLockError::Error(source)) => Err(JournalError::Io { path, source }),
    }
}

fn boot_hash() -> io::Result<u64> {
    let id = std::fs::read("/proc/sys/kernel/random/boot_id")?;
    Ok(checksum(1, id.into_iter().map(u64::from)))
}
