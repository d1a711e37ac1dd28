//! How an antagonist publishes its work, and how a benchmark reads it.
//!
//! The antagonist creates a file (in a tmpfs) of one page: a header, then a slot a thread. Each
//! thread writes its own slot with one `pwrite`, at most once a millisecond, or at the end of each cycle
//! of work that goes in cycles, such as collections; nobody maps the file,
//! so no reader can be hurt by a writer that truncates it. Little-endian words of 8 bytes:
//!
//! ```text
//! header (64 bytes)  magic | version | slots | unit (40 bytes of UTF-8, zero-padded)
//! slot   (32 bytes)  ops | cpu_ns | at_ns | check = ops ^ cpu_ns ^ at_ns ^ magic
//! ```
//!
//! `ops` and `cpu_ns` only grow. A reader that meets a half-written slot sees it by `check` and reads
//! again. The Go antagonist writes the same file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_model::Nanos;
use serde::{Deserialize, Serialize};

use crate::clock::{now, thread_cpu_time};
use crate::error::LoadError;

/// First word of the file: `QuellBE` and a zero.
pub const MAGIC: u64 = u64::from_le_bytes(*b"QuellBE\0");
/// Second word of the file.
pub const VERSION: u64 = 1;

const HEADER_BYTES: usize = 64;
const UNIT_BYTES: usize = 40;
const SLOT_BYTES: usize = 32;
/// Most threads: what fits into a page.
pub const SLOTS_MAX: usize = (4_096 - HEADER_BYTES) / SLOT_BYTES;

/// How often a slot is written at most.
const PUBLISH_EVERY: Nanos = Nanos::from_millis(1);
/// A slot that is still half-written after so many looks belongs to a writer that died in it.
const LOOKS_MAX: usize = 1_000;
/// Of these so many without a pause.
const LOOKS_AT_ONCE: usize = 100;
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// The antagonist's side of the file.
#[derive(Clone, Debug)]
pub struct Publisher {
    file: Option<Arc<File>>,
    slots: usize,
}

impl Publisher {
    /// Creates the file for `slots` threads, each of whose ops is a `unit` (such as "MiB moved").
    /// Without a path nothing is published.
    ///
    /// # Errors
    /// More than [`SLOTS_MAX`] threads, a unit longer than 40 bytes, or a file that cannot be written.
    pub fn create(path: Option<&Path>, slots: usize, unit: &str) -> Result<Publisher, LoadError> {
        let failed = |reason: String| LoadError::ProgressFile {
            path: path.unwrap_or(Path::new("(none)")).to_path_buf(),
            reason,
        };
        if !(1..=SLOTS_MAX).contains(&slots) || unit.len() > UNIT_BYTES {
            return Err(failed(format!("{slots} threads; use 1 to {SLOTS_MAX}")));
        }
        let Some(path) = path else { return Ok(Publisher { file: None, slots }) };
        let mut bytes = vec![0; HEADER_BYTES + slots * SLOT_BYTES];
        for (word, value) in [MAGIC, VERSION, slots as u64].into_iter().enumerate() {
            bytes[word * 8..][..8].copy_from_slice(&value.to_le_bytes());
        }
        bytes[24..24 + unit.len()].copy_from_slice(unit.as_bytes());
        for slot in bytes[HEADER_BYTES..].chunks_exact_mut(SLOT_BYTES) {
            slot.copy_from_slice(&slot_bytes(0, 0, 0));
        }
        // A rename makes the file appear whole: a reader that waits for it never sees a part.
        let mut draft = path.as_os_str().to_owned();
        draft.push(".new");
        let written = File::create(&draft)
            .and_then(|file| file.write_all_at(&bytes, 0))
            .and_then(|()| std::fs::rename(&draft, path))
            .and_then(|()| OpenOptions::new().write(true).open(path));
        let file = written.map_err(|error| failed(error.to_string()))?;
        Ok(Publisher { file: Some(Arc::new(file)), slots })
    }

    /// The slot of one thread; to be used by that thread alone. `None` beyond the last.
    pub fn slot(&self, index: usize) -> Option<Slot> {
        let file = self.file.clone();
        let offset = (HEADER_BYTES + index * SLOT_BYTES) as u64;
        (index < self.slots).then_some(Slot { file, offset, ops: 0, next: Nanos::ZERO })
    }
}

/// One thread's counter.
#[derive(Debug)]
pub struct Slot {
    file: Option<Arc<File>>,
    offset: u64,
    ops: u64,
    next: Nanos,
}

impl Slot {
    /// Counts `ops` done, and publishes if the last time was a millisecond ago.
    pub fn add(&mut self, ops: u64) {
        self.count(ops);
        let at = now();
        if at >= self.next {
            self.next = at + PUBLISH_EVERY;
            self.publish_at(at);
        }
    }

    /// Counts `ops` done. Work that goes in cycles publishes at the end of each.
    pub fn count(&mut self, ops: u64) {
        self.ops += ops;
    }

    /// Publishes what was counted so far.
    pub fn publish(&self) {
        self.publish_at(now());
    }

    /// Ops so far.
    pub fn ops(&self) -> u64 {
        self.ops
    }

    fn publish_at(&self, at: Nanos) {
        let Some(file) = &self.file else { return };
        let bytes = slot_bytes(self.ops, thread_cpu_time().0, at.0);
        // A tmpfs write fails only where memory is out; the next one is a millisecond away.
        let _ = file.write_all_at(&bytes, self.offset);
    }
}

impl Drop for Slot {
    /// The thread is done: what it did since the last write counts.
    fn drop(&mut self) {
        self.publish();
    }
}

fn slot_bytes(ops: u64, cpu_ns: u64, at_ns: u64) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    let words = [ops, cpu_ns, at_ns, ops ^ cpu_ns ^ at_ns ^ MAGIC];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn word(bytes: &[u8], index: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[index * 8..][..8]);
    u64::from_le_bytes(word)
}

/// Work published up to an instant. The difference of two is the work between them, exact to what a
/// thread does in one millisecond of its own running, or in one cycle if it publishes cycles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// Ops of all threads.
    pub ops: u64,
    /// CPU time of all threads.
    pub cpu_ns: Nanos,
    /// When the file was read.
    pub at_ns: Nanos,
}

impl Reading {
    /// Ops a second from `earlier` to this reading.
    pub fn ops_per_sec_since(&self, earlier: &Reading) -> f64 {
        let seconds = self.at_ns.since(earlier.at_ns).0.max(1) as f64 / 1e9;
        self.ops.saturating_sub(earlier.ops) as f64 / seconds
    }
}

/// The benchmark's side of the file. Its content is not trusted.
#[derive(Debug)]
pub struct Progress {
    path: PathBuf,
    file: File,
    slots: usize,
    unit: String,
}

impl Progress {
    /// Opens the file of an antagonist.
    ///
    /// # Errors
    /// No such file, or not one that an antagonist of this version wrote.
    pub fn open(path: &Path) -> Result<Progress, LoadError> {
        let failed = |reason: String| LoadError::ProgressFile { path: path.to_path_buf(), reason };
        let file = File::open(path).map_err(|error| failed(error.to_string()))?;
        let mut header = [0; HEADER_BYTES];
        file.read_exact_at(&mut header, 0).map_err(|error| failed(error.to_string()))?;
        let slots = word(&header, 2);
        if word(&header, 0) != MAGIC || word(&header, 1) != VERSION {
            return Err(failed("not a progress file of this version of quell-antagonist".into()));
        }
        if !(1..=SLOTS_MAX as u64).contains(&slots) {
            return Err(failed(format!("{slots} slots; 1 to {SLOTS_MAX} are possible")));
        }
        let unit = String::from_utf8_lossy(&header[24..]).trim_end_matches('\0').to_owned();
        Ok(Progress { path: path.to_path_buf(), file, slots: slots as usize, unit })
    }

    /// Opens the file as soon as it is there; antagonists create it once they work.
    ///
    /// # Errors
    /// As [`Progress::open`], when `patience` is over.
    pub fn wait(path: &Path, patience: Duration) -> Result<Progress, LoadError> {
        let deadline = Instant::now() + patience;
        loop {
            match Progress::open(path) {
                Err(_) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                opened_or_too_late => return opened_or_too_late,
            }
        }
    }

    /// What an op is.
    pub fn unit(&self) -> &str {
        &self.unit
    }

    /// The work of all threads up to now.
    ///
    /// # Errors
    /// A file that was cut short or holds a slot that stays half-written.
    pub fn read(&self) -> Result<Reading, LoadError> {
        let mut sum = Reading::default();
        for slot in 0..self.slots {
            let (ops, cpu_ns) = self.read_slot(slot).map_err(|error| LoadError::ProgressFile {
                path: self.path.clone(),
                reason: format!("slot {slot}: {error}"),
            })?;
            sum.ops = sum.ops.saturating_add(ops);
            sum.cpu_ns += cpu_ns;
        }
        sum.at_ns = now();
        Ok(sum)
    }

    fn read_slot(&self, slot: usize) -> io::Result<(u64, Nanos)> {
        let mut bytes = [0; SLOT_BYTES];
        for look in 0..LOOKS_MAX {
            if look >= LOOKS_AT_ONCE {
                // Whoever writes it was stopped in the middle, by its hypervisor for milliseconds.
                std::thread::sleep(LOOK_AGAIN);
            }
            self.file.read_exact_at(&mut bytes, (HEADER_BYTES + slot * SLOT_BYTES) as u64)?;
            let [ops, cpu_ns, at_ns, check] = [0, 1, 2, 3].map(|index| word(&bytes, index));
            if check == ops ^ cpu_ns ^ at_ns ^ MAGIC {
                return Ok((ops, Nanos(cpu_ns)));
            }
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "half-written"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("progress");
        (dir, path)
    }

    #[test]
    fn the_work_of_all_threads_is_summed_and_complete_once_they_end() {
        let (_dir, path) = file();
        let publisher = Publisher::create(Some(&path), 3, "turn").unwrap();
        let progress = Progress::open(&path).unwrap();
        assert_eq!((progress.unit(), progress.read().unwrap().ops), ("turn", 0));
        std::thread::scope(|scope| {
            for index in 0..3 {
                let mut slot = publisher.slot(index).unwrap();
                scope.spawn(move || (0..1_000).for_each(|_| slot.add(2)));
            }
        });
        assert_eq!(progress.read().unwrap().ops, 6_000);
        assert!(publisher.slot(3).is_none());
    }

    #[test]
    fn readings_never_run_backwards_while_a_thread_writes() {
        let (_dir, path) = file();
        let publisher = Publisher::create(Some(&path), 1, "turn").unwrap();
        let progress = Progress::open(&path).unwrap();
        let slot = publisher.slot(0).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut slot = slot;
                for _ in 0..20_000 {
                    slot.ops += 1;
                    slot.publish();
                }
            });
            let mut last = progress.read().unwrap();
            while last.ops < 20_000 {
                let reading = progress.read().unwrap();
                assert!(reading.ops >= last.ops && reading.cpu_ns >= last.cpu_ns);
                assert!(reading.at_ns >= last.at_ns);
                last = reading;
            }
        });
    }

    #[test]
    fn a_foreign_or_damaged_file_is_refused_by_name() {
        let (_dir, path) = file();
        let refused = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let error = Progress::open(&path).and_then(|p| p.read()).unwrap_err().to_string();
            assert!(error.contains(path.to_str().unwrap()), "{error}");
        };
        refused(b"");
        refused(&[0xff; 200]);
        Publisher::create(Some(&path), 2, "turn").unwrap();
        let whole = std::fs::read(&path).unwrap();
        refused(&whole[..whole.len() - 1]);
        let mut half_written = whole.clone();
        half_written[HEADER_BYTES] ^= 1;
        refused(&half_written);
        let mut too_many = whole;
        too_many[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
        refused(&too_many);
    }

    #[test]
    fn more_threads_than_slots_are_refused() {
        let (_dir, path) = file();
        assert!(Publisher::create(Some(&path), SLOTS_MAX + 1, "turn").is_err());
        assert!(Publisher::create(None, 0, "turn").is_err());
    }
}
